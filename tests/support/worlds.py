"""Small worlds for the laws: targets as plain functions of the prefix, runtimes and turns drawn by Hypothesis."""

import dataclasses
import zlib

from harness import Bench
from hypothesis import strategies as st
from serial_oracle import serial

from spanfold.backends import scripted
from spanfold.engine import Policy


def choice(seed, vocabulary):
    """A function of the true prefix: its best id, as if at random."""

    def best(prefix):
        return (zlib.crc32(bytes(prefix), seed) * 2654435761 >> 7) % vocabulary

    return best


def scores(best, vocabulary):
    """The same as scores per id: the best id first, then the ones that follow it, cyclically. For the scripted runtime."""

    def function(prefix):
        top = best(prefix)
        return [-float((token - top) % vocabulary) for token in range(vocabulary)]

    return function


def masked_best(best, vocabulary):
    """The same as a choice under a mask. For the serial oracle."""

    def choose(prefix, masked):
        top = best(prefix)
        return next((top + step) % vocabulary for step in range(vocabulary) if (top + step) % vocabulary not in masked)

    return choose


def drafts(draw):
    """A head of some quality: right, wrong, noisy, constant, too short, too long, or out of the vocabulary."""
    kind = draw(st.sampled_from(["oracle", "adversarial", "noisy", "noisy", "noisy", "constant", "invalid", "short", "surplus"]))
    noise = scripted.noisy(draw(st.integers(0, 5)), draw(st.sampled_from([0.3, 0.6, 0.9])))
    if kind == "noisy":
        return noise
    if kind == "constant":
        return scripted.constant(0)
    if kind == "invalid":
        return scripted.invalid(draw(st.sampled_from([-1, 1000])), depth=draw(st.integers(0, 2)), inner=noise)
    if kind == "short":
        return scripted.short(draw(st.integers(0, 2)), noise)
    if kind == "surplus":
        return scripted.surplus(draw(st.integers(1, 3)), noise)
    return scripted.oracle() if kind == "oracle" else scripted.adversarial()


@dataclasses.dataclass
class World:
    """A target, a runtime to run it on, and a turn; with the oracle's answer for it."""

    seed: int
    vocabulary: int
    prompt: tuple
    context: int
    turn: dict
    runtime: dict
    policy: Policy
    source: str

    @property
    def best(self):
        return choice(self.seed, self.vocabulary)

    @property
    def stop_ids(self):
        own = self.runtime["stop_tokens"]
        given = self.turn["stop_tokens"]
        stops = own if given is None else given
        return tuple(set(stops) - set(own)) if self.turn["ignore_eos"] else tuple(stops)

    def serial(self, prompt=None):
        """(tokens, reason, limit) by the oracle."""
        return serial(
            masked_best(self.best, self.vocabulary),
            self.prompt if prompt is None else prompt,
            context=self.context,
            max_tokens=self.turn["max_tokens"],
            stops=self.stop_ids,
            min_tokens=self.turn["min_tokens"],
        )

    def bench(self, **changes):
        """A fresh runtime and decoder."""
        decoder = {"clock": lambda: 0, **changes.pop("decoder", {})}  # the policy auto decides by costs: no real ones
        options = {"policy": self.policy, "source": self.source, "decoder": decoder, **self.runtime, **changes}
        return Bench(scores(self.best, self.vocabulary), vocabulary=self.vocabulary, context_length=self.context, **options)


@st.composite
def worlds(draw):
    """Every kind of world that the laws speak of."""
    vocabulary = draw(st.integers(2, 6))
    ids = st.integers(0, vocabulary - 1)
    prompt = tuple(draw(st.lists(ids, min_size=1, max_size=6)))
    context = draw(st.integers(len(prompt), len(prompt) + 24))
    depth = draw(st.integers(1, 5))
    width = draw(st.integers(0, depth))
    kind = draw(st.sampled_from(["fixed", "auto"])) if width else "fixed"
    cost = st.sampled_from([0, 1, 7, 100, 3000])
    max_tokens = draw(st.one_of(st.none(), st.integers(0, 20)))
    stops = st.lists(ids, max_size=vocabulary - 1, unique=True).map(tuple)
    return World(
        seed=draw(st.integers(0, 1 << 16)),
        vocabulary=vocabulary,
        prompt=prompt,
        context=context,
        turn={
            "max_tokens": max_tokens,
            "min_tokens": draw(st.integers(0, 4 if max_tokens is None else min(max_tokens, 4))),
            "stop_tokens": draw(st.one_of(st.none(), st.just(()), stops)),
            "ignore_eos": draw(st.booleans()),
        },
        runtime={
            "drafts": drafts(draw),
            "rollback": draw(st.sampled_from(["crop", "checkpoint", "none"])),
            "depth": depth,
            "draft_context": draw(st.one_of(st.none(), st.integers(1, context))),
            "backlog": draw(st.sampled_from([1, 2, 64])),
            "early_exit": draw(st.booleans()),
            "stop_tokens": draw(stops),
            "costs": scripted.Costs(forward=draw(cost), row=draw(cost), draft=draw(cost), step=draw(cost), settle=draw(cost)),
        },
        policy=Policy(
            kind=kind,
            width=width,
            min_draft=draw(st.integers(1, max(width, 1))),
            prefill_chunk=draw(st.sampled_from([1, 2, 512])),
        ),
        source=draw(st.sampled_from(["auto", "auto", "auto", "prompt_lookup"])),
    )
