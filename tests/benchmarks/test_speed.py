"""The benchmark's arithmetic, what it refuses to state, and that the command runs from end to end (without any time asserted)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from speedbench.environments import PEERS, PeerError, Worker, make_environment, python_of
from speedbench.figures import (
    RoundCost,
    Run,
    acceptance_by_depth,
    distinct_share,
    first_difference,
    predicted,
    ratio,
    round_cost,
    step_cost,
)
from speedbench.page import page
from speedbench.plan import Plan, PlanError, read_prompts
from speedbench.report import Engine, Report, from_json, load, to_json
from speedbench.store import Store
from speedbench.summary import summarise, verdict
from speedbench.table import aligned, markdown, text
from speedbench.targets import targets

ROOT = Path(__file__).parents[2]
RECORDED = ROOT / "benchmarks" / "results" / "speed.json"
LONG = tuple(range(40))
MS = 1_000_000


# -- shares and differences ---------------------------------------------------------------------------------------------


def test_the_share_of_distinct_8_grams():
    assert distinct_share(LONG) == 1.0
    assert distinct_share([7] * 40) == 1 / 33
    assert distinct_share([1, 2] * 20) == 2 / 33
    assert distinct_share([7] * 7) == 1.0  # shorter than one 8-gram: nothing repeats
    assert distinct_share([7] * 9) == 0.5


def test_the_first_difference_is_an_index_or_the_shorter_length():
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


@pytest.mark.parametrize(
    ("where", "margin", "bound", "word"),
    [
        (None, None, 1e-3, "same"),
        (3, 1e-4, 1e-3, "tie"),
        (3, 1e-3, 1e-3, "differs"),
        (3, None, 1e-3, "differs"),
        (3, 0.0, 0.0, "differs"),
    ],
)
def test_a_difference_is_forgiven_only_below_the_bound_on_the_margin(where: int | None, margin: float | None, bound: float, word: str):
    """The last row: where rows are independent of each other (bound 0) not even an exact tie excuses another token."""
    assert verdict(where, margin, bound) == word


# -- speed-up -----------------------------------------------------------------------------------------------------------


def run(ms: float, prompt: int = 0, tokens: tuple[int, ...] = LONG, word: str = "same", turn: int = 0) -> Run:
    return Run(prompt=prompt, turn=turn, tokens=tokens, first=1, rest_ns=int(ms * MS * (len(tokens) - 1)), verdict=word)


def test_time_per_token_leaves_the_first_delivery_out():
    assert run(2.0).ms_per_token == 2.0
    assert Run(prompt=0, turn=0, tokens=(1, 2), first=2, rest_ns=5, verdict="same").ms_per_token is None


def test_a_ratio_is_the_median_of_pairs_of_one_prompt_and_turn():
    slow = [run(2.0, 0), run(8.0, 1), run(3.0, 2), run(6.0, 0, turn=1)]
    fast = [run(1.0, 0), run(2.0, 1), run(1.0, 2), run(9.0, 7)]
    assert ratio(slow, fast, frozenset({"same"})) == (3.0, 3)


def test_case_1_12_runs_with_other_tokens_have_no_ratio():
    allowed = frozenset({"same"})
    slow = [run(2.0, 0), run(2.0, 1)]
    assert ratio(slow, [run(1.0, 0, word="tie"), run(1.0, 1, word="differs")], allowed) == (None, 0)
    assert ratio(slow, [run(1.0, 0, word="tie"), run(0.5, 1)], allowed) == (4.0, 1)
    assert ratio(slow, [run(1.0, 0, word="tie")], frozenset({"same", "tie"})) == (2.0, 1)


def test_a_dull_output_has_no_ratio():
    dull = (7,) * 40
    assert ratio([run(2.0, tokens=dull)], [run(1.0, tokens=dull)], frozenset({"same"})) == (None, 0)


def test_the_predicted_speed_up_is_tokens_per_span_over_the_relative_cost_of_a_round():
    serial = RoundCost(draft=0, verify=19.95, settle=0, engine=0.05)
    span = RoundCost(draft=4, verify=25.9, settle=0.05, engine=0.05)
    assert predicted(1.8, span, serial) == pytest.approx(1.8 * 20 / 30)
    assert predicted(1.0, serial, serial) == 1.0


def costly(prompt: int, *, k: int, rounds: int, step_ms: float, tokens: tuple[int, ...] = LONG) -> dict[str, Any]:
    """A reply of the worker: ``rounds`` rounds with drafts of k tokens, each round 1 ms of head per token and 0.5 ms of engine."""
    costs: dict[str, Any] = {"serial": [], "verify": {}, "draft": {}, "settle": []}
    if k == 0:
        costs["serial"] = [int(step_ms * MS)] * rounds
    else:
        costs["verify"][str(k + 1)] = [int(step_ms * MS)] * rounds
        costs["draft"][str(k)] = [k * MS] * rounds
        costs["settle"] = [MS // 4] * rounds
    each = step_ms + (k + 0.25 if k else 0) + 0.5
    spans = rounds if k else 0
    return {
        "tokens": list(tokens),
        "first": 1,
        "first_ns": 5,
        "rest_ns": int(each * MS * rounds),
        "policy": "fixed",
        "width": k,
        "costs": costs,
        "stats": {
            "spans": spans,
            "span_tokens": len(tokens) - 1 if k else 0,
            "accepted_per_depth": [spans // 2] * k,
            "verified_per_depth": [spans] * k,
        },
    }


def test_the_parts_of_a_round_come_from_the_recorded_costs():
    reply = costly(0, k=2, rounds=20, step_ms=12.0)
    one = Run(prompt=0, turn=0, tokens=LONG, first=1, rest_ns=reply["rest_ns"], verdict="same", raw=reply)
    assert round_cost([one], 2) == RoundCost(draft=2.0, verify=12.0, settle=0.25, engine=0.5)
    assert round_cost([one], 3) is None
    assert acceptance_by_depth([one]) == [0.5, 0.5]
    assert step_cost({1: 1.5, 2: 2.5, 3: 3.5}) == pytest.approx((1.0, 0.5))
    assert step_cost({1: 1.5}) is None


# -- a whole summary ----------------------------------------------------------------------------------------------------


def plan(**changes: Any) -> Plan:
    values: dict[str, Any] = {
        "model": "a model",
        "kind": "demo",
        "folder": "folder",
        "weights": "0",
        "dtype": "float32",
        "threads": 1,
        "prompts_file": "prompts.json",
        "prompts_sha256": "0" * 64,
        "prompts": ("a", "b"),
        "tuning": ("c",),
        "max_tokens": 40,
        "turns": 1,
        "minutes": 1.0,
        "row_rounds": 1,
        "row_repeats": 1,
        "past": 8,
        "peers": ("transformers", "onnxruntime"),
        "peer_prompts": 2,
    }
    return Plan(**(values | changes))


def measured(store: Store, spans: dict[int, tuple[int, ...]]) -> None:
    """Serial steps of 10 ms and, of the same two prompts, spans of two rows in 12 ms with the given outputs."""
    store.put(
        {"groups": {"serial": [{"label": "serial"}], "k=1": [{"label": "k=1"}]}, "row_exact": False, "versions": {}}, "hello", "spanfold"
    )
    store.put(
        {"groups": {"generate": [{"label": "plain"}]}, "versions": {"transformers": "5"}, "notes": ["a note"]}, "hello", "transformers"
    )
    store.put({"error": "its environment is not there"}, "hello", "onnxruntime")
    for prompt in (0, 1):
        serial = costly(prompt, k=0, rounds=39, step_ms=10.0)
        store.put(serial, "decode", 0, prompt, "spanfold", "serial")
        store.put(costly(prompt, k=1, rounds=20, step_ms=12.0, tokens=spans[prompt]), "decode", 0, prompt, "spanfold", "k=1")
        store.put(serial | {"rest_ns": serial["rest_ns"] * 3}, "decode", 0, prompt, "transformers", "generate")
    store.put({"1": [3 * MS]}, "rows", 0, "spanfold")


def test_a_summary_states_both_speed_ups_where_tokens_are_equal(tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    measured(store, {0: LONG, 1: LONG})
    result = summarise(plan(), store)
    serial, k1 = result.settings
    assert serial.measured == serial.predicted == 1.0
    assert k1.ms_per_token == pytest.approx(20 * 13.75 / 39, rel=1e-6)
    assert k1.tokens_per_span == 39 / 20
    assert k1.predicted == pytest.approx(39 / 20 * 10.5 / 13.75)
    assert k1.measured == pytest.approx(k1.predicted)
    assert (k1.pairs, k1.ties, k1.differs, k1.dull) == (2, 0, 0, 0)
    plain, ort = result.peers
    assert plain.versus["serial"] == pytest.approx(3.0) and plain.versus["k=1"] == pytest.approx(3.0 * (k1.measured or 0))
    assert ort.unavailable == "its environment is not there" and result.row_ratio is None


def test_case_1_12_a_defect_in_one_run_takes_the_speed_up_from_the_setting(tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    other = (*LONG[:20], 99, *LONG[21:])
    measured(store, {0: LONG, 1: other})
    store.put({"margin": 0.5}, "margin", 1, 20)
    result = summarise(plan(), store)
    k1 = result.settings[1]
    assert (k1.measured, k1.differs, k1.ties) == (None, 1, 0)
    shown = text(report(result))
    row = next(line for line in shown.splitlines() if line.startswith("k=1 "))
    assert "tokens differ" in row and f"{1.49:.2f}x" not in row.split("tokens differ")[1]


def test_case_1_12_a_near_tie_is_counted_and_its_prompt_left_out(tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    measured(store, {0: LONG, 1: (*LONG[:20], 99, *LONG[21:])})
    store.put({"margin": 1e-5}, "margin", 1, 20)
    k1 = summarise(plan(), store).settings[1]
    assert (k1.pairs, k1.ties, k1.differs) == (1, 1, 0) and k1.measured is not None


def test_dull_outputs_are_counted_and_left_out_of_acceptance(tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    measured(store, {0: LONG, 1: LONG})
    dull = (7,) * 40
    for way, k in (("serial", 0), ("k=1", 1)):
        store.put(costly(1, k=k, rounds=4, step_ms=1.0, tokens=dull), "decode", 0, 1, "spanfold", way)
    result = summarise(plan(), store)
    k1 = result.settings[1]
    assert (k1.runs, k1.pairs, k1.dull, k1.tokens_per_span) == (2, 1, 1, 39 / 20)
    assert result.shares == (1.0, 1 / 33)
    assert "1 below 0.5, left out" in text(report(result))


def test_a_busy_machine_is_noted(tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    measured(store, {0: LONG, 1: LONG})
    store.put({"load": 0.1}, "load")
    assert "load average of the machine before the run: 0.1" in summarise(plan(), store).notes
    store.put({"load": 2.0}, "load")
    assert any("2.0; something else was running" in note for note in summarise(plan(), store).notes)


# -- report -------------------------------------------------------------------------------------------------------------


def report(*results: Any, engine: Engine | None = None) -> Report:
    return Report(
        command="python benchmarks/speed.py",
        date="2026-12-02 00:00 UTC",
        quick=True,
        cpu="a cpu",
        cores=2,
        system="Linux",
        spanfold="abc",
        versions={"python": "3"},
        results=results,
        engine=engine,
        targets=targets(results, engine),
    )


def test_a_report_is_the_same_after_json_and_a_wrong_one_is_refused(tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    measured(store, {0: LONG, 1: LONG})
    whole = report(summarise(plan(), store), engine=Engine(overhead_us_per_round=48.0, growth=1.0))
    written = to_json(whole)
    assert from_json(written) == whole
    for spoil in (
        {"schema": 2},
        {"surprise": 1},
        {"cores": "two"},
        {"engine": {"overhead_us_per_round": "48", "growth": 1.0}},
    ):
        with pytest.raises(ValueError):
            from_json(json.dumps(json.loads(written) | spoil))
    missing = json.loads(written)
    del missing["results"][0]["shares"]
    with pytest.raises(ValueError, match="shares"):
        from_json(json.dumps(missing))


def test_targets_are_reached_missed_or_not_measured_and_a_missed_one_says_where_the_time_goes(tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    measured(store, {0: LONG, 1: LONG})
    result = summarise(plan(), store)
    by_name = {one.name: one for one in targets([result], Engine(overhead_us_per_round=60.0, growth=1.0))}
    speed_up = by_name["speed-up over our serial decoding, demo model"]
    assert speed_up.reached and not speed_up.why and speed_up.value == result.settings[1].measured
    engine = by_name["engine, microseconds per round"]
    assert engine.reached is False and engine.why
    row = by_name["one row / one row in ONNX Runtime, a model, float32"]
    assert row.reached is None and "its environment is not there" in row.why
    slow = evolve(result, settings=tuple(evolve(one, measured=0.5 if one.label != "serial" else 1.0) for one in result.settings))
    missed = {one.name: one for one in targets([slow], None)}["speed-up over our serial decoding, demo model"]
    assert missed.reached is False and "verify 12.00, head 1.00, settle 0.25, engine 0.50" in missed.why
    assert {one.name: one for one in targets([slow], None)}["measured / predicted, a model, float32, k=1"].reached is False


def test_tables_align_and_escape():
    assert aligned(("a", "bb"), [["xyz", "1"]]) == "a    bb\n---  --\nxyz   1"
    assert markdown(("a", "b"), [["x|y", "1"]]) == "| a | b |\n|---|---|\n| x\\|y | 1 |"


def test_the_page_names_its_source_its_targets_and_every_setting(tmp_path: Path):
    store = Store(tmp_path / "raw.jsonl", resume=False)
    measured(store, {0: LONG, 1: LONG})
    shown = page(report(summarise(plan(), store)), "benchmarks/results/speed.json", "images/speed.svg")
    for words in (
        "--report benchmarks/results/speed.json",
        "](images/speed.svg)",
        "| k=1 |",
        "n/a, see below",
        "onnxruntime: n/a: its environment",
        "quick run",
        "not measured",
    ):
        assert words in shown


@pytest.mark.skipif(not RECORDED.exists(), reason="no run of the benchmark is recorded in benchmarks/results yet")
def test_the_page_of_results_is_that_of_the_recorded_run():
    shown = page(load(RECORDED), "benchmarks/results/speed.json", "../benchmarks/results/speed.svg")
    assert (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8") == shown


def test_the_plot_is_written_twice_and_the_same_for_the_same_figures(tmp_path: Path):
    pytest.importorskip("matplotlib", reason="the plot needs the extra [bench]")
    from speedbench.plot import draw

    store = Store(tmp_path / "raw.jsonl", resume=False)
    measured(store, {0: LONG, 1: LONG})
    whole = report(summarise(plan(), store))
    png, svg = draw(whole, tmp_path / "plot")
    assert png.read_bytes().startswith(b"\x89PNG") and "<svg" in svg.read_text(encoding="utf-8")
    assert draw(whole, tmp_path / "again")[1].read_bytes() == svg.read_bytes()


# -- running ------------------------------------------------------------------------------------------------------------


def test_a_store_goes_on_after_an_interruption_and_leaves_a_torn_line_out(tmp_path: Path):
    path = tmp_path / "runs" / "raw.jsonl"
    store = Store(path, resume=False)
    store.put({"a": 1}, "decode", 0, 1, "x", "y")
    store.put({"a": 2}, "decode", 0, 2, "x", "y")
    path.write_text(path.read_text(encoding="utf-8") + '{"key": "[\\"dec', encoding="utf-8")
    again = Store(path, resume=True)
    assert again.get("decode", 0, 1, "x", "y") == {"a": 1}
    assert again.having("decode", 0) == {("1", "x", "y"): {"a": 1}, ("2", "x", "y"): {"a": 2}}
    again.put({"a": 3}, "rows")
    assert Store(path, resume=True).get("rows") == {"a": 3}
    assert Store(path, resume=False).get("rows") is None


def test_prompts_are_a_list_alone_or_under_their_name_and_tuning_takes_others(tmp_path: Path):
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps({"prompts": ["a", "b", "c", "d"]}), encoding="utf-8")
    chosen, tuning, digest = read_prompts(file, 2)
    assert (chosen, tuning) == (("a", "b"), ("c", "d"))
    assert read_prompts(file, 3)[1] == ("d",)
    file.write_text(json.dumps(["a", "b", "c", "d"]), encoding="utf-8")
    assert read_prompts(file, 2)[2] == digest
    with pytest.raises(PlanError, match="holds 4 prompts"):
        read_prompts(file, 4)
    file.write_text("[1]", encoding="utf-8")
    with pytest.raises(PlanError, match="list of strings"):
        read_prompts(file, 1)


def test_another_plan_is_another_file_of_measurements_and_more_time_is_not():
    assert len({plan().key, plan(threads=2).key, plan(weights="1").key}) == 3
    assert plan().key == plan(minutes=9.0).key


def worker(tmp_path: Path, code: str) -> Worker:
    script = tmp_path / "peer.py"
    script.write_text(f"import sys\nsys.path.append({str(PEERS)!r})\nfrom protocol import serve\n{code}", encoding="utf-8")
    made = Worker("test", Path(sys.executable), script, {"threads": 1}, tmp_path / "log")
    made.start()
    return made


def test_a_worker_answers_in_spite_of_prints_and_tells_its_errors(tmp_path: Path):
    one = worker(
        tmp_path,
        "def start():\n    print('loading')\n    return {'twice': lambda r: {'n': 2 * r['n']}, 'fail': lambda r: 1 / 0}\nserve(start)\n",
    )
    try:
        assert one.ask("twice", n=4) == {"n": 8}
        with pytest.raises(PeerError, match="ZeroDivisionError"):
            one.ask("fail")
        assert one.ask("twice", n=1) == {"n": 2}
    finally:
        one.stop()
    with pytest.raises(PeerError, match="not running"):
        one.ask("twice", n=1)


def test_a_worker_that_cannot_load_or_dies_says_so(tmp_path: Path):
    one = worker(tmp_path, "def start():\n    raise RuntimeError('n/a here')\nserve(start)\n")
    try:
        with pytest.raises(PeerError, match="n/a here"):
            one.ask("hello")
    finally:
        one.stop()
    two = worker(tmp_path, "import os\nserve(lambda: {'hello': lambda r: os._exit(3)})\n")
    try:
        with pytest.raises(PeerError, match=r"ended \(3\)"):
            two.ask("hello")
    finally:
        two.stop()


def test_a_peer_without_its_environment_says_how_to_make_it(tmp_path: Path):
    with pytest.raises(PeerError, match="--make-environments"):
        python_of("economize", tmp_path)


def test_an_environment_that_is_complete_is_not_made_again(tmp_path: Path):
    from speedbench.environments import environment

    folder = environment("economize", tmp_path)
    folder.mkdir(parents=True)
    (folder / ".complete").touch()
    make_environment("economize", tmp_path)
    assert list(folder.iterdir()) == [folder / ".complete"]


def speed(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_the_command_runs_on_the_scripted_model_writes_json_and_prints_it_again(tmp_path: Path):
    arguments = ["--model", "scripted", "--quick", "--threads", "1", "--tokens", "24", "--out", "found", "--cache", str(tmp_path / "cache")]
    done = speed(*arguments, "--page", "page.md", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    whole = from_json((tmp_path / "found.json").read_text(encoding="utf-8"))
    (result,) = whole.results
    assert (result.prompts_done, result.row_exact, result.peers) == (3, True, ())
    assert [one.label for one in result.settings] == ["serial", "k=1", "k=2", "k=3", "k=4", "default"]
    assert all((one.ties, one.differs) == (0, 0) for one in result.settings)
    assert set(result.rows_ms) == {"1", "2", "3", "4", "5"}
    assert result.notes[0].startswith("load average of the machine before the run: ")
    assert whole.command == "python benchmarks/speed.py --model scripted --quick --threads 1 --tokens 24 --out found --page page.md"
    assert "== scripted, float32, 1 thread: 3 prompts" in done.stdout
    assert (tmp_path / "page.md").read_text(encoding="utf-8").startswith("# Benchmarks")
    again = speed("--report", "found.json", cwd=tmp_path)
    assert again.returncode == 0 and again.stdout == done.stdout
    resumed = speed(*arguments, "--resume", cwd=tmp_path)
    assert resumed.returncode == 0
    kept = from_json((tmp_path / "found.json").read_text(encoding="utf-8")).results[0]
    assert kept.settings == result.settings  # nothing was measured again


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "nowhere"), "neither a directory nor"),
        (("--model", "scripted", "--peers", "vllm"), "--peers knows"),
        (("--model", "scripted", "--tokens", "1"), "--tokens at least 2"),
        (("--model", "scripted", "--count", "0"), "--count and --peer-prompts must be at least 1"),
        (("--model", "scripted", "--prompts", "missing.json"), "cannot be read"),
        (("--report", "missing.json"), "missing.json"),
    ],
)
def test_what_cannot_be_done_is_one_line(arguments: tuple[str, ...], words: str, tmp_path: Path):
    done = speed(*arguments, "--cache", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ") and words in line
