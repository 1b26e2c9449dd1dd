"""The Runtime protocol on PyTorch: one transformers model, many sessions, each with a cache of its own.

Every call checks its arguments before it touches anything (``NotStarted``), then marks the session *open* for as long as
rows lie in its cache of which it is not known whether they stay: from the start of a forward to its end for canonical
rows, to the settle for a span. While open, the hidden rows of the forward are kept; ``settle`` hands those that stay to
the head. A forward that failed half-way leaves the session open, and a settle to its base leaves exactly the base.

A position is the cache's own length (``caches.RowCache.rows``), never a count kept beside it. Tensors are made and used
under ``torch.inference_mode``, which belongs to the thread and is therefore entered by each call: any thread may call.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import torch
from attrs import define, evolve, field
from torch import Tensor

from ...engine.errors import ConfigError, NotStarted
from ...engine.runtime import Ask, Draft, Failure, Forward, Rows, Settle, Settled, View
from ...engine.values import DraftInfo, RuntimeInfo, Sampling
from .caches import RowCache
from .choice import choose, masked_scores
from .decode import key_step
from .drafting import HeadSession
from .exact import rows_are_exact
from .families import DTYPES, check_class, check_config, context_length, stop_tokens, whereabouts
from .head import MtpHead
from .paths import Drafting, OwnTarget, Target, build, plan
from .vocabulary import DraftVocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["DRAFT_DEPTH", "TorchRuntime"]

#: Most tokens of one draft. The checkpoint's one layer is recycled for all steps beyond the first.
DRAFT_DEPTH: Final = 16

_Call = TypeVar("_Call")


@define
class _Open:
    """Rows whose fate is open: where they begin, their tokens, and their hidden states once the model has returned."""

    base: int
    tokens: tuple[int, ...]
    span: bool
    hidden: Tensor | None = None


@define
class _Session:
    sampling: Sampling
    masked: Tensor | None
    head_masked: Tensor | None
    cache: RowCache
    head: HeadSession | None
    open: _Open | None = None
    head_error: Exception | None = None
    drafts: bool = field(default=False)


class TorchRuntime:
    """A transformers causal LM, and its MTP head where it has one.

    Args:
        model: an instance of one of ``families.FAMILIES``, all on one device and in one dtype; it is put into eval mode and frozen.
        head: its MTP layer (``MtpHead``), or None: no draft of its own.
        name: what ``info.model`` says.
        tokenizer: handed on by the attribute of this name; the runtime itself works on ids.
        context_length: most tokens of a session; default and upper bound: the model's ``max_position_embeddings``.
        draft_context_length: most tokens up to which the head drafts; default and upper bound: ``context_length``.
        draft_depth: most tokens of one draft (the one layer is recycled).
        draft_vocab: the ids that the head may propose, sorted, each once; None: all. Changes no output (drafts never decide).
        modules: True: transformers' own modules run every forward. False: the decode path of this package does (``decode``).
            None: the decode path on a CPU, modules elsewhere and for a model that it cannot run.
        packed: the decode path multiplies by copies of the weights in oneDNN's layout, which take their memory once more. False:
            by the model's own parameters (query, key and value, and gate and up, become views of one tensor each).
            None: where this torch can.
        row_width: least rows of a forward of the decode path; shorter ones are padded. 1 is off. None: 4 with packed weights (from
            two on the rows of a product do not depend on their number, and four are the fastest), else 1.

    Raises:
        ConfigError: a model or an argument that this backend cannot decode exactly, by name.
    """

    def __init__(
        self,
        model: Any,
        *,
        head: MtpHead | None = None,
        name: str = "",
        tokenizer: PreTrainedTokenizerBase | None = None,
        context_length: int | None = None,
        draft_context_length: int | None = None,
        draft_depth: int = DRAFT_DEPTH,
        draft_vocab: Sequence[int] | Tensor | None = None,
        modules: bool | None = None,
        packed: bool | None = None,
        row_width: int | None = None,
    ) -> None:
        config = model.config
        name = name or str(getattr(config, "name_or_path", "") or type(model).__name__)
        check_class(type(model).__name__, name)
        check_config(config, name)
        self._device, self._dtype = whereabouts(model, head, name)
        self._model: Any = model.eval().requires_grad_(False)
        self._head: MtpHead | None = head
        self.tokenizer = tokenizer
        self._sessions: dict[int, _Session] = {}
        self._closed = False
        chosen = plan(model, self._device, self._dtype, modules=modules, packed=packed, row_width=row_width, name=name)
        vocabulary: DraftVocabulary | None = None
        if draft_vocab is not None and head is not None:
            where = f"draft_vocab of {name}"
            vocabulary = DraftVocabulary(draft_vocab, int(model.lm_head.weight.shape[0]), self._device, where)
        info = self._describe(name, context_length, draft_context_length, draft_depth)
        # Ids up to the last draft step of a session at the end of its context.
        positions = torch.arange(info.context_length + DRAFT_DEPTH + 1, device=self._device).unsqueeze(0)
        self._target: Target
        self._drafting: Drafting | None
        self._target, self._drafting = build(model, head, chosen, vocabulary, positions)
        exact: bool | None = None
        if isinstance(self._target, OwnTarget):
            with torch.inference_mode():
                exact = rows_are_exact(self._target, info.vocabulary, self._cache)
        self._info = evolve(info, row_exact=exact)

    @classmethod
    def from_pretrained(
        cls,
        model: str | os.PathLike[str],
        *,
        device: str | torch.device = "cpu",
        dtype: str | torch.dtype = "float32",
        attn_implementation: str | None = None,
        draft: bool = True,
        context_length: int | None = None,
        draft_context_length: int | None = None,
        draft_depth: int = DRAFT_DEPTH,
        draft_vocab: Literal["checkpoint"] | Sequence[int] | None = "checkpoint",
        modules: bool | None = None,
        packed: bool | None = None,
        row_width: int | None = None,
        revision: str | None = None,
        name: str | None = None,
    ) -> TorchRuntime:
        """Load a checkpoint: a Hugging Face directory, or the id of a repository on a hub (downloaded, then a directory).

        Safetensors only, no code from the checkpoint. A checkpoint without an MTP head gives a runtime without a draft
        (``info.draft`` is None).

        Args:
            model: directory or hub id.
            device: ``cpu``, ``cuda`` or ``cuda:N``; what is not there is an error.
            dtype: ``float32``, ``bfloat16`` or ``float16``; the weights are converted.
            attn_implementation: transformers' name (``sdpa``, ``eager``, ...), with which its own modules run then; None: open.
            draft: False: the head is not loaded.
            context_length: see the class.
            draft_context_length: see the class.
            draft_depth: see the class.
            draft_vocab: ``checkpoint``: the ids in ``draft_vocab.safetensors`` beside the weights, where that is. Otherwise see the class.
            modules: see the class.
            packed: see the class.
            row_width: see the class.
            revision: of a hub repository.
            name: what ``info.model`` and so every trace says; default: ``model`` itself.

        Raises:
            ConfigError: an unusable checkpoint (a missing, renamed or misshapen tensor is named), device or dtype.
        """
        from .loading import load

        if isinstance(draft_vocab, str) and draft_vocab != "checkpoint":
            raise ConfigError(f"draft_vocab must be 'checkpoint', ids or None, not {draft_vocab!r}")
        if attn_implementation is not None and modules is False:
            raise ConfigError("attn_implementation names an attention of transformers' modules: leave it open with modules=False")
        loaded = load(model, device=device, dtype=dtype, attn_implementation=attn_implementation, draft=draft, revision=revision)
        return cls(
            loaded.model,
            head=loaded.head,
            name=name or os.fspath(model),
            tokenizer=loaded.tokenizer,
            context_length=context_length,
            draft_context_length=draft_context_length,
            draft_depth=draft_depth,
            draft_vocab=loaded.draft_vocab if isinstance(draft_vocab, str) else draft_vocab,
            modules=True if attn_implementation is not None else modules,
            packed=packed,
            row_width=row_width,
        )

    def _describe(self, name: str, asked: int | None, draft_asked: int | None, depth: int) -> RuntimeInfo:
        config = self._model.config
        length = context_length(config, asked, name)
        draft: DraftInfo | None = None
        if self._head is not None:
            if type(depth) is not int or not 1 <= depth <= DRAFT_DEPTH:
                raise ConfigError(f"draft_depth must be an integer from 1 to {DRAFT_DEPTH}, not {depth!r}")
            draft_length = length if draft_asked is None else min(context_length(config, draft_asked, name, "draft_context_length"), length)
            draft = DraftInfo(origin="mtp", layers=1, depth=depth, context_length=draft_length)
        dtype = next((word for word, value in DTYPES.items() if value == self._dtype), str(self._dtype))
        return RuntimeInfo(
            backend="torch",
            model=name,
            vocabulary=int(self._model.lm_head.weight.shape[0]),
            context_length=length,
            rollback="crop",
            draft=draft,
            max_batch=1,
            threads="any",
            stop_tokens=stop_tokens(self._model, self.tokenizer),
            device=str(self._device),
            dtype=dtype,
        )

    @property
    def info(self) -> RuntimeInfo:
        """Constant facts about the runtime."""
        return self._info

    @property
    def live_sessions(self) -> int:
        """Sessions that hold memory."""
        return len(self._sessions)

    def nbytes(self, session: int) -> int:
        """Bytes of the session's caches, the head's included; 0 for an unknown session."""
        held = self._sessions.get(session)
        if held is None:
            return 0
        return held.cache.nbytes + (held.head.cache.nbytes if held.head is not None else 0)

    # Sessions

    def open_session(self, session: int, sampling: Sampling, drafting: bool) -> None:
        """Make an empty session. Without ``drafting`` no hidden row is kept and the head is never fed."""
        self._check_open()
        if session in self._sessions:
            raise NotStarted(f"session {session} is open already")
        masked = self._masked(sampling)
        with torch.inference_mode():
            head: HeadSession | None = None
            if drafting and self._drafting is not None:
                head = HeadSession(self._drafting, self._cache(1, self._info.context_length + DRAFT_DEPTH), self._device)
            cache = self._cache(self._model.config.num_hidden_layers, self._info.context_length)
            self._sessions[session] = _Session(sampling, masked, self._head_masked(masked), cache, head, drafts=head is not None)

    def configure(self, session: int, sampling: Sampling) -> None:
        """Change the sampling of a session for the rows to come."""
        held = self._held(session)
        masked = self._masked(sampling)
        held.sampling, held.masked, held.head_masked = sampling, masked, self._head_masked(masked)

    def drop_session(self, session: int) -> None:
        """Release the session's caches and hidden rows. Unknown or already dropped: nothing happens."""
        self._sessions.pop(session, None)

    def close(self) -> None:
        """Drop every session and let go of the model. Further calls raise ``NotStarted``; closing again does nothing."""
        self._sessions.clear()
        self._closed = True
        self._model, self._head, self._target, self._drafting = _Closed(), None, _Closed(), None

    def _check_open(self) -> None:
        if self._closed:
            raise NotStarted("the runtime is closed")

    def _held(self, session: int) -> _Session:
        self._check_open()
        held = self._sessions.get(session)
        if held is None:
            raise NotStarted(f"session {session} is not open on this runtime")
        return held

    def _masked(self, sampling: Sampling) -> Tensor | None:
        if sampling.processors:
            named = ", ".join(processor.name for processor in sampling.processors)
            raise ConfigError(f"Sampling.processors: the torch backend has none, {named} was asked for")
        known = sorted({token for token in sampling.masked if token < self._info.vocabulary})
        if len(known) == self._info.vocabulary:
            raise ConfigError("Sampling.masked names every id of the vocabulary: no token could be chosen")
        return torch.tensor(known, device=self._device) if known else None

    def _head_masked(self, masked: Tensor | None) -> Tensor | None:
        vocabulary = None if self._drafting is None else self._drafting.vocabulary
        if masked is None or vocabulary is None:
            return masked
        places = vocabulary.places_of(masked)
        return places if len(places) else None

    def _cache(self, layers: int, limit: int) -> RowCache:
        config = self._model.config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return RowCache(layers, config.num_key_value_heads, head_dim, limit, self._dtype, self._device, key_step(config))

    # Forward

    def forward(self, calls: Sequence[Forward]) -> Sequence[Rows | Failure]:
        """Run the target over the rows of one call, all in one forward.

        ``extras.logits`` are the wanted rows' raw scores, ``[rows, vocabulary]``; margins and logprobs are those of the
        masked scores that the choice was made from.
        """
        call = _only(calls)
        if call is None:
            return ()
        held = self._held(call.session)
        self._check_forward(call, held)
        with torch.inference_mode():
            try:
                held.cache.reserve(call.base + len(call.tokens))
            except RuntimeError as error:  # out of memory: the buffers are as they were
                raise NotStarted(f"no memory for {call.base + len(call.tokens)} rows: {error}") from error
            return (self._run(call, held),)

    def _check_forward(self, call: Forward, held: _Session) -> None:
        if held.open is not None:
            raise NotStarted(f"session {call.session} has rows from position {held.open.base} on that were not settled")
        if not call.tokens:
            raise NotStarted("a forward needs at least one token")
        position = held.cache.rows
        if call.base != position:
            raise NotStarted(f"session {call.session} is at position {position}, the forward's base is {call.base}")
        if call.base + len(call.tokens) > self._info.context_length:
            raise NotStarted(
                f"{len(call.tokens)} rows from position {call.base} on exceed the context length of {self._info.context_length}"
            )
        # An id outside the embedding would be an assertion on the device, which a CUDA context does not survive.
        for token in (max(call.tokens), min(call.tokens)):
            if not 0 <= token < self._info.vocabulary:
                raise NotStarted(f"token {token} is outside the vocabulary of {self._info.vocabulary}")

    def _run(self, call: Forward, held: _Session) -> Rows:
        end = call.base + len(call.tokens)
        held.open = _Open(call.base, call.tokens, span=not call.canonical)
        hidden = self._target.run(call.tokens, call.base, held.cache, span=not call.canonical)
        held.open.hidden = hidden if held.head is not None else None

        predictions: tuple[int, ...] = ()
        margins = logprobs = logits = None
        if call.want != "none":
            wanted = hidden if call.want == "all" else hidden[-1:]
            logits = self._target.scores(wanted)
            scores = masked_scores(logits, end - wanted.shape[0] + 1, held.sampling, held.masked)
            chosen = choose(scores, call.extras)
            predictions, margins, logprobs = chosen.ids, chosen.margins, chosen.logprobs
        if call.canonical:
            self._hand_over(held, held.open.hidden, call.tokens)
            held.open = None
        return Rows(
            session=call.session,
            predictions=predictions,
            position=held.cache.rows,
            margins=margins,
            logprobs=logprobs,
            logits=logits if call.extras.logits else None,
        )

    @staticmethod
    def _hand_over(held: _Session, hidden: Tensor | None, tokens: tuple[int, ...]) -> None:
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
        here = held.cache.rows
        if not call.base <= call.position <= min(call.base + call.rows, here):
            raise ValueError(
                f"session {call.session} is at position {here}: settling {call.rows} rows from {call.base} on cannot end at {call.position}"
            )
        opened = held.open
        kept = 0 if opened is None else max(call.position - opened.base, 0)
        if opened is not None and kept and opened.hidden is None and held.head is not None:
            raise ValueError(f"the forward over {len(opened.tokens)} rows from {opened.base} on failed: none of them can stay")
        with torch.inference_mode():
            held.cache.trim_to(call.position)
            held.open = None
            if held.head is not None:
                held.head.trim_to(call.position)
            if opened is not None and opened.hidden is not None:
                self._hand_over(held, opened.hidden[:kept], opened.tokens[:kept])
        return (Settled(session=call.session, position=held.cache.rows),)

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
        if not 0 <= call.current < self._info.vocabulary:
            raise NotStarted(f"token {call.current} is outside the vocabulary of {self._info.vocabulary}")
        try:
            with torch.inference_mode():
                tokens = held.head.draft(call.current, self._room(call.limit, held.cache.rows), held.sampling, held.head_masked)
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
        """The caches' own lengths. The head's is None without a head, and after the head failed."""
        self._check_open()
        held = self._sessions.get(session)
        if held is None:
            return None
        return View(
            position=held.cache.rows,
            head_position=None if held.head is None else held.head.cache.rows,
            checkpoint=held.open is not None and held.open.span,
            floor=0,
        )


class _Closed:
    # Stands where the model was, so that its memory is free.
    run: Any = None
    scores: Any = None


def _only(calls: Sequence[_Call]) -> _Call | None:
    if len(calls) > 1:
        raise NotStarted(f"the torch backend takes one call at a time (max_batch is 1), not {len(calls)}")
    return calls[0] if calls else None
