"""One session driven by calls of the Runtime protocol alone, with all that they answered."""

import dataclasses

from broken_base import VOCABULARY, WORLDS

from spanfold.engine.runtime import Ask, Extras, Forward, Runtime, Settle
from spanfold.engine.values import Sampling

PROMPT = (3, 1, 4, 1, 5, 9)
TARGET = WORLDS["crop"]["target"]


def attempt(call, *args):
    """What a call answers, or the name of the error that it raises."""
    try:
        return call(*args)
    except Exception as error:
        return type(error).__name__


def continued(tokens, count):
    """The tokens with the target's own continuation."""
    state, out = TARGET.start(), list(tokens)
    for token in tokens:
        state = TARGET.advance(state, token)
    for _ in range(count):
        out.append(TARGET.choose(state, ()))
        state = TARGET.advance(state, out[-1])
    return out


@dataclasses.dataclass
class Script:
    """One session: its canonical tokens, and everything that was observed."""

    runtime: Runtime
    session: int = 0
    sampling: Sampling = dataclasses.field(default_factory=Sampling)
    drafting: bool = True
    canonical: list = dataclasses.field(default_factory=list)
    seen: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.runtime.open_session(self.session, self.sampling, self.drafting)

    def see(self, thing):
        self.seen.append(thing)
        return thing

    def look(self):
        return self.see(self.runtime.view(self.session))

    def forward(self, tokens, *, base=None, want="all", canonical=True, extras=None):
        base = self.runtime.view(self.session).position if base is None else base
        call = Forward(session=self.session, base=base, tokens=tuple(tokens), want=want, canonical=canonical, extras=extras or Extras())
        return self.see(self.runtime.forward([call])[0])

    def prefill(self, tokens=PROMPT, *, chunk=99):
        for start in range(0, len(tokens), chunk):
            rows = self.forward(tokens[start : start + chunk], want="last")
        self.canonical = [*self.canonical, *tokens, *rows.predictions]
        return self

    def serial(self, count):
        for _ in range(count):
            self.canonical += self.forward([self.canonical[-1]], want="last").predictions
        return self

    def settle(self, base, rows, position):
        return self.see(self.runtime.settle([Settle(session=self.session, base=base, rows=rows, position=position)])[0])

    def draft(self, limit):
        return self.see(self.runtime.draft([Ask(session=self.session, current=self.canonical[-1], limit=limit)])[0].tokens)

    def span(self, width, commit):
        """A span whose first ``commit - 1`` drafted tokens are right, and the settle that keeps ``commit`` rows."""
        base, true = len(self.canonical) - 1, continued(self.canonical, width)[len(self.canonical) :]
        drafted = [token if at < commit - 1 else (token + 1) % VOCABULARY for at, token in enumerate(true)]
        rows = self.forward([self.canonical[-1], *drafted], base=base, canonical=False)
        self.canonical += rows.predictions[:commit]
        self.settle(base, width + 1, base + commit)
        self.look()
        return self

    def rounds(self, count, limit=4):
        """Rounds as the engine runs them: the head's draft, one verify, as many tokens as the target agrees with."""
        for _ in range(count):
            base, drafted = len(self.canonical) - 1, self.draft(limit)
            self.look()
            predictions = self.forward([self.canonical[-1], *drafted], base=base, canonical=False).predictions
            right = [drafted[at] == predictions[at] for at in range(len(drafted))]
            commit = 1 + (right.index(False) if False in right else len(right))
            self.canonical += predictions[:commit]
            self.settle(base, len(drafted) + 1, base + commit)
            self.look()
        return self
