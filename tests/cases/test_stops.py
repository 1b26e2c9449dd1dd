"""Cases 2.x: stops, limits and streaming, wherever they fall in a span."""

import pytest
from harness import Bench

from spanfold.backends.scripted import adversarial, hash_target, list_target, listed, noisy, oracle
from spanfold.engine import CheckpointRetired, Committed, Extras, SpanVerified, TextStream, Trimmed

TRUTH = (5, 6, 7, 8, 9, 10, 11, 12)


class Letters:
    """Token i is one letter."""

    strip_spaces = 0

    def token_bytes(self, token):
        return bytes([97 + token])


class Bytes:
    """Token i is the byte i."""

    strip_spaces = 0

    def token_bytes(self, token):
        return bytes([token])


def truthful(truth=TRUTH, prompt=1, vocabulary=16, policy=4, **options):
    """A bench whose model says ``truth`` after a prompt of one token, and whose head knows it."""
    options.setdefault("drafts", oracle())
    return Bench(list_target(truth, prompt=prompt, vocabulary=vocabulary), policy=policy, **options)


# Prefill commits the first token; a span of four drafts then holds indices 1 to 4 and the bonus, index 5.
@pytest.mark.parametrize("index", [1, 2, 3, 4, 5], ids=["draft 0", "draft 1", "draft 2", "last draft", "bonus"])
@pytest.mark.parametrize("others", [(), (1, 2, 3)])
def test_case_2_1_a_stop_token_at_every_place_of_a_span_ends_the_turn_there(index, others):
    streamed = []
    bench = truthful()
    result = bench.generate((0,), stop_tokens=(*others, TRUTH[index]), max_tokens=8, on_token=streamed.append)
    assert result.tokens == TRUTH[: index + 1] == tuple(streamed)
    assert (result.finish_reason, result.limit) == ("stop_token", None)
    assert bench.of(Committed)[-1].cut_by == "stop_token"
    # The bonus is the fifth token of five rows: every row is canonical. Anywhere else rows are cut.
    assert (len(bench.of(CheckpointRetired)), len(bench.of(Trimmed))) == ((1, 0) if index == 5 else (0, 1))
    serial = truthful(policy=0).generate((0,), stop_tokens=(*others, TRUTH[index]), max_tokens=8)
    assert (serial.tokens, serial.finish_reason) == (result.tokens, result.finish_reason)


def test_case_2_1_a_stop_as_the_correction_ends_the_turn_and_the_rest_is_the_rejected_tail():
    bench = truthful(drafts=listed((6, 1, 1, 1), start=2))
    result = bench.generate((0,), stop_tokens=[7])
    assert result.tokens == (5, 6, 7)
    assert (result.stats.accepted, result.stats.rejected, result.stats.discarded) == (1, 1, {"rejected_tail": 2})


def test_case_2_1_a_stop_on_the_last_match_leaves_the_rest_unjudged_not_rejected():
    result = truthful(drafts=listed((6, 7, 1, 1), start=2)).generate((0,), stop_tokens=[7])
    assert result.tokens == (5, 6, 7)
    assert (result.stats.accepted, result.stats.rejected, result.stats.discarded) == (2, 0, {"stopped": 2})


@pytest.mark.parametrize("most", range(7))
@pytest.mark.parametrize("width", range(6))
def test_case_2_2_never_more_tokens_than_asked_for(most, width):
    bench = truthful(policy=width)
    result = bench.generate((0,), max_tokens=most)
    assert result.tokens == TRUTH[:most]
    assert (result.finish_reason, result.limit) == ("length", "max_tokens")
    if most == 0:
        assert bench.runtime.count("forward") == 0


def test_case_2_4_a_stop_text_that_ends_early_in_a_long_span_is_seen():
    bench = truthful(policy=5, decoder={"text": Letters()})
    result = bench.generate((0,), stop_texts=["gh"], max_tokens=8)  # tokens 6 and 7: indices 1 and 2, in a span of six rows
    assert result.tokens == (5, 6, 7) and result.finish_reason == "stop_text"
    assert bench.of(Committed)[-1].detail == "gh"


@pytest.mark.parametrize("index", [1, 2, 3, 4, 5])
def test_case_2_5_ids_logprobs_events_and_usage_are_cut_at_the_token_that_completes_a_stop_text(index):
    bench = truthful(decoder={"text": Letters(), "extras": Extras(logprobs=True, margins=True)})
    stop = "".join(chr(97 + token) for token in TRUTH[index - 1 : index + 1])
    result = bench.generate((0,), stop_texts=[stop], max_tokens=8)
    assert result.tokens == TRUTH[: index + 1] and result.finish_reason == "stop_text"
    (span,), commit = bench.of(SpanVerified), bench.of(Committed)[-1]
    assert len(commit.tokens) == index and len(span.logprobs[: len(commit.tokens)]) == index
    assert result.stats.tokens == len(result.tokens)
    assert result.stats.accepted == min(index, 4)


def test_case_2_7_no_part_of_a_stop_text_is_streamed_and_held_text_is_released_at_the_end():
    source = b"Hi\nUser: me"
    for width in range(6):
        bench = Bench(list_target(source, prompt=1, vocabulary=256), drafts=noisy(2, 0.6), policy=width, decoder={"text": Bytes()})
        text, shown = TextStream(Bytes(), ["\nUser:"]), ""
        for token in bench.decoder.stream((0,), stop_texts=["\nUser:"], max_tokens=11):
            shown += text.push(token)
        assert shown + text.finish() == "Hi"
    bench = Bench(list_target(b"Hi\nUse\x00", prompt=1, vocabulary=256), drafts=oracle(), decoder={"text": Bytes()})
    text, shown = TextStream(Bytes(), ["\nUser:"]), ""
    for token in bench.decoder.stream((0,), stop_texts=["\nUser:"], max_tokens=6):
        shown += text.push(token)
    assert shown == "Hi" and text.finish() == "\nUse"


def test_case_2_8_after_every_turn_of_a_chat_the_cache_is_as_long_with_speculation_as_without():
    def chat(policy):
        bench = Bench(hash_target(3, 17), policy=policy, drafts=noisy(5, 0.7))
        session = bench.decoder.open((1, 2, 3), max_tokens=12, stop_tokens=[3, 8])
        turns = []
        for said in ((4, 5), (6,), ()):
            list(session)
            bench.audit(session)
            turns.append((session.result.tokens, session.finish.reason, bench.runtime.inspect(session.runtime_session).position))
            session.extend(said, max_tokens=12, stop_tokens=[3, 8])
        return turns

    assert chat(0) == chat(1) == chat(3)
    # The stop token is committed and its row is not in the cache, on both paths.
    tokens, reason, position = chat(3)[0]
    assert reason == "stop_token" and position == 3 + len(tokens) - 1


def test_case_2_9_drafts_do_not_count_toward_the_output_budget():
    bench = Bench(hash_target(3, 1000), drafts=noisy(5, 0.4), policy=4)
    result = bench.generate(max_tokens=128)
    assert len(result.tokens) == 128 and (result.finish_reason, result.limit) == ("length", "max_tokens")
    assert result.stats.drafted > 128 and 0.1 < result.stats.acceptance_rate < 0.6


def test_case_2_11_a_drafted_stop_token_that_the_target_does_not_choose_stops_nothing():
    bench = truthful(drafts=listed((3,) * 8, start=2))
    result = bench.generate((0,), stop_tokens=[3], max_tokens=8)
    assert result.tokens == TRUTH and result.finish_reason == "length"
    assert result.stats.accepted == 0 and result.stats.rejected == result.stats.spans > 0


@pytest.mark.parametrize("drafts", [oracle(), adversarial(), noisy(1, 0.3), noisy(2, 0.6), noisy(3, 0.9)])
@pytest.mark.parametrize("width", [0, 1, 3, 5])
def test_case_2_13_the_stream_joined_is_the_result_for_any_pattern_of_spans(drafts, width):
    options = {"max_tokens": 40}
    stream = Bench(policy=width, drafts=drafts).decoder.stream((1, 2, 3), **options)
    tokens = tuple(stream)
    assert tokens == stream.result.tokens == Bench(policy=0).generate((1, 2, 3), **options).tokens


@pytest.mark.parametrize("width", range(6))
@pytest.mark.parametrize("accuracy", [0.0, 0.5, 1.0])
def test_case_2_14_a_character_of_four_bytes_over_any_spans_comes_out_whole(width, accuracy):
    source = "né 🙂🙂 ✅!".encode()
    bench = Bench(list_target(source, prompt=1, vocabulary=256), drafts=noisy(4, accuracy), policy=width)
    text = TextStream(Bytes())
    pieces = [text.push(token) for token in bench.decoder.stream((0,), max_tokens=len(source))]
    assert "".join(pieces) + text.finish() == source.decode()
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


def test_case_2_16_ids_that_are_no_utf8_inside_a_span_stop_nothing():
    source = b"a\xff\xfe\xf0\x9f b"
    bench = Bench(list_target(source, prompt=1, vocabulary=256), drafts=oracle(), decoder={"text": Bytes()})
    result = bench.generate((0,), max_tokens=len(source), stop_texts=["zz"])
    assert bytes(result.tokens) == source


def test_case_2_18_a_counter_derived_from_the_events_never_exceeds_the_tokens():
    counted = []

    def count(record):
        if isinstance(record.event, Committed):
            counted.extend(token for token in record.event.tokens if token % 2)

    bench = truthful(decoder={"observers": (count,)})
    result = bench.generate((0,), stop_tokens=[TRUTH[2]], max_tokens=8)
    assert len(counted) == sum(token % 2 for token in result.tokens)


def test_min_tokens_masks_the_stop_ids_in_the_rows_below_it_and_only_there():
    for width in range(6):
        result = truthful(policy=width).generate((0,), stop_tokens=[6, 8], min_tokens=2, max_tokens=8)
        # Index 1 may not be 6: the next best id takes its place, and the model is off its track from there on.
        assert result.tokens[1] == 7
        assert (
            6 not in result.tokens[:2]
            and result.tokens == truthful(policy=0).generate((0,), stop_tokens=[6, 8], min_tokens=2, max_tokens=8).tokens
        )
    result = truthful().generate((0,), stop_tokens=[8], min_tokens=3, max_tokens=8)
    assert result.tokens == TRUTH[:4] and result.finish_reason == "stop_token"


def test_ignore_eos_is_known_to_the_one_stop_predicate():
    bench = truthful(stop_tokens=[7])
    assert bench.generate((0,), max_tokens=8).tokens == (5, 6, 7)
    result = truthful(stop_tokens=[7]).generate((0,), max_tokens=8, ignore_eos=True)
    assert result.tokens == TRUTH and result.stats.discarded == {}
    assert truthful(stop_tokens=[7]).generate((0,), max_tokens=8, stop_tokens=[7, 9], ignore_eos=True).tokens == TRUTH[:5]
