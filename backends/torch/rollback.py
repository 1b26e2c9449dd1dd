"""What the cache of a model can do: measured when it is loaded, past its widest window, not read off a class name.

The probe decodes a few tokens with wrong drafts and rolls them back, and compares with a cache that never held them. Both then
run forwards of the same shapes on what must be the same content, so the scores must be equal to the bit (where rows that stayed were
computed beside others in one of the two, as near as rows computed one by one and together are). It also looks whether a
forward of several rows goes on from the state that the cache holds (some recurrent layers once began from zero there).
A model whose cache fails decodes serially, with the reason in ``RuntimeInfo.rollback_note``.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' configs carry partial type information.
from __future__ import annotations

from typing import Any, Final

import torch
from attrs import frozen
from torch import Tensor

from ...engine.values import Rollback
from ..inputs import one_line
from .model_cache import ModelCache
from .paths import Target

__all__ = ["Found", "rollback_of"]

#: Rows of a span of the probe.
_SPAN: Final = 4
#: Rows beyond the widest window.
_PAST: Final = 5
#: How many times the distance between rows one by one and together.
_NEAR: Final = 8
#: How far several rows may be from one by one, as a share of how far they are from rows without a past.
_CLOSE: Final = 0.1


@frozen
class Found:
    """How the engine may roll back, and why it is not a plain crop."""

    kind: Rollback
    note: str


def rollback_of(target: Target, config: Any, vocabulary: int, context_length: int) -> Found:
    """Run the probe: two prefills past the widest window and some ten short forwards.

    Args:
        target: the model.
        config: its text config.
        vocabulary: number of ids.
        context_length: most rows.
    """
    empty = ModelCache(config)
    first = empty.widest_window + _PAST
    if first + 4 * _SPAN > context_length:
        return Found("none", f"a context of {context_length} tokens is too short to probe a window of {empty.widest_window}")
    ids = [(11 + 389 * at) % vocabulary for at in range(first + 2 * _SPAN)]
    wrong = [(one + 1) % vocabulary for one in ids]

    def filled() -> ModelCache:
        cache = ModelCache(config)
        _forward(target, cache, ids[:first], True)
        return cache

    # Case 1.2: several rows on a filled cache, against one by one, and against no past at all.
    several, single, none = filled(), filled(), ModelCache(config)
    rows = _forward(target, several, ids[first : first + _SPAN], True)
    alone = torch.cat([_forward(target, single, [one], True) for one in ids[first : first + _SPAN]])
    without = _forward(target, none, ids[first : first + _SPAN], True)
    noise = max(_distance(rows, alone), float(rows.abs().max()) * torch.finfo(rows.dtype).eps)
    if _distance(rows, alone) > _CLOSE * _distance(without, alone):
        return Found("none", "a forward of several rows does not go on from the cached state")

    for keep in (0, 1, _SPAN - 1, _SPAN):
        used, never = filled(), filled()
        span = [*ids[first : first + keep], *wrong[first + keep : first + _SPAN]]
        _forward(target, used, span, False)
        again = used.cut(first + keep)
        if again:
            _forward(target, used, ids[first : first + again], True)
        used.settled()
        if keep:
            _forward(target, never, span[:keep], True)
        bound = 0.0 if again or keep in (0, _SPAN) else _NEAR * noise
        if used.rows != never.rows:
            return Found("none", f"after a cut to {first + keep} rows the cache says {used.rows}")
        for size in (1, 2):
            follow = ids[used.rows : used.rows + size]
            wanted = _forward(target, never, follow, True)
            try:
                got = _forward(target, used, follow, True)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # the model runs on the other cache: this one is no longer what its modules expect
                return Found("none", f"a forward after a cut of {_SPAN} rows to {keep} fails: {type(error).__name__}: {one_line(error)}")
            if _distance(got, wanted) > bound:
                return Found("none", f"a cut of {_SPAN} rows to {keep} leaves something of the others in the cache")
    return Found(*empty.way_back)


def _forward(target: Target, cache: ModelCache, tokens: list[int], canonical: bool) -> Tensor:
    cache.before(len(tokens), canonical)
    hidden, _ = target.run(tokens, cache.rows, cache)
    if canonical:
        cache.settled()
    return target.scores(hidden)


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.float() - other.float()).abs().max())
