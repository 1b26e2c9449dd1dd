"""Who is using a session: one call at a time, and proof against interrupts."""

from __future__ import annotations

import threading

__all__ = ["Gate"]


class Gate:
    """Lets one call at a time into a session; never waits.

    ::

        if gate.enter():
            try:
                gate.inside = True
                ...
            finally:
                gate.leave()

    An interrupt can hit a thread between any two steps, also between ``enter`` and ``try``; with a plain lock the session would
    be in use for ever. So a thread that finds the gate shut by itself, with nobody inside, goes in.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._owner: int | None = None
        self.inside = False

    def enter(self) -> bool:
        """Whether the caller may go in."""
        me = threading.get_ident()
        with self._guard:
            if self._owner is not None and (self._owner != me or self.inside):
                return False
            self._owner = me
        return True

    def leave(self) -> None:
        """The caller is out."""
        self.inside, self._owner = False, None
