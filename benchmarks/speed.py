"""How fast spanfold decodes, what that should be by its own costs, and how it stands beside its peers on the same weights.

    python benchmarks/speed.py --make-environments          # once: environments for transformers, economize, ONNX Runtime
    python benchmarks/speed.py                              # the models that ship, float32 and bfloat16
    python benchmarks/speed.py --quick --dtype float32      # some minutes: does it run, and roughly what
    python benchmarks/speed.py --resume                     # go on with an interrupted run
    python benchmarks/speed.py --report FILE.json           # print a finished one again; --page writes docs/benchmarks.md

Prints the tables and writes FILE.json, FILE.png and FILE.svg (the plot needs the extra ``bench``). Everything that is
compared runs in the same command: processes alternate prompt by prompt, with the same threads, dtype and prompts. Tokens are
compared first; no speed-up is stated for a run whose tokens differ from those of serial decoding. Exit code 1: some run of
ours differs where its two best scores are not nearly equal, which is a defect. docs/how-to/run-the-benchmarks.md explains
the columns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from speedbench.environments import NAMES, PeerError, make_environment
from speedbench.measure import OWN, Measurement
from speedbench.page import page
from speedbench.plan import ROOT, Plan, PlanError, cores, cpu_name, read_prompts, revision, state_of
from speedbench.plot import available, draw
from speedbench.report import Engine, Report, Result, load, to_json
from speedbench.store import Store
from speedbench.summary import summarise
from speedbench.table import text
from speedbench.targets import targets

from spanfold.backends import models
from spanfold.engine.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")
PROMPTS = {"demo": "tests/torch/data/heldout_prompts.json", "embedded": "tools/embedded/prompts.json"}


def say(message: str) -> None:
    print(f"[{datetime.now():%H:%M:%S}] {message}", file=sys.stderr, flush=True)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument(
        "--model", action="append", metavar="NAME", help="embedded, demo, scripted, or a directory; repeatable (default: both that ship)"
    )
    made.add_argument("--dtype", action="append", choices=DTYPES, help="repeatable (default: float32 and bfloat16)")
    made.add_argument("--threads", type=int, default=cores(), help="of every process (default: all cores)")
    made.add_argument("--prompts", metavar="FILE", help="a JSON list of strings, alone or under 'prompts' (default: the model's own)")
    made.add_argument("--count", type=int, help="how many of the prompts (default: 16; 3 with --quick)")
    made.add_argument("--tokens", type=int, help="most tokens per prompt (default: 96; 32 with --quick)")
    made.add_argument("--minutes", type=float, help="per model and dtype; no further prompt is begun then (default: 10; 1.5 with --quick)")
    made.add_argument("--peers", default="all", metavar="NAMES", help=f"comma-separated: {', '.join(NAMES)}; all (default) or none")
    made.add_argument("--peer-prompts", type=int, default=6, help="of how many prompts the peers are measured (default: 6)")
    made.add_argument("--quick", action="store_true", help="few prompts: a look, not a statement")
    made.add_argument("--out", metavar="STEM", default="speed", help="path of the results without suffix (default: speed)")
    made.add_argument("--cache", metavar="DIR", help="environments, exports, raw measurements (default: the package's cache)")
    made.add_argument("--resume", action="store_true", help="keep what an interrupted run of the same command measured")
    made.add_argument("--make-environments", action="store_true", help="make the peers' environments, then end")
    made.add_argument("--report", metavar="FILE", help="measure nothing: print this JSON, draw its plot")
    made.add_argument("--page", metavar="FILE", help="also write the page of results")
    return made


def chosen_peers(names: str) -> tuple[str, ...]:
    peers = tuple(NAMES) if names == "all" else () if names == "none" else tuple(names.split(","))
    for name in peers:
        if name not in NAMES:
            raise PlanError(f"--peers knows {', '.join(NAMES)}, not {name!r}")
    return peers


def folder_of(model: str) -> tuple[str, str, str]:
    """Name, kind and directory of a model."""
    if model == "scripted":
        return model, model, model
    if model == "demo":
        return "SmolLM2-135M (demo)", "demo", str(models.assemble(progress=say))
    if model == "embedded":
        return f"{models.EMBEDDED} (embedded)", model, str(models.embedded())
    if not Path(model).is_dir():
        raise PlanError(f"--model {model!r} is neither a directory nor one of {', '.join(PROMPTS)}, scripted")
    return Path(model).resolve().name, "directory", str(Path(model).resolve())


def plan_of(args: argparse.Namespace, model: str, dtype: str) -> Plan:
    name, kind, folder = folder_of(model)
    if min(args.threads, args.peer_prompts, 1 if args.count is None else args.count, args.tokens or 2) < 1 or args.tokens == 1:
        raise PlanError("--threads, --count and --peer-prompts must be at least 1, --tokens at least 2")
    count, tokens, minutes = args.count or (3 if args.quick else 16), args.tokens or (32 if args.quick else 96), args.minutes
    path = Path(args.prompts) if args.prompts else ROOT / PROMPTS.get(kind, PROMPTS["demo"])
    prompts, tuning, digest = read_prompts(path, count)
    peers = chosen_peers(args.peers)
    if kind == "scripted":  # no peer knows it
        peers = ()
    return Plan(
        model=name,
        kind=kind,
        folder=folder,
        weights=state_of(Path(folder)),
        dtype=dtype,
        threads=args.threads,
        prompts_file=path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else path.name,
        prompts_sha256=digest,
        prompts=prompts,
        tuning=tuning[-1:] if args.quick else tuning,
        max_tokens=tokens,
        turns=1 if args.quick else 3,
        minutes=minutes if minutes is not None else 1.5 if args.quick else 10,
        row_rounds=2 if args.quick else 5,
        row_repeats=5 if args.quick else 8,
        past=128,
        peers=peers,
        peer_prompts=args.peer_prompts,
    )


def engine_overhead(quick: bool) -> Engine | None:
    """benchmarks/engine_overhead.py in a process of its own; None where it gives no figures."""
    say("the engine over a target of no cost")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "engine.json"
        command = [sys.executable, str(ROOT / "benchmarks" / "engine_overhead.py"), "--json", str(file)]
        done = subprocess.run([*command, *(["--tokens", "8000"] if quick else [])], stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            return None
        figures: dict[str, Any] = json.loads(file.read_text())
    return Engine(overhead_us_per_round=figures["overhead_us_per_round"], growth=figures["growth"])


def measured(args: argparse.Namespace, cache: Path) -> Report:
    dtypes = args.dtype or ["float32", "bfloat16"]
    models_asked = args.model or ["embedded", "demo"]
    plans = [plan_of(args, model, dtype) for model in models_asked for dtype in (dtypes if model != "scripted" else dtypes[:1])]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None  # before the first plan: later it is our own
    results: list[Result] = []
    versions: dict[str, str] = {}
    for plan in plans:
        store = Store(cache / "runs" / f"{plan.key}.jsonl", args.resume)
        say(f"{plan.model}, {plan.dtype}")
        if load is not None and store.get("load") is None:
            store.put({"load": load}, "load")
        try:
            Measurement(plan, store, cache, say).run()
        except KeyboardInterrupt:
            say("interrupted: what was measured is kept, --resume goes on with it")
            raise
        except PeerError as error:
            raise PlanError(f"{OWN} cannot be measured: {error}") from error
        versions |= (store.get("hello", OWN) or {}).get("versions", {})
        results.append(summarise(plan, store))
    engine = engine_overhead(args.quick)
    return Report(
        command=command_line(sys.argv[1:]),
        date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        quick=args.quick,
        cpu=cpu_name(),
        cores=cores(),
        system=f"{platform.system()} {platform.machine()}",
        spanfold=revision(),
        versions=versions,
        results=tuple(results),
        engine=engine,
        targets=targets(results, engine),
    )


def command_line(arguments: Sequence[str]) -> str:
    """The command as others can give it: without the place of its cache, which changes no figure and is one machine's."""
    kept = [one for at, one in enumerate(arguments) if one != "--cache" and (at == 0 or arguments[at - 1] != "--cache")]
    return shlex.join(["python", "benchmarks/speed.py", *kept])


def write_plot(report: Report, stem: Path) -> Path | None:
    if not available():
        say("no plot: pip install 'spanfold[bench]' for matplotlib, then --report")
        return None
    for path in draw(report, stem):
        say(f"wrote {path}")
    return stem.with_suffix(".svg")


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser().parse_args(arguments)
    cache = Path(args.cache) if args.cache else models.default_cache() / "benchmarks"
    try:
        if args.make_environments:
            for peer in chosen_peers(args.peers):
                say(f"environment of {peer}")
                make_environment(peer, cache)
            return 0
        source = Path(args.report) if args.report else Path(args.out).with_suffix(".json")
        if args.report:
            report = load(source)
        else:
            report = measured(args, cache)
            source.parent.mkdir(parents=True, exist_ok=True)
            source.write_text(to_json(report), encoding="utf-8")
            say(f"wrote {source}")
    except (PlanError, ConfigError, OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    picture = write_plot(report, source.with_suffix(""))
    if args.page:
        where = Path(args.page)
        shown = None if picture is None else Path(os.path.relpath(picture, where.parent)).as_posix()
        shown_source = Path(os.path.relpath(source, ROOT)).as_posix()
        where.write_text(page(report, shown_source, shown), encoding="utf-8")
        say(f"wrote {where}")
    print(text(report), end="")
    return 1 if any(setting.differs for result in report.results for setting in result.settings) else 0


if __name__ == "__main__":
    sys.exit(main())
