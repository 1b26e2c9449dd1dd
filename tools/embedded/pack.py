"""Write the trained model as an ordinary Hugging Face directory: trunk and MTP layer in one safetensors file, tokenizer, config.

python tools/embedded/pack.py RUN DIR            RUN: what train.py was given as --out
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import bpe
import stdlib_text
import torch
from network import fresh
from safetensors.torch import save_file

from spanfold.backends.torch.head import MtpHead


def pack(run: Path, folder: Path) -> None:
    """Write ``folder`` from the checkpoint of ``run``; weights in bfloat16."""
    found = stdlib_text.collect()
    tokenizer = bpe.train([found.train[name] for name in sorted(found.train)])
    model, head = fresh(len(tokenizer), int(tokenizer.eos_token_id))
    saved: dict[str, Any] = torch.load(run / "checkpoint.pt", weights_only=True)
    model.load_state_dict(saved["model"])
    head.load_state_dict(saved["head"])
    model.config.num_mtp_layers = 1
    model.config.dtype = "bfloat16"
    model.config.architectures = ["LlamaForCausalLM"]
    tensors = {name: tensor for name, tensor in model.state_dict().items() if name != "lm_head.weight"}  # tied
    prefix = f"model.layers.{model.config.num_hidden_layers}."
    tensors |= {prefix + MtpHead.leaf(name): tensor for name, tensor in head.state_dict().items()}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in sorted(tensors.items())},
        folder / "model.safetensors",
        metadata={"format": "pt"},
    )
    model.config.save_pretrained(folder)
    model.generation_config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # The class that every transformers knows; newer ones write a name of their own.
    settings = folder / "tokenizer_config.json"
    known = json.loads(settings.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    settings.write_text(json.dumps(known, indent=2) + "\n", encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)
    print(f"{folder}: {sum(path.stat().st_size for path in folder.iterdir()):,} bytes, trained for {saved['done']} steps")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    pack(asked.run, asked.folder)


if __name__ == "__main__":
    main()
