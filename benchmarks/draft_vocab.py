"""What a draft vocabulary costs in acceptance and saves in time, on the demo model's held-out prompts.

    python benchmarks/draft_vocab.py --counts counts.json            # counts: tools/choose_draft_vocab.py --counts

For every position of the model's own greedy answers the head drafts four tokens, once with each vocabulary, from the same state (a draft
is a function of the prefix alone). Acceptance at depth d is counted where the d - 1 drafts before are right. Times are medians of
interleaved draft calls.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from spanfold.backends.models import assemble
from spanfold.backends.torch import TorchRuntime
from spanfold.backends.torch.vocabulary import DraftVocabulary
from spanfold.engine.runtime import Ask, Forward
from spanfold.engine.values import Sampling

ROOT = Path(__file__).resolve().parent.parent
HELD_OUT = ROOT / "tests" / "torch" / "data" / "heldout_prompts.json"
DEPTH = 4


def vocabularies(runtime: Any, counts: dict[int, int], sizes: list[int]) -> dict[str, tuple[Any, Any]]:
    """Name -> (vocabulary, output matrix), as a drafter holds them; the full one last."""
    drafting, model = runtime._drafting, runtime._model
    full = int(model.lm_head.weight.shape[0])
    order = [0, 1, 2, *sorted(counts, key=lambda one: (-counts[one], one)), *range(full)]
    unique = list(dict.fromkeys(order))
    made: dict[str, tuple[Any, Any]] = {}
    with torch.inference_mode():
        for size in sizes:
            vocabulary = DraftVocabulary(sorted(unique[:size]), full, torch.device("cpu"), "draft_vocab")
            made[str(size)] = (vocabulary, vocabulary.rows_of(model.lm_head, True))
    return made | {"full": (None, drafting._output)}


def measured(runtime: Any, choices: dict[str, tuple[Any, Any]], prompts: list[str], tokens: int) -> dict[str, Any]:
    """Acceptance by depth and median milliseconds of a draft of one and of ``DEPTH`` tokens, per vocabulary."""
    tried = {name: [0] * DEPTH for name in choices}
    right = {name: [0] * DEPTH for name in choices}
    times: dict[str, dict[int, list[float]]] = {name: {1: [], DEPTH: []} for name in choices}
    drafting = runtime._drafting
    for text in prompts:
        chat = runtime.tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        canonical: list[int] = list(chat["input_ids"])
        runtime.open_session(0, Sampling(), True)
        first = runtime.forward([Forward(session=0, base=0, tokens=tuple(canonical), want="last", canonical=True)])[0]
        canonical.append(first.predictions[0])
        offered: list[dict[str, tuple[int, ...]]] = []
        start = len(canonical)
        while len(canonical) - start < tokens and canonical[-1] != 2:
            drafts: dict[str, tuple[int, ...]] = {}
            runtime.draft([Ask(session=0, current=canonical[-1], limit=1)])  # what waits is fed before anything is timed
            for name, (vocabulary, output) in choices.items():
                drafting.vocabulary, drafting._output = vocabulary, output
                for limit in (1, DEPTH):
                    began = time.perf_counter()
                    drafts[name] = runtime.draft([Ask(session=0, current=canonical[-1], limit=limit)])[0].tokens
                    times[name][limit].append((time.perf_counter() - began) * 1e3)
            offered.append(drafts)
            base = len(canonical) - 1
            rows = runtime.forward([Forward(session=0, base=base, tokens=(canonical[-1],), want="last", canonical=True)])[0]
            canonical.append(rows.predictions[0])
        runtime.drop_session(0)
        for at, drafts in enumerate(offered):
            true = canonical[start + at : start + at + DEPTH]
            for name, drafted in drafts.items():
                for depth, (one, other) in enumerate(zip(drafted, true, strict=False)):
                    tried[name][depth] += 1
                    right[name][depth] += one == other
                    if one != other:
                        break
    return {
        name: {
            "acceptance": [round(r / t, 4) if t else None for r, t in zip(right[name], tried[name], strict=True)],
            "positions": tried[name][0],
            "draft_1_ms": round(statistics.median(times[name][1]), 3),
            f"draft_{DEPTH}_ms": round(statistics.median(times[name][DEPTH]), 3),
            "step_ms": round((statistics.median(times[name][DEPTH]) - statistics.median(times[name][1])) / (DEPTH - 1), 3),
        }
        for name in choices
    }


def main() -> None:
    """Measure, print a line per vocabulary, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--counts", type=Path, required=True)
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192, 16384])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    runtime = TorchRuntime.from_pretrained(assemble(), dtype=args.dtype, draft_vocab=None)
    counts = {int(key): int(value) for key, value in json.loads(args.counts.read_text()).items()}
    prompts: list[str] = json.loads(HELD_OUT.read_text(encoding="utf-8"))[: args.prompts]
    figures = measured(runtime, vocabularies(runtime, counts, args.sizes), prompts, args.tokens)
    shown = {key: str(value) for key, value in vars(args).items()}
    report = {"arguments": shown, "torch": torch.__version__, "machine": platform.machine(), "figures": figures}
    for name, one in figures.items():
        print(f"{name:>6}  {one}")
    if args.json is not None:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
