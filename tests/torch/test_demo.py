"""The demo model, a real one: golden runs, acceptance, numbers of rows, law 11 on the trained head."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_loop import assert_same, draft, forward, greedy, settle, start

from spanfold.backends.torch import TorchRuntime
from spanfold.engine import Decoder, Policy, SpanVerified
from spanfold.engine.runtime import Extras
from spanfold.engine.values import Sampling

pytestmark = pytest.mark.slow

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden" / "smollm2-135m-mtp-v1.json").read_text(encoding="utf-8"))
RUNS: list[dict[str, Any]] = GOLDEN["runs"]
#: Of the recorded 48, to save time.
TOKENS = 32
#: Bounds on the margin of a near tie, on the CPU; see docs/explanation/numerics.md.
BOUNDS = {"float32": 1e-3, "bfloat16": 1.0}


@cache
def decoded(runtime: TorchRuntime, number: int, width: int) -> Any:
    with Decoder(runtime, policy=width) as decoder:
        return decoder.generate(RUNS[number]["prompt"], max_tokens=TOKENS)


def test_the_golden_runs_are_there_and_far_from_ties() -> None:
    assert len(RUNS) >= 4 and min(run["least_margin"] for run in RUNS) > 10 * BOUNDS["float32"]


@pytest.mark.parametrize("number", range(len(RUNS)), ids=[run["text"] for run in RUNS])
def test_golden_runs_come_out_with_speculation(number: int, demo: TorchRuntime) -> None:
    result = decoded(demo, number, 3)
    assert list(result.tokens) == RUNS[number]["tokens"][:TOKENS]
    ended = result.tokens[-1] == 2
    assert result.finish_reason == ("stop_token" if ended else "length") and result.stats.spans > 0


def test_golden_runs_come_out_without_speculation(demo: TorchRuntime) -> None:
    for number, run in enumerate(RUNS):
        if run["tokens"][-1] == 2:
            result = decoded(demo, number, 0)
            assert list(result.tokens) == run["tokens"] and result.stats.spans == 0


def test_acceptance_is_near_what_was_measured_for_the_head(demo: TorchRuntime) -> None:
    """1.87 tokens per verify over 16 prompts at k = 3; a few short runs scatter. A broken contract falls to about 1.1."""
    results = [decoded(demo, number, 3) for number in range(3)]
    spans = sum(result.stats.spans for result in results)
    committed = sum(len(result.tokens) - 1 for result in results)
    assert 1.5 < committed / spans < 2.6
    assert all(result.stats.saved_net > 4 for result in results)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_case_1_2_row_i_of_k_rows_is_the_row_decoded_alone(k: int, demo: TorchRuntime) -> None:
    run = RUNS[0]
    start(demo, run["prompt"], drafting=False)
    base = len(run["prompt"])
    tokens = run["tokens"][:k]
    together = forward(demo, 0, base, tokens, "all", canonical=False, logits=True, margins=True)
    settle(demo, 0, base, k, base)
    for row, token in enumerate(tokens):
        alone = forward(demo, 0, base + row, [token], logits=True, margins=True)
        assert isinstance(alone.logits, torch.Tensor) and isinstance(together.logits, torch.Tensor)
        torch.testing.assert_close(alone.logits[0], together.logits[row], rtol=0, atol=2e-3)
        assert alone.margins is not None and together.margins is not None
        assert abs(alone.margins[0] - together.margins[row]) < BOUNDS["float32"] / 2
        assert alone.predictions[0] == together.predictions[row] == run["tokens"][row + 1]
    demo.drop_session(0)


def test_law_11_on_the_trained_head(demo: TorchRuntime) -> None:
    """One prefix by way of three histories (in bulk; in chunks with drafts between; over rejected spans), each limit."""
    canonical = RUNS[1]["prompt"] + RUNS[1]["tokens"][:14]
    length, current, before = len(canonical), canonical[-1], len(RUNS[1]["prompt"])
    demo.open_session(0, Sampling(), True)
    forward(demo, 0, 0, canonical[:-1], "none")
    expected = draft(demo, 0, current, 5)
    assert len(set(expected)) > 1

    demo.open_session(1, Sampling(), True)
    position = 0
    for size in (7, 20, 1, 13, length):
        part = canonical[position : min(position + size, length - 1)]
        if part and position:
            draft(demo, 1, part[0], size % 4)
        forward(demo, 1, position, part, "none")
        position += len(part)
    assert position == length - 1

    demo.open_session(2, Sampling(), True)
    forward(demo, 2, 0, canonical[:before], "none")
    position = before
    while position < length - 1:
        kept = min(1 + position % 3, length - 1 - position)
        wrong = [(token + 1) % 1000 for token in canonical[position + kept : position + kept + 2]]
        draft(demo, 2, canonical[position], position % 4)
        forward(demo, 2, position, [*canonical[position : position + kept], *wrong], "all", canonical=False)
        settle(demo, 2, position, kept + len(wrong), position + kept)
        position += kept

    for session in (0, 1, 2):
        for limit in (5, 0, 1, 2, 3, 4):
            assert draft(demo, session, current, limit) == expected[:limit]
        demo.drop_session(session)


def test_bfloat16_differs_at_near_ties_at_most(demo_folder: Path) -> None:
    runtime = TorchRuntime.from_pretrained(demo_folder, dtype="bfloat16")
    model: Any = runtime._model  # pyright: ignore[reportPrivateUsage]
    prompt = RUNS[2]["prompt"]
    expected = greedy(model, prompt, 16, eos_token_id=2)
    with Decoder(runtime, policy=3) as decoder:
        result = decoder.generate(prompt, max_tokens=16)
    assert_same(model, prompt, result.tokens, expected, BOUNDS["bfloat16"])


def test_margins_travel_into_the_events(demo: TorchRuntime) -> None:
    records: list[Any] = []
    with Decoder(demo, policy=3, observers=[records.append], extras=Extras(margins=True, logprobs=True)) as decoder:
        result = decoder.generate(RUNS[3]["prompt"], max_tokens=8)
    assert list(result.tokens) == RUNS[3]["tokens"][:8]
    spans = [record.event for record in records if isinstance(record.event, SpanVerified)]
    assert spans
    for event in spans:
        assert event.margins is not None and event.logprobs is not None
        assert len(event.margins) == len(event.logprobs) == event.rows
        assert min(event.margins) >= 0 and max(event.logprobs) <= 0


def test_prefill_in_chunks_gives_the_golden_run(demo: TorchRuntime) -> None:
    with Decoder(demo, policy=Policy(width=2, prefill_chunk=16)) as decoder:
        result = decoder.generate(RUNS[4]["prompt"], max_tokens=12)
    assert list(result.tokens) == RUNS[4]["tokens"][:12]
