"""Runtimes that claim what they cannot do, and runtimes that take a session's sampling lightly."""

import attrs
from broken_base import Careless, Rounding

from spanfold.backends.scripted.device import Device
from spanfold.engine.runtime import Extras
from spanfold.engine.values import DraftInfo

# Capabilities.


class ClaimsRowExact(Rounding):
    """``row_exact`` was set by hand: near ties do flip between forwards of one row and of several."""

    claims = {"row_exact": True}


class ClaimsCrop(Careless):
    """Says ``crop`` where a recurrent state allows no way back but over the newest span."""

    origin = "checkpoint"
    claims = {"rollback": "crop"}


class ClaimsCheckpoint(Careless):
    """Says ``checkpoint`` where speculative rows are refused."""

    origin = "none"
    claims = {"rollback": "checkpoint"}


class ClaimsAHead(Careless):
    """Says that there is a head; its weights were never loaded."""

    origin = "headless"
    claims = {"draft": DraftInfo(depth=5, context_length=128)}


class ClaimsLongerContext(Careless):
    """The context length is the configuration's, the buffers are made for less (10.5)."""

    claims = {"context_length": 128}

    def __init__(self):
        super().__init__(context_length=96)


class ClaimsLongerDraftContext(Careless):
    """The head's context length is the target's, its own buffer is made for less (10.3)."""

    origin = "short_head"
    claims = {"draft": DraftInfo(depth=5, context_length=128)}


class ClaimsDeeperDraft(Careless):
    """The head has two layers and does not recycle the last one: deeper drafts than two fail half way (6.10)."""

    layers = 2

    def _draft(self, call, fault):
        if call.limit <= self.layers:
            return super()._draft(call, fault)
        super()._draft(attrs.evolve(call, limit=self.layers), fault)
        raise IndexError(f"layer {self.layers} of {self.layers}")


class ClaimsPaddedVocabulary(Careless):
    """The vocabulary is that of the padded logits, a table of embeddings holds fewer rows."""

    claims = {"vocabulary": 64}


class Unhashable(Careless):
    """The runtime compares by its fields, so it cannot be hashed."""

    def __eq__(self, other):
        return isinstance(other, Unhashable) and self.info == other.info

    __hash__ = None


# Sampling.


class _FirstSampling(Device):
    configured = False

    def configure(self, sampling):
        if not self.configured:
            super().configure(sampling)
        self.configured = True


class ConfigureIgnored(Careless):
    """A session samples as it was opened; `configure` is checked and forgotten."""

    device = _FirstSampling


class SamplingShared(Careless):
    """The sampling is an attribute of the model: whoever set it last set it for all sessions."""

    def configure(self, session, sampling):
        super().configure(session, sampling)
        for device in self._devices.values():
            device.configure(sampling)


class _PlainSpans(Device):
    def predict(self, first):
        if self.checkpoint is None:
            return super().predict(first)
        return tuple(self.target.choose(state, ()) for state in self.hidden[first:])


class MaskIgnoredInSpans(Careless):
    """Masked ids are kept out of serial rows only: spans take the plain argmax."""

    device = _PlainSpans


class _MaskOfBase(Device):
    def predict(self, first):
        banned = self.banned(first + 1)
        return tuple(self.target.choose(state, banned) for state in self.hidden[first:])


class MaskDecidedPerForward(Careless):
    """Whether ids are masked is decided once per forward, by the index of its first row."""

    device = _MaskOfBase


class _MaskByPosition(Device):
    def banned(self, index):
        return super().banned(index - 1)


class MaskByPosition(Careless):
    """``mask_until`` is compared with the row's position instead of the index of the token that it chooses, one more."""

    device = _MaskByPosition


class LogprobsOnlySerial(Careless):
    """A span answers 0.0 for every log probability that is asked for (4.8)."""

    def _forward(self, call, fault):
        rows = super()._forward(call, fault)
        if call.canonical or rows.logprobs is None:
            return rows
        return attrs.evolve(rows, logprobs=(0.0,) * len(rows.logprobs))


class MarginsIgnored(Careless):
    """Extras that are asked for are neither answered nor refused."""

    def _forward(self, call, fault):
        return super()._forward(attrs.evolve(call, extras=Extras()), fault)
