"""Without torch none of these tests is collected, which test_installed.py says visibly; some need the export environment besides."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

HERE = Path(__file__).parent
MISSING = [name for name in ("torch", "transformers", "safetensors", "onnx", "onnxruntime", "numpy") if find_spec(name) is None]

collect_ignore = [path.name for path in HERE.glob("test_*.py") if path.name != "test_installed.py"] if MISSING else []


@pytest.fixture(scope="session")
def exporters() -> Path:
    """An interpreter that has the exporters: $SPANFOLD_EXPORT_PYTHON, or that of the environment that the command makes."""
    from spanfold.backends.export.exporting import export_python
    from spanfold.engine.errors import ConfigError

    try:
        return export_python(os.environ.get("SPANFOLD_EXPORT_PYTHON"), None, lambda message: None)
    except ConfigError as error:
        pytest.skip(f"the export environment cannot be had here: {error}")
