"""The decode loop of ``runtime_loop``, and the comparison with transformers' own generation up to near ties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from runtime_loop import Drafts, Run, decode, draft, forward, numbers, settle, span, start

__all__ = ["Drafts", "Run", "assert_same", "decode", "draft", "forward", "greedy", "margin_at", "numbers", "settle", "span", "start"]


def greedy(model: Any, prompt: Sequence[int], count: int, **options: Any) -> tuple[int, ...]:
    """transformers' own greedy generation."""
    ids = torch.tensor([list(prompt)], device=model.device)
    options = {"eos_token_id": None, "pad_token_id": 0} | options
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count, **options)
    return tuple(out[0, len(prompt) :].tolist())


def margin_at(model: Any, tokens: Sequence[int]) -> float:
    """The difference of the two best scores after ``tokens``, all rows computed in one forward without a cache."""
    with torch.inference_mode():
        scores = model(input_ids=torch.tensor([list(tokens)], device=model.device), use_cache=False).logits[0, -1].float()
    best = scores.topk(2).values
    return float(best[0] - best[1])


def assert_same(model: Any, prompt: Sequence[int], got: Sequence[int], expected: Sequence[int], bound: float) -> None:
    """Equal, or first different where the target's two best scores lie closer than ``bound`` (a near tie)."""
    for at, (one, other) in enumerate(zip(got, expected, strict=False)):
        if one != other:
            margin = margin_at(model, [*prompt, *expected[:at]])
            assert margin < bound, f"token {at} is {one}, expected {other}, and the margin is {margin}, not a near tie (bound {bound})"
            return
    assert len(got) == len(expected)
