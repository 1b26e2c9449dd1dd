"""What all decoders on one runtime object share: the lock, the session numbers, the count of live sessions.

Calls on a runtime are serialized here, also across decoders and threads. Sessions that the garbage collector finds are
released at the next safe moment: a finalizer can run anywhere, also in the middle of a runtime call of the same thread.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable

from .errors import SessionInUse, TooManySessions
from .runtime import Runtime

__all__ = ["Share", "busy", "engine_activity", "share_of"]

_activity = threading.local()


class _EngineActivity:
    """Marks this thread as inside the engine, where a finalizer must not call back into it. Nests."""

    def __enter__(self) -> None:
        _activity.depth = getattr(_activity, "depth", 0) + 1

    def __exit__(self, *exc: object) -> None:
        _activity.depth -= 1


engine_activity = _EngineActivity()


def busy() -> bool:
    """Whether this thread is inside the engine."""
    return getattr(_activity, "depth", 0) > 0


class Share:
    """The shared part of one runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self.lock = threading.Lock()
        self._count_lock = threading.Lock()
        self._next = 0
        self.live = 0
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

    def new_session(self, bound: int) -> int:
        """A session id never used before on this runtime; counts the session as live.

        Raises:
            TooManySessions: ``bound`` are live.
        """
        with self._count_lock:
            if self.live >= bound:
                raise TooManySessions(self.live, bound)
            self.live += 1
            session = self._next
            self._next += 1
            return session

    def reserve(self, session: int) -> None:
        """This id and those below it are taken: a resumed session brings its own from another run, and no new one may get it."""
        with self._count_lock:
            self._next = max(self._next, session + 1)

    def released(self) -> None:
        """One session less is live."""
        with self._count_lock:
            self.live -= 1

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
        share = _shares.get(runtime)
        if share is None:
            share = _shares[runtime] = Share(runtime)
        return share
