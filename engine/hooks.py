"""What a caller attaches to a decode: observers, a recorder, a clock, and the callbacks of a turn."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

import attrs

from .events import Record
from .text import StopMatcher

__all__ = ["Cancel", "Clock", "Hooks", "Observer", "Observers", "Recorder"]

log = logging.getLogger("spanfold.engine")

#: An observer: called with every record, best effort; an error in it is counted, logged once and never felt.
Observer = Callable[[Record], object]


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

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._all = tuple(observers)
        self.errors = [0] * len(self._all)

    def __bool__(self) -> bool:
        return bool(self._all)

    def notify(self, record: Record) -> BaseException | None:
        """Tell all of them. Returns an interrupt that came meanwhile, for the driver to raise at a boundary."""
        interrupt: BaseException | None = None
        for at, observer in enumerate(self._all):
            try:
                observer(record)
            except Exception:
                self.errors[at] += 1
                if self.errors[at] == 1:
                    log.exception("observer %r failed; it is told further records, further errors are only counted", observer)
            except BaseException as exc:
                interrupt = exc
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
