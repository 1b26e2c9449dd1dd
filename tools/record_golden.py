"""Record the golden runs of the demo model: ids that transformers' own greedy generate gives, in float32 on the CPU.

    python tools/record_golden.py            # writes tests/torch/golden/smollm2-135m-mtp-v1.json

The least margin of a run (the difference of the two best scores, over its tokens) is recorded with it: a run is kept only
if it is far above what rounding can move, so that it holds on every machine. Nothing of spanfold decodes here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from spanfold.backends.models import NAME, assemble

PROMPTS = (
    "What should I know about clouds?",
    "Write a short story about friendship.",
    "Write a Python function related to cameras and explain it.",
    "What is the capital of France? Answer with one word.",
    "Say hello in five languages: 😀",
)
TOKENS = 48
LEAST_MARGIN = 0.01


def main() -> None:
    """Run the prompts, print what comes out, and write the file."""
    torch.set_num_threads(1)
    folder = assemble(progress=print)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    known: Any = LlamaForCausalLM
    ignoring: Any = type("LlamaForCausalLM", (known,), {"_keys_to_ignore_on_load_unexpected": [r"model\.layers\.30\..*"]})
    model = ignoring.from_pretrained(folder)
    runs: list[dict[str, Any]] = []
    for text in PROMPTS:
        chat = tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)
        prompt: list[int] = list(chat["input_ids"])
        ids = torch.tensor([prompt])
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=TOKENS,
            return_dict_in_generate=True,
            output_logits=True,
        )
        margins = [float(best[0] - best[1]) for best in (row[0].float().topk(2).values for row in out.logits)]
        tokens: list[int] = out.sequences[0, len(prompt) :].tolist()
        print(f"{min(margins):.4f} {text!r} -> {tokenizer.decode(tokens)!r}")
        if min(margins) > LEAST_MARGIN:
            runs.append({"text": text, "prompt": prompt, "tokens": tokens, "least_margin": round(min(margins), 4)})
    content = {"model": NAME, "dtype": "float32", "max_tokens": TOKENS, "runs": runs}
    path = Path(__file__).parents[1] / "tests" / "torch" / "golden" / f"{NAME}.json"
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
