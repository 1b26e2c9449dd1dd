"""Cases 6.x about any draft head, 10.x (windows), and sessions that share a runtime (8.9, 8.10)."""

import threading

import pytest
from harness import Bench

from spanfold.backends.scripted import constant, hash_target, invalid, noisy, oracle, surplus
from spanfold.engine import ConfigError, Decoder, DraftDiscarded, DraftOffered, PromptLookup, SerialDecoded, SessionOpened, SpanRefused

PROMPT = (1, 2, 3)


def serial_tokens(count, prompt=PROMPT, **options):
    return Bench(policy=0, **options).generate(prompt, max_tokens=count).tokens


@pytest.mark.parametrize("token", [0, 4, 16])
def test_case_6_2_and_6_7_a_head_that_learned_nothing_changes_no_token(token):
    result = Bench(drafts=constant(token)).generate(PROMPT, max_tokens=40)
    assert result.tokens == serial_tokens(40)
    assert result.stats.acceptance_rate < 0.2


def test_case_6_10_more_drafts_than_the_head_has_depth_are_refused_when_built():
    with pytest.raises(ConfigError, match=r"Policy\.width is 4.*at most 3 tokens"):
        Bench(depth=3, policy=4)
    bench = Bench(depth=3, layers=1)
    bench.generate(PROMPT, max_tokens=5)
    (opened,) = bench.of(SessionOpened)
    assert (opened.draft.layers, opened.draft.depth, opened.policy.width) == (1, 3, 3)


def test_case_6_13_a_session_with_every_optional_argument_absent_decodes():
    bench = Bench(context_length=20, decoder={}, policy="auto")
    result = bench.generate(PROMPT)
    assert len(result.tokens) == 17 and (result.finish_reason, result.limit) == ("length", "context")
    assert result.tokens == serial_tokens(17)


@pytest.mark.parametrize("window", [1, 3, 4, 7, 9])
def test_case_10_3_beyond_the_heads_window_rounds_are_serial_with_one_event(window):
    bench = Bench(draft_context=window)
    result = bench.generate(PROMPT, max_tokens=15)
    assert result.tokens == serial_tokens(15)
    # The very last round could not be a span anyway; that is another reason, and the only other event.
    assert [event.reason for event in bench.of(SpanRefused)] == ["draft_context", "budget"]
    assert all(event.at <= window for event in bench.of(DraftOffered))
    # Once beyond it, every round is serial.
    tail = [type(event).__name__ for event in bench.events() if type(event).__name__ in ("SpanVerified", "SerialDecoded")]
    assert tail == sorted(tail, reverse=True) and tail[-1] == SerialDecoded.__name__


def test_case_10_5_a_prompt_longer_than_the_context_is_refused_before_anything_runs():
    bench = Bench(context_length=8)
    with pytest.raises(ConfigError, match=r"prompt has 9 tokens, the context of scripted holds 8: shorten it"):
        bench.decoder.generate((1,) * 9)
    assert bench.runtime.calls == [] and bench.all_released()
    assert bench.generate((1,) * 8).finish_reason == "length"
    session = bench.decoder.open((1,) * 6, max_tokens=1)
    list(session)
    with pytest.raises(ConfigError, match="9 tokens are more than the context of 8"):
        session.extend((1, 1))
    session.extend((1,))
    assert list(session) == [] and session.result.limit == "context"


@pytest.mark.parametrize(
    ("prompt", "message"), [((), "at least one token"), ("text", "token ids, not text"), ((1, 17), "holds id 17"), ((-1,), "holds id -1")]
)
def test_case_10_5_a_prompt_that_cannot_be_is_refused_by_name(prompt, message):
    bench = Bench()
    with pytest.raises(ConfigError, match=f"prompt.*{message}|prompt must hold {message}"):
        bench.decoder.generate(prompt)
    assert bench.runtime.calls == []


@pytest.mark.parametrize("context", [4, 5, 8, 13])
def test_case_10_6_one_context_length_holds_for_target_and_head(context):
    bench = Bench(context_length=context, drafts=surplus(2))
    result = bench.generate(PROMPT)
    assert len(result.tokens) == context - 3 and result.limit == "context"
    assert bench.runtime.info.draft.context_length == context
    assert result.tokens == serial_tokens(context - 3)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("bad", [-1, 17, 10**9])
def test_an_id_outside_the_vocabulary_ends_a_draft(depth, bad):
    bench = Bench(drafts=invalid(bad, depth=depth))
    result = bench.generate(PROMPT, max_tokens=12)
    assert result.tokens == serial_tokens(12)
    assert all(len(event.tokens) <= depth for event in bench.of(DraftOffered))
    assert {event.reason for event in bench.of(DraftDiscarded)} <= {"invalid", "clipped"}
    assert result.stats.discarded["invalid"] == sum(event.invalid for event in bench.of(DraftOffered)) > 0


@pytest.mark.parametrize("shortest", [1, 2])
def test_prompt_lookup_drafts_for_a_model_without_a_head_and_its_origin_is_recorded(shortest):
    period = (1, 2, 3, 4)
    from spanfold.backends.scripted import list_target

    bench = Bench(list_target(period, prompt=8, vocabulary=8), head=False, source=PromptLookup(shortest=shortest, longest=3))
    result = bench.generate(period * 2, max_tokens=16)
    assert result.tokens == period * 4
    assert {event.origin for event in bench.of(DraftOffered)} == {"prompt_lookup"}
    assert result.stats.accepted > 8 and bench.runtime.count("draft") == 0


def test_a_model_without_a_head_says_so_where_its_head_is_asked_for():
    with pytest.raises(ConfigError, match="has no MTP head"):
        Bench(head=False, source="mtp")
    assert Bench(head=False, policy=0).generate(PROMPT, max_tokens=5).tokens == serial_tokens(5)


def test_case_8_9_sessions_interleaved_in_any_way_are_each_the_same_as_alone():
    bench = Bench()
    prompts = [(1,), (2, 3), (4, 5, 6), (7,) * 5]
    sessions = [bench.decoder.open(prompt, max_tokens=20) for prompt in prompts]
    turn = 0
    while not all(session.finished for session in sessions):
        turn += 1
        for at, session in enumerate(sessions):
            if (turn * 7 + at * 3) % 4 < 2 + at % 2:
                session.step()
                bench.audit(session)
    for session, prompt in zip(sessions, prompts, strict=True):
        alone = Bench()
        result = alone.generate(prompt, max_tokens=20)
        assert session.result.tokens == result.tokens and session.stats == result.stats
        assert bench.events(session.id) == alone.events()[: len(bench.events(session.id))]
    bench.decoder.close()
    assert bench.all_released()


def test_case_8_9_sessions_of_several_threads_and_decoders_are_each_the_same_as_alone():
    bench = Bench(hash_target(3, 17), drafts=noisy(5, 0.7))
    second = Decoder(bench.runtime, policy=2, observers=(bench.record,))
    results, wanted = {}, {at: serial_tokens(40, (1 + at, 2)) for at in range(6)}

    def work(at):
        decoder = bench.decoder if at % 2 else second
        results[at] = decoder.generate((1 + at, 2), max_tokens=40).tokens

    threads = [threading.Thread(target=work, args=(at,)) for at in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == wanted
    assert bench.all_released()
    bench.audit_logs()


def test_case_8_10_another_observer_changes_no_event():
    plain, watched = Bench(), Bench(decoder={"observers": (lambda record: hash(record.event),)})
    plain.generate(PROMPT, max_tokens=30)
    watched.generate(PROMPT, max_tokens=30)
    assert plain.logs == watched.logs


def test_drafts_are_asked_for_the_newest_prefix_only_and_cost_no_serial_step_after_a_rejection():
    bench = Bench(drafts=noisy(5, 0.3))
    bench.generate(PROMPT, max_tokens=30)
    order = [call.name for call in bench.runtime.calls if call.name in ("draft", "forward", "settle")]
    assert order[:1] == ["forward"]
    rounds = order[1:]
    while rounds[:3] == ["draft", "forward", "settle"]:
        rounds = rounds[3:]
    assert rounds in ([], ["forward"])


def test_the_oracle_accepts_everything_so_that_drafts_are_worth_asserting():
    result = Bench(drafts=oracle()).generate(PROMPT, max_tokens=30)
    assert result.stats.acceptance_rate == 1.0
