"""What a caller attaches to a decode: observers, a recorder, a clock, and the callbacks of a turn."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias, runtime_checkable

import attrs

from .events import Record
from .text import StopMatcher

if TYPE_CHECKING:
    from .state import SessionState

__all__ = ["REST", "AnyObserver", "Cancel", "Clock", "Hooks", "Observer", "Observers", "Recorder", "SessionObserver"]

log = logging.getLogger("spanfold.engine")

#: An observer: called with every record, best effort; an error in it is counted, logged once and never felt.
#: One that returns ``REST`` is left in peace until the session is extended or rewound.
Observer: TypeAlias = Callable[[Record], object]


class _Rest:
    def __repr__(self) -> str:
        return "REST"


#: What an observer returns that wants no more of this turn; where nobody wants any, records are not even made.
REST: Final = _Rest()


@runtime_checkable
class SessionObserver(Protocol):
    """Something that observes every session by an observer of its own, so that sessions of several runtimes keep apart."""

    def watch(self, state: SessionState) -> Observer:
        """The observer of one session, asked for when it is opened or resumed, before its first record.

        That is in the caller's thread and context, as are the records that begin a turn (SessionOpened, SessionResumed,
        Extended); the others come from where the session is stepped.

        Args:
            state: what the session goes on from: ``NEW``, or for a resumed one the fold of its log.
        """
        ...


AnyObserver: TypeAlias = Observer | SessionObserver


@attrs.frozen
class Clock:
    """Nanoseconds that never go back: ``read()`` for durations and deadlines, ``read() + epoch`` for a point in time."""

    read: Callable[[], int] = time.perf_counter_ns
    epoch: int = 0

    @classmethod
    def wall(cls) -> Clock:
        """The machine's; its epoch is that of Unix time."""
        return cls(time.perf_counter_ns, time.time_ns() - time.perf_counter_ns())


class Recorder(Protocol):
    """Keeps the records (a trace writer). Part of the decode: a token is delivered only after its records are kept."""

    def write(self, record: Record) -> None:
        """Take one record. An exception ends the session ``failed`` at the next boundary."""
        ...

    def flush(self) -> None:
        """A boundary is reached and tokens are about to be delivered: keep what was written as the policy says."""
        ...


@runtime_checkable
class CancelEvent(Protocol):
    """What ``threading.Event`` offers."""

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


Cancel = Callable[[], bool] | CancelEvent


class Observers:
    """The observers of a decoder, and how often each has failed."""

    def __init__(self, observers: Iterable[AnyObserver]) -> None:
        self._all = tuple(observers)
        self.errors = [0] * len(self._all)

    def of(self, state: SessionState) -> Watch:
        """Those of one session; see SessionObserver.watch. Best effort as ever: one that fails here is missing in the session."""
        watch = Watch(self)
        for at, observer in enumerate(self._all):
            if not isinstance(observer, SessionObserver):
                watch.add(at, observer)
                continue
            try:
                watch.add(at, observer.watch(state))
            except Exception as exc:
                self.failed(at, observer, exc)
        return watch

    def failed(self, at: int, observer: object, exc: Exception) -> None:
        """Count an error, and log the first one."""
        self.errors[at] += 1
        if self.errors[at] == 1:
            log.error("observer %r failed; it is told further records, further errors are only counted", observer, exc_info=exc)


class Watch:
    """The observers of one session.

    Attributes:
        awake: whether any of them wants the next record.
    """

    def __init__(self, owner: Observers) -> None:
        self._owner = owner
        self._all: list[tuple[int, Observer]] = []
        self._awake: list[tuple[int, Observer]] = []
        self.awake = False

    def add(self, at: int, observer: Observer) -> None:
        """Take in the decoder's observer number ``at``, or what it watches this session by."""
        self._all.append((at, observer))
        self.wake()

    def wake(self) -> None:
        """A turn begins, or goes on after a rewind: all of them are told again."""
        self._awake = self._all.copy()
        self.awake = bool(self._awake)

    def notify(self, record: Record) -> BaseException | None:
        """Tell all that are awake. Returns an interrupt that came meanwhile, for the driver to raise at a boundary."""
        interrupt: BaseException | None = None
        resting: list[tuple[int, Observer]] | None = None
        for pair in self._awake:
            at, observer = pair
            try:
                if observer(record) is REST:
                    resting = [*(resting or ()), pair]
            except Exception as exc:
                self._owner.failed(at, observer, exc)
            except BaseException as exc:
                interrupt = exc
        if resting:
            self._awake = [pair for pair in self._awake if pair not in resting]
            self.awake = bool(self._awake)
        return interrupt


class Hooks:
    """The caller's part in one turn: cancel, deadline, stop texts, ``stop_when``. Read by the driver only."""

    def __init__(
        self,
        *,
        cancel: Cancel | None = None,
        deadline_ns: int | None = None,
        stop_when: Callable[[int, int], bool] | None = None,
        on_prefill: Callable[[int, int], object] | None = None,
        matcher: StopMatcher | None = None,
    ) -> None:
        self.cancel = None if cancel is None else (cancel.is_set if isinstance(cancel, CancelEvent) else cancel)
        self.deadline_ns = deadline_ns
        self.stop_when = stop_when
        self.on_prefill = on_prefill
        self.matcher = matcher

    @property
    def polls(self) -> bool:
        """Whether the turn can be cancelled."""
        return self.cancel is not None or self.deadline_ns is not None

    @property
    def asks(self) -> bool:
        """Whether a token can stop the turn by more than its id."""
        return self.stop_when is not None or self.matcher is not None
