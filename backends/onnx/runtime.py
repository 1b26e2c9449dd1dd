"""The Runtime protocol on ONNX Runtime: one InferenceSession, many sessions, each with a lane (bindings and caches) of its own.

Every call checks its arguments before it touches anything (``NotStarted``), then marks the session *open* for as long as
rows lie in its cache of which it is not known whether they stay: from the start of a forward to its end for canonical
rows, to the settle for a span. While open, the hidden rows of the forward are kept; ``settle`` hands those that stay to
the head. A forward that failed half-way leaves the session open, and a settle to its base leaves exactly the base.

A position is the cache's own number of rows (``caches.RowCache.rows``), which is what the next run's mask and past are bound to. Any thread
may call; sessions share nothing that is written, so calls on different sessions may also run at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
from attrs import define

from ...engine.errors import ConfigError, NotStarted
from ...engine.runtime import Ask, Draft, Failure, Forward, Rows, Settle, Settled, View
from ...engine.values import DraftInfo, RuntimeInfo, Sampling
from ..inputs import model_path
from .choice import Chosen, choose, masked_scores
from .drafting import HeadSession
from .exact import rows_are_exact
from .graph import SLACK, Graph, Lane
from .loading import Loaded, load
from .memory import Array
from .models import Head, Passed, Target
from .providers import Device, parse_device
from .text import FileTokenizer, load_tokenizer

__all__ = ["DRAFT_DEPTH", "OnnxRuntime"]

#: Most tokens of one draft. The head's one layer is recycled for all steps beyond the first.
DRAFT_DEPTH: Final = 16

_Call = TypeVar("_Call")


@define
class _Open:
    """Rows whose fate is open: where they begin, their tokens, and their hidden states once the model has returned."""

    base: int
    tokens: tuple[int, ...]
    span: bool
    hidden: Array | None = None


@define
class _Session:
    sampling: Sampling
    masked: Array | None
    head_masked: Array | None
    lane: Lane
    head: HeadSession | None
    open: _Open | None = None
    head_error: Exception | None = None


class OnnxRuntime:
    """An exported causal LM, and its MTP head where it has one. Made by ``from_directory``.

    Args:
        loaded: the graphs' sessions and the facts beside them.
        device: where they run.
        name: what ``info.model`` says.
        tokenizer: handed on by the attribute of this name; the runtime itself works on ids.
        context_length: most tokens of a session; default and upper bound: the model's own.
        draft_context_length: most tokens up to which the head drafts; default and upper bound: ``context_length``.
        draft_depth: most tokens of one draft (the one layer is recycled).
        share_buffers: see ``from_directory``.
        row_width: see ``from_directory``.

    Raises:
        ConfigError: an argument, by name.
    """

    def __init__(
        self,
        loaded: Loaded,
        *,
        device: Device,
        name: str,
        tokenizer: FileTokenizer | None = None,
        context_length: int | None = None,
        draft_context_length: int | None = None,
        draft_depth: int = DRAFT_DEPTH,
        share_buffers: bool | None = None,
        row_width: int | None = None,
    ) -> None:
        if row_width is not None and (type(row_width) is not int or not 1 <= row_width <= SLACK):
            raise ConfigError(f"row_width must be an integer from 1 (no padding) to {SLACK}, not {row_width!r}")
        self.tokenizer = tokenizer
        self._sessions: dict[int, _Session] = {}
        self._closed = False
        share = loaded.share if share_buffers is None else share_buffers
        context = loaded.context_length
        graph = Graph(loaded.session, loaded.signature, loaded.sizes, device, context, share=share)
        if share_buffers and not graph.shared:
            raise ConfigError(
                f"{name}: share_buffers was asked for and the graph appends to its caches: export it with GroupQueryAttention "
                "(onnxruntime-genai's model builder, or `spanfold export`)"
            )
        target = Target(graph, loaded.signature, loaded.vocabulary, loaded.hidden, context, row_width or 1)
        try:
            exact = rows_are_exact(target, context)
        except Exception as error:  # the first run of the graph; onnxruntime's own errors share no base class
            line = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"{name}: its graph cannot run ({line})") from error
        if row_width is None and exact is False:
            target.row_width = 2
            exact = rows_are_exact(target, context)
            if not exact:
                target.row_width = 1
        self._target: Target = target
        self._head: Head | None = None
        if loaded.head is not None:
            head_graph = Graph(
                loaded.head.session, loaded.head.signature, loaded.head.sizes, device, context + DRAFT_DEPTH, shift=1, share=share
            )
            self._head = Head(head_graph, loaded.head.signature, loaded.head.scored, loaded.head.vocabulary, context, target.row_width)
        self._info = self._describe(loaded, device, name, context_length, draft_context_length, draft_depth, exact)

    @classmethod
    def from_directory(
        cls,
        model: str | os.PathLike[str],
        *,
        device: str = "cpu",
        provider_options: Mapping[str, str] | None = None,
        threads: int | None = None,
        session_options: Any = None,
        draft: bool = True,
        context_length: int | None = None,
        draft_context_length: int | None = None,
        draft_depth: int = DRAFT_DEPTH,
        share_buffers: bool | None = None,
        row_width: int | None = None,
        name: str | None = None,
    ) -> OnnxRuntime:
        """Open an exported model (docs/reference/onnx-models.md); its head ``mtp.onnx`` comes along where there is one.

        Args:
            model: the directory.
            device: ``cpu``, ``cuda`` or ``cuda:N``. What the sessions do not really run on is an error; there is no fallback.
            provider_options: for the device's execution provider, as ONNX Runtime names them.
            threads: of one operator; None: ONNX Runtime's choice.
            session_options: an ``onnxruntime.SessionOptions`` for everything else; then without ``threads``.
            draft: False: the head is not loaded.
            context_length: see the class.
            draft_context_length: see the class.
            draft_depth: see the class.
            share_buffers: past and present in the same memory, so that a trim is free: True: an error where the graph cannot; False: kept
                apart; None: where the graph can and the directory does not ask otherwise.
            row_width: least rows of a forward; shorter ones are padded. 1 is off. None: 2 where that was measured to make rows
                independent of those beside them and 1 was not; else 1.
            name: what ``info.model`` and so every trace says; default: ``model`` itself.

        Raises:
            ConfigError: a device, a directory or a graph that cannot be used; the message names what is missing and what to do.
        """
        where, path = parse_device(device), model_path(model)
        if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError(f"name must be a string or None, not {name!r}")
        loaded = load(model, device=where, draft=draft, provider_options=provider_options, threads=threads, session_options=session_options)
        return cls(
            loaded,
            device=where,
            name=name or path,
            tokenizer=load_tokenizer(Path(path), path),
            context_length=context_length,
            draft_context_length=draft_context_length,
            draft_depth=draft_depth,
            share_buffers=share_buffers,
            row_width=row_width,
        )

    def _describe(
        self, loaded: Loaded, device: Device, name: str, asked: int | None, draft_asked: int | None, depth: int, exact: bool | None
    ) -> RuntimeInfo:
        own = loaded.context_length
        length = _context(asked, own, name, "context_length")
        draft: DraftInfo | None = None
        if self._head is not None:
            if type(depth) is not int or not 1 <= depth <= DRAFT_DEPTH:
                raise ConfigError(f"draft_depth must be an integer from 1 to {DRAFT_DEPTH}, not {depth!r}")
            draft_length = min(_context(draft_asked, own, name, "draft_context_length"), length)
            draft = DraftInfo(origin="mtp", layers=1, depth=depth, context_length=draft_length)
        return RuntimeInfo(
            backend="onnx",
            model=name,
            vocabulary=loaded.vocabulary,
            context_length=length,
            rollback="crop",
            draft=draft,
            max_batch=1,
            threads="any",
            row_exact=exact,
            stop_tokens=loaded.stop_tokens,
            device=str(device),
            dtype=loaded.dtype,
        )

    @property
    def info(self) -> RuntimeInfo:
        """Constant facts about the runtime."""
        return self._info

    @property
    def providers(self) -> tuple[str, ...]:
        """The execution providers that the target's session really has, as ONNX Runtime names them."""
        return tuple(self._target.graph.session.get_providers())

    @property
    def shares_buffers(self) -> bool:
        """Whether the target's past and present lie in the same memory."""
        return self._target.graph.shared

    @property
    def row_width(self) -> int:
        """Least rows of a forward; shorter ones are padded."""
        return self._target.row_width

    @property
    def live_sessions(self) -> int:
        """Sessions that hold memory."""
        return len(self._sessions)

    def nbytes(self, session: int) -> int:
        """Bytes of the session's caches, the head's included; 0 for an unknown session."""
        held = self._sessions.get(session)
        if held is None:
            return 0
        return held.lane.cache.nbytes + (held.head.cache.nbytes if held.head is not None else 0)

    # Sessions

    def open_session(self, session: int, sampling: Sampling, drafting: bool) -> None:
        """Make an empty session. Without ``drafting`` no hidden row is kept and the head is never fed."""
        self._check_open()
        if session in self._sessions:
            raise NotStarted(f"session {session} is open already")
        masked = self._masked(sampling)
        head = HeadSession(self._head, self._head.graph.lane()) if drafting and self._head is not None else None
        self._sessions[session] = _Session(sampling, masked, self._head_masked(masked), self._target.graph.lane(), head)

    def configure(self, session: int, sampling: Sampling) -> None:
        """Change the sampling of a session for the rows to come."""
        held = self._held(session)
        masked = self._masked(sampling)
        held.sampling, held.masked, held.head_masked = sampling, masked, self._head_masked(masked)

    def drop_session(self, session: int) -> None:
        """Release the session's caches and hidden rows. Unknown or already dropped: nothing happens."""
        self._sessions.pop(session, None)

    def close(self) -> None:
        """Drop every session and let go of the graphs. Further calls raise ``NotStarted``; closing again does nothing."""
        self._sessions.clear()
        self._closed = True
        self._target, self._head = cast(Target, None), None

    def _check_open(self) -> None:
        if self._closed:
            raise NotStarted("the runtime is closed")

    def _held(self, session: int) -> _Session:
        self._check_open()
        held = self._sessions.get(session)
        if held is None:
            raise NotStarted(f"session {session} is not open on this runtime")
        return held

    def _masked(self, sampling: Sampling) -> Array | None:
        if sampling.processors:
            named = ", ".join(processor.name for processor in sampling.processors)
            raise ConfigError(f"Sampling.processors: the onnx backend has none, {named} was asked for")
        known = sorted({token for token in sampling.masked if token < self._info.vocabulary})
        if len(known) == self._info.vocabulary:
            raise ConfigError("Sampling.masked names every id of the vocabulary: no token could be chosen")
        return np.array(known) if known else None

    def _head_masked(self, masked: Array | None) -> Array | None:
        vocabulary = None if self._head is None else self._head.vocabulary
        if masked is None or vocabulary is None:
            return masked
        places = np.flatnonzero(np.isin(vocabulary, masked))
        return places if len(places) else None

    # Forward

    def forward(self, calls: Sequence[Forward]) -> Sequence[Rows | Failure]:
        """Run the target over the rows of one call.

        ``extras.logits`` are the wanted rows' raw scores, a numpy array ``[rows, vocabulary]``; margins and logprobs are those of the
        masked scores that the choice was made from.
        """
        call = _only(calls)
        if call is None:
            return ()
        held = self._held(call.session)
        self._check_forward(call, held)
        rows = call.base + len(call.tokens)
        try:
            held.lane.cache.reserve(rows + self._target.row_width)
        except Exception as error:  # out of memory, in numpy's or ONNX Runtime's words: the buffers are as they were
            raise NotStarted(f"no memory for {rows} rows: {error}") from error
        return (self._run(call, held),)

    def _check_forward(self, call: Forward, held: _Session) -> None:
        if held.open is not None:
            raise NotStarted(f"session {call.session} has rows from position {held.open.base} on that were not settled")
        if not call.tokens:
            raise NotStarted("a forward needs at least one token")
        position = held.lane.cache.rows
        if call.base != position:
            raise NotStarted(f"session {call.session} is at position {position}, the forward's base is {call.base}")
        if call.base + len(call.tokens) > self._info.context_length:
            raise NotStarted(
                f"{len(call.tokens)} rows from position {call.base} on exceed the context length of {self._info.context_length}"
            )
        self._check_id(min(call.tokens))
        self._check_id(max(call.tokens))

    def _check_id(self, token: int) -> None:
        # A graph's Gather counts a negative id from the end and would answer.
        if not 0 <= token < self._info.vocabulary:
            raise NotStarted(f"token {token} is outside the vocabulary of {self._info.vocabulary}")

    def _run(self, call: Forward, held: _Session) -> Rows:
        end = call.base + len(call.tokens)
        first = end - (len(call.tokens) if call.want == "all" else 1) + 1  # index of the first wanted row's token
        masking = held.masked is not None and first < held.sampling.mask_until
        extras = call.extras
        scored = masking or extras.margins or extras.logprobs or extras.logits
        held.open = _Open(call.base, call.tokens, span=not call.canonical)
        passed = self._target.run(held.lane, call.tokens, call.want, hidden=held.head is not None, scores=scored)
        held.open.hidden = passed.hidden
        chosen = self._choice(passed, first, call, held)
        if call.canonical:
            self._hand_over(held, held.open.hidden, call.tokens)
            held.open = None
        return Rows(
            session=call.session,
            predictions=chosen.ids,
            position=held.lane.cache.rows,
            margins=chosen.margins,
            logprobs=chosen.logprobs,
            logits=passed.scores if extras.logits else None,
        )

    @staticmethod
    def _choice(passed: Passed, first: int, call: Forward, held: _Session) -> Chosen:
        if passed.scores is not None:
            return choose(masked_scores(passed.scores, first, held.sampling, held.masked), call.extras)
        return Chosen(passed.ids or ())

    @staticmethod
    def _hand_over(held: _Session, hidden: Array | None, tokens: tuple[int, ...]) -> None:
        """Give canonical rows to the head. Its failure ends its drafting, which the next draft says; the rows are unharmed."""
        if held.head is None or hidden is None:
            return
        try:
            held.head.append(hidden, tokens)
        except BaseException as error:
            held.head = None
            if not isinstance(error, Exception):
                held.head_error = RuntimeError(repr(error))
                raise
            held.head_error = error

    # Settle, draft, view

    def settle(self, calls: Sequence[Settle]) -> Sequence[Settled | Failure]:
        """Cut the caches to a position, or keep all rows; a crop, so nothing is ever computed again."""
        call = _only(calls)
        if call is None:
            return ()
        held = self._held(call.session)
        cache = held.lane.cache
        if not call.base <= call.position <= min(call.base + call.rows, cache.rows):
            raise ValueError(
                f"session {call.session} is at position {cache.rows}: "
                f"settling {call.rows} rows from {call.base} on cannot end at {call.position}"
            )
        opened = held.open
        kept = 0 if opened is None else max(call.position - opened.base, 0)
        if opened is not None and kept and opened.hidden is None and held.head is not None:
            raise ValueError(f"the forward over {len(opened.tokens)} rows from {opened.base} on failed: none of them can stay")
        cache.trim_to(call.position)
        held.open = None
        if held.head is not None:
            held.head.trim_to(call.position)
        if opened is not None and opened.hidden is not None:
            self._hand_over(held, opened.hidden[:kept], opened.tokens[:kept])
        return (Settled(session=call.session, position=cache.rows),)

    def draft(self, calls: Sequence[Ask]) -> Sequence[Draft | Failure]:
        """Feed the head what it has not seen, then let it draft; shorter than asked at the end of a context or of the depth.

        A failure ends the drafting of the session (its head's rows and waiting rows are released); later calls raise.
        """
        call = _only(calls)
        if call is None:
            return ()
        held = self._held(call.session)
        if held.head is None:
            if held.head_error is not None:
                raise RuntimeError(f"the head of session {call.session} is off since it failed") from held.head_error
            raise NotStarted(f"session {call.session} has no head to draft with")
        if held.open is not None:
            raise NotStarted(f"session {call.session} has rows from position {held.open.base} on that were not settled")
        self._check_id(call.current)
        try:
            tokens = held.head.draft(call.current, self._room(call.limit, held.lane.cache.rows), held.sampling, held.head_masked)
        except BaseException as error:
            held.head = None
            held.head_error = error if isinstance(error, Exception) else RuntimeError(repr(error))
            raise
        return (Draft(session=call.session, tokens=tokens),)

    def _room(self, limit: int, position: int) -> int:
        # position + 1 tokens are canonical; a drafted one must still fit behind them.
        draft = self._info.draft
        if draft is None or position + 1 > draft.context_length:
            return 0
        return max(min(limit, draft.depth, self._info.context_length - position - 1), 0)

    def view(self, session: int) -> View | None:
        """The caches' own numbers of rows. The head's is None without a head, and after the head failed."""
        self._check_open()
        held = self._sessions.get(session)
        if held is None:
            return None
        return View(
            position=held.lane.cache.rows,
            head_position=None if held.head is None else held.head.cache.rows,
            checkpoint=held.open is not None and held.open.span,
            floor=0,
        )


def _context(asked: int | None, own: int, name: str, field: str) -> int:
    if asked is None:
        return own
    if type(asked) is not int or not 1 <= asked <= own:
        raise ConfigError(f"{field} must be an integer from 1 to {own} (what {name} has), not {asked!r}")
    return asked


def _only(calls: Sequence[_Call]) -> _Call | None:
    if len(calls) > 1:
        raise NotStarted(f"the onnx backend takes one call at a time (max_batch is 1), not {len(calls)}")
    return calls[0] if calls else None
