"""economize: the checkpoint's MTP layer through its ``vendor_mtp`` technique.

economize finds a vendor's layout by the model type, and no family of its table lists ``llama``. Its documented way for a new
layout is to register an ``MTPFamily``: DeepSeek-V3's tensor names, embedding side first, the first embedding not zeroed, the state
after the head's norm recycled. It writes the head's rows one position lower than they were trained at, which rotary embeddings
do not see (only distances count). The tensors are given to the technique by its own ``state_from_vendor``.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from protocol import Handler, NotApplicable, Stamps, options, serve

FAMILY = "deepseek_layout_on_llama"


def head_tensors(folder: Path, layers: int) -> dict[str, Any]:
    """The tensors of the layers behind the last one, from the shards that hold them."""
    from safetensors import safe_open

    index = folder / "model.safetensors.index.json"
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values())) if index.is_file() else ["model.safetensors"]
    found: dict[str, Any] = {}
    for shard in shards:
        with safe_open(folder / shard, framework="pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys() if key.startswith(f"model.layers.{layers}.")}  # noqa: SIM118
    return found


def start() -> dict[str, Handler]:
    import economize
    import torch
    import transformers
    from economize.techniques.vendor_mtp import MTP_FAMILIES, MTPFamily, MTPLayout, VendorMTPConfig, state_from_vendor

    given = options()
    torch.set_num_threads(given["threads"])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    folder = Path(given["model"])
    config: Any = transformers.AutoConfig.from_pretrained(folder)
    kind: Any = getattr(transformers, config.architectures[0])
    layers = config.num_hidden_layers
    kind._keys_to_ignore_on_load_unexpected = [rf"model\.layers\.{layers}\..*"]
    base = kind.from_pretrained(folder, dtype=getattr(torch, given["dtype"])).eval()
    tensors = head_tensors(folder, layers)
    if not tensors:
        raise NotApplicable("the checkpoint has no MTP layer")
    MTP_FAMILIES.register(FAMILY, MTPFamily(MTPLayout("emb_hidden", False, "normed"), (config.model_type,)))
    model = economize.apply(base, VendorMTPConfig(family=FAMILY)).eval()
    technique = model.techniques["vendor_mtp"]
    technique.load_state_dict(state_from_vendor(tensors, FAMILY, layers), strict=True)
    eos = config.eos_token_id
    stops = set(eos if isinstance(eos, list) else [] if eos is None else [eos])

    def hello(request: dict[str, Any]) -> dict[str, Any]:
        settings: list[dict[str, Any]] = [{"label": f"cycle_length={n}", "cycle_length": n} for n in (2, 3, 4, 5)]
        settings.append({"label": "cycle_length=5, min_confidence=0.4", "cycle_length": 5, "min_confidence": 0.4})
        return {
            "versions": {"economize": economize.__version__, "transformers": transformers.__version__, "torch": str(torch.__version__)},
            "notes": ["the layout was registered as an MTPFamily of economize; a cycle of n tokens drafts n - 1"],
            "groups": {"vendor_mtp": settings},
        }

    def decode(request: dict[str, Any]) -> dict[str, Any]:
        setting = {key: value for key, value in request["setting"].items() if key != "label"}
        ids = torch.tensor(request["prompt"])
        stamps = Stamps()

        def stop(row: Any) -> bool:
            stamps.delivered(1)
            return int(row[-1]) in stops

        result = model.decode(ids, request["tokens"], decoding=economize.DecodeConfig(**setting), stop=stop)
        return stamps.reply([int(token) for token in result.tokens]) | {"accepted_per_cycle": result.mean_accepted}

    return {"hello": hello, "decode": decode}


if __name__ == "__main__":
    serve(start)
