"""Record the golden traces of the present format version: what every later version must read.

    python tools/record_traces.py tests/trace/golden-3      # an empty or missing folder: a recorded one is never changed

The sessions are those of tests/support/corpus.py; clocks and library versions are fixed, so that the files come out the same.
A change of the wire form is a new version of the format and a new folder beside this one, never other bytes in it.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import attrs

from spanfold.engine import DecodeFailed, Record
from spanfold.engine.trace import TraceWriter

SUPPORT = Path(__file__).resolve().parents[1] / "tests" / "support"

#: file -> sessions of the corpus; more than one are interleaved only where the name says so.
FILES: Mapping[str, Sequence[str]] = {
    "accepted": ("accepted",),
    "rejected": ("plain", "rejected", "early exit"),
    "serial": ("serial", "no source", "short", "window", "give up", "invalid"),
    "cut-stop-token": ("stop draft", "stop bonus", "stop first", "stop masked", "own stop", "ignored"),
    "cut-stop-text": ("stop text", "stop text serial"),
    "cut-stop-when": ("stop when",),
    "cut-stop-when-error": ("stop error", "stop error serial"),
    "cut-length": ("last token", "context", "nothing", "full context"),
    "cut-cancelled": ("cancel once after SpanVerified", "cancel with a restored draft"),
    "cancelled": ("cancel 0", "cancel 3", "cancel chunks 2", "cancel chunks 3", "cancel once after DraftOffered"),
    "closed": ("closed early", "closed before", "closed with a restored draft"),
    "failures-open": ("open 0 crash", "open 0 refusal"),
    "failures-forward": tuple(f"forward {at} {kind}" for at in (0, 1, 2) for kind in ("crash", "refusal")),
    "failures-settle": tuple(f"settle {at} {kind}" for at in (0, 1) for kind in ("crash", "refusal")),
    "failures-draft": ("draft 0 crash", "draft 1 refusal"),
    "failures-contract": (
        *(f"forward {wrong}" for wrong in ("short", "position", "vocabulary", "lost_row")),
        *(f"settle {wrong}" for wrong in ("position", "trim_noop")),
    ),
    "failures-other": ("twice", "refused twice", "drop", "configure"),
    "extended": ("turns", "extended with a restored draft"),
    "rewound": ("turns checkpoint", "rewound to one", "rewound before the turn", "rewound with a restored draft"),
    "resumed": ("resumed 1", "resumed 5", "resumed 9", "resumed with a restored draft"),
    "adaptive": ("auto, paying", "auto, from a prior", "auto, not paying", "auto, as it goes", "auto, cancelled", "auto, resumed"),
    "interleaved": ("accepted", "stop text", "forward 1 crash", "cancel 3", "turns", "resumed 5"),
}
BEGAN = 1_796_083_200_000_000_000
LIBRARIES = {"python": "3.11.7", "spanfold": "0.1.0", "attrs": "26.1.0", "cattrs": "26.2.1"}


def timeless(log: Iterable[Record], session: int) -> list[Record]:
    """The records with a session number of their own, and with times that are the same in every run."""
    made: list[Record] = []
    log = list(log)
    opened: Any = log[0].event
    decided_by_costs = opened.policy.kind == "auto"  # and they are the scripted runtime's, the same in every run
    for record in log:
        event: Any = record.event
        if not decided_by_costs and hasattr(event, "cost_ns"):
            event = attrs.evolve(event, cost_ns=1000 + record.seq)
        made.append(Record(seq=record.seq, session=session, at_ns=BEGAN + 1_000_000 * record.seq, event=event))
    return made


def in_turns(logs: Sequence[Sequence[Record]]) -> list[Record]:
    """One record of each session after the other."""
    longest = max(map(len, logs))
    return [log[at] for at in range(longest) for log in logs if at < len(log)]


def write(path: Path, records: Iterable[Record], **options: Any) -> None:
    """One segment."""
    with TraceWriter(path, **options) as writer:
        for record in records:
            writer.write(record)


def record_all(folder: Path) -> None:
    """Write every file, and SHA256SUMS over them."""
    sys.path.insert(0, str(SUPPORT))
    logs: dict[str, list[Record]] = importlib.import_module("corpus").logs()
    for name, sessions in FILES.items():
        chosen = [timeless(logs[one], number) for number, one in enumerate(sessions)]
        records = in_turns(chosen) if name == "interleaved" else [record for log in chosen for record in log]
        write(folder / f"{name}.jsonl", records)
    first, second = timeless(logs["plain"], 0), timeless(logs["accepted"], 1)
    write(folder / "failed.jsonl", timeless(failed(), 0))
    torn = folder / "torn.jsonl"
    write(torn, first)
    cut(torn, lines=len(first) - 3)
    write(torn, second)
    cut(torn, lines=len(first) - 3 + 2 + len(second) - 4)
    write(folder / "compressed.jsonl.gz", first)
    write(folder / "compressed.jsonl.gz", second)
    write(folder / "redacted.jsonl", timeless(logs["stop text"], 0), redact=True, key=b"the golden key is not a secret")
    files = sorted(path for path in folder.iterdir())
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (folder / "SHA256SUMS").write_text(sums, encoding="ascii")


def failed() -> list[Record]:
    """A whole turn that fails; an opened session, as in the corpus, would go on."""
    fault = importlib.import_module("spanfold.backends.scripted").Fault(call="forward", at=2, started=True, done=None)
    bench: Any = importlib.import_module("harness").Bench(faults=[fault])
    with suppress(DecodeFailed):
        bench.decoder.generate((1, 2, 3), max_tokens=9)
    return bench.logs[0]


def cut(path: Path, lines: int) -> None:
    """Keep some lines and a part of the next one."""
    content = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(content[:lines]) + content[lines][:40])


def main() -> int:
    """Record into the folder that is named."""
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    args.add_argument("folder", type=Path, help="where to; must be empty or missing")
    folder: Path = args.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        print(f"{folder} holds something already: golden traces are recorded once, into an empty folder", file=sys.stderr)
        return 1
    with patch("time.time_ns", return_value=BEGAN), patch("spanfold.engine.trace.writer.libraries", return_value=LIBRARIES):
        record_all(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
