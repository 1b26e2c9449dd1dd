"""From raw measurements to a Result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from attrs import evolve

from .figures import (
    NEAR_TIE,
    Run,
    acceptance_by_depth,
    distinct_share,
    first_difference,
    median,
    predicted,
    ratio,
    round_cost,
    step_cost,
    tokens_per_span,
)
from .measure import OWN
from .plan import Plan
from .report import Peer, Result, Setting
from .store import Store

#: A load average above this says that the machine was not left alone.
BUSY: Final = 0.5
#: A speed-up over serial decoding is stated for equal tokens alone.
_EQUAL: Final = frozenset({"same"})
#: Two engines may be compared where their outputs part at a near tie: both are the model's own.
_EQUAL_OR_TIE: Final = frozenset({"same", "tie"})


def verdict(where: int | None, margin: float | None, bound: float) -> str:
    """What a first difference means: none, one between two nearly equal scores, or a defect."""
    if where is None:
        return "same"
    return "tie" if margin is not None and margin < bound else "differs"


def _runs(store: Store, worker: str, way: str, bound: float) -> list[Run]:
    """The decodes of one way of which the serial one of the same turn and prompt is there."""
    found: list[Run] = []
    for (turn, prompt, name, its_way), reply in sorted(store.having("decode").items(), key=lambda item: (int(item[0][0]), int(item[0][1]))):
        serial = store.get("decode", turn, prompt, OWN, "serial")
        if (name, its_way) != (worker, way) or "tokens" not in reply or serial is None:
            continue
        where = first_difference(serial["tokens"], reply["tokens"])
        margin = None if where is None else (store.get("margin", prompt, where) or {}).get("margin")
        found.append(
            Run(
                prompt=int(prompt),
                turn=int(turn),
                tokens=tuple(reply["tokens"]),
                first=reply["first"],
                rest_ns=reply["rest_ns"],
                verdict=verdict(where, margin, bound),
                raw=reply,
            )
        )
    return found


def _count(runs: Sequence[Run], word: str) -> int:
    return sum(run.verdict == word for run in runs)


def _ms(runs: Sequence[Run]) -> float | None:
    return median([ms for run in runs if not run.dull and (ms := run.ms_per_token)])


def _policy(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    kind, width = runs[0].raw["policy"], runs[0].raw["width"]
    return "serial" if width == 0 else f"{kind}, at most {width}" if kind != "fixed" else f"fixed {width}"


def _setting(label: str, runs: list[Run], serial: list[Run]) -> Setting:
    k = int(label.removeprefix("k=")) if label.startswith("k=") else 0
    cost = None if label == "default" else round_cost(runs, k)
    base = round_cost(serial, 0)
    measured, pairs = (1.0, len(serial)) if label == "serial" else ratio(serial, runs, _EQUAL)
    expected = 1.0 if label == "serial" else None
    if k and cost is not None and base is not None:
        # Over the same runs as the measured one, so that both speak of the same outputs; over all where none of them is stated.
        stated = [run for run in runs if not run.dull and run.verdict == "same"] or [run for run in runs if not run.dull]
        expected = median([predicted(tokens, cost, base) for run in stated if (tokens := tokens_per_span([run])) is not None])
    return Setting(
        label=label,
        policy=_policy(runs),
        runs=len(runs),
        ms_per_token=_ms(runs),
        cost=cost,
        tokens_per_span=tokens_per_span(runs),
        acceptance=tuple(acceptance_by_depth(runs)),
        predicted=expected,
        measured=None if _count(runs, "differs") else measured,
        pairs=pairs,
        ties=_count(runs, "tie"),
        differs=_count(runs, "differs"),
        dull=sum(run.dull for run in runs),
    )


def _with_expectation(one: Setting, settings: Sequence[Setting]) -> Setting:
    """The default policy is held to its own width, where that is fixed, else to the best fixed width, none at all included."""
    if one.label != "default":
        return one
    fixed = {other.policy: other.predicted for other in settings if other.label.startswith("k=") and other.predicted is not None}
    if one.policy in fixed:
        return evolve(one, predicted=fixed[one.policy])
    return evolve(one, predicted=max([1.0, *fixed.values()])) if fixed else one


def _peer(store: Store, name: str, way: str, settings: list[dict[str, Any]], own: dict[str, list[Run]], bound: float) -> Peer:
    runs = _runs(store, name, way, bound)
    tuned: dict[str, float] = store.get("tuned", name, way) or {}
    versus = {label: ratio(runs, mine, _EQUAL_OR_TIE) for label, mine in own.items() if label in ("serial", "k=1", "default")}
    failed = [reply["error"] for key, reply in store.having("decode").items() if key[2:] == (name, way) and "error" in reply]
    return Peer(
        name=name,
        way=way,
        setting=min(tuned, key=lambda label: tuned[label], default=settings[0]["label"]),
        versions=(store.get("hello", name) or {}).get("versions", {}),
        tuned=tuned,
        runs=len(runs),
        ms_per_token=_ms(runs),
        versus={label: found for label, (found, _) in versus.items()},
        pairs=max((count for _, count in versus.values()), default=0),
        ties=_count(runs, "tie"),
        differs=_count(runs, "differs"),
        dull=sum(run.dull for run in runs),
        unavailable=failed[0] if failed and not runs else None,
    )


def _without(name: str, why: str) -> Peer:
    return Peer(
        name=name,
        way="",
        setting="",
        versions={},
        tuned={},
        runs=0,
        ms_per_token=None,
        versus={},
        pairs=0,
        ties=0,
        differs=0,
        dull=0,
        unavailable=why,
    )


def _rows(store: Store, plan: Plan) -> tuple[dict[str, float], dict[str, float], float | None]:
    """Median milliseconds by rows, ours and ONNX Runtime's, and the ratio of one row: the median over alternating rounds."""
    medians: list[dict[str, float]] = []
    ratios: list[float] = []
    for name in (OWN, "onnxruntime"):
        pooled: dict[str, list[int]] = {}
        for turn in range(plan.row_rounds):
            for rows, took in (store.get("rows", turn, name) or {}).items():
                pooled.setdefault(rows, []).extend(took)
        medians.append({rows: (median(took) or 0.0) / 1e6 for rows, took in pooled.items()})
    for turn in range(plan.row_rounds):
        mine, theirs = store.get("rows", turn, OWN), store.get("rows", turn, "onnxruntime")
        if mine is not None and theirs is not None:
            ratios.append((median(mine["1"]) or 0.0) / (median(theirs["1"]) or 1.0))
    return medians[0], medians[1], median(ratios)


def summarise(plan: Plan, store: Store) -> Result:
    """The figures of a plan, from what was measured so far."""
    hello = store.get("hello", OWN) or {"groups": {}, "row_exact": False}
    margin = NEAR_TIE.get(plan.dtype, 0.0)
    # Where the runtime's rows do not depend on each other there are no near ties of its own to forgive.
    bound = 0.0 if hello["row_exact"] else margin
    own = {label: _runs(store, OWN, label, bound) for label in hello["groups"]}
    serial = own.get("serial", [])
    settings = [_setting(label, runs, serial) for label, runs in own.items()]
    settings = [_with_expectation(one, settings) for one in settings]
    peers: list[Peer] = []
    notes: list[str] = []
    load = store.get("load")
    if load is not None:
        busy = "; something else was running: do not trust these times" if load["load"] > BUSY else ""
        notes.append(f"load average of the machine before the run: {load['load']:.1f}{busy}")
    for name in plan.peers:
        answer = store.get("hello", name) or {"error": "it was not started"}
        if "error" in answer:
            peers.append(_without(name, answer["error"]))
            continue
        notes += [f"{name}: {note}" for note in answer["notes"]]
        peers += [_peer(store, name, way, several, own, margin) for way, several in answer["groups"].items()]
    mine, theirs, row_ratio = _rows(store, plan)
    drafts = {k: one.cost.draft for k in range(1, 17) for one in settings if one.label == f"k={k}" and one.cost is not None}
    step = step_cost(drafts)
    first = [run for run in serial if run.turn == 0]
    return Result(
        model=plan.model,
        kind=plan.kind,
        dtype=plan.dtype,
        threads=plan.threads,
        prompts=plan.prompts_file,
        prompts_sha256=plan.prompts_sha256,
        prompts_planned=len(plan.prompts),
        prompts_done=len(first),
        turns=1 + max((run.turn for run in serial), default=0),
        max_tokens=plan.max_tokens,
        seconds=(store.get("seconds") or {"seconds": 0.0})["seconds"],
        row_exact=hello["row_exact"],
        shares=tuple(distinct_share(run.tokens) for run in first),
        settings=tuple(settings),
        peers=tuple(peers),
        past=plan.past,
        rows_ms=mine,
        ort_rows_ms=theirs,
        row_ratio=row_ratio,
        step_ms=None if step is None else step[0],
        draft_fixed_ms=None if step is None else step[1],
        notes=tuple(notes),
    )
