"""What this distribution announces in the entry-point group ``spanfold.backends``. Importing this loads no backend."""

from __future__ import annotations

from ..engine.errors import ConfigError
from ..engine.registry import Backend, Opened, OpenOptions

__all__ = ["ONNX", "SCRIPTED", "TORCH"]


def _open_scripted(options: OpenOptions) -> Opened:
    from .scripted.toy import ByteText, encode, open_toy

    if options.model not in (None, "toy"):
        raise ConfigError(f"the scripted backend has one model, 'toy', and no {options.model!r}; use --backend torch for a directory")
    for name in ("device", "dtype"):
        if getattr(options, name) is not None:
            raise ConfigError(f"the scripted backend runs in plain Python: leave out --{name}")
    return Opened(runtime=open_toy(drafting=options.drafting), text=ByteText(), encode=encode)


def _open_torch(options: OpenOptions) -> Opened:
    from .tokenizer_text import encoder, from_transformers
    from .torch.opening import open_model

    opened = open_model(options.model, device=options.device, dtype=options.dtype, drafting=options.drafting, progress=options.progress)
    if opened.tokenizer is None:
        opened.runtime.close()
        raise ConfigError(
            f"{options.model} has no tokenizer (tokenizer.json or the like), so it has no text; use its runtime from Python with ids"
        )
    return Opened(runtime=opened.runtime, text=from_transformers(opened.tokenizer), encode=encoder(opened.tokenizer))


def _open_onnx(options: OpenOptions) -> Opened:
    from .onnx.opening import open_model
    from .tokenizer_text import encoder, from_transformers

    opened = open_model(options.model, device=options.device, dtype=options.dtype, drafting=options.drafting, progress=options.progress)
    if opened.tokenizer is None:
        opened.runtime.close()
        raise ConfigError(f"{options.model} has no tokenizer.json, so it has no text; use its runtime from Python with ids")
    return Opened(runtime=opened.runtime, text=from_transformers(opened.tokenizer), encode=encoder(opened.tokenizer))


SCRIPTED = Backend(
    name="scripted",
    summary="a toy model in plain Python that recites a text; for trying things out and for tests",
    default_model="toy",
    open=_open_scripted,
)
TORCH = Backend(
    name="torch",
    summary="transformers checkpoints of the families with native MTP (DeepSeek, GLM, Qwen, ...), on CPU or CUDA",
    extra="torch",
    needs=("torch", "transformers", "safetensors", "gguf"),
    default_model="pysource-2m, which continues Python source; smollm2-135m is the larger one, assembled on first use",
    open=_open_torch,
)
ONNX = Backend(
    name="onnx",
    summary="exported models on ONNX Runtime, with an MTP head as a graph of its own, on CPU or CUDA; needs no torch",
    extra="onnx",
    needs=("onnxruntime", "numpy", "safetensors", "tokenizers"),
    default_model="pysource-2m, which continues Python source",
    open=_open_onnx,
)
