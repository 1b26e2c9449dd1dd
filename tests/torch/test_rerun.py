"""A trace of the torch backend, run again on it: equal at every width, and another model or another dtype is told as what it is."""

from __future__ import annotations

import torch
from recorded_turns import recorded
from torch_models import tiny_model, tiny_runtime

from spanfold.backends.torch import TorchRuntime
from spanfold.engine.replay import Replayer, check_records, diff, rerun


def test_a_trace_comes_out_equal_on_the_same_model_with_spans_and_without():
    for source, width in (("auto", 3), ("prompt_lookup", 4), ("none", 0)):
        log = recorded(tiny_runtime("llama"), width, source)
        assert all(found.status == "holds" for found in check_records(log)) and Replayer().replay(log).equal
        report = rerun(log, tiny_runtime("llama"))
        assert (report.verdict, report.compared, report.bound) == ("equal", 32, 1e-3), report.sentence


def test_another_models_first_token_is_a_defect_with_both_margins():
    """Case 4.2: margins of whole units are no rounding."""
    log = recorded(tiny_runtime("llama"))
    report = rerun(log, tiny_runtime("llama", seed=5))
    assert (report.verdict, report.status) == ("defect", "violated")
    assert report.difference is not None and report.difference.recorded_margin is not None and report.difference.margin is not None
    assert max(report.difference.margin, report.difference.recorded_margin) > report.bound


def test_bfloat16_may_part_at_a_near_tie_under_the_bound_of_its_dtype():
    """Case 4.1: where it parts, the larger margin is below the bound that was measured for bfloat16."""
    log = recorded(tiny_runtime("llama"))
    low = TorchRuntime(tiny_model("llama").to(torch.bfloat16), head=None, name="tiny llama")
    report = rerun(log, low)
    assert report.bound == 1.0 and report.notes
    assert report.verdict in ("equal", "near_tie"), report.sentence
    other = recorded(low, 0, "none")
    assert diff(log, other).verdict == report.verdict
