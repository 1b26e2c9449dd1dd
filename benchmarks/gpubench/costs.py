"""Costs of single calls and of whole decodes, the device's work included."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from speedbench.figures import Run
from speedbench.recorded import recorded_costs

from spanfold.engine import Ask, Decoder, Extras, Forward, Prefilled, Record, Runtime, Sampling, SerialDecoded, Settle

_SESSION = 10**6  # far from the ids that decoders count up from 0


@frozen(kw_only=True)
class Work:
    """How much is measured."""

    device: str
    prompt: int
    tokens: int
    widths: Sequence[int]
    rows: Sequence[int]
    repeats: int

    def wait(self) -> None:
        """Wait for the device."""
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()


def timed(work: Work, call: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    work.wait()
    began = time.perf_counter()
    call()
    work.wait()
    return (time.perf_counter() - began) * 1e3


def _median(took: list[float]) -> float:
    return statistics.median(took[len(took) // 4 :])  # the first calls warm up


def call_costs(runtime: Runtime, work: Work) -> dict[str, Any]:
    """Median milliseconds of each protocol call behind the prompt: a draft by tokens, a forward and a trim by rows."""
    runtime.open_session(_SESSION, Sampling(), True)
    prompt = tuple(1 + at % 250 for at in range(work.prompt))
    runtime.forward((Forward(session=_SESSION, base=0, tokens=prompt, want="last", canonical=True),))
    drafts: dict[str, float] = {}
    for limit in work.widths:
        took = [timed(work, lambda n=limit: runtime.draft((Ask(session=_SESSION, current=7, limit=n),))) for _ in range(work.repeats)]
        drafts[str(limit)] = _median(took)
    verify: dict[str, float] = {}
    trim: dict[str, float] = {}
    for rows in work.rows:
        forwards, settles = list[float](), list[float]()
        call = Forward(session=_SESSION, base=work.prompt, tokens=tuple(range(7, 7 + rows)), want="all", canonical=False)
        back = Settle(session=_SESSION, base=work.prompt, rows=rows, position=work.prompt)
        for _ in range(work.repeats):
            forwards.append(timed(work, lambda call=call: runtime.forward((call,))))
            settles.append(timed(work, lambda back=back: runtime.settle((back,))))
        verify[str(rows)], trim[str(rows)] = _median(forwards), _median(settles)
    runtime.drop_session(_SESSION)
    return {"draft_ms": drafts, "verify_ms": verify, "trim_ms": trim}


def decoded(runtime: Runtime, work: Work, width: int, prompt: Sequence[int], serial: tuple[int, ...] | None = None) -> Run:
    """One decode; its verdict says whether its tokens are the serial ones."""
    records: list[Record] = []
    with Decoder(runtime, policy=width, observers=[records.append]) as decoder:
        tokens: list[int] = []
        began = 0
        with decoder.stream(prompt, max_tokens=work.tokens, stop_tokens=()) as stream:
            for token in stream:
                tokens.append(token)
                began = began or time.perf_counter_ns()
        rest = time.perf_counter_ns() - began
        stats = stream.result.stats
    kept = {name: getattr(stats, name) for name in ("spans", "span_tokens")}
    kept |= {"accepted_per_depth": list(stats.accepted_per_depth), "verified_per_depth": list(stats.verified_per_depth)}
    raw = {"costs": recorded_costs(records), "stats": kept}
    word = "same" if serial is None or tuple(tokens) == serial else "differs"
    return Run(prompt=0, turn=0, tokens=tuple(tokens), first=1, rest_ns=rest, verdict=word, raw=raw)


def margin_at(runtime: Runtime, prompt: Sequence[int], index: int) -> float | None:
    """How far apart the two best tokens are at one index of the serial output."""
    margins: list[float | None] = []

    def observe(record: Record) -> None:
        if isinstance(record.event, (Prefilled, SerialDecoded)):
            margins.append(record.event.margin)

    with Decoder(runtime, policy=0, source="none", observers=[observe], extras=Extras(margins=True)) as decoder:
        decoder.generate(prompt, max_tokens=index + 1, stop_tokens=())
    return margins[index] if len(margins) > index else None
