"""Several rows in one forward are the rows one by one: masks, positions and caches are right."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_loop import forward, settle, start
from torch_models import FAMILIES, tiny_model, tiny_runtime
from torch_reference import Reference

from spanfold.backends.torch import TorchRuntime
from spanfold.engine.values import Sampling

PROMPT = (5, 17, 3, 40, 22, 9, 11)
NEXT = (8, 33, 2, 50, 27)
#: Float32 rounding of these tiny models (logits of some tens): measured below 1e-5; see docs/explanation/numerics.md.
CLOSE: dict[str, Any] = {"rtol": 1e-4, "atol": 1e-4}


def logits_of(runtime: TorchRuntime, base: int, tokens: tuple[int, ...]) -> torch.Tensor:
    rows = forward(runtime, 0, base, tokens, "all", canonical=False, logits=True)
    settle(runtime, 0, base, len(tokens), base)
    assert isinstance(rows.logits, torch.Tensor)
    return rows.logits


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["own", "sdpa", "eager"])
@pytest.mark.parametrize("k", [2, 3, 5])
def test_cases_1_2_and_7_13_row_i_of_k_rows_is_the_row_decoded_alone(family: str, attention: str, k: int) -> None:
    model = tiny_model(family)
    if attention != "own":
        model.set_attn_implementation(attention)
    runtime = TorchRuntime(model, modules=attention != "own")
    start(runtime, PROMPT)
    together = logits_of(runtime, len(PROMPT), NEXT[:k])
    for row in range(k):
        rows = forward(runtime, 0, len(PROMPT) + row, NEXT[row : row + 1], "last", logits=True)
        torch.testing.assert_close(rows.logits, together[row : row + 1], **CLOSE)
        assert rows.predictions[0] == int(together[row].argmax())


@pytest.mark.parametrize("modules", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_target_equals_the_plain_formulation(family: str, modules: bool) -> None:
    model = tiny_model(family)
    runtime = TorchRuntime(model, modules=modules)
    runtime.open_session(0, Sampling(), False)
    forward(runtime, 0, 0, PROMPT[:4], "none")
    rows = logits_of(runtime, 4, (*PROMPT[4:], *NEXT))
    reference = Reference(model.config, model.state_dict())
    expected = reference.scores(reference.hidden([*PROMPT, *NEXT]))[4:]
    torch.testing.assert_close(rows.double(), expected, **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 2, 3, 6, 512])
def test_a_prompt_in_chunks_gives_what_it_gives_whole(family: str, chunk: int) -> None:
    model = tiny_model(family)
    whole, parts = TorchRuntime(model), TorchRuntime(model)
    first, second = start(whole, PROMPT), start(parts, PROMPT, chunk=chunk)
    assert first.canonical == second.canonical
    torch.testing.assert_close(logits_of(whole, 7, NEXT), logits_of(parts, 7, NEXT), **CLOSE)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("to", [0, 1, 5, 11])
def test_generate_trim_regenerate_gives_the_same_again(family: str, to: int) -> None:
    """A trim leaves no trace: what is decoded after it is what a fresh session decodes."""
    tokens = (*PROMPT, *NEXT)
    logits: list[torch.Tensor] = []
    for detour in (True, False):
        runtime = tiny_runtime(family)
        runtime.open_session(0, Sampling(), True)
        if to:
            forward(runtime, 0, 0, tokens[:to], "none")
        if detour:
            forward(runtime, 0, to, (60, 59, 58, 57), "all", canonical=False)  # rows of which two stay for a while
            settle(runtime, 0, to, 4, to + 2)
            forward(runtime, 0, to + 2, (56, 55))
            settle(runtime, 0, to, 4, to)
        rows = forward(runtime, 0, to, tokens[to:], "all", logits=True)
        assert isinstance(rows.logits, torch.Tensor)
        logits.append(rows.logits)
    assert torch.equal(*logits)


def test_rejected_rows_never_show_case_1_1() -> None:
    """Two different rejection histories that commit the same text: identical next logits."""
    results: list[torch.Tensor] = []
    for histories in ([(60, 59), (1,), ()], [(3, 3, 3, 3), (44, 2, 7), (9,)]):
        runtime = tiny_runtime("llama")
        start(runtime, PROMPT)
        base = len(PROMPT)
        for token, wrong in zip(NEXT, histories, strict=False):
            forward(runtime, 0, base, (token, *wrong), "all", canonical=False)
            settle(runtime, 0, base, 1 + len(wrong), base + 1)
            base += 1
        results.append(logits_of(runtime, base, (20,)))
    torch.testing.assert_close(results[0], results[1], **CLOSE)
