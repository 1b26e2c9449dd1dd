"""What every runtime over attention caches does alike (``backends.cached``), on each of them: refusals, masks, waiting rows, the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from runtime_loop import draft, forward, numbers, settle, span, start

from spanfold.backends.pairs import BACKLOG
from spanfold.engine.errors import ConfigError, NotStarted
from spanfold.engine.runtime import Ask, Forward, Settle, View
from spanfold.engine.values import Processor, Sampling

PROMPT = (5, 17, 3, 40, 22, 9)
CONTEXT, VOCABULARY = 96, 61  # of all the tiny models

Make: TypeAlias = Callable[..., Any]


@pytest.fixture(params=["torch", "torch modules", "onnx genai", "onnx ordinary"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes tiny runtimes of one kind."""
    backend, _, kind = request.param.partition(" ")
    if backend == "torch":
        pytest.importorskip("transformers", reason="the torch backend is not installed")
        from torch_models import tiny_runtime

        return lambda **options: tiny_runtime("llama", modules=kind == "modules", **options)
    for module in ("onnx", "onnxruntime"):
        pytest.importorskip(module, reason="the ONNX backend is not installed")
    from onnx_runtimes import tiny_runtime

    return lambda **options: tiny_runtime(kind, **options)


@pytest.fixture
def runtime(make: Make) -> Any:
    return make()


def test_calls_that_cannot_run_are_refused_and_touch_nothing(runtime: Any) -> None:
    run = start(runtime, PROMPT)
    before = runtime.view(0)
    assert before == View(position=6, head_position=0, checkpoint=False, floor=0)
    for refused, words in [
        (lambda: forward(runtime, 1, 0, PROMPT), "session 1 is not open"),
        (lambda: forward(runtime, 0, 5, [1]), "at position 6, the forward's base is 5"),
        (lambda: forward(runtime, 0, 6, [VOCABULARY]), "outside the vocabulary"),
        (lambda: forward(runtime, 0, 6, [1, -1]), "token -1 is outside the vocabulary"),
        (lambda: forward(runtime, 0, 6, [1] * CONTEXT), "exceed the context length of 96"),
        (lambda: forward(runtime, 0, 6, []), "at least one token"),
        (lambda: draft(runtime, 1, 1, 2), "session 1 is not open"),
        (lambda: draft(runtime, 0, VOCABULARY, 2), "outside the vocabulary"),
        (lambda: draft(runtime, 0, -1, 2), "token -1 is outside the vocabulary"),
        (lambda: settle(runtime, 1, 0, 1, 0), "session 1 is not open"),
        (lambda: runtime.open_session(0, Sampling(), True), "session 0 is open already"),
        (lambda: runtime.configure(3, Sampling()), "session 3 is not open"),
    ]:
        with pytest.raises(NotStarted, match=words):
            refused()
    assert runtime.view(0) == before and runtime.view(1) is None
    span(runtime, run, 2)


def test_case_1_11_more_than_one_call_at_a_time_is_refused(runtime: Any) -> None:
    start(runtime, PROMPT)
    start(runtime, PROMPT, session=1)
    forwards = [Forward(session=n, base=6, tokens=(1,), want="last", canonical=True) for n in (0, 1)]
    for call in (
        lambda: runtime.forward(forwards),
        lambda: runtime.draft([Ask(session=n, current=1, limit=1) for n in (0, 1)]),
        lambda: runtime.settle([Settle(session=n, base=6, rows=0, position=6) for n in (0, 1)]),
    ):
        with pytest.raises(NotStarted, match="one call at a time"):
            call()
    assert numbers(runtime, 0) == numbers(runtime, 1) == (6, 0)
    assert runtime.forward([]) == runtime.draft([]) == runtime.settle([]) == ()


def test_case_10_5_rows_past_the_context_are_refused_and_the_last_one_fits(runtime: Any) -> None:
    runtime.open_session(0, Sampling(), True)
    with pytest.raises(NotStarted, match="exceed the context length of 96"):
        forward(runtime, 0, 0, [1] * (CONTEXT + 1))
    forward(runtime, 0, 0, [1] * (CONTEXT - 1))
    forward(runtime, 0, CONTEXT - 1, [2])
    assert numbers(runtime, 0)[0] == CONTEXT
    assert draft(runtime, 0, 2, 3) == ()
    with pytest.raises(NotStarted, match="exceed"):
        forward(runtime, 0, CONTEXT, [2])


@pytest.mark.parametrize("until", range(9))
def test_masked_ids_are_out_of_the_rows_below_their_index_and_of_no_other(until: int, make: Make) -> None:
    runtime = make()
    runtime.open_session(0, Sampling(), False)
    free = forward(runtime, 0, 0, PROMPT, "all").predictions
    masked = tuple(set(free))
    for session, cuts in enumerate([(6,), (2, 6), (1, 2, 3, 4, 5, 6)], start=1):
        runtime.open_session(session, Sampling(masked=(*masked, 999), mask_until=until), False)
        found: list[int] = []
        base = 0
        for end in cuts:
            found += forward(runtime, session, base, PROMPT[base:end], "all").predictions
            base = end
        for row, (token, plain) in enumerate(zip(found, free, strict=True)):
            assert token not in masked if row + 1 < until else token == plain


def test_unknown_sampling_is_refused(runtime: Any) -> None:
    with pytest.raises(ConfigError, match="processors"):
        runtime.open_session(0, Sampling(processors=(Processor(name="penalty"),)), True)
    with pytest.raises(ConfigError, match="every id"):
        runtime.open_session(0, Sampling(masked=tuple(range(VOCABULARY)), mask_until=9), True)
    assert runtime.view(0) is None


def test_a_settle_to_an_impossible_position_changes_nothing(runtime: Any) -> None:
    run = start(runtime, PROMPT)
    forward(runtime, 0, 6, [run.canonical[-1], 1, 2], "all", canonical=False)
    open_view = runtime.view(0)
    assert open_view == View(position=9, head_position=0, checkpoint=True, floor=0)
    for base, rows, position in [(6, 3, 10), (6, 3, 5), (6, 4, 10), (9, 0, 10)]:
        with pytest.raises(ValueError, match="cannot end at"):
            settle(runtime, 0, base, rows, position)
    with pytest.raises(NotStarted, match="not settled"):
        forward(runtime, 0, 9, [1])
    with pytest.raises(NotStarted, match="not settled"):
        draft(runtime, 0, 1, 2)
    assert runtime.view(0) == open_view
    settle(runtime, 0, 6, 3, 7)
    assert runtime.view(0) == View(position=7, head_position=0, checkpoint=False, floor=0)


def test_waiting_rows_are_bounded_and_a_session_that_does_not_draft_keeps_none(make: Make) -> None:
    runtime = make(draft_depth=4)
    run = start(runtime, PROMPT)
    held = runtime._sessions[0].head  # pyright: ignore[reportPrivateUsage]
    assert held is not None
    most = 0
    while len(run.canonical) < CONTEXT - 1:
        run.canonical.append(forward(runtime, 0, len(run.canonical) - 1, run.canonical[-1:]).predictions[0])
        most = max(most, held.waiting)
        assert held.cache.rows <= numbers(runtime, 0)[0] == held.end
    assert most == BACKLOG
    start(runtime, PROMPT, session=1, drafting=False)
    assert runtime._sessions[1].head is None and numbers(runtime, 1) == (6, None)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(NotStarted, match="no head"):
        draft(runtime, 1, 1, 1)


def test_after_close_nothing_runs_and_closing_again_is_fine(runtime: Any) -> None:
    start(runtime, PROMPT)
    runtime.close()
    runtime.close()
    runtime.drop_session(0)
    for call in (
        lambda: forward(runtime, 0, 6, [1]),
        lambda: draft(runtime, 0, 1, 1),
        lambda: settle(runtime, 0, 6, 0, 6),
        lambda: runtime.open_session(1, Sampling(), True),
        lambda: runtime.view(0),
    ):
        with pytest.raises(NotStarted, match="closed"):
            call()
