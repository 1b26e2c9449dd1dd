"""Cases 1.x (positions, caches, rollback) and 7.6 to 7.8 (sessions that go on). Sources: docs/explanation, public bug reports by number."""

import pytest
from harness import Bench

from spanfold.backends.scripted import (
    DeviceError,
    Fault,
    ScriptedRuntime,
    adversarial,
    hash_target,
    list_target,
    listed,
    mapped,
    noisy,
    oracle,
)
from spanfold.engine import (
    CheckpointRetired,
    Committed,
    ConfigError,
    DecodeFailed,
    Decoder,
    DraftFailed,
    DraftOffered,
    Failure,
    Forward,
    IllegalEvent,
    NotStarted,
    Policy,
    Prefilled,
    RuntimeFailed,
    Sampling,
    SerialDecoded,
    SessionDropped,
    SessionResumed,
    Settle,
    SpanRefused,
    SpanVerified,
    Trimmed,
    fold,
    redrive,
    reduce,
)

PROMPT = (1, 2, 3)


def serial_tokens(count, prompt=PROMPT, **options):
    return Bench(policy=0).generate(prompt, max_tokens=count, **options).tokens


@pytest.mark.parametrize("drafts", [noisy(5, 0.7), noisy(9, 0.4), adversarial(), oracle()])
def test_case_1_1_a_recurrent_state_is_restored_after_every_rejection(drafts):
    bench = Bench(rollback="checkpoint", drafts=drafts)
    result = bench.generate(max_tokens=24)
    assert result.tokens == serial_tokens(24)
    assert (result.stats.replayed_rows > 0) == (result.stats.trims > 0)


def test_case_1_1_two_rejection_histories_of_one_text_leave_the_same_choices():
    choices = set()
    for accuracy in (0.0, 0.3, 0.6, 1.0):
        bench = Bench(rollback="checkpoint", drafts=noisy(1, accuracy))
        session = bench.decoder.open(PROMPT, max_tokens=9)
        list(session)
        session.extend((), max_tokens=8)
        choices.add(tuple(session))
    assert len(choices) == 1


def test_case_1_1_a_runtime_that_cannot_restore_is_asked_for_no_span():
    bench = Bench(rollback="none")
    result = bench.generate(max_tokens=6)
    assert result.tokens == serial_tokens(6)
    assert [event.reason for event in bench.of(SpanRefused)] == ["no_rollback"]
    assert bench.runtime.count("draft") == 0
    assert all(call.request.canonical for call in bench.runtime.calls if call.name == "forward")


@pytest.mark.parametrize("rows", [2, 3, 5])
@pytest.mark.parametrize("rollback", ["crop", "checkpoint"])
def test_case_1_2_row_zero_of_a_verify_chooses_what_a_serial_step_chooses(rows, rollback):
    runtime = ScriptedRuntime(hash_target(3, 17), rollback=rollback)
    runtime.open_session(0, Sampling(), True)
    runtime.forward([Forward(session=0, base=0, tokens=(1, 2, 3), want="none", canonical=True)])
    (span,) = runtime.forward([Forward(session=0, base=3, tokens=(4, *range(rows - 1)), want="all", canonical=False)])
    runtime.settle([Settle(session=0, base=3, rows=rows, position=3)])
    (serial,) = runtime.forward([Forward(session=0, base=3, tokens=(4,), want="last", canonical=True)])
    assert span.predictions[0] == serial.predictions[0]


def test_case_1_3_taking_back_more_than_there_is_changes_nothing():
    bench = Bench()
    session = bench.decoder.open(PROMPT, max_tokens=4)
    session.step()
    before = session.state
    for count in (0, -1, len(before.canonical), 99):
        with pytest.raises(ConfigError, match="rewind takes 1 to"):
            session.rewind(count)
    assert session.state == before
    session.rewind(len(before.canonical) - 1)
    assert session.state.canonical[:] == PROMPT[:1] and session.state.position == 0
    bench.audit(session)


@pytest.mark.parametrize("ring", [6, 9])
def test_case_1_6_past_what_it_can_roll_back_the_decode_goes_on_serially_with_the_reason(ring):
    def full_ring(name, session, request):
        return Fault(call="forward") if name == "forward" and not request.canonical and request.base + len(request.tokens) > ring else None

    bench = Bench(faults=full_ring)
    session = bench.decoder.open(PROMPT, max_tokens=12)
    while not session.finished:
        try:
            session.step()
        except (NotStarted, DecodeFailed) as error:
            assert isinstance(error, NotStarted) or isinstance(error.__cause__, NotStarted)
        bench.audit(session)
    assert session.result.tokens == serial_tokens(12)
    assert "not_started" in [event.reason for event in bench.of(SpanRefused)]


def test_case_1_7_a_trim_that_removed_nothing_is_noticed_by_length_and_the_session_is_retired():
    bench = Bench(drafts=adversarial(), faults=[Fault(call="settle", at=1, wrong="trim_noop")])
    session = bench.decoder.open(PROMPT, max_tokens=12)
    emitted = []
    with pytest.raises(DecodeFailed, match=r"settle.*\d+ rows"):
        emitted.extend(iter(session))
    assert session.state.phase == "dropped" and isinstance(bench.events()[-1], SessionDropped)
    assert session.state.canonical[3:] == serial_tokens(12)[: len(session.state.canonical) - 3]
    assert bench.all_released()
    bench.audit_logs()


@pytest.mark.parametrize(("width", "accepted"), [(width, accepted) for width in range(1, 6) for accepted in range(width + 1)])
def test_case_1_8_the_head_holds_exactly_the_canonical_pairs_after_every_round(width, accepted):
    target = hash_target(3, 17)

    def drafts(head, limit):
        right = list(oracle()(head, limit))
        if accepted < limit:
            right[accepted] = (right[accepted] + 1) % 17
        return right

    bench = Bench(target, drafts=drafts, policy=width)
    session = bench.decoder.open(PROMPT, max_tokens=400)
    for _ in range(50):
        session.step()
        bench.audit(session)
        view = bench.runtime.inspect(session.runtime_session)
        # One pair waits for its second half; a span's accepted rows wait for the next draft.
        assert view.position - view.head_position in (accepted + 1, len(PROMPT))
    assert {event.accepted for event in bench.of(Committed) if event.source == "span"} == {accepted}


@pytest.mark.parametrize("at", [0, 1, 2, 3, 4])
def test_case_1_10_nothing_behind_a_stop_stays_in_the_cache_and_the_next_turn_reuses_every_row(at):
    truth = [5, 6, 7, 8, 9, 10]
    bench = Bench(list_target(truth, prompt=4, vocabulary=12), drafts=oracle(), policy=4)
    session = bench.decoder.open((1, 2, 3, 4), stop_tokens=[truth[1 + at]], max_tokens=6)
    list(session)
    committed = 2 + at
    assert session.result.finish_reason == "stop_token" and len(session.result.tokens) == committed
    assert bench.runtime.inspect(session.runtime_session).position == session.state.position == 4 + committed - 1
    session.extend((1, 1), max_tokens=2)
    session.step()
    prefill = bench.of(Prefilled)[-1]
    assert prefill.reused == prefill.start == 4 + committed - 1
    bench.audit(session)


def test_case_1_11_rows_of_one_batch_are_cut_each_at_its_own_length():
    runtime = ScriptedRuntime(hash_target(3, 17), max_batch=3)
    accepted = (0, 2, 3)
    for session in range(3):
        runtime.open_session(session, Sampling(), True)
        runtime.forward([Forward(session=session, base=0, tokens=(session, 2, 3), want="none", canonical=True)])
    calls = [Forward(session=session, base=3, tokens=(4, 5, 6, 7), want="all", canonical=False) for session in range(3)]
    runtime.forward(calls)
    runtime.settle([Settle(session=session, base=3, rows=4, position=4 + accepted[session]) for session in range(3)])
    assert [runtime.inspect(session).position for session in range(3)] == [4, 6, 7]
    assert [runtime.cache_rows(session) for session in range(3)] == [
        (session, 2, 3, *(4, 5, 6, 7)[: 1 + accepted[session]]) for session in range(3)
    ]


def test_case_1_11_a_runtime_without_batches_refuses_more_than_one_element():
    runtime = ScriptedRuntime(hash_target(3, 17))
    for session in range(2):
        runtime.open_session(session, Sampling(), True)
    calls = [Forward(session=session, base=0, tokens=(1,), want="last", canonical=True) for session in range(2)]
    with pytest.raises(NotStarted, match="2 elements in one forward call"):
        runtime.forward(calls)
    assert not isinstance(runtime.forward(calls[:1])[0], Failure)


def test_case_1_14_a_verify_that_comes_late_is_refused_by_the_reducer():
    bench = Bench()
    bench.generate(max_tokens=12)
    log = bench.logs[0]
    at = next(at for at, record in enumerate(log) if isinstance(record.event, SpanVerified))
    in_flight = fold(log[:at])
    resumed = SessionResumed(runtime=in_flight.runtime, draft=in_flight.draft, rules=1)
    with pytest.raises(IllegalEvent, match="SpanVerified"):
        reduce(reduce(in_flight, resumed), log[at].event)


def test_case_1_16_a_rewind_takes_the_head_back_too_and_drafts_go_on():
    bench = Bench()
    session = bench.decoder.open(PROMPT, max_tokens=30)
    for _ in range(5):
        session.step()
    session.rewind(4)
    bench.audit(session)
    assert bench.runtime.inspect(session.runtime_session).head_position <= session.state.position
    spans = session.stats.spans
    session.step()
    bench.audit(session)
    assert session.stats.spans == spans + 1
    assert (*session.state.canonical[3:],) == serial_tokens(30)[: len(session.state.canonical) - 3]


def test_case_1_16_an_error_of_the_draft_is_an_event_and_the_reason_stands_in_the_log():
    bench = Bench(faults=[Fault(call="draft", at=1, started=True)])
    result = bench.generate(max_tokens=20)
    assert result.tokens == serial_tokens(20)
    (failed,) = bench.of(DraftFailed)
    assert (failed.origin, failed.error) == ("mtp", DeviceError.__name__)
    assert [event.reason for event in bench.of(SpanRefused)] == ["draft_failed"]
    assert len(bench.of(DraftOffered)) == 1


@pytest.mark.parametrize("policy", [0, 3])
def test_case_7_6_a_session_that_goes_on_holds_every_row_and_continues_as_if_never_stopped(policy):
    bench = Bench(policy=policy)
    session = bench.decoder.open(PROMPT, max_tokens=7)
    list(session)
    session.extend((), max_tokens=9)
    list(session)
    assert session.state.canonical[3:] == serial_tokens(16)
    bench.audit(session)


@pytest.mark.parametrize("rollback", ["crop", "checkpoint", "none"])
@pytest.mark.parametrize("keep", [1, 2, 3, 4, 9, 14])
def test_case_7_7_a_rewind_to_anywhere_then_new_tokens_equals_a_fresh_session(rollback, keep):
    bench = Bench(rollback=rollback)
    session = bench.decoder.open(PROMPT, max_tokens=12)
    list(session)
    session.rewind(15 - keep)
    bench.audit(session)
    kept = session.state.canonical[:]
    session.extend((4, 4), max_tokens=10)
    list(session)
    bench.audit(session)
    fresh = Bench(policy=0)
    assert session.result.tokens == fresh.generate((*kept, 4, 4), max_tokens=10).tokens


@pytest.mark.parametrize("policy", [0, 3])
@pytest.mark.parametrize("drop", [1, 3])
def test_a_rewind_below_the_turns_start_begins_it_anew_min_tokens_included(policy, drop):
    """The stop ids were masked up to the old place: so many tokens more than were asked for could not stop."""
    target = hash_target(5, 4)
    options = {"max_tokens": 12, "min_tokens": 3, "stop_tokens": (1,)}
    runtime = ScriptedRuntime(target, drafts=oracle())
    log = []
    with Decoder(runtime, policy=policy, observers=[log.append]) as decoder:
        for seed in range(8):
            prompt = (2, 3, seed % 4, 0, 2)
            expected = decoder.generate(prompt[:-drop], **options)
            with decoder.open(prompt, **options) as session:
                list(session)
                session.rewind(len(session.state.canonical) - len(prompt) + drop)
                list(session)
                assert session.result.tokens == expected.tokens and session.result.finish_reason == expected.finish_reason
    for one in {record.session for record in log}:
        records = [record for record in log if record.session == one]
        assert redrive(records) == records


def test_a_sampling_that_the_runtime_refuses_stops_the_rewind():
    """Nothing was touched: the session stays where it was."""
    runtime = ScriptedRuntime(hash_target(5, 9), faults=(Fault(call="configure", started=False),))
    with Decoder(runtime, policy=0) as decoder:
        session = decoder.open((2, 3, 4), max_tokens=4, min_tokens=2, stop_tokens=(1,))
        list(session)
        before = session.state.canonical[:]
        with pytest.raises(DecodeFailed, match="configure failed: NotStarted: .* can go on"):
            session.rewind(len(before) - 2)
        assert session.state.canonical[:] == before
        session.rewind(len(before) - 2)
        assert len(session.state.canonical) == 2


def test_case_7_7_a_rewind_of_nothing_is_refused_and_the_state_is_unchanged():
    bench = Bench()
    session = bench.decoder.open(PROMPT, max_tokens=5)
    list(session)
    before, calls = session.state, len(bench.runtime.calls)
    with pytest.raises(ConfigError):
        session.rewind(0)
    assert session.state is before and len(bench.runtime.calls) == calls


def test_case_7_8_a_rewind_beyond_the_window_empties_the_session_and_prefills_again():
    bench = Bench(rollback="checkpoint")
    session = bench.decoder.open(PROMPT, max_tokens=8)
    list(session)
    session.rewind(3)
    assert bench.runtime.inspect(session.runtime_session).position == session.state.position == 0
    (trim,) = [event for event in bench.of(Trimmed) if event.cause == "rewind"]
    assert (trim.to, trim.observed) == (0, 0)
    session.extend((), max_tokens=6)
    assert tuple(session) == serial_tokens(11)[5:]


def test_case_7_8_a_position_out_of_reach_is_an_error_of_the_runtime_and_changes_nothing():
    runtime = ScriptedRuntime(hash_target(3, 17), rollback="checkpoint")
    runtime.open_session(0, Sampling(), True)
    runtime.forward([Forward(session=0, base=0, tokens=(1, 2, 3), want="none", canonical=True)])
    with pytest.raises(ValueError, match="cannot get back to 1"):
        runtime.settle([Settle(session=0, base=1, rows=2, position=1)])
    assert runtime.cache_rows(0) == (1, 2, 3)


def test_case_6_6_ten_fully_accepted_spans_leave_no_gap_in_the_head():
    bench = Bench(drafts=oracle())
    session = bench.decoder.open(PROMPT, max_tokens=41)
    list(session)
    assert len(bench.of(CheckpointRetired)) == 10 and not bench.of(SerialDecoded)
    pairs = bench.runtime.pairs(session.state.canonical[:])
    rows = bench.runtime.head_rows(session.runtime_session)
    assert rows == pairs[: len(rows)] and len(rows) == 3 + 4 * 9


def test_case_6_9_after_a_partial_accept_the_head_holds_no_rejected_row():
    bench = Bench(drafts=mapped({}, otherwise=noisy(5, 0.5)))
    session = bench.decoder.open(PROMPT, max_tokens=60)
    cut = 0
    while not session.finished:
        session.step()
        bench.audit(session)
        cut += session.stats.rejected
    assert cut


def test_a_runtime_failure_names_the_call_and_what_became_of_the_session():
    bench = Bench(drafts=listed([]), faults=[Fault(call="forward", at=2, started=True)])
    session = bench.decoder.open(PROMPT, max_tokens=9, policy=Policy(width=3))
    with pytest.raises(DecodeFailed, match=r"^serial failed: DeviceError: .*canonical and can go on"):
        list(session)
    assert [event.call for event in bench.of(RuntimeFailed)] == ["serial"]
    list(session)
    assert session.state.canonical[3:] == serial_tokens(9)


@pytest.mark.parametrize("policy", [0, 3])
def test_case_6_11_positions_come_from_the_session_and_from_no_cache(policy):
    """The head's cache is behind the target's after every span; what is sent follows the session's state alone."""
    bench = Bench(policy=policy)
    session = bench.decoder.open(PROMPT, max_tokens=30)
    behind = 0
    while not session.finished:
        position, seen = session.state.position, len(bench.runtime.calls)
        session.step()
        for call in bench.runtime.calls[seen:]:
            if call.name == "forward":
                assert call.request.base == position
                assert call.request.tokens[0] == session.state.canonical[position]
        view = bench.runtime.inspect(session.runtime_session)
        behind += view.head_position is not None and view.head_position < view.position
    assert (behind > 0) == (policy > 0)
    assert bench.runtime.cache_rows(session.runtime_session) == session.state.canonical[: session.state.position]


@pytest.mark.parametrize("base", [0, 2, 4])
def test_case_6_11_a_position_that_is_not_the_sessions_is_refused_and_nothing_is_touched(base):
    runtime = ScriptedRuntime(hash_target(3, 17))
    runtime.open_session(0, Sampling(), True)
    runtime.forward([Forward(session=0, base=0, tokens=PROMPT, want="none", canonical=True)])
    with pytest.raises(NotStarted):
        runtime.forward([Forward(session=0, base=base, tokens=(4,), want="last", canonical=True)])
    assert runtime.cache_rows(0) == PROMPT
