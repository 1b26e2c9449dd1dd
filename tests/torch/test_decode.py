"""The decode path against transformers' own modules, and what it promises about its rows."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch_loop import decode, draft, forward, settle, start
from torch_models import FAMILIES, VOCABULARY, tiny_head, tiny_model, tiny_runtime

from spanfold.backends.torch import TorchRuntime
from spanfold.backends.torch.decode import NEAR_ROWS
from spanfold.backends.torch.matrices import Packed, Plain, can_pack, matrix
from spanfold.engine import Decoder
from spanfold.engine.errors import ConfigError
from spanfold.engine.values import Sampling

CPU = torch.device("cpu")
TOKENS = tuple((7 * n + n * n) % VOCABULARY for n in range(90))
#: Of scores of some ten; the modules round bfloat16 and float16 in other places.
CLOSE = {torch.float32: 1e-4, torch.float16: 0.15, torch.bfloat16: 1.2}
PACKED = pytest.mark.skipif(not can_pack(torch.float32, CPU), reason="this torch packs no weights")


def scores_of(runtime: TorchRuntime, cuts: tuple[int, ...]) -> torch.Tensor:
    runtime.open_session(0, Sampling(), False)
    found: list[Any] = []
    base = 0
    for rows in cuts:
        found.append(forward(runtime, 0, base, TOKENS[base : base + rows], "all", logits=True).logits)
        base += rows
    runtime.drop_session(0)
    return torch.cat(found).float()


@pytest.mark.parametrize("dtype", CLOSE, ids=str)
@pytest.mark.parametrize("packed", [None, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_computes_what_transformers_modules_compute(family: str, packed: bool | None, dtype: torch.dtype) -> None:
    """Long and short forwards, around ``NEAR_ROWS`` and the rounding of the keys."""
    model = tiny_model(family).to(dtype)
    expected = scores_of(TorchRuntime(model, modules=True), (90,))
    for cuts in ((90,), (NEAR_ROWS + 1, 1, 2, 27, 1, 1, 3, NEAR_ROWS - 8), (1, 1, NEAR_ROWS, 31, 25)):
        found = scores_of(TorchRuntime(model, packed=packed), cuts)
        torch.testing.assert_close(found, expected, rtol=0, atol=CLOSE[dtype])


@pytest.mark.parametrize("changes", [{"attention_bias": True, "mlp_bias": True}, {"num_key_value_heads": 4}, {"num_key_value_heads": 1}])
@pytest.mark.parametrize("packed", [None, False])
def test_biases_and_every_grouping_of_heads(changes: dict[str, Any], packed: bool | None) -> None:
    model = tiny_model("llama", **changes)
    found = scores_of(TorchRuntime(model, packed=packed), (40, 1, 3, 1, 5))
    torch.testing.assert_close(found, scores_of(TorchRuntime(model, modules=True), (50,)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_heads_drafts_are_those_of_the_modules(family: str) -> None:
    model = tiny_model(family)
    head = tiny_head(model)
    runs = [decode(TorchRuntime(model, head=head, modules=modules), TOKENS[:6], 4, 60) for modules in (True, False)]
    assert runs[0] == runs[1]


def test_joined_parameters_are_views_and_the_model_is_the_same() -> None:
    """Without packing nothing is held twice, however many runtimes a model has."""
    model = tiny_model("qwen2")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    runtimes = [TorchRuntime(model, packed=False) for _ in range(2)]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    for layer in model.model.layers:
        parts = [layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj]
        assert len({part.weight.untyped_storage().data_ptr() for part in parts}) == 1
    targets: list[Any] = [runtime._target for runtime in runtimes]  # pyright: ignore[reportPrivateUsage]
    pair = [target.stack.layers[0]._qkv._weight for target in targets]
    assert pair[0].data_ptr() == pair[1].data_ptr() and targets[0].nbytes == 0
    assert torch.equal(scores_of(runtimes[0], (9, 1)), scores_of(runtimes[1], (9, 1)))


@PACKED
def test_packed_weights_are_copies_that_leave_the_model_alone() -> None:
    model = tiny_model("qwen2")
    pointers = {name: value.data_ptr() for name, value in model.named_parameters()}
    runtime: Any = TorchRuntime(model, packed=True)
    assert {name: value.data_ptr() for name, value in model.named_parameters()} == pointers
    linear = sum(value.nbytes for name, value in model.state_dict().items() if name.endswith("proj.weight"))
    assert runtime._target.nbytes == linear + model.lm_head.weight.nbytes


@PACKED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2, 5, 40])
def test_a_packed_product_is_the_product(rows: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(rows)
    linears = [torch.nn.Linear(48, width, bias=bias).to(dtype).requires_grad_(False) for width, bias in ((40, True), (24, False))]
    x = torch.randn(rows, 48, generator=generator).to(dtype)
    other = torch.randn(rows, 64, generator=generator).to(dtype)
    packed, plain = matrix(linears, True), matrix(linears, False)
    assert isinstance(packed, Packed) and isinstance(plain, Plain)
    expected = torch.cat([linear(x) for linear in linears], dim=1).float()
    for one in (packed, plain):
        torch.testing.assert_close(one(x).float(), expected, rtol=2e-2, atol=2e-2)
        torch.testing.assert_close(one.plus(x, other).float(), expected + other.float(), rtol=2e-2, atol=4e-2)


@PACKED
@pytest.mark.parametrize(
    ("changes", "dtype", "threads"),
    [
        ({}, torch.float32, 1),
        ({}, torch.float32, 2),
        ({}, torch.bfloat16, 1),
        ({"num_key_value_heads": 1}, torch.float32, 1),  # groups of four heads: the keys come in larger steps
    ],
    ids=str,
)
def test_a_row_does_not_depend_on_the_rows_beside_it(changes: dict[str, Any], dtype: torch.dtype, threads: int) -> None:
    """What ``row_exact`` says, for real forwards: every split of 48 rows gives the scores of one row at a time, to the bit."""
    torch.set_num_threads(threads)
    try:
        model = tiny_model("llama", max_position_embeddings=600, **changes).to(dtype)
        runtime = TorchRuntime(model)
        assert runtime.info.row_exact is True
        for base in (3, 250, 505):
            runtime.open_session(0, Sampling(), False)
            prompt = [(5 * n + base) % VOCABULARY for n in range(base)]
            forward(runtime, 0, 0, prompt, "none")
            alone = [forward(runtime, 0, base + n, TOKENS[n : n + 1], logits=True).logits for n in range(16)]
            for width in (2, 3, 5, 16):
                settle(runtime, 0, base, 16, base)
                for at in range(0, 16, width):
                    part = TOKENS[at : min(at + width, 16)]
                    together: Any = forward(runtime, 0, base + at, part, "all", canonical=True, logits=True).logits
                    assert torch.equal(together, torch.cat(alone[at : at + width])), (base, width, at)  # pyright: ignore[reportArgumentType]
            runtime.drop_session(0)
    finally:
        torch.set_num_threads(1)


@PACKED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_a_span_wider_than_any_head_drafts_is_exact_too(dtype: torch.dtype) -> None:
    """Prompt lookup may draft hundreds of tokens. Such rows attended in one call, as a prompt's do, and differed in their last bits."""
    runtime = TorchRuntime(tiny_model("llama", max_position_embeddings=600).to(dtype))
    assert runtime.info.row_exact is True
    base, most = 250, 2 * NEAR_ROWS + 1
    runtime.open_session(0, Sampling(), False)
    forward(runtime, 0, 0, [(5 * n + 1) % VOCABULARY for n in range(base)], "none")
    rows: list[Any] = [forward(runtime, 0, base + n, TOKENS[n : n + 1], logits=True).logits for n in range(most)]
    alone = torch.cat(rows)
    settle(runtime, 0, base, most, base)
    for width in (NEAR_ROWS, NEAR_ROWS + 1, 41, most):
        together: Any = forward(runtime, 0, base, TOKENS[:width], "all", canonical=False, logits=True).logits
        assert torch.equal(together, alone[:width]), width
        settle(runtime, 0, base, width, base)
        assert runtime.view(0).position == base  # pyright: ignore[reportOptionalMemberAccess]


def test_an_interrupt_while_tables_grow_leaves_every_session_right() -> None:
    """All sessions share them: parts of two sizes would shift every mask from then on. It comes at each line of their making in turn."""
    model = tiny_model("llama", max_position_embeddings=4096)
    tokens = [(5 * n + 1) % VOCABULARY for n in range(40)]
    start(plain := TorchRuntime(model, modules=True), tokens[:39])
    expected = forward(plain, 0, 39, tokens[39:], "last", logits=True).logits
    line, interrupted = 0, True
    while interrupted:
        line += 1
        runtime: Any = TorchRuntime(model, modules=False)
        grow = partial(runtime._target.stack._tables.reserve, 1500)
        interrupted = _interrupted_at(line, grow)
        start(runtime, tokens[:39])
        torch.testing.assert_close(forward(runtime, 0, 39, tokens[39:], "last", logits=True).logits, expected, rtol=1e-4, atol=1e-4)
    assert line > 8  # it did come, at several lines


def _interrupted_at(line: int, call: Callable[[], object]) -> bool:
    """Whether an interrupt at the ``line``-th line that the decode path executes ended the call."""
    seen = 0

    def trace(frame: Any, event: str, _: object) -> Any:
        nonlocal seen
        if not frame.f_code.co_filename.endswith("decode.py"):
            return None
        if event == "line":
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


@pytest.mark.parametrize("packed", [None, False])
def test_a_weight_of_other_strides_is_the_same_weight(packed: bool | None) -> None:
    """A model merged or transposed in memory need not have contiguous weights; they were read as if they were."""
    expected = scores_of(TorchRuntime(tiny_model("llama"), modules=True), (9, 1, 3))
    model = tiny_model("llama")
    for layer in model.model.layers:
        for linear in (layer.mlp.down_proj, layer.self_attn.o_proj, layer.self_attn.q_proj, layer.mlp.up_proj):
            linear.weight.data = linear.weight.data.t().contiguous().t()
    model.lm_head.weight.data = model.lm_head.weight.data.t().contiguous().t()
    torch.testing.assert_close(scores_of(TorchRuntime(model, modules=False, packed=packed), (9, 1, 3)), expected, rtol=1e-4, atol=1e-4)


@PACKED
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_speculation_changes_no_token_at_all_where_rows_are_exact(family: str, dtype: torch.dtype) -> None:
    """Equal, not up to near ties: many prompts, all widths; in bfloat16 a tiny model has ties in plenty."""
    model = tiny_model(family).to(dtype)
    head = tiny_head(model).to(dtype)
    runtime = TorchRuntime(model, head=head)
    assert runtime.info.row_exact is True
    for number in range(4):
        prompt = [(11 * number + 3 * n * n + n) % VOCABULARY for n in range(2 + 3 * number)]
        with Decoder(runtime, policy=0) as decoder:
            expected = decoder.generate(prompt, max_tokens=50).tokens
        for width in (1, 2, 4):
            with Decoder(runtime, policy=width) as decoder:
                result = decoder.generate(prompt, max_tokens=50)
            assert result.tokens == expected and result.stats.spans > 0
    runtime.close()


@pytest.mark.parametrize("row_width", [1, 2, 5, NEAR_ROWS])
def test_padding_is_never_kept_and_never_seen(row_width: int) -> None:
    """Positions are those of the real rows, at the end of the context too, and the tokens are the same."""
    runtime = tiny_runtime("llama", row_width=row_width)
    plain = tiny_runtime("llama", modules=True)
    assert decode(runtime, TOKENS[:5], 3, 60) == decode(plain, TOKENS[:5], 3, 60)
    for one in (runtime, plain):
        one.open_session(0, Sampling(), True)
        forward(one, 0, 0, TOKENS[:90])
        draft(one, 0, 7, 2)
        assert one.view(0).position == one.view(0).head_position == 90  # pyright: ignore[reportOptionalMemberAccess]
        for position in range(90, 96):
            assert forward(one, 0, position, [7]).position == position + 1


def test_what_the_path_cannot_do_is_said() -> None:
    model = tiny_model("llama")
    for options, words in [
        ({"row_width": 0}, f"row_width must be an integer from 1 .* to {NEAR_ROWS}"),
        ({"row_width": NEAR_ROWS + 1}, "row_width"),
        ({"row_width": True}, "row_width"),
        ({"modules": "false"}, "modules must be True, False or None, not 'false'"),
        ({"packed": 1}, "packed must be True, False or None, not 1"),
        ({"modules": True, "row_width": 2}, "belong to the decode path"),
        ({"modules": True, "packed": True}, "belong to the decode path"),
    ]:
        with pytest.raises(ConfigError, match=words):
            TorchRuntime(model, **options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"packed weights need float32 or bfloat16 .* this is torch\.float16 on cpu"):
        TorchRuntime(tiny_model("llama").half(), packed=True)
    other = tiny_model("llama", hidden_act="gelu")
    with pytest.raises(ConfigError, match="the decode path cannot run it .hidden_act is 'gelu'"):
        TorchRuntime(other, modules=False)
    run = start(TorchRuntime(other), TOKENS[:5])  # left open, transformers' modules run it
    assert len(run.tokens) == 1
