"""What traces cost: writing one, reading and folding it, deciding it again; and whether that stays linear.

    python benchmarks/trace_cost.py [--records 10000 100000 1000000] [--json FILE] [--profile]

The run that is recorded is a scripted one, so the target costs next to nothing. Each figure is the best of --repeats runs
(other work on the machine only ever adds). Writing is compared with the same run without a recorder in the same process.
Targets: writing at most 15 microseconds per record; reading and folding at least 50,000 records/s, folding in memory
200,000 events/s, redriving 15,000 rounds/s, each on one core.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import platform
import pstats
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy
from spanfold.engine import Committed, Decoder, Record, fold
from spanfold.engine.replay import Replayer
from spanfold.engine.trace import TraceReader, TraceWriter

RECORDS_PER_TOKEN = 2.1  # of this run: some 5 records per span, some 2.4 tokens per span


def decode(tokens: int, recorder: TraceWriter | None, observers: tuple[Callable[[Record], object], ...] = ()) -> None:
    runtime = ScriptedRuntime(hash_target(1, 1000), vocabulary=1000, drafts=noisy(3, 0.7), context_length=tokens + 100)
    with Decoder(runtime, policy=3, recorder=recorder, observers=observers) as decoder:
        decoder.generate([1, 2, 3], max_tokens=tokens)


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def best(repeats: int, work: Callable[[], Any]) -> float:
    return min(seconds(work) for _ in range(repeats))


def measure(records: int, repeats: int, folder: Path) -> dict[str, Any]:
    tokens = max(int(records / RECORDS_PER_TOKEN), 16)
    path = folder / "run.jsonl"

    def recorded() -> None:
        path.unlink(missing_ok=True)
        with TraceWriter(path) as writer:
            decode(tokens, writer)

    log: list[Record] = []
    decode(tokens, None, (log.append,))
    # Against a run whose records are made and looked at, so that the difference is the writer alone.
    bare = best(repeats, lambda: decode(tokens, None, (lambda _: None,)))
    written = best(repeats, recorded)
    rounds = sum(isinstance(record.event, Committed) for record in log)
    if [record.event for record in TraceReader(path)] != [record.event for record in log]:
        raise SystemExit("the trace read back is not the run that was recorded: no figures")
    return {
        "records": len(log),
        "bytes_per_record": path.stat().st_size / len(log),
        "write_us_per_record": (written - bare) / len(log) * 1e6,
        "read_and_fold_records_per_s": len(log) / best(repeats, lambda: fold(iter(TraceReader(path)))),
        "fold_events_per_s": len(log) / best(repeats, lambda: fold(log)),
        "redrive_rounds_per_s": rounds / best(repeats, lambda: Replayer().replay(log)),
    }


def profile(folder: Path) -> None:
    """The ten costliest functions of each part, over some 20,000 records."""
    path = folder / "profiled.jsonl"
    log: list[Record] = []
    decode(9_500, None, (log.append,))

    def write() -> None:
        with TraceWriter(path) as writer:
            for record in log:
                writer.write(record)

    for name, work in (
        ("write", write),
        ("read and fold", lambda: fold(iter(TraceReader(path)))),
        ("redrive", lambda: Replayer().replay(log)),
    ):
        profiler = cProfile.Profile()
        profiler.runcall(work)
        print(f"\n-- {name}, {len(log)} records")
        pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(10)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", help="write the figures here")
    parser.add_argument("--profile", action="store_true", help="also print where the time goes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        report = {
            "command": "python benchmarks/trace_cost.py " + " ".join(sys.argv[1:]),
            "python": platform.python_version(),
            "machine": platform.machine(),
            "sizes": [measure(records, args.repeats, Path(folder)) for records in args.records],
        }
        for figures in report["sizes"]:
            print("  ".join(f"{name} {value:,.1f}" if isinstance(value, float) else f"{name} {value:,}" for name, value in figures.items()))
        if args.profile:
            profile(Path(folder))
    if args.json:
        Path(args.json).write_text(json.dumps(report, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
