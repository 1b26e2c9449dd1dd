"""onnxruntime-genai's own generator on an exported directory, by the protocol of the peers: greedy, one sequence, no speculation."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))

from protocol import Handler, Stamps, options, serve


def start() -> dict[str, Handler]:
    import onnxruntime_genai as genai

    given = options()
    config = genai.Config(given["model"])
    threads = {"intra_op_num_threads": given["threads"], "inter_op_num_threads": 1}
    config.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
    model = genai.Model(config)

    def hello(request: dict[str, Any]) -> dict[str, Any]:
        return {
            "versions": {name: version(name) for name in ("onnxruntime-genai", "onnxruntime")},
            "notes": ["its Generator, greedy, past and present in one buffer"],
            "groups": {"Generator": [{"label": "greedy"}]},
        }

    def decode(request: dict[str, Any]) -> dict[str, Any]:
        prompt: list[int] = request["prompt"]
        search = genai.GeneratorParams(model)
        search.set_search_options(do_sample=False, max_length=len(prompt) + request["tokens"], batch_size=1)
        stamps = Stamps()
        generator = genai.Generator(model, search)
        generator.append_tokens(prompt)
        tokens: list[int] = []
        while not generator.is_done():
            generator.generate_next_token()
            tokens.append(int(generator.get_next_tokens()[0]))
            stamps.delivered(1)
        return stamps.reply(tokens)

    return {"hello": hello, "decode": decode}


if __name__ == "__main__":
    serve(start)
