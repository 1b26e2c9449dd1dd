"""Write the traces of docs/find-the-bug.md: one prompt on a runtime whose trims do not restore the recurrent state, and serially.

    python tools/make_broken_trace.py [FOLDER]      # default: docs/traces

The broken runtime is the scripted one with one line changed. Positions, settles and checkpoints are as they should be; only
the content of the state is wrong after a trim: what a missing snapshot does on a real recurrent layer.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from spanfold.backends.scripted import Fault, ScriptedRuntime, hash_target, noisy
from spanfold.engine import Decoder, Extras
from spanfold.engine.trace import TraceWriter

PROMPT = (3, 1, 4, 1, 5)


def write(path: Path, width: int, faults: Sequence[Fault] = ()) -> None:
    """Record one decode."""
    path.unlink(missing_ok=True)
    runtime = ScriptedRuntime(
        hash_target(seed=2, vocabulary=64), drafts=noisy(47, 0.85), rollback="checkpoint", faults=faults, model="recurrent toy"
    )
    clock = iter(range(0, 10**12, 1000))  # the traces are committed: the same bytes every time
    with (
        TraceWriter(path) as writer,
        Decoder(runtime, policy=width, recorder=writer, extras=Extras(margins=True), clock=lambda: next(clock)) as decoder,
    ):
        decoder.generate(PROMPT, max_tokens=24)


def main() -> None:
    """Write both traces."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parents[1] / "docs" / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "serial.jsonl", 0)
    write(folder / "broken.jsonl", 3, [Fault(call="settle", at=0, times=1000, wrong="keep_state")])


if __name__ == "__main__":
    main()
