"""What all decoders on one runtime object share: the lock, the session numbers, the count of live sessions.

Calls on a runtime are serialized here, also across decoders and threads. Sessions that the garbage collector finds are
released at the next safe moment: a finalizer can run anywhere, also in the middle of a runtime call of the same thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from .errors import ConfigError, SessionInUse, TooManySessions
from .runtime import Runtime

if TYPE_CHECKING:
    from .drivers import Live

__all__ = ["Share", "busy", "engine_activity", "share_of"]

_activity = threading.local()


def engine_activity() -> AbstractContextManager[bool]:
    """Marks this thread as inside the engine, where a finalizer must not call back into it. Nests.

    The mark is a lock of the thread's own: taking and leaving it is one step of the interpreter, which no signal can split.
    """
    try:
        return _activity.mark
    except AttributeError:
        mark = _activity.mark = threading.RLock()
        return mark


def busy() -> bool:
    """Whether this thread is inside the engine."""
    mark = getattr(_activity, "mark", None)
    return mark is not None and mark._is_owned()


class Share:
    """The shared part of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._next = 0
        self._sessions: weakref.WeakSet[Live] = weakref.WeakSet()
        self._thread = threading.get_ident() if runtime.info.threads == "one" else None
        self._orphans: deque[Callable[[], None]] = deque()

    @property
    def this_thread_may_call(self) -> bool:
        """Whether the runtime allows calls from this thread."""
        return self._thread is None or threading.get_ident() == self._thread

    def check_thread(self) -> None:
        """Raises SessionInUse on a thread that the runtime does not allow."""
        if not self.this_thread_may_call:
            raise SessionInUse("this runtime allows one thread only: call it from the thread that made its first decoder")

    @property
    def live(self) -> int:
        """Live sessions of all decoders on the runtime."""
        with engine_activity(), self._count_lock:
            return len(self._sessions)

    def new_number(self) -> int:
        """A session id never used before on this runtime."""
        with engine_activity(), self._count_lock:
            session = self._next
            self._next += 1
            return session

    def admit(self, live: Live, bound: int) -> None:
        """Count a session as live until it is released (or nobody holds it any more).

        Raises:
            TooManySessions: ``bound`` are live.
            ConfigError: a live session has its number in the records (that of a resumed one comes from another run).
        """
        with engine_activity(), self._count_lock:
            if len(self._sessions) >= bound:
                raise TooManySessions(len(self._sessions), bound)
            number = live.log_session
            if any(other.log_session == number for other in self._sessions):
                raise ConfigError(f"session {number} of the log has the number of a live session on this runtime: close that one first")
            self._next = max(self._next, number + 1)
            self._sessions.add(live)

    def released(self, live: Live) -> None:
        """The session is live no more; again: nothing happens."""
        with engine_activity(), self._count_lock:
            self._sessions.discard(live)

    def orphan(self, release: Callable[[], None]) -> None:
        """Have ``release`` run at the next safe moment."""
        self._orphans.append(release)

    def release_orphans(self) -> None:
        """Run what finalizers left; called where no engine code is under way in this thread."""
        while self._orphans:
            try:
                release = self._orphans.popleft()
            except IndexError:  # another thread took it
                return
            release()


_shares: weakref.WeakKeyDictionary[Runtime, Share] = weakref.WeakKeyDictionary()
_shares_lock = threading.Lock()


def share_of(runtime: Runtime) -> Share:
    """The one Share of this runtime object."""
    with _shares_lock:
        try:
            share = _shares.get(runtime)
            if share is None:
                share = _shares[runtime] = Share(runtime)
        except TypeError as exc:
            raise ConfigError(f"a runtime must be hashable and weakly referenceable, {type(runtime).__name__} is not: {exc}") from None
        return share
