"""The commands on traces, in process, over traces that the scripted backend made."""

import json
import re

import pytest

from spanfold.engine.cli import main
from spanfold.engine.trace import TraceReader, TraceWriter, decode_record, encode_record


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "run.jsonl"
    arguments = ["generate", "hello", "--backend", "scripted", "--max-tokens", "40", "--max-draft", "3", "--trace", str(path), "--json"]
    assert main(arguments) == 0
    return path


@pytest.fixture
def serial(tmp_path):
    path = tmp_path / "serial.jsonl"
    arguments = ["generate", "hello", "--backend", "scripted", "--max-tokens", "40", "--no-speculation", "--trace", str(path), "--json"]
    assert main(arguments) == 0
    return path


@pytest.fixture
def run(capsys):
    """Run a command: exit code, standard output, standard error."""

    def one(*arguments):
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return one


def tampered(trace, tmp_path, old, new):
    """A copy whose first record that holds ``old`` holds ``new``; the footer is left away, so the digest tells nothing."""
    lines = trace.read_text().splitlines()[:-1]
    at = next(at for at, line in enumerate(lines) if old in line)
    lines[at] = lines[at].replace(old, new)
    copy = tmp_path / "tampered.jsonl"
    copy.write_text("\n".join(lines) + "\n")
    return copy


def test_a_good_trace_holds(trace, serial, run):
    code, out, _ = run("check", trace, serial)
    assert code == 0
    assert out.count(": holds") == 4, "two files with a session each"


def test_a_tampered_trace_is_violated_at_its_event_and_diverges_there(trace, tmp_path, run):
    bad = tampered(trace, tmp_path, '"matched":3', '"matched":2')
    code, out, _ = run("check", bad)
    assert code == 1
    assert "event 5: fold" in out
    code, out, _ = run("replay", bad)
    assert code == 1
    assert "recorded  SpanVerified" in out
    assert "replayed  SpanVerified" in out
    assert f"spanfold dump {bad} --session 0 --events 0-10" in out
    code, out, _ = run("replay", bad, "--json")
    assert code == 1
    assert json.loads(out)[0]["divergence"]["seq"] == 5


@pytest.mark.parametrize("command", ["check", "replay"])
def test_what_is_no_trace_is_unusable_and_not_violated(command, tmp_path, run):
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("hello\n")
    code, out, err = run(command, nonsense)
    assert code == 2
    assert "not JSON" in out + err


def test_a_missing_trace_is_one_line_that_names_it(tmp_path, run):
    for command in ("dump", "stats"):
        code, out, err = run(command, tmp_path / "none.jsonl")
        assert (code, out) == (2, "")
        assert "none.jsonl" in err
        assert err.count("\n") == 1


def test_dump_shows_a_range_and_the_state_after_an_event(trace, run):
    code, out, _ = run("dump", trace, "--events", "3-7")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()] == ["3", "4", "5", "6", "7"]
    code, out, _ = run("dump", trace, "--at", "7", "--json")
    state = json.loads(out)
    assert code == 0
    assert state["phase"] == "ready"
    assert state["position"] == len(state["canonical"]) - 1 == state["boundary_position"]
    assert state["stats"]["accepted"] == 3
    code, _, err = run("dump", trace, "--at", "1000")
    assert code == 2
    assert "no event 1000" in err


def test_dump_as_json_is_the_records_themselves(trace, run):
    _, out, _ = run("dump", trace, "--json")
    records = list(TraceReader(trace))
    assert [decode_record(line) for line in out.splitlines()] == records


def test_dump_shows_what_it_does_not_know_where_check_refuses(trace, tmp_path, run):
    odd = tampered(trace, tmp_path, '"type":"DraftTaken"', '"type":"DraftStolen"')
    assert run("check", odd)[0] == 2
    code, out, _ = run("dump", odd)
    assert code == 0
    assert "unknown event type 'DraftStolen'" in out


def test_stats_are_those_of_the_run(trace, run):
    code, out, _ = run("stats", trace, "--json")
    (stats,) = json.loads(out)
    assert code == 0
    total, turn = stats["total"], stats["sessions"][0]["turns"][0]
    assert total["tokens"] == 40 == turn["acceptance"]["completion_tokens"]
    assert total["forwards"] + total["saved_forwards"] == 40
    assert turn["acceptance"]["num_accepted_draft_tokens"] == total["accepted"]
    code, out, _ = run("stats", trace)
    assert "40 tokens from" in out
    assert stats["rounds"]["probes"] == 0 and set(stats["rounds"]["widths"]) <= {"1", "2", "3"}
    assert "drafts asked for (width:drafts)" in out


def test_replay_on_a_live_model_compares_tokens(trace, run):
    code, out, _ = run("replay", trace, "--backend", "scripted")
    assert (code, "40 tokens came out equal" in out) == (0, True)


def test_two_policies_give_the_same_tokens_and_other_events(trace, serial, run):
    code, out, _ = run("diff", trace, serial)
    assert code == 0
    assert "the tokens are equal: 40 decoded" in out
    assert "setting policy.width: 3 and 0" in out


def test_a_wrong_token_is_a_defect_in_a_diff(trace, serial, tmp_path, run):
    records = list(TraceReader(serial))
    header = serial.read_bytes().splitlines(keepends=True)[0]
    changed = b"".join(encode_record(record) for record in records).replace(b'"tokens":[68]', b'"tokens":[69]', 1)
    other = tmp_path / "other.jsonl"
    other.write_bytes(header + changed.replace(b'"prediction":68', b'"prediction":69', 1))
    code, out, _ = run("diff", trace, other)
    assert code == 1
    assert "a defect" in out


def test_a_run_cut_off_at_any_line_resumes_to_the_same_tokens(trace, tmp_path, run):
    whole = trace.read_bytes().splitlines(keepends=True)
    expected = list(TraceReader(trace))
    tokens = [token for record in expected if type(record.event).__name__ == "Committed" for token in record.event.tokens]
    for cut in range(2, len(whole) - 1, 7):
        path = tmp_path / f"cut{cut}.jsonl"
        path.write_bytes(b"".join(whole[:cut]) + whole[cut][:-5])
        code, out, _ = run("resume", path, "--backend", "scripted", "--json")
        assert code == 0
        shown = json.loads(out)
        assert (shown["tokens"], shown["finish_reason"]) == (tokens, "length")
        assert run("check", path)[0] == 0, "one session, two segments, a torn tail: the laws hold"
        assert run("replay", path)[0] == 0


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    for command in ("generate", "check", "dump", "stats", "replay", "diff", "resume", "backends"):
        assert command in out


@pytest.mark.parametrize("words", [["dump", "x", "--events", "9-3"], ["dump", "x", "--at", "-1"], ["diff", "a", "b", "--bound", "nan"]])
def test_bad_arguments_are_one_line(words, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(words)
    assert exit_.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


# -- several runs in one file ---------------------------------------------------------------------------------------------


@pytest.fixture
def twice(trace):
    """A second run has appended to the file: it holds two sessions 0."""
    arguments = ["generate", "bye", "--backend", "scripted", "--max-tokens", "12", "--trace", str(trace), "--json"]
    assert main(arguments) == 0
    return trace


def test_a_session_id_of_two_runs_is_asked_for_by_its_segment(twice, run):
    code, out, err = run("dump", twice, "--at", "3", "--session", "0", "--json")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "(session 0 of segment 0, session 0 of segment 1)" in err
    assert "--segment" in err
    prompts = []
    for segment in (0, 1):
        code, out, _ = run("dump", twice, "--at", "0", "--segment", segment, "--json")
        assert code == 0
        prompts.append(bytes(json.loads(out)["canonical"]))
    assert prompts == [b"hello", b"bye"]
    for command in ("diff", "resume"):
        code, _, err = run(command, twice, *([twice] if command == "diff" else []))
        assert code == 2
        assert "--segment" in err


def test_every_command_on_sessions_takes_the_segment(twice, run):
    first, second = (json.loads(run("replay", twice, "--segment", at, "--json")[1]) for at in (0, 1))
    assert [(one["session"], one["segment"], one["outcome"]) for one in (*first, *second)] == [(0, 0, "equal"), (0, 1, "equal")]
    code, out, _ = run("replay", twice, "--segment", "1", "--backend", "scripted")
    assert (code, out.count("\n")) == (0, 1)
    assert "session 0 of segment 1: 12 tokens came out equal" in out
    code, out, _ = run("dump", twice, "--segment", "1", "--json")
    assert [json.loads(line)["seq"] for line in out.splitlines()] == list(range(len(out.splitlines())))
    code, out, _ = run("diff", twice, twice, "--segment", "0", "--segment-b", "1")
    assert "which were given" in out
    assert f"spanfold dump {twice} --segment 1 --events" in out
    for command in (["replay"], ["replay", "--backend", "scripted"], ["dump"], ["dump", "--at", "3"], ["resume"]):
        code, _, err = run(command[0], twice, *command[1:], "--segment", "7")
        assert (code, err.count("\n")) == (2, 1)


def test_only_the_newest_session_of_an_id_is_gone_on_with(twice, run):
    before = twice.read_bytes()
    code, _, err = run("resume", twice, "--segment", "0", "--backend", "scripted")
    assert code == 2
    assert "segment 1" in err
    assert twice.read_bytes() == before


# -- resume ----------------------------------------------------------------------------------------------------------------


def test_a_finished_session_is_left_as_it_is(trace, run):
    before = trace.read_bytes()
    code, out, err = run("resume", trace, "--backend", "scripted")
    assert (code, err) == (0, "")
    assert out.endswith("session 0 has finished (length, max_tokens) with 40 tokens; nothing was appended\n")
    code, out, _ = run("resume", trace, "--backend", "scripted", "--json")
    shown = json.loads(out)
    assert (code, shown["resumed_after"], shown["text"], shown["finish_reason"]) == (0, 40, None, "length")
    assert trace.read_bytes() == before


def test_the_account_of_a_resumption_is_of_the_time_after_it(trace, tmp_path, run):
    """The recorded costs are made huge: none of them may be counted as spent now."""
    records = list(TraceReader(trace))
    header = trace.read_bytes().splitlines(keepends=True)[0]
    at = next(at for at, record in enumerate(records) if type(record.event).__name__ == "Committed" and at > 12)
    content = b"".join(encode_record(record) for record in records[: at + 1])
    slow = re.sub(rb'"cost_ns":"?\d+"?', lambda found: re.sub(rb"\d+", b"3600000000000", found[0]), content)
    assert slow != content
    path = tmp_path / "slow.jsonl"
    path.write_bytes(header + slow)
    decoded = 40 - sum(len(record.event.tokens) for record in records[: at + 1] if type(record.event).__name__ == "Committed")
    code, out, _ = run("resume", path, "--backend", "scripted")
    account = out.rsplit("\n\n", 1)[1].splitlines()
    assert code == 0
    assert account[0].startswith(f"{decoded} tokens in ")
    assert account[1].startswith("the whole session: 40 tokens from ")
    assert "3600" not in account[-1]
    assert sum(int(share) for share in re.findall(r"\((\d+)%\)", account[-1])) <= 105


# -- redacted ----------------------------------------------------------------------------------------------------------------


def test_no_model_decodes_from_a_redacted_trace(tmp_path, run):
    path = tmp_path / "redacted.jsonl"
    assert run("generate", "hello", "--backend", "scripted", "--max-tokens", "9", "--trace", path, "--redact")[0] == 0
    reader = TraceReader(path)
    assert tuple(next(iter(reader)).event.prompt) != tuple(b"hello")
    assert reader.segments[0].header.redacted
    before = path.read_bytes()
    for arguments in (["resume", path], ["resume", path, "--json"], ["replay", path, "--backend", "scripted"]):
        code, out, err = run(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "is redacted: its token ids stand for others" in err
    assert path.read_bytes() == before
    for arguments in (["check", path], ["replay", path], ["stats", path], ["diff", path, path], ["dump", path]):
        assert run(*arguments)[0] == 0


# -- nothing recorded --------------------------------------------------------------------------------------------------------


def test_a_trace_without_a_record_holds_and_is_equal(trace, tmp_path, run):
    whole = tmp_path / "empty.jsonl.gz"
    with TraceWriter(whole):
        pass
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole.read_bytes()[:-20])
    plain = tmp_path / "plain.jsonl"
    plain.write_bytes(trace.read_bytes().splitlines(keepends=True)[0])
    for path in (whole, cut, plain):
        code, out, _ = run("check", path)
        assert (code, out.splitlines()[0]) == (0, f"{path}: holds, 0 records, 0 sessions")
        for live in ([], ["--backend", "scripted"]):
            code, out, _ = run("replay", path, *live)
            assert (code, out) == (0, f"{path}: no session: the trace holds no record\n")
            assert run("replay", path, *live, "--session", "0")[0] == 2


@pytest.mark.parametrize("option", [["--device", "cpu"], ["--dtype", "float32"], ["--bound", "0.1"]])
def test_an_option_of_a_live_model_needs_one(option, trace, run):
    code, out, err = run("replay", trace, *option)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"leave out {option[0]}" in err


def test_fail_fast_ends_a_rerun_at_the_first_session_that_differs(trace, serial, tmp_path, run):
    records = list(TraceReader(serial))
    header = serial.read_bytes().splitlines(keepends=True)[0]
    changed = b"".join(encode_record(record) for record in records).replace(b'"tokens":[68]', b'"tokens":[69]', 1)
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_bytes(header + changed.replace(b'"prediction":68', b'"prediction":69', 1))
    code, out, _ = run("replay", wrong, trace, "--backend", "scripted", "--json")
    assert (code, len(json.loads(out))) == (1, 2)
    code, out, _ = run("replay", wrong, trace, "--backend", "scripted", "--fail-fast", "--json")
    assert (code, len(json.loads(out))) == (1, 1)
