"""A toy model for the command line and for examples: it recites a text, byte by byte, and its head errs now and then.

It needs nothing but Python, and shows everything that a real model would: spans that are accepted and spans that are cut,
characters whose bytes lie in different spans, and an end-of-text token.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import attrs

from ...engine.errors import ConfigError
from .drafts import noisy
from .runtime import ScriptedRuntime

__all__ = ["END", "RECITED", "ByteText", "RecitingTarget", "encode", "open_toy"]

RECITED: Final = (
    " Draft a few tokens, verify them in one forward, commit what the model itself would have said — naïve guesses cost "
    "nothing but time, so the text stays the same 🙂, only sooner. What was wrong is trimmed; what was right is kept ✅.\n"
)
#: The id of the end of text, after the 256 bytes.
END: Final = 256


@attrs.frozen
class ByteText:
    """Token i is the byte i; the end of text shows nothing."""

    strip_spaces: int = 0

    def token_bytes(self, token: int) -> bytes:
        """One byte, or none for the end of text."""
        return bytes((token,)) if token < END else b""


@attrs.frozen
class RecitingTarget:
    """Recites ``data`` from the beginning, or from where the prefix left off in it, then ends. A state is a place in it."""

    data: bytes
    vocabulary: int = END + 1

    def start(self) -> int:
        """Nothing recited yet."""
        return 0

    def advance(self, state: int, token: int) -> int:
        """One byte further if it was the right one, else back to the beginning."""
        if state < len(self.data) and self.data[state] == token:
            return state + 1
        return 1 if self.data[0] == token else 0

    def choose(self, state: int, masked: Collection[int]) -> int:
        """The next byte, or the end; where that is masked, the first byte that is not."""
        best = self.data[state] if state < len(self.data) else END
        return best if best not in masked else next(token for token in range(self.vocabulary) if token not in masked)

    def scores(self, state: int) -> Sequence[float]:
        """1 for the choice, less for every other id the higher it is."""
        best = self.choose(state, ())
        return tuple(1.0 if token == best else -float(token) for token in range(self.vocabulary))


def encode(prompt: str, chat: bool | None) -> tuple[int, ...]:
    """The prompt's UTF-8 bytes.

    Raises:
        ConfigError: an empty prompt, or a chat turn is asked for.
    """
    if chat:
        raise ConfigError("the scripted toy model has no chat template: leave out --chat")
    if not prompt:
        raise ConfigError("the prompt is empty: give at least one character")
    return tuple(prompt.encode("utf-8"))


def open_toy(text: str = RECITED, *, accuracy: float = 0.9, drafting: bool = True) -> ScriptedRuntime:
    """A runtime that recites ``text``; its head drafts each byte right with probability ``accuracy``."""
    return ScriptedRuntime(
        RecitingTarget(text.encode("utf-8")),
        drafts=noisy(1, accuracy),
        head=drafting,
        stop_tokens=(END,),
        context_length=1 << 16,
        record=False,
        model="toy",
    )
