"""Go on with a session whose process died, from its trace."""

from __future__ import annotations

import os
from typing import Unpack

from ..decoder import Decoder, TurnOptions
from ..session import Session
from .sessions import session_log

__all__ = ["resume_trace"]


def resume_trace(
    decoder: Decoder,
    path: str | os.PathLike[str],
    session: int | None = None,
    *,
    segment: int | None = None,
    **options: Unpack[TurnOptions],
) -> Session:
    """Resume the session of a trace: its canonical tokens are prefilled, then it decodes on.

    A torn tail is left out: its tokens were never delivered. With a TraceWriter on the same file as the decoder's recorder the new
    records go into a new segment behind the old ones, and the file holds the one session. (Open the writer first or after this, as
    you like: only whole lines are read.)

    Args:
        decoder: on the runtime to go on with.
        path: the trace.
        session: the id in the trace; None where it holds one session only.
        segment: the segment in which the session began; None: the newest of that id.
        **options: callbacks, cancel and deadline as for ``Decoder.resume``; limits and stops are the trace's.

    Raises:
        TraceError: the trace is damaged or redacted, or holds no such session.
        ConfigError, IllegalEvent: as ``Decoder.resume``.
    """
    return decoder.resume(session_log(path, session, segment, live=True), **options)
