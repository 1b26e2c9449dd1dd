"""What the spans of each level hold: times from the records, counts that agree with the engine's account, nothing but plain types."""

import json

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from harness import Bench
from hypothesis import given, settings
from otel_bench import Otel, tree_of
from worlds import worlds

from spanfold.backends.scripted import Costs, Fault, ScriptedRuntime, adversarial, list_target, mapped, oracle, short
from spanfold.engine import ConfigError, Decoder, Policy, Prefilled, SerialDecoded, SpanVerified
from spanfold.engine.trace import TraceWriter
from spanfold.telemetry import OTelObserver, names


@pytest.fixture
def otel():
    return Otel()


def children(otel, span):
    below = [one for one in otel.spans if one.parent is not None and one.parent.span_id == span.context.span_id]
    return sorted(below, key=lambda one: one.start_time)


# -- levels ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["summary", "rounds", "debug"])
def test_case_9_7_a_level_writes_a_span_per_turn_per_forward_and_per_part(otel, level):
    bench = otel.bench(level)
    result = bench.generate(max_tokens=12)
    forwards = result.stats.forwards
    rounds = 0 if level == "summary" else forwards
    parts = 3 * result.stats.spans if level == "debug" else 0
    assert len(otel.spans) == 1 + rounds + parts


def test_rounds_are_named_by_their_kind_in_the_order_of_the_log(otel):
    bench = otel.bench(drafts=short(1), policy=Policy(width=3, min_draft=2))
    bench.generate(max_tokens=6)
    names_of = {Prefilled: "spanfold.prefill", SerialDecoded: "spanfold.serial_step", SpanVerified: "spanfold.span"}
    wanted = [names_of[type(event)] for event in bench.events() if type(event) in names_of]
    assert [span.name for span in children(otel, otel.turn)] == wanted
    assert {"spanfold.serial_step"} < set(wanted) | {"spanfold.span"}
    reasons = {span.attributes.get("spanfold.serial.reason") for span in otel.named("spanfold.serial_step")}
    assert "short" in reasons


def test_a_round_says_what_it_did(otel):
    """Drafts 8 9 1 of which 8 9 are right: three tokens from one forward, one cut off."""
    target = list_target((7, 8, 9, 4, 5, 6), prompt=2, vocabulary=10)
    runtime = ScriptedRuntime(target, drafts=mapped({3: (8, 9, 1)}), model="m", costs=Costs(forward=5_000, draft=1_000, settle=700))
    with Decoder(runtime, policy=3, observers=[otel.observer("debug", record_token_ids=True)]) as decoder:
        decoder.generate([1, 2], max_tokens=4)
    (span,) = otel.named("spanfold.span")
    assert dict(span.attributes) == {
        "spanfold.draft.limit": 2,
        "spanfold.drafted_tokens": 2,
        "spanfold.draft.token_ids": (8, 9),
        "spanfold.time.draft": pytest.approx(1e-6, rel=1),
        "spanfold.base_position": 2,
        "spanfold.rows": 3,
        "spanfold.verified_tokens": 2,
        "spanfold.matched_tokens": 2,
        "spanfold.time.verify": pytest.approx(5e-6, rel=1),
        "spanfold.accepted_tokens": 2,
        "spanfold.saved_forwards": 2,
        "spanfold.full_accept": True,
        "spanfold.committed_tokens": 3,
        "spanfold.cut_by": "length",
        "spanfold.token_ids": (8, 9, 4),
        "spanfold.settled_by": "retired",
        "spanfold.time.settle": pytest.approx(7e-7, rel=1),
    }
    assert [part.name for part in children(otel, span)] == ["spanfold.draft", "spanfold.verify", "spanfold.settle"]


def test_a_rejected_draft_is_trimmed_and_the_parts_lie_in_order_inside_their_round(otel):
    bench = otel.bench("debug", drafts=adversarial())
    bench.generate(max_tokens=6)
    for span in otel.named("spanfold.span"):
        assert span.attributes["spanfold.accepted_tokens"] == 0 and span.attributes["spanfold.full_accept"] is False
        assert span.attributes["spanfold.settled_by"] == "trimmed"
        times = [(part.start_time, part.end_time) for part in children(otel, span)]
        flat = [span.start_time, *(time for part in times for time in part), span.end_time]
        assert flat == sorted(flat)


def test_times_are_the_recorded_ones(otel):
    """A clock of our own: every span begins where its record says that the call began, and ends with the record."""
    now = iter(range(1_000_000, 10_000_000, 1000))
    bench = otel.bench("debug", drafts=oracle(), decoder={"clock": lambda: next(now)})
    bench.generate(max_tokens=6)
    log = bench.logs[0]
    verified = [record for record in log if isinstance(record.event, SpanVerified)]
    assert [(part.start_time, part.end_time) for part in otel.named("spanfold.verify")] == [
        (record.at_ns - record.event.cost_ns, record.at_ns) for record in verified
    ]
    assert (otel.turn.start_time, otel.turn.end_time) == (log[0].at_ns, log[-2].at_ns)


def test_costs_that_a_runtime_makes_up_never_reach_before_what_came_before(otel):
    bench = otel.bench("debug", costs=Costs(forward=10**15, draft=10**15, settle=10**15))
    bench.generate(max_tokens=8)
    turn = otel.turn
    before = turn.start_time
    for span in children(otel, turn):
        assert before <= span.start_time <= span.end_time <= turn.end_time
        before = span.end_time


def test_a_draft_that_is_asked_for_and_never_used_is_shown_at_debug_alone():
    """Cancelled between draft and forward: no forward was made, so there is no round."""
    for level, wanted in (("rounds", 0), ("debug", 1)):
        otel = Otel()
        asked = iter([False, False, True])
        bench = otel.bench(level, drafts=oracle())
        bench.generate(max_tokens=20, cancel=lambda asked=asked: next(asked, True))
        drafts = [span for span in children(otel, otel.turn) if span.name == "spanfold.draft"]
        assert len(drafts) == wanted
        assert otel.turn.attributes["spanfold.discarded_tokens.cancelled"] == 3


def test_a_refused_forward_is_a_failed_round_and_its_draft_is_judged_serially(otel):
    bench = otel.bench(drafts=oracle(), faults=[Fault(call="forward", at=1)])
    with bench.decoder.open([1, 2, 3], max_tokens=6) as session:
        session.step()
        with pytest.raises(Exception, match="NotStarted"):
            session.step()
        while not session.finished:
            session.step()
    _, failed, serial, *_ = children(otel, otel.turn)
    assert failed.attributes["spanfold.failure.started"] is False and failed.attributes["spanfold.draft.restored"] == "not_started"
    assert serial.attributes["spanfold.serial.verdict"] == "accepted"
    assert serial.attributes["spanfold.serial.reason"] == "not_started"
    assert otel.turn.attributes["spanfold.accepted_serial_tokens"] == 1


def test_the_original_systems_names_come_out_exactly(otel):
    bench = otel.bench(observer={"original_names": True}, drafts=oracle(), costs=Costs(forward=12_345))
    bench.generate(max_tokens=9)
    spans = otel.named("stage.openai_native_mtp_span")
    assert spans and not otel.named("spanfold.span")
    for span in spans:
        own = {name: value for name, value in span.attributes.items() if name.startswith("llama_stage.")}
        count = span.attributes["spanfold.committed_tokens"]
        assert own == {
            "llama_stage.native_mtp.span_draft_tokens": span.attributes["spanfold.verified_tokens"],
            "llama_stage.native_mtp.span_accepted_tokens": span.attributes["spanfold.accepted_tokens"],
            "llama_stage.native_mtp.span_committed_tokens": count,
            "llama_stage.native_mtp.span_saved_forwards": count - 1,
            "llama_stage.native_mtp.span_full_accept": True,
            "llama_stage.native_mtp.span_verification_us": int(span.attributes["spanfold.time.verify"] * 1e6),
        }
        assert set(own) == {attribute.name for attribute in names.ORIGINAL}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "all"}, "level must be one of summary, rounds, debug, not 'all'"),
        ({"level": "summary", "original_names": True}, "set level to rounds or debug"),
        ({"tracer_provider": "otlp"}, "tracer_provider must be a TracerProvider, not 'otlp'"),
        ({"meter_provider": 3}, "meter_provider must be a MeterProvider, not 3"),
        ({"parent": 5}, r"parent must be an OpenTelemetry Context .* or None, not 5"),
        ({"parent": {}}, "parent must be"),
        ({"record_token_ids": "no"}, "record_token_ids must be True or False, not .no."),
        ({"record_messages": "x"}, "record_messages must be True or False, not .x."),
        ({"original_names": 1, "level": "rounds"}, "original_names must be True or False, not 1"),
    ],
)
def test_unusable_arguments_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        OTelObserver(**options)


# -- counts ------------------------------------------------------------------------------------------------------------


def account_in(attributes):
    """The attributes of a turn's span, by the names of DecodeStats."""
    table = {
        "tokens": names.OUTPUT_TOKENS, "forwards": names.FORWARDS, "prefills": names.PREFILLS, "spans": names.SPAN_COUNT,
        "serial_steps": names.SERIAL_STEPS, "drafted": names.DRAFTED, "verified": names.VERIFIED, "matched": names.MATCHED,
        "accepted": names.ACCEPTED, "accepted_serial": names.ACCEPTED_SERIAL, "rejected": names.REJECTED, "saved_forwards": names.SAVED,
        "saved_net": names.SAVED_NET, "replay_forwards": names.REPLAY_FORWARDS, "replayed_rows": names.REPLAYED_ROWS,
        "retired": names.RETIRED, "trims": names.TRIMS, "acceptance_rate": names.ACCEPTANCE_RATE,
        "acceptance_length": names.ACCEPTANCE_LENGTH,
    }  # fmt: skip
    found = {name: attributes.get(attribute) for name, attribute in table.items()}
    found["discarded"] = {
        name.removeprefix(names.DISCARDED): count for name, count in attributes.items() if name.startswith(names.DISCARDED)
    }
    found["verified_per_depth"] = attributes.get(names.VERIFIED_PER_DEPTH, ())
    found["accepted_per_depth"] = attributes.get(names.ACCEPTED_PER_DEPTH, ())
    return found


def engine_account(stats):
    return {name: getattr(stats, name) for name in account_in({})}


@given(worlds())
@settings(max_examples=60)
def test_case_3_7_the_spans_account_is_the_results_and_that_of_the_folded_events(world):
    otel = Otel()
    bench = world.bench(decoder={"observers": [otel.observer("rounds")]})
    result = bench.decoder.generate(world.prompt, **world.turn)
    assert account_in(otel.turn.attributes) == engine_account(result.stats)
    assert otel.turn.attributes["gen_ai.usage.input_tokens"] == len(world.prompt)
    bench.audit_logs()  # folds the log and compares the same account with it
    # And the turn's counts are the sum of its rounds'.
    for name in (names.VERIFIED, names.ACCEPTED, names.SAVED, names.MATCHED, names.REJECTED, names.REPLAYED_ROWS):
        assert otel.turn.attributes[name] == sum(span.attributes.get(name, 0) for span in children(otel, otel.turn))
    committed = sum(span.attributes[names.COMMITTED] for span in children(otel, otel.turn))
    assert committed == len(result.tokens)


def test_a_later_turn_counts_for_itself(otel):
    bench = otel.bench()
    with bench.decoder.open([1, 2, 3], max_tokens=5) as session:
        list(session)
        session.extend([4, 5], max_tokens=7)
        list(session)
        stats = session.stats
    first, second = (turn.attributes for turn in otel.turns)
    assert (first["gen_ai.usage.output_tokens"], second["gen_ai.usage.output_tokens"]) == (5, 7)
    assert second["gen_ai.usage.input_tokens"] == 3 + 5 + 2
    assert second["gen_ai.usage.cache_read.input_tokens"] == 7, "the last token of the first turn was not in the cache"
    assert first["spanfold.forwards"] + second["spanfold.forwards"] == stats.forwards


def test_a_rewind_of_a_finished_turn_goes_on_in_a_span_of_its_own(otel):
    bench = otel.bench("debug")
    with bench.decoder.open([1, 2, 3], max_tokens=5) as session:
        list(session)
        session.rewind(2)
        list(session)
    first, second = otel.turns
    assert "spanfold.turn.continued" not in first.attributes and second.attributes["spanfold.turn.continued"] is True
    assert first.attributes["spanfold.turn.number"] == second.attributes["spanfold.turn.number"] == 0
    assert second.attributes["gen_ai.usage.output_tokens"] == 2
    trims = [span for span in children(otel, second) if span.name == "spanfold.settle"]
    assert [trim.attributes["spanfold.trim.cause"] for trim in trims] == ["rewind"]


def test_a_resumed_session_goes_on_in_a_continued_turn(otel):
    bench = Bench()
    bench.generate(max_tokens=9)
    log = bench.logs[0][:-6]
    with Decoder(bench.runtime, policy=3, observers=[otel.observer()]) as decoder, decoder.resume(log) as session:
        before = session.stats.tokens
        list(session)
        after = session.stats.tokens
    turn = otel.turn.attributes
    assert turn["spanfold.turn.continued"] is True and turn["gen_ai.request.max_tokens"] == 9
    assert turn["gen_ai.usage.output_tokens"] == after - before > 0
    assert turn["gen_ai.usage.input_tokens"] == 3 + before


def test_probes_of_the_policy_auto_and_its_reasons_are_counted(otel):
    """Drafts that are never right, at a price: the policy stops and probes now and then."""
    costs = Costs(forward=1000, row=900, draft=500, step=500)
    bench = otel.bench(policy="auto", drafts=adversarial(), costs=costs)
    bench.generate([1, 2, 3], max_tokens=400, ignore_eos=True)
    turn = otel.turn.attributes
    probing = [span for span in otel.spans if span.attributes.get("spanfold.draft.probe")]
    assert turn["spanfold.probes"] == len(probing) > 0
    assert turn["spanfold.serial_steps.not_paying"] > 0


# -- what may be in a span ---------------------------------------------------------------------------------------------


class Numberlike(int):
    """What an array library returns for an element: an int and yet not an int."""

    __slots__ = ()


class Foreign(ScriptedRuntime):
    """A runtime whose answers are the types of an array library."""

    def forward(self, calls):
        (rows,) = super().forward(calls)
        if hasattr(rows, "predictions"):
            import attrs

            rows = attrs.evolve(rows, predictions=[Numberlike(one) for one in rows.predictions], position=Numberlike(rows.position))
        return (rows,)

    def settle(self, calls):
        (settled,) = super().settle(calls)
        import attrs

        return (attrs.evolve(settled, position=Numberlike(settled.position), cost_ns=Numberlike(7)),)


def test_values_are_plain_types_whatever_a_backend_returns(otel):
    runtime = Foreign(list_target((7, 8, 9, 4), prompt=2, vocabulary=10), drafts=oracle())
    observer = otel.observer("debug", record_token_ids=True, original_names=True)
    with Decoder(runtime, policy=2, observers=[observer]) as decoder:
        decoder.generate([1, 2], max_tokens=8)
    plain = (str, bool, int, float)
    for span in otel.spans:
        for name, value in span.attributes.items():
            values = value if isinstance(value, tuple) else (value,)
            assert all(type(one) in plain for one in values), (name, value)


def test_token_ids_and_texts_stay_out_unless_asked_for():
    vocabulary, secret = 50_000, 31_337
    for asked in (False, True):
        otel = Otel()
        target = list_target((secret, 7, secret, 8), prompt=2, vocabulary=vocabulary)
        runtime = ScriptedRuntime(target, drafts=oracle(), model="m")
        with Decoder(runtime, policy=2, observers=[otel.observer("debug", record_token_ids=asked)]) as decoder:
            decoder.generate([1, secret], max_tokens=9, stop_tokens=[8])
        written = json.dumps([[span.name, dict(span.attributes), span.status.description] for span in otel.spans])
        assert (str(secret) in written) is asked
        assert ("spanfold.finish.detail" in otel.turn.attributes) is asked


def test_every_attribute_that_is_written_is_in_the_table():
    """And bears the type that the table says."""
    types = {"string": str, "int": int, "double": float, "boolean": bool}
    table = {attribute.name: attribute.type for attribute in (*names.ATTRIBUTES, *names.ORIGINAL)}
    seen = set()
    for options in ({"drafts": oracle()}, {"drafts": adversarial(), "rollback": "checkpoint"}, {"drafts": short(1)}):
        otel = Otel()
        observer = {"record_token_ids": True, "original_names": options.get("rollback") == "checkpoint"}
        bench = otel.bench("debug", observer=observer, faults=[Fault(call="draft", at=4)], **options)
        with bench.decoder.open([1, 2, 3], max_tokens=20) as session:
            list(session)
        for span in otel.spans:
            for name, value in span.attributes.items():
                known = name if name in table else name[: name.rindex(".") + 1]
                seen.add(known)
                kind = table[known]
                if kind.endswith("[]"):
                    assert isinstance(value, tuple) and all(type(one) is types[kind[:-2]] for one in value), name
                else:
                    assert type(value) is types[kind], (name, value)
    assert len(seen) > 45


# -- redrive, and the same events --------------------------------------------------------------------------------------


def test_redrive_is_silent_and_case_8_10_observing_changes_no_record(tmp_path):
    from opentelemetry import trace

    from spanfold.engine import redrive

    logs = {}
    for level in (None, "summary", "rounds", "debug"):
        otel = Otel()
        bench = Bench() if level is None else otel.bench(level)
        bench.generate(max_tokens=20)
        logs[level] = bench.logs[0]
    assert all(log == logs[None] for log in logs.values())
    otel = Otel()
    with otel.tracer.start_as_current_span("caller"):
        assert redrive(logs[None]) == logs[None]
    assert [span.name for span in otel.spans] == ["caller"]
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_trace_file_is_the_same_with_and_without_an_observer(tmp_path):
    ticks = {}
    for watched in (False, True):
        now = iter(range(1_000_000))
        otel, path = Otel(), tmp_path / f"{watched}.jsonl"
        observers = [otel.observer("debug")] if watched else []
        with TraceWriter(path) as writer:
            runtime = Bench().runtime
            with Decoder(runtime, policy=3, observers=observers, recorder=writer, clock=lambda now=now: next(now)) as decoder:
                decoder.generate([1, 2, 3], max_tokens=16)
        ticks[watched] = path.read_text(encoding="utf-8").splitlines()[1:-1]
    assert ticks[False] == ticks[True]


def test_tree_of_tells_trees_apart(otel):
    otel.bench("debug").generate(max_tokens=8)
    ((name, *_, below),) = tree_of(otel.spans)
    assert name == "text_completion scripted" and len(below) > 1
