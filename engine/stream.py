"""A stream: one session run to its end, as an iterator of tokens."""

from __future__ import annotations

from collections.abc import Iterator
from types import TracebackType
from typing import Self

from .errors import SessionInUse
from .session import Result, Session

__all__ = ["TokenStream"]


class TokenStream(Iterator[int]):
    """The tokens of one turn; made by ``Decoder.stream``. The session is released at the end, on an error and on close."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._ready: Iterator[int] = iter(())
        self._error: BaseException | None = None
        self._ended = False

    @property
    def session(self) -> Session:
        """The session behind the stream."""
        return self._session

    @property
    def result(self) -> Result:
        """The turn so far; complete once the stream is exhausted or closed."""
        return self._session.result

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> int:
        while True:
            for token in self._ready:
                return token
            if self._error is not None:
                error, self._error = self._error, None
                self._ended = True
                raise self._session.fail(error)
            if self._ended or self._session.finished:
                self.close()
                raise StopIteration
            try:
                tokens, self._error = self._session.advance()
            except SessionInUse:
                raise
            except BaseException as exc:
                self._ended = True
                self._session.fail(exc)
                raise
            self._ready = iter(tokens)

    def close(self) -> None:
        """End the stream; may be called twice. Closed before its end, the turn is finished ``closed``.

        An error of the newest round that waited behind undelivered tokens is raised now: it must not vanish.
        """
        self._ended = True
        self._ready = iter(())
        if self._error is not None:
            error, self._error = self._error, None
            raise self._session.fail(error)
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
