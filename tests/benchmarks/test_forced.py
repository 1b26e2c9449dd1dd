"""Forced drafts are right at the rate that is asked for, at the same places in every run, and change no token."""

from __future__ import annotations

import pytest
from gpubench.forced import ForcedDrafts

from spanfold.backends.scripted import ScriptedRuntime, hash_target
from spanfold.engine import Decoder

PROMPT = (1, 2, 3)
TOKENS = 400


def scripted() -> ScriptedRuntime:
    return ScriptedRuntime(hash_target(1, 50), vocabulary=50, context_length=TOKENS + 20)


def truth() -> tuple[int, ...]:
    with Decoder(scripted(), policy=0) as decoder:
        return (*PROMPT, *decoder.generate(PROMPT, max_tokens=TOKENS).tokens)


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("rate", [0.0, 0.5, 0.9, 1.0])
def test_drafts_are_accepted_at_the_rate(rate: float, width: int):
    known = truth()
    with Decoder(ForcedDrafts(scripted(), known, rate), policy=width) as decoder:
        result = decoder.generate(PROMPT, max_tokens=TOKENS)
    assert (*PROMPT, *result.tokens) == known
    accepted, verified = result.stats.accepted_per_depth, result.stats.verified_per_depth
    # A depth can be right only where the ones before it were: the rate of a depth is given those.
    for depth, (hits, tries) in enumerate(zip(accepted, verified, strict=True)):
        before = verified[0] if depth == 0 else accepted[depth - 1]
        assert hits / max(min(before, tries), 1) == pytest.approx(rate, abs=0.1)


def test_the_same_seed_is_wrong_at_the_same_places_and_another_is_not():
    known = truth()
    first, again, other = (ForcedDrafts(scripted(), known, 0.5, seed) for seed in (0, 0, 1))
    places = [[one.token(at) == known[at] for at in range(len(known))] for one in (first, again, other)]
    assert places[0] == places[1] != places[2]
    assert ForcedDrafts(scripted(), known, 1.0).token(len(known) + 5) == 0
