"""A visible word where the tests of this folder cannot run."""

from importlib.util import find_spec

import pytest


def test_what_an_export_is_tested_with_is_installed():
    missing = [name for name in ("torch", "transformers", "safetensors", "onnx", "onnxruntime", "numpy") if find_spec(name) is None]
    if missing:
        pytest.skip(f"the tests of the export need {', '.join(missing)}: pip install 'spanfold[torch,onnx,dev]'")
