"""The public face: a Decoder on a runtime, one-shot generation, streams, and sessions that go on.

::

    with Decoder(runtime, policy=3) as decoder:
        result = decoder.generate(prompt, max_tokens=64)       # Result
        for token in decoder.stream(prompt): ...               # tokens as they are committed
        with decoder.open(prompt) as session:                  # one round at a time
            session.step(); session.rewind(2); session.extend(more)
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterable, Sequence
from operator import index
from types import TracebackType
from typing import Final, Literal, Self, TypeAlias, TypedDict, Unpack

import attrs

from .adaptive import Pace, carried
from .drafting import DraftSource, HeadSource, PromptLookup
from .drivers import Live
from .errors import ConfigError, SessionClosed
from .events import Record, SessionOpened, SessionResumed
from .hooks import AnyObserver, Cancel, Clock, Hooks, Observers, Recorder, SessionObserver
from .life import open_session, resume_session
from .reducer import fold
from .requests import Context
from .rules import VERSION, masking
from .runtime import NO_EXTRAS, Extras, Runtime
from .session import Result, Session
from .sharing import share_of
from .state import NEW, SessionState
from .stream import TokenStream
from .text import StopMatcher, TextSource
from .values import DraftInfo, Limits, Policy, Sampling, Stops

__all__ = ["Decoder", "Result", "TurnOptions"]

SourceName: TypeAlias = Literal["auto", "mtp", "prompt_lookup", "none"]
PolicyLike: TypeAlias = int | Policy | Literal["auto"]
OnPrefill: TypeAlias = Callable[[int, int], object]

_WIDEST_BY_DEFAULT: Final = 8
_FOREVER_S: Final = 1e9


class TurnOptions(TypedDict, total=False):
    """The keyword arguments of a turn, the same for ``generate``, ``stream``, ``open`` and ``Session.extend``.

    max_tokens: most tokens to commit; None (default): up to the context's end.
    min_tokens: so many tokens before a stop id can be chosen or a stop text counts.
    stop_tokens: ids that end the turn; None (default): the model's own.
    stop_texts: strings that end the turn at the token that completes one; needs ``Decoder(text=...)``.
    ignore_eos: the model's own stop ids do not stop.
    stop_when: ``(token, index) -> bool``, asked before each commit, in order; index counts from 0 in the turn. It must not
        wait. An exception commits through that token and propagates unchanged.
    on_token: called with each delivered token, after the round is repaired.
    cancel: a ``threading.Event`` or a function ``() -> bool``.
    deadline_s: seconds from now after which the turn is cancelled.
    on_prefill: ``(rows done, rows in all)`` after each prefill forward; best effort, like an observer.
    """

    max_tokens: int | None
    min_tokens: int
    stop_tokens: Iterable[int] | None
    stop_texts: Sequence[str]
    ignore_eos: bool
    stop_when: Callable[[int, int], bool] | None
    on_token: Callable[[int], object] | None
    cancel: Cancel | None
    deadline_s: float | None
    on_prefill: OnPrefill | None


_OPTIONS: Final = frozenset(TurnOptions.__annotations__)


@attrs.frozen
class Turning:
    """The validated arguments of a turn."""

    limits: Limits
    stops: Stops
    hooks: Hooks
    on_token: Callable[[int], object] | None


class Decoder:
    """Decodes on one runtime.

    Args:
        runtime: a backend; the caller closes it.
        policy: ``auto`` (the default: as many tokens per span as pay, at most 8 or the head's depth), a fixed number of tokens (0 for
            none), or a Policy. What ``auto`` has measured in one session the decoder's next one begins with.
        source: ``auto`` (the model's head if it has one, else serial decoding), ``mtp``, ``prompt_lookup``, ``none``, or a
            DraftSource.
        observers: called with every Record, or SessionObservers; best effort.
        recorder: keeps every Record; part of the decode.
        text: the vocabulary's text, needed for ``stop_texts`` only.
        max_sessions: most live sessions on the runtime, those of other decoders counted.
        extras: what each forward should return besides predictions (margins, logprobs); recorded in the events.
        clock: nanoseconds, for costs, ``at_ns`` and deadlines; None: the machine's.

    Raises:
        ConfigError: an argument is unusable; the message names it.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        policy: PolicyLike = "auto",
        source: SourceName | DraftSource = "auto",
        observers: Iterable[AnyObserver] = (),
        recorder: Recorder | None = None,
        text: TextSource | None = None,
        max_sessions: int = 64,
        extras: Extras = NO_EXTRAS,
        clock: Callable[[], int] | None = None,
    ) -> None:
        if not isinstance(runtime, Runtime):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"runtime must implement spanfold.engine.Runtime, {type(runtime).__name__} does not")
        if not isinstance(extras, Extras):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"extras must be an Extras, not {extras!r}")
        if not isinstance(observers, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"observers must be a sequence of functions, not {observers!r}: put it into a list")
        observers = tuple(observers)
        for observer in observers:
            if not callable(observer) and not isinstance(observer, SessionObserver):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"an observer must be a function of one Record or have a method watch, not {observer!r}")
        if type(max_sessions) is not int or max_sessions < 1:
            raise ConfigError(f"max_sessions must be an integer of at least 1, not {max_sessions!r}")
        self.runtime = runtime
        self.observers = Observers(observers)
        self._source, self._draft = _resolve_source(source, runtime)
        self._policy = _resolve_policy(policy, self._draft)
        self._recorder = recorder
        self._text = text
        self._max_sessions = max_sessions
        self._extras = extras
        self._clock = Clock.wall() if clock is None else Clock(clock)
        self._share = share_of(runtime)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._paces: dict[int, Pace] = {}  # what sessions that ended knew, by their widest draft
        self._closed = False

    # -- the three ways to decode ------------------------------------------------------------------------------------

    def generate(self, prompt: Sequence[int], *, policy: PolicyLike | None = None, **options: Unpack[TurnOptions]) -> Result:
        """Decode one turn and release the session.

        Args:
            prompt: token ids, at least one.
            policy: overrides the decoder's for this session.
            **options: see TurnOptions.

        Raises:
            ConfigError: an argument is unusable; nothing was run.
            DecodeFailed, RecorderFailed: with ``.partial``, the Result so far.
            Exception: whatever ``stop_when``, ``on_token`` or ``cancel`` raised, unchanged.
        """
        with self.stream(prompt, policy=policy, **options) as stream:
            for _ in stream:
                pass
            return stream.result

    def stream(self, prompt: Sequence[int], *, policy: PolicyLike | None = None, **options: Unpack[TurnOptions]) -> TokenStream:
        """Decode one turn as an iterator of tokens. Closed early, the turn is finished ``closed`` and the session dropped."""
        return TokenStream(self.open(prompt, policy=policy, **options))

    def open(self, prompt: Sequence[int], *, policy: PolicyLike | None = None, **options: Unpack[TurnOptions]) -> Session:
        """Open a session; nothing runs before its first step."""
        self._check_open()
        tokens = token_ids(prompt, "prompt", self.runtime.info.vocabulary)
        info = self.runtime.info
        if not tokens:
            raise ConfigError("prompt must hold at least one token")
        if len(tokens) > info.context_length:
            raise ConfigError(f"prompt has {len(tokens)} tokens, the context of {info.model} holds {info.context_length}: shorten it")
        chosen = self._policy if policy is None else _resolve_policy(policy, self._draft)
        turning = self.turning(options)
        drafting = chosen.width > 0 and self._source is not None
        auto = drafting and chosen.kind == "auto"
        opened = SessionOpened(
            prompt=tokens,
            limits=turning.limits,
            stops=turning.stops,
            sampling=masking(Sampling(), turning.stops, turning.limits, info, len(tokens)),
            policy=chosen,
            runtime=info,
            draft=self._draft if drafting else None,
            rules=VERSION,
            prior=self._paces.get(self._draft_limit(chosen)) if auto else None,
        )
        live = self._live(drafting, None)
        return self._begin(live, turning, lambda: live.run(open_session(opened, Context(session=live.session))))

    def resume(self, trace: str | os.PathLike[str] | Iterable[Record], **options: Unpack[TurnOptions]) -> Session:
        """Go on with a session, after a crash for example: its canonical tokens are prefilled, then it decodes.

        Args:
            trace: the path of a trace that holds one session (for others see ``spanfold.engine.replay.resume_trace``), or the
                records of one.
            **options: callbacks, cancel and deadline. Limits, stops, sampling and policy are the log's.

        Raises:
            ConfigError: the log is empty, or an option would change what the log fixes.
            IllegalEvent: the log is not one of this engine's, or does not fit this runtime.
            TraceError, OSError: the trace cannot be read, holds several sessions, or is redacted.
        """
        self._check_open()
        self._check_options(options)
        fixed = sorted(set(options) & {"max_tokens", "min_tokens", "stop_tokens", "stop_texts", "ignore_eos"})
        if fixed:
            raise ConfigError(f"{fixed[0]} is fixed by the log of a resumed session: extend the session to change it")
        if isinstance(trace, (str, os.PathLike)):
            from .replay.sessions import session_log  # here, since replay stands on this module

            trace = session_log(trace, live=True)
        kept = list(trace)
        state = fold(kept)
        if not kept:
            raise ConfigError("the log is empty: open a session instead")
        drafting = state.policy.width > 0 and self._source is not None
        turn = state.turn
        turning = self._turning(turn.limits, turn.stops, options)
        live = self._live(drafting, (state, kept[-1]))
        resumed = SessionResumed(runtime=self.runtime.info, draft=self._draft if drafting else None, rules=VERSION)
        if turning.hooks.matcher is not None:
            turning.hooks.matcher.reset(state.canonical[turn.start :])
        return self._begin(live, turning, lambda: live.run(resume_session(resumed, live.state, Context(session=live.session))))

    # -- closing -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close every session of this decoder. The runtime stays open: whoever made it closes it."""
        self._closed = True
        for session in list(self._sessions):
            session.close()
        self._share.release_orphans()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def learn(self, state: SessionState) -> None:
        """Keep what a session knows of costs and acceptance for the next one, unless it knows much less than what is kept."""
        if state.pace is None:
            return
        pace, kept = carried(state.pace, state.stats.forwards), self._paces.get(state.pace.most)
        if kept is None or 2 * pace.known >= kept.known:  # half: a session forgets a little as it goes on
            self._paces[pace.most] = pace

    # -- parts -------------------------------------------------------------------------------------------------------

    def turning(self, options: TurnOptions) -> Turning:
        """Validate the options of a turn."""
        self._check_options(options)
        info = self.runtime.info
        limits = Limits(max_tokens=options.get("max_tokens"), min_tokens=options.get("min_tokens", 0))
        given = options.get("stop_tokens")
        texts = options.get("stop_texts") or ()
        if isinstance(texts, str) or not isinstance(texts, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"stop_texts must be a sequence of strings, not {texts!r}")
        stops = Stops(
            tokens=info.stop_tokens if given is None else token_ids(given, "stop_tokens", info.vocabulary),
            texts=tuple(texts),
            ignore_eos=options.get("ignore_eos", False),
        )
        if limits.min_tokens and len(set(stops.tokens)) >= info.vocabulary:
            raise ConfigError("min_tokens masks the stop ids, and stop_tokens names the whole vocabulary: nothing could be chosen")
        return self._turning(limits, stops, options)

    @staticmethod
    def _check_options(options: TurnOptions) -> None:
        unknown = sorted(set(options) - _OPTIONS)
        if unknown:
            raise TypeError(f"unknown argument {unknown[0]!r}; known are {', '.join(sorted(_OPTIONS | {'policy'}))}")

    def _turning(self, limits: Limits, stops: Stops, options: TurnOptions) -> Turning:
        deadline = options.get("deadline_s")
        if deadline is not None and not (isinstance(deadline, (int, float)) and deadline >= 0):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"deadline_s must be a number of seconds of at least 0, not {deadline!r}")
        for name in ("stop_when", "on_token", "on_prefill"):
            hook = options.get(name)
            if hook is not None and not callable(hook):
                raise ConfigError(f"{name} must be a function, not {hook!r}")
        cancel = options.get("cancel")
        if cancel is not None and not (callable(cancel) or hasattr(cancel, "is_set")):
            raise ConfigError(f"cancel must be a threading.Event or a function, not {cancel!r}")
        matcher = None
        if stops.texts:
            if self._text is None:
                raise ConfigError("stop_texts needs the vocabulary's text: make the decoder with Decoder(runtime, text=...)")
            matcher = StopMatcher(self._text, stops.texts, limits.min_tokens)
        hooks = Hooks(
            cancel=cancel,
            deadline_ns=None if deadline is None or deadline > _FOREVER_S else self._clock.read() + int(deadline * 1e9),
            stop_when=options.get("stop_when"),
            on_prefill=options.get("on_prefill"),
            matcher=matcher,
        )
        return Turning(limits, stops, hooks, options.get("on_token"))

    def _live(self, drafting: bool, resumed: tuple[SessionState, Record] | None) -> Live:
        share = self._share
        share.check_thread()
        share.release_orphans()
        session = share.new_number()
        state, last = (NEW, None) if resumed is None else resumed
        live = Live(
            self.runtime,
            share,
            session,
            source=self._source if drafting else None,
            watch=self.observers.of(state),
            recorder=self._recorder,
            clock=self._clock,
            state=state,
            log_session=None if last is None else last.session,
            seq=0 if last is None else last.seq + 1,
        )
        share.admit(live, self._max_sessions)
        return live

    def _begin(self, live: Live, turning: Turning, begin: Callable[[], None]) -> Session:
        try:
            live.hooks = turning.hooks
            session = Session(self, live, self._share, turning.on_token, self._extras)
            begin()
            session.raise_if_not_opened()
            self._sessions.add(session)
        except BaseException:
            if live.state.phase == "new":
                live.release()
            raise
        return session

    def _draft_limit(self, policy: Policy) -> int:
        return policy.width if self._draft is None else min(policy.width, self._draft.depth)

    def _check_open(self) -> None:
        if self._closed:
            raise SessionClosed("the decoder is closed: make a new one")


def token_ids(tokens: Iterable[int], name: str, vocabulary: int) -> tuple[int, ...]:
    """Plain ints from any integers (numpy's too), each in the vocabulary; ``name`` is for the message."""
    if isinstance(tokens, (str, bytes)):
        raise ConfigError(f"{name} must be token ids, not text: encode it with the model's tokenizer")
    try:
        ids = tuple(map(index, tokens))
    except TypeError as exc:
        raise ConfigError(f"{name} must be a flat sequence of integers: {exc}") from None
    for token in ids:
        if not 0 <= token < vocabulary:
            raise ConfigError(f"{name} holds id {token}, the vocabulary has {vocabulary} ids")
    return ids


def _resolve_source(source: SourceName | DraftSource, runtime: Runtime) -> tuple[DraftSource | None, DraftInfo | None]:
    info = runtime.info
    if isinstance(source, str):
        if source == "none" or (source == "auto" and info.draft is None):
            return None, None
        if source in ("auto", "mtp"):
            chosen: DraftSource = HeadSource()
        elif source == "prompt_lookup":
            chosen = PromptLookup()
        else:
            raise ConfigError(f"source must be auto, mtp, prompt_lookup, none or a DraftSource, not {source!r}")
    elif hasattr(source, "info") and hasattr(source, "open"):
        chosen = source
    else:
        raise ConfigError(f"source must be auto, mtp, prompt_lookup, none or a DraftSource, not {source!r}")
    return chosen, chosen.info(info)


def _resolve_policy(policy: PolicyLike, draft: DraftInfo | None) -> Policy:
    if isinstance(policy, str) and policy == "auto":
        return Policy(kind="auto", width=min(_WIDEST_BY_DEFAULT, draft.depth)) if draft else Policy(width=0)
    if not isinstance(policy, Policy):
        if isinstance(policy, bool) or not isinstance(policy, int):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"policy must be 'auto', a number of tokens to draft or a Policy, not {policy!r}")
        policy = Policy(width=policy)
    if draft is not None and policy.width > draft.depth:
        raise ConfigError(f"Policy.width is {policy.width}, this draft source ({draft.origin}) drafts at most {draft.depth} tokens")
    return policy
