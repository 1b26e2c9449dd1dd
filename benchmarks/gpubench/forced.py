"""A runtime whose drafts are right at a chosen rate: what a head of that acceptance would come to, on any model."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from spanfold.engine import Ask, Draft, Failure, Forward, Rows, Runtime, RuntimeInfo, Sampling, Settle, Settled, View


class ForcedDrafts:
    """Everything is the inner runtime's, its head's work included; only the drafted tokens are replaced.

    The draft for index i of the sequence is the true token there, unless a hash of the seed and i says that it is wrong: then it
    is another id. So each drafted token is right with probability ``rate``, independently, and in every run at the same places.

    Args:
        inner: a runtime with a head.
        truth: prompt and serial output of the one session that is decoded.
        rate: from 0 (never right) to 1 (always).
    """

    def __init__(self, inner: Runtime, truth: Sequence[int], rate: float, seed: int = 0) -> None:
        self._inner, self._truth, self._rate, self._seed = inner, tuple(truth), rate, seed

    @property
    def info(self) -> RuntimeInfo:
        return self._inner.info

    def token(self, index: int) -> int:
        """The draft for this index."""
        digest = hashlib.blake2b(f"{self._seed}:{index}".encode(), digest_size=8).digest()
        true = self._truth[index] if index < len(self._truth) else 0
        wrong = int.from_bytes(digest, "big") >= self._rate * 2**64
        return (true + 1) % self.info.vocabulary if wrong else true

    def draft(self, calls: Sequence[Ask]) -> Sequence[Draft | Failure]:
        done = self._inner.draft(calls)
        call, drafted = calls[0], done[0]
        view = self._inner.view(call.session)
        if not isinstance(drafted, Draft) or view is None:
            return done
        # current has no row yet: the sequence is one longer than the cache.
        first = view.position + 1
        tokens = tuple(self.token(at) for at in range(first, first + len(drafted.tokens)))
        return (Draft(session=call.session, tokens=tokens, cost_ns=drafted.cost_ns),)

    def open_session(self, session: int, sampling: Sampling, drafting: bool) -> None:
        self._inner.open_session(session, sampling, drafting)

    def configure(self, session: int, sampling: Sampling) -> None:
        self._inner.configure(session, sampling)

    def drop_session(self, session: int) -> None:
        self._inner.drop_session(session)

    def forward(self, calls: Sequence[Forward]) -> Sequence[Rows | Failure]:
        return self._inner.forward(calls)

    def settle(self, calls: Sequence[Settle]) -> Sequence[Settled | Failure]:
        return self._inner.settle(calls)

    def view(self, session: int) -> View | None:
        return self._inner.view(session)

    def close(self) -> None:
        """The inner runtime stays open: whoever made it closes it."""
