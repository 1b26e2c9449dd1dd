"""What the embedded model is worth: bits per byte against a 5-gram model, and acceptance in real decoding.

    python tools/embedded/evaluate.py DIR            DIR: the model's directory, as pack.py writes it

Prints one JSON object. Acceptance is counted over the spans of greedy decodes of ``prompts.json`` (which was fixed before
the first measurement), outputs that repeat themselves left out: those whose share of distinct 8-grams is below 0.5.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any, Final

import bpe
import numpy as np
import stdlib_text
import torch
from ngram import ORDER, KneserNey
from torch.nn import functional
from train import distinct_share
from transformers import AutoModelForCausalLM, AutoTokenizer

from spanfold.backends.torch import TorchRuntime
from spanfold.engine import Decoder, Policy
from spanfold.engine.events import Record, SpanVerified

TOKENS: Final = 96
DEPTHS: Final = 4
REPEATED_BELOW: Final = 0.5


def stream(texts: dict[str, str], tokenizer: Any) -> list[int]:
    """The tokens of all files in the order of their names, the end token behind each."""
    ids: list[int] = []
    for name in sorted(texts):
        ids += tokenizer(texts[name], verbose=False)["input_ids"] + [tokenizer.eos_token_id]
    return ids


@torch.inference_mode()
def trunk_nats(model: Any, ids: list[int]) -> float:
    """Total over every token from the fifth on, each seen with at least half a context before it where the file has it."""
    context = model.config.max_position_embeddings
    tokens = torch.tensor(ids)
    total, scored = 0.0, ORDER - 1
    for start in range(0, len(ids), context // 2):
        end = min(start + context, len(ids))
        logits = model(input_ids=tokens[start:end].unsqueeze(0), use_cache=False).logits[0]
        first = scored - start
        total += float(functional.cross_entropy(logits[first - 1 : -1].double(), tokens[scored:end], reduction="sum"))
        scored = end
        if end == len(ids):
            break
    return total


def bits_per_byte(folder: Path) -> dict[str, Any]:
    """The trunk and the 5-gram model on the held-out files."""
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = stdlib_text.collect()
    held_out = stream(found.held_out, tokenizer)
    octets = sum(len(text.encode()) for text in found.held_out.values())
    grams = KneserNey(np.array(stream(found.train, tokenizer)), len(tokenizer))
    nats = trunk_nats(model, held_out)
    gram_nats = float(-np.log(grams.probabilities(np.array(held_out))).sum())
    return {
        "text": found.digest,
        "held_out_files": len(found.held_out),
        "held_out_bytes": octets,
        "trunk": round(nats / math.log(2) / octets, 4),
        "five_gram": round(gram_nats / math.log(2) / octets, 4),
        "indentations_as_one_token": all(len(tokenizer(one + "x")["input_ids"]) == 2 for one in bpe.INDENTATIONS),
    }


def acceptance(folder: Path, prompts: list[str]) -> dict[str, Any]:
    """Spans of each fixed width over all prompts; tokens compared with serial ones first."""
    runtime = TorchRuntime.from_pretrained(folder)
    assert runtime.tokenizer is not None
    ids = [tuple(runtime.tokenizer(prompt)["input_ids"]) for prompt in prompts]
    with Decoder(runtime, policy=0) as decoder:
        serial = [decoder.generate(one, max_tokens=TOKENS).tokens for one in ids]
    shares = [distinct_share(list(tokens)) if len(tokens) >= 16 else 1.0 for tokens in serial]
    kept = [at for at, share in enumerate(shares) if share >= REPEATED_BELOW]
    by_width: dict[str, Any] = {}
    differing: set[int] = set()
    for width in range(1, DEPTHS + 1):
        spans: list[SpanVerified] = []

        def watch(record: Record, spans: list[SpanVerified] = spans) -> None:
            if isinstance(record.event, SpanVerified) and record.event.rows == width + 1:  # noqa: B023  (used within the iteration)
                spans.append(record.event)

        with Decoder(runtime, policy=Policy(kind="fixed", width=width), observers=[watch]) as decoder:
            for at in kept:
                if decoder.generate(ids[at], max_tokens=TOKENS).tokens != serial[at]:
                    differing.add(at)
        tokens = sum(span.matched + 1 for span in spans)
        by_width[str(width)] = {
            "spans": len(spans),
            "all_of_first": [round(sum(span.matched >= depth for span in spans) / len(spans), 4) for depth in range(1, width + 1)],
            "tokens_per_span": round(tokens / len(spans), 4),
        }
    runtime.close()
    return {
        "prompts": len(prompts),
        "left_out_as_repeating": len(prompts) - len(kept),
        "differing_from_serial": len(differing),
        "distinct_8_grams": [round(share, 3) for share in shares],
        "by_width": by_width,
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prompts", type=Path, default=Path(__file__).with_name("prompts.json"))
    parser.add_argument("--skip-text", action="store_true", help="acceptance alone")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    prompts = json.loads(asked.prompts.read_text(encoding="utf-8"))["prompts"]
    result: dict[str, Any] = {"model": asked.folder.name}
    if not asked.skip_text:
        result["bits_per_byte"] = bits_per_byte(asked.folder)
    result["acceptance"] = acceptance(asked.folder, prompts)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
