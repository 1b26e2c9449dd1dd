"""The ONNX Runtime backend: an exported target, and its MTP head as a small session of its own. Needs no torch.

    >>> from spanfold.backends.onnx import OnnxRuntime                 # doctest: +SKIP
    >>> runtime = OnnxRuntime.from_directory("path/to/export")         # doctest: +SKIP

What it takes: a directory with ``model.onnx`` whose caches are ``past_key_values.{i}.key/value`` (docs/reference/onnx-models.md), as
onnxruntime-genai's model builder and the usual exporters write it. CPU and CUDA, each by explicit choice; float32, float16 and
quantised weights.
"""

from __future__ import annotations

from .runtime import OnnxRuntime

__all__ = ["OnnxRuntime"]
