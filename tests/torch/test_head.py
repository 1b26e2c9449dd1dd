"""The MTP head: the contract's mathematics, and which pairs its cache holds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch_loop import decode, draft, forward, numbers, settle, span, start
from torch_models import CONTEXT, FAMILIES, VOCABULARY, head_tensors, successor_model, tiny_head, tiny_model, tiny_runtime
from torch_reference import Reference

from spanfold.backends.pairs import BACKLOG
from spanfold.backends.torch import MtpHead, TorchRuntime
from spanfold.engine.values import Sampling

PROMPT = (5, 17, 3, 40, 22, 9)
DEPTH = 5


class Recording:
    """Notes the head's scores of every step, where drafts are made."""

    def __init__(self, runtime: TorchRuntime, patch: pytest.MonkeyPatch) -> None:
        self.scores: list[torch.Tensor] = []
        head: Any = runtime._drafting  # pyright: ignore[reportPrivateUsage]
        original = head.scores

        def record(hidden: torch.Tensor, layer: int = 0) -> torch.Tensor:
            self.scores.append(original(hidden, layer))
            return self.scores[-1]

        patch.setattr(head, "scores", record)

    def take(self) -> torch.Tensor:
        taken, self.scores = torch.cat(self.scores).double(), []
        return taken


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["own", "sdpa", "eager"])
def test_case_6_3_head_logits_equal_the_plain_formulation_at_every_step_and_round(
    family: str, attention: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Concat order, norms, position, fed and recycled hidden state, filled prompt, re-fed rows: against torch_reference.py."""
    model = tiny_model(family)
    if attention != "own":
        model.set_attn_implementation(attention)
    head = tiny_head(model)
    runtime = TorchRuntime(model, head=head, modules=attention != "own")
    recording = Recording(runtime, monkeypatch)
    reference = Reference(model.config, model.state_dict() | head_tensors(head))
    run = start(runtime, PROMPT, chunk=4)
    for k in (3, 1, DEPTH, 2):
        expected = torch.stack(reference.head_scores(run.canonical, k))
        span(runtime, run, k)
        torch.testing.assert_close(recording.take(), expected, rtol=1e-4, atol=1e-4)
        assert expected.argmax(-1).tolist()  # a draft per step


def test_a_changed_convention_would_be_seen() -> None:
    """The comparison above can fail: each of these mistakes moves the reference by far more than its tolerance."""
    model = tiny_model("llama")
    head = tiny_head(model)
    tensors = model.state_dict() | head_tensors(head)
    right = torch.stack(Reference(model.config, tensors).head_scores([*PROMPT, 30], 2))
    key = "model.layers.2.eh_proj.weight"
    first, second = tensors[key].chunk(2, dim=1)
    swapped = Reference(model.config, tensors | {key: torch.cat([second, first], dim=1)})
    assert (torch.stack(swapped.head_scores([*PROMPT, 30], 2)) - right).abs().max() > 0.1
    unnormed = Reference(model.config, tensors | {"model.layers.2.shared_head.norm.weight": torch.ones(32)})
    assert (torch.stack(unnormed.head_scores([*PROMPT, 30], 2)) - right).abs().max() > 0.1


@pytest.mark.parametrize("k", range(1, 6))
def test_case_6_4_the_contracts_hidden_stages_and_only_they_give_full_acceptance(k: int) -> None:
    model, head = successor_model()
    run = decode(TorchRuntime(model, head=head), (3, 4, 5), k, 40)
    assert run.tokens == tuple((6 + n) % 24 for n in range(40))
    assert all(drafted == matched == k for drafted, matched in run.spans)


@pytest.mark.parametrize("modules", [False, True])
@pytest.mark.parametrize("wrong", ["fed before the norm", "recycled before the norm"])
def test_case_6_4_another_hidden_stage_loses_acceptance_and_changes_no_token(
    wrong: str, modules: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, made = successor_model()
    runtime = TorchRuntime(model, head=made, modules=modules)
    sign = model.model.norm.weight.detach().clone()
    head: Any = runtime._drafting  # pyright: ignore[reportPrivateUsage]
    original, chained = head.run, False

    def misled(ids: torch.Tensor, hidden: torch.Tensor, first: int, cache: Any, layer: int = 0) -> torch.Tensor:
        # The hidden state of before the norm is the one after it without the norm's weight (hnorm takes any scale out).
        nonlocal chained
        unsigned = hidden * sign if (wrong == "recycled before the norm") == chained else hidden
        chained = True
        return original(ids, unsigned, first, cache, layer)

    monkeypatch.setattr(head, "run", misled)
    run = start(runtime, (3, 4, 5))
    for width in itertools.cycle((2, 3, 1)):  # spans that begin at even tokens and at odd ones: a half of them reads the hidden side
        chained = False
        span(runtime, run, width)
        if len(run.tokens) >= 60:
            break
    assert run.tokens[:60] == tuple((6 + n) % 24 for n in range(60))
    assert sum(matched for _, matched in run.spans) < 0.9 * sum(drafted for drafted, _ in run.spans)


def test_case_6_6_ten_fully_accepted_spans_leave_no_gap() -> None:
    model, head = successor_model()
    runtime = TorchRuntime(model, head=head)
    run = start(runtime, (3, 4, 5))
    for number in range(1, 11):
        base = len(run.canonical) - 1
        assert draft(runtime, 0, run.canonical[-1], 3) and numbers(runtime, 0) == (base, base)
        span(runtime, run, 3)
        assert run.spans[-1] == (3, 3) and numbers(runtime, 0) == (base + 4, base)
        assert len(run.tokens) == 1 + 4 * number


@pytest.mark.parametrize("k", range(1, 6))
def test_case_1_8_the_heads_rows_are_the_canonical_pairs_whatever_is_accepted(k: int) -> None:
    """For every number of accepted drafts, 10 rounds each: neither lags nor runs ahead (output tests cannot see it)."""
    model, head = successor_model()
    runtime = TorchRuntime(model, head=head)
    run = start(runtime, (3, 4))
    for accepted in [*range(k + 1)] * 10:

        def drafts(canonical: tuple[int, ...], count: int, accepted: int = accepted) -> list[int]:
            right = list(draft(runtime, 0, canonical[-1], count))
            base = len(canonical) - 1
            assert numbers(runtime, 0) == (base, base)
            return [*right[:accepted], *((token + 7) % 24 for token in right[accepted:])]

        span(runtime, run, min(k, CONTEXT - len(run.canonical) - 1), drafts=drafts)
        assert run.spans[-1][1] == min(accepted, run.spans[-1][0])
        position, rows = numbers(runtime, 0)
        assert rows is not None and position - run.spans[-1][1] - 1 == rows
        if len(run.canonical) > CONTEXT - k - 3:
            settle(runtime, 0, 3, len(run.canonical) - 4, 3)
            del run.canonical[4:]
            run.canonical[3:] = [forward(runtime, 0, 3, run.canonical[3:4]).predictions[0]]
            run.canonical[3:3] = [(run.canonical[2] + 1) % 24]
            assert numbers(runtime, 0) == (4, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_law_11_a_draft_is_a_function_of_the_canonical_prefix_alone(family: str) -> None:
    """The same prefix by way of many histories: chunks, limits, adversarial spans, rewinds, serial steps, a full backlog."""
    runtime = tiny_runtime(family)
    sessions = itertools.count()
    run = decode(runtime, PROMPT, 0, 80)
    fresh: dict[int, tuple[int, ...]] = {}

    def prefix(length: int) -> list[int]:
        return run.canonical[:length]

    def expected(length: int) -> tuple[int, ...]:
        if length not in fresh:
            session = next(sessions)
            runtime.open_session(session, Sampling(), True)
            forward(runtime, session, 0, prefix(length - 1), "none")
            fresh[length] = draft(runtime, session, prefix(length)[-1], DEPTH)
            assert len(fresh[length]) == DEPTH
            runtime.drop_session(session)
        return fresh[length]

    for length in (8, 20, 70, 84):  # the last two fill the backlog
        for limit in range(DEPTH + 1):
            session = next(sessions)
            runtime.open_session(session, Sampling(), True)
            position = 0
            for step in range(length):
                if position == length - 1:
                    break
                rows = 1 if step % 3 else min(7, length - 1 - position)
                tokens = prefix(position + rows)[position:]
                if step % 4 == 1 and position:
                    draft(runtime, session, tokens[0], (step + limit) % 4)
                if step % 2:
                    junk = [(token + 13 + step) % VOCABULARY for token in tokens]
                    forward(runtime, session, position, [*tokens, *junk], "all", canonical=False)
                    settle(runtime, session, position, 2 * rows, position + rows)
                else:
                    forward(runtime, session, position, tokens, "last")
                position += rows
                if step == 5 and position > 4:
                    settle(runtime, session, position - 3, 3, position - 3)
                    position -= 3
            assert position == length - 1
            current = prefix(length)[-1]
            assert draft(runtime, session, current, limit) == expected(length)[:limit]
            assert draft(runtime, session, current, DEPTH) == expected(length)
            assert draft(runtime, session, current, 1) == expected(length)[:1]
            assert numbers(runtime, session) == (length - 1, length - 1)
            runtime.drop_session(session)


def test_every_pair_sits_at_the_position_of_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pair p at position id p + 1, a chained step one further. Rotary attention alone cannot tell a uniform shift."""
    runtime = tiny_runtime("llama", modules=True)
    head: Any = runtime._head  # pyright: ignore[reportPrivateUsage]
    original = head.forward
    seen: list[tuple[list[int], list[int]]] = []

    def noted(ids: torch.Tensor, hidden: torch.Tensor, positions: torch.Tensor, cache: Any, index: int = 0) -> torch.Tensor:
        seen.append((ids[0].tolist(), positions[0].tolist()))
        return original(ids, hidden, positions, cache, index)

    monkeypatch.setattr(head, "forward", noted)
    start(runtime, PROMPT)
    first, second, _ = draft(runtime, 0, 30, 3)
    assert seen == [([*PROMPT[1:], 30], [1, 2, 3, 4, 5, 6]), ([first], [7]), ([second], [8])]
    forward(runtime, 0, 6, (30, 31), "all", canonical=False)
    settle(runtime, 0, 6, 2, 8)
    seen.clear()
    draft(runtime, 0, 32, 1)
    assert seen == [([31, 32], [7, 8])]


def test_every_pair_sits_at_the_position_of_its_token_on_the_decode_path_too(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tiny_runtime("llama")
    stack: Any = runtime._drafting.stack  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess, reportAttributeAccessIssue]
    (layer,) = stack.layers
    tables, seen = stack._tables, []

    def noted(x: torch.Tensor, turns: Any, *rest: Any) -> torch.Tensor:
        seen.append((x.shape[0], turns[0].tolist()))
        return layer(x, turns, *rest)

    monkeypatch.setattr(stack, "layers", [noted])
    start(runtime, PROMPT)
    draft(runtime, 0, 30, 3)
    stepped = runtime._drafting.stack.row_width  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess, reportAttributeAccessIssue]
    for (rows, cos), (first, count) in zip(seen, [(1, 6), (7, 1), (8, 1)], strict=True):
        assert rows == max(count, stepped) and cos == tables.turns(first, rows)[0].tolist()


def test_a_draft_after_another_current_is_that_of_the_new_one() -> None:
    """The newest pair is fed anew, so a changed last token (a rewind by one, another continuation) leaves nothing behind."""
    runtime = tiny_runtime("llama")
    start(runtime, PROMPT)
    start(runtime, PROMPT, session=1)
    draft(runtime, 0, 30, 4)
    assert draft(runtime, 0, 44, 4) == draft(runtime, 1, 44, 4) != draft(runtime, 1, 30, 4)


def test_case_6_9_after_a_partial_accept_nothing_rejected_is_read() -> None:
    """Rows behind the head's length are overwritten with rubbish before each draft: the drafts stay the same."""
    clean, dirty = tiny_runtime("qwen3"), tiny_runtime("qwen3")
    first, second = start(clean, PROMPT), start(dirty, PROMPT)
    for k in (3, 4, 2, 5, 1, 3):
        span(clean, first, k)
        held = dirty._sessions[0]  # pyright: ignore[reportPrivateUsage]
        assert held.head is not None
        for layer in [*held.cache.layers, *held.head.cache.layers]:
            with torch.inference_mode():
                layer._keys[:, :, layer.length :] = float("nan")  # pyright: ignore[reportPrivateUsage]
                layer._values[:, :, layer.length :] = float("nan")  # pyright: ignore[reportPrivateUsage]
        span(dirty, second, k)
        assert first == second


def test_case_6_10_a_draft_beyond_the_depth_is_cut_and_the_info_says_that_one_layer_is_recycled() -> None:
    runtime = tiny_runtime("llama", draft_depth=4)
    assert runtime.info.draft is not None and (runtime.info.draft.layers, runtime.info.draft.depth) == (1, 4)
    run = start(runtime, PROMPT)
    assert len(draft(runtime, 0, run.canonical[-1], 9)) == 4
    assert draft(runtime, 0, run.canonical[-1], 0) == () and numbers(runtime, 0) == (6, 6)


def test_case_10_3_beyond_the_heads_context_there_is_no_draft_and_no_crash() -> None:
    runtime = tiny_runtime("llama", draft_context_length=10)
    assert runtime.info.draft is not None and runtime.info.draft.context_length == 10
    run = start(runtime, PROMPT)
    lengths: list[int] = []
    for _ in range(8):
        lengths.append(len(draft(runtime, 0, run.canonical[-1], 2)))
        assert numbers(runtime, 0) == (len(run.canonical) - 1,) * 2
        span(runtime, run, 0)
    assert lengths == [2] * 4 + [0] * 4


def test_case_10_6_a_configured_window_applies_to_both() -> None:
    runtime = tiny_runtime("llama", context_length=12)
    assert runtime.info.context_length == 12 and runtime.info.draft is not None and runtime.info.draft.context_length == 12
    run = start(runtime, PROMPT)
    lengths: list[int] = []
    while len(run.canonical) < 12:
        lengths.append(len(draft(runtime, 0, run.canonical[-1], 4)))
        span(runtime, run, 0)
    assert lengths == [4, 4, 3, 2, 1]  # a drafted token needs a place behind the canonical ones


def test_after_a_rewind_there_is_nothing_to_draft_from_until_the_next_forward() -> None:
    runtime = tiny_runtime("llama")
    run = start(runtime, PROMPT)
    span(runtime, run, 3)
    settle(runtime, 0, 3, numbers(runtime, 0)[0] - 3, 3)
    assert numbers(runtime, 0) == (3, 3)
    assert draft(runtime, 0, PROMPT[3], 3) == ()
    forward(runtime, 0, 3, PROMPT[3:])
    start(runtime, PROMPT, session=1)
    assert draft(runtime, 0, 30, 3) == draft(runtime, 1, 30, 3)


@pytest.mark.parametrize("position", range(1, 6))
def test_a_rewind_into_waiting_rows_keeps_those_before_it(position: int) -> None:
    runtime = tiny_runtime("llama")
    runtime.open_session(0, Sampling(), True)
    forward(runtime, 0, 0, PROMPT, "none")
    settle(runtime, 0, position, len(PROMPT) - position, position)
    runtime.open_session(1, Sampling(), True)
    forward(runtime, 1, 0, PROMPT[:position], "none")
    assert draft(runtime, 0, 33, 3) == draft(runtime, 1, 33, 3) != ()
    forward(runtime, 0, position, (33, 34))
    forward(runtime, 1, position, (33, 34))
    assert draft(runtime, 0, 35, 3) == draft(runtime, 1, 35, 3)


def test_case_6_7_two_contexts_do_not_always_give_the_same_draft() -> None:
    runtime = tiny_runtime("llama")
    drafts: set[tuple[int, ...]] = set()
    for session in range(8):
        start(runtime, (*PROMPT, 10 + session), session=session)
        drafts.add(draft(runtime, session, 30 + session, 2))
    assert len(drafts) > 4


def test_case_6_13_everything_optional_left_out() -> None:
    model = tiny_model("llama")
    runtime = TorchRuntime(model, head=MtpHead(model))
    runtime.open_session(0, Sampling(), True)
    rows = forward(runtime, 0, 0, (1,))
    assert len(draft(runtime, 0, rows.predictions[0], 1)) == 1
    assert BACKLOG == 64
