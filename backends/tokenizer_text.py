"""Text for models whose tokenizer is one of transformers' or tokenizers': bytes per token where the vocabulary has them.

Nothing is imported here; the tokenizer is handed in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from ..engine.errors import ConfigError
from ..engine.text import TextSource
from .inputs import one_line

__all__ = ["encoder", "from_transformers"]


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level BPE writes bytes with (GPT-2's table): printable ones stand for themselves, the others,
    in order, for the characters from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_ALPHABET: Final = _byte_alphabet()


def _byte_level(token: str) -> bytes:
    # A token with a character outside the alphabet was added as it is; the decoder of tokenizers passes it through as well.
    try:
        return bytes(_ALPHABET[character] for character in token)
    except KeyError:
        return token.encode("utf-8")


def _byte_fallback(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes((int(token[3:5], 16),))
        except ValueError:
            pass
    return token.replace("\N{LOWER ONE EIGHTH BLOCK}", " ").encode("utf-8")


class _VocabularyText:
    """A TokenText over a tokenizers vocabulary; special tokens show nothing."""

    def __init__(self, backend: Any, to_bytes: Callable[[str], bytes], strip_spaces: int) -> None:
        self._name: Callable[[int], str | None] = backend.id_to_token
        self._to_bytes = to_bytes
        self._strip_spaces = strip_spaces
        added: dict[int, Any] = backend.get_added_tokens_decoder()
        self._known: dict[int, bytes] = {id: b"" for id, token in added.items() if token.special}

    @property
    def strip_spaces(self) -> int:
        return self._strip_spaces

    def token_bytes(self, token: int) -> bytes:
        known = self._known.get(token)
        if known is None:
            name = self._name(token)
            known = self._known[token] = b"" if name is None else self._to_bytes(name)
        return known


def from_transformers(tokenizer: Any) -> TextSource:
    """How the tokens of a transformers tokenizer become text, special tokens left out.

    Byte-level and byte-fallback vocabularies give their tokens' bytes: every character is shown as soon as its last byte is
    there. For a byte-level one the joined text equals ``tokenizer.decode(ids, skip_special_tokens=True)`` for any ids. A
    byte-fallback decoder shows a run of byte tokens that is not valid UTF-8 as one U+FFFD per byte, valid characters in it
    included; here only the invalid part is replaced, as what was shown is never taken back. Any other tokenizer is asked to
    decode a window of ids at a time.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        decoder = cast(dict[str, Any] | None, json.loads(backend.to_str()).get("decoder"))
        steps = _steps(decoder)
        kinds = [step["type"] for step in steps]
        if kinds == ["ByteLevel"]:
            return _VocabularyText(backend, _byte_level, 0)
        if kinds[:3] == ["Replace", "ByteFallback", "Fuse"] and _restores_spaces(steps[0]):
            if kinds[3:] == []:
                return _VocabularyText(backend, _byte_fallback, 0)
            if kinds[3:] == ["Strip"] and steps[3]["content"] == " " and steps[3]["stop"] == 0:
                return _VocabularyText(backend, _byte_fallback, int(steps[3]["start"]))

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)

    return decode


def _steps(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    return cast(list[dict[str, Any]], decoder["decoders"]) if decoder["type"] == "Sequence" else [decoder]


def _restores_spaces(step: dict[str, Any]) -> bool:
    return step["pattern"] == {"String": "\N{LOWER ONE EIGHTH BLOCK}"} and step["content"] == " "


def encoder(tokenizer: Any) -> Callable[[str, bool | None], tuple[int, ...]]:
    """A function ``(prompt, chat) -> ids``. chat None: as a user's chat turn if the tokenizer has a chat template.

    It raises ConfigError for a chat turn without a template or with one that cannot be rendered, and for a prompt that has no token.
    """

    def encode(prompt: str, chat: bool | None) -> tuple[int, ...]:
        has_template = bool(getattr(tokenizer, "chat_template", None))
        if chat and not has_template:
            raise ConfigError("this model's tokenizer has no chat template: leave out --chat")
        if has_template if chat is None else chat:
            turn = [{"role": "user", "content": prompt}]
            try:
                text = cast(str, tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
            except ConfigError:
                raise
            except Exception as error:  # a template is a program of the checkpoint's
                raise ConfigError(f"the tokenizer's chat template cannot be rendered: {one_line(error)}") from error
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            ids = tokenizer(prompt)["input_ids"]
        if not ids:
            raise ConfigError("the prompt has no tokens: give at least one word")
        return tuple(int(id) for id in ids)

    return encode
