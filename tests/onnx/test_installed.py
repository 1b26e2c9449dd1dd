"""A visible word where the tests of this folder cannot run."""

from optional import needed


def test_onnx_runtime_is_installed() -> None:
    needed(("onnxruntime", "onnx", "numpy", "safetensors", "tokenizers"), "spanfold[onnx,dev]")
