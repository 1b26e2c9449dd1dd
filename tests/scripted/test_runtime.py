"""The simulated device is faithful: what it holds, not what the engine believes, decides what comes out."""

import threading

import pytest

from spanfold.backends.scripted import Costs, DeviceError, Fault, ScriptedRuntime, adversarial, hash_target, listed, noisy, oracle
from spanfold.engine.errors import NotStarted
from spanfold.engine.runtime import Ask, Extras, Failure, Forward, Runtime, Settle, View
from spanfold.engine.values import Sampling

PROMPT = (1, 2, 3, 4)
VOCABULARY = 11


def made(**kwargs):
    kwargs.setdefault("drafts", noisy(5, 0.6))
    runtime = ScriptedRuntime(hash_target(3, VOCABULARY), **kwargs)
    runtime.open_session(0, Sampling(), True)
    return runtime


def prefill(runtime, prompt=PROMPT, session=0):
    (rows,) = runtime.forward([Forward(session=session, base=0, tokens=prompt, want="last", canonical=True)])
    return [*prompt, *rows.predictions]


def span(runtime, canonical, drafted, session=0, **kwargs):
    base = len(canonical) - 1
    call = Forward(session=session, base=base, tokens=(canonical[-1], *drafted), want="all", canonical=False, **kwargs)
    return runtime.forward([call])[0]


def settle(runtime, base, rows, position, session=0):
    return runtime.settle([Settle(session=session, base=base, rows=rows, position=position)])[0]


def draft(runtime, current, limit=3, session=0):
    return runtime.draft([Ask(session=session, current=current, limit=limit)])[0].tokens


def serial(tokens, count):
    target, out = hash_target(3, VOCABULARY), list(tokens)
    for _ in range(count):
        state = target.start()
        for token in out:
            state = target.advance(state, token)
        out.append(target.choose(state, ()))
    return out


def decode(runtime, rounds, limit=3):
    canonical = prefill(runtime)
    for _ in range(rounds):
        drafted = draft(runtime, canonical[-1], limit)
        base = len(canonical) - 1
        predictions = span(runtime, canonical, drafted).predictions
        committed = 1
        while committed <= len(drafted) and drafted[committed - 1] == predictions[committed - 1]:
            committed += 1
        canonical += predictions[:committed]
        settle(runtime, base, len(drafted) + 1, base + committed)
    return canonical


def test_it_is_a_runtime():
    assert isinstance(made(), Runtime)


@pytest.mark.parametrize("rollback", ["crop", "checkpoint"])
@pytest.mark.parametrize("early_exit", [False, True])
def test_spans_that_are_settled_give_the_serial_tokens(rollback, early_exit):
    runtime = made(rollback=rollback, early_exit=early_exit)
    canonical = decode(runtime, 40)
    assert canonical == serial(PROMPT, len(canonical) - len(PROMPT))
    assert runtime.cache_rows(0) == tuple(canonical[:-1])
    assert runtime.view(0) == View(
        position=len(canonical) - 1,
        head_position=len(runtime.head_rows(0)),
        checkpoint=False,
        floor=0 if rollback == "crop" else len(canonical) - 1,
    )


@pytest.mark.parametrize(
    "rollback, wrong", [("crop", "trim_noop"), ("crop", "trim_lie"), ("checkpoint", "trim_noop"), ("checkpoint", "keep_state")]
)
def test_a_trim_that_did_not_happen_shows_in_the_tokens_that_follow(rollback, wrong):
    runtime = made(rollback=rollback)
    canonical = prefill(runtime)
    base = len(canonical) - 1
    true = serial(canonical, 6)
    bad = (true[base + 1] + 1) % VOCABULARY
    assert span(runtime, canonical, (bad, bad)).predictions[0] == true[base + 1]
    runtime.inject(Fault(call="settle", wrong=wrong))
    settled = settle(runtime, base, 3, base + 1)
    assert (settled.position == base + 1) == (wrong in ("trim_lie", "keep_state"))
    assert runtime.view(0).position == (base + 1 if wrong == "keep_state" else base + 3)
    after = []
    for token in true[base + 1 : base + 5]:
        at = runtime.view(0).position
        after += runtime.forward([Forward(session=0, base=at, tokens=(token,), want="last", canonical=True)])[0].predictions
    assert after != true[base + 2 : base + 6]


def test_a_recurrent_state_is_restored_and_the_kept_rows_are_computed_again():
    runtime = made(rollback="checkpoint")
    canonical = prefill(runtime)
    base = len(canonical) - 1
    span(runtime, canonical, (7, 8, 9))
    assert runtime.view(0) == View(position=base + 4, head_position=0, checkpoint=True, floor=base)
    settled = settle(runtime, base, 4, base + 2)
    assert (settled.position, settled.replayed_rows) == (base + 2, 2)
    assert runtime.view(0).floor == base + 2
    with pytest.raises(ValueError, match="cannot get back to"):
        settle(runtime, base, 4, base)


def test_a_full_commit_retires_the_checkpoint_without_any_replay():
    runtime = made(rollback="checkpoint", drafts=oracle())
    canonical = prefill(runtime)
    base = len(canonical) - 1
    span(runtime, canonical, draft(runtime, canonical[-1]))
    assert settle(runtime, base, 4, base + 4).replayed_rows == 0
    assert not runtime.view(0).checkpoint


def test_a_runtime_without_rollback_refuses_speculative_rows_and_every_cut():
    runtime = made(rollback="none")
    canonical = prefill(runtime)
    with pytest.raises(NotStarted, match="cannot roll back"):
        span(runtime, canonical, (1,))
    with pytest.raises(ValueError, match="cannot get back to 3"):
        settle(runtime, 3, 1, 3)
    assert runtime.cache_rows(0) == PROMPT


def test_a_cache_cut_to_zero_is_empty_and_a_cut_beyond_it_changes_nothing():
    runtime = made()
    prefill(runtime, (1, 2, 3))
    with pytest.raises(ValueError, match="cannot be settled at 5"):
        settle(runtime, 3, 2, 5)
    assert runtime.view(0).position == 3
    assert settle(runtime, 0, 3, 0).position == 0
    assert runtime.cache_rows(0) == () and runtime.head_rows(0) == ()


@pytest.mark.parametrize(
    "call, message",
    [
        (Forward(session=1, base=0, tokens=(1,), want="last", canonical=True), "no session 1"),
        (Forward(session=0, base=3, tokens=(1,), want="last", canonical=True), "is at position 4"),
        (Forward(session=0, base=4, tokens=(), want="last", canonical=True), "at least one row"),
        (Forward(session=0, base=4, tokens=(1,) * 17, want="last", canonical=True), "do not fit a context of 20"),
        (Forward(session=0, base=4, tokens=(VOCABULARY,), want="last", canonical=True), "outside the vocabulary"),
    ],
)
def test_a_refused_forward_touches_nothing(call, message):
    runtime = made(context_length=20)
    prefill(runtime)
    with pytest.raises(NotStarted, match=message):
        runtime.forward([call])
    assert runtime.cache_rows(0) == PROMPT and runtime.live_sessions == 1


def test_nothing_runs_between_a_span_and_its_settle():
    runtime = made()
    canonical = prefill(runtime)
    span(runtime, canonical, (1,))
    with pytest.raises(NotStarted, match="not settled"):
        runtime.forward([Forward(session=0, base=6, tokens=(1,), want="last", canonical=True)])
    with pytest.raises(NotStarted, match="not settled"):
        draft(runtime, 1)
    with pytest.raises(ValueError, match="the open span is 2 rows from 4"):
        settle(runtime, 4, 3, 5)


def test_predictions_stop_at_the_first_mismatch_only_when_asked_to():
    for early_exit, expected in ((False, 4), (True, 1)):
        runtime = made(early_exit=early_exit, drafts=adversarial())
        canonical = prefill(runtime)
        rows = span(runtime, canonical, draft(runtime, canonical[-1]), extras=Extras(margins=True, logprobs=True))
        assert [len(each) for each in (rows.predictions, rows.margins, rows.logprobs)] == [expected] * 3, "one of each per prediction"


# The head.


def test_the_head_holds_exactly_the_canonical_pairs_after_every_settle_and_draft():
    runtime = made()
    canonical = prefill(runtime)
    for _ in range(20):
        drafted = draft(runtime, canonical[-1])
        assert runtime.head_rows(0) == runtime.pairs(canonical)
        assert runtime.view(0).head_position == runtime.view(0).position
        base = len(canonical) - 1
        predictions = span(runtime, canonical, drafted).predictions
        canonical.append(predictions[0])
        settle(runtime, base, 4, base + 1)
        assert runtime.head_rows(0) == runtime.pairs(canonical)[: len(runtime.head_rows(0))]


def test_a_shorter_draft_is_the_prefix_of_a_longer_one_and_asking_leaves_no_trace():
    runtime = made()
    canonical = prefill(runtime)
    longest = draft(runtime, canonical[-1], 6)
    assert [draft(runtime, canonical[-1], limit) for limit in range(6)] == [longest[:limit] for limit in range(6)]


@pytest.mark.parametrize("backlog", [1, 3, 64])
def test_no_more_hidden_rows_wait_for_the_head_than_the_backlog_holds(backlog):
    runtime = made(backlog=backlog)
    canonical = prefill(runtime, tuple(range(9)))
    for _ in range(10):
        view = runtime.view(0)
        assert view.position - view.head_position <= backlog
        assert runtime.head_rows(0) == runtime.pairs(canonical)[: view.head_position]
        call = Forward(session=0, base=len(canonical) - 1, tokens=(canonical[-1],), want="last", canonical=True)
        canonical += runtime.forward([call])[0].predictions
    draft(runtime, canonical[-1])
    assert runtime.head_rows(0) == runtime.pairs(canonical)


@pytest.mark.parametrize("wrong", ["stale", "unfed"])
@pytest.mark.parametrize("drafts", [noisy(5, 0.6), oracle()])
def test_a_head_with_wrong_rows_drafts_something_else(wrong, drafts):
    runs = []
    for faults in ((), [Fault(call="draft", at=1, wrong=wrong)]):
        runtime = made(drafts=drafts, faults=faults)
        canonical = prefill(runtime)
        offers = []
        for _ in range(6):
            offers.append(draft(runtime, canonical[-1]))
            canonical = serial(canonical, 1)
            runtime.forward([Forward(session=0, base=len(canonical) - 2, tokens=(canonical[-2],), want="none", canonical=True)])
        runs.append(offers)
    assert runs[0] != runs[1]


def test_a_head_beyond_its_context_refuses():
    runtime = made(draft_context=5)
    canonical = prefill(runtime)
    assert len(draft(runtime, canonical[-1])) == 3
    canonical += span(runtime, canonical, ()).predictions
    settle(runtime, 4, 1, 5)
    with pytest.raises(NotStarted, match="at most 5 tokens, here are 6"):
        draft(runtime, canonical[-1])


def test_a_draft_that_cannot_be_is_refused():
    runtime = made(depth=2)
    with pytest.raises(NotStarted, match="no rows yet"):
        draft(runtime, 1, 1)
    canonical = prefill(runtime)
    with pytest.raises(NotStarted, match="at most 2"):
        draft(runtime, canonical[-1], 3)
    draft(runtime, canonical[-1], 2)
    with pytest.raises(NotStarted, match="current is"):
        draft(runtime, (canonical[-1] + 1) % VOCABULARY, 2)


def test_a_session_without_drafting_has_no_head():
    runtime = ScriptedRuntime(hash_target(3, VOCABULARY))
    runtime.open_session(0, Sampling(), False)
    canonical = prefill(runtime)
    assert runtime.view(0).head_position is None
    with pytest.raises(NotStarted, match="does not draft"):
        draft(runtime, canonical[-1])


def test_listed_drafts_are_addressed_by_absolute_index():
    runtime = made(drafts=listed([7, 8, 9], start=5))
    canonical = prefill(runtime)
    assert draft(runtime, canonical[-1], 2) == (7, 8)


# Sampling.


def test_masked_ids_are_not_chosen_below_their_index_in_span_and_serial_rows_and_in_drafts():
    plain = serial(PROMPT, 6)
    masked = (plain[5],)
    runtime = ScriptedRuntime(hash_target(3, VOCABULARY), drafts=oracle())
    runtime.open_session(0, Sampling(masked=masked, mask_until=5), True)
    canonical = prefill(runtime)
    assert canonical == plain[:5]
    assert span(runtime, canonical, draft(runtime, canonical[-1])).predictions[0] == plain[5]

    runtime.open_session(1, Sampling(masked=masked, mask_until=6), True)
    assert prefill(runtime, session=1) == plain[:5]
    drafted = draft(runtime, plain[4], session=1)
    assert drafted[0] == (plain[5] + 1) % VOCABULARY
    assert span(runtime, plain[:5], drafted, session=1).predictions[:3] == drafted


def test_a_sampling_that_masks_everything_is_refused_at_once():
    runtime = made()
    with pytest.raises(ValueError, match="masks all 11 ids"):
        runtime.configure(0, Sampling(masked=tuple(range(VOCABULARY)), mask_until=3))


def test_extras_agree_with_the_choice():
    runtime = made(drafts=oracle())
    canonical = prefill(runtime)
    drafted = draft(runtime, canonical[-1])
    rows = span(runtime, canonical, drafted, extras=Extras(margins=True, logprobs=True, logits=True))
    assert rows.margins == (1.0,) * 4
    assert all(-1 < logprob < 0 for logprob in rows.logprobs)
    assert tuple(max(range(VOCABULARY), key=scores.__getitem__) for scores in rows.logits) == rows.predictions


# Costs, log, accounting, faults.


def test_costs_move_the_virtual_clock_and_are_reported():
    runtime = made(costs=Costs(forward=1000, row=10, draft=100, step=7, feed=1, settle=50, replay=5), rollback="checkpoint")
    canonical = prefill(runtime)
    assert runtime.clock() == 1040
    drafted = runtime.draft([Ask(session=0, current=canonical[-1], limit=3)])[0]
    assert drafted.cost_ns == 100 + 3 * 7 + 4
    assert span(runtime, canonical, drafted.tokens).cost_ns == 1040
    assert settle(runtime, 4, 4, 6).cost_ns == 50 + 2 * 5
    assert runtime.clock() == 1040 + 125 + 1040 + 60


def test_the_log_and_the_accounts_tell_what_happened():
    runtime = made()
    runtime.open_session(1, Sampling(), True)
    prefill(runtime)
    assert [call.name for call in runtime.calls] == ["open", "open", "forward"]
    assert runtime.count("open") == 2
    assert (runtime.live_sessions, runtime.live_rows) == (2, 4)
    runtime.drop_session(0)
    runtime.drop_session(0)
    assert (runtime.live_sessions, runtime.live_rows) == (1, 0)
    runtime.close()
    assert runtime.live_sessions == 0
    with pytest.raises(RuntimeError, match="closed"):
        runtime.view(1)


@pytest.mark.parametrize("rollback", ["crop", "checkpoint"])
@pytest.mark.parametrize("done", [0, 1, 2, None])
def test_a_forward_that_fails_half_way_leaves_real_rows_and_a_settle_takes_them_back(rollback, done):
    runtime = made(rollback=rollback)
    canonical = prefill(runtime)
    true = serial(canonical, 2)
    runtime.inject(Fault(call="forward", started=True, done=done))
    with pytest.raises(DeviceError):
        span(runtime, canonical, (7, 7))
    assert runtime.view(0).position == 4 + (3 if done is None else done)
    assert settle(runtime, 4, 3, 4).position == 4
    assert span(runtime, canonical, (true[5],)).predictions == tuple(true[5:7])


def test_a_refusal_touches_nothing_and_counts_calls_from_the_injection():
    runtime = made()
    canonical = prefill(runtime)
    runtime.inject(Fault(call="forward", at=1, times=2))
    span(runtime, canonical, ())
    settle(runtime, 4, 1, 5)
    for _ in range(2):
        with pytest.raises(NotStarted, match="scripted fault"):
            runtime.forward([Forward(session=0, base=5, tokens=(1,), want="last", canonical=True)])
    runtime.forward([Forward(session=0, base=5, tokens=(1,), want="last", canonical=True)])


def test_any_exception_can_be_thrown_even_one_that_is_not_an_error():
    runtime = made(
        faults=[Fault(call="forward", started=True, exception=KeyboardInterrupt), Fault(call="settle", exception=ZeroDivisionError("x"))]
    )
    with pytest.raises(KeyboardInterrupt):
        prefill(runtime)
    with pytest.raises(ZeroDivisionError):
        settle(runtime, 0, 4, 0)


@pytest.mark.parametrize(
    "wrong, seen",
    [
        ("short", lambda rows, true: rows.predictions == true[:-1] and rows.position == 6),
        ("long", lambda rows, true: len(rows.predictions) == 3 and rows.position == 6),
        ("vocabulary", lambda rows, true: rows.predictions[-1] == VOCABULARY),
        ("position", lambda rows, true: rows.predictions == true and rows.position == 7),
        ("lost_row", lambda rows, true: rows.predictions == true[:-1] and rows.position == 5),
    ],
)
def test_a_forward_can_answer_wrongly(wrong, seen):
    runtime = made()
    canonical = prefill(runtime)
    true = tuple(serial(canonical, 2)[5:])
    runtime.inject(Fault(call="forward", wrong=wrong))
    assert seen(span(runtime, canonical, (true[0],)), true)


def test_elements_of_one_call_fail_alone():
    runtime = made(max_batch=3, faults=[Fault(call="forward", at=1, started=True, done=1)])
    runtime.open_session(1, Sampling(), True)
    calls = [Forward(session=session, base=0, tokens=(1, 2), want="last", canonical=True) for session in (0, 1, 5)]
    good, crashed, unknown = runtime.forward(calls)
    assert good.position == 2
    assert isinstance(crashed, Failure) and crashed.started and isinstance(crashed.cause, DeviceError)
    assert isinstance(unknown, Failure) and not unknown.started
    assert runtime.view(1).position == 1
    with pytest.raises(NotStarted, match="4 elements"):
        runtime.forward(calls + calls[:1])


def test_an_element_can_fail_without_raising():
    runtime = made(faults=[Fault(call="forward", element=True)])
    (failure,) = runtime.forward([Forward(session=0, base=0, tokens=(1,), want="last", canonical=True)])
    assert isinstance(failure, Failure) and not failure.started and failure.error == "NotStarted"


def test_faults_strike_every_other_call_too():
    runtime = made(
        faults=[
            Fault(call="open"),
            Fault(call="configure", started=True),
            Fault(call="drop", started=True, done=None),
            Fault(call="view", wrong="gone"),
            Fault(call="view", at=1, wrong="position"),
            Fault(call="draft", started=True, done=2),
        ][1:]
    )
    runtime.inject(Fault(call="open"))
    with pytest.raises(NotStarted):
        runtime.open_session(1, Sampling(), True)
    with pytest.raises(DeviceError):
        runtime.configure(0, Sampling())
    canonical = prefill(runtime)
    assert runtime.view(0) is None and runtime.view(0).position == 5 and runtime.view(0).position == 4
    with pytest.raises(DeviceError):
        draft(runtime, canonical[-1])
    assert runtime.head_rows(0) == runtime.pairs(canonical)[:2]
    with pytest.raises(DeviceError):
        runtime.drop_session(0)
    assert runtime.live_sessions == 0


def test_a_fault_that_no_call_knows_is_refused():
    with pytest.raises(ValueError, match=r"Fault\.call"):
        Fault(call="think")
    with pytest.raises(ValueError, match=r"Fault\.wrong for draft must be one of: stale, unfed"):
        Fault(call="draft", wrong="position")
    with pytest.raises(ValueError, match="count from 0"):
        Fault(call="draft", at=-1)


def test_threads_and_overlapping_calls_are_refused():
    runtime = made(threads="one")
    caught = []

    def elsewhere():
        try:
            runtime.view(0)
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "thread that made it" in caught[0]

    def reenter(head, limit):
        runtime2.view(0)
        return ()

    runtime2 = made(drafts=reenter)
    canonical = prefill(runtime2)
    with pytest.raises(RuntimeError, match="two calls at once"):
        draft(runtime2, canonical[-1])
    assert runtime2.view(0).position == 4


def test_constructor_arguments_are_checked():
    with pytest.raises(ValueError, match="needs vocabulary="):
        ScriptedRuntime(lambda prefix: 0)
    with pytest.raises(ValueError, match="chooses among 11 ids"):
        ScriptedRuntime(hash_target(0, 11), vocabulary=5)
    with pytest.raises(ValueError, match="backlog"):
        ScriptedRuntime(hash_target(), backlog=0)
    with pytest.raises(TypeError, match="a target is"):
        ScriptedRuntime(3, vocabulary=5)


def test_the_margin_of_an_only_choice_is_finite():
    """All ids but one are masked: nothing is second best, and a log has no word for infinity."""
    from spanfold.engine import Decoder, Extras, Prefilled

    events = []
    runtime = ScriptedRuntime(hash_target(seed=1, vocabulary=2), stop_tokens=(0,))
    with Decoder(runtime, policy=0, extras=Extras(margins=True), observers=[lambda record: events.append(record.event)]) as decoder:
        assert decoder.generate([1], max_tokens=2, min_tokens=2).tokens == (1, 1)
    [prefilled] = [event for event in events if isinstance(event, Prefilled)]
    assert prefilled.margin is not None and prefilled.margin > 1e300
