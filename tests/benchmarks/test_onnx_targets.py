"""What benchmarks/onnx_speed.py is held to, and what it says where a figure is missing."""

from __future__ import annotations

from typing import Any

from speedbench.figures import RoundCost
from speedbench.onnx_targets import GENAI, targets
from speedbench.report import Peer, Result, Setting

COST = RoundCost(draft=1.0, verify=30.0, settle=0.1, engine=0.2)


def setting(label: str, measured: float | None, **changes: Any) -> Setting:
    values: dict[str, Any] = {"policy": label, "runs": 3, "ms_per_token": 30.0, "cost": None if label == "default" else COST, "pairs": 3}
    values |= {"tokens_per_span": 1.8, "acceptance": (0.5,), "predicted": 1.4, "ties": 0, "differs": 0, "dull": 0}
    return Setting(label=label, measured=measured, **(values | changes))


def peer(versus: float | None, unavailable: str | None = None) -> Peer:
    counts: dict[str, int] = {"runs": 3, "pairs": 3, "ties": 0, "differs": 0, "dull": 0}
    return Peer(
        name=GENAI, way="Generator", setting="greedy", versions={}, tuned={}, ms_per_token=40.0, versus={"serial": versus},
        unavailable=unavailable, **counts,
    )  # fmt: skip


def result(dtype: str, settings: list[Setting], peers: list[Peer], shares: tuple[float, ...] = (1.0,) * 4) -> Result:
    counts: dict[str, Any] = {"threads": 1, "prompts_planned": 3, "prompts_done": 3, "turns": 1, "max_tokens": 32, "past": 128}
    return Result(
        model="m", kind="demo", dtype=dtype, prompts="p", prompts_sha256="0", seconds=1.0, row_exact=True, shares=shares, rows_ms={},
        ort_rows_ms={}, row_ratio=None, step_ms=None, draft_fixed_ms=None, notes=(), settings=tuple(settings), peers=tuple(peers), **counts,
    )  # fmt: skip


def test_float32_is_held_to_the_generator_and_to_the_best_speed_up():
    one = result("float32", [setting("serial", 1.0), setting("k=1", 1.25), setting("default", 1.35)], [peer(1.1)])
    over, speed_up = targets([one])
    assert (over.value, over.reached) == (1.1, False)
    assert "its Generator takes 40.00 ms per token, our serial loop 30.00 (forward 30.00, engine 0.20)" in over.why
    assert (speed_up.value, speed_up.reached, speed_up.why) == (1.35, True, "")
    assert speed_up.name.endswith("(default, predicted 1.40)")


def test_int4_is_held_to_never_falling_below_serial():
    (one,) = targets([result("int4", [setting("serial", 1.0), setting("k=1", 1.5), setting("default", 0.97)], [peer(2.0)])])
    assert (one.value, one.reached, one.wanted) == (0.97, False, "at least 1.0")
    assert "the verify costs" in one.why


def test_a_run_whose_tokens_differ_has_no_speed_up_and_says_why():
    (one,) = targets([result("int4", [setting("serial", 1.0), setting("default", None, ties=2, differs=1)], [])])
    assert (one.value, one.reached) == (None, None)
    assert one.why == "no speed-up is stated; runs that part from the serial tokens: 2 at near ties, 1 elsewhere"


def test_without_the_peer_the_reason_is_told():
    over, _ = targets([result("float32", [setting("serial", 1.0)], [peer(None, "its environment is not there")])])
    assert (over.reached, over.why) == (None, "its environment is not there")


def test_nothing_is_stated_of_a_few_prompts():
    settings = [setting("serial", 1.0), setting("k=1", 1.25), setting("default", 0.95)]
    (one,) = targets([result("int4", settings, [peer(2.0)], shares=(0.03, 1.0, 0.6, 0.9, 0.2))])
    assert (one.value, one.reached) == (None, None)
    over, _ = targets([result("float32", settings, [peer(None, "its environment is not there")], shares=(1.0,))])
    assert over.why == "its environment is not there"
    assert one.why == "3 of 5 prompts have an output that does not repeat itself; a figure needs 4: --count"
