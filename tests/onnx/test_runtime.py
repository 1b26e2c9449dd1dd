"""The runtime's side of the protocol: what the kit does not ask. Refusals, failures, masks, sessions that let go, threads, memory."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from onnx_models import CONTEXT, HEAD_IDS, VOCABULARY
from onnx_runtimes import failing, tiny_runtime
from runtime_loop import decode, draft, forward, numbers, settle, span, start

from spanfold.backends.onnx import OnnxRuntime
from spanfold.backends.onnx.caches import BLOCK
from spanfold.backends.pairs import BACKLOG
from spanfold.engine.errors import ConfigError, NotStarted
from spanfold.engine.runtime import Runtime
from spanfold.engine.values import Sampling

PROMPT = (5, 17, 3, 40, 22, 9)
KINDS = ("genai", "ordinary")


def test_it_is_a_runtime_and_says_what_it_is() -> None:
    runtime = tiny_runtime()
    assert isinstance(runtime, Runtime)
    info = runtime.info
    assert (info.backend, info.model, info.vocabulary, info.context_length) == ("onnx", "tiny genai", VOCABULARY, CONTEXT)
    assert (info.rollback, info.max_batch, info.threads) == ("crop", 1, "any")
    assert (info.device, info.dtype, info.stop_tokens) == ("cpu", "float32", ())
    assert info.draft is not None
    assert (info.draft.origin, info.draft.layers, info.draft.depth, info.draft.context_length) == ("mtp", 1, 16, CONTEXT)
    assert tiny_runtime(of={"head": False}).info.draft is None
    assert tiny_runtime(of={"precision": "int4"}).info.dtype == "int4"
    assert tiny_runtime("ordinary", of={"precision": "float16"}).info.dtype == "float16"


def test_caches_are_shared_where_the_graph_allows_it_and_rows_are_padded_where_that_makes_them_exact() -> None:
    for kind, of, shares, width, exact in [
        ("genai", {}, True, 2, True),
        ("genai", {"share": False}, False, 2, True),
        ("genai", {"precision": "int4"}, True, 2, True),
        ("ordinary", {}, False, 2, True),
    ]:
        runtime = tiny_runtime(kind, of=of)
        assert (runtime.shares_buffers, runtime.row_width, runtime.info.row_exact) == (shares, width, exact), (kind, of)
    assert not tiny_runtime(share_buffers=False).shares_buffers
    unpadded = tiny_runtime(row_width=1)
    assert (unpadded.row_width, unpadded.info.row_exact) == (1, False)
    with pytest.raises(ConfigError, match="share_buffers was asked for and the graph appends"):
        tiny_runtime("ordinary", share_buffers=True)


@pytest.mark.parametrize("of", [{}, {"ids": False}])
def test_predictions_come_for_no_row_the_last_or_all(of: dict[str, Any]) -> None:
    runtime = tiny_runtime(of=of)
    runtime.open_session(0, Sampling(), False)
    assert forward(runtime, 0, 0, PROMPT[:2], "none").predictions == ()
    last = forward(runtime, 0, 2, PROMPT[2:4], "last")
    every = forward(runtime, 0, 4, PROMPT[4:], "all", margins=True, logprobs=True, logits=True)
    assert len(last.predictions) == 1 and last.margins is last.logprobs is last.logits is None
    assert len(every.predictions) == 2 and every.position == 6
    logits: Any = np.asarray(every.logits, np.float64)
    assert logits.shape == (2, VOCABULARY) and logits.argmax(-1).tolist() == list(every.predictions)
    best = np.sort(logits, -1)[:, ::-1]
    assert every.margins == pytest.approx((best[:, 0] - best[:, 1]).tolist())
    log_softmax = logits - best[:, :1] - np.log(np.exp(logits - best[:, :1]).sum(-1, keepdims=True))
    assert every.logprobs == pytest.approx(log_softmax.max(-1).tolist())


def test_long_forwards_run_in_pieces_and_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = [(7 * at) % VOCABULARY for at in range(50)]
    found: list[tuple[Any, ...]] = []
    for piece in (128, 7):
        monkeypatch.setattr("spanfold.backends.onnx.models.PIECE", piece)
        runtime = tiny_runtime()
        runtime.open_session(0, Sampling(), True)
        every = forward(runtime, 0, 0, tokens, "all", logits=True)
        last = draft(runtime, 0, every.predictions[-1], 3)
        runtime.open_session(1, Sampling(), False)
        found.append((every.predictions, last, forward(runtime, 1, 0, tokens, "last").predictions, np.asarray(every.logits).shape))
    assert found[0] == found[1]
    assert found[0][2] == found[0][0][-1:]


@pytest.mark.parametrize("of", [{}, {"vocabulary": HEAD_IDS}])
def test_the_head_masks_by_absolute_index_too(of: dict[str, Any]) -> None:
    runtime = tiny_runtime(of=of)
    allowed = set(of.get("vocabulary", range(VOCABULARY)))

    def drafted(sampling: Sampling) -> tuple[int, ...]:
        runtime.open_session(0, Sampling(), True)
        forward(runtime, 0, 0, PROMPT)
        runtime.configure(0, sampling)
        tokens = draft(runtime, 0, 30, 3)
        runtime.drop_session(0)
        assert set(tokens) <= allowed
        return tokens

    first = drafted(Sampling())[0]
    second = drafted(Sampling(masked=(first,), mask_until=8))
    assert second[0] != first  # the first drafted token has index 7
    both = (first, second[1])
    assert drafted(Sampling(masked=both, mask_until=7))[0] == first
    third = drafted(Sampling(masked=both, mask_until=9))
    assert third[0] not in both and third[1] not in both
    if of:
        assert drafted(Sampling(masked=HEAD_IDS, mask_until=8)) == ()
        assert len(drafted(Sampling(masked=HEAD_IDS[:-1], mask_until=8))) == 3


def test_a_row_without_a_finite_score_is_an_error_where_scores_are_asked_for() -> None:
    """The graph's own choice cannot say it; margins, log probabilities, masks and exports without ``ids`` can."""
    from onnx_models import weights

    from spanfold.backends.onnx.choice import choose
    from spanfold.engine.runtime import Extras

    assert weights()  # the scores below are not those of a model: none of ours overflows
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(FloatingPointError, match="row 1"):
            choose(np.array([[1.0, 2.0], [bad, bad]], np.float32), Extras())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("canonical", [True, False])
@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_forward_that_fails_half_way_settles_to_its_base(kind: str, canonical: bool, error: type[BaseException]) -> None:
    """Law 8: the rows were written, and none of them counts."""
    runtime = tiny_runtime(kind)
    expected = decode(runtime, PROMPT, 2, 12).tokens
    run = start(runtime, PROMPT)
    span(runtime, run, 2)
    base, head = numbers(runtime, 0)
    with failing(runtime._target.graph, error("half-way")), pytest.raises(error, match="half-way"):
        forward(runtime, 0, base, [run.canonical[-1], 1, 2], "all", canonical=canonical)
    assert numbers(runtime, 0) == (base, head)
    with pytest.raises(NotStarted):
        forward(runtime, 0, base, [1])
    with pytest.raises(ValueError, match="cannot end at"):
        settle(runtime, 0, base, 3, base + 1)
    settle(runtime, 0, base, 3, base)
    while len(run.tokens) < 12:
        span(runtime, run, 2)
    assert run.tokens[:12] == expected


@pytest.mark.parametrize("kind", KINDS)
def test_without_memory_for_the_rows_a_forward_is_not_started(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tiny_runtime(kind)
    runtime.open_session(0, Sampling(), True)

    def full(*arguments: Any) -> Any:
        raise MemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr("spanfold.backends.onnx.caches.allocate", full)
        with pytest.raises(NotStarted, match="no memory for 6 rows"):
            forward(runtime, 0, 0, PROMPT)
    assert numbers(runtime, 0) == (0, 0)
    forward(runtime, 0, 0, PROMPT)


def test_a_failing_head_ends_the_drafting_and_keeps_no_rows() -> None:
    runtime = tiny_runtime()
    expected = decode(runtime, PROMPT, 0, 60).tokens
    run = start(runtime, PROMPT)
    span(runtime, run, 2)
    assert runtime._head is not None
    with failing(runtime._head.graph, RuntimeError("bad head")), pytest.raises(RuntimeError, match="bad head"):
        draft(runtime, 0, run.canonical[-1], 2)
    assert numbers(runtime, 0)[1] is None
    with pytest.raises(RuntimeError, match="off since it failed") as caught:
        draft(runtime, 0, run.canonical[-1], 2)
    assert "bad head" in str(caught.value.__cause__)
    while len(run.tokens) < 60:
        span(runtime, run, 0)
    assert run.tokens[:60] == expected


def test_a_head_that_fails_while_it_is_fed_does_not_harm_the_rows() -> None:
    runtime = tiny_runtime()
    runtime.open_session(0, Sampling(), True)
    assert runtime._head is not None
    with failing(runtime._head.graph, RuntimeError("bad head")):
        rows = forward(runtime, 0, 0, [1] * (BACKLOG + 1))
    assert rows.position == BACKLOG + 1 and numbers(runtime, 0) == (BACKLOG + 1, None)
    with pytest.raises(RuntimeError, match="off since it failed"):
        draft(runtime, 0, 1, 2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", ["drop", "open span", "failed head", "rewound"])
def test_cases_5_5_and_5_6_sessions_give_everything_back(kind: str, ending: str) -> None:
    runtime = tiny_runtime(kind)
    arrays = None
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
            runtime._sessions[turn].head = None
        runtime.drop_session(turn)
        runtime.drop_session(turn)
        assert runtime.live_sessions == 0 and runtime.nbytes(turn) == 0 and runtime.view(turn) is None
        del run
        if turn in (1, 19):
            gc.collect()
            count = sum(str(type(one).__module__).startswith("spanfold.backends.onnx") for one in gc.get_objects())
            assert arrays is None or count <= arrays
            arrays = count


@pytest.mark.parametrize("kind", KINDS)
def test_sessions_on_one_graph_may_run_at_the_same_time_from_several_threads(kind: str) -> None:
    """Without a lock: each session has its own bindings and caches, and nothing else is written."""
    runtime = tiny_runtime(kind)
    prompts = [PROMPT, (1, 2, 3), (30, 31), (8,) * 20]
    alone = [decode(runtime, prompt, 3, 40).tokens for prompt in prompts]
    runs = [start(runtime, prompt, session=n) for n, prompt in enumerate(prompts)]
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(prompts))

    def work(n: int) -> None:
        try:
            barrier.wait(10)
            while len(runs[n].tokens) < 40:
                span(runtime, runs[n], 3, session=n)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert [run.tokens[:40] for run in runs] == alone


@pytest.mark.parametrize("kind", KINDS)
def test_case_7_11_memory_is_flat_over_2000_steps(kind: str) -> None:
    """Rewound and decoded again, in spans of every length: the buffers are the same objects of the same size, and Python holds no more."""
    runtime = tiny_runtime(kind)
    run = start(runtime, PROMPT)
    cache: Any = runtime._sessions[0].lane.cache
    steps = 0
    sizes: set[int] = set()
    bindings: set[int] = set()
    objects: list[int] = []
    while steps < 2000:
        while len(run.canonical) < CONTEXT - 6:
            span(runtime, run, steps % 4)
            steps += 1
        sizes.add(runtime.nbytes(0))
        bindings.add(len(runtime._sessions[0].lane._bindings))
        position = numbers(runtime, 0)[0]
        settle(runtime, 0, 10, position - 10, 10)
        del run.canonical[11:]
        run.spans.clear()
        forward(runtime, 0, 10, run.canonical[-1:])
        run.canonical.append(1)
        gc.collect()
        objects.append(len(gc.get_objects()))
    assert len(sizes) == 1 and bindings == {1}  # one set of outputs: choice and hidden rows
    assert max(objects[2:]) - objects[2] < 50
    assert cache.nbytes > 0


def test_buffers_grow_by_doubling_and_keep_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in KINDS:
        expected = decode(tiny_runtime(kind), PROMPT, 3, 70).tokens
        with monkeypatch.context() as patch:
            patch.setattr("spanfold.backends.onnx.caches.BLOCK", 8)
            runtime = tiny_runtime(kind)
            run = start(runtime, PROMPT)
            sizes = [runtime.nbytes(0)]
            while len(run.tokens) < 70:
                span(runtime, run, 3)
                sizes.append(runtime.nbytes(0))
            assert run.tokens[:70] == expected
            assert len(set(sizes)) >= 4 and sizes == sorted(sizes)
    assert BLOCK == 256


def test_arguments_of_the_runtime_are_validated() -> None:
    for options, words in [
        ({"context_length": CONTEXT + 1}, "context_length must be an integer from 1 to 96"),
        ({"context_length": 0}, "context_length"),
        ({"draft_context_length": "x"}, "draft_context_length"),
        ({"draft_depth": 17}, "draft_depth must be an integer from 1 to 16"),
        ({"row_width": 0}, "row_width must be an integer from 1"),
        ({"row_width": 33}, "row_width must be an integer from 1"),
    ]:
        with pytest.raises(ConfigError, match=words):
            tiny_runtime(**options)


def test_cases_10_3_and_10_6_a_shorter_context_of_the_head_is_kept() -> None:
    runtime = tiny_runtime(draft_context_length=10, context_length=40)
    assert runtime.info.draft is not None and runtime.info.draft.context_length == 10
    run = start(runtime, PROMPT)
    while len(run.canonical) < 11:
        span(runtime, run, 1)
    assert draft(runtime, 0, run.canonical[-1], 3) == ()
    assert isinstance(runtime, OnnxRuntime)
