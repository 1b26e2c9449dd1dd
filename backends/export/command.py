"""The command ``spanfold export``: its arguments, and what it prints."""

from __future__ import annotations

import argparse
import json
from typing import Final

from ...engine.cli.terminal import Terminal
from ...engine.extensions import Command
from .exporting import PRECISIONS, export

__all__ = ["EXPORT"]


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL_DIR", help="a Hugging Face directory, or one of the project's own models by name")
    parser.add_argument("-o", "--out", required=True, metavar="OUT", help="the directory to write; it must not be there yet, or be empty")
    parser.add_argument(
        "--precision", choices=PRECISIONS, default="fp32", help="of weights and computation; fp16 is for CUDA (default: fp32)"
    )
    parser.add_argument("--head", action="store_true", help="export the MTP layer too, as mtp.onnx")
    parser.add_argument("--python", metavar="FILE", help="interpreter with the exporters (default: of an environment that is made, once)")
    parser.add_argument("--cache", metavar="DIR", help="where that environment is made (default: $SPANFOLD_CACHE, else ~/.cache/spanfold)")
    parser.add_argument("--json", action="store_true", help="print the manifest instead of text")


def _run(args: argparse.Namespace, terminal: Terminal) -> int:
    done = export(
        args.model,
        args.out,
        precision=args.precision,
        head=args.head,
        python=args.python,
        cache_dir=args.cache,
        progress=terminal.progress,
    )
    terminal.clear_status()
    if args.json:
        terminal.line(json.dumps(done.manifest, ensure_ascii=False))
        return 0
    terminal.line(f"{done.folder}: {', '.join(done.manifest['files'])}")
    for part, found in done.manifest["checked"].items():
        terminal.line(
            f"checked against torch: the {part} chooses alike in {found['agreement']:.1%} of {found['rows']} rows, "
            f"logits within {found['error']:.1e} of the greatest",
            style="dim",
        )
    return 0


EXPORT: Final = Command(
    name="export",
    summary="write a checkpoint as an ONNX model directory, checked against torch",
    extra="torch",
    needs=("torch", "transformers", "safetensors", "numpy", "filelock"),
    arguments=_arguments,
    run=_run,
)
