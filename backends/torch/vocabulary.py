"""The draft vocabulary: the ids that the head may propose.

A drafted token is checked by the target, so leaving rare ids out changes no output. It makes a head step cheaper, of which the
product with the output matrix is the largest part, and costs the drafts of tokens that are not in it. Ids are kept beside the head as
``draft_vocab.safetensors``, one int64 tensor ``ids``: sorted, each once.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# safetensors carries partial type information.
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ...engine.errors import ConfigError
from .matrices import Matrix, Packed, Plain

__all__ = ["DRAFT_VOCAB_FILE", "DraftVocabulary", "read_draft_vocab"]

DRAFT_VOCAB_FILE: Final = "draft_vocab.safetensors"
_TENSOR: Final = "ids"


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


def read_draft_vocab(folder: Path, name: str) -> Tensor | None:
    """The ids that a checkpoint brings, or None; ``DraftVocabulary`` checks them.

    Raises:
        ConfigError: the file is there and cannot be read, or holds something else.
    """
    path = folder / DRAFT_VOCAB_FILE
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            names = sorted(file.keys())
            if names != [_TENSOR]:
                raise ConfigError(f"{name}: {DRAFT_VOCAB_FILE} must hold one tensor {_TENSOR!r}, not {', '.join(names) or 'none'}")
            return file.get_tensor(_TENSOR)
    except (SafetensorError, OSError) as error:
        raise ConfigError(f"{name}: {DRAFT_VOCAB_FILE} cannot be read ({error})") from error
