"""What the broken runtimes are made of: sound scripted worlds, and a scripted runtime whose device can be exchanged."""

import functools

import attrs

from spanfold.backends.scripted import HashTarget, ScriptedRuntime, hash_target, noisy
from spanfold.backends.scripted.device import Device
from spanfold.backends.scripted.targets import mix

VOCABULARY = 50
#: What the two best ids of every third state or so differ by on the world `rounding`; elsewhere it is 1.
TIE = 1e-6


@attrs.frozen
class NearTies:
    """A hash target whose best two ids are nearly equal in some states; ``flipped``: as other rounding would order them."""

    inner: HashTarget
    flipped: bool = False

    @property
    def vocabulary(self):
        return self.inner.vocabulary

    def start(self):
        return self.inner.start()

    def advance(self, state, token):
        return self.inner.advance(state, token)

    def choose(self, state, masked):
        scores = self.scores(state)
        return max((token for token in range(self.vocabulary) if token not in masked), key=lambda token: (scores[token], -token))

    def scores(self, state):
        scores = list(self.inner.scores(state))
        if mix(state + 1) % 3 == 0:
            scores[(scores.index(0) + 1) % self.vocabulary] = TIE if self.flipped else -TIE
        return tuple(scores)


def _world(**changes):
    common = {
        "target": hash_target(3, VOCABULARY),
        "drafts": noisy(5, 0.7),
        "context_length": 128,
        "depth": 5,
        "backlog": 16,
        "record": False,
    }
    return common | changes


#: Arguments of the scripted runtime, by the name of the sound runtime that they make.
WORLDS = {
    "crop": _world(),
    "checkpoint": _world(rollback="checkpoint", backlog=8),
    "none": _world(rollback="none"),
    "headless": _world(head=False),
    "early_exit": _world(early_exit=True),
    "short_head": _world(draft_context=40),
    "batch": _world(max_batch=4),
    "rounding": _world(target=NearTies(hash_target(3, VOCABULARY))),
}


class Careless(ScriptedRuntime):
    """A scripted runtime of the world ``origin``, for authors to make one mistake in.

    Class attributes:
        origin: the sound runtime that this one would be without its mistake.
        device: what a session is made of.
        claims: what `info` says otherwise than it is; the runtime's own checks know the truth.
    """

    origin = "crop"
    device = Device
    claims: dict = {}

    def __init__(self, **changes):
        super().__init__(**(WORLDS[self.origin] | changes))
        self._claimed = attrs.evolve(self._info, **self.claims)

    @property
    def info(self):
        return self._claimed

    def open_session(self, session, sampling, drafting):
        super().open_session(session, sampling, drafting)
        self._devices[session] = self.make_device(sampling, drafting)

    def make_device(self, sampling, drafting):
        return self.device(
            self._target,
            sampling,
            rollback=self._info.rollback,
            drafting=drafting and self._info.draft is not None,
            head_room=self._head_room,
            backlog=self._backlog,
        )


class Rounding(Careless):
    """Sound: a forward of several rows rounds otherwise than one of a single row, near ties flip, and it says so."""

    origin = "rounding"
    claims = {"row_exact": False}

    def _forward(self, call, fault):
        device = self._device(call.session)
        device.target = attrs.evolve(self._target, flipped=len(call.tokens) > 1)
        try:
            return super()._forward(call, fault)
        finally:
            device.target = self._target


def open_sound(name):
    """The unbroken runtime of this name."""
    return Rounding() if name == "rounding" else ScriptedRuntime(**WORLDS[name])


SOUND = {name: functools.partial(open_sound, name) for name in WORLDS}
