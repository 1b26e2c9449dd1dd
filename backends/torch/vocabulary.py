"""The draft vocabulary: the ids that the head may propose (``backends.draft_vocab`` says what for, and reads its file)."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ...engine.errors import ConfigError
from .matrices import Matrix, Packed, Plain

__all__ = ["DraftVocabulary"]


class DraftVocabulary:
    """Sorted ids, on the model's device.

    Args:
        ids: a sequence of ints or an int64 tensor, sorted, each once, all below ``vocabulary``.
        vocabulary: the target's number of ids.
        name: where they come from, for errors.

    Raises:
        ConfigError: not such ids.
    """

    def __init__(self, ids: Sequence[int] | Tensor, vocabulary: int, device: torch.device, name: str) -> None:
        try:
            given = ids if isinstance(ids, Tensor) else torch.tensor(list(ids))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(f"{name} must be ids, whole numbers") from error
        if given.ndim != 1 or given.numel() == 0 or given.dtype != torch.int64:
            raise ConfigError(f"{name} must be one row of at least one int64 id, not {list(given.shape)} of {given.dtype}")
        if not bool((given[1:] > given[:-1]).all()):
            raise ConfigError(f"{name} must be sorted, each id once")
        if int(given[0]) < 0 or int(given[-1]) >= vocabulary:
            raise ConfigError(
                f"{name} holds the id {int(given[0]) if int(given[0]) < 0 else int(given[-1])}, outside the vocabulary of {vocabulary}"
            )
        self.ids = given.to(device)

    def __len__(self) -> int:
        return self.ids.shape[0]

    def places_of(self, ids: Tensor) -> Tensor:
        """The places in the draft vocabulary of those of ``ids`` that are in it."""
        places = torch.searchsorted(self.ids, ids)
        found = self.ids[places.clamp(max=len(self) - 1)] == ids
        return places[found]

    def rows_of(self, output: Any, packed: bool) -> Matrix:
        """The rows of the output matrix that score these ids, a copy."""
        weight = output.weight[self.ids]
        bias = None if output.bias is None else output.bias[self.ids]
        return Packed(weight, bias) if packed else Plain(weight, bias)
