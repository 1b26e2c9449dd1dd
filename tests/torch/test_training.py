"""The scripts that made the embedded model: what they promise about text, trunk and head."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

SCRIPTS = Path(__file__).parents[2] / "tools" / "embedded"
NAMES = ("bpe", "network", "ngram", "stdlib_text", "train")


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The scripts' modules; they are scripts, so their folder is on the path only here."""
    monkeypatch.syspath_prepend(SCRIPTS)
    yield SimpleNamespace(**{name: __import__(name) for name in NAMES})
    for name in NAMES:
        sys.modules.pop(name, None)


@pytest.fixture
def text(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small text in place of the standard library's, and small batches."""
    source = (SCRIPTS / "train.py").read_text(encoding="utf-8")
    texts = {f"{number}.py": source[number:] for number in range(6)}
    found = scripts.stdlib_text.Division(texts, {"h.py": source}, (), "digest")
    monkeypatch.setattr(scripts.stdlib_text, "collect", lambda: found)
    for name, value in (("BATCH", 4), ("HEAD_SHARE", 2), ("CONTEXT", 32), ("WINDOW", 16)):
        monkeypatch.setattr(scripts.train, name, value)
    return found


def test_the_trunk_is_the_one_that_training_without_a_head_gives(scripts: Any, text: Any, tmp_path: Path) -> None:
    """Bit for bit: the head costs the trunk nothing, whatever its weight in the loss."""
    states: list[dict[str, Any]] = []
    for with_head in (True, False):
        run = scripts.train.Run(tmp_path / str(with_head), with_head, compiled=False)
        run.together(4)
        states.append(run.model.state_dict())
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(one, states[1][name]) for name, one in states[0].items())
    fresh = scripts.train.Run(tmp_path / "fresh", True, compiled=False)
    assert not any(torch.equal(one, states[0][name]) for name, one in fresh.model.state_dict().items() if one.ndim == 2)


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not_been(scripts: Any, text: Any, tmp_path: Path) -> None:
    whole = scripts.train.Run(tmp_path / "whole", True, compiled=False)
    whole.together(4)
    first = scripts.train.Run(tmp_path / "halves", True, compiled=False)

    class Stopped(Exception):
        pass

    scripts.train.CHECKPOINT_EVERY = 2
    saved = first.save

    def save_and_stop() -> None:
        saved()
        raise Stopped

    first.save = save_and_stop
    with pytest.raises(Stopped):
        first.together(4)
    second = scripts.train.Run(tmp_path / "halves", True, compiled=False)
    second.restore()
    assert second.done == 2
    second.together(4)
    for part in ("model", "head"):
        expected = getattr(whole, part).state_dict()
        assert all(torch.equal(one, expected[name]) for name, one in getattr(second, part).state_dict().items())


def test_the_head_is_trained_as_it_drafts(scripts: Any) -> None:
    """The training's whole-window formulation of a draft's steps equals the head with its cache, place by place."""
    from spanfold.backends.torch.caches import RowCache

    torch.manual_seed(3)
    model, head = scripts.network.fresh(50, 0)
    for norm in (head.layers[0].enorm, head.layers[0].hnorm, head.layers[0].norm, head.layers[0].block.input_layernorm):
        torch.nn.init.normal_(norm.weight, mean=1.0, std=0.3)
    length, depth = 12, 3
    ids = torch.randint(50, (1, length))
    config = model.config
    with torch.inference_mode():
        hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
        together = scripts.network.chain(model, head, hidden, ids, depth)
        cache = RowCache(1, config.num_key_value_heads, config.head_dim, length + depth, torch.float32, torch.device("cpu"))
        cache.reserve(length + depth)
        positions = torch.arange(length + depth + 1).unsqueeze(0)
        for place in range(length - depth):
            z = head(ids[:, place + 1 : place + 2], hidden[:, place : place + 1], positions[:, place + 1 : place + 2], cache)
            for step in range(1, depth + 1):
                torch.testing.assert_close(z[0, -1], together[step - 1][0, place], rtol=1e-4, atol=1e-5)
                if step < depth:
                    at = place + 1 + step
                    z = head(ids[:, at : at + 1], z, positions[:, at : at + 1], cache)
            cache.trim_to(place + 1)


def test_held_out_files_share_nothing_with_the_training_files(scripts: Any, tmp_path: Path) -> None:
    lines = [f"value_{number} = compute({number})" for number in range(400)]
    for number in range(64):
        own = lines[number * 5 : number * 5 + 5] * 8 + [f"only_{number}_{line} = {line}" for line in range(40)]
        (tmp_path / f"m{number}.py").write_text("\n".join(own) + "\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text("assert True\n" * 80)
    clean = scripts.stdlib_text.collect(tmp_path)
    assert clean.held_out and not clean.near_duplicates and not clean.train.keys() & clean.held_out.keys()
    assert all("tests" not in name for name in (*clean.train, *clean.held_out))
    copied = next(iter(clean.held_out))
    target = next(iter(clean.train))
    (tmp_path / target).write_text((tmp_path / target).read_text() + (tmp_path / copied).read_text())
    again = scripts.stdlib_text.collect(tmp_path)
    assert again.near_duplicates == (copied,) and copied not in again.held_out and copied not in again.train


def test_the_five_gram_model_is_a_probability_and_learns(scripts: Any) -> None:
    drawn = np.random.default_rng(0)
    chain = [0]
    for _ in range(6000):  # the next of 20 tokens is mostly the sum of the two before it
        chain.append((chain[-1] + chain[-2] if len(chain) > 1 and drawn.random() < 0.8 else int(drawn.integers(20))) % 20)
    tokens = np.array(chain)
    model = scripts.ngram.KneserNey(tokens[:5000], 20)
    for context in ([0, 1, 2, 3], [5, 5, 5, 5], [0, 0, 19, 2]):
        assert sum(float(model.probabilities(np.array([*context, token]))[0]) for token in range(20)) == pytest.approx(1.0)
    bits = -np.log2(model.probabilities(tokens[5000:])).mean()
    entropy = -(0.81 * np.log2(0.81) + 19 * 0.01 * np.log2(0.01))
    assert entropy < bits < 0.75 * np.log2(20)
