"""Text from tokens: never taken back, independent of how tokens were grouped, stop texts found at the token that completes them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spanfold.engine.errors import ConfigError
from spanfold.engine.text import StopMatcher, TextStream


class Vocabulary:
    """Tokens 0..255 are bytes; further ones are given. Id 999 shows nothing."""

    def __init__(self, *more: bytes, strip_spaces: int = 0) -> None:
        self.strip_spaces = strip_spaces
        self._more = {256 + at: data for at, data in enumerate(more)}

    def token_bytes(self, token: int) -> bytes:
        return bytes((token,)) if token < 256 else self._more.get(token, b"")


BYTES = Vocabulary()
PIECES = Vocabulary("é".encode(), "🙂".encode()[:2], "🙂".encode()[2:], b" \xe2\x82", b"\xac!", b"\nUse", b"r:", b"ab", b"ba", b"\xff", b"")


def streamed(text: object, ids: Sequence[int], stops: Sequence[str] = (), min_tokens: int = 0) -> tuple[list[str], TextStream]:
    stream = TextStream(text, stops, min_tokens)  # type: ignore[arg-type]
    return [*map(stream.push, ids), stream.finish()], stream


def whole(vocabulary: Vocabulary, ids: Sequence[int]) -> str:
    return b"".join(map(vocabulary.token_bytes, ids)).decode("utf-8", "replace")


# -- characters ------------------------------------------------------------------------------------------------------


@given(ids=st.lists(st.integers(0, 270), max_size=40))
@settings(max_examples=400)
def test_cases_2_13_and_2_15_joined_pieces_are_the_whole_text_for_any_ids(ids: list[int]):
    """Also for bytes that are no UTF-8: a maximal invalid part becomes one U+FFFD, as in CPython and in tokenizers."""
    for vocabulary in (BYTES, PIECES):
        pieces, _ = streamed(vocabulary, ids)
        assert "".join(pieces) == whole(vocabulary, ids)
        for piece in pieces:
            piece.encode("utf-8")


@given(text=st.text(max_size=20))
def test_case_2_14_characters_over_several_tokens_come_out_once_and_whole(text: str):
    data = text.encode("utf-8")
    pieces, _ = streamed(BYTES, list(data))
    assert "".join(pieces) == text
    assert "\N{REPLACEMENT CHARACTER}" in text or not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    # Each character is shown at its last byte, not later.
    stream = TextStream(BYTES)
    shown = ""
    for at, byte in enumerate(data, 1):
        shown += stream.push(byte)
        assert shown == data[:at].decode("utf-8", "ignore")


def test_case_2_14_an_emoji_over_two_tokens_waits_for_the_second():
    stream = TextStream(PIECES)
    assert [stream.push(257), stream.push(258), stream.finish()] == ["", "🙂", ""]


def test_case_2_16_invalid_utf8_survives_with_one_warning(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING, logger="spanfold.text"):
        pieces, _ = streamed(PIECES, [97, 265, 98, 265, 265, 0xE2])
    assert "".join(pieces) == "a\N{REPLACEMENT CHARACTER}b" + 3 * "\N{REPLACEMENT CHARACTER}"
    assert len(caplog.records) == 1


def test_case_2_16_an_unfinished_character_at_the_end_is_released_as_one_replacement():
    assert streamed(PIECES, [97, 257])[0] == ["a", "", "\N{REPLACEMENT CHARACTER}"]


def test_leading_spaces_that_the_decoder_strips_are_stripped_once():
    vocabulary = Vocabulary(b" Hello", b" world", strip_spaces=1)
    assert streamed(vocabulary, [999, 256, 257])[0] == ["", "Hello", " world", ""]
    assert streamed(vocabulary, [32, 32, 256])[0] == ["", " ", " Hello", ""]
    assert streamed(vocabulary, [97, 32])[0] == ["a", " ", ""]


# -- vocabularies without bytes ----------------------------------------------------------------------------------------


def joining(ids: Sequence[int]) -> str:
    """A decoder with context: the first piece loses its leading space; bytes are joined first."""
    return whole(Vocabulary(b" Hello", b" world", "🙂".encode()[:2], "🙂".encode()[2:]), ids).removeprefix(" ")


@given(ids=st.lists(st.integers(256, 259) | st.sampled_from([10, 97, 0xC3, 0xA9]), max_size=30))
@settings(max_examples=200)
def test_case_2_15_the_windowed_fallback_joins_to_the_whole_text(ids: list[int]):
    """Emitted text never shrinks; ids whose bytes stay invalid are waited for until the end."""
    pieces, _ = streamed(joining, ids)
    text = joining(ids)
    if "\N{REPLACEMENT CHARACTER}" not in text:
        assert "".join(pieces) == text


def test_the_windowed_fallback_decodes_no_more_than_a_window():
    longest = 0

    def decode(ids: Sequence[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return whole(BYTES, ids)

    pieces, _ = streamed(decode, [97] * 500)
    assert "".join(pieces) == "a" * 500
    assert longest == 2


# -- stop texts --------------------------------------------------------------------------------------------------------


def test_case_2_4_a_stop_text_is_found_wherever_in_a_long_span_it_ends():
    matcher = StopMatcher(BYTES, ["b"])
    assert [matcher.push(token) for token in b"abcdef"] == [None, "b", None, None, None, None]


def test_case_2_7_a_stop_text_over_two_tokens_shows_nothing_of_it():
    stream = TextStream(PIECES, ["\nUser:"])
    assert [stream.push(97), stream.push(261), stream.push(262), stream.push(98), stream.finish()] == ["a", "", "", "", ""]
    assert stream.stopped == "\nUser:"


def test_case_2_7_text_that_only_began_like_a_stop_text_is_released_at_the_end():
    stream = TextStream(PIECES, ["\nUser:"])
    assert [stream.push(97), stream.push(261), stream.finish()] == ["a", "", "\nUse"]
    assert stream.stopped is None


def test_text_that_began_like_a_stop_text_is_released_as_soon_as_it_is_none():
    stream = TextStream(BYTES, ["abac"])
    assert [stream.push(token) for token in b"abab!"] == ["", "", "", "ab", "ab!"]


def test_a_stop_text_may_begin_inside_one_that_failed():
    matcher = StopMatcher(BYTES, ["aab"])
    assert [matcher.push(token) for token in b"aaab"] == [None, None, None, "aab"]


def test_the_stop_text_that_ends_first_wins_and_the_longest_of_those_that_end_there():
    assert StopMatcher(PIECES, ["ba", "b"]).push(264) == "b"
    matcher = StopMatcher(BYTES, ["b", "ab"])
    assert [matcher.push(token) for token in b"ab"] == [None, "ab"]


def test_min_tokens_ignores_stop_texts_that_are_complete_too_early():
    matcher = StopMatcher(BYTES, ["b"], min_tokens=2)
    assert [matcher.push(token) for token in b"bbb"] == [None, None, "b"]
    pieces, stream = streamed(BYTES, b"bbbb", ["b"], 2)
    assert "".join(pieces) == "bb" and stream.stopped == "b"


STOPS = st.lists(st.text("ab🙂", min_size=1, max_size=4), min_size=1, max_size=3)
IDS = st.lists(st.sampled_from([97, 98, 263, 264, 257, 258, 999]), max_size=30)


def completed_at(ids: Sequence[int], stops: Sequence[str], min_tokens: int) -> int | None:
    """The oracle: decode the whole text after every token and look through all of it."""
    before = ""
    for count in range(1, len(ids) + 1):
        now = b"".join(map(PIECES.token_bytes, ids[:count])).decode("utf-8", "ignore")
        new = any(now.count(stop, end) for stop in stops for end in [max(0, len(before) - len(stop) + 1)])
        if count > min_tokens and new:
            return count - 1
        before = now
    return None


@given(ids=IDS, stops=STOPS, min_tokens=st.integers(0, 4))
@settings(max_examples=400)
def test_the_matcher_and_the_stream_stop_at_the_token_that_completes_a_stop_text(ids: list[int], stops: list[str], min_tokens: int):
    if (b"".join(map(PIECES.token_bytes, ids))).decode("utf-8", "replace").count("\N{REPLACEMENT CHARACTER}"):
        ids = [id for id in ids if id not in (257, 258)]
    expected = completed_at(ids, stops, min_tokens)
    matcher = StopMatcher(PIECES, stops, min_tokens)
    hits = [matcher.push(token) for token in ids]
    assert next((at for at, hit in enumerate(hits) if hit is not None), None) == expected
    pieces, stream = streamed(PIECES, ids, stops, min_tokens)
    if expected is None:
        assert stream.stopped is None and "".join(pieces) == whole(PIECES, ids)
    else:
        assert stream.stopped == hits[expected]
        shown = "".join(pieces)
        assert whole(PIECES, ids[: expected + 1]).startswith(shown + stream.stopped)


@given(ids=IDS, stops=STOPS, cut=st.integers(0, 30))
def test_after_a_rewind_both_are_rebuilt_from_the_tokens_that_remain(ids: list[int], stops: list[str], cut: int):
    matcher, stream = StopMatcher(PIECES, stops), TextStream(PIECES, stops)
    for token in ids:
        matcher.push(token)
        stream.push(token)
    matcher.reset(ids[:cut])
    stream.reset(ids[:cut])
    other, fresh = StopMatcher(PIECES, stops), TextStream(PIECES, stops)
    for token in ids[:cut]:
        other.push(token)
        fresh.push(token)
    for token in (97, 98, 257, 258, 97):
        assert matcher.push(token) == other.push(token)
        assert stream.push(token) == fresh.push(token)
    assert stream.finish() == fresh.finish()


@pytest.mark.parametrize("stops", ["abc", [""], [3]])
def test_unusable_stop_texts_are_refused(stops: object):
    with pytest.raises(ConfigError, match="stop texts must be"):
        StopMatcher(BYTES, stops)  # type: ignore[arg-type]


def test_an_unusable_text_source_is_refused():
    with pytest.raises(ConfigError, match="token_bytes"):
        TextStream(5)  # type: ignore[arg-type]
