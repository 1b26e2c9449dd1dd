"""Without ONNX Runtime none of these tests is collected, which test_installed.py says visibly."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
MISSING = [name for name in ("onnxruntime", "onnx", "numpy", "tokenizers") if find_spec(name) is None]

collect_ignore = [path.name for path in HERE.glob("test_*.py") if path.name != "test_installed.py"] if MISSING else []
