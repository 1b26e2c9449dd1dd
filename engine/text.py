"""Text from tokens, one token at a time: an incremental detokenizer, and the search for stop texts.

Two rules:

* What is given out is never taken back. A character whose bytes are spread over several tokens (of one span, of two, of a
  serial step and a span) waits for its last byte, and text that may be the beginning of a stop text waits until it is not.
* The text of a turn does not depend on how its tokens were grouped: everything here sees tokens singly.

The text of a byte-level (or byte-fallback) vocabulary is ``b"".join(token_bytes).decode("utf-8", "replace")``: a maximal
invalid part becomes one U+FFFD. Invalid UTF-8 from a model is no error; the token ids are the truth and stay complete.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

from .errors import ConfigError

__all__ = ["StopMatcher", "TextSource", "TextStream", "TokenText"]

_log = logging.getLogger("spanfold.text")

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@runtime_checkable
class TokenText(Protocol):
    """A vocabulary whose tokens have bytes of their own, whatever stands before them.

    Attributes:
        strip_spaces: so many leading spaces of a turn's text are dropped (sentencepiece decoders: 1, byte-level ones: 0).
    """

    @property
    def strip_spaces(self) -> int:
        """Leading spaces that a turn's text loses."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes of one token; empty for a special token that is not shown and for an unknown id."""
        ...


#: What text can be made from: a vocabulary with bytes per token, or just a function from all ids to text.
TextSource: TypeAlias = TokenText | Callable[[Sequence[int]], str]


class _Bytes:
    """Incremental UTF-8: complete characters come out at once, the beginning of one waits."""

    def __init__(self, source: TokenText) -> None:
        self._source = source
        self._rest = b""
        self._strip = source.strip_spaces
        self._warned = False

    def push(self, token: int) -> str:
        self._rest += self._source.token_bytes(token)
        return self._decode(final=False)

    def finish(self) -> str:
        return self._decode(final=True)

    def _decode(self, *, final: bool) -> str:
        parts: list[str] = []
        rest = self._rest
        while rest:
            try:
                parts.append(rest.decode("utf-8"))
                rest = b""
            except UnicodeDecodeError as error:
                parts.append(rest[: error.start].decode("utf-8"))
                rest = rest[error.start :]
                if error.reason == "unexpected end of data" and not final:
                    break
                # CPython reports a maximal invalid part, the same one that its own "replace" handler and Rust's lossy decoding replace.
                parts.append(REPLACEMENT)
                rest = rest[error.end - error.start :]
                self._warn()
        self._rest = rest
        return self._stripped("".join(parts))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if text[0] != " ":
                self._strip = 0
                break
            text = text[1:]
            self._strip -= 1
        return text

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            _log.warning("the model's tokens are not valid UTF-8; the invalid bytes are shown as U+FFFD, the token ids are complete")


class _Window:
    """For vocabularies without bytes per token: decode a window, give out what is new and whole.

    The window is the chunk given out last (its context) and the tokens since. It moves on only where the text does not end in
    U+FFFD, which is what a decoder puts for the beginning of a character.
    """

    def __init__(self, decode: Callable[[Sequence[int]], str]) -> None:
        self._decode = decode
        self._context: list[int] = []
        self._new: list[int] = []
        self._given = ""  # text of the context alone

    def push(self, token: int) -> str:
        self._new.append(token)
        return self._take(final=False)

    def finish(self) -> str:
        return self._take(final=True) if self._new else ""

    def _take(self, *, final: bool) -> str:
        text = self._decode([*self._context, *self._new])
        if not final and (text.endswith(REPLACEMENT) or len(text) <= len(self._given)):
            return ""
        if not text.startswith(self._given):
            # This decoder changes what it already said. Keep the window until the end rather than give out text twice.
            if not final:
                return ""
            _log.warning("the tokenizer's decode is not incremental; the end of the text may differ from decoding all ids at once")
        fresh = text[len(self._given) :]
        self._context, self._new = self._new, []
        self._given = self._decode(self._context)
        return fresh


def _pieces(source: TextSource) -> _Bytes | _Window:
    if isinstance(source, TokenText):
        return _Bytes(source)
    if callable(source):
        return _Window(source)
    raise ConfigError(f"text must have token_bytes(id) -> bytes, or be a function from ids to a string, not {source!r}")


def _checked(stops: Iterable[str]) -> tuple[str, ...]:
    if isinstance(stops, str):
        raise ConfigError(f"stop texts must be a sequence of strings, not the one string {stops!r}")
    found = tuple(dict.fromkeys(stops))
    for one in found:
        if not isinstance(one, str) or not one:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"stop texts must be non-empty strings, not {one!r}")
    return found


class _Search:
    """Where in a growing text does a stop text end first?"""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self.longest = max(map(len, stops), default=0)
        self.tail = ""  # the last longest - 1 characters seen: with the new ones, all that an ending occurrence can touch

    def push(self, fresh: str) -> tuple[str, int] | None:
        """The stop text that ends first within ``fresh`` (the longest of several) and the index in ``fresh`` at which it *begins*
        (negative: it began before). The tail moves on either way."""
        best: tuple[int, int, str] | None = None
        if fresh:
            text = self.tail + fresh
            for stop in self.stops:
                at = text.find(stop, max(len(self.tail) - len(stop) + 1, 0))
                if at >= 0 and (best is None or (at + len(stop), at) < best[:2]):
                    best = (at + len(stop), at, stop)
            start = len(self.tail)
            self.tail = text[-(self.longest - 1) :] if self.longest > 1 else ""
            if best is not None:
                return best[2], best[1] - start
        return None


class StopMatcher:
    """Says at which token a stop text is complete. Every token of the turn is pushed, so an early match in a long span is seen.

    Args:
        text: the vocabulary.
        stops: the stop texts; a text that is complete within the first ``min_tokens`` tokens does not stop.

    Call ``reset(tokens)`` after a rewind, with the tokens of the turn that remain.
    """

    def __init__(self, text: TextSource, stops: Iterable[str], min_tokens: int = 0) -> None:
        self._text = text
        self._stops = _checked(stops)
        self._min_tokens = min_tokens
        self.reset()

    def reset(self, tokens: Iterable[int] = ()) -> None:
        """Begin again, as if the turn so far were ``tokens``."""
        self._pieces = _pieces(self._text)
        self._search = _Search(self._stops)
        self._seen = 0
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> str | None:
        """The stop text that this token completes, or None."""
        self._seen += 1
        hit = self._search.push(self._pieces.push(token)) if self._stops else None
        return hit[0] if hit is not None and self._seen > self._min_tokens else None


class TextStream:
    """Text to show, in pieces that never have to be taken back.

    Args:
        text: the vocabulary.
        stops: with these, text that may be the beginning of a stop text is held back; a stop text itself is not given out, nor
            what follows it. ``min_tokens`` as for :class:`StopMatcher`, so that both stop at the same token.

    ``stopped`` is the stop text that was met, or None.
    """

    def __init__(self, text: TextSource, stops: Iterable[str] = (), min_tokens: int = 0) -> None:
        self._text = text
        self._stops = _checked(stops)
        self._min_tokens = min_tokens
        self.reset()

    def reset(self, tokens: Iterable[int] = ()) -> None:
        """Begin again, as if ``tokens`` had been pushed and their text given out."""
        self._pieces = _pieces(self._text)
        self._search = _Search(self._stops)
        self._seen = 0
        self._held = ""
        self.stopped: str | None = None
        for token in tokens:
            self.push(token)

    def push(self, token: int) -> str:
        """The text that can be shown now that this token is there (often empty, sometimes several characters)."""
        if self.stopped is not None:
            return ""
        self._seen += 1
        fresh = self._pieces.push(token)
        hit = self._search.push(fresh)
        if hit is not None and self._seen > self._min_tokens:
            self.stopped, begins = hit
            whole = self._held + fresh
            cut, self._held = len(self._held) + begins, ""
            return whole[:cut]
        text = self._held + fresh
        keep = self._may_begin(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def finish(self) -> str:
        """What was held back: released, as no stop text came of it. An unfinished character becomes U+FFFD."""
        if self.stopped is not None:
            return ""
        text, self._held = self._held + self._pieces.finish(), ""
        return text

    def _may_begin(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop text."""
        for length in range(min(self._search.longest - 1, len(text)), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
