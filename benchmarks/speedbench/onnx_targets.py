"""What the figures of benchmarks/onnx_speed.py are held to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import evolve

from .report import Result, Setting, Target
from .targets import where_the_time_goes

GENAI: Final = "onnxruntime-genai"
OVER_GENAI: Final = 1.2
SPEED_UP: Final = 1.3
#: Prompts without which no target is judged: the median of one prompt's pairs is that prompt's.
FEWEST: Final = 4


def targets(results: Sequence[Result]) -> tuple[Target, ...]:
    """Every target that the results speak of."""
    found: list[Target] = []
    for result in results:
        held: list[Target] = []
        if result.dtype == "float32":
            held = [_over_genai(result), _speed_up(result)]
        if result.dtype == "int4":
            held = [_never_below_serial(result)]
        found += [one if one.value is None or result.telling >= FEWEST else _too_few(one, result) for one in held]
    return tuple(found)


def _too_few(target: Target, result: Result) -> Target:
    why = f"{result.telling} of {len(result.shares)} prompts have an output that does not repeat itself; a figure needs {FEWEST}: --count"
    return evolve(target, value=None, reached=None, why=why)


def _over_genai(result: Result) -> Target:
    peer = next((one for one in result.peers if one.name == GENAI), None)
    value = None if peer is None else peer.versus.get("serial")
    reached = None if value is None else value >= OVER_GENAI
    serial = result.setting("serial")
    if peer is None or value is None:
        why = (peer.unavailable if peer else None) or "no pair of runs could be compared"
    elif not reached:
        cost = None if serial is None else serial.cost
        parts = "" if cost is None else f" (forward {cost.verify:.2f}, engine {cost.engine:.2f})"
        ours = 0.0 if serial is None else serial.ms_per_token or 0.0
        why = f"its Generator takes {peer.ms_per_token or 0.0:.2f} ms per token, our serial loop {ours:.2f}{parts}"
    else:
        why = ""
    return Target(
        name=f"onnxruntime-genai's Generator / our serial loop, {result.model}, {result.dtype}",
        wanted=f"at least {OVER_GENAI}",
        value=value,
        reached=reached,
        why=why,
    )


def _speed_up(result: Result) -> Target:
    stated = [one for one in result.settings if one.label != "serial" and one.measured is not None]
    best = max(stated, key=lambda one: one.measured or 0.0, default=None)
    value = None if best is None else best.measured
    reached = None if value is None else value >= SPEED_UP
    return Target(
        name=f"speculation / our serial loop, {result.model}, {result.dtype}{_predicted(best)}",
        wanted=f"at least {SPEED_UP}",
        value=value,
        reached=reached,
        why="" if reached else where_the_time_goes(result, result.best_fixed),
    )


def _never_below_serial(result: Result) -> Target:
    auto = result.setting("default")
    value = None if auto is None else auto.measured
    reached = None if value is None else value >= 1.0
    why = ""
    if auto is not None and value is None:
        why = f"no speed-up is stated; runs that part from the serial tokens: {auto.ties} at near ties, {auto.differs} elsewhere"
    elif not reached:
        why = where_the_time_goes(result, result.best_fixed)
    return Target(
        name=f"policy auto / our serial loop, {result.model}, {result.dtype}{_predicted(auto)}",
        wanted="at least 1.0",
        value=value,
        reached=reached,
        why=why,
    )


def _predicted(setting: Setting | None) -> str:
    if setting is None or setting.predicted is None:
        return ""
    return f" ({setting.label}, predicted {setting.predicted:.2f})"
