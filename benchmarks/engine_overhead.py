"""What the engine itself costs per round, and whether that grows with the session.

A scripted target whose answers are ready made is decoded twice over the same tokens: by the engine (no observers, no
recorder), and by a bare loop that makes the same runtime calls and keeps nothing else. The difference is the engine.
(``--target hash`` takes the scripted runtime instead, which simulates a cache: its own work is some 20 microseconds per
round, and costs more where the engine's has passed through the processor's cache in between.)

A real model's forward displaces the engine from the processor's caches, so beside one the same round takes several times as
long. ``--displace MIB`` copies so many MiB in every forward of the canned target; the copy's own time is taken off.

    python benchmarks/engine_overhead.py [--tokens 100000] [--width 3] [--target canned|hash] [--displace MIB] [--auto] [--json FILE]

``--auto`` lets the policy choose the width, up to ``--width``; every draft is accepted, so it ends at that width. It chooses in one
round of eight, which the mean shows and the median does not (the mean leaves out the slowest hundredth: other work on the machine).

Targets (docs/explanation/numerics.md): median at most 50 microseconds per round; per-round cost around token 100,000 at
most 1.3 times that around token 1,000.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

from spanfold.backends.scripted import ScriptedRuntime, hash_target
from spanfold.engine import Ask, Decoder, Draft, DraftInfo, Forward, Policy, Rows, Runtime, RuntimeInfo, Sampling, Settle, Settled, View

PROMPT = [1, 2, 3]
WINDOW = 500  # rounds around a length over which the median is taken


class Canned:
    """A runtime that costs nothing: every span is accepted in full, every token is the next number."""

    def __init__(self, tokens: int, displace_mib: int = 0) -> None:
        self._from, self._to = bytes(displace_mib << 20), bytearray(displace_mib << 20)
        self.copying_ns = 0
        draft = DraftInfo(depth=16, context_length=tokens + 100)
        self.info = RuntimeInfo(
            backend="canned", model="canned", vocabulary=1000, context_length=tokens + 100, rollback="crop", draft=draft
        )
        self._position = 0

    def open_session(self, session: int, sampling: Sampling, drafting: bool) -> None: ...

    def configure(self, session: int, sampling: Sampling) -> None: ...

    def drop_session(self, session: int) -> None: ...

    def close(self) -> None: ...

    def view(self, session: int) -> View:
        return View(position=self._position, head_position=self._position, checkpoint=False, floor=0)

    def forward(self, calls: Sequence[Forward]) -> Sequence[Rows]:
        if self._from:
            began = time.perf_counter_ns()
            self._to[:] = self._from
            self.copying_ns += time.perf_counter_ns() - began
        call = calls[0]
        end = self._position = call.base + len(call.tokens)
        first = call.base if call.want == "all" else end - 1
        return (Rows(session=call.session, predictions=tuple([at % 1000 for at in range(first + 1, end + 1)]), position=end),)

    def settle(self, calls: Sequence[Settle]) -> Sequence[Settled]:
        self._position = calls[0].position
        return (Settled(session=calls[0].session, position=self._position),)

    def draft(self, calls: Sequence[Ask]) -> Sequence[Draft]:
        first = self._position + 1
        return (Draft(session=calls[0].session, tokens=tuple([at % 1000 for at in range(first, first + calls[0].limit)])),)


def copying_ns(runtime: Runtime) -> int:
    """The time that a canned target spent copying."""
    return runtime.copying_ns if isinstance(runtime, Canned) else 0


def make_runtime(tokens: int, target: str, displace_mib: int) -> Runtime:
    if target == "canned":
        return Canned(tokens, displace_mib)
    return ScriptedRuntime(hash_target(1, 1000), vocabulary=1000, context_length=tokens + 100)


def engine_rounds(tokens: int, policy: int | Policy, target: str, displace_mib: int = 0) -> tuple[list[int], tuple[int, ...]]:
    """Nanoseconds of each step, and the tokens."""
    took: list[int] = []
    runtime = make_runtime(tokens, target, displace_mib)
    with Decoder(runtime, policy=policy) as decoder, decoder.open(PROMPT, max_tokens=tokens) as session:
        session.step()  # the prefill
        while not session.finished:
            copied = copying_ns(runtime)
            began = time.perf_counter_ns()
            session.step()
            took.append(time.perf_counter_ns() - began - (copying_ns(runtime) - copied))
        return took, session.result.tokens


def bare_rounds(tokens: int, width: int, target: str, displace_mib: int = 0) -> tuple[list[int], tuple[int, ...]]:
    """The same runtime calls from a loop that keeps a list of tokens and nothing else."""
    runtime = make_runtime(tokens, target, displace_mib)
    runtime.open_session(0, Sampling(), True)
    row = runtime.forward((Forward(session=0, base=0, tokens=tuple(PROMPT), want="last", canonical=True),))[0]
    out: list[int] = list(row.predictions)  # type: ignore[union-attr]
    took: list[int] = []
    base = len(PROMPT)
    while len(out) < tokens:
        copied = copying_ns(runtime)
        began = time.perf_counter_ns()
        limit = min(width, tokens - len(out) - 1)
        call: Any
        if limit:
            draft = tuple(runtime.draft((Ask(session=0, current=out[-1], limit=limit),))[0].tokens)  # type: ignore[union-attr]
            call = Forward(session=0, base=base, tokens=(out[-1], *draft), want="all", canonical=False)
            predictions = runtime.forward((call,))[0].predictions  # type: ignore[union-attr]
            count = 1
            for drafted, predicted in zip(draft, predictions, strict=False):
                if drafted != predicted:
                    break
                count += 1
            runtime.settle((Settle(session=0, base=base, rows=len(draft) + 1, position=base + count),))
        else:
            call = Forward(session=0, base=base, tokens=(out[-1],), want="last", canonical=True)
            predictions, count = runtime.forward((call,))[0].predictions, 1  # type: ignore[union-attr]
        out.extend(predictions[:count])
        base += count
        took.append(time.perf_counter_ns() - began - (copying_ns(runtime) - copied))
    return took, tuple(out)


def around(took: list[int], token: int, per_round: float) -> float:
    """Median microseconds of the rounds around a session length."""
    middle = int(token / per_round)
    window = took[max(0, middle - WINDOW) : middle + WINDOW] or took[-WINDOW:]
    return statistics.median(window) / 1e3


def mean(took: list[int]) -> float:
    """The mean without the slowest hundredth."""
    return statistics.fmean(sorted(took)[: max(1, len(took) * 99 // 100)])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=3)
    parser.add_argument("--target", choices=("canned", "hash"), default="canned")
    parser.add_argument("--displace", type=int, default=0, metavar="MIB", help="copied in every forward of the canned target")
    parser.add_argument("--auto", action="store_true", help="let the policy choose the width, up to --width")
    parser.add_argument("--json", help="write the figures here")
    args = parser.parse_args()
    policy = Policy(kind="auto", width=args.width) if args.auto else args.width
    engine_rounds(2_000, policy, args.target)  # warm up
    engine, tokens = engine_rounds(args.tokens, policy, args.target, args.displace)
    bare, expected = bare_rounds(args.tokens, args.width, args.target, args.displace)
    if tokens != expected:
        print("the engine's tokens differ from the bare loop's: no figures", file=sys.stderr)
        return 1
    per_round = args.tokens / len(engine)
    early, late = around(engine, 1_000, per_round), around(engine, args.tokens - 1_000, per_round)
    figures = {
        "command": "python benchmarks/engine_overhead.py " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "tokens": args.tokens,
        "width": args.width,
        "auto": args.auto,
        "target": args.target,
        "displaced_mib": args.displace,
        "rounds": len(engine),
        "engine_us_per_round": statistics.median(engine) / 1e3,
        "bare_us_per_round": statistics.median(bare) / 1e3,
        "overhead_us_per_round": (statistics.median(engine) - statistics.median(bare)) / 1e3,
        "mean_overhead_us": (mean(engine) - mean(bare)) / 1e3,
        "us_at_1000": early,
        "us_at_end": late,
        "growth": late / early,
    }
    for name, value in figures.items():
        print(f"{name:22} {value:.2f}" if isinstance(value, float) else f"{name:22} {value}")
    if args.json:
        with open(args.json, "w") as file:
            json.dump(figures, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
