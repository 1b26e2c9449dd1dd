"""What the model builder reads: ordinary checkpoints of one part each, written from a loaded model.

The builder knows no MTP layer, so the target goes without it. The head goes as a model of one layer whose embedding is left out:
its layer, the head's norm as the final norm, and the rows of the output matrix that it drafts from. What joins the embedding and
the hidden state in front of that layer is added to the graph afterwards (``graphs.py``).
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch's state dicts and transformers' configs carry partial type information.
from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from safetensors.torch import save_file

from ..torch.config import stop_tokens
from ..torch.head import MtpHead
from ..torch.loading import Loaded

__all__ = ["END_IDS", "ONE_PART", "TEXT_FILES", "head_dim", "text_files", "without_made_up_ids", "write_head", "write_target"]

#: Keys of a config that speak of MTP layers; the builder would refuse them, or look for layers that are not there.
ONE_PART: Final = ("num_mtp_layers", "num_nextn_predict_layers")
#: Files of a checkpoint that are about text; the names begin so.
TEXT_FILES: Final = ("tokenizer", "generation_config", "special_tokens", "added_tokens", "vocab", "merges", "chat_template")
#: Ids that the builder must know, whether or not the model has them.
END_IDS: Final = ("bos_token_id", "eos_token_id", "pad_token_id")
_JOINT: Final = ("enorm.weight", "hnorm.weight", "eh_proj.weight")


def text_files(folder: Path) -> list[Path]:
    """The checkpoint's files that are about text, without weights."""
    return sorted(path for path in folder.iterdir() if path.is_file() and path.name.startswith(TEXT_FILES))


def head_dim(loaded: Loaded) -> int:
    """Numbers per attention head."""
    config = loaded.model.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def write_target(loaded: Loaded, checkpoint: Path, folder: Path) -> None:
    """The target alone, in float32."""
    weights = {name: tensor.contiguous() for name, tensor in loaded.model.state_dict().items()}
    config = _config(loaded)
    if not stop_tokens(loaded.model, loaded.tokenizer):
        config |= dict.fromkeys(END_IDS, 0)
    if config.get("tie_word_embeddings"):
        weights.pop("lm_head.weight", None)
    _write(folder, config, weights)
    for path in text_files(checkpoint):
        shutil.copyfile(path, folder / path.name)
    if loaded.tokenizer is None:
        _write_tokenizer(folder)


def without_made_up_ids(loaded: Loaded, genai_config: Path) -> None:
    """Take the end ids that were made up for the builder out of what it wrote."""
    if stop_tokens(loaded.model, loaded.tokenizer):
        return
    content = json.loads(genai_config.read_text(encoding="utf-8"))
    for key in END_IDS:
        content["model"].pop(key, None)
    genai_config.write_text(json.dumps(content, indent=4) + "\n", encoding="utf-8")


def write_head(loaded: Loaded, folder: Path) -> None:
    """The head's layer as a model of one layer, and beside it, in ``joint.safetensors``, what goes in front of it."""
    head: Any = loaded.head
    scored = loaded.model.lm_head.weight
    if loaded.draft_vocab is not None:
        scored = scored[loaded.draft_vocab]
    leaves = {MtpHead.leaf(name): tensor.contiguous() for name, tensor in head.state_dict().items()}
    joint = {name: leaves.pop(name) for name in _JOINT}
    if loaded.draft_vocab is not None:
        joint["ids"] = loaded.draft_vocab.contiguous()
    weights = {"model.norm.weight": leaves.pop("shared_head.norm.weight"), "lm_head.weight": scored.contiguous().clone()}
    weights |= {f"model.layers.0.{leaf}": tensor for leaf, tensor in leaves.items()}
    # Left out of the graph; but transformers wants the checkpoint to be whole.
    weights["model.embed_tokens.weight"] = scored.new_zeros(scored.shape)
    config: dict[str, Any] = _config(loaded) | {"num_hidden_layers": 1, "tie_word_embeddings": False, "vocab_size": scored.shape[0]}
    if config.get("layer_types"):
        config["layer_types"] = list(config["layer_types"])[-1:]
    # Ids of the whole vocabulary, of which this one's may be a part; nothing here stops at them, but the builder wants some.
    config |= dict.fromkeys(END_IDS, 0)
    _write(folder, config, weights)
    _write_tokenizer(folder)
    save_file(joint, folder / "joint.safetensors")


def _config(loaded: Loaded) -> dict[str, Any]:
    config: dict[str, Any] = loaded.model.config.to_dict()
    return {key: value for key, value in config.items() if key not in ONE_PART} | {"dtype": "float32"}


def _write_tokenizer(folder: Path) -> None:
    # The builder opens a tokenizer whether or not there is text; this one never reads any, and is not kept.
    content = {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}), encoding="utf-8")


def _write(folder: Path, config: dict[str, Any], weights: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
