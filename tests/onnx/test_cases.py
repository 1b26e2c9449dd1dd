"""Cases of public bug reports about ONNX Runtime loops. (7.1 is in test_providers.py, 7.8 in test_loading.py, 7.11 in test_runtime.py.)"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import CONTEXT, SHAPE
from onnx_runtimes import loaded, tiny_runtime
from runtime_loop import Run, decode, draft, forward, numbers, settle, span, start

from spanfold.backends.onnx.caches import AppendedCache, SharedCache
from spanfold.engine import Decoder
from spanfold.engine.values import Sampling

PROMPT = (5, 17, 3, 40, 22, 9)
KINDS = ("genai", "ordinary")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_case_7_2_the_first_step_with_an_empty_past_is_the_same_bound_and_unbound(kind: str, precision: str) -> None:
    of = {"precision": precision}
    runtime = tiny_runtime(kind, of=of)
    runtime.open_session(0, Sampling(), False)
    bound: Any = forward(runtime, 0, 0, PROMPT, "all", logits=True).logits
    session = loaded(kind=kind, **of).session
    dtype = np.float16 if precision == "float16" else np.float32
    feeds: dict[str, Any] = {"input_ids": np.array([PROMPT]), "attention_mask": np.ones((1, len(PROMPT)), np.int64)}
    for layer in range(SHAPE.layers):
        for part in ("key", "value"):
            feeds[f"past_key_values.{layer}.{part}"] = np.zeros((1, SHAPE.kv, 0, SHAPE.dim), dtype)
    (unbound,) = session.run(["logits"], feeds)
    assert np.isfinite(bound).all()
    assert np.array_equal(bound, unbound[0])


@pytest.mark.parametrize("kind", KINDS)
def test_case_7_6_a_session_goes_on_after_its_end_and_shared_buffers_change_nothing(kind: str) -> None:
    found: list[tuple[int, ...]] = []
    for runtime in [tiny_runtime(kind), tiny_runtime(kind, share_buffers=False), tiny_runtime(kind, of={"head": False})]:
        with Decoder(runtime, policy=3 if runtime.info.draft else 0) as decoder, decoder.open(PROMPT, max_tokens=9) as session:
            list(session)
            session.extend((7, 8), max_tokens=9)
            list(session)
            session.extend((1,), max_tokens=9)
            list(session)
            found.append(tuple(session.state.canonical))
    assert found[0] == found[1] == found[2]
    with Decoder(tiny_runtime(kind), policy=0) as decoder:
        assert found[0][-9:] == decoder.generate(found[0][:-9], max_tokens=9).tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("left", [0, 1, 4, 17, 24])
def test_case_7_7_a_rewind_then_other_tokens_equals_a_fresh_session(kind: str, left: int) -> None:
    runtime = tiny_runtime(kind)
    run = start(runtime, PROMPT)
    while numbers(runtime, 0)[0] < 24:
        span(runtime, run, 0)
    settle(runtime, 0, left, 24 - left, left)
    assert numbers(runtime, 0) == (left, min(left, numbers(runtime, 0)[1] or 0))
    kept = run.canonical[:left]
    found = forward(runtime, 0, left, (50, 51, 52), "all", logits=True)
    fresh = start(runtime, [*kept, 50], session=1)
    other = forward(runtime, 1, left + 1, (51, 52), "all", logits=True)
    assert found.predictions == (fresh.canonical[-1], *other.predictions)
    assert np.array_equal(found.logits[1:], other.logits)
    assert draft(runtime, 0, 9, 3) == draft(runtime, 1, 9, 3) or left


@pytest.mark.parametrize("kind", KINDS)
def test_case_7_10_what_lies_behind_the_rows_is_zeroed_and_never_read(kind: str) -> None:
    """Not-a-number behind the rows that count changes nothing: neither a trim nor padding leaves anything that is read."""
    expected = decode(tiny_runtime(kind), PROMPT, 3, 50).tokens
    runtime = tiny_runtime(kind)
    run = start(runtime, PROMPT)
    cache: Any = runtime._sessions[0].lane.cache
    blocks = [cache._block] if isinstance(cache, SharedCache) else list(cache._blocks)
    assert all(np.isfinite(block.load()).all() for block in blocks)
    while len(run.tokens) < 50:
        for at, block in enumerate([cache._block] if isinstance(cache, SharedCache) else cache._blocks):
            for view in cache._shape.views(block.load(), cache._capacity, None if isinstance(cache, SharedCache) else cache._dense):
                view[:, 0 if at else cache.rows :] = np.nan
        span(runtime, run, 3)
    assert run.tokens[:50] == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["float32", "int4"])
@pytest.mark.parametrize("base", [1, 6, 63, 64, 80])
def test_cases_7_13_and_1_2_rows_verified_with_a_past_equal_rows_decoded_alone(kind: str, precision: str, base: int) -> None:
    runtime = tiny_runtime(kind, of={"precision": precision})
    tokens = [(11 * at + at * at) % 61 for at in range(CONTEXT)]
    runtime.open_session(0, Sampling(), False)
    forward(runtime, 0, 0, tokens[:base], "none")
    alone = [forward(runtime, 0, at, tokens[at : at + 1], logits=True).logits for at in range(base, base + 6)]
    for rows in (2, 3, 5, 6):
        settle(runtime, 0, base, numbers(runtime, 0)[0] - base, base)
        together: Any = forward(runtime, 0, base, tokens[base : base + rows], "all", canonical=False, logits=True).logits
        settle(runtime, 0, base, rows, base + rows)
        assert np.array_equal(together, np.concatenate(alone[:rows]))


@pytest.mark.parametrize("kind", KINDS)
def test_case_1_3_a_trim_names_what_stays_and_refuses_more_than_is_there(kind: str) -> None:
    runtime = tiny_runtime(kind)
    runtime.open_session(0, Sampling(), False)
    forward(runtime, 0, 0, PROMPT[:3])
    cache = runtime._sessions[0].lane.cache
    assert isinstance(cache, SharedCache if kind == "genai" else AppendedCache)
    for rows in (4, -1):
        with pytest.raises(ValueError, match=f"cannot trim 3 rows to {rows}"):
            cache.trim_to(rows)
    assert cache.rows == 3
    cache.trim_to(0)
    assert cache.rows == 0 and numbers(runtime, 0) == (0, None)
    with pytest.raises(ValueError, match="exceed the cache's limit"):
        cache.reserve(CONTEXT + 1000)


@pytest.mark.parametrize("kind", KINDS)
def test_cases_1_8_and_6_6_the_heads_rows_are_the_canonical_pairs_after_every_round(kind: str) -> None:
    """Accepted 0 .. k of k, in every order: no gap and no drift, and the draft is what a fresh session would draft."""
    runtime = tiny_runtime(kind, of={"vocabulary": tuple(range(61))})
    oracle = decode(runtime, PROMPT, 0, 80).tokens
    run = start(runtime, PROMPT)
    for turn in range(16):
        k, accepted = 1 + turn % 4, turn % (2 + turn % 4)

        def forced(canonical: tuple[int, ...], limit: int, accepted: int = accepted) -> list[int]:
            right = oracle[len(canonical) - len(PROMPT) :][:limit]
            return [token if at < accepted else (token + 1) % 61 for at, token in enumerate(right)]

        assert len(draft(runtime, 0, run.canonical[-1], k)) == k
        base = len(run.canonical) - 1
        assert numbers(runtime, 0) == (base, base)
        span(runtime, run, k, drafts=forced)
        assert run.spans[-1] == (k, min(accepted, k))
        assert numbers(runtime, 0)[0] == len(run.canonical) - 1
    fresh = Run(list(run.canonical), len(PROMPT))
    runtime.open_session(1, Sampling(), True)
    forward(runtime, 1, 0, fresh.canonical[:-1])
    assert draft(runtime, 0, run.canonical[-1], 5) == draft(runtime, 1, fresh.canonical[-1], 5)
