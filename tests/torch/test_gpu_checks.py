"""benchmarks/gpu_checks.py: a dry run on the CPU goes through everything that a GPU run does, and a wrong token fails it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu_checks
import pytest
import torch
from attrs import evolve
from gpubench.costs import decoded
from gpubench.models import LARGE, TINY, clear_model, head_of, largest

from spanfold.backends.torch import TorchRuntime
from spanfold.engine import Decoder

GIB = 2**30


def test_a_dry_run_goes_through_every_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "gpu.json"
    assert gpu_checks.main(["--dry-run", "--json", str(file)]) == 0
    report: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert set(report["correctness"]) == {"float32", "bfloat16"}
    assert all(found["runs"] == 6 and not found["differ"] for found in report["correctness"].values())
    big = report["large"]
    assert set(big["verify_ms"]) == {"1", "2", "4"} and set(big["draft_ms"]) == {"1", "3"}
    assert all(row["identical"] and row["measured"] is not None for row in big["acceptance"])
    spans = {(row["rate"], row["k"]): row["tokens_per_span"] for row in big["acceptance"]}
    assert spans[0.0, 3] == 1.0 and spans[1.0, 1] == 2.0 and 1.0 < spans[0.7, 1] < 2.0
    assert spans[1.0, 3] > 3.0  # the last span is cut by the end of the turn
    assert "skipped" in big["graphs"]
    assert "skipped" in report["onnx"] or (report["onnx"]["differ"] == [] and report["onnx"]["providers"] == ["CPUExecutionProvider"])
    out = capsys.readouterr().out
    assert "graphs: " in out and "0 differ elsewhere" in out


def test_other_tokens_fail_the_run_and_have_no_speed_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def wrong(runtime: Any, work: Any, width: int, prompt: Any, serial: Any = None) -> Any:
        run = decoded(runtime, work, width, prompt, serial)
        if width != 3:
            return run
        return evolve(run, tokens=(*run.tokens[:5], run.tokens[5] + 1, *run.tokens[6:]), verdict="differs")

    monkeypatch.setattr(gpu_checks, "decoded", wrong)
    assert gpu_checks.main(["--dry-run"]) == 1
    out = capsys.readouterr().out
    assert "float32: 6 runs, 0 part at near ties, 3 differ elsewhere" in out
    assert out.count("tokens differ") == 3  # one per rate


def test_without_a_device_it_says_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu_checks.main([]) == 2
    assert "--dry-run" in capsys.readouterr().err


def test_the_largest_shape_that_fits_is_taken():
    assert LARGE[0].parameters == pytest.approx(5.9e9, rel=0.03)
    assert [largest(gib * GIB).name for gib in (139, 16, 10, 6, 0)] == ["7B", "7B", "3B", "1B", "tiny"]
    assert list(LARGE) == sorted(LARGE, key=lambda shape: -shape.parameters)


def test_the_parameters_of_a_shape_are_those_of_its_model():
    model = clear_model(TINY, torch.float32, "cpu")
    norms = sum(value.numel() for name, value in model.named_parameters() if "norm" in name)
    assert sum(value.numel() for value in model.parameters()) == TINY.parameters + norms


def test_the_clear_model_walks_through_all_its_ids_in_any_dtype():
    """Its best score leads by far more than rounding, so runs of any width have one output; and it never repeats an 8-gram."""
    outputs: set[tuple[int, ...]] = set()
    for dtype in (torch.float32, torch.bfloat16):
        model = clear_model(TINY, dtype, "cpu")
        runtime = TorchRuntime(model, head=head_of(model, dtype, "cpu"), name="clear")
        with Decoder(runtime, policy=2) as decoder:
            outputs.add(decoder.generate([5, 6, 7], max_tokens=TINY.vocabulary, stop_tokens=()).tokens)
    (tokens,) = outputs
    assert sorted(tokens) == list(range(TINY.vocabulary))
