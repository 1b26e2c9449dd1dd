"""The choice of a token from a row of scores, on the host; greedy (temperature 0) with masked ids."""

from __future__ import annotations

from typing import Any, Final, cast

import numpy as np
from attrs import frozen

from ...engine.runtime import Extras
from ...engine.values import Sampling
from .memory import Array

__all__ = ["Chosen", "choose", "masked_scores"]

# A margin is a plain finite number, also where every other id is masked.
_MOST: Final = float(np.finfo(np.float32).max)


@frozen
class Chosen:
    """Per row: the id, and margin and log probability where asked for."""

    ids: tuple[int, ...]
    margins: tuple[float, ...] | None = None
    logprobs: tuple[float, ...] | None = None


def masked_scores(scores: Array, index: int, sampling: Sampling, masked: Array | None) -> Array:
    """Scores with the masked ids of the rows below ``mask_until`` at minus infinity; the argument itself where none is.

    Args:
        scores: ``[rows, vocabulary]``.
        index: absolute index of the token that the first row predicts.
        sampling: the session's; says up to which index ids are masked.
        masked: the session's masked ids; None if it has none.
    """
    rows = min(max(sampling.mask_until - index, 0), scores.shape[0])
    if masked is None or rows == 0:
        return scores
    scores = scores.copy()
    scores[:rows, masked] = -np.inf
    return scores


def choose(scores: Array, extras: Extras) -> Chosen:
    """The highest score of each row, the lowest id on a tie (which numpy's argmax promises).

    Raises:
        FloatingPointError: a row's best score is not a number, or minus infinity: the choice would mean nothing.
    """
    ids = scores.argmax(axis=-1)
    best = scores[np.arange(len(ids)), ids].astype(np.float64)
    for row, value in enumerate(cast("list[float]", best.tolist())):
        if not -np.inf < value < np.inf:
            raise FloatingPointError(f"the best score of row {row} is {value}: the model's output is not usable (overflow in its dtype?)")
    margins: tuple[float, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    if extras.margins:
        second = np.partition(scores, -2, axis=-1)[:, -2].astype(np.float64) if scores.shape[1] > 1 else best
        margins = _floats(np.minimum(best - second, _MOST))
    if extras.logprobs:
        shifted = scores.astype(np.float64) - best[:, None]
        logprobs = _floats(-np.log(np.exp(shifted).sum(axis=-1)))
    return Chosen(tuple(cast("list[int]", ids.tolist())), margins, logprobs)


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(cast("list[float]", values.tolist()))
