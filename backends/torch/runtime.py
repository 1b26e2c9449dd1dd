"""The Runtime protocol on PyTorch: one transformers model, many sessions, each with a cache of its own.

What a call may do and when is that of every runtime over attention caches (``backends.cached``); here is what happens on the device.
Tensors are made and used under ``torch.inference_mode``, which belongs to the thread and is therefore entered by each call: any thread
may call.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import torch
from attrs import evolve
from torch import Tensor

from ...engine.errors import ConfigError, NotStarted
from ...engine.runtime import Forward
from ...engine.values import DraftInfo, RuntimeInfo, Sampling
from ..cached import CachedRuntime, CachedSession, Computed, Open
from ..smoke import warn_of_a_constant_draft
from .caches import RowCache
from .choice import choose, masked_scores
from .config import DTYPES, check_class, check_config, check_unquantised, context_length, is_plain, stop_tokens, whereabouts
from .decode import key_step
from .drafting import HeadSession
from .exact import rows_are_exact
from .head import MtpHead
from .model_cache import ModelCache
from .paths import Drafting, OwnTarget, Target, build, plan
from .rollback import Found, rollback_of
from .vocabulary import DraftVocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["DRAFT_DEPTH", "TorchRuntime"]

#: Most tokens of one draft. The checkpoint's one layer is recycled for all steps beyond the first.
DRAFT_DEPTH: Final = 16


class TorchRuntime(CachedRuntime[CachedSession]):
    """A transformers causal LM, and its MTP head where it has one.

    Args:
        model: an instance of one of ``families.ARCHITECTURES``, all on one device and in one dtype; it is put into eval mode and frozen.
        head: its MTP layer (``MtpHead``), or None: no draft of its own.
        name: what ``info.model`` says.
        tokenizer: handed on by the attribute of this name; the runtime itself works on ids.
        context_length: most tokens of a session; default and upper bound: the model's ``max_position_embeddings``.
        draft_context_length: most tokens up to which the head drafts; default and upper bound: ``context_length``.
        draft_depth: most tokens of one draft (beyond the head's layers the last one is recycled).
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

    backend = "torch"

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
        config = model.config.get_text_config(decoder=True)
        name = name or str(getattr(model.config, "name_or_path", "") or type(model).__name__)
        check_class(type(model).__name__, name)
        check_config(config, name)
        check_unquantised(config, name)
        self._device, self._dtype = whereabouts(model, head, name)
        self._config: Any = config
        self._plain = is_plain(model)
        self._model: Any = model.eval().requires_grad_(False)
        self._head: MtpHead | None = head
        self.tokenizer = tokenizer
        chosen = plan(model, head, self._device, self._dtype, modules=modules, packed=packed, row_width=row_width, name=name)
        vocabulary: DraftVocabulary | None = None
        if draft_vocab is not None and head is not None:
            where = f"draft_vocab of {name}"
            vocabulary = DraftVocabulary(draft_vocab, int(model.get_output_embeddings().weight.shape[0]), self._device, where)
        info = self._describe(name, context_length, draft_context_length, draft_depth)
        # Ids up to the last draft step of a session at the end of its context.
        positions = torch.arange(info.context_length + DRAFT_DEPTH + 1, device=self._device).unsqueeze(0)
        self._target: Target
        self._drafting: Drafting | None
        self._target, self._drafting = build(model, head, chosen, vocabulary, positions)
        with torch.inference_mode():
            if isinstance(self._target, OwnTarget):
                info = evolve(info, row_exact=rows_are_exact(self._target, info.vocabulary, self._cache))
            found = Found("crop", "")
            if not self._plain:
                found = rollback_of(self._target, config, info.vocabulary, info.context_length)
            if found.kind == "crop" and head is not None and self._reaches_back_only_so_far():
                found = Found("checkpoint", "the head's layers cannot go back as far as the target")
            info = evolve(info, rollback=found.kind, rollback_note=found.note)
        super().__init__(info)

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
        runtime = cls(
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
        warn_of_a_constant_draft(runtime)
        return runtime

    def _reaches_back_only_so_far(self) -> bool:
        # A head with windows, or one that is fed several pairs anew, has a floor of its own.
        assert self._head is not None
        kinds: Sequence[str] = getattr(self._head.config, "layer_types", None) or ()
        return len(self._head.layers) > 1 or "sliding_attention" in kinds

    def _describe(self, name: str, asked: int | None, draft_asked: int | None, depth: int) -> RuntimeInfo:
        config = self._config
        length = context_length(config, asked, name)
        draft: DraftInfo | None = None
        if self._head is not None:
            if type(depth) is not int or not 1 <= depth <= DRAFT_DEPTH:
                raise ConfigError(f"draft_depth must be an integer from 1 to {DRAFT_DEPTH}, not {depth!r}")
            draft_length = length if draft_asked is None else min(context_length(config, draft_asked, name, "draft_context_length"), length)
            draft = DraftInfo(origin="mtp", layers=len(self._head.layers), depth=depth, context_length=draft_length)
        dtype = next((word for word, value in DTYPES.items() if value == self._dtype), str(self._dtype))
        return RuntimeInfo(
            backend="torch",
            model=name,
            vocabulary=int(self._model.get_output_embeddings().weight.shape[0]),
            context_length=length,
            rollback="crop",
            draft=draft,
            max_batch=1,
            threads="any",
            stop_tokens=stop_tokens(self._model, self.tokenizer),
            device=str(self._device),
            dtype=dtype,
        )

    def _guard(self) -> AbstractContextManager[Any]:
        return torch.inference_mode()

    def _new_session(self, sampling: Sampling, masked: Tensor | None, head_masked: Tensor | None, drafting: bool) -> CachedSession:
        head: HeadSession | None = None
        if drafting and self._drafting is not None and self._head is not None:
            if self._plain and len(self._head.layers) == 1:
                pairs: RowCache | ModelCache = self._cache(1, self._info.context_length + DRAFT_DEPTH)
            else:
                pairs = ModelCache(self._head.config, range(len(self._head.layers)))
            head = HeadSession(self._drafting, pairs, self._device)
        cache = self._cache(self._config.num_hidden_layers, self._info.context_length) if self._plain else ModelCache(self._config)
        return CachedSession(sampling=sampling, masked=masked, head_masked=head_masked, cache=cache, head=head)

    def _ids(self, ids: list[int]) -> Tensor:
        return torch.tensor(ids, device=self._device)

    def _head_places(self, masked: Tensor) -> Tensor | None:
        vocabulary = None if self._drafting is None else self._drafting.vocabulary
        if vocabulary is None:
            return masked
        places = vocabulary.places_of(masked)
        return places if len(places) else None

    def _cache(self, layers: int, limit: int) -> RowCache:
        config = self._config
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return RowCache(layers, config.num_key_value_heads, head_dim, limit, self._dtype, self._device, key_step(config))

    def _reserve(self, held: CachedSession, rows: int) -> None:
        try:
            _cache_of(held).reserve(rows)
        except RuntimeError as error:  # out of memory: the buffers are as they were
            raise NotStarted(f"no memory for {rows} rows: {error}") from error

    def _compute(self, call: Forward, held: CachedSession, opened: Open) -> Computed:
        end = call.base + len(call.tokens)
        hidden, fed = self._target.run(call.tokens, call.base, held.cache, span=not call.canonical)
        opened.hidden = fed if held.head is not None else None
        if call.want == "none":
            return Computed()
        wanted = hidden if call.want == "all" else hidden[-1:]
        logits = self._target.scores(wanted)
        scores = masked_scores(logits, end - wanted.shape[0] + 1, held.sampling, held.masked)
        chosen = choose(scores, call.extras)
        return Computed(chosen.ids, chosen.margins, chosen.logprobs, logits if call.extras.logits else None)

    def _floor(self, held: CachedSession) -> int:
        floor = _cache_of(held).floor
        return floor if held.head is None else max(floor, cast(HeadSession, held.head).floor)

    def _before(self, held: CachedSession, rows: int, canonical: bool) -> None:
        if isinstance(held.cache, ModelCache):
            held.cache.before(rows, canonical)

    def _cut(self, held: CachedSession, position: int) -> int:
        cache = held.cache
        if not isinstance(cache, ModelCache):
            return super()._cut(held, position)
        again = cache.cut(position)
        if again:
            # The recurrent states are back at the span's base: the rows that stay run once more.
            assert held.open is not None, "only a span has a way back"
            self._target.run(held.open.tokens[:again], position - again, cache)
        return again

    def _kept(self, held: CachedSession) -> None:
        if isinstance(held.cache, ModelCache):
            held.cache.settled()

    def _release(self) -> None:
        self._model, self._head, self._target, self._drafting = _Closed(), None, _Closed(), None


def _cache_of(held: CachedSession) -> RowCache | ModelCache:
    return cast("RowCache | ModelCache", held.cache)


class _Closed:
    # Stands where the model was, so that its memory is free.
    run: Any = None
    scores: Any = None
