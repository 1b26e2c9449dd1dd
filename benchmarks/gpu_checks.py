"""All that a GPU must show, in a few minutes and one command.

    python benchmarks/gpu_checks.py [--device cuda] [--json FILE]
    python benchmarks/gpu_checks.py --dry-run               # the same code with tiny models on the CPU, in less than a minute

1. Correctness: ``pytest -m gpu`` over tests/ (left out on the CPU, where those tests skip), and small random models in every dtype,
   decoded with and without speculation. Tokens are compared; a difference must fall on a near tie.
2. Graphs: the calls with and without CUDA graphs, where the runtime has the option ``cuda_graphs``; else it says that it was skipped.
3. A large randomly initialised model, as large as fits: milliseconds by rows, per draft and per trim; the engine's share of a round.
4. Speed-up by acceptance on that model: the drafts are the serial output, made wrong at a chosen rate by a hash of fixed seed, and
   the head runs as it would. Predicted from the costs, and measured; not stated where tokens differ.
5. The ONNX backend on the device, where onnxruntime-gpu is there: the embedded model's tokens against those of the CPU, its costs.

Exit code: that of the tests; 1 where tokens differ without a near tie.
"""

from __future__ import annotations

import argparse
import inspect
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from attrs import asdict, frozen
from gpubench.costs import Work, call_costs, decoded, margin_at
from gpubench.forced import ForcedDrafts
from gpubench.models import SMALL, TINY, Shape, clear_model, described, head_of, largest, small_model
from gpubench.onnx_path import onnx_checks
from speedbench.figures import NEAR_TIE, Run, engine_ms, first_difference, predicted, ratio, round_cost, tokens_per_span

from spanfold.backends.torch import TorchRuntime

ROOT = Path(__file__).resolve().parent.parent
RATES = (0.0, 0.5, 0.7, 0.9, 1.0)


def say(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", file=sys.stderr, flush=True)


def run_marked_tests() -> int:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "."]
    say("$ " + " ".join(command[1:]))
    return subprocess.call(command, cwd=ROOT / "tests", stdout=sys.stderr)


def correctness(shape: Shape, work: Work, name: str) -> dict[str, Any]:
    """Runs that differ from the serial one, with and without a near tie there."""
    dtype = getattr(torch, name)
    model = small_model(shape, dtype, work.device)
    runtime = TorchRuntime(model, head=head_of(model, dtype, work.device), name=f"random {shape.name}")
    found: dict[str, Any] = {"runs": 0, "near_ties": 0, "differ": []}
    for seed in range(3):
        prompt = [(seed * 7919 + at * 104729) % shape.vocabulary for at in range(work.prompt)]
        serial = decoded(runtime, work, 0, prompt)
        # Its head is random and hardly ever right: drafts that are, at times, make spans of every length.
        forced = ForcedDrafts(runtime, [*prompt, *serial.tokens], 0.7, seed)
        for width in work.widths:
            run = decoded(forced, work, width, prompt, serial.tokens)
            found["runs"] += 1
            where = first_difference(serial.tokens, run.tokens)
            if where is None:
                continue
            margin = margin_at(runtime, prompt, where)
            if margin is not None and margin < NEAR_TIE[name]:
                found["near_ties"] += 1
            else:
                found["differ"].append({"seed": seed, "width": width, "index": where, "margin": margin})
    runtime.close()
    return found


def acceptance(runtime: TorchRuntime, work: Work, prompt: Sequence[int], serial: Run, rates: Sequence[float]) -> list[dict[str, Any]]:
    """Speed-up by rate and width; measured from a serial run next to each."""
    base = round_cost([serial], 0)
    found: list[dict[str, Any]] = []
    for rate in rates:
        forced = ForcedDrafts(runtime, [*prompt, *serial.tokens], rate)
        for width in work.widths:
            beside = decoded(runtime, work, 0, prompt, serial.tokens)
            run = decoded(forced, work, width, prompt, serial.tokens)
            tokens, cost = tokens_per_span([run]), round_cost([run], width)
            expected = None if tokens is None or cost is None or base is None else predicted(tokens, cost, base)
            speed_up, _ = ratio([beside], [run], frozenset({"same"}))
            row = {"rate": rate, "k": width, "tokens_per_span": tokens, "predicted": expected, "measured": speed_up}
            found.append(row | {"identical": run.verdict == "same", "engine_us_per_round": _us(engine_ms([run]))})
    return found


def _us(ms: float | None) -> float | None:
    return None if ms is None else ms * 1e3


def graphs(model: Any, head: Any, work: Work) -> dict[str, Any]:
    """The costs of the calls with CUDA graphs; those without are the large model's."""
    if "cuda_graphs" not in inspect.signature(TorchRuntime).parameters:
        return {"skipped": "this TorchRuntime has no option cuda_graphs"}
    if not work.device.startswith("cuda"):
        return {"skipped": "CUDA graphs need a CUDA device"}
    options: dict[str, Any] = {"cuda_graphs": True}
    return call_costs(TorchRuntime(model, head=head, name="random, graphs", **options), work)


def large(shape: Shape, work: Work, rates: Sequence[float]) -> dict[str, Any]:
    """Costs, graphs and speed-up by acceptance of one model, in bfloat16."""
    say(f"building {shape.name}: {shape.parameters / 1e9:.2f} billion weights")
    model = clear_model(shape, torch.bfloat16, work.device)
    head = head_of(model, torch.bfloat16, work.device)
    runtime = TorchRuntime(model, head=head, name=f"random {shape.name}")
    prompt = [1 + at % 250 for at in range(work.prompt)]
    report: dict[str, Any] = {"model": described(shape), "dtype": "bfloat16"}
    say("costs of the calls")
    report |= call_costs(runtime, work)
    say("serial decoding")
    decoded(runtime, work, max(work.widths), prompt)  # warm up
    serial = decoded(runtime, work, 0, prompt)
    report["serial_ms_per_token"] = serial.ms_per_token
    report["engine_us_per_serial_round"] = _us(engine_ms([serial]))
    say("speed-up by acceptance")
    report["acceptance"] = acceptance(runtime, work, prompt, serial, rates)
    say("graphs")
    report["graphs"] = graphs(model, head, work)
    runtime.close()
    return report


@frozen(kw_only=True)
class Checks:
    """What one call of the command does."""

    work: Work
    small: Shape
    large: Shape
    dtypes: Sequence[str]
    rates: Sequence[float]


def checks_of(args: argparse.Namespace) -> Checks:
    if args.dry_run:
        work = Work(device="cpu", prompt=24, tokens=24, widths=(1, 3), rows=(1, 2, 4), repeats=4)
        return Checks(work=work, small=TINY, large=TINY, dtypes=("float32", "bfloat16"), rates=(0.0, 0.7, 1.0))
    work = Work(device=args.device, prompt=args.prompt, tokens=args.tokens, widths=(1, 2, 3, 4), rows=(1, 2, 3, 4, 5, 8, 16), repeats=40)
    free, _ = torch.cuda.mem_get_info(torch.device(args.device))
    return Checks(work=work, small=SMALL, large=largest(free), dtypes=("float32", "bfloat16", "float16"), rates=RATES)


def shown(report: dict[str, Any]) -> str:
    """The report in lines for people."""
    big = report["large"]
    lines = [f"{report['device']}, torch {report['torch']}, {report['date']}"]
    for name, found in report["correctness"].items():
        lines.append(f"{name}: {found['runs']} runs, {found['near_ties']} part at near ties, {len(found['differ'])} differ elsewhere")
    lines.append(f"random {big['model']['name']}, {big['model']['parameters'] / 1e9:.2f} billion weights, {big['dtype']}")
    for name in ("verify_ms", "draft_ms", "trim_ms"):
        lines.append(f"{name}: " + ", ".join(f"{count}: {ms:.3f}" for count, ms in big[name].items()))
    lines.append(f"serial: {big['serial_ms_per_token']:.3f} ms per token, engine {big['engine_us_per_serial_round']:.0f} us per round")
    lines.append(f"graphs: {big['graphs'].get('skipped') or big['graphs']}")
    lines.append("rate   k  tokens/span  predicted  measured  engine us/round")
    for row in big["acceptance"]:
        measured = f"{row['measured']:.2f}x" if row["measured"] is not None else "tokens differ" if not row["identical"] else "-"
        expected = "-" if row["predicted"] is None else f"{row['predicted']:.2f}x"
        spans = "-" if row["tokens_per_span"] is None else f"{row['tokens_per_span']:.2f}"
        lines.append(f"{row['rate']:<4} {row['k']:>3} {spans:>12} {expected:>10} {measured:>9} {row['engine_us_per_round'] or 0:>16.0f}")
    onnx = report["onnx"]
    if "skipped" in onnx:
        lines.append(f"onnx: skipped, {onnx['skipped']}")
    else:
        costs = "; ".join(f"{name} " + ", ".join(f"{n}: {ms:.3f}" for n, ms in onnx[name].items()) for name in ("verify_ms", "draft_ms"))
        lines.append(f"onnx on {', '.join(onnx['providers'])}: {len(onnx['differ'])} differ; {costs}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N (default: cuda)")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of the prompt (default: 512)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to decode (default: 128)")
    parser.add_argument("--dry-run", action="store_true", help="tiny models on the CPU: does the script still work")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    args = parser.parse_args(arguments)
    if not args.dry_run and not (args.device.startswith("cuda") and torch.cuda.is_available()):
        print(f"error: torch finds no CUDA device for --device {args.device}; --dry-run runs on the CPU", file=sys.stderr)
        return 2
    began = time.monotonic()
    checks = checks_of(args)
    work = checks.work
    status = 0 if args.dry_run else run_marked_tests()
    report: dict[str, Any] = {
        "command": "python benchmarks/gpu_checks.py " + " ".join(sys.argv[1:] if arguments is None else arguments),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "device": platform.machine() if args.dry_run else torch.cuda.get_device_name(args.device),
        "torch": str(torch.__version__),
        "work": asdict(work),
        "marked_tests_exit": None if args.dry_run else status,
        "correctness": {},
    }
    for name in checks.dtypes:
        say(f"correctness, {name}")
        report["correctness"][name] = correctness(checks.small, work, name)
    report["large"] = large(checks.large, work, checks.rates)
    say("the ONNX backend")
    report["onnx"] = onnx_checks(work)
    report["seconds"] = time.monotonic() - began
    print(shown(report))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    differ = any(found["differ"] for found in report["correctness"].values()) or bool(report["onnx"].get("differ"))
    return status or int(differ or not all(row["identical"] for row in report["large"]["acceptance"]))


if __name__ == "__main__":
    sys.exit(main())
