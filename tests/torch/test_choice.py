"""The choice of a token: lowest id on a tie, masks by absolute index, extras."""

from __future__ import annotations

import pytest
import torch

from spanfold.backends.torch.choice import choose, masked_scores
from spanfold.backends.torch.config import DTYPES
from spanfold.engine.runtime import Extras
from spanfold.engine.values import Sampling

ALL = Extras(margins=True, logprobs=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [7, 64, 1000, 49152])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_tie_is_broken_by_the_lowest_id(dtype: str, width: int, count: int) -> None:
    generator = torch.Generator().manual_seed(width)
    scores = torch.randn(count, width, generator=generator).to(DTYPES[dtype])
    expected: list[int] = []
    for row in range(count):
        tied = sorted(torch.randperm(width, generator=generator)[:5].tolist())
        scores[row, tied] = 9.0
        expected.append(tied[0])
    assert choose(scores, Extras()).ids == tuple(expected)
    assert scores.argmax(dim=-1).tolist() == expected


def test_masked_ids_are_out_below_mask_until_and_the_scores_are_not_touched() -> None:
    scores = torch.tensor([[1.0, 5.0, 3.0]] * 4)
    sampling = Sampling(masked=(1,), mask_until=12)
    masked = masked_scores(scores, 10, sampling, torch.tensor([1]))
    assert choose(masked, Extras()).ids == (2, 2, 1, 1)
    assert scores[:, 1].tolist() == [5.0] * 4
    assert masked_scores(scores, 12, sampling, torch.tensor([1])) is scores
    assert masked_scores(scores, 0, Sampling(), None) is scores


def test_margins_and_logprobs_are_those_of_the_masked_row() -> None:
    scores = torch.tensor([[1.0, 5.0, 3.0, 2.5]])
    plain = choose(scores, ALL)
    assert plain.margins == (2.0,)
    assert plain.logprobs == pytest.approx([float(scores[0].log_softmax(0)[1])])
    masked = choose(masked_scores(scores, 0, Sampling(masked=(1,), mask_until=9), torch.tensor([1])), ALL)
    assert masked.ids == (2,) and masked.margins == (0.5,)
    assert masked.logprobs == pytest.approx([float(scores[0, [0, 2, 3]].log_softmax(0)[1])])
    alone = choose(masked_scores(scores, 0, Sampling(masked=(0, 2, 3), mask_until=9), torch.tensor([0, 2, 3])), ALL)
    assert alone.ids == (1,) and alone.margins is not None and alone.margins[0] == torch.finfo(torch.float32).max
    assert alone.logprobs == (0.0,)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_row_without_a_usable_best_score_is_an_error(bad: float) -> None:
    scores = torch.full((2, 3), bad)
    scores[0] = torch.tensor([1.0, 2.0, 3.0])
    with pytest.raises(FloatingPointError, match="row 1"):
        choose(scores, Extras())
    one = torch.tensor([[1.0, float("nan"), 3.0]])
    with pytest.raises(FloatingPointError, match="row 0"):
        choose(one, Extras())
