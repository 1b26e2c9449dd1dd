"""What reading a long trace takes of memory: a million records must stay under 100 MB resident.

    python benchmarks/trace_memory.py [--records 1000000] [--gzip]

Writes a scripted run (many sessions) into a temporary file, then reads and folds it, session by session, in this process, and prints the
peak resident memory of reading. Linux only: it reads the peak from /proc.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from spanfold.backends.scripted import ScriptedRuntime, hash_target, noisy
from spanfold.engine import Decoder, SessionState, reduce
from spanfold.engine.state import NEW
from spanfold.engine.trace import TraceReader, TraceWriter

MOST_MIB = 100


def write(path: Path, records: int) -> int:
    """Record sessions of some 500 records until there are enough; returns how many there are."""
    runtime = ScriptedRuntime(hash_target(1, 1000), vocabulary=1000, drafts=noisy(3, 0.7))
    written = 0

    def count(_: object) -> None:
        nonlocal written
        written += 1

    with TraceWriter(path, flush="end") as writer, Decoder(runtime, policy=3, recorder=writer, observers=[count]) as decoder:
        while written < records:
            decoder.generate([1, 2, 3], max_tokens=240)
    return written


def read(path: Path) -> None:
    """Read and fold, holding the states of live sessions alone; print what it took."""
    states: dict[int, SessionState] = {}
    count = 0
    began = time.perf_counter()
    for record in TraceReader(path):
        state = reduce(states.get(record.session, NEW), record.event)
        states[record.session] = state
        if state.phase == "dropped":
            del states[record.session]
        count += 1
    took = time.perf_counter() - began
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024
    print(f"{count} records read and folded in {took:.1f} s ({count / took:,.0f} records/s), peak {peak:.0f} MiB resident")
    if peak >= MOST_MIB:
        sys.exit(f"more than {MOST_MIB} MiB")


def main() -> None:
    """Write, then read in a fresh process, so that the peak is that of reading."""
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    args.add_argument("--records", type=int, default=1_000_000)
    args.add_argument("--gzip", action="store_true", help="compressed")
    args.add_argument("--read", type=Path, help=argparse.SUPPRESS)
    options = args.parse_args()
    if options.read:
        read(options.read)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / ("run.jsonl.gz" if options.gzip else "run.jsonl")
        written = write(path, options.records)
        print(f"{written} records in {path.stat().st_size / 1e6:.0f} MB")
        sys.exit(subprocess.run([sys.executable, __file__, "--read", str(path)], check=False).returncode)


if __name__ == "__main__":
    main()
