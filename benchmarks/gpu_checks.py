"""All that a GPU must show, in a few minutes and one command: the marked tests, then what rows, drafts and trims cost.

    python benchmarks/gpu_checks.py [--device cuda] [--json FILE]
    python benchmarks/gpu_checks.py --device cpu --layers 2 --hidden 64     # dry run of the same code without a GPU

1. Runs ``pytest -m gpu`` over tests/ (left out on the CPU, where those tests skip).
2. Builds a randomly initialised Llama with a randomly initialised MTP head on the device, in bfloat16 and float32, and
   decodes the same prompt with and without speculation. Tokens are compared first; where they differ, the first difference
   is reported with its top-2 margin. A random head is hardly ever accepted, so no speed-up is printed, only costs.
3. Prints medians: a serial step, a verify by rows, a draft step, the engine's share; writes them as JSON if asked.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from spanfold.backends.torch import MtpHead, TorchRuntime
from spanfold.engine import Ask, Decoder, Extras, Forward, Record, Sampling, SerialDecoded, Settle, SpanVerified

ROOT = Path(__file__).resolve().parent.parent


def run_marked_tests() -> int:
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "."]
    print("$", " ".join(command), flush=True)
    return subprocess.call(command, cwd=ROOT / "tests")


def build(args: argparse.Namespace, dtype: torch.dtype) -> TorchRuntime:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=args.vocabulary,
        hidden_size=args.hidden,
        intermediate_size=4 * args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=max(args.hidden // 128, 1),
        num_key_value_heads=max(args.hidden // 512, 1),
        max_position_embeddings=8192,
    )
    with torch.device(args.device):
        model: Any = LlamaForCausalLM(config)
        model = model.to(dtype).eval()
        head = MtpHead(model).to(dtype).eval()
        head.requires_grad_(False)
    return TorchRuntime(model, head=head, name="random llama")


def timed(call: Callable[[], Any], device: str) -> float:
    """Milliseconds of one call, the device's work included."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return (time.perf_counter() - began) * 1e3


def costs(runtime: TorchRuntime, args: argparse.Namespace) -> dict[str, float]:
    """Median milliseconds of each protocol call at the prompt's length."""
    session = 10**6  # far from the ids that decoders count up from 0
    runtime.open_session(session, Sampling(), True)
    prompt = tuple(range(1, args.prompt + 1))
    runtime.forward((Forward(session=session, base=0, tokens=prompt, want="last", canonical=True),))
    base = len(prompt)
    figures: dict[str, float] = {}
    for limit in range(1, args.width + 1):
        took = [timed(lambda n=limit: runtime.draft((Ask(session=session, current=7, limit=n),)), args.device) for _ in range(args.repeats)]
        figures[f"draft_{limit}_ms"] = statistics.median(took[args.repeats // 4 :])
    for rows in range(1, args.width + 2):
        tokens = tuple(range(7, 7 + rows))
        forward, settle = [], []
        for _ in range(args.repeats):
            call = Forward(session=session, base=base, tokens=tokens, want="all", canonical=False)
            forward.append(timed(lambda call=call: runtime.forward((call,)), args.device))
            back = Settle(session=session, base=base, rows=rows, position=base)
            settle.append(timed(lambda back=back: runtime.settle((back,)), args.device))
        figures[f"verify_{rows}_rows_ms"] = statistics.median(forward[args.repeats // 4 :])
        figures[f"trim_after_{rows}_ms"] = statistics.median(settle[args.repeats // 4 :])
    runtime.drop_session(session)
    return figures


def decode(runtime: TorchRuntime, args: argparse.Namespace, width: int) -> tuple[tuple[int, ...], list[Record], float]:
    records: list[Record] = []
    prompt = list(range(1, args.prompt + 1))
    with Decoder(runtime, policy=width, observers=[records.append], extras=Extras(margins=True)) as decoder:
        began = time.perf_counter()
        result = decoder.generate(prompt, max_tokens=args.tokens, stop_tokens=())
        return result.tokens, records, (time.perf_counter() - began) * 1e3 / args.tokens


def margin_at(records: list[Record], index: int) -> float | None:
    """The top-2 margin of the choice of the ``index``-th token of a serial run (the first comes from the prefill)."""
    serial = [r.event for r in records if isinstance(r.event, SerialDecoded)]
    return serial[index - 1].margin if 0 < index <= len(serial) else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--width", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        print("error: no CUDA device is available to torch; for a dry run use --device cpu --layers 2 --hidden 64", file=sys.stderr)
        return 2
    status = run_marked_tests() if args.device.startswith("cuda") else 0
    hardware = torch.cuda.get_device_name(args.device) if args.device.startswith("cuda") else platform.machine()
    report: dict[str, Any] = {"device": hardware, "torch": torch.__version__, "marked_tests_exit": status, "arguments": vars(args)}
    for dtype in (torch.bfloat16, torch.float32):
        runtime = build(args, dtype)
        figures: dict[str, Any] = dict(costs(runtime, args))
        decode(runtime, args, args.width)  # warm up
        serial, serial_log, serial_ms = decode(runtime, args, 0)
        tokens, log, ms = decode(runtime, args, args.width)
        figures["serial_ms_per_token"] = serial_ms
        figures["spans_with_random_head_ms_per_token"] = ms
        figures["spans"] = sum(isinstance(r.event, SpanVerified) for r in log)
        figures["identical"] = tokens == serial
        if tokens != serial:
            first = next(at for at, (a, b) in enumerate(zip(tokens, serial, strict=False)) if a != b)
            figures["first_difference"] = {"index": first, "margin": margin_at(serial_log, first)}
        report[str(dtype).removeprefix("torch.")] = figures
        runtime.close()
    print(json.dumps(report, indent=1))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1))
    return status


if __name__ == "__main__":
    sys.exit(main())
