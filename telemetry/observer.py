"""The OpenTelemetry observer: writes what the fold makes of a live decode to a tracer and a meter.

It never makes, sets or shuts down a provider, and it never makes a span current: parents and times are given explicitly, so nothing is
held over a yield and nothing has to be detached. The engine calls it best effort: an error here is counted there, never felt.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from typing import Final, get_args

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from ..engine import REST, ConfigError, Observer, Record
from ..engine.events import Event, Extended, Rewound, SessionDropped, SessionFinished, SessionOpened, SessionResumed
from ..engine.state import SessionState
from ..engine.values import RuntimeInfo
from . import names
from .fold import SessionFold
from .metrics import Instruments
from .rounds import Level, Options
from .spans import Problem, SpanData, TurnBegan, TurnEnded
from .tally import Tally

__all__ = ["OTelObserver"]


class OTelObserver:
    """Spans and metrics of every session that it observes: ``Decoder(runtime, observers=[OTelObserver()])``.

    One observer serves any number of decoders and threads. A turn's span is a child of the span that is current where the turn is
    begun (``generate``, ``stream``, ``open``, ``extend``); where the decode runs afterwards does not matter. docs/reference/telemetry.md
    describes every span, attribute and metric.

    Args:
        tracer_provider, meter_provider: where to write; None: the global ones, also where they are set later.
        level: ``summary``: a span per turn. ``rounds``: a child per target forward too. ``debug``: also the parts of each round.
        record_token_ids: put token ids, stop tokens and stop texts into spans.
        record_messages: put the messages of errors into the status; without, their types alone.
        original_names: write each span as the system that this engine descends from did, ``stage.openai_native_mtp_span`` with
            ``llama_stage.native_mtp.span_*`` (our attributes too); needs ``level`` ``rounds`` or ``debug``.
        parent: the context to take where no span is current, as in a worker thread of a plain pool; None: such a turn is a root.

    Raises:
        ConfigError: an argument is unusable; the message names it.
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        level: Level = "summary",
        record_token_ids: bool = False,
        record_messages: bool = False,
        original_names: bool = False,
        parent: Context | None = None,
    ) -> None:
        if level not in get_args(Level):
            raise ConfigError(f"level must be one of {', '.join(get_args(Level))}, not {level!r}")
        for name, flag in (
            ("record_token_ids", record_token_ids),
            ("record_messages", record_messages),
            ("original_names", original_names),
        ):
            if not isinstance(flag, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} must be True or False, not {flag!r}")
        if parent is not None and not isinstance(parent, Context):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"parent must be an OpenTelemetry Context (context.get_current() gives one) or None, not {parent!r}")
        if original_names and level == "summary":
            raise ConfigError("original_names names the spans of rounds: set level to rounds or debug")
        for name, provider, kind in (
            ("tracer_provider", tracer_provider, trace.TracerProvider),
            ("meter_provider", meter_provider, metrics.MeterProvider),
        ):
            if provider is not None and not isinstance(provider, kind):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigError(f"{name} must be a {kind.__name__}, not {provider!r}")
        self._options = Options(
            level=level, record_token_ids=record_token_ids, record_messages=record_messages, original_names=original_names
        )
        self._meter_provider = meter_provider
        self._tracer = trace.get_tracer(names.SCOPE, tracer_provider=tracer_provider)
        self._instruments = Instruments(metrics.get_meter(names.SCOPE, meter_provider=meter_provider))
        self._parent = parent
        self._lock = threading.Lock()
        self._sessions: weakref.WeakSet[_Watching] = weakref.WeakSet()
        self._watched = False
        _observers.add(self)

    def watch(self, state: SessionState) -> Observer:
        """The observer of one session; the engine asks for it."""
        watching = _Watching(self, state)
        with self._lock:
            self._sessions.add(watching)
            if not self._watched:
                self._watched = True
                _close_at_exit()
        return watching

    def close(self) -> None:
        """End the spans of turns that have not ended, as ``unfinished``, and hand on their counts. May be called twice.

        Runs by itself when the process exits, so that no turn is lost that was under way.
        """
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.close()

    # -- for the sessions ----------------------------------------------------------------------------------------------

    @property
    def options(self) -> Options:
        """What goes into spans."""
        return self._options

    @property
    def tracer(self) -> trace.Tracer:
        """Where spans are started."""
        return self._tracer

    @property
    def instruments(self) -> Instruments:
        """Where counts go."""
        return self._instruments

    @property
    def parent(self) -> Context:
        """The caller's context, or the one to take where it holds no span."""
        current = contexts.get_current()
        if self._parent is not None and not trace.get_current_span(current).get_span_context().is_valid:
            return self._parent
        return current

    @property
    def counts(self) -> bool:
        """Whether anybody may record metrics. A provider of the API package records nothing, and only that is known for sure."""
        provider = self._meter_provider or metrics.get_meter_provider()
        return not type(provider).__module__.startswith("opentelemetry.metrics")


class _Watching:
    """One session: the sink of its fold."""

    def __init__(self, owner: OTelObserver, state: SessionState) -> None:
        self._owner = owner
        self._process = os.getpid()
        self._fold = SessionFold(state, self, owner.options)
        self._common: dict[str, str] = {}
        self._span: Span | None = None
        self._context: Context | None = None
        self._counted = False  # among the live sessions
        self._feed_round = self._fold.rounds.feed
        # A session is in use by one thread at a time, but `close` may come from another; from a signal handler, from this one.
        self._lock = threading.RLock()

    def __call__(self, record: Record) -> object:
        event = record.event
        with self._lock:
            if type(event) not in _EDGES:
                self._feed_round(record)
                return None
            if isinstance(event, SessionOpened | SessionResumed):
                self._opened(event.runtime)
            try:
                self._fold.feed(record)
            finally:
                if isinstance(event, SessionDropped):
                    self._dropped()
            # Where a turn begins it is known whether anybody looks at it.
            return None if self._fold.recorded or self._owner.counts else REST

    def close(self) -> None:
        """End what is open. A forked process leaves the spans of its parent alone."""
        if os.getpid() == self._process:
            with self._lock:
                self._fold.abandon(time.time_ns())
                self._dropped()

    def _opened(self, runtime: RuntimeInfo) -> None:
        self._common = {names.REQUEST_MODEL: str(runtime.model), names.BACKEND: str(runtime.backend)}
        if not self._counted and self._owner.counts:
            self._counted = True
            self._owner.instruments.sessions(1, self._common)

    def _dropped(self) -> None:
        if self._counted:
            self._counted = False
            self._owner.instruments.sessions(-1, self._common)

    # -- the sink ------------------------------------------------------------------------------------------------------

    def turn_began(self, turn: TurnBegan) -> bool:
        """Begin a turn's span, under the caller's."""
        parent = self._owner.parent
        span = self._owner.tracer.start_span(
            turn.name, context=parent, kind=SpanKind.INTERNAL, attributes=turn.attributes, start_time=turn.start_ns
        )
        self._span, self._context = span, trace.set_span_in_context(span, parent)
        return span.is_recording()

    def span(self, span: SpanData) -> None:
        """Write a complete child, and its children."""
        if self._context is not None:
            self._write(span, self._context)

    def _write(self, span: SpanData, parent: Context) -> None:
        written = self._owner.tracer.start_span(
            span.name, context=parent, kind=SpanKind.INTERNAL, attributes=span.attributes, start_time=span.start_ns
        )
        try:
            if span.problem is not None:
                written.set_status(_status(span.problem))
            if span.children:
                under = trace.set_span_in_context(written, parent)
                for child in span.children:
                    self._write(child, under)
        finally:
            written.end(span.end_ns)

    def turn_ended(self, turn: TurnEnded) -> None:
        """End the turn's span."""
        span, self._span, self._context = self._span, None, None
        try:
            self._owner.instruments.turn(turn, self._common)
        finally:
            if span is not None:
                try:
                    span.set_attributes(turn.attributes)
                    if turn.problem is not None:
                        span.set_status(_status(turn.problem))
                finally:
                    span.end(turn.end_ns)

    def counted(self, tally: Tally) -> None:
        """Feed the metrics."""
        self._owner.instruments.rounds(tally, self._common)


def _status(problem: Problem) -> Status:
    return Status(StatusCode.ERROR, problem.description)


#: The events at which a turn begins or ends.
_EDGES: Final[frozenset[type[Event]]] = frozenset((SessionOpened, SessionResumed, Extended, Rewound, SessionFinished, SessionDropped))

_observers: weakref.WeakSet[OTelObserver] = weakref.WeakSet()


def _close_all() -> None:
    for observer in list(_observers):
        observer.close()


def _close_at_exit() -> None:
    """Handlers run in the reverse order: one registered after the provider's own runs before the provider is shut down."""
    atexit.unregister(_close_all)
    atexit.register(_close_all)
