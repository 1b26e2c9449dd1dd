"""What the figures are held to, and where the time goes where one is not reached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from .report import Engine, Result, Setting, Target

OF_PREDICTED: Final = 0.9
DEMO_SPEED_UP: Final = 1.3
EMBEDDED_SPEED_UP: Final = 1.25
OVER_PLAIN: Final = 3.0
ROW_OVER_ORT: Final = 1.5
ENGINE_US: Final = 50.0
GROWTH: Final = 1.3


def targets(results: Sequence[Result], engine: Engine | None) -> tuple[Target, ...]:
    """Every target that the results speak of."""
    found: list[Target] = []
    for result in results:
        if result.kind != "scripted":  # its rounds take microseconds: what they cost says nothing
            found += _of_predicted(result)
    for kind, wanted in (("demo", DEMO_SPEED_UP), ("embedded", EMBEDDED_SPEED_UP)):
        some = [result for result in results if result.kind == kind]
        if some:
            found.append(_speed_up(kind, some, wanted))
        if some and kind == "demo":
            found.append(_over_plain(some))
    found += [_row(result) for result in results if result.dtype == "float32" and result.kind == "demo"]
    found += _engine(engine)
    return tuple(found)


def where_the_time_goes(result: Result, setting: Setting | None) -> str:
    """The parts of a round against a serial step, in milliseconds."""
    serial = result.setting("serial")
    if setting is None or setting.cost is None or serial is None or serial.cost is None:
        return "no round was measured"
    cost, base = setting.cost, serial.cost
    depths = ", ".join(f"{one:.2f}" for one in setting.acceptance)
    return (
        f"{result.dtype}, {setting.label}: {setting.tokens_per_span or 0:.2f} tokens per span (accepted by depth {depths}) for a round of "
        f"{cost.total:.2f} ms: verify {cost.verify:.2f}, head {cost.draft:.2f}, settle {cost.settle:.2f}, engine {cost.engine:.2f}; "
        f"a serial round takes {base.total:.2f} ms, so the verify costs {cost.verify / base.verify:.2f} and the head "
        f"{cost.draft / base.verify:.2f} serial steps"
    )


def _name(result: Result) -> str:
    return f"{result.model}, {result.dtype}"


def _of_predicted(result: Result) -> list[Target]:
    found: list[Target] = []
    for setting in result.settings:
        if setting.predicted is None or setting.label == "serial":
            continue
        share = None if setting.measured is None else setting.measured / setting.predicted
        reached = None if share is None else share >= OF_PREDICTED
        why = ""
        if share is None:
            why = f"no speed-up is stated; runs that part from the serial tokens: {setting.ties} at near ties, {setting.differs} elsewhere"
        elif not reached:
            why = where_the_time_goes(result, setting)
        found.append(
            Target(
                name=f"measured / predicted, {_name(result)}, {setting.label}",
                wanted=f"at least {OF_PREDICTED}",
                value=share,
                reached=reached,
                why=why,
            )
        )
    return found


def _best(result: Result) -> Setting | None:
    measured = [one for one in result.settings if one.label != "serial" and one.measured is not None]
    return max(measured, key=lambda one: one.measured or 0.0, default=None)


def _speed_up(kind: str, results: Sequence[Result], wanted: float) -> Target:
    """The greatest speed-up over serial decoding in any dtype."""
    best = {result.dtype: one.measured for result in results if (one := _best(result)) is not None and one.measured is not None}
    value = max(best.values(), default=None)
    reached = None if value is None else value >= wanted
    why = "" if reached else "; ".join(where_the_time_goes(result, result.best_fixed) for result in results)
    return Target(
        name=f"speed-up over our serial decoding, {kind} model", wanted=f"at least {wanted}", value=value, reached=reached, why=why
    )


def _over_plain(results: Sequence[Result]) -> Target:
    """How many times faster than transformers' plain generate, in any dtype."""
    found: list[tuple[float, str]] = []
    missing: list[str] = []
    for result in results:
        for peer in result.peers:
            if peer.name != "transformers" or peer.way not in ("generate", ""):
                continue
            value = peer.versus.get("default")
            if value is None:
                missing.append(f"{result.dtype}: {peer.unavailable or 'no pair of runs could be compared'}")
                continue
            serial = result.setting("serial")
            own = result.setting("default")
            text = (
                f"{result.dtype}: plain generate takes {peer.ms_per_token or 0:.1f} ms per token, our serial decoding "
                f"{(serial.ms_per_token if serial else None) or 0:.1f}, the default policy {(own.ms_per_token if own else None) or 0:.1f}"
            )
            found.append((value, text))
    value = max((one for one, _ in found), default=None)
    reached = None if value is None else value >= OVER_PLAIN
    why = "" if reached else "; ".join([text for _, text in found] + missing) or "transformers was not measured"
    return Target(
        name="times faster than transformers' plain generate, demo model",
        wanted=f"at least {OVER_PLAIN}",
        value=value,
        reached=reached,
        why=why,
    )


def _row(result: Result) -> Target:
    value = result.row_ratio
    reached = None if value is None else value <= ROW_OVER_ORT
    why = ""
    if value is None:
        peers = [peer.unavailable for peer in result.peers if peer.name == "onnxruntime" and peer.unavailable]
        why = f"ONNX Runtime was not measured{': ' + peers[0] if peers else ''}"
    elif not reached:
        rows = "; ".join(
            f"{rows} row{'s' * (rows != '1')} {ms:.2f} ms, ONNX Runtime {result.ort_rows_ms.get(rows, 0):.2f}"
            for rows, ms in result.rows_ms.items()
        )
        why = f"one forward behind {result.past} rows: {rows}"
    return Target(
        name=f"one row / one row in ONNX Runtime, {_name(result)}", wanted=f"at most {ROW_OVER_ORT}", value=value, reached=reached, why=why
    )


def _engine(engine: Engine | None) -> list[Target]:
    wanted = (("engine, microseconds per round", ENGINE_US), ("engine, a round at 100,000 tokens / at 1,000", GROWTH))
    values = (None, None) if engine is None else (engine.overhead_us_per_round, engine.growth)
    found: list[Target] = []
    for (name, most), value in zip(wanted, values, strict=True):
        reached = None if value is None else value <= most
        why = (
            ""
            if reached
            else "it was not measured"
            if value is None
            else "profile benchmarks/engine_overhead.py; see docs/explanation/numerics.md"
        )
        found.append(Target(name=name, wanted=f"at most {most:g}", value=value, reached=reached, why=why))
    return found
