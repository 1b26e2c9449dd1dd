"""The comparison of an export with torch: it finds what differs, says by how much, and holds each precision to its bound."""

from __future__ import annotations

import numpy as np
import pytest

from spanfold.backends.export.checking import BOUNDS, compare, verdict
from spanfold.engine.errors import ConfigError


def rows(*logits: tuple[float, ...]) -> dict[str, np.ndarray]:
    scores = np.array(logits, np.float32)
    return {"logits": scores, "ids": scores.argmax(-1)}


TORCH = rows((1.0, 3.0, 2.0), (4.0, 0.0, 3.5), (0.0, 1.0, 8.0))


def test_equal_rows_agree_without_error():
    found = compare([TORCH], [rows(*TORCH["logits"])], "logits", "ids")
    assert (found.rows, found.agreement, found.error, found.margin) == (3, 1.0, 0.0, 0.0)


def test_a_row_that_chooses_otherwise_is_found_with_its_margin():
    found = compare([TORCH], [rows((1.0, 3.0, 2.0), (3.5, 0.0, 4.0), (0.0, 1.0, 8.0))], "logits", "ids")
    assert found.agreement == pytest.approx(2 / 3)
    assert found.margin == pytest.approx(0.5)
    assert found.error == pytest.approx(0.5 / 8)


def test_the_graphs_own_choice_is_judged_and_not_its_logits():
    """A graph whose logits are right and whose `ids` are not would decode something else."""
    wrong = rows(*TORCH["logits"]) | {"ids": np.array([1, 0, 0])}
    assert compare([TORCH], [wrong], "logits", "ids").agreement == pytest.approx(2 / 3)


def test_drafts_are_compared_as_ids_of_the_target():
    """With a draft vocabulary the columns of the head's logits are not the ids that it drafts."""
    torch = {"head_logits": TORCH["logits"], "draft_ids": np.array([70, 10, 90])}
    unmapped = {"head_logits": TORCH["logits"], "draft_ids": TORCH["ids"]}
    assert compare([torch], [unmapped], "head_logits", "draft_ids").agreement == 0.0
    assert compare([torch], [torch], "head_logits", "draft_ids").agreement == 1.0


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int4"])
def test_an_export_that_differs_is_refused_with_numbers(precision: str):
    found = compare([TORCH], [rows((3.0, 1.0, 2.0), (0.0, 0.0, 3.5), (0.0, 9.0, 8.0))], "logits", "ids")
    with pytest.raises(ConfigError, match=r"the exported target does not compute what torch does: 0\.0% of 3 rows choose alike"):
        verdict("target", found, precision)


def test_four_bits_are_held_to_agreement_alone():
    assert BOUNDS["int4"].error is None
    found = compare([TORCH], [rows((0.0, 9.0, 2.0), (9.0, 0.0, 3.5), (0.0, 1.0, 4.0))], "logits", "ids")
    assert verdict("target", found, "int4")["agreement"] == 1.0
    with pytest.raises(ConfigError, match="logits within 1e-03"):
        verdict("target", found, "fp32")


def test_not_a_number_is_no_agreement():
    with pytest.raises(ConfigError, match="differ by up to nan"):
        verdict("target", compare([TORCH], [rows(*TORCH["logits"] * np.nan) | {"ids": TORCH["ids"]}], "logits", "ids"), "fp32")
