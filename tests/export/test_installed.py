"""A visible word where the tests of this folder cannot run."""

from optional import needed


def test_what_an_export_is_tested_with_is_installed() -> None:
    needed(("torch", "transformers", "safetensors", "onnx", "onnxruntime", "numpy"), "spanfold[torch,onnx,dev]")
