"""Randomly initialised models: small ones whose choices are close, and one as large as the device holds whose choices are clear."""

from __future__ import annotations

from typing import Any, Final

import torch
from attrs import asdict, frozen
from transformers import LlamaConfig, LlamaForCausalLM

from spanfold.backends.torch import MtpHead


@frozen(kw_only=True)
class Shape:
    """A Llama's measures."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    mlp: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Weights of the target, embedding and output matrix included (untied)."""
        head_dim = self.hidden // self.heads
        attention = self.hidden * head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + 3 * self.hidden * self.mlp) + 2 * self.vocabulary * self.hidden

    def config(self) -> LlamaConfig:
        """The transformers config."""
        return LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.mlp,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            max_position_embeddings=8192,
            tie_word_embeddings=False,
            eos_token_id=None,
            bos_token_id=None,
            pad_token_id=None,
        )


LARGE: Final = (
    Shape(name="7B", hidden=4096, layers=32, heads=32, kv_heads=8, mlp=11008, vocabulary=32000),
    Shape(name="3B", hidden=3072, layers=28, heads=24, kv_heads=8, mlp=8192, vocabulary=32000),
    Shape(name="1B", hidden=2048, layers=16, heads=16, kv_heads=8, mlp=8192, vocabulary=32000),
)
SMALL: Final = Shape(name="small", hidden=512, layers=4, heads=8, kv_heads=4, mlp=1024, vocabulary=4096)
TINY: Final = Shape(name="tiny", hidden=64, layers=2, heads=4, kv_heads=2, mlp=128, vocabulary=256)

_SHARE: Final = 0.7  # of the free memory that the weights may take; the rest is for caches, the head, and building
#: Standard deviation of the scores of ``small_model``, as large as those of trained models, so that the same bounds hold.
_SCORES: Final = 8.0
#: Against it what the layers add to the residual is small, so the last token decides the next one.
_EMBEDDING: Final = 64.0


def largest(free: int) -> Shape:
    """The largest shape whose bfloat16 weights fit into ``free`` bytes; the tiny one where none does."""
    return next((shape for shape in LARGE if 2 * shape.parameters <= _SHARE * free), TINY)


def _built(shape: Shape, dtype: torch.dtype, device: str) -> Any:
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # a float32 model of this size may not fit while it is converted
    try:
        with torch.device(device):
            model: Any = LlamaForCausalLM(shape.config())
    finally:
        torch.set_default_dtype(before)
    return model.to(dtype).eval().requires_grad_(False)


def head_of(model: Any, dtype: torch.dtype, device: str) -> MtpHead:
    """A randomly initialised head."""
    torch.manual_seed(1)
    with torch.device(device):
        return MtpHead(model).to(dtype).eval().requires_grad_(False)


def small_model(shape: Shape, dtype: torch.dtype, device: str) -> Any:
    """Every token depends on the whole prefix, so a stale row, a wrong mask or a wrong position changes the output."""
    model = _built(shape, dtype, device)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=_SCORES / shape.hidden**0.5)
        for layer in model.model.layers:
            for module in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj, layer.self_attn.o_proj):
                module.weight.normal_(std=2 / shape.hidden**0.5)
    return model


def clear_model(shape: Shape, dtype: torch.dtype, device: str) -> Any:
    """A model whose best score is far above the others, by any rounding: its output walks through a permutation of the ids.

    For costs alone. It computes what any model of its shape computes, and its tokens do not depend on how a kernel sums, so runs
    of different widths have the same output and can be compared.
    """
    model = _built(shape, dtype, device)
    with torch.no_grad():
        embedding = model.model.embed_tokens.weight.normal_(std=_EMBEDDING)
        generator = torch.Generator().manual_seed(2)
        order = torch.randperm(shape.vocabulary, generator=generator).to(device)
        # One cycle through all ids: after order[i] comes order[i + 1].
        model.lm_head.weight[order.roll(-1)] = embedding[order] / _EMBEDDING
    return model


def described(shape: Shape) -> dict[str, Any]:
    """The shape for the report."""
    return asdict(shape) | {"parameters": shape.parameters}
