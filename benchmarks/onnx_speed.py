"""The ONNX Runtime backend on the CPU: our serial loop beside onnxruntime-genai's, and speculation beside our serial loop.

    python benchmarks/onnx_speed.py --make-environments           # once: the environment of onnxruntime-genai
    python benchmarks/onnx_speed.py                               # both models that ship, fp32 and int4
    python benchmarks/onnx_speed.py --quick --precision fp32      # some minutes: does it run, and roughly what

Everything that is compared runs on the same exported directory in the same command: processes alternate prompt by prompt, with
the same threads and prompts. Tokens are compared first; no speed-up is stated for a run whose tokens differ from those of our
serial loop. Prints the tables and writes FILE.json. Exit code 1: some run of ours differs where its two best scores are not
nearly equal, which is a defect. docs/how-to/run-the-benchmarks.md explains the columns.
"""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from speed import PROMPTS, folder_of, say
from speedbench.environments import PeerError, make_environment, python_of
from speedbench.measure import OWN, Measurement
from speedbench.onnx_targets import GENAI, targets
from speedbench.plan import ROOT, Plan, PlanError, cores, cpu_name, read_prompts, revision, state_of
from speedbench.report import Report, Result, to_json
from speedbench.store import Store
from speedbench.summary import summarise
from speedbench.table import text

from spanfold.backends import models
from spanfold.backends.export import export
from spanfold.engine.errors import ConfigError

#: Precision of an export, and what the report calls it.
PRECISIONS = {"fp32": "float32", "int4": "int4"}
#: Prompts by kind, where it is not 8. The embedded model repeats itself on most of its own, which are quick: all of them are asked.
COUNT = {"embedded": 38}
QUICK_COUNT = {"embedded": 38, "demo": 4}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--model", action="append", metavar="NAME", help="embedded, demo, or a checkpoint; repeatable (default: both that ship)"
    )
    made.add_argument("--precision", action="append", choices=tuple(PRECISIONS), help="repeatable (default: both)")
    made.add_argument("--threads", type=int, default=cores(), help="of every process (default: all cores)")
    made.add_argument("--row-width", type=int, help="rows to which our forwards are padded; 1: none (default: the backend's own choice)")
    made.add_argument("--count", type=int, help="how many of the prompts (default: 8, embedded 38; 4 and 38 with --quick)")
    made.add_argument("--tokens", type=int, help="most tokens per prompt (default: 96; 32 with --quick)")
    made.add_argument(
        "--minutes", type=float, help="per model and precision; no further prompt is begun then (default: 6; 1.5 with --quick)"
    )
    made.add_argument("--quick", action="store_true", help="few prompts: a look, not a statement")
    made.add_argument("--out", metavar="STEM", default="onnx", help="path of the results without suffix (default: onnx)")
    made.add_argument("--cache", metavar="DIR", help="environments, exports, raw measurements (default: the package's cache)")
    made.add_argument("--resume", action="store_true", help="keep what an interrupted run of the same command measured")
    made.add_argument("--make-environments", action="store_true", help="make the peer's environment, then end")
    return made


def exported(model: str, precision: str, cache: Path) -> tuple[str, str, Path]:
    """Name and kind of a model, and its exported directory, made where it is not there yet."""
    name, kind, checkpoint = folder_of(model)
    folder = cache / "exports" / f"{Path(checkpoint).name}-{precision}-{state_of(Path(checkpoint))}"
    if not folder.is_dir():
        say(f"exporting {name} in {precision}")
        folder.parent.mkdir(parents=True, exist_ok=True)
        export(checkpoint, folder, precision=precision, head=True, python=python_of(GENAI, cache), progress=say)
    return name, kind, folder


def plan_of(args: argparse.Namespace, model: str, precision: str, cache: Path) -> Plan:
    if min(args.threads, 1 if args.count is None else args.count, args.tokens or 2) < 1 or args.tokens == 1:
        raise PlanError("--threads and --count must be at least 1, --tokens at least 2")
    name, kind, folder = exported(model, precision, cache)
    path = ROOT / PROMPTS.get(kind, PROMPTS["demo"])
    count = args.count or (QUICK_COUNT if args.quick else COUNT).get(kind, 8)
    prompts, tuning, digest = read_prompts(path, count)
    return Plan(
        model=name,
        kind=kind,
        folder=str(folder),
        weights=precision,
        dtype=PRECISIONS[precision],
        threads=args.threads,
        prompts_file=path.relative_to(ROOT).as_posix(),
        prompts_sha256=digest,
        prompts=prompts,
        tuning=tuning[-1:],
        max_tokens=args.tokens or (32 if args.quick else 96),
        turns=1 if args.quick else 3,
        minutes=args.minutes if args.minutes is not None else 1.5 if args.quick else 6,
        row_rounds=2 if args.quick else 5,
        row_repeats=5 if args.quick else 8,
        past=128,
        peers=(GENAI,),
        peer_prompts=count,
        backend="onnx",
        row_width=args.row_width,
    )


def measured(args: argparse.Namespace, cache: Path) -> Report:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    results: list[Result] = []
    versions: dict[str, str] = {}
    for model in args.model or ["embedded", "demo"]:
        for precision in args.precision or list(PRECISIONS):
            plan = plan_of(args, model, precision, cache)
            store = Store(cache / "runs" / f"onnx-{plan.key}.jsonl", args.resume)
            say(f"{plan.model}, {precision}")
            if load is not None and store.get("load") is None:
                store.put({"load": load}, "load")
            Measurement(plan, store, cache, say).run()
            versions |= (store.get("hello", OWN) or {}).get("versions", {})
            results.append(summarise(plan, store))
    return Report(
        command=shlex.join(["python", "benchmarks/onnx_speed.py", *without_cache(sys.argv[1:])]),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        quick=args.quick,
        cpu=cpu_name(),
        cores=cores(),
        system=f"{platform.system()} {platform.machine()}",
        spanfold=revision(),
        versions=versions,
        results=tuple(results),
        engine=None,
        targets=targets(results),
    )


def without_cache(arguments: Sequence[str]) -> list[str]:
    """The arguments that change a figure: not the place of the cache."""
    return [one for at, one in enumerate(arguments) if one != "--cache" and (at == 0 or arguments[at - 1] != "--cache")]


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    cache = Path(args.cache) if args.cache else models.default_cache() / "benchmarks"
    try:
        if args.make_environments:
            make_environment(GENAI, cache)
            return 0
        report = measured(args, cache)
        target = Path(args.out).with_suffix(".json")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(to_json(report), encoding="utf-8")
        say(f"wrote {target}")
    except (PlanError, PeerError, ConfigError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(text(report), end="")
    return 1 if any(setting.differs for result in report.results for setting in result.settings) else 0


if __name__ == "__main__":
    sys.exit(main())
