"""What the scripted runtime answers beside plain predictions: margins, log probabilities, scores, and answers made false."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from ...engine.runtime import Extras
from .device import Device
from .faults import Wrong

__all__ = ["extras_of", "falsified", "until_mismatch"]


def extras_of(
    device: Device, first: int, predictions: tuple[int, ...], extras: Extras
) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None, tuple[Sequence[float], ...] | None]:
    """Margins, log probabilities (under the mask) and raw scores of the predictions from row ``first`` on, as far as asked for."""
    margins: list[float] = []
    logprobs: list[float] = []
    logits: list[Sequence[float]] = []
    for at, (state, chosen) in enumerate(zip(device.hidden[first : first + len(predictions)], predictions, strict=True)):
        scores = device.target.scores(state)
        banned = device.banned(first + 1 + at)
        allowed = [score for token, score in enumerate(scores) if token not in banned]
        best = scores[chosen]
        others = sorted(allowed, reverse=True)
        # Where nothing else may be chosen the margin is as large as can be; a log has no word for infinity.
        margins.append(others[0] - others[1] if len(others) > 1 else sys.float_info.max)
        logprobs.append(-math.log(sum(math.exp(score - best) for score in allowed)))
        logits.append(scores)
    return (
        tuple(margins) if extras.margins else None,
        tuple(logprobs) if extras.logprobs else None,
        tuple(logits) if extras.logits else None,
    )


def until_mismatch(tokens: tuple[int, ...], predictions: tuple[int, ...]) -> tuple[int, ...]:
    """The predictions up to the first that differs from the next row's token."""
    for at, prediction in enumerate(predictions[:-1]):
        if prediction != tokens[at + 1]:
            return predictions[: at + 1]
    return predictions


def falsified(wrong: Wrong, predictions: tuple[int, ...], vocabulary: int, device: Device) -> tuple[int, ...]:
    """The predictions as a `Fault` of this kind reports them."""
    if wrong == "short":
        return predictions[:-1]
    if wrong == "long":
        return (*predictions, 0)
    if wrong == "vocabulary":
        return (*predictions[:-1], vocabulary)
    if wrong == "masked" and device.sampling.masked:
        return (*predictions[:-1], device.sampling.masked[0])
    return predictions
