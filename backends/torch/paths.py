"""How rows get through a model: by the decode path of this package, or by transformers' own modules. One interface for both.

A *target* takes tokens and gives hidden states after the final norm; a *drafter* takes pairs (token, hidden state) and gives z.
Both work on a ``RowCache``, have their rows in it afterwards, and compute scores from what they gave.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from attrs import frozen
from torch import Tensor
from torch.nn import functional as F

from ...engine.errors import ConfigError
from .caches import RowCache
from .decode import NEAR_ROWS, Norm, Stack, Tables, unfit
from .head import MtpHead
from .matrices import Matrix, can_pack, matrix
from .vocabulary import DraftVocabulary

__all__ = ["Drafting", "OwnHead", "OwnTarget", "Plan", "Target", "build", "plan"]


class Target(Protocol):
    """The target."""

    def run(self, tokens: Sequence[int], base: int, cache: RowCache, span: bool = False) -> Tensor:
        """Rows ``base ...`` of the cache from tokens: ``[rows, hidden]``, after the final norm.

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

    def run(self, ids: Tensor, hidden: Tensor, first: int, cache: RowCache) -> Tensor:
        """Pairs ``[rows]`` and ``[rows, hidden]`` as rows ``first ...`` of the cache (position ids one higher): z, ``[rows, hidden]``."""
        ...

    def scores(self, z: Tensor) -> Tensor:
        """``[rows, hidden]`` -> ``[rows, ids]``, one column per id of ``vocabulary``."""
        ...


class ModuleTarget:
    """transformers' modules."""

    def __init__(self, model: Any, positions: Tensor) -> None:
        self._model, self._positions = model, positions

    def run(self, tokens: Sequence[int], base: int, cache: RowCache, span: bool = False) -> Tensor:
        ids = torch.tensor([tokens], device=self._positions.device)
        positions = self._positions[:, base : base + len(tokens)]
        return self._model.model(input_ids=ids, position_ids=positions, cache=cache, use_cache=True).last_hidden_state[0]

    def scores(self, hidden: Tensor) -> Tensor:
        return self._model.lm_head(hidden)


class ModuleHead:
    """``MtpHead``, which is made of transformers' modules."""

    def __init__(self, head: MtpHead, positions: Tensor, vocabulary: DraftVocabulary | None, weight: Tensor) -> None:
        self._head, self._positions, self.vocabulary = head, positions, vocabulary
        self._rows = None if vocabulary is None else weight[vocabulary.ids]

    def run(self, ids: Tensor, hidden: Tensor, first: int, cache: RowCache) -> Tensor:
        positions = self._positions[:, first + 1 : first + 1 + ids.shape[0]]
        return self._head(ids.unsqueeze(0), hidden.unsqueeze(0), positions, cache)[0]

    def scores(self, z: Tensor) -> Tensor:
        return self._head.scores(z) if self._rows is None else F.linear(z, self._rows)


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

    def run(self, tokens: Sequence[int], base: int, cache: RowCache, span: bool = False) -> Tensor:
        """See ``Target``. A wide span runs in pieces: more than ``NEAR_ROWS`` rows attend in one call, and then they are not exact."""
        most = NEAR_ROWS if span else len(tokens)
        pieces = [tokens[at : at + most] for at in range(0, len(tokens), most)]
        found = [self._run(piece, base + at * most, cache) for at, piece in enumerate(pieces)]
        return found[0] if len(found) == 1 else torch.cat(found)

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
        self._token_norm, self._hidden_norm = Norm(head.enorm), Norm(head.hnorm)
        self._join: Matrix = matrix([head.eh_proj], packed)
        self.stack = Stack([head.block], head.shared_head.norm, model.config, tables, packed=packed, shift=1, row_width=row_width)
        self.vocabulary = vocabulary
        self._output = target.output if vocabulary is None else vocabulary.rows_of(model.lm_head, packed)

    @property
    def nbytes(self) -> int:
        """Bytes beyond the tensors of model and head."""
        return self.stack.nbytes + self._join.nbytes + (0 if self.vocabulary is None else self._output.nbytes)

    def run(self, ids: Tensor, hidden: Tensor, first: int, cache: RowCache) -> Tensor:
        """See ``Drafting``."""
        embedded = self._token_norm(F.embedding(ids, self._embedding))
        joined = self.stack.padded(torch.cat([embedded, self._hidden_norm(hidden)], dim=-1))
        rows = ids.shape[0]
        cache.reserve(first + rows)
        return self.stack.run(self._join(joined), first, rows, cache)[:rows]

    def scores(self, z: Tensor) -> Tensor:
        """See ``Drafting``."""
        return self._output(z)


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
    model: Any, device: torch.device, dtype: torch.dtype, *, modules: bool | None, packed: bool | None, row_width: int | None, name: str
) -> Plan:
    """Choose what was left open; ConfigError where what was asked for cannot be had."""
    for word, value in (("modules", modules), ("packed", packed)):
        if value is not None and type(value) is not bool:
            raise ConfigError(f"{word} must be True, False or None, not {value!r}")
    reason = unfit(model)
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
            return ModuleTarget(model, positions), None if head is None else ModuleHead(head, positions, vocabulary, model.lm_head.weight)
    weight = model.model.embed_tokens.weight
    tables = Tables(model.model.rotary_emb, weight.dtype, weight.device)
    with torch.no_grad():  # not inference_mode: joined parameters must stay ordinary tensors
        target = OwnTarget(model, tables, packed=chosen.packed, row_width=chosen.row_width)
        if head is None:
            return target, None
        return target, OwnHead(head, model, target, tables, vocabulary, packed=chosen.packed, row_width=chosen.row_width)
