"""Checkpoints as ONNX models: ``spanfold export`` from Python.

``export`` writes a directory that the ONNX Runtime backend opens: the target by the model builder of onnxruntime-genai, its MTP layer
as a session of its own, a manifest. The builder runs in an environment beside this one (``environments``). Importing this package
loads neither torch nor transformers.
"""

from __future__ import annotations

from .exporting import PRECISIONS, Exported, export

__all__ = ["PRECISIONS", "Exported", "export"]
