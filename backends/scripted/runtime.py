"""A runtime in memory: deterministic, exact, without any dependency, and able to fail in every way a device can.

Use it to test an embedding, to try the engine, or to show what a decode does::

    from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy

    runtime = ScriptedRuntime(hash_target(seed=7, vocabulary=50), drafts=noisy(1, 0.8))
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from types import TracebackType
from typing import Self, TypeAlias, TypeVar

import attrs

from ...engine.errors import NotStarted
from ...engine.runtime import Ask, Draft, Failure, Forward, Rows, Settle, Settled, View
from ...engine.values import DraftInfo, Rollback, RuntimeInfo, Sampling, Threads
from .answers import extras_of, falsified, until_mismatch
from .device import Device
from .drafts import DraftModel, oracle
from .faults import Armed, CallName, Fault, strike
from .targets import PrefixFunction, State, Target, as_target

__all__ = ["Call", "Chooser", "Costs", "Request", "ScriptedRuntime"]

#: What a call asks for; None for calls that only name a session.
Request: TypeAlias = Forward | Settle | Ask | Sampling | None

#: Decides at every call what goes wrong.
Chooser: TypeAlias = Callable[[CallName, int, Request], Fault | None]

_C = TypeVar("_C", Forward, Settle, Ask)
_R = TypeVar("_R", Rows, Settled, Draft)


@attrs.frozen(kw_only=True)
class Costs:
    """What the simulated device takes for its work, in nanoseconds; moves the runtime's virtual clock.

    Attributes:
        forward: per target forward; row: per row of it.
        draft: per draft call; step: per drafted token; feed: per pair fed to the head.
        settle: per settle; replay: per row computed again in it.
    """

    forward: int = 0
    row: int = 0
    draft: int = 0
    step: int = 0
    feed: int = 0
    settle: int = 0
    replay: int = 0


@attrs.frozen
class Call:
    """One entry of the call log: the call's name, its session, and the request where there is one."""

    name: CallName
    session: int
    request: Request = None


class ScriptedRuntime:
    """Implements the Runtime protocol over a target given as a function.

    Args:
        target: a `Target` (O(1) per row) or a plain function of the true prefix, which returns the chosen id or one score per
            id.
        drafts: what the head proposes; default `oracle`. Ignored without a head.
        vocabulary: number of ids; default: the target's own.
        context_length: most tokens of one session.
        rollback: ``crop``: every row holds its own state and any cut is possible. ``checkpoint``: one recurrent state, which
            a settle restores before it computes the kept rows again (``replayed_rows``); without a live checkpoint nothing
            can be cut. ``none``: speculative rows are refused.
        head: whether the model has an MTP head.
        depth: most tokens per draft. layers: MTP layers that the head claims.
        draft_context: most tokens after which the head still drafts; default: the context length.
        backlog: most hidden rows that wait for the head between drafts.
        stop_tokens: the model's own end-of-text ids.
        costs: virtual device times, reported in ``cost_ns``; None: none are reported and the virtual clock stands still.
        faults: what goes wrong, each counted from the first call on; `inject` adds more later. Or a function that is asked
            at every call, ``(name, session, request) -> Fault | None``.
        max_batch: most elements per call. threads: ``one``: only the thread that made the runtime may call.
        early_exit: leave out the predictions after a span's first mismatch, as the protocol allows.
        record: keep the call log.

    Attributes:
        calls: the call log, a list of `Call`.
    """

    def __init__(
        self,
        target: Target | PrefixFunction,
        *,
        drafts: DraftModel | None = None,
        vocabulary: int | None = None,
        context_length: int = 1 << 20,
        rollback: Rollback = "crop",
        head: bool = True,
        depth: int = 8,
        layers: int = 1,
        draft_context: int | None = None,
        backlog: int = 64,
        stop_tokens: Iterable[int] = (),
        costs: Costs | None = None,
        faults: Iterable[Fault] | Chooser = (),
        max_batch: int = 1,
        threads: Threads = "any",
        early_exit: bool = False,
        record: bool = True,
        model: str = "scripted",
    ) -> None:
        own = getattr(target, "vocabulary", None)
        size = own if vocabulary is None else vocabulary
        if not isinstance(size, int):
            raise ValueError("ScriptedRuntime needs vocabulary=, the number of token ids, for a target that does not say")
        if own is not None and own > size:
            raise ValueError(f"the target chooses among {own} ids, vocabulary is {size}")
        if backlog < 1:
            raise ValueError(f"backlog must be at least 1 (the newest row always waits for its token), not {backlog}")
        room = context_length if draft_context is None else draft_context
        self._info = RuntimeInfo(
            backend="scripted",
            model=model,
            vocabulary=size,
            context_length=context_length,
            rollback=rollback,
            draft=DraftInfo(origin="mtp", layers=layers, depth=depth, context_length=room) if head else None,
            max_batch=max_batch,
            threads=threads,
            row_exact=True,
            stop_tokens=tuple(stop_tokens),
        )
        self._target = as_target(target, size)
        self._drafts = drafts if drafts is not None else oracle()
        self._head_room = room - 1
        self._backlog = backlog
        self._costs = costs
        self._early_exit = early_exit
        self._record = record
        self._chooser = faults if callable(faults) else None
        self._armed: list[Armed] = [] if callable(faults) else [Armed(fault) for fault in faults]
        self._watching = record or callable(faults) or bool(self._armed)
        self._devices: dict[int, Device] = {}
        self._thread = threading.get_ident()
        self._busy = threading.Lock()
        self._now = 0
        self._closed = False
        self.calls: list[Call] = []

    # What tests and people look at.

    @property
    def info(self) -> RuntimeInfo:
        """Constant facts about the runtime."""
        return self._info

    @property
    def target(self) -> Target:
        """The target, as a fold."""
        return self._target

    @property
    def live_sessions(self) -> int:
        """Sessions that hold anything."""
        return len(self._devices)

    @property
    def live_rows(self) -> int:
        """Rows of all caches, the heads' included."""
        return sum(len(device.tokens) + len(device.head) for device in self._devices.values())

    def cache_rows(self, session: int) -> tuple[int, ...]:
        """The tokens in the target's cache, as they were fed. KeyError for an unknown session."""
        return tuple(self._devices[session].tokens)

    def head_rows(self, session: int) -> tuple[tuple[State, int], ...]:
        """The head's pairs (hidden id of row p, token p + 1), as they were fed. KeyError for an unknown session."""
        return tuple(self._devices[session].head)

    def pairs(self, canonical: Sequence[int]) -> tuple[tuple[State, int], ...]:
        """The pairs that a fully fed head must hold for these canonical tokens; one less than there are tokens."""
        made: list[tuple[State, int]] = []
        state = self._target.start()
        for token, following in pairwise(canonical):
            state = self._target.advance(state, token)
            made.append((state, following))
        return tuple(made)

    def inspect(self, session: int) -> View | None:
        """What `view` answers where nothing goes wrong; not logged, and no fault strikes it."""
        device = self._devices.get(session)
        if device is None:
            return None
        return View(
            position=len(device.tokens),
            head_position=len(device.head) if device.drafting else None,
            checkpoint=device.checkpoint is not None,
            floor=device.floor,
        )

    def clock(self) -> int:
        """The virtual time in nanoseconds; give it to ``Decoder(clock=runtime.clock)`` for reproducible times."""
        return self._now

    def count(self, name: CallName) -> int:
        """How many such calls are in the log."""
        return sum(call.name == name for call in self.calls)

    def inject(self, fault: Fault) -> None:
        """Arm one more fault; its ``at`` counts from now."""
        self._armed.append(Armed(fault))
        self._watching = True

    # The protocol.

    def open_session(self, session: int, sampling: Sampling, drafting: bool) -> None:
        """Make an empty session. ValueError if it lives already, or if the sampling masks every id."""
        self._enter()
        try:
            fault = self._hit("open", session, sampling)
            if session in self._devices:
                raise ValueError(f"session {session} is open already")
            self._check_sampling(sampling)
            strike(fault, before=True)
            self._devices[session] = Device(
                self._target,
                sampling,
                rollback=self._info.rollback,
                drafting=drafting and self._info.draft is not None,
                head_room=self._head_room,
                backlog=self._backlog,
            )
            strike(fault, before=False)
        finally:
            self._busy.release()

    def configure(self, session: int, sampling: Sampling) -> None:
        """Change the sampling for the rows to come."""
        self._enter()
        try:
            fault = self._hit("configure", session, sampling)
            device = self._device(session)
            self._check_sampling(sampling)
            strike(fault, before=True)
            device.configure(sampling)
            strike(fault, before=False)
        finally:
            self._busy.release()

    def drop_session(self, session: int) -> None:
        """Release a session; unknown or dropped already: nothing happens."""
        if self._closed:
            return
        self._enter()
        try:
            fault = self._hit("drop", session, None)
            strike(fault, before=True)
            self._devices.pop(session, None)
            strike(fault, before=False)
        finally:
            self._busy.release()

    def forward(self, calls: Sequence[Forward]) -> Sequence[Rows | Failure]:
        """Run target forwards. NotStarted: unknown session, another base, no room, an open span, or no rollback for a span."""
        return self._each("forward", calls, self._forward)

    def settle(self, calls: Sequence[Settle]) -> Sequence[Settled | Failure]:
        """Retire or trim. ValueError for a position that cannot be reached; then nothing changed."""
        return self._each("settle", calls, self._settle)

    def draft(self, calls: Sequence[Ask]) -> Sequence[Draft | Failure]:
        """Feed the head and draft."""
        return self._each("draft", calls, self._draft)

    def view(self, session: int) -> View | None:
        """The session's true numbers; None for an unknown one."""
        self._enter()
        try:
            fault = self._hit("view", session, None) if self._watching else None
            strike(fault, before=True)
            view = self.inspect(session)
            if view is None or (fault is not None and fault.wrong == "gone"):
                return None
            if fault is not None and fault.wrong == "position":
                return attrs.evolve(view, position=view.position + 1)
            return view
        finally:
            self._busy.release()

    def close(self) -> None:
        """Release everything; further calls raise."""
        self._closed = True
        self._devices.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # One element each.

    def _forward(self, call: Forward, fault: Fault | None) -> Rows:
        device, costs = self._device(call.session), self._costs
        base, rows = len(device.tokens), len(call.tokens)
        if call.base != base:
            raise NotStarted(f"session {call.session} is at position {base}, the forward starts at {call.base}")
        if device.checkpoint is not None:
            raise NotStarted(f"session {call.session} has a span that was not settled")
        if not rows:
            raise NotStarted("a forward needs at least one row")
        if base + rows > self._info.context_length:
            raise NotStarted(f"{base} + {rows} rows do not fit a context of {self._info.context_length}")
        if not call.canonical and self._info.rollback == "none":
            raise NotStarted("this runtime cannot roll back: speculative rows are refused")
        for token in call.tokens:
            if not 0 <= token < self._info.vocabulary:
                raise NotStarted(f"token id {token} is outside the vocabulary of {self._info.vocabulary}")
        wrong = None
        if fault is not None:
            wrong = fault.wrong
            if wrong is None and not fault.started:
                raise fault.error()
        if not call.canonical:
            device.mark(rows)
        if fault is not None and wrong is None:
            device.write(call.tokens[: fault.done])
            raise fault.error()
        device.write(call.tokens if wrong != "lost_row" else call.tokens[:-1])
        cost = self._spend(costs.forward + costs.row * rows) if costs is not None else None
        if call.canonical:
            device.keep_backlog()
        if call.want == "none":
            return Rows(session=call.session, predictions=(), position=len(device.tokens), cost_ns=cost)
        first = base if call.want == "all" else base + rows - 1
        predictions = device.predict(first)
        if self._early_exit and call.want == "all":
            predictions = until_mismatch(call.tokens, predictions)
        margins = logprobs = logits = None
        if call.extras.margins or call.extras.logprobs or call.extras.logits:
            margins, logprobs, logits = extras_of(device, first, predictions, call.extras)
        position = len(device.tokens)
        if wrong is not None:
            predictions = falsified(wrong, predictions, self._info.vocabulary, device)
            position += wrong == "position"
        return Rows(
            session=call.session,
            predictions=predictions,
            position=position,
            cost_ns=cost,
            margins=margins,
            logprobs=logprobs,
            logits=logits,
        )

    def _settle(self, call: Settle, fault: Fault | None) -> Settled:
        device, costs = self._device(call.session), self._costs
        before = len(device.tokens)
        if call.position > before:
            raise ValueError(f"session {call.session} is at position {before} and cannot be settled at {call.position}")
        if call.position < device.floor:
            raise ValueError(f"session {call.session} cannot get back to {call.position}, only to {device.floor}")
        if not call.base <= call.position <= call.base + call.rows or before > call.base + call.rows:
            raise ValueError(f"a settle of rows {call.base} to {call.base + call.rows} cannot end at {call.position} from {before}")
        span = device.checkpoint
        if span is not None and (call.base, call.rows) != (span.base, span.rows):
            raise ValueError(f"the open span is {span.rows} rows from {span.base}, not {call.rows} from {call.base}")
        strike(fault, before=True)
        wrong = fault.wrong if fault is not None else None
        replayed, to = 0, call.position
        if wrong in ("trim_noop", "trim_lie") or to == before:
            device.retire()
        else:
            if wrong == "trim_off_by_one":
                to = max(to - 1, device.floor)
            replayed = device.cut(to, restore=wrong != "keep_state")
        device.keep_backlog()
        cost = self._spend(costs.settle + costs.replay * replayed) if costs is not None else None
        strike(fault, before=False)
        position = len(device.tokens) + (wrong == "position")
        if wrong == "trim_lie":
            position = call.position
        return Settled(session=call.session, position=position, replayed_rows=replayed, cost_ns=cost)

    def _draft(self, call: Ask, fault: Fault | None) -> Draft:
        device, costs = self._device(call.session), self._costs
        info = self._info.draft
        if info is None or not device.drafting:
            raise NotStarted(f"session {call.session} does not draft with a head")
        if device.checkpoint is not None:
            raise NotStarted(f"session {call.session} has a span that was not settled")
        if not device.tokens:
            raise NotStarted(f"session {call.session} has no rows yet")
        if call.limit > info.depth:
            raise NotStarted(f"{call.limit} tokens were asked for, the head drafts at most {info.depth}")
        if len(device.tokens) > self._head_room:
            raise NotStarted(f"the head drafts after at most {info.context_length} tokens, here are {len(device.tokens) + 1}")
        if not 0 <= call.current < self._info.vocabulary:
            raise NotStarted(f"token id {call.current} is outside the vocabulary of {self._info.vocabulary}")
        if len(device.head) == len(device.tokens) and device.head[-1][1] != call.current and not device.astray:
            raise NotStarted(f"the newest pair was fed with token {device.head[-1][1]}, current is {call.current}")
        wrong = fault.wrong if fault is not None else None
        if fault is not None and wrong is None:
            if not fault.started:
                raise fault.error()
            if fault.done is not None:
                device.feed(call.current, fault.done)
                raise fault.error()
        fed = 0 if wrong == "unfed" and device.head else device.feed(call.current)
        tokens: tuple[int, ...] = ()
        if call.limit:
            tokens = tuple(self._drafts(device.see_head(self._info.vocabulary), call.limit))
        if wrong == "stale":
            device.speculate(tokens)
        cost = self._spend(costs.draft + costs.step * len(tokens) + costs.feed * fed) if costs is not None else None
        if fault is not None and wrong is None:
            raise fault.error()
        return Draft(session=call.session, tokens=tokens, cost_ns=cost)

    # Helpers.

    def _each(self, name: CallName, calls: Sequence[_C], one: Callable[[_C, Fault | None], _R]) -> list[_R | Failure]:
        self._enter()
        try:
            if len(calls) > self._info.max_batch:
                raise NotStarted(f"{len(calls)} elements in one {name} call, this runtime takes {self._info.max_batch}")
            answers: list[_R | Failure] = []
            for call in calls:
                fault = self._hit(name, call.session, call) if self._watching else None
                try:
                    answers.append(one(call, fault))
                except Exception as error:
                    if len(calls) == 1 and not (fault is not None and fault.element):
                        raise
                    started = not isinstance(error, NotStarted)
                    answers.append(
                        Failure(session=call.session, started=started, error=type(error).__name__, message=str(error), cause=error)
                    )
            return answers
        finally:
            self._busy.release()

    def _enter(self) -> None:
        if self._closed:
            raise RuntimeError("this runtime was closed")
        if self._info.threads == "one" and threading.get_ident() != self._thread:
            raise RuntimeError("this runtime takes calls only from the thread that made it")
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("two calls at once: calls on one runtime must be serialized")

    def _hit(self, name: CallName, session: int, request: Request) -> Fault | None:
        """Log the call; the fault that strikes it, if any."""
        if self._record:
            self.calls.append(Call(name, session, request))
        struck = self._chooser(name, session, request) if self._chooser is not None else None
        for armed in self._armed:
            if armed.counts(name, session) and struck is None:
                struck = armed.fault
        return struck

    def _device(self, session: int) -> Device:
        device = self._devices.get(session)
        if device is None:
            raise NotStarted(f"there is no session {session}")
        return device

    def _check_sampling(self, sampling: Sampling) -> None:
        if (
            sampling.mask_until
            and len(sampling.masked) >= self._info.vocabulary
            and set(range(self._info.vocabulary)) <= set(sampling.masked)
        ):
            raise ValueError(f"the sampling masks all {self._info.vocabulary} ids")

    def _spend(self, cost: int) -> int:
        self._now += cost
        return cost
