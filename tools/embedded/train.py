"""Train the embedded model: a Llama trunk and its MTP layer together, on the Python standard library's source.

    python tools/embedded/train.py --out DIR          about an hour on 2 cores
    python tools/embedded/train.py --out DIR --steps 20 --head-steps 4 --own-windows 16     to try it out

Two stages, seeds fixed; a run that was stopped goes on from its last checkpoint in DIR.

1. **Together.** The trunk learns the next token. The head learns, in the same steps, the trunk's own distribution at every
   step of a draft (cross-entropy against its softmax: what a draft must hit is the trunk's choice, not the text). Nothing
   flows from the head into the trunk, so the trunk is the one that training without a head gives, bit for bit
   (``--without-head`` trains that one; the tests compare the two).
2. **Head alone**, the trunk frozen, on text that the trunk writes itself as well as on the corpus: when the model decodes,
   the head sees the trunk's own text.

Hidden matrices are trained with Muon (Jordan et al. 2024), the rest with AdamW.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

if "MALLOC_TRIM_THRESHOLD_" not in os.environ and sys.platform == "linux" and __name__ == "__main__":
    # glibc returns every large tensor to the system at once and takes it back page by page: three times slower.
    os.environ |= {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "8589934592", "MALLOC_TOP_PAD_": "268435456"}
    os.execv(sys.executable, [sys.executable, *sys.argv])

import bpe
import stdlib_text
import torch
from network import CONTEXT, chain, fresh
from torch import Tensor
from torch.nn import functional

from spanfold.backends.torch.head import MtpHead

SEED: Final = 20261202
BATCH: Final = 16
WINDOW: Final = 256  # tokens of a window; the last steps of the first stage, and the second, take pairs of them, CONTEXT tokens
LONG_FROM: Final = 0.8  # share of the first stage after which windows are CONTEXT tokens long
HEAD_SHARE: Final = 8  # one of so many windows of a batch is what the head learns from in the first stage
STEPS: Final = 2600  # 3.5 times the corpus
HEAD_STEPS: Final = 400
OWN_WINDOWS: Final = 640  # windows of the trunk's own text
OWN_BATCH: Final = 64
MUON_RATE: Final = 0.02
ADAM_RATE: Final = 0.006
STEP_WEIGHTS: Final = (1.0, 0.7, 0.4)
CHECKPOINT_EVERY: Final = 100
GRAM: Final = 8


def windows(texts: Iterable[str], tokenizer: Any) -> Tensor:
    """``[windows, CONTEXT + 1]``: every file's tokens, files one after another with the end token between them.

    A window shares its last token with the next one's first.
    """
    stream: list[int] = []
    for text in texts:
        stream += tokenizer(text, verbose=False)["input_ids"] + [tokenizer.eos_token_id]
    count = (len(stream) - 1) // CONTEXT
    ids = torch.tensor(stream, dtype=torch.long)
    return torch.stack([ids[at * CONTEXT : at * CONTEXT + CONTEXT + 1] for at in range(count)])


def rate(step: int, steps: int) -> float:
    """Share of the full learning rate: a short warm-up, level, then a straight line to 0 over the last half."""
    return min(1.0, (step + 1) / 50, 2 * (steps - step) / steps)


class Optimizer:
    """Muon for the hidden matrices of a module, AdamW for everything else."""

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for name, parameter in named:
            (matrices if parameter.ndim == 2 and "embed" not in name and "lm_head" not in name else others).append(parameter)
        self._parts: tuple[tuple[torch.optim.Optimizer, float], ...] = (
            (torch.optim.Muon(matrices, lr=MUON_RATE, weight_decay=0.05), MUON_RATE),
            (torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.98), weight_decay=0.01), ADAM_RATE),
        )

    def step(self, share: float) -> None:
        """One step at this share of the full learning rates."""
        for part, full in self._parts:
            for group in part.param_groups:
                group["lr"] = full * share
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """Both parts' states."""
        return [part.state_dict() for part, _ in self._parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        """Take what ``state_dict`` gave."""
        for (part, _), state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)


def trunk_forward(model: Any, batch: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss over the batch, hidden states ``[windows, length, width]`` and logits ``[windows, length, vocabulary]``."""
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model.model(input_ids=batch[:, :-1], use_cache=False).last_hidden_state
        logits = model.lm_head(hidden)
    return functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten()), hidden, logits


def head_loss(model: Any, head: MtpHead, hidden: Tensor, logits: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Distillation loss over the steps of a draft, and the share of places where the first 1, 2 ... steps all agree."""
    with torch.autocast("cpu", torch.bfloat16):
        steps = chain(model, head, hidden, ids)
        scored = [functional.linear(z, model.model.embed_tokens.weight.detach()) for z in steps]
    loss = torch.zeros(())
    together = torch.ones((), dtype=torch.bool)
    agreement: list[Tensor] = []
    for step, scores in enumerate(scored, start=1):
        teacher = logits[:, step : step + scores.shape[1]].float()
        loss = loss - STEP_WEIGHTS[step - 1] * (teacher.softmax(-1) * scores.float().log_softmax(-1)).sum(-1).mean()
        same = scores.argmax(-1) == teacher.argmax(-1)
        together = together & same
        agreement.append(together.float().mean())
    return loss, torch.stack(agreement)


def distinct_share(tokens: list[int]) -> float:
    """Share of distinct 8-grams among a list's 8-grams."""
    grams = [tuple(tokens[at : at + GRAM]) for at in range(len(tokens) - GRAM + 1)]
    return len(set(grams)) / len(grams)


@torch.inference_mode()
def own_text(model: Any, prompts: Tensor, generator: torch.Generator) -> Tensor:
    """``[windows, CONTEXT + 1]``: prompts ``[windows, n]`` continued by the model, half greedily, half at temperature 0.7."""
    cold = torch.arange(len(prompts)) % 2 == 0
    ids = prompts
    out = model(input_ids=ids, use_cache=True)
    while ids.shape[1] <= CONTEXT:
        scores = out.logits[:, -1].float()
        drawn = torch.multinomial((scores / 0.7).softmax(-1), 1, generator=generator)
        chosen = torch.where(cold[:, None], scores.argmax(-1, keepdim=True), drawn)
        ids = torch.cat([ids, chosen], dim=1)
        if ids.shape[1] <= CONTEXT:
            out = model(input_ids=chosen, cache=out.past_key_values, use_cache=True)
    return ids


class Run:
    """The training as a whole: data, parts, log and checkpoints."""

    def __init__(self, out: Path, with_head: bool, compiled: bool) -> None:
        torch.manual_seed(SEED)
        self.out, self.with_head = out, with_head
        self._trunk: Any = torch.compile(trunk_forward, dynamic=False) if compiled else trunk_forward
        self._head_loss: Any = torch.compile(head_loss, dynamic=False) if compiled else head_loss
        found = stdlib_text.collect()
        texts = [found.train[name] for name in sorted(found.train)]
        self.tokenizer = bpe.train(texts)
        self.train = windows(texts, self.tokenizer)
        self.held_out = windows(found.held_out.values(), self.tokenizer)
        self.model, self.head = fresh(len(self.tokenizer), self.tokenizer.eos_token_id)
        self.trunk_optimizer = Optimizer(self.model.named_parameters())
        self.head_optimizer = Optimizer(self.head.named_parameters())
        self.done = 0
        out.mkdir(parents=True, exist_ok=True)
        self.say(
            windows=len(self.train),
            text=found.digest,
            trunk=sum(one.numel() for one in self.model.parameters()),
            head=sum(one.numel() for one in self.head.parameters()),
        )

    def say(self, **facts: Any) -> None:
        """Print and keep a line of the log."""
        line = json.dumps(facts)
        print(line, flush=True)
        with (self.out / "log.jsonl").open("a") as file:
            file.write(line + "\n")

    def save(self) -> None:
        """Write the checkpoint, whole or not at all."""
        parts: dict[str, Any] = {name: part.state_dict() for name, part in self._parts()}
        partial = self.out / "checkpoint.partial"
        torch.save({"done": self.done, **parts}, partial)
        partial.replace(self.out / "checkpoint.pt")

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if (self.out / "checkpoint.pt").exists():
            saved = torch.load(self.out / "checkpoint.pt", weights_only=True)
            self.done = saved["done"]
            for name, part in self._parts():
                part.load_state_dict(saved[name])
            self.say(resumed=self.done)

    def _parts(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("model", self.model),
            ("head", self.head),
            ("trunk_optimizer", self.trunk_optimizer),
            ("head_optimizer", self.head_optimizer),
        )

    @torch.no_grad()
    def held_out_loss(self) -> float:
        """Nats per token over the first held-out windows."""
        return round(float(trunk_forward(self.model, self.held_out[:32])[0]), 4)

    def _loop(self, first: int, last: int, step: Callable[[int], dict[str, Any]]) -> None:
        began, at_start = time.monotonic(), self.done
        while self.done < last:
            facts = step(self.done - first)
            self.done += 1
            if self.done % 10 == 0:
                self.say(step=self.done, s_per_step=round((time.monotonic() - began) / (self.done - at_start), 3), **facts)
            if self.done % CHECKPOINT_EVERY == 0 or self.done == last:
                self.save()

    def together(self, steps: int) -> None:
        """The first stage."""
        pairs = BATCH * WINDOW // CONTEXT  # CONTEXT-token windows of a step, cut into WINDOW-token ones at first
        epochs = steps * pairs // len(self.train) + 1
        order = torch.cat([torch.randperm(len(self.train), generator=torch.Generator().manual_seed(SEED + one)) for one in range(epochs)])

        def step(at: int) -> dict[str, Any]:
            batch = self.train[order[at * pairs : (at + 1) * pairs]]
            if at < LONG_FROM * steps:
                batch = torch.cat([batch[:, : WINDOW + 1], batch[:, WINDOW:]])
            taught = slice(0, len(batch) // HEAD_SHARE)
            loss, hidden, logits = self._trunk(self.model, batch)
            loss.backward()
            facts: dict[str, Any] = {"loss": round(float(loss.detach()), 4)}
            if self.with_head:
                second, agreement = self._head_loss(
                    self.model, self.head, hidden[taught].detach(), logits[taught].detach(), batch[taught, :-1]
                )
                second.backward()
                facts |= {"head_loss": round(float(second.detach()), 4), "agreement": [round(one, 4) for one in agreement.tolist()]}
            if (at + 1) % 250 == 0:
                facts["held_out"] = self.held_out_loss()
            self.trunk_optimizer.step(rate(at, steps))
            if self.with_head:
                self.head_optimizer.step(rate(at, steps + 1))
            return facts

        self._loop(0, steps, step)

    def head_alone(self, first: int, steps: int, own_windows: int) -> None:
        """The second stage."""
        self.model.requires_grad_(False).eval()
        own = self._own(own_windows)
        data = torch.cat([own, self.train])
        generator = torch.Generator().manual_seed(SEED + 100)
        half = BATCH * WINDOW // CONTEXT // 2
        written = torch.randint(len(own), (steps, half), generator=generator)
        read = len(own) + torch.randint(len(self.train), (steps, half), generator=generator)
        picks = torch.cat([written, read], dim=1)

        def step(at: int) -> dict[str, Any]:
            batch = data[picks[at]]
            with torch.no_grad():
                _, hidden, logits = self._trunk(self.model, batch)
            loss, agreement = self._head_loss(self.model, self.head, hidden, logits, batch[:, :-1])
            loss.backward()
            self.head_optimizer.step(0.5 * rate(at, steps))
            return {"head_loss": round(float(loss.detach()), 4), "agreement": [round(one, 4) for one in agreement.tolist()]}

        self._loop(first, first + steps, step)

    def _own(self, count: int) -> Tensor:
        place = self.out / "own.pt"
        if place.exists():
            return torch.load(place, weights_only=True)
        generator = torch.Generator().manual_seed(SEED + 200)
        prompts = self.train[torch.randint(len(self.train), (count,), generator=generator), :48]
        began = time.monotonic()
        written = torch.cat([own_text(self.model, part, generator) for part in prompts.split(OWN_BATCH)])
        kept = written[[distinct_share(row) >= 0.5 for row in written.tolist()]]
        self.say(own_windows=count, kept=len(kept), seconds=round(time.monotonic() - began))
        torch.save(kept, place)
        return kept


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--head-steps", type=int, default=HEAD_STEPS)
    parser.add_argument("--own-windows", type=int, default=OWN_WINDOWS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--without-head", action="store_true")
    parser.add_argument("--eager", action="store_true", help="without torch.compile, which needs a C++ compiler")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    run = Run(asked.out, not asked.without_head, not asked.eager)
    run.restore()
    run.together(asked.steps)
    if run.with_head:
        run.head_alone(asked.steps, asked.head_steps, asked.own_windows)


if __name__ == "__main__":
    main()
