"""``spanfold generate``: decode one prompt, stream its text, give the account."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from attrs import evolve

from ..decoder import Decoder, PolicyLike, Result
from ..errors import ConfigError, DecodeFailed, RecorderFailed
from ..events import Prefilled, Record, SerialDecoded
from ..extensions import watchings
from ..hooks import AnyObserver
from ..registry import Opened, OpenOptions, backend
from ..replay.rounds import RoundCounter
from ..runtime import NO_EXTRAS, Extras
from ..text import TextStream
from ..trace import TraceWriter
from ..values import Policy
from .account import Comparison, Run, as_json, lines
from .eventlog import EventLog
from .terminal import Terminal

__all__ = ["run"]

_WARM_UP_TOKENS: Final = 8
INTERRUPTED: Final = 130
DIFFERENT: Final = 1


def run(args: argparse.Namespace, terminal: Terminal) -> int:
    """Carry out the command; returns the exit code. ConfigError and OSError are for the caller to print."""
    prompt = _prompt(args)
    if args.no_speculation and args.prompt_lookup:
        raise ConfigError("--no-speculation and --prompt-lookup exclude each other: leave out one")
    if args.no_speculation and args.max_draft is not None:
        raise ConfigError("--no-speculation and --max-draft exclude each other: leave out one")
    if args.redact and args.trace is None:
        raise ConfigError("--redact is for the trace: name its file with --trace, or leave out --redact")
    if isinstance(args.max_draft, int):
        Policy(width=args.max_draft)
    chosen = backend(args.backend)
    drafting = not args.no_speculation and not args.prompt_lookup and args.max_draft != 0
    options = OpenOptions(model=args.model, device=args.device, dtype=args.dtype, drafting=drafting, progress=terminal.progress)
    with ExitStack() as stack:
        # The trace is opened first: a path that cannot be written is better known before a model is loaded.
        recorder = stack.enter_context(TraceWriter(args.trace, redact=args.redact)) if args.trace is not None else None
        watching = [stack.enter_context(one.open(args, terminal)) for one in watchings().values()]
        opened = chosen.open(options)
        stack.callback(opened.runtime.close)
        terminal.clear_status()
        command = _Generation(args, terminal, opened, tuple(opened.encode(prompt, args.chat)))
        return command.run(recorder, [one for one in watching if one is not None])


def _prompt(args: argparse.Namespace) -> str:
    if args.prompt is not None:
        prompt: str = args.prompt
    else:
        if sys.stdin is None or sys.stdin.isatty():
            raise ConfigError("give a prompt: spanfold generate 'def read_lines(path):' (or pipe one in)")
        prompt = sys.stdin.buffer.read().decode("utf-8", "surrogateescape").removesuffix("\n")
    try:
        prompt.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"the prompt is not valid UTF-8 (at character {error.start})") from error
    return prompt


class _Generation:
    def __init__(self, args: argparse.Namespace, terminal: Terminal, opened: Opened, prompt: Sequence[int]) -> None:
        self._args = args
        self._terminal = terminal
        self._opened = opened
        self._prompt = prompt
        self._cancel = threading.Event()
        self._policy: PolicyLike = 0 if args.no_speculation else "auto" if args.max_draft is None else args.max_draft
        self._rounds = RoundCounter()
        self._source: Any = "none" if args.no_speculation else "prompt_lookup" if args.prompt_lookup else "auto"

    def run(self, recorder: TraceWriter | None, watching: Sequence[AnyObserver] = ()) -> int:
        args, terminal = self._args, self._terminal
        observers = list(watching)
        if args.events:
            log = EventLog(self._opened.text)
            show = terminal.note if args.json else terminal.line
            observers.append(lambda record: show(log.line(record)))
        if args.json:
            observers.append(lambda record: self._rounds.feed(record.event))
        show_text = not args.json and not args.events
        failure: DecodeFailed | RecorderFailed | None = None
        comparison: Comparison | None = None
        with interruptible(self._cancel):
            if args.compare:
                self._warm_up()
            try:
                run = self._decode(speculating=True, observers=observers, recorder=recorder, show=terminal.write if show_text else None)
            except (DecodeFailed, RecorderFailed) as error:
                if error.partial is None:
                    raise
                failure = error
                run = Run(result=error.partial, text=self._text_of(error.partial), elapsed_ns=self._elapsed)
            if show_text:
                self._end_text(run.text)  # before progress lines that would be written over it
            if args.compare and failure is None and not self._cancel.is_set():
                comparison = self._compare(run)
        self._report(run, comparison, streamed=show_text)
        if failure is not None:
            raise failure
        if self._cancel.is_set():
            return INTERRUPTED
        return DIFFERENT if comparison is not None and not comparison.identical else 0

    def _report(self, run: Run, comparison: Comparison | None, *, streamed: bool) -> None:
        terminal = self._terminal
        if self._args.json:
            terminal.line(json.dumps(as_json(run, comparison, self._rounds.figures()), ensure_ascii=False, allow_nan=False))
            return
        if not streamed:
            terminal.line()
            terminal.write(run.text)
            self._end_text(run.text)
        for line in lines(run, comparison):
            terminal.line(line, style="dim")

    def _end_text(self, text: str) -> None:
        """End the text's last line, and leave an empty one before the account."""
        self._terminal.line("" if text.endswith("\n") else "\n")

    def _text_of(self, result: Result) -> str:
        text = TextStream(self._opened.text)
        return "".join(map(text.push, result.tokens)) + text.finish()

    def _decode(
        self,
        *,
        speculating: bool,
        observers: Sequence[AnyObserver] = (),
        recorder: TraceWriter | None = None,
        show: Callable[[str], None] | None = None,
        max_tokens: int | None = None,
        extras: Extras = NO_EXTRAS,
    ) -> Run:
        """One generation. Its time is that spent inside the engine, not that of writing text."""
        decoder = Decoder(
            self._opened.runtime,
            policy=self._policy if speculating else 0,
            source=self._source if speculating else "none",
            observers=observers,
            recorder=recorder,
            extras=extras,
        )
        text, parts = TextStream(self._opened.text), list[str]()
        self._elapsed = 0
        with decoder:
            started = time.perf_counter_ns()
            stream = decoder.stream(
                self._prompt,
                max_tokens=self._args.max_tokens if max_tokens is None else max_tokens,
                cancel=self._cancel,
                on_prefill=self._on_prefill,
            )
            with stream:
                while True:
                    try:
                        token = next(stream, None)
                    finally:
                        self._elapsed += time.perf_counter_ns() - started
                    piece = text.finish() if token is None else text.push(token)
                    parts.append(piece)
                    if show is not None:
                        show(piece)
                    if token is None:
                        break
                    started = time.perf_counter_ns()
            return Run(result=stream.result, text="".join(parts), elapsed_ns=self._elapsed)

    def _on_prefill(self, done: int, total: int) -> None:
        if done < total:
            self._terminal.progress(f"reading the prompt: {done} of {total} tokens")
        else:
            self._terminal.clear_status()

    def _warm_up(self) -> None:
        self._terminal.progress("comparing: warming up")
        count = min(_WARM_UP_TOKENS, _WARM_UP_TOKENS if self._args.max_tokens is None else self._args.max_tokens)
        for speculating in (True, False):
            self._decode(speculating=speculating, max_tokens=count)
        self._terminal.clear_status()

    def _compare(self, first: Run) -> Comparison | None:
        """Without, without, with: together with the first run both kinds have the same mean place in the order."""
        runs: dict[bool, list[Run]] = {True: [first], False: []}
        for number, speculating in enumerate((False, False, True), 2):
            self._terminal.progress(f"comparing: run {number} of 4, {'with' if speculating else 'without'} speculation")
            runs[speculating].append(self._decode(speculating=speculating))
            if self._cancel.is_set():
                return None
        self._terminal.clear_status()
        comparison = Comparison(with_runs=tuple(runs[True]), without_runs=tuple(runs[False]))
        if comparison.first_difference is None:
            return comparison
        return evolve(comparison, margin=self._margin_at(comparison.first_difference))

    def _margin_at(self, index: int) -> float | None:
        """How far apart the two best tokens are for one index of the output, decoded without speculation."""
        margins: list[float | None] = []

        def observe(record: Record) -> None:
            if isinstance(record.event, (Prefilled, SerialDecoded)):
                margins.append(record.event.margin)

        try:
            self._decode(speculating=False, observers=[observe], max_tokens=index + 1, extras=Extras(margins=True))
        except DecodeFailed:
            return None  # the runtime cannot tell margins
        return margins[index] if len(margins) > index else None


@contextmanager
def interruptible(cancel: threading.Event) -> Generator[None]:
    """Let the first Ctrl-C set ``cancel``, so that the decode ends cleanly; the second one interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: object) -> None:
        cancel.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
