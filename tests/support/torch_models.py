"""Tiny checkpoints for the torch backend's tests, made from fixed seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from spanfold.backends.torch import MtpHead, TorchRuntime

FAMILIES = ("llama", "qwen2", "qwen3")
VOCABULARY = 61
LAYERS = 2
CONTEXT = 96

_KINDS: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}


def tiny_config(family: str, **changes: Any) -> Any:
    """A two-layer model with grouped heads; Qwen3's heads are wider than hidden / heads, as in its real checkpoints."""
    values: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16 if family == "qwen3" else 8,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "bos_token_id": 1,
        "eos_token_id": None,
        "pad_token_id": 0,
        "tie_word_embeddings": family == "qwen2",
    }
    return _KINDS[family][0](**(values | changes))


def tiny_model(family: str, seed: int = 0, **changes: Any) -> Any:
    """A randomly initialised model. Weights are wide enough for margins far above rounding, norms away from one."""
    config = tiny_config(family, **changes)
    model = _KINDS[family][1](config).eval()
    randomise(model, seed)
    return model


def tiny_head(model: Any, seed: int = 1) -> MtpHead:
    head = MtpHead(model)
    randomise(head, seed)
    return head.eval().requires_grad_(False)


def randomise(module: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if "norm" in name and parameter.ndim == 1:
                parameter.copy_(1 + 0.3 * noise)
            elif "embed_tokens" in name:
                parameter.copy_(noise)
            else:
                parameter.copy_(0.25 * noise)


def tiny_runtime(family: str, seed: int = 0, *, head: bool = True, **options: Any) -> TorchRuntime:
    model = tiny_model(family, seed)
    return TorchRuntime(model, head=tiny_head(model, seed + 1) if head else None, name=f"tiny {family}", **options)


def parts(runtime: Any) -> dict[str, tuple[Any, str]]:
    """Where to break into a runtime: a name, and the object and attribute that are called there; whichever path it runs."""
    target, drafting = runtime._target, runtime._drafting
    if hasattr(target, "stack"):
        found = {f"layer {index}": (layer._down, "plus") for index, layer in enumerate(target.stack.layers)}
        found |= {"norm": (target.stack, "_norm"), "output": (target, "output")}
        return found if drafting is None else found | {"head": (drafting, "_join")}
    model = runtime._model
    found = {f"layer {index}": (layer.mlp, "forward") for index, layer in enumerate(model.model.layers)}
    found |= {"norm": (model.model.norm, "forward"), "output": (model.lm_head, "forward")}
    return found if drafting is None else found | {"head": (runtime._head.layers[0].eh_proj, "forward")}


def head_tensors(head: MtpHead, layer: int = LAYERS) -> dict[str, torch.Tensor]:
    """The head's tensors under their names in DeepSeek layout."""
    return {f"model.layers.{layer}.{MtpHead.leaf(name)}": value.clone() for name, value in head.state_dict().items()}


def save_checkpoint(folder: Path, model: Any, head: dict[str, torch.Tensor] | None, *, shards: bool = False, **config: Any) -> Path:
    """Write a Hugging Face directory; ``shards`` puts the head into a file of its own, named by an index."""
    folder.mkdir(parents=True, exist_ok=True)
    saved = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float32"}
    if head is not None:
        saved["num_nextn_predict_layers"] = 1
    (folder / "config.json").write_text(json.dumps(saved | config))
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    if not shards:
        save_file(tensors | (head or {}), folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    parts = {"model-00001-of-00002.safetensors": tensors, "model-00002-of-00002.safetensors": head or {}}
    for name, part in parts.items():
        save_file(part, folder / name, metadata={"format": "pt"})
    index = {key: name for name, part in parts.items() for key in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder


def successor_model(period: int = 24) -> tuple[Any, MtpHead]:
    """A target and a head that are right about each other if, and only if, the contract's hidden stages are used.

    The target: token t is followed by t + 1 (mod period), whatever came before. Its layers add nothing, so its hidden state
    after the final norm is the one-hot of its token with the sign of the norm's weight, +1 for even and -1 for odd tokens.
    The head ignores the embedding side and reads the token off the hidden side, *expecting that sign*; its own final norm
    puts the sign of the next token on what it recycles. Fed a state from before the norm (the unsigned one-hot), or recycling
    one from before shared_head.norm, it is wrong at every odd token.
    """
    changes = {"vocab_size": period, "hidden_size": period, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    model = tiny_model("llama", **changes)
    head = tiny_head(model)
    sign = torch.tensor([1.0 if t % 2 == 0 else -1.0 for t in range(period)])
    follow = torch.zeros(period, period)
    for t in range(period):
        follow[(t + 1) % period, t] = 1.0
    with torch.no_grad():
        for module in (model, head):
            for name, parameter in module.named_parameters():
                parameter.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight.copy_(torch.eye(period))
        model.model.norm.weight.copy_(sign)
        model.lm_head.weight.copy_(follow * sign)
        head.layers[0].norm.weight.copy_(sign)
        head.layers[0].eh_proj.weight[:, period:] = follow * sign
    return model, head
