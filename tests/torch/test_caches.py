"""The caches: trimming moves a length, and transformers' own code runs on them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_models import FAMILIES, tiny_model

from spanfold.backends.torch import RowCache
from spanfold.backends.torch.caches import BLOCK


def cache(limit: int = 1000, layers: int = 2) -> RowCache:
    return RowCache(layers, 2, 4, limit, torch.float32, torch.device("cpu"))


def rows(count: int, start: int = 0) -> torch.Tensor:
    return torch.arange(start, start + count, dtype=torch.float32).view(1, 1, count, 1).expand(1, 2, count, 4) + 1


def write(target: RowCache, count: int, start: int = 0) -> None:
    for layer in range(len(target.layers)):
        target.update(rows(count, start), -rows(count, start), layer)


def test_case_1_3_a_trim_to_zero_leaves_nothing_and_one_beyond_the_rows_is_refused() -> None:
    held = cache()
    write(held, 3)
    with pytest.raises(ValueError, match="cannot trim 3 rows to 4"):
        held.trim_to(4)
    with pytest.raises(ValueError, match="cannot trim 3 rows to -2"):
        held.trim_to(-2)
    with pytest.raises(ValueError, match="cannot trim 3 rows to -2"):
        held.crop(-5)
    assert held.rows == 3
    held.trim_to(0)
    assert held.rows == 0 and held.get_seq_length() == 0


def test_crop_takes_minus_the_number_to_remove_as_transformers_does() -> None:
    held = cache()
    write(held, 5)
    held.crop(-2)
    assert held.rows == 3
    held.crop(0)
    assert held.rows == 3
    with pytest.raises(ValueError, match="minus the number of rows to remove"):
        held.crop(2)
    assert held.rows == 3


def test_rows_written_after_a_trim_replace_those_that_were_cut() -> None:
    held = cache()
    write(held, 5)
    held.trim_to(2)
    write(held, 2, start=10)
    keys, values = held.update(rows(1, 20), -rows(1, 20), 0)
    assert keys[0, 0, :, 0].tolist() == [1, 2, 11, 12, 21]
    assert values[0, 1, :, 3].tolist() == [-1, -2, -11, -12, -21]


def test_buffers_grow_in_blocks_and_keep_their_rows() -> None:
    held = cache(limit=5 * BLOCK)
    assert held.nbytes == 0
    write(held, 3)
    layer = held.layers[0]
    assert layer.capacity == BLOCK
    write(held, BLOCK, start=3)
    assert layer.capacity == 2 * BLOCK
    assert layer.keys is not None and layer.keys[0, 0, :, 0].tolist() == [float(n) for n in range(1, BLOCK + 4)]
    held.reserve(5 * BLOCK)
    assert layer.capacity == 5 * BLOCK
    with pytest.raises(ValueError, match="limit"):
        held.reserve(5 * BLOCK + 1)


def test_case_7_10_unused_rows_are_zero() -> None:
    held = cache()
    write(held, 3)
    layer = held.layers[1]
    assert not layer._keys[:, :, 3:].any() and not layer._values[:, :, 3:].any()  # pyright: ignore[reportPrivateUsage]


def test_rows_are_those_that_every_layer_holds() -> None:
    """A forward that fails half-way has written some layers only."""
    held = cache()
    write(held, 3)
    held.update(rows(2, 3), rows(2, 3), 0)
    assert held.layers[0].length == 5 and held.rows == 3
    with pytest.raises(ValueError, match="cannot trim 3 rows to 4"):
        held.trim_to(4)
    held.trim_to(3)
    assert [layer.length for layer in held.layers] == [3, 3]


def test_what_would_break_the_buffers_is_refused() -> None:
    held = cache()
    write(held, 1)
    beams: Any = torch.tensor([0])
    for call in (lambda: held.reorder_cache(beams), held.layers[0].offload, held.layers[0].prefetch):
        with pytest.raises(NotImplementedError):
            call()
    held.reset()
    assert held.rows == 0 and not held.layers[0]._keys.any()  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_own_forward_runs_on_them(family: str) -> None:
    model = tiny_model(family)
    config = model.config
    held = RowCache(
        config.num_hidden_layers, config.num_key_value_heads, config.head_dim if family == "qwen3" else 8, 96, torch.float32, model.device
    )
    ids = torch.arange(3, 23).view(1, -1)
    with torch.inference_mode():
        plain = model(input_ids=ids, use_cache=False).logits[0]
        first = model(input_ids=ids[:, :12], cache=held, use_cache=True).logits[0]
        second = model(input_ids=ids[:, 12:], cache=held, use_cache=True).logits[0]
    assert held.rows == 20 and held.is_croppable
    torch.testing.assert_close(torch.cat([first, second]), plain, rtol=1e-4, atol=1e-4)
