"""The target and the MTP head as calls on a lane: tokens in, rows out. Both cut long forwards into pieces and pad short ones.

A matrix kernel for one row adds in another order than that for several, and from two rows on the rows do not depend on their number
(``exact.py`` measures it). So a forward of fewer than ``row_width`` rows is padded, by its last row again; padding is written behind the
rows, never kept, and its results are dropped. Where the rotary table ends there is no room for padding, and none is made.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from attrs import frozen

from ...engine.runtime import Want
from .graph import Graph, Lane, Placed
from .memory import Array
from .signature import HeadSignature, TargetSignature

__all__ = ["PIECE", "Head", "Passed", "Target"]

#: Most rows of one run. It bounds what a graph that scores every row holds in memory: so many rows of scores.
PIECE: Final = 128


@frozen
class Passed:
    """What a forward gave.

    Attributes:
        hidden: ``[rows, hidden]`` after the final norm, where asked for.
        ids: the highest score's id of each wanted row, where the graph chose it.
        scores: ``[wanted rows, vocabulary]``, where it did not or they were asked for.
    """

    hidden: Array | None = None
    ids: tuple[int, ...] | None = None
    scores: Array | None = None


class _Rows:
    def __init__(self, graph: Graph, room: int, row_width: int) -> None:
        self.graph, self._room, self.row_width = graph, room, row_width

    def _wide(self, base: int, rows: int) -> int:
        return rows if rows >= self.row_width or base + self.row_width > self._room else self.row_width


class Target(_Rows):
    """The target.

    Args:
        graph: its graph.
        signature: its names.
        vocabulary: ids that it scores.
        hidden: size of a hidden row.
        room: positions that it has.
        row_width: least rows of a run.
    """

    def __init__(self, graph: Graph, signature: TargetSignature, vocabulary: int, hidden: int, room: int, row_width: int) -> None:
        super().__init__(graph, room, row_width)
        self._signature, self.vocabulary, self._hidden = signature, vocabulary, hidden

    def run(self, lane: Lane, tokens: Sequence[int], want: Want, *, hidden: bool, scores: bool) -> Passed:
        """Rows from the lane's end on; the lane must have room for them and for the padding.

        Args:
            lane: whose cache.
            tokens: the rows' tokens.
            want: of which rows the choice or the scores are wanted.
            hidden: whether hidden rows are wanted, of all rows then.
            scores: the scores are wanted, also where the graph chooses by itself.
        """
        pieces = [tokens[at : at + PIECE] for at in range(0, len(tokens), PIECE)]
        last = len(pieces) - 1
        found = [
            self._piece(lane, piece, want == "all" or (want == "last" and at == last), hidden, scores) for at, piece in enumerate(pieces)
        ]
        if want == "last":
            found[-1] = Passed(
                found[-1].hidden,
                None if (ids := found[-1].ids) is None else ids[-1:],
                None if (values := found[-1].scores) is None else values[-1:],
            )
        if len(found) == 1:
            return found[0]
        some_hidden = [one.hidden for one in found if one.hidden is not None]
        some_scores = [one.scores for one in found if one.scores is not None]
        some_ids = [one.ids for one in found if one.ids is not None]
        return Passed(
            np.concatenate(some_hidden) if some_hidden else None,
            tuple(id for ids in some_ids for id in ids) if some_ids else None,
            np.concatenate(some_scores) if some_scores else None,
        )

    def _piece(self, lane: Lane, tokens: Sequence[int], wanted: bool, hidden: bool, scores: bool) -> Passed:
        signature, rows = self._signature, len(tokens)
        wide = self._wide(lane.cache.rows, rows)
        fed = (signature.tokens, (1, wide))
        _fill(lane.place(*fed), tokens)
        ids = (signature.ids, (1, wide)) if wanted and not scores and signature.ids is not None else None
        states = (signature.hidden, (1, wide, self._hidden)) if hidden and signature.hidden is not None else None
        values = np.empty((1, wide, self.vocabulary), signature.logits.dtype) if wanted and ids is None else None
        outputs: list[Placed] = [one for one in (ids, states) if one is not None]
        lane.run(wide, rows, [fed], outputs, [] if values is None else [(signature.logits, values)])
        return Passed(
            None if states is None else lane.place(*states)[0, :rows].copy(),
            None if ids is None else tuple(lane.place(*ids)[0, :rows].tolist()),
            None if values is None else values[0, :rows],
        )


class Head(_Rows):
    """The MTP head.

    Args:
        graph: its graph.
        signature: its names.
        scored: how many ids it scores.
        vocabulary: the ids, where it scores some only.
        room: positions that it has.
        row_width: least rows of a run.
    """

    def __init__(self, graph: Graph, signature: HeadSignature, scored: int, vocabulary: Array | None, room: int, row_width: int) -> None:
        super().__init__(graph, room, row_width)
        self._signature, self.scored, self.vocabulary = signature, scored, vocabulary

    def run(self, lane: Lane, tokens: Sequence[int], hidden: Array, *, scores: bool) -> tuple[int, Array, Array | None]:
        """Pairs as rows from the lane's end on: of the last one its drafted id, z ``[1, hidden]``, and its scores ``[1, ids]`` if wanted.

        z lies in the lane's memory: the next run overwrites it, and takes it as it is.

        Args:
            lane: whose cache.
            tokens: the token of each pair, x_{p+1}.
            hidden: ``[rows, hidden]``, h_p of each pair, or the recycled z.
            scores: whether the scores are wanted.
        """
        lane.cache.reserve(lane.cache.rows + len(tokens) + self.row_width)
        for at in range(0, len(tokens) - PIECE, PIECE):
            self._piece(lane, tokens[at : at + PIECE], hidden[at : at + PIECE], False, False)
        at = (len(tokens) - 1) // PIECE * PIECE
        return self._piece(lane, tokens[at:], hidden[at:], True, scores)

    def _piece(self, lane: Lane, tokens: Sequence[int], hidden: Array, wanted: bool, scores: bool) -> tuple[int, Array, Array | None]:
        """What ``run`` gives of the last row; meaningless where it is not wanted."""
        signature, rows = self._signature, len(tokens)
        wide = self._wide(lane.cache.rows, rows)
        fed, pairs = (signature.tokens, (1, wide)), (signature.hidden, (1, wide, hidden.shape[1]))
        _fill(lane.place(*fed), tokens)
        _fill(lane.place(*pairs), hidden)
        ids, z = (signature.ids, (1, wide)), (signature.recycled, (1, wide, hidden.shape[1]))
        values = np.empty((1, wide, self.scored), signature.logits.dtype) if scores else None
        fresh = [] if values is None else [(signature.logits, values)]
        lane.run(wide, rows, [fed, pairs], [ids, z] if wanted else [], fresh)
        last = rows - 1
        return int(lane.place(*ids)[0, last]), lane.place(*z)[0, last:rows], None if values is None else values[0, last:rows]


def _fill(target: Array, values: Any) -> None:
    """Write rows ``[rows, ...]`` into ``[1, wide, ...]``, the last one again where it is wider."""
    rows = len(values)
    target[0, :rows] = values
    if rows < target.shape[1]:
        target[0, rows:] = target[0, rows - 1]
