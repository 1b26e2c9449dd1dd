"""Redaction: a trace that can be given to a stranger, and that still folds, checks and replays.

Token ids go through a keyed permutation of the vocabulary: equal ids stay equal, different ones stay different, and every id stays in
its vocabulary, so every decision of the engine comes out the same. Texts are left out or replaced by a keyed mark that says only which
of them are equal. What was measured of the logits is left out: with the model at hand it would betray the tokens.

It hides what the tokens are, not how they are spread: lengths, times, repetitions and acceptance stay, and who knows how often which
token occurs in such texts can guess at the frequent ones. It is a pseudonym, not an encryption.
"""

from __future__ import annotations

import re
import secrets
from hashlib import blake2b
from typing import Final, assert_never, get_args

import attrs

from ..errors import ConfigError, TraceError
from ..events import (
    CheckpointRetired,
    Committed,
    DraftDiscarded,
    DraftFailed,
    DraftOffered,
    DraftRestored,
    DraftTaken,
    Event,
    Extended,
    Prefilled,
    Record,
    Rewound,
    RuntimeFailed,
    SerialDecoded,
    SessionDropped,
    SessionFinished,
    SessionOpened,
    SessionResumed,
    SpanRefused,
    SpanVerified,
    Trimmed,
)
from ..rules import PURE_PROCESSORS, RefusalReason
from ..values import Processor, RuntimeInfo, Sampling, Stops
from .permutation import Permutation

__all__ = ["Redactor"]

_LEAST_KEY: Final = 16

#: Short technical words (a backend, a device, a type) that may stay.
_WORD: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.:+-]{0,31}")
_TYPE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")
#: What the engine itself writes into reasons and details, around the name of an exception's type.
_AROUND_TYPE: Final = re.compile(r"((?:\w+ failed|interrupted): |cancel raised )(.*)", re.DOTALL)
_PLAIN: Final = re.compile(r"cancel|deadline|closed|failed|cancelled|length|stop_token|stop_text|stop_when|token \d{1,16}")


class Redactor:
    """Redacts the records of one trace.

    Args:
        key: the secret, 16 to 64 bytes; None: a random one that is kept nowhere. With a key of your own the same id and the same text
            have the same stand-in in every trace, a trace can be gone on with, and ``original`` says what an id was.
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and not (isinstance(key, bytes) and _LEAST_KEY <= len(key) <= 64):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"the key of a redaction must be {_LEAST_KEY} to 64 bytes that nobody can guess")
        self._key = secrets.token_bytes(32) if key is None else key
        self._permutations: dict[int, Permutation] = {}
        self._of_session: dict[int, Permutation] = {}

    def record(self, record: Record) -> Record:
        """The record as it may be shown.

        Raises:
            TraceError: the record of a session whose opening was not seen, so that its vocabulary is not known.
        """
        event = record.event
        if isinstance(event, SessionOpened | SessionResumed):
            self._of_session[record.session] = self._permutation(event.runtime.vocabulary)
        ids = self._of_session.get(record.session)
        if ids is None:
            raise TraceError(
                f"session {record.session} cannot be redacted from its middle on: begin at its opening, or where it was resumed"
            )
        shown = self._event(event, _Tokens(ids, self._key))
        if isinstance(event, SessionDropped):
            del self._of_session[record.session]
        return record if shown is event else attrs.evolve(record, event=shown)

    def token(self, token: int, vocabulary: int) -> int:
        """The stand-in of a token id."""
        return _Tokens(self._permutation(vocabulary), self._key).one(token)

    def original(self, token: int, vocabulary: int) -> int:
        """The token id that a stand-in stands for. ValueError: outside of the vocabulary."""
        return self._permutation(vocabulary).inverse(token)

    def runtime(self, info: RuntimeInfo) -> RuntimeInfo:
        """What may be shown of a runtime."""
        ids = _Tokens(self._permutation(info.vocabulary), self._key)
        return attrs.evolve(
            info,
            backend=self._word(info.backend),
            model=self._mark(info.model),
            rollback_note=self._word(info.rollback_note),
            stop_tokens=ids.all(info.stop_tokens),
            device=self._word(info.device),
            dtype=self._word(info.dtype),
        )

    def _permutation(self, vocabulary: int) -> Permutation:
        found = self._permutations.get(vocabulary)
        if found is None:
            found = self._permutations[vocabulary] = Permutation(self._key, vocabulary)
        return found

    # -- events: every field that can hold a token or a text ---------------------------------------------------------------

    def _event(self, event: Event, ids: _Tokens) -> Event:
        match event:
            case SessionOpened():
                return self._opened(event, ids)
            case Extended():
                return self._extended(event, ids)
            case SessionResumed():
                return attrs.evolve(event, runtime=self.runtime(event.runtime))
            case Prefilled() | SerialDecoded():
                return attrs.evolve(event, prediction=ids.one(event.prediction), margin=None, logprob=None)
            case SpanVerified():
                return attrs.evolve(event, predictions=ids.all(event.predictions), margins=None, logprobs=None)
            case DraftOffered() | DraftTaken():
                return attrs.evolve(event, tokens=ids.all(event.tokens))
            case Committed():
                return attrs.evolve(event, tokens=ids.all(event.tokens), detail=self._detail(event.cut_by, event.detail, ids))
            case SessionFinished():
                return attrs.evolve(event, detail=self._detail(event.reason, event.detail, ids))
            case DraftFailed() | RuntimeFailed():
                return attrs.evolve(event, error=self._type(event.error), message="")
            case SpanRefused():
                return attrs.evolve(event, reason=self._refusal(event.reason))
            case SessionDropped():
                return attrs.evolve(event, reason=self._reason(event.reason))
            case DraftRestored() | DraftDiscarded() | Trimmed() | CheckpointRetired() | Rewound():
                return event
            case _:
                assert_never(event)

    def _opened(self, event: SessionOpened, ids: _Tokens) -> Event:
        return attrs.evolve(
            event,
            prompt=ids.all(event.prompt),
            stops=self._stops(event.stops, ids),
            sampling=self._sampling(event.sampling, ids),
            runtime=self.runtime(event.runtime),
        )

    def _extended(self, event: Extended, ids: _Tokens) -> Event:
        return attrs.evolve(
            event, tokens=ids.all(event.tokens), stops=self._stops(event.stops, ids), sampling=self._sampling(event.sampling, ids)
        )

    def _refusal(self, reason: str) -> str:
        if reason in get_args(RefusalReason):
            return reason
        before, space, name = reason.partition(" ")
        return f"processor {self._processor_name(name)}" if before == "processor" and space else self._mark(reason)

    # -- values ------------------------------------------------------------------------------------------------------------

    def _stops(self, stops: Stops, ids: _Tokens) -> Stops:
        return attrs.evolve(stops, tokens=ids.all(stops.tokens), texts=tuple(map(self._mark, stops.texts)))

    def _sampling(self, sampling: Sampling, ids: _Tokens) -> Sampling:
        # Sorted, as the engine writes them. The parameters of a processor can be ids or texts: nothing decides by them.
        processors = tuple(Processor(name=self._processor_name(one.name), pure=one.pure) for one in sampling.processors)
        return attrs.evolve(sampling, masked=tuple(sorted(ids.all(sampling.masked))), processors=processors)

    def _processor_name(self, name: str) -> str:
        return name if name in PURE_PROCESSORS else self._mark(name)

    # -- texts -------------------------------------------------------------------------------------------------------------

    def _mark(self, text: str) -> str:
        """Says of two texts whether they are equal, and nothing else."""
        hashed = blake2b(text.encode("utf-8", "surrogatepass"), key=self._key, digest_size=6, person=b"spanfold texts")
        return f"redacted-{hashed.hexdigest()}"

    def _word(self, text: str) -> str:
        return text if not text or _WORD.fullmatch(text) else self._mark(text)

    def _type(self, text: str) -> str:
        return text if _TYPE.fullmatch(text) else self._mark(text)

    def _reason(self, text: str) -> str:
        if _PLAIN.fullmatch(text):
            return text
        around = _AROUND_TYPE.fullmatch(text)
        return around[1] + self._type(around[2]) if around else self._mark(text)

    def _detail(self, cause: str, detail: str | None, ids: _Tokens) -> str | None:
        if detail is None:
            return None
        if cause == "stop_token" and detail.isascii() and detail.isdecimal() and len(detail) <= 16:
            return str(ids.one(int(detail)))
        if cause in ("stop_token", "stop_text"):
            return self._mark(detail)
        if cause in ("failed", "stop_when_error"):
            return self._type(detail.partition(":")[0])
        return self._reason(detail)


class _Tokens:
    """The stand-ins of one vocabulary's ids."""

    def __init__(self, permutation: Permutation, key: bytes) -> None:
        self._permutation = permutation
        self._key = key

    def one(self, token: int) -> int:
        size = self._permutation.size
        if token < size:
            return self._permutation(token)
        # No id of the model: it stops nothing and is never chosen; only which ones are equal may matter.
        hashed = blake2b(token.to_bytes(32, "little"), key=self._key, digest_size=5, person=b"spanfold other")
        return size + int.from_bytes(hashed.digest(), "little")

    def all(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(map(self.one, tokens))
