"""The PyTorch backend: a transformers causal LM as the target, the checkpoint's own MTP layer as its draft head.

    >>> from spanfold.backends.torch import TorchRuntime               # doctest: +SKIP
    >>> runtime = TorchRuntime.from_pretrained("path/to/checkpoint")   # doctest: +SKIP

What it takes: safetensors checkpoints of the families in ``families``, with their own MTP head or none; ``CONTRACTS`` says how each
family lays its head out. CPU and CUDA; float32, bfloat16, float16.
"""

from __future__ import annotations

from .caches import RowCache
from .families import ARCHITECTURES, CONTRACTS, Contract
from .head import MtpHead
from .runtime import TorchRuntime

__all__ = ["ARCHITECTURES", "CONTRACTS", "Contract", "MtpHead", "RowCache", "TorchRuntime"]
