"""The draft vocabulary: cheaper drafts from fewer ids, the same output."""

from __future__ import annotations

import importlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch_loop import draft, forward, numbers, start
from torch_models import FAMILIES, VOCABULARY, head_tensors, save_checkpoint, tiny_head, tiny_model, tiny_runtime

from spanfold.backends.draft_vocab import DRAFT_VOCAB_FILE
from spanfold.backends.torch import TorchRuntime
from spanfold.backends.torch.vocabulary import DraftVocabulary
from spanfold.engine import Decoder
from spanfold.engine.errors import ConfigError
from spanfold.engine.values import Sampling

PROMPT = (5, 17, 3, 40, 22, 9)
SUBSET = tuple(range(1, VOCABULARY, 2))


@pytest.mark.parametrize("modules", [False, True])
@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_are_the_best_of_its_ids_and_change_no_token(family: str, modules: bool) -> None:
    """Each step is the full vocabulary's choice among the subset, as long as the steps before it are."""
    full = tiny_runtime(family, modules=modules)
    part = tiny_runtime(family, modules=modules, draft_vocab=SUBSET)
    others = tuple(n for n in range(VOCABULARY) if n not in SUBSET)
    for current in range(20):
        start(part, PROMPT)
        full.open_session(0, Sampling(masked=others, mask_until=99), True)  # the same choice by another way
        forward(full, 0, 0, PROMPT)
        drafted = draft(part, 0, current, 4)
        assert drafted == draft(full, 0, current, 4) and set(drafted) <= set(SUBSET)
        assert draft(part, 0, current, 2) == drafted[:2] and numbers(part, 0) == (6, 6)
        for runtime in (full, part):
            runtime.drop_session(0)
    outputs: set[tuple[int, ...]] = set()
    for runtime in (full, part):
        for width in (0, 1, 3):
            with Decoder(runtime, policy=width) as decoder:
                outputs.add(decoder.generate(PROMPT, max_tokens=40).tokens)
    assert len(outputs) == 1


@pytest.mark.parametrize("modules", [False, True])
def test_masked_ids_stay_out_by_absolute_index(modules: bool) -> None:
    runtime = tiny_runtime("llama", modules=modules, draft_vocab=SUBSET)

    def under(sampling: Sampling) -> tuple[int, ...]:
        runtime.open_session(0, Sampling(), True)
        forward(runtime, 0, 0, PROMPT)
        runtime.configure(0, sampling)
        drafted = draft(runtime, 0, 30, 3)
        runtime.drop_session(0)
        return drafted

    free = under(Sampling())
    first = under(Sampling(masked=(0, 2, free[0], 60), mask_until=8))
    assert first[0] not in (*free[:1], 0, 2, 60) and set(first) <= set(SUBSET)
    assert under(Sampling(masked=(free[0],), mask_until=7)) == free
    assert under(Sampling(masked=(0, 2, 4), mask_until=99)) == free  # none of them is in it
    assert under(Sampling(masked=SUBSET, mask_until=8)) == ()  # nothing is left to propose
    assert under(Sampling(masked=SUBSET, mask_until=7)) == free


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ((), "at least one int64 id"),
        ((3, 3, 5), "must be sorted, each id once"),
        ((5, 3), "must be sorted, each id once"),
        ((-1, 3), "holds the id -1, outside the vocabulary of 61"),
        ((3, 61), "holds the id 61, outside the vocabulary of 61"),
        ((0.5, 2.0), "int64"),
        (("a",), "must be ids, whole numbers"),
        (((1, 2), (3, 4)), "one row"),
    ],
)
def test_what_are_no_ids_is_refused(ids: Any, words: str) -> None:
    with pytest.raises(ConfigError, match="draft_vocab .*" + words):
        tiny_runtime("llama", draft_vocab=ids)


def test_places_of_ids_in_it() -> None:
    vocabulary = DraftVocabulary((3, 5, 60), VOCABULARY, torch.device("cpu"), "x")
    assert vocabulary.places_of(torch.tensor([0, 3, 4, 60])).tolist() == [0, 2]
    assert vocabulary.places_of(torch.tensor([61, 99])).tolist() == [] and len(vocabulary) == 3


def checkpoint(folder: Path) -> Path:
    model = tiny_model("llama")
    return save_checkpoint(folder, model, head_tensors(tiny_head(model)))


def length(runtime: TorchRuntime) -> int | None:
    vocabulary = runtime._drafting.vocabulary  # pyright: ignore[reportPrivateUsage, reportOptionalMemberAccess]
    return None if vocabulary is None else len(vocabulary)


def test_a_checkpoint_may_bring_one_and_the_caller_may_choose(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    assert length(TorchRuntime.from_pretrained(folder)) is None
    save_file({"ids": torch.tensor(SUBSET)}, folder / DRAFT_VOCAB_FILE)
    assert length(TorchRuntime.from_pretrained(folder)) == len(SUBSET)
    assert length(TorchRuntime.from_pretrained(folder, draft_vocab=None)) is None
    assert length(TorchRuntime.from_pretrained(folder, draft_vocab=[4, 9])) == 2
    assert TorchRuntime.from_pretrained(folder, draft=False).info.draft is None
    with pytest.raises(ConfigError, match="draft_vocab must be 'checkpoint', ids or None, not 'all'"):
        TorchRuntime.from_pretrained(folder, draft_vocab="all")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"rubbish", "draft_vocab.safetensors cannot be read"),
        ({"ids": torch.tensor([1]), "x": torch.tensor([1])}, "must hold one tensor 'ids', not ids, x"),
        ({"tokens": torch.tensor([1])}, "must hold one tensor 'ids', not tokens"),
        ({"ids": torch.tensor([2, 1])}, "draft_vocab of .* must be sorted"),
        ({"ids": torch.tensor([1, 99])}, "draft_vocab of .* holds the id 99"),
        ({"ids": torch.tensor([1.0])}, "draft_vocab of .* must be one row of at least one int64 id"),
    ],
)
def test_a_bad_file_is_named(content: Any, words: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path)
    if isinstance(content, bytes):
        (folder / DRAFT_VOCAB_FILE).write_bytes(content)
    else:
        save_file(content, folder / DRAFT_VOCAB_FILE)
    with pytest.raises(ConfigError, match=words):
        TorchRuntime.from_pretrained(folder)


def test_the_script_chooses_by_frequency_and_fills_up_with_low_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "tools")
    script = importlib.import_module("choose_draft_vocab")
    counts = Counter({900: 5, 7: 9, 40: 5, 41: 1})
    assert script.chosen(counts, 4, (2, 7)) == [2, 7, 40, 900]  # 41 is the rarest; of equals the lower one would go first
    assert script.chosen(counts, 3, (2, 7)) == [2, 7, 40]
    assert script.chosen(counts, 8, (2, 7)) == [0, 1, 2, 3, 7, 40, 41, 900]  # never seen: the lowest
