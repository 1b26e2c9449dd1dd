"""A session whose log the tests of backends run again elsewhere."""

from __future__ import annotations

from typing import Any

from spanfold.engine import Decoder, Extras, Record


def recorded(runtime: Any, width: int = 3, source: str = "auto") -> list[Record]:
    """The log of a session of two turns with a rewind between them, margins recorded."""
    log: list[Record] = []
    decoder = Decoder(runtime, policy=width, source=source, observers=(log.append,), extras=Extras(margins=True))
    with decoder, decoder.open((5, 17, 3, 40, 22, 9), max_tokens=20) as session:
        list(session)
        session.rewind(5)
        session.extend((7, 8), max_tokens=12)
        list(session)
    return log
