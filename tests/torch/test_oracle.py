"""Token for token what transformers' own greedy generate gives, through the engine's Decoder, on tiny random models.

A random head is almost never right, so the rounds also run with drafts that are right or wrong by a pattern: then spans are
cut at every place. Near ties (float32 margins below ``BOUND``) would be allowed to differ; none occurs with these seeds.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any

import pytest
from patterned import Patterned
from torch_loop import assert_same, greedy
from torch_models import CONTEXT, FAMILIES, VOCABULARY, parts, tiny_runtime

from spanfold.backends.torch import TorchRuntime
from spanfold.engine import Decoder, Policy

#: See docs/explanation/numerics.md.
BOUND = 1e-3
PROMPT = (5, 17, 3, 40, 22, 9)
WIDTHS = range(6)


@cache
def runtime_of(family: str) -> TorchRuntime:
    return tiny_runtime(family)


@cache
def serial(family: str, prompt: tuple[int, ...] = PROMPT, count: int = 40) -> tuple[int, ...]:
    return greedy(model_of(family), prompt, count)


def model_of(family: str) -> Any:
    return runtime_of(family)._model  # pyright: ignore[reportPrivateUsage]


def patterned(family: str, every: int) -> Patterned:
    return Patterned((*PROMPT, *serial(family)), VOCABULARY, lambda index: index % every == every - 1)


def live(runtime: TorchRuntime) -> int:
    return runtime.live_sessions


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_models_own_head_changes_no_token(family: str, width: int) -> None:
    for prompt in (PROMPT, (1,), tuple(range(2, 42))):
        with Decoder(runtime_of(family), policy=width) as decoder:
            result = decoder.generate(prompt, max_tokens=40)
        assert_same(model_of(family), prompt, result.tokens, serial(family, prompt), BOUND)
        assert (result.finish_reason, result.limit) == ("length", "max_tokens")
        assert (result.stats.spans > 0) == (width > 0)
    assert live(runtime_of(family)) == 0


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("width", range(1, 6))
@pytest.mark.parametrize("every", [1, 2, 3, 4, 7, 100])
def test_drafts_right_and_wrong_in_every_pattern_change_no_token(family: str, width: int, every: int) -> None:
    with Decoder(runtime_of(family), policy=width, source=patterned(family, every)) as decoder:
        result = decoder.generate(PROMPT, max_tokens=40)
    assert_same(model_of(family), PROMPT, result.tokens, serial(family), BOUND)
    stats = result.stats
    assert stats.forwards + stats.saved_forwards == len(result.tokens)
    if every == 100:
        assert stats.accepted == stats.verified and stats.forwards <= 2 + 39 // (width + 1) + 1
    if every == 1:
        assert stats.accepted == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_case_2_2_limits_are_exact(width: int) -> None:
    for every in (3, 100):
        with Decoder(runtime_of("llama"), policy=width, source=patterned("llama", every)) as decoder:
            for count in range(7):
                result = decoder.generate(PROMPT, max_tokens=count)
                assert result.tokens == serial("llama")[:count]
                assert (result.finish_reason, result.limit) == ("length", "max_tokens")


@pytest.mark.parametrize("family", FAMILIES)
def test_case_2_1_a_stop_ends_in_the_same_place_wherever_it_falls_in_a_span(family: str) -> None:
    tokens = serial(family)
    for stop in sorted(set(tokens[:16])):
        stops = [stop, (stop + 1) % VOCABULARY]
        expected = greedy(model_of(family), PROMPT, 40, eos_token_id=stops)
        for width in (0, 1, 3, 5):
            with Decoder(runtime_of(family), policy=width, source=patterned(family, 4) if width else "none") as decoder:
                result = decoder.generate(PROMPT, max_tokens=40, stop_tokens=stops)
            assert result.tokens == expected
            assert result.finish_reason == ("stop_token" if expected[-1] in stops else "length")


@pytest.mark.parametrize("width", [0, 2, 5])
def test_min_tokens_masks_the_stop_ids_as_transformers_does(width: int) -> None:
    tokens = serial("llama")
    stops = sorted(set(tokens[:3]))
    for least in (1, 4, 9):
        expected = greedy(model_of("llama"), PROMPT, 30, eos_token_id=stops, min_new_tokens=least)
        with Decoder(runtime_of("llama"), policy=width) as decoder:
            result = decoder.generate(PROMPT, max_tokens=30, stop_tokens=stops, min_tokens=least)
        assert result.tokens == expected and len(expected) > least


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_contexts_end_is_reached_and_not_passed(family: str, width: int) -> None:
    prompt = tuple(range(1, 61)) + tuple(range(1, 21))
    expected = greedy(model_of(family), prompt, CONTEXT - len(prompt))
    with Decoder(runtime_of(family), policy=width) as decoder:
        for length in range(CONTEXT - 7, CONTEXT):
            whole = (*prompt, *expected)
            result = decoder.generate(whole[:length])
            assert result.tokens == whole[length:]
            assert (result.finish_reason, result.limit) == ("length", "context")
        full = decoder.generate((*prompt, *expected))
        assert full.tokens == () and full.limit == "context"


@pytest.mark.parametrize("width", [0, 1, 3, 5])
def test_a_cancel_at_any_poll_leaves_a_prefix_and_a_session_that_goes_on(width: int) -> None:
    runtime = runtime_of("qwen3")
    expected = serial("qwen3")
    for poll in range(1, 30):
        seen = 0

        def cancel(poll: int = poll) -> bool:
            nonlocal seen
            seen += 1
            return seen == poll

        source = patterned("qwen3", 4) if width else "none"
        with (
            Decoder(runtime, policy=Policy(width=width, prefill_chunk=2), source=source) as decoder,
            decoder.open(PROMPT, max_tokens=20, cancel=cancel) as session,
        ):
            first = tuple(session)
            assert first == expected[: len(first)]
            view = runtime.view(session.runtime_session)
            assert view is not None and not view.checkpoint
            if session.finish is not None and session.finish.reason == "cancelled":
                assert view.position == (len(PROMPT) + len(first) - 1 if first else 0)
                session.extend(max_tokens=20 - len(first))
                assert (*first, *session) == expected[:20]
            else:
                assert first == expected[:20]
        assert live(runtime) == 0


@pytest.mark.parametrize("width", [0, 3])
def test_cases_1_16_and_2_8_turns_and_rewinds_equal_a_fresh_start(width: int) -> None:
    """Rewind into the prompt, extend, go on: each turn is what a fresh session over the same tokens decodes."""
    runtime = runtime_of("qwen2")
    with Decoder(runtime, policy=width) as decoder, decoder.open(PROMPT, max_tokens=12) as session:
        list(session)
        for back, more in [(3, (7, 8)), (1, ()), (15, (50,)), (2, (30, 31, 32)), (9, ())]:
            session.rewind(back)
            session.extend(more, max_tokens=10)
            given = tuple(session.state.canonical)
            turn = tuple(session)
            assert turn == decoder.generate(given, max_tokens=10).tokens
            assert_same(model_of("qwen2"), given, turn, greedy(model_of("qwen2"), given, 10), BOUND)
            view = runtime.view(session.runtime_session)
            assert view is not None and view.position == len(session.state.canonical) - 1


@pytest.mark.parametrize("chunk", [1, 4, 512])
def test_prefill_reports_its_progress(chunk: int) -> None:
    told: list[tuple[int, int]] = []
    with Decoder(runtime_of("llama"), policy=Policy(width=2, prefill_chunk=chunk)) as decoder:
        result = decoder.generate(PROMPT, max_tokens=10, on_prefill=lambda done, total: told.append((done, total)))
    assert result.tokens == serial("llama")[:10]
    assert told == [(min(end, 6), 6) for end in range(chunk, 6 + chunk, chunk)]


def test_a_model_without_a_head_decodes_serially_or_by_prompt_lookup() -> None:
    runtime = tiny_runtime("llama", head=False)
    with Decoder(runtime) as decoder:
        result = decoder.generate(PROMPT, max_tokens=30)
        assert result.tokens == serial("llama")[:30] and result.stats.spans == 0
    prompt = (7, 8, 9, 10) * 6
    with Decoder(runtime, source="prompt_lookup", policy=4) as decoder:
        result = decoder.generate(prompt, max_tokens=30)
        assert result.tokens == serial("llama", prompt)[:30] and result.stats.spans > 0


@pytest.mark.parametrize("modules", [False, True])
def test_a_head_that_fails_leaves_the_decode_alone(modules: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tiny_runtime("llama", modules=modules)
    owner, name = parts(runtime)["head"]
    calls = 0
    original = getattr(owner, name)

    def fail_later(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 7:
            raise RuntimeError("bad head")
        return original(*args)

    monkeypatch.setattr(owner, name, fail_later)
    with Decoder(runtime, policy=3) as decoder:
        result = decoder.generate(PROMPT, max_tokens=30)
    assert result.tokens == serial("llama")[:30] and result.stats.spans == 2 and result.stats.serial_steps > 20
    assert live(runtime) == 0


def test_interleaved_sessions_and_threads_are_each_as_alone() -> None:
    runtime = runtime_of("qwen3")
    prompts = [(5, 6), (30, 1, 2, 3), PROMPT, (11,) * 20]
    expected = [greedy(model_of("qwen3"), prompt, 24) for prompt in prompts]
    got: list[tuple[int, ...]] = [()] * 4
    with Decoder(runtime, policy=3) as decoder:
        sessions = [decoder.open(prompt, max_tokens=24) for prompt in prompts]
        while not all(session.finished for session in sessions):
            for number, session in enumerate(sessions):
                if not session.finished:
                    got[number] += session.step()
        assert got == expected

        def work(number: int) -> None:
            got[number] = decoder.generate(prompts[number], max_tokens=24).tokens

        got = [()] * 4
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert got == expected
    assert live(runtime) == 0


@pytest.mark.parametrize("reason", ["stop_token", "length", "cancelled", "closed", "stop_when"])
def test_case_5_5_two_hundred_short_generations_leave_nothing_behind(reason: str) -> None:
    runtime = runtime_of("llama")
    with Decoder(runtime, policy=2) as decoder:
        for _ in range(200 if reason == "stop_token" else 20):
            stop = serial("llama")[2]
            if reason == "closed":
                with decoder.stream(PROMPT) as stream:
                    next(stream)
                assert stream.result.finish_reason == "closed"
                continue
            result = decoder.generate(
                PROMPT,
                max_tokens=3,
                stop_tokens=(stop,) if reason == "stop_token" else (),
                cancel=(lambda: True) if reason == "cancelled" else None,
                stop_when=(lambda token, index: True) if reason == "stop_when" else None,
            )
            assert result.finish_reason == reason
    assert live(runtime) == 0
