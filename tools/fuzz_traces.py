"""Fuzz the trace reader for longer than the tests do, with other examples in every run; what breaks it is kept.

    python tools/fuzz_traces.py --examples 20000

A file that breaks what tests/support/mutated.py says of reading goes into tests/trace/fuzz/, which the tests run from then on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings

TESTS = Path(__file__).resolve().parents[1] / "tests"


def main() -> int:
    """Run until the examples are used up or something breaks."""
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    args.add_argument("--examples", type=int, default=20_000)
    examples: int = args.parse_args().examples
    sys.path.insert(0, str(TESTS / "support"))
    mutated: Any = importlib.import_module("mutated")
    last = b""
    with tempfile.TemporaryDirectory() as folder:
        # pyright does not see that the metaclass iterates over members.
        checks: list[Any] = list(HealthCheck)

        @settings(max_examples=examples, deadline=None, database=None, suppress_health_check=checks)
        @given(content=mutated.mutated())
        def run(content: bytes) -> None:
            nonlocal last
            last = content  # hypothesis ends with the smallest example that fails
            mutated.check_reading(content, Path(folder) / "fuzzed.jsonl")

        try:
            run()
        except Exception as error:
            kept = TESTS / "trace" / "fuzz" / f"{hashlib.sha256(last).hexdigest()[:12]}.jsonl"
            kept.write_bytes(last)
            print(f"{type(error).__name__}: {error}\nkept as {kept}", file=sys.stderr)
            return 1
    print(f"{examples} examples, nothing found")
    return 0


if __name__ == "__main__":
    sys.exit(main())
