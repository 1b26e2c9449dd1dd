"""The PyTorch backend: a transformers causal LM as the target, the checkpoint's own MTP layer as its draft head.

    >>> from spanfold.backends.torch import TorchRuntime               # doctest: +SKIP
    >>> runtime = TorchRuntime.from_pretrained("path/to/checkpoint")   # doctest: +SKIP

What it takes: Llama, Qwen2 and Qwen3 checkpoints with full attention, in safetensors; a head in DeepSeek layout
(``model.layers.{N}.*`` behind the last of N target layers), or none. CPU and CUDA; float32, bfloat16, float16.
"""

from __future__ import annotations

from .caches import RowCache
from .families import FAMILIES
from .head import MtpHead
from .runtime import TorchRuntime

__all__ = ["FAMILIES", "MtpHead", "RowCache", "TorchRuntime"]
