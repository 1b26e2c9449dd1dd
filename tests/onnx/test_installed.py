"""A visible word where the tests of this folder cannot run."""

from importlib.util import find_spec

import pytest


def test_onnx_runtime_is_installed():
    missing = [name for name in ("onnxruntime", "onnx", "numpy", "tokenizers") if find_spec(name) is None]
    if missing:
        pytest.skip(f"the tests of the ONNX backend need {', '.join(missing)}: pip install 'spanfold[onnx,dev]'")
