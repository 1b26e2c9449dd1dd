"""How rows get through a model: by the decode path of this package, or by transformers' own modules. One interface for both.

A *target* takes tokens and gives hidden states, those it scores and those its head is fed; a *drafter* takes pairs (token, hidden
state) and gives states. Both have their rows in the cache afterwards, and compute scores from what they gave. The decode path works on
a ``RowCache``; modules on that or, where a model's layers are of other kinds, on a ``ModelCache``.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F

from ...engine.errors import ConfigError
from .caches import RowCache
from .config import is_plain
from .decode import NEAR_ROWS, Norm, Stack, Tables, unfit
from .families.deepseek import DEEPSEEK
from .head import MtpHead
from .matrices import Matrix, can_pack, matrix
from .model_cache import ModelCache
from .vocabulary import DraftVocabulary

__all__ = ["Drafting", "OwnHead", "OwnTarget", "Plan", "Target", "build", "plan"]


class Target(Protocol):
    """The target."""

    def run(self, tokens: Sequence[int], base: int, cache: Any, span: bool = False) -> tuple[Tensor, Tensor]:
        """Rows ``base ...`` of the cache from tokens: ``[rows, hidden]`` after the final norm, and what the head is fed.

        ``span``: each row must be what it is alone, where the path can do that. Of a prompt's rows nobody asks it.
        """
        ...

    def scores(self, hidden: Tensor) -> Tensor:
        """``[rows, hidden]`` -> ``[rows, vocabulary]``."""
        ...


class Drafting(Protocol):
    """The MTP layer."""

    vocabulary: DraftVocabulary | None
    """The ids it scores; None: all."""
    layers: int
    """Distinct layers."""

    def run(self, ids: Tensor, hidden: Tensor, first: int, cache: Any, layer: int = 0) -> Tensor:
        """Pairs ``[rows]`` and ``[rows, hidden]`` as rows ``first ...`` of a layer of the cache: its states, ``[rows, hidden]``."""
        ...

    def scores(self, state: Tensor, layer: int = 0) -> Tensor:
        """``[rows, hidden]`` -> ``[rows, ids]``, one column per id of ``vocabulary``."""
        ...


class ModuleTarget:
    """transformers' modules.

    Args:
        model: the target.
        positions: ``[1, n]``, the ids 0, 1, 2, ...
        before_norm: the attribute of its decoder that is the final norm, where the head is fed what comes before it.
    """

    def __init__(self, model: Any, positions: Tensor, before_norm: str | None = None) -> None:
        self._decoder, self._output, self._positions = model.get_decoder(), model.get_output_embeddings(), positions
        self._before: Tensor | None = None
        if before_norm is not None:
            getattr(self._decoder, before_norm).register_forward_pre_hook(self._note)
        self._pre = before_norm is not None

    def _note(self, module: Any, given: tuple[Tensor, ...]) -> None:
        self._before = given[0]

    def run(self, tokens: Sequence[int], base: int, cache: Any, span: bool = False) -> tuple[Tensor, Tensor]:
        """See ``Target``."""
        ids = torch.tensor([tokens], device=self._positions.device)
        positions = self._positions[:, base : base + len(tokens)]
        found = self._decoder(input_ids=ids, position_ids=positions, cache=library(cache), use_cache=True)
        hidden: Tensor = found.last_hidden_state[0]
        if not self._pre:
            return hidden, hidden
        assert self._before is not None, "the final norm ran"
        before, self._before = self._before[0], None
        return hidden, before

    def scores(self, hidden: Tensor) -> Tensor:
        """See ``Target``."""
        return self._output(hidden)


class ModuleHead:
    """``MtpHead``, which is made of transformers' modules."""

    def __init__(self, head: MtpHead, positions: Tensor, vocabulary: DraftVocabulary | None) -> None:
        self._head, self._positions, self.vocabulary = head, positions, vocabulary
        self.layers = len(head.layers)
        self._ahead = 1 if head.contract.position == "token" else 0
        outputs = [head.output(index) for index in range(self.layers)]
        self._rows = None if vocabulary is None else [vocabulary.rows_of(output, False) for output in outputs]

    def run(self, ids: Tensor, hidden: Tensor, first: int, cache: Any, layer: int = 0) -> Tensor:
        """See ``Drafting``."""
        start = first + self._ahead + layer
        positions = self._positions[:, start : start + ids.shape[0]]
        return self._head(ids.unsqueeze(0), hidden.unsqueeze(0), positions, library(cache), layer)[0]

    def scores(self, state: Tensor, layer: int = 0) -> Tensor:
        """See ``Drafting``."""
        return self._head.scores(state, layer) if self._rows is None else self._rows[layer](self._head.normed(state, layer))


def library(cache: RowCache | ModelCache) -> Any:
    """What transformers' modules are given: the cache itself, or the one inside."""
    return cache.library if isinstance(cache, ModelCache) else cache


class OwnTarget:
    """The decode path over a model's own weights."""

    def __init__(self, model: Any, tables: Tables, *, packed: bool, row_width: int) -> None:
        base = model.model
        self._embedding: Tensor = base.embed_tokens.weight
        self.stack = Stack(base.layers, base.norm, model.config, tables, packed=packed, row_width=row_width)
        self.output: Matrix = matrix([model.lm_head], packed)

    @property
    def nbytes(self) -> int:
        """Bytes beyond the model's own tensors."""
        return self.stack.nbytes + self.output.nbytes

    def embed(self, tokens: Sequence[int]) -> Tensor:
        """``[padded rows, hidden]``."""
        missing = self.stack.row_width - len(tokens)
        padded = tokens if missing <= 0 else (*tokens, *[tokens[-1]] * missing)
        return F.embedding(torch.tensor(padded, device=self._embedding.device), self._embedding)

    def run(self, tokens: Sequence[int], base: int, cache: RowCache, span: bool = False) -> tuple[Tensor, Tensor]:
        """See ``Target``. A wide span runs in pieces: more than ``NEAR_ROWS`` rows attend in one call, and then they are not exact."""
        most = NEAR_ROWS if span else len(tokens)
        pieces = [tokens[at : at + most] for at in range(0, len(tokens), most)]
        found = [self._run(piece, base + at * most, cache) for at, piece in enumerate(pieces)]
        hidden = found[0] if len(found) == 1 else torch.cat(found)
        return hidden, hidden

    def _run(self, tokens: Sequence[int], base: int, cache: RowCache) -> Tensor:
        return self.stack.run(self.embed(tokens), base, len(tokens), cache)[: len(tokens)]

    def scores(self, hidden: Tensor) -> Tensor:
        """See ``Target``."""
        return self.output(self.stack.padded(hidden))[: hidden.shape[0]]


class OwnHead:
    """The MTP layer on the decode path: the contract of ``head.MtpHead``."""

    def __init__(
        self,
        head: MtpHead,
        model: Any,
        target: OwnTarget,
        tables: Tables,
        vocabulary: DraftVocabulary | None,
        *,
        packed: bool,
        row_width: int,
    ) -> None:
        self._embedding: Tensor = model.model.embed_tokens.weight
        layer: Any = head.layers[0]
        self._token_norm, self._hidden_norm = Norm(layer.enorm), Norm(layer.hnorm)
        self._join: Matrix = matrix([layer.eh_proj], packed)
        self.layers = 1
        self.stack = Stack([layer.block], layer.norm, model.config, tables, packed=packed, shift=1, row_width=row_width)
        self.vocabulary = vocabulary
        self._output = target.output if vocabulary is None else vocabulary.rows_of(model.lm_head, packed)

    @property
    def nbytes(self) -> int:
        """Bytes beyond the tensors of model and head."""
        return self.stack.nbytes + self._join.nbytes + (0 if self.vocabulary is None else self._output.nbytes)

    def run(self, ids: Tensor, hidden: Tensor, first: int, cache: RowCache, layer: int = 0) -> Tensor:
        """See ``Drafting``."""
        embedded = self._token_norm(F.embedding(ids, self._embedding))
        joined = self.stack.padded(torch.cat([embedded, self._hidden_norm(hidden)], dim=-1))
        rows = ids.shape[0]
        cache.reserve(first + rows)
        return self.stack.run(self._join(joined), first, rows, cache)[:rows]

    def scores(self, state: Tensor, layer: int = 0) -> Tensor:
        """See ``Drafting``."""
        return self._output(state)


#: What ``OwnHead`` takes as DeepSeek's contract has it.
_OWN_HEAD: Final = ("concat", "fed", "recycled", "position", "final_norm", "chain", "own_head", "layer_config", "block")


@frozen
class Plan:
    """What was asked for, made definite.

    Attributes:
        modules: transformers' modules run; else the decode path does.
        packed: the decode path's weights are copies in oneDNN's layout.
        row_width: least rows of a forward of the decode path.
    """

    modules: bool
    packed: bool
    row_width: int


def plan(
    model: Any,
    head: MtpHead | None,
    device: torch.device,
    dtype: torch.dtype,
    *,
    modules: bool | None,
    packed: bool | None,
    row_width: int | None,
    name: str,
) -> Plan:
    """Choose what was left open; ConfigError where what was asked for cannot be had."""
    for word, value in (("modules", modules), ("packed", packed)):
        if value is not None and type(value) is not bool:
            raise ConfigError(f"{word} must be True, False or None, not {value!r}")
    reason = unfit(model) if is_plain(model) else "it runs dense models with full attention: Llama, Qwen2, Qwen3"
    knobs = [] if head is None else [one for one in _OWN_HEAD if getattr(head.contract, one) != getattr(DEEPSEEK, one)]
    if reason is None and knobs:
        reason = f"its MTP head is of another contract than {DEEPSEEK.name}: {', '.join(knobs)}"
    if modules is False and reason is not None:
        raise ConfigError(f"{name}: the decode path cannot run it ({reason}): use modules=True, or leave it open")
    if modules is None:
        modules = device.type != "cpu" or reason is not None
    if modules:
        if packed or row_width is not None:
            raise ConfigError("packed and row_width belong to the decode path: use modules=False with them")
        return Plan(True, False, 1)
    able = can_pack(dtype, device)
    if packed and not able:
        raise ConfigError(f"packed weights need float32 or bfloat16 on a CPU and a torch with oneDNN for it; this is {dtype} on {device}")
    packed = able if packed is None else packed
    if row_width is None:
        row_width = 4 if packed else 1  # two make rows independent of their number; four are the fastest (torch-path.md)
    if type(row_width) is not int or not 1 <= row_width <= NEAR_ROWS:
        raise ConfigError(f"row_width must be an integer from 1 (no padding) to {NEAR_ROWS}, not {row_width!r}")
    return Plan(False, packed, row_width)


def build(
    model: Any, head: MtpHead | None, chosen: Plan, vocabulary: DraftVocabulary | None, positions: Tensor
) -> tuple[Target, Drafting | None]:
    """The target and the drafter of a plan. ``positions``: ``[1, n]``, the ids 0, 1, 2, ... that modules are given."""
    if chosen.modules:
        with torch.inference_mode():
            before_norm = head.contract.norm if head is not None and head.contract.fed == "pre" else None
            return ModuleTarget(model, positions, before_norm), None if head is None else ModuleHead(head, positions, vocabulary)
    weight = model.model.embed_tokens.weight
    tables = Tables(model.model.rotary_emb, weight.dtype, weight.device)
    with torch.no_grad():  # not inference_mode: joined parameters must stay ordinary tensors
        target = OwnTarget(model, tables, packed=chosen.packed, row_width=chosen.row_width)
        if head is None:
            return target, None
        return target, OwnHead(head, model, target, tables, vocabulary, packed=chosen.packed, row_width=chosen.row_width)
