"""Tiny checkpoints for the torch backend's tests, made from fixed seeds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from spanfold.backends.torch import Contract, MtpHead, TorchRuntime

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


def successor_model(contract: Contract | None = None, layers: int = 1, period: int = 24) -> tuple[Any, MtpHead]:
    """A target and a head that are right about each other if, and only if, the head is run by the contract that it was made for.

    The target: token t is followed by t + 1 (mod period), whatever came before. Its layers add nothing, so its hidden state before
    the final norm is the one-hot of its token, and after it that one-hot in the code of the norm's weight: a sign for each token.

    A layer of the head makes of the pair (state of x, token x + 1) the state of x + 1: where x + 1 is even it reads the embedding side and
    nothing else, where it is odd the hidden side, expecting the code of what the contract gives it: the target's state as it is fed,
    its own as it is recycled, or that of the layer before. Every final norm has a code: the target's, or one of its own where the layer has
    an output matrix of its own. So a side taken for the other, a state of another stage, a layer taken for another, a norm left out or an
    offset added to its weights is wrong at some odd tokens or more. Positions do not matter: no layer looks back.

    Raises:
        ValueError: one layer, recycled, is to read its own state in another code than the target's: no single matrix does that.
    """
    changes = {"vocab_size": period, "hidden_size": period, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
    model = tiny_model("llama", **changes)
    head = MtpHead(model, contract, layers).eval().requires_grad_(False)
    made = head.contract
    plain = torch.ones(period)
    # The target's code, and one for each layer that has its own: any two part at a third of the even tokens or more.
    codes = [torch.tensor([-1.0 if t >> 1 + bit & 1 else 1.0 for t in range(period)]) for bit in range(1 + layers)]
    even = torch.tensor([1.0, 0.0] * (period // 2))
    follow = torch.roll(torch.eye(period), 1, 0)
    with torch.no_grad():
        for module in (model, head):
            for name, parameter in module.named_parameters():
                parameter.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight.copy_(torch.eye(period))
        model.model.norm.weight.copy_(codes[0])
        model.lm_head.weight.copy_(follow * codes[0])
        given = codes[0] if made.fed == "post" else plain
        first = given
        for index, layer in enumerate(cast("Any", head.layers)):
            code = codes[index + 1] if made.own_head else codes[0]
            written = plain if made.final_norm else code
            by_token, by_state = torch.diag(even * written), follow * given * ((1 - even) * written)[:, None]
            layer.eh_proj.weight.copy_(torch.cat([by_token, by_state] if made.concat == "embedding_first" else [by_state, by_token], dim=1))
            if made.final_norm:
                layer.norm.weight.copy_(code)
            if made.own_head:
                layer.head.weight.copy_(follow * code)
            given = code if made.recycled == "post" or not made.final_norm else plain
        if made.chain == "recycle" and not bool((given == first).all()):
            raise ValueError("a recycled layer cannot read two codes")
    return model, head
