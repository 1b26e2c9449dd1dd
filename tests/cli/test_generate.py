"""`spanfold generate` and `spanfold backends`, in this process, on the toy model and on scripted ones."""

from __future__ import annotations

import io
import json
import os
import signal
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from spanfold.backends.scripted import Fault, ScriptedRuntime, noisy
from spanfold.backends.scripted.toy import END, RECITED, ByteText, RecitingTarget, encode
from spanfold.engine import registry
from spanfold.engine.cli import main
from spanfold.engine.registry import Backend, Opened, OpenOptions
from spanfold.engine.trace import TraceReader

STATS = {
    "prompt_tokens", "tokens", "forwards", "serial_steps", "spans", "drafted", "verified", "accepted", "accepted_serial", "rejected",
    "discarded", "pending", "saved_forwards", "saved_net", "replay_forwards", "acceptance_rate", "acceptance_length",
    "accepted_per_depth", "verified_per_depth", "tokens_per_second",
}  # fmt: skip


class Cli:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch
        self.out = self.err = ""

    def __call__(self, *args: str) -> int:
        self._capsys.readouterr()
        try:
            code = main(args)
        except SystemExit as done:
            code = done.code if isinstance(done.code, int) else 1
        self.out, self.err = self._capsys.readouterr()
        return code

    def json(self, *args: str, code: int = 0) -> dict[str, Any]:
        assert self("generate", "hi", "--backend", "scripted", "--json", *args) == code, self.err
        return json.loads(self.out)

    def refused(self, *args: str) -> str:
        """The one line that an error prints."""
        assert self(*args) == 2
        assert self.out == "" and self.err.count("\n") == 1 and "Traceback" not in self.err
        return self.err

    def install(self, runtime: Callable[[OpenOptions], ScriptedRuntime], name: str = "scripted") -> None:
        """Let ``--backend NAME`` open another runtime."""

        def opening(options: OpenOptions) -> Opened:
            return Opened(runtime=runtime(options), text=ByteText(), encode=encode)

        known = {name: Backend(name=name, summary="for a test", open=opening)}
        self._monkeypatch.setattr("spanfold.engine.registry.backends", lambda: known)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capsys, monkeypatch)


# -- text and account ----------------------------------------------------------------------------------------------------


def test_text_is_streamed_and_followed_by_an_account(cli: Cli):
    assert cli("generate", "hi", "--backend", "scripted") == 0
    text, account = cli.out.split("\n\n")
    assert text + "\n" == RECITED
    lines = account.splitlines()
    assert "tokens/s (finished: stop_token)" in lines[0]
    assert "target forwards" in lines[1] and "net forwards saved" in lines[1]
    assert "acceptance rate " in lines[2] and "acceptance length" in lines[2]
    assert all(part in lines[3] for part in ("prefill", "verify", "head", "engine"))
    assert cli.err == ""


@pytest.mark.parametrize("width", range(6))
def test_case_2_14_streamed_text_is_the_same_for_every_width(cli: Cli, width: int):
    """The recited text holds characters of two, three and four bytes, which lie over span borders in every way."""
    assert cli("generate", "hi", "--backend", "scripted", "--max-draft", str(width)) == 0
    assert cli.out.startswith(RECITED)


def test_each_piece_of_text_is_written_when_its_token_is_delivered(monkeypatch: pytest.MonkeyPatch):
    writes: list[str] = []

    class Out(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return super().write(text)

    monkeypatch.setattr("sys.stdout", Out())
    assert main(["generate", "hi", "--backend", "scripted", "--max-tokens", "30"]) == 0
    assert writes[:30] == list(RECITED[:30])


def test_json_is_one_object_with_the_documented_keys(cli: Cli):
    got = cli.json("--max-draft", "3")
    assert got.keys() == {"tokens", "text", "finish_reason", "limit", "stats", "rounds"}
    assert got["rounds"].keys() == {"widths", "width_changes", "probes", "refusals"}
    assert got["stats"].keys() == STATS
    assert got["text"] == RECITED and got["tokens"][-1] == END and bytes(got["tokens"][:-1]).decode() == RECITED
    assert (got["finish_reason"], got["limit"]) == ("stop_token", None)
    stats = got["stats"]
    assert stats["tokens"] == len(got["tokens"]) == stats["forwards"] + stats["saved_forwards"]
    assert 0 < stats["acceptance_rate"] < 1 and stats["tokens_per_second"] > 0
    spent = stats["accepted"] + stats["accepted_serial"] + stats["rejected"] + sum(stats["discarded"].values()) + stats["pending"]
    assert stats["drafted"] == spent


def test_case_3_6_rates_are_null_before_anything_was_verified(cli: Cli):
    for args in (["--no-speculation"], ["--max-tokens", "1"], ["--max-draft", "0"]):
        stats = cli.json(*args)["stats"]
        assert stats["acceptance_rate"] is None and stats["acceptance_length"] is None and stats["spans"] == 0
    assert cli.json("--max-tokens", "0")["stats"]["tokens_per_second"] is None


def test_case_2_9_max_tokens_counts_output_alone(cli: Cli):
    for count in range(7):
        got = cli.json("--max-tokens", str(count))
        assert len(got["tokens"]) == count and (got["finish_reason"], got["limit"]) == ("length", "max_tokens")


def test_every_way_to_draft_gives_the_same_tokens(cli: Cli):
    plain = cli.json("--no-speculation")
    assert plain["stats"]["forwards"] == len(plain["tokens"])
    for args in ([], ["--max-draft", "auto"], ["--max-draft", "1"], ["--max-draft", "8"], ["--prompt-lookup"]):
        assert cli.json(*args)["tokens"] == plain["tokens"]


def test_prompt_lookup_drafts_from_the_text_itself(cli: Cli):
    cli.install(lambda options: ScriptedRuntime(RecitingTarget(b"tick tock " * 20), stop_tokens=(END,), head=False))
    got = cli.json("--prompt-lookup", "--max-tokens", "100", "--max-draft", "8")
    assert got["stats"]["accepted"] > 20
    assert got["text"] == ("tick tock " * 20)[:100]


def test_the_head_is_not_loaded_when_it_is_not_used(cli: Cli):
    seen: list[OpenOptions] = []

    def runtime(options: OpenOptions) -> ScriptedRuntime:
        seen.append(options)
        return ScriptedRuntime(RecitingTarget(b"abc"), stop_tokens=(END,))

    cli.install(runtime)
    for args in ([], ["--no-speculation"], ["--prompt-lookup"], ["--max-draft", "0"]):
        cli.json(*args, "--device", "d", "--dtype", "t", "--model", "m")
    assert [one.drafting for one in seen] == [True, False, False, False]
    assert {(one.device, one.dtype, one.model) for one in seen} == {("d", "t", "m")}


def test_the_prompt_can_be_piped_in(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("né\n".encode())))
    assert cli("generate", "--backend", "scripted", "--json", "--max-tokens", "2") == 0
    assert json.loads(cli.out)["stats"]["prompt_tokens"] == 3


# -- events and traces ----------------------------------------------------------------------------------------------------


def test_events_are_printed_as_they_happen_and_the_text_follows(cli: Cli):
    assert cli("generate", "hi", "--backend", "scripted", "--events", "--max-tokens", "9", "--max-draft", "3") == 0
    events, text = cli.out.split("\n\n")[:2]
    names = [line.split()[1] for line in events.splitlines()]
    assert names[:4] == ["SessionOpened", "Prefilled", "Committed", "DraftOffered"] and names[-1] == "SessionDropped"
    assert [int(line.split()[0]) for line in events.splitlines()] == list(range(len(names)))
    assert text == RECITED[:9]


def test_with_json_events_go_to_standard_error(cli: Cli):
    cli.json("--events", "--max-tokens", "3")
    assert "SessionFinished" in cli.err


def test_the_trace_holds_header_records_and_footer(cli: Cli, tmp_path: Path):
    path = tmp_path / "a.jsonl"
    got = cli.json("--trace", str(path))
    reader = TraceReader(path)
    records = list(reader)
    assert [(segment.records, segment.closed, segment.torn) for segment in reader.segments] == [(len(records), True, None)]
    committed = [token for record in records if type(record.event).__name__ == "Committed" for token in record.event.tokens]
    assert committed == got["tokens"]
    assert [record.seq for record in records] == list(range(len(records)))


def test_a_comparison_leaves_no_trace_of_its_other_runs(cli: Cli, tmp_path: Path):
    cli.json("--trace", str(tmp_path / "a.jsonl"), "--compare", "--max-tokens", "20")
    assert sum(record.seq == 0 for record in TraceReader(tmp_path / "a.jsonl")) == 1


# -- compare --------------------------------------------------------------------------------------------------------------


def test_compare_states_both_speeds_and_that_the_tokens_are_identical(cli: Cli):
    got = cli.json("--compare")["compare"]
    assert got.keys() == {"identical", "first_difference", "serial_tokens_per_second", "speedup"}
    assert got["identical"] is True and got["first_difference"] is None
    assert got["serial_tokens_per_second"] > 0 and got["speedup"] > 0
    assert cli("generate", "hi", "--backend", "scripted", "--compare") == 0
    assert "compared: tokens identical" in cli.out and "speed-up" in cli.out
    assert "run 4 of 4" in cli.err


class Fickle(RecitingTarget):
    """Not a function of the prefix: it says something else once the fourth session reaches the tenth token."""

    sessions = 0

    def start(self) -> int:
        Fickle.sessions += 1
        return super().start()

    def choose(self, state: int, masked: Collection[int]) -> int:
        return 33 if state == 10 and Fickle.sessions >= 4 else super().choose(state, masked)


def test_cases_1_12_and_4_1_a_comparison_that_finds_other_tokens_states_no_rate_and_no_speed_up(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    def runtime(options: OpenOptions) -> ScriptedRuntime:
        monkeypatch.setattr(Fickle, "sessions", 0)
        return ScriptedRuntime(Fickle(RECITED.encode()), drafts=noisy(1, 0.9), stop_tokens=(END,))

    cli.install(runtime)
    got = cli.json("--compare", "--max-tokens", "30", code=1)
    assert got["compare"]["identical"] is False and got["compare"]["first_difference"] == 10
    assert got["compare"]["speedup"] is None and got["stats"]["acceptance_rate"] is None and got["stats"]["acceptance_length"] is None
    assert cli("generate", "hi", "--backend", "scripted", "--compare", "--max-tokens", "30") == 1
    assert "tokens DIFFER, first difference at output token 10, where the two best tokens are 1 apart" in cli.out
    assert "acceptance" not in cli.out and "speed-up 1" not in cli.out and "with speculation," not in cli.out


# -- interrupts and failures ----------------------------------------------------------------------------------------------


class Interrupting(RecitingTarget):
    """Recites for ever; the user presses Ctrl-C while the 40th row is computed."""

    def choose(self, state: int, masked: Collection[int]) -> int:
        if state == 40:
            os.kill(os.getpid(), signal.SIGINT)
        return self.data[state % len(self.data)]

    def advance(self, state: int, token: int) -> int:
        return state + 1


def interrupting(options: OpenOptions) -> ScriptedRuntime:
    return ScriptedRuntime(Interrupting(b"round and round "), drafts=noisy(1, 0.9), stop_tokens=(END,))


def test_ctrl_c_ends_the_turn_as_cancelled_and_the_account_is_still_printed(cli: Cli, tmp_path: Path):
    cli.install(interrupting)
    before = signal.getsignal(signal.SIGINT)
    got = cli.json("--trace", str(tmp_path / "a.jsonl"), code=130)
    assert got["finish_reason"] == "cancelled" and 30 < len(got["tokens"]) < 60
    assert signal.getsignal(signal.SIGINT) is before
    reader = TraceReader(tmp_path / "a.jsonl")
    assert [type(record.event).__name__ for record in reader][-2:] == ["SessionFinished", "SessionDropped"]
    assert reader.segments[0].closed
    assert cli("generate", "hi", "--backend", "scripted") == 130
    assert cli.out.startswith("round and round") or "round and round" in cli.out
    assert "(finished: cancelled)" in cli.out


def test_ctrl_c_while_comparing_gives_no_comparison(cli: Cli):
    cli.install(interrupting)
    assert "compare" not in cli.json("--compare", code=130)


def test_a_runtime_that_fails_is_one_line_and_what_was_decoded_is_shown(cli: Cli):
    def runtime(options: OpenOptions) -> ScriptedRuntime:
        return ScriptedRuntime(RecitingTarget(RECITED.encode()), stop_tokens=(END,), faults=[Fault(call="forward", at=5, started=True)])

    cli.install(runtime)
    assert cli("generate", "hi", "--backend", "scripted") == 2
    assert cli.out.startswith(RECITED[:10]) and "(finished: failed)" in cli.out
    assert cli.err.count("\n") == 1 and "failed" in cli.err
    got = cli.json(code=2)
    assert got["finish_reason"] == "failed" and bytes(got["tokens"]).decode() == RECITED[: len(got["tokens"])]


def test_a_runtime_is_closed_whatever_happens(cli: Cli):
    made: list[ScriptedRuntime] = []

    def runtime(options: OpenOptions) -> ScriptedRuntime:
        made.append(ScriptedRuntime(RecitingTarget(b"abc"), stop_tokens=(END,)))
        return made[-1]

    cli.install(runtime)
    cli.json()
    assert cli("generate", "", "--backend", "scripted") == 2
    for one in made:
        with pytest.raises(Exception, match="closed"):
            one.view(0)


# -- errors in one line ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["generate", "hi", "--backend", "onyx"], "there is no backend 'onyx'; installed: "),
        (["generate", "hi", "--backend", "scripted", "--model", "x"], "one model, 'toy'"),
        (["generate", "hi", "--backend", "scripted", "--device", "cuda"], "leave out --device"),
        (["generate", "hi", "--backend", "scripted", "--dtype", "bfloat16"], "leave out --dtype"),
        (["generate", "hi", "--backend", "scripted", "--chat"], "leave out --chat"),
        (["generate", "", "--backend", "scripted"], "the prompt is empty"),
        (["generate", "\udcff", "--backend", "scripted"], "not valid UTF-8"),
        (["generate", "hi", "--backend", "scripted", "--no-speculation", "--prompt-lookup"], "leave out one"),
        (["generate", "hi", "--backend", "scripted", "--no-speculation", "--max-draft", "3"], "leave out one"),
        (["generate", "hi", "--backend", "scripted", "--redact"], "leave out --redact"),
        (["generate", "hi", "--max-tokens", "-1"], "--max-tokens: must be an integer of at least 0, not '-1' (see"),
        (["generate", "hi", "--max-draft", "Auto"], "--max-draft: must be auto or an integer of at least 0, not 'Auto'"),
        (["generate", "hi", "--max-tokens", "many"], "must be an integer of at least 0, not 'many'"),
        (["generate", "hi", "--backend", "scripted", "--max-draft", "2000"], "Policy.width must be an integer from 0 to 1024"),
        (["generate", "hi", "--fast"], "unrecognized arguments: --fast (see spanfold"),
        (["decode"], "invalid choice: 'decode'"),
        ([], "COMMAND"),
    ],
)
def test_errors_are_one_line_with_a_hint_and_exit_code_2(cli: Cli, args: list[str], hint: str):
    assert hint in cli.refused(*args)


def test_a_trace_that_cannot_be_written_is_refused_before_a_model_is_opened(cli: Cli, tmp_path: Path):
    opened: list[OpenOptions] = []

    def runtime(options: OpenOptions) -> ScriptedRuntime:
        opened.append(options)
        return ScriptedRuntime(RecitingTarget(b"abc"))

    cli.install(runtime)
    missing = tmp_path / "no" / "a.jsonl"
    assert f"{missing}: No such file or directory" in cli.refused("generate", "hi", "--backend", "scripted", "--trace", str(missing))
    assert opened == []


def test_an_unexpected_error_is_one_line_that_says_how_to_see_more(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    def runtime(options: OpenOptions) -> ScriptedRuntime:
        raise RuntimeError("two\nlines")

    cli.install(runtime)
    assert "RuntimeError: two lines (SPANFOLD_TRACEBACK=1 shows where)" in cli.refused("generate", "hi", "--backend", "scripted")
    monkeypatch.setenv("SPANFOLD_TRACEBACK", "1")
    assert cli("generate", "hi", "--backend", "scripted") == 2
    assert "Traceback" in cli.err


def test_a_closed_standard_output_is_one_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdout", None)
    assert main(["generate", "hi", "--backend", "scripted"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "standard output is closed" in err
    monkeypatch.setattr("sys.stderr", None)
    assert main(["generate", "hi", "--backend", "scripted"]) == 2


def test_a_closed_standard_error_takes_nothing_away(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stderr", None)
    assert cli("generate", "hi", "--backend", "scripted", "--max-tokens", "4") == 0
    assert cli.out.startswith(RECITED[:4])


# -- backends ---------------------------------------------------------------------------------------------------------------


def test_backends_lists_what_is_installed_and_what_an_extra_would_add(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    assert cli("backends") == 0
    assert "scripted   installed" in cli.out and "torch" in cli.out
    lacking = Backend(name="far", summary="away", extra="moon", needs=("no_such_module_here",), open=lambda options: pytest.fail("opened"))
    monkeypatch.setattr("spanfold.engine.registry.backends", lambda: {"far": lacking})
    assert cli("backends") == 0
    assert "far        needs no_such_module_here: pip install 'spanfold[moon]'" in cli.out
    assert cli("backends", "--json") == 0
    assert json.loads(cli.out)[0] | {"name": "far", "installed": False, "install": "pip install 'spanfold[moon]'"} == json.loads(cli.out)[0]


def test_a_backend_whose_extra_is_missing_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch):
    lacking = Backend(name="far", summary="away", extra="moon", needs=("no_such_module_here",), open=lambda options: pytest.fail("opened"))
    monkeypatch.setattr("spanfold.engine.registry.backends", lambda: {"far": lacking, **real})
    assert "needs no_such_module_here: pip install 'spanfold[moon]'" in cli.refused("generate", "hi", "--backend", "far")
    assert "far with pip install 'spanfold[moon]'" in cli.refused("generate", "hi", "--backend", "fra")


real = registry.backends()


def test_version_and_help(cli: Cli):
    assert cli("--version") == 0 and cli.out.startswith("spanfold 0.")
    assert cli("generate", "--help") == 0
    for flag in [
        "--model",
        "--backend",
        "--max-tokens",
        "--max-draft",
        "--no-speculation",
        "--prompt-lookup",
        "--device",
        "--dtype",
        "--chat",
        "--no-chat",
        "--trace",
        "--events",
        "--compare",
        "--json",
    ]:
        assert flag in cli.out


def test_the_text_is_ended_before_the_progress_of_a_comparison_is_shown(monkeypatch: pytest.MonkeyPatch):
    """On a terminal the progress line would be written over the last line of the text."""
    both = io.StringIO()
    monkeypatch.setattr("sys.stdout", both)
    monkeypatch.setattr("sys.stderr", both)
    assert main(["generate", "hi", "--backend", "scripted", "--compare", "--max-tokens", "12"]) == 0
    assert RECITED[:12] + "\n\ncomparing: run 2 of 4" in both.getvalue()
