"""The conformance kit on the torch runtime: tiny random models of each family, on both paths, and the embedded model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest
import torch
from torch_models import parts, tiny_head, tiny_model

from spanfold.backends.conformance import conform
from spanfold.backends.models import embedded
from spanfold.backends.torch import TorchRuntime
from spanfold.backends.torch.loading import load

#: Measured for transformers' modules in float32: docs/explanation/numerics.md. The decode path needs none for spans; for prompts it does.
BOUND = 1e-3


@contextmanager
def half_way(runtime: TorchRuntime) -> Iterator[None]:
    """The layers have run, the norm behind them raises."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("half-way")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*parts(runtime)["norm"], fail)
        yield


@cache
def weights(family: str) -> Any:
    model = tiny_model(family)
    return model, tiny_head(model)


@cache
def shipped() -> Any:
    return load(embedded(), device="cpu", dtype="float32", attn_implementation=None, draft=True, revision=None)


def tiny(family: str, *, head: bool = True, brief: bool = True, **options: Any) -> type:
    """``brief``: fewer rounds and examples, for what the tests beside this one try too."""

    def make() -> TorchRuntime:
        model, its_head = weights(family)
        return TorchRuntime(model, head=its_head if head else None, name=f"tiny {family}", **options)

    if brief:
        return conform(make, margin=BOUND, fail=half_way, rounds=6, examples=4)
    return conform(make, margin=BOUND, fail=half_way)


def shipped_runtime(**options: Any) -> TorchRuntime:
    loaded = shipped()
    return TorchRuntime(loaded.model, head=loaded.head, name="pysource-2m", draft_vocab=loaded.draft_vocab, **options)


TestLlama = tiny("llama", brief=False)
TestModules = tiny("llama", modules=True, brief=False)
TestQwen2 = tiny("qwen2", draft_depth=3, packed=False, row_width=1)
TestQwen3 = tiny("qwen3", draft_context_length=40, draft_vocab=torch.arange(0, 61, 2))
TestWithoutHead = tiny("llama", head=False)
TestEmbedded = conform(shipped_runtime, margin=BOUND, fail=half_way, rounds=6, examples=4)
