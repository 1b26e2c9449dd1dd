"""The arguments of the command line, and what becomes of errors."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Final, Literal, NoReturn

from .. import extensions, registry
from ..errors import ConfigError, SpanfoldError
from .terminal import Terminal
from .trace_arguments import TRACE_COMMANDS, add_trace_commands

__all__ = ["main"]

ERROR = 2
INTERRUPTED = 130
BROKEN_PIPE = 141


class _Parser(argparse.ArgumentParser):
    """Errors in one line with a hint."""

    def error(self, message: str) -> NoReturn:
        self.exit(ERROR, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _count(least: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, not {text!r}")
        return number

    return parse


def _width(text: str) -> int | Literal["auto"]:
    if text == "auto":
        return "auto"
    try:
        return _count(0)(text)
    except argparse.ArgumentTypeError as error:
        raise argparse.ArgumentTypeError(f"must be auto or an integer of at least 0, not {text!r}") from error


#: The commands of the engine itself; the others are added by packages (extensions.py) and looked for only when needed.
BUILT_IN: Final = ("generate", *TRACE_COMMANDS, "backends")


def parser(*, extended: bool = True) -> argparse.ArgumentParser:
    """The parser of all commands; with ``extended`` False, of the engine's own."""
    made = _Parser(prog="spanfold", description="Decode language models with native multi-token prediction, and account for it.")
    made.add_argument("--version", action="version", version=f"spanfold {_version()}")
    commands = made.add_subparsers(dest="command", metavar="COMMAND", required=True, parser_class=_Parser)

    one = commands.add_parser(
        "generate",
        help="decode a prompt, stream its text and say what speculation saved",
        description="Decode a prompt, stream its text as it is committed, and say what speculation saved.",
        epilog="Exit codes: 0 done, 1 --compare found different tokens, 2 an error, 130 interrupted.",
    )
    one.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; without it, standard input is read")
    one.add_argument(
        "--model",
        metavar="DIR",
        help="a Hugging Face directory, or a model of the backend's own (see spanfold backends)",
    )
    one.add_argument("--backend", default="torch", metavar="NAME", help="what runs the model: see `spanfold backends` (default: torch)")
    one.add_argument("--max-tokens", type=_count(0), default=256, metavar="N", help="most tokens to generate (default: 256)")
    one.add_argument(
        "--max-draft", type=_width, metavar="K", help="tokens to draft per span: a number, or auto for as many as pay (default: auto)"
    )
    one.add_argument("--no-speculation", action="store_true", help="one target forward per token")
    one.add_argument("--prompt-lookup", action="store_true", help="draft from what stands earlier in the text, not from the model's head")
    one.add_argument("--device", metavar="NAME", help="where the model runs, cpu or cuda for example (default: the backend's choice)")
    one.add_argument("--dtype", metavar="NAME", help="float32, bfloat16, float16 or int4 (default: the backend's choice)")
    one.add_argument(
        "--chat",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="put the prompt into the model's chat template, or do not (default: if it has one)",
    )
    one.add_argument("--trace", metavar="FILE", help="append the records of the generation to FILE; they hold the prompt's tokens")
    one.add_argument("--redact", action="store_true", help="write the trace with other token ids and without texts, for strangers to see")
    one.add_argument("--events", action="store_true", help="print the event log as it happens")
    one.add_argument("--compare", action="store_true", help="also run without speculation and compare tokens and speed")
    one.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    for watching in extensions.watchings().values():
        watching.arguments(one)

    add_trace_commands(commands)

    two = commands.add_parser("backends", help="list what is installed and what an extra would add")
    two.add_argument("--json", action="store_true", help="print one JSON array instead of text")
    if extended:
        for command in extensions.commands().values():
            if command.name in BUILT_IN:
                raise ConfigError(f"an installed package announces a command {command.name!r}, which is one of the engine's own; remove it")
            command.arguments(commands.add_parser(command.name, help=command.summary, description=f"{command.summary}."))
    return made


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("spanfold")
    except PackageNotFoundError:
        return "(not installed)"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        argv: the arguments, without the program's name; None: those of the process.

    Returns:
        The exit code: 0, 1 (violated, diverged, different), 2 (an error), 130 (interrupted).
    """
    given = list(sys.argv[1:] if argv is None else argv)
    try:
        args = parser(extended=not given or given[0] not in BUILT_IN).parse_args(given)
    except ConfigError as error:  # of an installed package that adds to the command line
        sys.stderr.write(f"spanfold: {error}\n")
        return ERROR
    if sys.stdout is None:
        if sys.stderr is not None:
            sys.stderr.write(f"spanfold {args.command}: standard output is closed: leave it open, or send it to {os.devnull}\n")
        return ERROR
    terminal = Terminal()
    try:
        if args.command == "backends":
            return _backends(args, terminal)
        if args.command in TRACE_COMMANDS:
            return _on_traces(args, terminal)
        if args.command not in BUILT_IN:
            command = extensions.commands()[args.command]
            extensions.require(f"spanfold {command.name}", command.needs, command.extra)
            return command.run(args, terminal)
        from .generate import run

        return run(args, terminal)
    except KeyboardInterrupt:
        terminal.note("spanfold: interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of the output went away (`| head`); nothing more can be said there, not even by the interpreter at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        if os.environ.get("SPANFOLD_TRACEBACK"):
            traceback.print_exc()
        terminal.note(f"spanfold {args.command}: {_explained(error)}")
        return ERROR


def _on_traces(args: argparse.Namespace, terminal: Terminal) -> int:
    from . import replaying, traces

    run = {
        "check": traces.run_check,
        "dump": traces.run_dump,
        "stats": traces.run_stats,
        "replay": replaying.run_replay,
        "diff": replaying.run_diff,
        "resume": replaying.run_resume,
    }
    return run[args.command](args, terminal)


def _explained(error: Exception) -> str:
    message = " ".join(str(error).split()) or "no message"
    if isinstance(error, SpanfoldError):
        return message
    if isinstance(error, OSError) and error.strerror:
        place = f"{error.filename}: " if error.filename else ""
        return f"{place}{error.strerror} (check the path and its permissions)"
    return f"{type(error).__name__}: {message} (SPANFOLD_TRACEBACK=1 shows where)"


def _backends(args: argparse.Namespace, terminal: Terminal) -> int:
    known = registry.backends()
    if args.json:
        shown = [
            {
                "name": one.name,
                "installed": not one.missing(),
                "missing": list(one.missing()),
                "install": one.remedy() if one.missing() else None,
                "summary": one.summary,
                "default_model": one.default_model,
            }
            for one in known.values()
        ]
        terminal.line(json.dumps(shown, ensure_ascii=False))
        return 0
    for one in known.values():
        missing = one.missing()
        state = f"needs {', '.join(missing)}: {one.remedy()}" if missing else "installed"
        terminal.line(f"{one.name:<10} {state}", style="plain" if missing else "bold")
        terminal.line(f"{'':<10} {one.summary}")
        terminal.line(f"{'':<10} default model: {one.default_model or 'none, name one with --model'}")
    if not known:
        terminal.line("no backend is installed: pip install spanfold")
    return 0
