"""The same weights in both backends: scores, tokens and drafts, and each other's traces."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the comparison needs the torch backend: pip install 'spanfold[torch]'")

import torch
from onnx_models import Shape, export
from recorded_turns import recorded
from runtime_loop import decode, draft, forward, start
from torch_models import head_tensors, successor_model, tiny_head, tiny_model

from spanfold.backends.models import EMBEDDED, embedded
from spanfold.backends.onnx import OnnxRuntime
from spanfold.backends.torch import TorchRuntime
from spanfold.engine import Decoder, Extras, Record
from spanfold.engine.replay import Replayer, check_records, diff, rerun
from spanfold.engine.values import Sampling

PROMPT = (5, 17, 3, 40, 22, 9)
DIMS = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96}
SHAPE = Shape(hidden=64, inner=96)
KINDS = ("genai", "ordinary")


def arrays(model: Any, head: Any, layers: int = 2) -> dict[str, Any]:
    tensors = {**model.state_dict(), **head_tensors(head, layers)}
    return {name: tensor.detach().float().numpy() for name, tensor in tensors.items()}


@cache
def pair(kind: str, seed: int = 0, precision: str = "float32") -> tuple[TorchRuntime, OnnxRuntime]:
    """One tiny Llama with a head, in both backends."""
    model = tiny_model("llama", seed, **DIMS)
    head = tiny_head(model, seed + 1)
    folder = export(Path(tempfile.mkdtemp()) / "model", arrays(model, head), kind=kind, shape=SHAPE, precision=precision)
    return TorchRuntime(model, head=head, name="tiny"), OnnxRuntime.from_directory(folder, threads=1, name="tiny")


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_drafts_are_those_of_the_torch_backend(kind: str) -> None:
    """Case 6.3: what the head is fed and what it recycles are the same stages, at every depth."""
    ours, theirs = (list(reversed(pair(kind)))[at] for at in (0, 1))
    found: list[Any] = []
    for runtime in (ours, theirs):
        runtime.open_session(0, Sampling(), True)
        rows = forward(runtime, 0, 0, PROMPT, "all", logits=True)
        drafts = [draft(runtime, 0, current, 8) for current in range(30)]
        runtime.drop_session(0)
        found.append((np.asarray(torch.as_tensor(rows.logits)), rows.predictions, drafts))
    assert np.abs(found[0][0] - found[1][0]).max() < 1e-4
    assert found[0][1:] == found[1][1:]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_the_torch_backend_with_spans_and_without(kind: str) -> None:
    theirs, ours = pair(kind)
    for width in (0, 2, 3):
        assert decode(ours, PROMPT, width, 70).tokens == decode(theirs, PROMPT, width, 70).tokens


def test_cases_6_3_and_6_4_a_head_that_is_right_under_these_stages_alone_is_always_right() -> None:
    model, head = successor_model()
    shape = Shape(hidden=24, inner=48, heads=2, kv=1, dim=4, vocabulary=24)
    folder = export(Path(tempfile.mkdtemp()) / "model", arrays(model, head), kind="ordinary", shape=shape)
    runtime = OnnxRuntime.from_directory(folder, threads=1)
    run = decode(runtime, (0, 1, 2), 5, 60)
    assert run.tokens == tuple((3 + at) % 24 for at in range(60))
    assert all(drafted == matched for drafted, matched in run.spans)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("source", "width"), [("auto", 3), ("prompt_lookup", 4), ("none", 0)])
def test_traces_are_checked_replayed_and_run_again_across_the_backends(kind: str, source: str, width: int) -> None:
    theirs, ours = pair(kind)
    logs = [recorded(one, width, source) for one in (theirs, ours)]
    for log in logs:
        assert all(found.status == "holds" for found in check_records(log)) and Replayer().replay(log).equal
        for live in (theirs, ours):
            report = rerun(log, live)
            assert (report.verdict, report.compared, report.bound) == ("equal", 32, 1e-3), report.sentence
    assert diff(*logs).verdict == "equal"


def test_another_models_first_token_is_a_defect_with_both_margins() -> None:
    """Case 4.2: margins of whole units are no rounding, whatever the backend."""
    report = rerun(recorded(pair("genai")[0]), pair("genai", seed=5)[1])
    assert (report.verdict, report.status) == ("defect", "violated")
    assert report.difference is not None and report.difference.recorded_margin is not None and report.difference.margin is not None
    assert max(report.difference.margin, report.difference.recorded_margin) > report.bound


def test_float16_may_part_at_a_near_tie_under_the_bound_of_its_dtype() -> None:
    """Case 4.1."""
    report = rerun(recorded(pair("genai")[0]), pair("genai", precision="float16")[1])
    assert report.bound == 0.25
    assert report.verdict in ("equal", "near_tie"), report.sentence


def test_logprobs_and_margins_are_those_of_the_torch_backend() -> None:
    """Case 4.8, across backends."""
    theirs, ours = pair("genai")
    found: list[Any] = []
    for runtime in (theirs, ours):
        start(runtime, PROMPT, session=3)
        found.append(forward(runtime, 3, len(PROMPT), (1, 2, 3), "all", canonical=False, margins=True, logprobs=True))
        runtime.drop_session(3)
    assert found[0].margins == pytest.approx(found[1].margins, abs=1e-4)
    assert found[0].logprobs == pytest.approx(found[1].logprobs, abs=1e-4)


@cache
def embedded_pair() -> tuple[TorchRuntime, OnnxRuntime]:
    return TorchRuntime.from_pretrained(embedded(), name=EMBEDDED), OnnxRuntime.from_directory(embedded(), threads=1, name=EMBEDDED)


@pytest.mark.parametrize("prompt", ["def read_lines(path):", "class Stack:\n", "import os\nfor name in sorted("])
def test_the_embedded_model_decodes_the_same_tokens_in_both_backends(prompt: str) -> None:
    """Also each other's traces: recorded by one, run again on the other. A near tie is allowed, as docs/explanation/numerics.md has it."""
    theirs, ours = embedded_pair()
    assert ours.info.stop_tokens == theirs.info.stop_tokens and ours.info.context_length == theirs.info.context_length
    assert ours.tokenizer is not None and ours.info.row_exact and theirs.info.row_exact
    ids = ours.tokenizer(prompt)["input_ids"]
    logs: list[list[Record]] = []
    for runtime in (theirs, ours):
        outputs: list[Any] = []
        for width in (0, 3):
            log: list[Record] = []
            with Decoder(runtime, policy=width, observers=(log.append,), extras=Extras(margins=True)) as decoder:
                outputs.append(decoder.generate(ids, max_tokens=80).tokens)
            logs.append(log)
        assert outputs[0] == outputs[1]
    for log, live in ((logs[1], ours), (logs[3], theirs)):
        report = rerun(log, live)
        assert report.verdict in ("equal", "near_tie") and report.bound == 1e-3, report.sentence
    assert diff(logs[1], logs[3]).verdict in ("equal", "near_tie")
