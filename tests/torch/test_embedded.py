"""The model inside the package: small, whole, ordinary, and worth drafting with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from spanfold.backends.models import EMBEDDED, embedded
from spanfold.backends.models import embedded as module_function
from spanfold.backends.torch import TorchRuntime
from spanfold.backends.torch.opening import open_model
from spanfold.engine import Decoder, Policy
from spanfold.engine.errors import ConfigError
from spanfold.engine.events import Record, SpanVerified

PROMPTS: list[str] = json.loads((Path(__file__).parents[2] / "tools" / "embedded" / "prompts.json").read_text(encoding="utf-8"))["prompts"]
TOKENS = 96
MOST_BYTES = 12_000_000


@pytest.fixture(scope="module")
def runtime() -> TorchRuntime:
    return open_model().runtime


def ids(runtime: TorchRuntime, text: str) -> tuple[int, ...]:
    tokenizer: Any = runtime.tokenizer
    return tuple(tokenizer(text)["input_ids"])


def distinct_share(tokens: tuple[int, ...]) -> float:
    grams = [tokens[at : at + 8] for at in range(len(tokens) - 7)]
    return len(set(grams)) / len(grams) if grams else 1.0


def test_it_is_small_and_its_card_lies_beside_it() -> None:
    folder = embedded()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MOST_BYTES
    assert json.loads((folder / "config.json").read_text())["num_mtp_layers"] == 1
    assert "Python Software Foundation" in (folder / "README.md").read_text(encoding="utf-8")


def test_an_installation_that_lacks_a_part_says_which(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    monkeypatch.setattr(sys.modules[module_function.__module__], "_FOLDER", tmp_path)
    with pytest.raises(ConfigError, match=f"lacks config.json of the model {EMBEDDED}: install spanfold again"):
        embedded()


def test_it_is_what_opens_by_default_and_by_its_name(runtime: TorchRuntime) -> None:
    assert runtime.info.model == EMBEDDED == open_model(EMBEDDED).runtime.info.model
    assert runtime.info.draft is not None and runtime.info.draft.layers == 1


def test_a_run_of_indentation_is_one_token_and_every_text_comes_back(runtime: TorchRuntime) -> None:
    tokenizer: Any = runtime.tokenizer
    for width in range(4, 33, 4):
        assert len(ids(runtime, "\n" + " " * width + "x")) == 3
    for text in (*PROMPTS, "", "\t\r\n  é漢🙂\x00", " " * 77):
        assert tokenizer.decode(ids(runtime, text)) == text


def test_transformers_loads_the_directory_and_decodes_the_same_tokens(runtime: TorchRuntime) -> None:
    """Independent of our forward, cache and loop: the plain generate of transformers' own class."""
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(embedded(), dtype=torch.float32)
    with Decoder(runtime) as decoder:
        for prompt in PROMPTS[:4]:
            given = ids(runtime, prompt)
            ours = decoder.generate(given, max_tokens=48).tokens
            theirs = model.generate(torch.tensor([given]), do_sample=False, max_new_tokens=48, pad_token_id=0)[0, len(given) :].tolist()
            assert list(ours) == theirs[: len(ours)]


@pytest.mark.slow
def test_its_head_drafts_well_on_text_that_says_something(runtime: TorchRuntime) -> None:
    """At least 65% of first drafts, 45% of first and second, over the prompts fixed before the first measurement.

    Counted in real decoding and only where the output equals the serial one; outputs that repeat themselves (fewer than
    half of their 8-grams distinct) are left out, so that a dull model gains nothing by being dull. Enough must remain.
    """
    spans: list[SpanVerified] = []

    def watch(record: Record) -> None:
        if isinstance(record.event, SpanVerified) and record.event.rows == 3:
            own.append(record.event)

    own: list[SpanVerified] = []
    kept = 0
    with Decoder(runtime, policy=0) as serial, Decoder(runtime, policy=Policy(kind="fixed", width=2), observers=[watch]) as drafting:
        for prompt in PROMPTS:
            given = ids(runtime, prompt)
            tokens = serial.generate(given, max_tokens=TOKENS).tokens
            own = []
            assert drafting.generate(given, max_tokens=TOKENS).tokens == tokens
            if distinct_share(tokens) >= 0.5:
                spans += own
                kept += 1
    assert kept >= 10
    first, both = (sum(span.matched >= depth for span in spans) / len(spans) for depth in (1, 2))
    assert first >= 0.65 and both >= 0.45, f"{first:.3f} {both:.3f} of {len(spans)} spans"
