"""The choice of a token from a row of scores, on the device; greedy (temperature 0) with masked ids.

One transfer to the host per call, whatever was asked for.
"""

from __future__ import annotations

from typing import Final, cast

import torch
from attrs import frozen
from torch import Tensor

from ...engine.runtime import Extras
from ...engine.values import Sampling

__all__ = ["Chosen", "choose", "masked_scores"]

# A margin is a plain finite number, also where every other id is masked.
_MOST: Final = torch.finfo(torch.float32).max


@frozen
class Chosen:
    """Per row: the id, and margin and log probability where asked for."""

    ids: tuple[int, ...]
    margins: tuple[float, ...] | None
    logprobs: tuple[float, ...] | None


def masked_scores(scores: Tensor, index: int, sampling: Sampling, masked: Tensor | None) -> Tensor:
    """Scores with the masked ids of the rows below ``mask_until`` at minus infinity; the argument itself where none is.

    Args:
        scores: ``[rows, vocabulary]``.
        index: absolute index of the token that the first row predicts.
        sampling: the session's; says up to which index ids are masked.
        masked: the session's masked ids on the scores' device; None if it has none.
    """
    rows = min(max(sampling.mask_until - index, 0), scores.shape[0])
    if masked is None or rows == 0:
        return scores
    scores = scores.clone()
    scores[:rows, masked] = -torch.inf
    return scores


def choose(scores: Tensor, extras: Extras) -> Chosen:
    """The highest score of each row, the lowest id on a tie (which torch's max promises, on every device).

    Raises:
        FloatingPointError: a row's best score is not a number, or minus infinity: the choice would mean nothing.
    """
    best, ids = scores.max(dim=-1)
    # float64 holds every id and every float32 exactly, so all results travel together.
    columns = [ids.double(), best.double()]
    if extras.margins:
        wide = scores.float()
        second = wide.topk(min(2, wide.shape[1]), dim=-1).values[:, -1]
        columns.append((best.float() - second).clamp(max=_MOST).double())
    if extras.logprobs:
        columns.append(best.double() - scores.double().logsumexp(dim=-1))
    table = cast("list[list[float]]", torch.stack(columns).tolist())  # pyright: ignore[reportUnknownMemberType]
    for row, value in enumerate(table[1]):
        if not -torch.inf < value < torch.inf:
            raise FloatingPointError(f"the best score of row {row} is {value}: the model's output is not usable (overflow in its dtype?)")
    rest = iter(tuple(column) for column in table[2:])
    return Chosen(
        ids=tuple(int(one) for one in table[0]),
        margins=next(rest) if extras.margins else None,
        logprobs=next(rest) if extras.logprobs else None,
    )
