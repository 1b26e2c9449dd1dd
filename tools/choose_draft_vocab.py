"""Choose the draft vocabulary of the demo model: the ids that its trunk writes most often.

    python tools/choose_draft_vocab.py --size 8192            # writes backends/models/head/draft_vocab.safetensors

The trunk answers prompts of its own chat format, templates by topics, none of them among the held-out prompts, at temperature 0.8
with a fixed seed; the ids are counted. Ids that were never seen fill up the rest by their place in the vocabulary: a
byte-pair vocabulary is ordered by merges, so low ids are frequent pieces. All ids that end a turn are in.
About three minutes on two CPU cores. ``--counts FILE`` keeps the counts for another size.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from spanfold.backends.models import assemble
from spanfold.backends.torch import TorchRuntime

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = ROOT / "tests" / "torch" / "data" / "heldout_prompts.json"
PLACE = ROOT / "backends" / "models" / "head" / "draft_vocab.safetensors"
TEMPLATES = (
    "Explain {} in simple words.",
    "Write a short story about {}.",
    "Write a Python function that has to do with {}.",
    "Give me five tips about {}.",
    "Write a letter to a friend about {}.",
    "What are common mistakes with {}?",
    "Summarise the history of {}.",
    "Make a list of questions about {} and answer them.",
    "Compare {} with something similar.",
    "Write a poem about {}.",
)
TOPICS = [
    "bread",
    "volcanoes",
    "chess",
    "rivers",
    "tax",
    "robots",
    "gardening",
    "sleep",
    "bicycles",
    "insects",
    "glass",
    "winter",
    "elections",
    "mathematics",
    "painting",
    "trains",
    "whales",
    "money",
    "bridges",
    "honey",
    "satellites",
    "running",
    "medicine",
    "deserts",
    "letters",
    "clocks",
    "forests",
    "databases",
    "football",
    "plastic",
    "families",
    "wind",
    "chemistry",
    "theatre",
    "cheese",
    "networks",
    "mountains",
    "birds",
    "farming",
    "law",
]


def counted(tokens_each: int, batch: int) -> Counter[int]:
    """Ids that the trunk writes after the prompts."""
    held_out = set(json.loads(HELD_OUT.read_text(encoding="utf-8")))
    prompts = [template.format(topic) for template in TEMPLATES for topic in TOPICS]
    used = [prompt for prompt in prompts if prompt not in held_out]
    runtime = TorchRuntime.from_pretrained(assemble(), dtype="bfloat16", draft=False, modules=True)
    model: Any = runtime._model  # pyright: ignore[reportPrivateUsage]
    tokenizer: Any = runtime.tokenizer
    torch.manual_seed(0)
    counts: Counter[int] = Counter()
    chats = [tokenizer.apply_chat_template([{"role": "user", "content": p}], add_generation_prompt=True)["input_ids"] for p in used]
    chats.sort(key=len)
    for start in range(0, len(chats), batch):
        part = chats[start : start + batch]
        width = max(map(len, part))
        ids = torch.tensor([[2] * (width - len(chat)) + list(chat) for chat in part])
        mask = torch.tensor([[0] * (width - len(chat)) + [1] * len(chat) for chat in part])
        out = model.generate(
            ids, attention_mask=mask, do_sample=True, temperature=0.8, top_k=0, top_p=1.0, max_new_tokens=tokens_each, pad_token_id=2
        )
        for row in out[:, width:].tolist():
            counts.update(row[: row.index(2) + 1] if 2 in row else row)
        print(f"{min(start + batch, len(chats))}/{len(chats)} prompts, {counts.total()} tokens, {len(counts)} distinct", flush=True)
    return counts


def chosen(counts: Counter[int], size: int, always: tuple[int, ...]) -> list[int]:
    """``size`` ids: those that always are in, then the most frequent, then the lowest."""
    order = [*always, *sorted(counts, key=lambda one: (-counts[one], one)), *range(2 * size)]
    return sorted(list(dict.fromkeys(order))[:size])


def main() -> None:
    """Count, choose, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=64, help="most tokens per prompt")
    parser.add_argument("--batch", type=int, default=40)
    parser.add_argument("--counts", type=Path, help="read the counts from here, or write them here")
    parser.add_argument("--out", type=Path, default=PLACE)
    args = parser.parse_args()
    if args.counts is not None and args.counts.is_file():
        counts = Counter({int(key): value for key, value in json.loads(args.counts.read_text()).items()})
    else:
        counts = counted(args.tokens, args.batch)
        if args.counts is not None:
            args.counts.write_text(json.dumps(counts))
    ids = chosen(counts, args.size, (0, 1, 2))
    seen = sum(counts[one] for one in ids) / counts.total()
    save_file({"ids": torch.tensor(ids, dtype=torch.int64)}, args.out)
    print(f"{len(ids)} ids, {seen:.2%} of {counts.total()} counted tokens, written to {args.out}")


if __name__ == "__main__":
    main()
