"""Rerun a recorded session on a live runtime: what it was given is given again, the first token that comes out different is told.

Prompt, limits, stop ids, policy, extensions and rewinds are those of the log. What ended a turn or a stretch of it from outside the
tokens (a cancel, a deadline, a stop text, ``stop_when``, a failure, a close, a rewind in mid-turn) is done again at the same token
index: the decode is cut there. So text is not needed, and no callback is asked.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import attrs
from attrs import frozen

from ..decoder import Decoder, SourceName
from ..errors import ConfigError, DecodeFailed, IllegalEvent, TraceError
from ..events import Committed, Extended, Record, Rewound, SessionFinished, SessionOpened
from ..reducer import reduce
from ..runtime import Extras, Runtime
from ..session import Session
from ..state import NEW
from ..values import Limits, Stops
from .check import Status
from .choices import Choice, ChoiceReader, Verdict, bound_for, judged
from .plain import Plain

__all__ = ["RerunDifference", "RerunReport", "rerun"]


@frozen(kw_only=True)
class RerunDifference(Plain):
    """The first token that came out different; None on the side that has no token there.

    ``position`` is the absolute index in the session, ``index`` that in the turn. ``margin`` is the live row's, between its two best
    scores; ``recorded_margin`` the recorded row's, where the trace has it.
    """

    position: int
    turn: int
    index: int
    seq: int
    recorded: int
    live: int | None
    margin: float | None
    recorded_margin: float | None


@frozen(kw_only=True)
class RerunReport(Plain):
    """What came of a rerun.

    Attributes:
        status: ``holds`` where the tokens are equal or part at a near tie, ``violated`` for a defect; ``unusable`` where the live
            runtime failed before anything differed.
        verdict: ``equal``, ``near_tie`` or ``defect``; ``failed`` where the live runtime failed.
        bound: margin below which a difference is a near tie.
        compared: tokens that were decoded again and came out equal.
        difference: the first, or None.
        notes: what could not be as recorded (no head on the live runtime, for example); none of it may change a token.
        sentence: the outcome in one line.
    """

    status: Status
    verdict: Verdict | Literal["failed"]
    bound: float
    compared: int
    difference: RerunDifference | None
    notes: tuple[str, ...]
    sentence: str


def rerun(records: Iterable[Record], runtime: Runtime, *, bound: float | None = None, margins: bool = True) -> RerunReport:
    """Decode a recorded session again on ``runtime``, greedily comparing token by token; ends at the first difference.

    Args:
        records: of one session, from its first on (``session_log(path, live=True)`` refuses a redacted one: its ids cannot be decoded).
        runtime: the live backend; the caller closes it.
        bound: margin below which a differing choice is a near tie; None: the larger of those measured for the recorded and the live
            runtime (docs/explanation/numerics.md).
        margins: ask the runtime for margins. Without, a difference can only be excused by a recorded margin.

    Raises:
        TraceError: the log is empty or does not fold.
        ConfigError: the runtime cannot hold the session: another vocabulary, or a shorter context than the log needs.
    """
    opened, stretches, longest = _read(records)
    _fits(opened, runtime, longest)
    limit = bound_for((opened.runtime, runtime.info), bound)
    source, width, notes = _drafting(opened, runtime)
    live = ChoiceReader()
    newest: dict[int, Choice] = {}  # the live choices of the stretch under way, by position

    def observe(record: Record) -> None:
        for choice in live.feed(record.seq, record.event):
            newest[choice.position] = choice

    compared = 0
    with Decoder(
        runtime,
        policy=attrs.evolve(
            opened.policy, kind=opened.policy.kind if width else "fixed", width=width, min_draft=min(opened.policy.min_draft, max(width, 1))
        ),
        source=source,
        observers=(observe,),
        extras=Extras(margins=margins),
    ) as decoder:
        session: Session | None = None
        cut = _Cut()
        for stretch in stretches:
            newest.clear()
            try:
                session = _begin(decoder, session, stretch, opened, cut)
                _decode(session, stretch, cut)
            except DecodeFailed as failed:
                return _failed(failed, limit, compared, notes)
            for choice in stretch.choices:
                found = newest.get(choice.position)
                if found is None or found.token != choice.token:
                    return _differs(stretch, choice, found, limit, compared, notes)
                compared += 1
    return RerunReport(
        status="holds",
        verdict="equal",
        bound=limit,
        compared=compared,
        difference=None,
        notes=notes,
        sentence=f"{compared} token{'' if compared == 1 else 's'} came out equal",
    )


# -- reading the log ---------------------------------------------------------------------------------------------------


@attrs.define
class _Stretch:
    """What was decoded between two commands.

    ``begin`` is the command before it; ``decoded`` how many tokens the turn holds at its end; ``self_ending``: the turn ended there
    by what is given again (a stop id, a limit), so it must end there by itself.
    """

    begin: SessionOpened | Extended | Rewound
    turn: int
    start: int
    limits: Limits
    stops: Stops
    choices: list[Choice]
    decoded: int = 0
    self_ending: bool = False


def _read(records: Iterable[Record]) -> tuple[SessionOpened, list[_Stretch], int]:
    state, reader = NEW, ChoiceReader()
    opened: SessionOpened | None = None
    stretches: list[_Stretch] = []
    longest = 0
    for record in records:
        event = record.event
        try:
            state = reduce(state, event)
        except IllegalEvent as illegal:
            raise TraceError(f"record {record.seq} does not fold ({illegal}): check the trace") from illegal
        chosen = reader.feed(record.seq, event)
        longest = max(longest, len(state.canonical))
        if isinstance(event, SessionOpened):
            opened = event
        if isinstance(event, (SessionOpened, Extended, Rewound)):
            turn = state.turn
            stretches.append(_Stretch(event, turn.number, turn.start, turn.limits, turn.stops, [], state.decoded))
        elif isinstance(event, Committed):
            stretches[-1].choices.extend(chosen)
            stretches[-1].decoded = state.decoded
        elif isinstance(event, SessionFinished):
            # A longer context than the recorded one would not end the turn: there it is cut.
            stretches[-1].self_ending = event.reason == "stop_token" or event.limit == "max_tokens"
    if opened is None:
        raise TraceError("the log is empty: there is nothing to run again")
    return opened, stretches, longest


def _fits(opened: SessionOpened, runtime: Runtime, longest: int) -> None:
    info = runtime.info
    if info.vocabulary != opened.runtime.vocabulary:
        raise ConfigError(
            f"the trace was made with a vocabulary of {opened.runtime.vocabulary} ids, {info.model} has {info.vocabulary}: use its model"
        )
    if info.context_length < longest:
        raise ConfigError(f"the session holds {longest} tokens, the context of {info.model} only {info.context_length}")


def _drafting(opened: SessionOpened, runtime: Runtime) -> tuple[SourceName, int, tuple[str, ...]]:
    """The draft source that comes closest to the recorded one, its width, and what had to be otherwise."""
    width, draft, info = opened.policy.width, opened.draft, runtime.info
    if not width or draft is None:
        return "none", 0, ()
    if draft.origin == "prompt_lookup":
        return "prompt_lookup", min(width, 16), ()
    if draft.origin != "mtp" or info.draft is None:
        return "none", 0, (f"{info.model} has no draft source {draft.origin}: decoded serially",)
    if info.rollback == "none":
        return "mtp", min(width, info.draft.depth), (f"{info.model} cannot roll back: decoded serially",)
    if info.draft.depth < width:
        return "mtp", info.draft.depth, (f"{info.model} drafts at most {info.draft.depth} tokens, the trace's policy asks for {width}",)
    return "mtp", width, ()


# -- running it --------------------------------------------------------------------------------------------------------


class _Cut:
    """The ``stop_when`` that ends a stretch after ``at`` tokens of the turn (or never, so to speak)."""

    def __init__(self) -> None:
        self.at = 0

    def __call__(self, token: int, index: int) -> bool:
        return index + 1 >= self.at


def _begin(decoder: Decoder, session: Session | None, stretch: _Stretch, opened: SessionOpened, cut: _Cut) -> Session:
    begin = stretch.begin
    if isinstance(begin, Rewound):
        assert session is not None
        session.rewind(begin.count)
        return session
    # The ids that stopped then, whatever the live model's own are.
    stops = sorted(set(stretch.stops.tokens) - (set(opened.runtime.stop_tokens) if stretch.stops.ignore_eos else set[int]()))
    most, least = stretch.limits.max_tokens, stretch.limits.min_tokens
    if isinstance(begin, SessionOpened):
        return decoder.open(begin.prompt, max_tokens=most, min_tokens=least, stop_tokens=stops, stop_when=cut)
    assert session is not None
    session.extend(begin.tokens, max_tokens=most, min_tokens=least, stop_tokens=stops, stop_when=cut)
    return session


def _decode(session: Session, stretch: _Stretch, cut: _Cut) -> None:
    # A turn that ended by itself must do so again: it is given one token more, to see that it does not go on.
    cut.at = stretch.decoded + 1 if stretch.self_ending else stretch.decoded
    while not session.finished and session.state.decoded < cut.at:
        session.step()


# -- telling it --------------------------------------------------------------------------------------------------------


def _differs(stretch: _Stretch, recorded: Choice, live: Choice | None, bound: float, compared: int, notes: tuple[str, ...]) -> RerunReport:
    margins = (None if live is None else live.margin, recorded.margin)
    verdict = judged(margins, bound) if live is not None else "defect"
    known = ", ".join(
        f"{name} margin {margin:.3g}" for name, margin in zip(("live", "recorded"), margins, strict=True) if margin is not None
    )
    return RerunReport(
        status="violated" if verdict == "defect" else "holds",
        verdict=verdict,
        bound=bound,
        compared=compared,
        difference=RerunDifference(
            position=recorded.position,
            turn=stretch.turn,
            index=recorded.position - stretch.start,
            seq=recorded.seq,
            recorded=recorded.token,
            live=None if live is None else live.token,
            margin=margins[0],
            recorded_margin=margins[1],
        ),
        notes=notes,
        sentence=(
            f"the first difference is at position {recorded.position} (record {recorded.seq}): recorded {recorded.token}, "
            f"live {'nothing' if live is None else live.token} ({known or 'no margin known'}, bound {bound:g}): "
            f"{'a near tie' if verdict == 'near_tie' else 'a defect'}"
        ),
    )


def _failed(failed: DecodeFailed, bound: float, compared: int, notes: tuple[str, ...]) -> RerunReport:
    return RerunReport(
        status="unusable", verdict="failed", bound=bound, compared=compared, difference=None, notes=notes, sentence=str(failed)
    )
