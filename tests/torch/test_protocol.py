"""The runtime's side of the protocol: refusals that touch nothing, failures that settle to the base, sessions that let go."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch_loop import decode, draft, forward, numbers, settle, span, start
from torch_models import CONTEXT, VOCABULARY, parts, tiny_head, tiny_model, tiny_runtime

from spanfold.backends.pairs import BACKLOG
from spanfold.backends.torch import RowCache, TorchRuntime
from spanfold.engine.errors import ConfigError, NotStarted
from spanfold.engine.runtime import Runtime
from spanfold.engine.values import Sampling

PROMPT = (5, 17, 3, 40, 22, 9)


@pytest.fixture
def runtime() -> TorchRuntime:
    return tiny_runtime("llama")


def test_it_is_a_runtime_and_says_what_it_is(runtime: TorchRuntime) -> None:
    assert isinstance(runtime, Runtime)
    info = runtime.info
    assert (info.backend, info.model, info.vocabulary, info.context_length) == ("torch", "tiny llama", VOCABULARY, CONTEXT)
    assert (info.rollback, info.max_batch, info.threads) == ("crop", 1, "any")
    assert isinstance(info.row_exact, bool)  # measured: test_exact.py
    assert tiny_runtime("llama", modules=True).info.row_exact is None
    assert (info.device, info.dtype, info.stop_tokens) == ("cpu", "float32", ())
    assert info.draft is not None
    assert (info.draft.origin, info.draft.layers, info.draft.depth, info.draft.context_length) == ("mtp", 1, 16, CONTEXT)


def test_predictions_come_for_no_row_the_last_or_all(runtime: TorchRuntime) -> None:
    runtime.open_session(0, Sampling(), False)
    assert forward(runtime, 0, 0, PROMPT[:2], "none").predictions == ()
    last = forward(runtime, 0, 2, PROMPT[2:4], "last")
    every = forward(runtime, 0, 4, PROMPT[4:], "all", margins=True, logprobs=True, logits=True)
    assert len(last.predictions) == 1 and last.margins is last.logprobs is last.logits is None
    assert len(every.predictions) == 2 and every.position == 6
    logits: Any = every.logits
    assert logits.shape == (2, VOCABULARY) and logits.argmax(-1).tolist() == list(every.predictions)
    assert every.margins is not None and every.logprobs is not None
    best = logits.topk(2).values
    assert every.margins == pytest.approx((best[:, 0] - best[:, 1]).tolist())
    assert every.logprobs == pytest.approx(logits.log_softmax(-1).max(-1).values.tolist(), abs=1e-5)


def test_the_head_masks_by_absolute_index_too() -> None:
    runtime = tiny_runtime("llama")
    first = draft_under(runtime, Sampling())[0]
    second = draft_under(runtime, Sampling(masked=(first,), mask_until=8))
    assert second[0] != first  # the first drafted token has index 7
    both = (first, second[1])
    assert second[1] not in (first, second[0])
    assert draft_under(runtime, Sampling(masked=both, mask_until=7))[0] == first
    assert draft_under(runtime, Sampling(masked=both, mask_until=8)) == second
    third = draft_under(runtime, Sampling(masked=both, mask_until=9))
    assert third[0] == second[0] and third[1] not in both


def draft_under(runtime: TorchRuntime, sampling: Sampling) -> tuple[int, ...]:
    runtime.open_session(0, Sampling(), True)
    forward(runtime, 0, 0, PROMPT)
    runtime.configure(0, sampling)
    drafted = draft(runtime, 0, 30, 3)
    runtime.drop_session(0)
    return drafted


@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("modules", [False, True])
def test_a_forward_that_fails_half_way_settles_to_its_base(
    layer: int, canonical: bool, error: type[BaseException], modules: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 8: some layers hold the rows, others do not; the cache's position is what all hold."""
    runtime = tiny_runtime("llama", modules=modules)
    expected = decode(runtime, PROMPT, 2, 12).tokens
    run = start(runtime, PROMPT)
    span(runtime, run, 2)
    base, head = numbers(runtime, 0)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise error("half-way")

    for failing in (f"layer {layer}", "norm", "output"):
        with monkeypatch.context() as patch:
            patch.setattr(*parts(runtime)[failing], fail)
            with pytest.raises(error, match="half-way"):
                forward(runtime, 0, base, [run.canonical[-1], 1, 2], "all", canonical=canonical)
        assert numbers(runtime, 0)[0] in (base, base + 3)
        with pytest.raises(NotStarted):
            forward(runtime, 0, numbers(runtime, 0)[0], [1])
        settle(runtime, 0, base, 3, base)
        assert numbers(runtime, 0) == (base, head)
    while len(run.tokens) < 12:
        span(runtime, run, 2)
    assert run.tokens[:12] == expected


@pytest.mark.parametrize("modules", [False, True])
def test_rows_of_a_failed_forward_cannot_stay(modules: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tiny_runtime("llama", modules=modules)
    start(runtime, PROMPT)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("after the layers")

    monkeypatch.setattr(*parts(runtime)["norm"], fail)
    with pytest.raises(RuntimeError, match="after the layers"):
        forward(runtime, 0, 6, [1, 2], "all", canonical=False)
    # Modules write their rows layer by layer; the decode path's rows are there only when all of them are.
    with pytest.raises(ValueError, match="none of them can stay" if modules else "is at position 6: .* cannot end at 7"):
        settle(runtime, 0, 6, 2, 7)
    settle(runtime, 0, 6, 2, 6)


def test_without_memory_for_the_rows_a_forward_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tiny_runtime("llama")
    run = start(runtime, PROMPT)

    def full(self: RowCache, rows: int) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(RowCache, "reserve", full)
        with pytest.raises(NotStarted, match="no memory for 7 rows"):
            forward(runtime, 0, 6, [run.canonical[-1]])
    span(runtime, run, 2)


@pytest.mark.parametrize("modules", [False, True])
def test_a_failing_head_ends_the_drafting_and_keeps_no_rows(modules: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tiny_runtime("llama", modules=modules)
    expected = decode(runtime, PROMPT, 0, 80).tokens
    run = start(runtime, PROMPT)
    span(runtime, run, 2)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("bad head")

    monkeypatch.setattr(*parts(runtime)["head"], fail)
    with pytest.raises(RuntimeError, match="bad head"):
        draft(runtime, 0, run.canonical[-1], 2)
    assert numbers(runtime, 0)[1] is None
    with pytest.raises(RuntimeError, match="off since it failed") as caught:
        draft(runtime, 0, run.canonical[-1], 2)
    assert "bad head" in str(caught.value.__cause__)
    while len(run.tokens) < 80:
        span(runtime, run, 0)
    assert run.tokens[:80] == expected


@pytest.mark.parametrize("modules", [False, True])
def test_a_head_that_fails_while_it_is_fed_does_not_harm_the_rows(modules: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tiny_runtime("llama", modules=modules)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("bad head")

    monkeypatch.setattr(*parts(runtime)["head"], fail)
    runtime.open_session(0, Sampling(), True)
    rows = forward(runtime, 0, 0, [1] * (BACKLOG + 1))
    assert rows.position == BACKLOG + 1 and numbers(runtime, 0) == (BACKLOG + 1, None)
    with pytest.raises(RuntimeError, match="off since it failed"):
        draft(runtime, 0, 1, 2)


def test_a_runtime_without_a_head_says_so() -> None:
    runtime = tiny_runtime("llama", head=False)
    assert runtime.info.draft is None
    start(runtime, PROMPT)
    assert numbers(runtime, 0) == (6, None)
    with pytest.raises(NotStarted, match="no head"):
        draft(runtime, 0, 1, 1)


@pytest.mark.parametrize("ending", ["drop", "open span", "failed head", "rewound"])
def test_cases_5_5_and_5_6_sessions_give_everything_back(ending: str) -> None:
    runtime = tiny_runtime("llama")
    tensors = None
    for turn in range(200 if ending == "drop" else 20):
        run = start(runtime, PROMPT, session=turn)
        span(runtime, run, 3, session=turn)
        assert runtime.nbytes(turn) > 0 and runtime.live_sessions == 1
        base = len(run.canonical) - 1
        if ending == "open span":
            forward(runtime, turn, base, [1, 2, 3], "all", canonical=False)
        elif ending == "rewound":
            settle(runtime, turn, 2, base - 2, 2)
        elif ending == "failed head":
            runtime._sessions[turn].head = None  # pyright: ignore[reportPrivateUsage]
        runtime.drop_session(turn)
        runtime.drop_session(turn)
        assert runtime.live_sessions == 0 and runtime.nbytes(turn) == 0 and runtime.view(turn) is None
        del run
        if turn in (1, 19):
            gc.collect()
            count = sum(issubclass(type(one), torch.Tensor) for one in gc.get_objects())
            assert tensors is None or count <= tensors
            tensors = count


def test_sessions_are_independent_and_any_thread_may_call() -> None:
    runtime = tiny_runtime("llama")
    prompts = [PROMPT, (1, 2, 3), (30, 31)]
    alone = [decode(runtime, prompt, 3, 20).tokens for prompt in prompts]
    runs = [start(runtime, prompt, session=n) for n, prompt in enumerate(prompts)]
    errors: list[BaseException] = []
    lock = threading.Lock()

    def work(n: int) -> None:
        try:
            while len(runs[n].tokens) < 20:
                with lock:
                    span(runtime, runs[n], 3, session=n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [run.tokens[:20] for run in runs] == alone


def test_arguments_of_the_runtime_are_validated() -> None:
    model = tiny_model("llama")
    head = tiny_head(model)
    for options, words in [
        ({"context_length": CONTEXT + 1}, "context_length must be an integer from 1 to 96"),
        ({"context_length": 0}, "context_length"),
        ({"draft_context_length": "x"}, "draft_context_length"),
        ({"draft_depth": 17}, "draft_depth must be an integer from 1 to 16"),
    ]:
        with pytest.raises(ConfigError, match=words):
            TorchRuntime(model, head=head, **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="made for another model"):
        TorchRuntime(tiny_model("llama"), head=head)
    with pytest.raises(ConfigError, match=r"one dtype, this one is spread over torch\.bfloat16, torch\.float32"):
        TorchRuntime(model, head=head.bfloat16())
    with pytest.raises(ConfigError, match="dtype must be one of"):
        TorchRuntime(model.double())
