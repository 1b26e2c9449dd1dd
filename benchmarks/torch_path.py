"""What a decode step of the torch backend costs: by rows, by path, by dtype.

    python benchmarks/torch_path.py                                   # the demo model
    python benchmarks/torch_path.py --model small                     # random, 10 layers of 192: an embedded model's size
    python benchmarks/torch_path.py --model DIR --dtypes bfloat16 --threads 1 --json out.json

Each variant (the decode path with packed and with plain weights, with other row widths, and transformers' modules) runs the same calls,
one after the other in every repeat, so that a slow moment of the machine meets all of them. Medians and minima in milliseconds.
``products`` is the share of a one-row forward's operator time that is matrix products, by torch's profiler.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile
from transformers import LlamaConfig, LlamaForCausalLM

from spanfold.backends.models import assemble
from spanfold.backends.torch import MtpHead, TorchRuntime
from spanfold.engine.runtime import Ask, Forward, Settle
from spanfold.engine.values import Sampling

VARIANTS: dict[str, dict[str, Any]] = {
    "own": {},
    "own, row_width 1": {"row_width": 1},
    "own, row_width 4": {"row_width": 4},
    "own, plain weights": {"packed": False},
    "modules": {"modules": True},
}
_PRODUCTS = ("linear_pointwise", "aten::addmm", "aten::mm", "aten::linear", "mkldnn")


def small_model(dtype: torch.dtype) -> tuple[Any, MtpHead]:
    """A random Llama of an embedded model's size, and a head."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=192,
        num_hidden_layers=10,
        num_attention_heads=6,
        num_key_value_heads=2,
        intermediate_size=512,
        vocab_size=2048,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).to(dtype)  # pyright: ignore[reportArgumentType]
    return model, MtpHead(model).to(dtype).eval().requires_grad_(False)


def opened(model: str, dtype: str, options: Mapping[str, Any]) -> TorchRuntime:
    """A runtime of the demo model, the small one, or a directory."""
    if model == "small":
        made, head = small_model(getattr(torch, dtype))
        return TorchRuntime(made, head=head, name="small", **options)
    return TorchRuntime.from_pretrained(assemble() if model == "demo" else model, dtype=dtype, **options)


def calls(runtime: TorchRuntime, prompt: int, rows: Sequence[int], depth: int) -> dict[str, Callable[[], None]]:
    """Name -> a call to time; each leaves the session as it was."""
    tokens = tuple(3 + n % 500 for n in range(prompt))
    runtime.open_session(0, Sampling(), True)
    runtime.forward([Forward(session=0, base=0, tokens=tokens, want="last", canonical=True)])
    runtime.draft([Ask(session=0, current=7, limit=1)])

    def verify(count: int) -> None:
        runtime.forward([Forward(session=0, base=prompt, tokens=tokens[:count], want="all", canonical=False)])
        runtime.settle([Settle(session=0, base=prompt, rows=count, position=prompt)])

    made: dict[str, Callable[[], None]] = {f"rows {count}": lambda count=count: verify(count) for count in rows}
    for limit in (1, depth):
        made[f"draft {limit}"] = lambda limit=limit: void(runtime.draft([Ask(session=0, current=7, limit=limit)]))
    return made


def void(result: object) -> None:
    """Drop it."""


def interleaved(groups: Mapping[str, Mapping[str, Callable[[], None]]], seconds: float) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of every call of every group, one call of each in turn until the time is over (three times at least)."""
    times: dict[str, dict[str, list[float]]] = {name: {call: [] for call in group} for name, group in groups.items()}
    until, turn = time.monotonic() + seconds, 0
    while turn < 4 or time.monotonic() < until:
        for name, group in groups.items():
            for call, run in group.items():
                began = time.perf_counter()
                run()
                if turn:  # the first turn warms up
                    times[name][call].append((time.perf_counter() - began) * 1e3)
        turn += 1
    return times


def products(run: Callable[[], None]) -> float:
    """Share of the operators' own time that is matrix products."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        for _ in range(3):
            run()
    averages: list[Any] = list(seen.key_averages())
    whole = sum(one.self_cpu_time_total for one in averages)
    return sum(one.self_cpu_time_total for one in averages if any(word in one.key for word in _PRODUCTS)) / whole


def measured(
    model: str, dtype: str, variants: Sequence[str], rows: Sequence[int], prompt: int, depth: int, seconds: float
) -> dict[str, Any]:
    """Figures per variant."""
    runtimes = {name: opened(model, dtype, VARIANTS[name]) for name in variants}
    groups = {name: calls(runtime, prompt, rows, depth) for name, runtime in runtimes.items()}
    times = interleaved(groups, seconds)
    figures: dict[str, Any] = {}
    for name, runtime in runtimes.items():
        one: dict[str, Any] = {
            call: {"median": round(statistics.median(taken), 3), "least": round(min(taken), 3)} for call, taken in times[name].items()
        }
        one["head step"] = round((one[f"draft {depth}"]["median"] - one["draft 1"]["median"]) / (depth - 1), 3)
        one["row_exact"] = runtime.info.row_exact
        one["products"] = round(products(groups[name]["rows 1"]), 3)
        figures[name] = one
        runtime.close()
    return figures


def main() -> None:
    """Measure, print a table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo", help="demo, small, or a directory")
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=20, help="per dtype, without loading")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.depth < 2 or 1 not in args.rows:
        parser.error("--depth must be at least 2, and 1 among --rows")
    report: dict[str, Any] = {
        "date": datetime.now(UTC).date().isoformat(),
        "arguments": {key: str(value) for key, value in vars(args).items()},
        "torch": torch.__version__,
        "machine": platform.machine(),
        "figures": {},
    }
    for dtype in args.dtypes:
        figures = measured(args.model, dtype, args.variants, args.rows, args.prompt, args.depth, args.seconds)
        report["figures"][dtype] = figures
        for name, one in figures.items():
            cells = "  ".join(
                f"{call} {value['median']:.2f} ({value['least']:.2f})" for call, value in one.items() if isinstance(value, dict)
            )
            print(
                f"{dtype:9} {name:20} {cells}  head step {one['head step']}  exact {one['row_exact']}  products {one['products']:.0%}",
                flush=True,
            )
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
