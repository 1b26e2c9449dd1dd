"""transformers' own ``generate``: plain, with ``prompt_lookup_num_tokens``, and with ``use_mtp=True``.

transformers knows MTP layers of some classes and not of Llama's: its ``MtpModel`` reads the tensors of the layers behind the last
one that the class says to ignore on load, so the class attribute ``_keys_to_ignore_on_load_unexpected`` is set here; the config
says ``num_mtp_layers``. Nothing else of transformers is changed. With one MTP layer it drafts one token per forward.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false
from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from protocol import Handler, Stamps, options, serve


class Streamer:
    """transformers' streamer protocol: the prompt first, then the tokens as they come."""

    def __init__(self, stamps: Stamps) -> None:
        self._stamps = stamps
        self._prompt = True

    def put(self, value: Any) -> None:
        if not self._prompt:
            self._stamps.delivered(value.numel())
        self._prompt = False

    def end(self) -> None:
        pass


def start() -> dict[str, Handler]:
    import torch
    import transformers

    given = options()
    torch.set_num_threads(given["threads"])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config: Any = transformers.AutoConfig.from_pretrained(given["model"])
    kind: Any = getattr(transformers, config.architectures[0])
    mtp = bool(getattr(config, "num_mtp_layers", 0))
    if mtp:
        ignored = kind._keys_to_ignore_on_load_unexpected or []
        kind._keys_to_ignore_on_load_unexpected = [*ignored, rf"model\.layers\.{config.num_hidden_layers}\..*"]
    model = kind.from_pretrained(given["model"], dtype=getattr(torch, given["dtype"])).eval()

    def hello(request: dict[str, Any]) -> dict[str, Any]:
        groups: dict[str, Any] = {
            "generate": [{"label": "plain"}],
            "prompt lookup": [{"label": f"prompt_lookup_num_tokens={n}", "prompt_lookup_num_tokens": n} for n in (2, 3, 5, 10)],
        }
        notes: list[str] = []
        if mtp:
            groups["use_mtp"] = [{"label": "use_mtp=True", "use_mtp": True}]
            notes.append(
                f"the MTP layout was registered for {config.architectures[0]} by its _keys_to_ignore_on_load_unexpected; "
                "one MTP layer, so one drafted token per forward (compare with our k=1)"
            )
        return {
            "versions": {"transformers": transformers.__version__, "torch": str(torch.__version__)},
            "notes": notes,
            "groups": groups,
        }

    def decode(request: dict[str, Any]) -> dict[str, Any]:
        more = {key: value for key, value in request["setting"].items() if key != "label"}
        ids = torch.tensor([request["prompt"]])
        stamps = Stamps()
        out = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=request["tokens"],
            do_sample=False,
            streamer=Streamer(stamps),
            **more,
        )
        return stamps.reply(out[0, ids.shape[1] :].tolist())

    return {"hello": hello, "decode": decode}


if __name__ == "__main__":
    serve(start)
