"""Native MTP of the model families: tokens, first drafts, rollback and loading, on tiny checkpoints in each family's own key layout."""

from __future__ import annotations

import copy
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tiny_families
import torch
import transformers
from attrs import evolve
from patterned import Patterned
from plain_mtp import head_logits
from safetensors.torch import load_file, save_file
from tiny_families import FAMILIES
from torch_loop import assert_same, decode, draft, forward, greedy, settle, start
from torch_models import successor_model, tiny_head, tiny_model

from spanfold.backends.conformance import conform
from spanfold.backends.torch import ARCHITECTURES, CONTRACTS, MtpHead, TorchRuntime
from spanfold.backends.torch.families import contract_of
from spanfold.backends.torch.loading import load
from spanfold.backends.torch.model_cache import ModelCache
from spanfold.engine import Decoder, Record, SessionOpened, SpanRefused, SpanVerified
from spanfold.engine.errors import ConfigError, DecodeFailed
from spanfold.engine.runtime import Settle, Settled

PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 97, 93)
#: What each cache can do.
_LIMITED = ("qwen3_next", "qwen3_5", "qwen3_5_moe", "nemotron_h", "exaone_moe", "mimo_v2", "step3p5")
ROLLBACK = {family: "checkpoint" if family in _LIMITED else "crop" for family in FAMILIES}
CHAINED = ("mimo_v2", "step3p5")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("families")
    return {family: tiny_families.write(family, folder / family) for family in FAMILIES}


def reference(family: str, folder: Path, attention: str | None = None) -> Any:
    """The target as transformers loads it."""
    return tiny_families.class_of(family).from_pretrained(folder, attn_implementation=attention).eval()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_tokens_are_those_of_transformers_own_generation(family: str, attention: str, checkpoints: dict[str, Path]) -> None:
    """Own drafts, wrong drafts and none, past the window: cases 1.1, 1.2, 1.5, 4.1."""
    if (family, attention) == ("mimo_v2", "sdpa"):
        pytest.skip("transformers runs this family without sdpa")
    model = reference(family, checkpoints[family], attention)
    expected = greedy(model, PROMPT, 48)
    assert len(set(expected)) > 8
    runtime = TorchRuntime.from_pretrained(checkpoints[family], attn_implementation=attention)
    for width in (0, 1, 2, 3, 5):
        got = decode(runtime, PROMPT, width, 48)
        assert_same(model, PROMPT, got.tokens[:48], expected, 1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_number_of_kept_rows_leads_to_the_same_tokens(family: str, checkpoints: dict[str, Path]) -> None:
    """Case 1.1: after a span of which some drafts were right, and after none, the same follows; the cost is said."""
    runtime = TorchRuntime.from_pretrained(checkpoints[family])
    expected = decode(runtime, PROMPT, 0, 30).tokens
    start(runtime, PROMPT)
    base, session = len(PROMPT), 0
    for kept in range(4):
        right = expected[: kept + 1]
        wrong = tuple((token + 1) % 128 for token in expected[kept + 1 : 4])
        rows = forward(runtime, session, base, (*right, *wrong), "all", canonical=False)
        assert rows.predictions[: kept + 1] == expected[1 : kept + 2]
        (settled,) = runtime.settle([Settle(session=session, base=base, rows=4, position=base + kept + 1)])
        assert isinstance(settled, Settled)
        assert settled.position == base + kept + 1
        recurrent = "recurrent" in runtime.info.rollback_note
        assert settled.replayed_rows == (kept + 1 if recurrent and kept < 3 else 0)
        base, expected = base + kept + 1, expected[kept + 1 :]
        view = runtime.view(session)
        assert view is not None and view.position == base and not view.checkpoint


@pytest.mark.parametrize("family", _LIMITED)
@pytest.mark.parametrize("every", [1, 2, 3])
def test_cases_1_1_and_1_5_wrong_drafts_turns_and_rewinds_change_no_token(family: str, every: int, checkpoints: dict[str, Path]) -> None:
    """Through the decoder: spans of which some drafts are wrong, then rewinds beyond what the cache reaches, and going on."""
    runtime = TorchRuntime.from_pretrained(checkpoints[family])
    with Decoder(runtime, policy=0) as serial:
        expected = serial.generate(PROMPT, max_tokens=40).tokens
        source = Patterned((*PROMPT, *expected), 128, lambda index: index % every == every - 1)
        with Decoder(runtime, policy=3, source=source) as decoder:
            result = decoder.generate(PROMPT, max_tokens=40)
        assert_same(reference(family, checkpoints[family]), PROMPT, result.tokens, expected, 1e-4)
        stats = result.stats
        assert stats.spans > 0 and stats.forwards + stats.saved_forwards == len(result.tokens)
        assert (stats.replay_forwards > 0) == ("recurrent" in runtime.info.rollback_note)
        with Decoder(runtime, policy=3) as decoder, decoder.open(PROMPT, max_tokens=90) as session:
            list(session)
            for back, more in [(2, (7, 8)), (95, (50,)), (1, ())]:
                session.rewind(back)
                session.extend(more, max_tokens=10)
                given = tuple(session.state.canonical)
                assert tuple(session) == serial.generate(given, max_tokens=10).tokens
    assert runtime.live_sessions == 0


@pytest.mark.parametrize("family", ["exaone_moe", "mimo_v2", "qwen3_5", "nemotron_h"])
@pytest.mark.parametrize("width", [0, 3])
def test_case_1_5_layers_that_record_their_past_are_shrunk_after_every_forward_not_only_at_trims(
    family: str, width: int, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Serial steps, fully accepted spans and rejected ones: what windows and recurrent states hold does not grow with the session."""
    runtime = TorchRuntime.from_pretrained(checkpoints[family])
    monkeypatch.setattr("spanfold.backends.torch.model_cache.SLACK", 2)
    expected = decode(runtime, PROMPT, 0, 64).tokens
    source = Patterned((*PROMPT, *expected), 128, lambda index: index % 7 == 0)
    held: list[int] = []
    with Decoder(runtime, policy=width, source=source) as decoder, decoder.open(PROMPT, max_tokens=60) as session:
        for _ in session:
            caches: list[Any] = [one.cache for one in runtime._sessions.values()]  # pyright: ignore[reportPrivateUsage]
            layers = [layer for cache in caches for layer in cache.library.layers]
            windows = [layer.keys.shape[2] for layer in layers if getattr(layer, "sliding_window", None) is not None]
            states = [one.shape[-1] for layer in layers for one in getattr(layer, "conv_states", {}).values() if one is not None]
            held.append(max(windows + states))
    assert len(held) == 60 and max(held[30:]) <= max(held[:30])


@pytest.mark.parametrize("family", ["exaone_moe", "qwen3_5"])
def test_law_8_a_forward_that_fails_half_way_leaves_the_session_canonical_or_dropped(family: str, checkpoints: dict[str, Path]) -> None:
    """A span goes back to its base; a canonical row of a recurrent model has no way back, and its session is dropped."""
    runtime = TorchRuntime.from_pretrained(checkpoints[family])
    decoder_layers: Any = runtime._model.get_decoder().layers  # pyright: ignore[reportPrivateUsage]

    def fail(*args: Any) -> None:
        raise RuntimeError("half-way")

    with Decoder(runtime, policy=0) as serial:
        expected = serial.generate(PROMPT, max_tokens=20).tokens
    for width in (0, 3):
        with Decoder(runtime, policy=width) as decoder, decoder.open(PROMPT, max_tokens=20) as session:
            taken = [next(iter(session)) for _ in range(3)]
            hook = decoder_layers[2].register_forward_hook(fail)
            with pytest.raises(DecodeFailed, match="half-way"):
                list(session)
            hook.remove()
            if family == "qwen3_5" and width == 0:
                assert session.state.phase == "dropped"
            else:
                assert session.state.phase == "ready"
                assert tuple(session.state.canonical)[len(PROMPT) :] == expected[: len(session.state.canonical) - len(PROMPT)]
                list(session)
                assert tuple(session.state.canonical)[len(PROMPT) :] == expected
            assert tuple(taken) == expected[:3]
    assert runtime.live_sessions == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_cache_can_do_is_measured_and_said(family: str, checkpoints: dict[str, Path]) -> None:
    runtime = TorchRuntime.from_pretrained(checkpoints[family])
    assert runtime.info.rollback == ROLLBACK[family]
    assert bool(runtime.info.rollback_note) == (runtime.info.rollback != "crop")


def _dirty_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("spanfold.backends.torch.model_cache._State.put_back", lambda state, layer: None)


def _restart_from_zero(patch: pytest.MonkeyPatch) -> None:
    before = ModelCache.before

    def forgetting(cache: ModelCache, rows: int, canonical: bool) -> None:
        before(cache, rows, canonical)
        if rows > 1:
            layers: list[Any] = cache.library.layers
            for state in [state for layer in layers for state in getattr(layer, "recurrent_states", {}).values() if state is not None]:
                state.zero_()

    patch.setattr(ModelCache, "before", forgetting)


def _no_past(patch: pytest.MonkeyPatch) -> None:
    """Windows are cut to their width first, then by the wrong rows: the rows before them are missing."""

    def shorten(layer: Any, rows: int) -> None:
        extra, window = layer.get_seq_length() - rows, getattr(layer, "sliding_window", None)
        if window is None:
            return layer.crop(-max(extra, 0))
        if extra > 0:
            layer.keys, layer.values = layer.keys[:, :, 1 - window : -extra], layer.values[:, :, 1 - window : -extra]
            layer.cumulative_length -= extra

    patch.setattr("spanfold.backends.torch.model_cache._shorten", shorten)


@pytest.mark.parametrize(
    ("family", "broken", "context", "why"),
    [
        ("qwen3_5", _dirty_state, None, "leaves something of the others"),
        ("qwen3_5", _restart_from_zero, None, "does not go on from the cached state"),
        ("exaone_moe", _no_past, None, "a forward after a cut of 4 rows to 0 fails: RuntimeError: "),
        ("exaone_moe", None, 20, "a context of 20 tokens is too short"),
    ],
)
def test_cases_1_2_and_1_6_a_cache_that_cannot_go_back_decodes_serially_and_the_session_says_why(
    family: str, broken: Any, context: int | None, why: str, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by the probe, whatever the class's name: no span is fed, and the reason is in the log."""
    with monkeypatch.context() as patch:
        if broken is not None:
            broken(patch)
        runtime = TorchRuntime.from_pretrained(checkpoints[family], context_length=context)
    assert runtime.info.rollback == "none" and why in runtime.info.rollback_note
    records: list[Record] = []
    with Decoder(runtime, policy=3, observers=[records.append]) as decoder:
        tokens = decoder.generate(PROMPT, max_tokens=6).tokens
    assert_same(reference(family, checkpoints[family]), PROMPT, tokens, greedy(reference(family, checkpoints[family]), PROMPT, 6), 1e-4)
    events = [record.event for record in records]
    assert isinstance(events[0], SessionOpened) and why in events[0].runtime.rollback_note
    assert not any(isinstance(event, SpanVerified) for event in events)
    assert {event.reason for event in events if isinstance(event, SpanRefused)} == {"no_rollback"}


@pytest.mark.parametrize("family", FAMILIES)
def test_law_11_a_draft_depends_on_the_canonical_tokens_alone(family: str, checkpoints: dict[str, Path]) -> None:
    runtime = TorchRuntime.from_pretrained(checkpoints[family])
    tokens = decode(runtime, PROMPT, 0, 24).tokens
    start(runtime, PROMPT)
    at, current = len(PROMPT), tokens[0]
    position = at
    for kept in (0, 2, 1, 3, 0):
        proposed = draft(runtime, 0, current, 3)
        assert draft(runtime, 0, current, 2) == proposed[:2]
        start(runtime, (*PROMPT, *tokens[: position - at]), session=1)
        assert draft(runtime, 1, current, 3) == proposed
        runtime.drop_session(1)
        span = tokens[position - at : position - at + 4]
        forward(runtime, 0, position, span, "all", canonical=False)
        settle(runtime, 0, position, 4, position + kept + 1)
        position += kept + 1
        current = tokens[position - at]
        view = runtime.view(0)
        assert view is not None and view.head_position is not None and view.head_position <= position


@pytest.mark.parametrize("family", FAMILIES)
def test_head_logits_equal_the_plain_formulation(family: str, checkpoints: dict[str, Path]) -> None:
    """Every step of a draft, recycled and chained, after a prompt and after a partly accepted span: cases 6.3, 6.4, 6.6, 6.9."""
    runtime = TorchRuntime.from_pretrained(checkpoints[family], modules=True)
    tensors = load_file(checkpoints[family] / "model.safetensors")
    config = runtime._config  # pyright: ignore[reportPrivateUsage]
    drafting: Any = runtime._drafting  # pyright: ignore[reportPrivateUsage]
    target: Any = runtime._target  # pyright: ignore[reportPrivateUsage]
    original, seen = drafting.scores, list[torch.Tensor]()

    def noted(state: torch.Tensor, layer: int = 0) -> torch.Tensor:
        seen.append(original(state, layer))
        return seen[-1]

    drafting.scores = noted
    tokens = decode(runtime, PROMPT, 0, 12).tokens
    start(runtime, PROMPT)
    for count in (1, 3):
        canonical = (*PROMPT, *tokens[:count])
        seen.clear()
        drafted = draft(runtime, 0, canonical[-1], 5)
        cache = ModelCache(config)
        with torch.inference_mode():
            _, fed = target.run(canonical[:-1], 0, cache)
        expected = head_logits(family, tensors, config, canonical, fed, 5)
        for step, (got, wanted) in enumerate(zip(seen, expected, strict=True)):
            torch.testing.assert_close(got[-1].double(), wanted[-1].double(), rtol=1e-3, atol=1e-3, msg=lambda m, s=step: f"step {s}: {m}")
        assert drafted == tuple(int(one[-1].argmax()) for one in expected)
        forward(runtime, 0, len(canonical) - 1, (*tokens[count - 1 : count + 1], 5, 6), "all", canonical=False)
        settle(runtime, 0, len(canonical) - 1, 4, len(canonical) + 1)


@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe"])
def test_the_first_draft_is_that_of_transformers_own_mtp(family: str, checkpoints: dict[str, Path]) -> None:
    from transformers.cache_utils import MtpCache
    from transformers.modeling_layers import MtpModel

    model = reference(family, checkpoints[family])
    # Their list of MTP keys names the layers of the published sizes.
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\..*"]
    theirs = MtpModel.from_pretrained(model).eval()
    runtime = TorchRuntime.from_pretrained(checkpoints[family])
    tokens = decode(runtime, PROMPT, 0, 12).tokens
    for count in (1, 4, 9):
        canonical = (*PROMPT, *tokens[:count])
        start(runtime, canonical[:-1])
        ids = torch.tensor([canonical])
        with torch.inference_mode():
            hidden = model.model(input_ids=ids[:, :-1], use_cache=False).last_hidden_state
            found, _, _ = theirs(
                input_ids=ids[:, 1:],
                last_hidden_states=hidden,
                attention_mask=None,
                position_ids=torch.arange(1, len(canonical)).unsqueeze(0),
                mtp_cache=MtpCache(config=model.config.get_mtp_config()),
            )
        assert draft(runtime, 0, canonical[-1], 1) == tuple(found[0, :1].tolist())
        runtime.drop_session(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_checkpoint_is_loaded_in_shards_without_a_word(family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tiny_families.write(family, tmp_path, shards=True)
    capfd.readouterr()
    runtime = TorchRuntime.from_pretrained(tmp_path)
    assert capfd.readouterr().out == ""
    assert runtime.info.draft is not None and runtime.info.draft.layers == (3 if family in CHAINED else 1)
    assert TorchRuntime.from_pretrained(tmp_path, draft=False).info.draft is None


@pytest.mark.parametrize("family", FAMILIES)
def test_case_6_1_a_missing_or_foreign_mtp_tensor_is_named(family: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(checkpoints[family] / "model.safetensors")
    (tmp_path / "config.json").write_text((checkpoints[family] / "config.json").read_text())
    key = next(key for key in sorted(tensors) if key.endswith(("eh_proj.weight", "mtp.fc.weight", "mtp_linear_proj.0.weight")))
    less = {name: value for name, value in tensors.items() if name != key}
    save_file(less, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"lacks the tensor {key}"):
        TorchRuntime.from_pretrained(tmp_path)
    save_file(less | {key: torch.zeros(3, 3)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=f"{key} has shape"):
        TorchRuntime.from_pretrained(tmp_path)
    foreign = key.rsplit(".", 2)[0] + ".surplus.weight"
    save_file(tensors | {foreign: torch.zeros(3)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="surplus"):
        TorchRuntime.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_5_moe", "nemotron_h"])
def test_case_6_1_a_missing_expert_is_an_error(family: str, checkpoints: dict[str, Path], tmp_path: Path) -> None:
    """Experts are stored one by one and loaded as one tensor: one that lacks would make the others another's."""
    tensors = load_file(checkpoints[family] / "model.safetensors")
    (tmp_path / "config.json").write_text((checkpoints[family] / "config.json").read_text())
    mtp = tiny_families.mtp_keys(family)
    key = next(key for key in sorted(mtp) if "experts.1." in key and "up_proj" in key)
    del tensors[key]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match="MTP layer"):
        TorchRuntime.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_norm_offset_is_what_the_targets_norm_adds(family: str, checkpoints: dict[str, Path]) -> None:
    runtime = TorchRuntime.from_pretrained(checkpoints[family])
    head: Any = runtime._head  # pyright: ignore[reportPrivateUsage]
    norm = copy.deepcopy(head.layers[0].enorm)
    with torch.no_grad():
        norm.weight.zero_()
        out = norm(torch.ones(1, norm.weight.shape[0]))
    torch.testing.assert_close(out, torch.full_like(out, float(head.contract.norm_offset)), rtol=1e-3, atol=1e-3)


def test_an_unknown_layout_is_an_error_that_lists_the_keys(checkpoints: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(checkpoints["qwen3_5"] / "model.safetensors")
    (tmp_path / "config.json").write_text((checkpoints["qwen3_5"] / "config.json").read_text())
    renamed = {("draft." + key if key.startswith("mtp.") else key): value for key, value in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layout that is unknown for Qwen3-Next and Qwen3.5; it holds draft\.mtp\..* more"):
        TorchRuntime.from_pretrained(tmp_path)


def test_several_layers_where_one_is_recycled_are_refused() -> None:
    with pytest.raises(ConfigError, match="one MTP layer, which is recycled"):
        MtpHead(tiny_model("llama"), layers=2)


def test_every_contract_is_complete() -> None:
    for contract in CONTRACTS:
        here = {leaf.split(".")[0] for _, leaf in contract.names}
        assert {"enorm", "hnorm", "eh_proj", "block"} <= here
        assert ("norm" in here) == contract.final_norm
        assert not contract.own_head or "head" in here
        assert contract.source and contract.checkpoints
        assert all(hasattr(transformers, ARCHITECTURES[one]) for one in contract.architectures)


@pytest.mark.parametrize("change", [{"concat": "hidden_first"}, {"recycled": "pre"}, {"position": "hidden"}, {"final_norm": False}])
def test_each_knob_of_a_contract_changes_the_states(change: dict[str, Any]) -> None:
    """A shift of all positions alone does not, under rotary positions: it is pinned where the pairs are placed (test_head)."""
    model = tiny_model("llama")
    right = tiny_head(model)
    other = MtpHead(model, evolve(right.contract, **change))
    other.load_state_dict(right.state_dict(), strict=change != {"final_norm": False})
    drafts: list[tuple[int, ...]] = []
    logits: list[torch.Tensor] = []
    for head in (right, other.eval().requires_grad_(False)):
        runtime = TorchRuntime(model, head=head, modules=True)
        start(runtime, (3, 1, 4, 1, 5))
        drafting: Any = runtime._drafting  # pyright: ignore[reportPrivateUsage]
        original, seen = drafting.scores, list[torch.Tensor]()

        def noted(state: torch.Tensor, layer: int = 0, original: Any = original, seen: Any = seen) -> torch.Tensor:
            seen.append(original(state, layer))
            return seen[-1]

        drafting.scores = noted
        drafts.append(draft(runtime, 0, 9, 4))
        logits.append(torch.cat(seen))
    same = bool(torch.allclose(logits[0], logits[1], atol=1e-4))
    assert same == ("position" in change)


#: Contracts of a dense model that between them set every knob both ways, with the number of layers: (a), and what may be got wrong (b).
_KNOBS: dict[str, tuple[dict[str, Any], int, tuple[dict[str, Any], ...]]] = {
    "one layer, recycled": ({}, 1, ({"concat": "hidden_first"}, {"fed": "pre"}, {"recycled": "pre"}, {"final_norm": False}, {"offset": 1})),
    "before the norms, hidden first": (
        {"concat": "hidden_first", "fed": "pre", "recycled": "pre"},
        1,
        ({"concat": "embedding_first"}, {"fed": "post"}, {"recycled": "post"}, {"final_norm": False}, {"offset": 1}),
    ),
    "without a final norm": ({"final_norm": False}, 1, ({"concat": "hidden_first"}, {"fed": "pre"})),
    "an output matrix of its own": (
        {"fed": "pre", "recycled": "pre", "own_head": True},
        1,
        ({"own_head": False}, {"fed": "post"}, {"recycled": "post"}, {"final_norm": False}),
    ),
    "a chain": (
        {"chain": "layers", "own_head": True},
        3,
        ({"chain": "recycle"}, {"own_head": False}, {"recycled": "pre"}, {"fed": "pre"}, {"concat": "hidden_first"}, {"offset": 1}),
    ),
    "a chain, before the norms": (
        {"chain": "layers", "fed": "post", "recycled": "pre", "own_head": True},
        3,
        ({"chain": "recycle"}, {"own_head": False}, {"recycled": "post"}, {"fed": "pre"}),
    ),
}


def _accepted(model: Any, head: MtpHead, width: int = 2, modules: bool | None = None) -> float:
    """Accepted / drafted from several first tokens, so that full spans begin at even and odd ones; the tokens are right in any case."""
    runtime, spans = TorchRuntime(model, head=head, modules=modules), list[tuple[int, int]]()
    for first in (6, 7):
        run = decode(runtime, tuple(range(first - 3, first)), width, 40)
        assert run.tokens[:40] == tuple((first + n) % 24 for n in range(40))
        spans += run.spans
    return sum(matched for _, matched in spans) / sum(drafted for drafted, _ in spans)


@pytest.mark.parametrize(("knobs", "layers"), [(knobs, layers) for knobs, layers, _ in _KNOBS.values()], ids=list(_KNOBS))
def test_the_contract_that_a_model_was_made_for_accepts_every_draft(knobs: dict[str, Any], layers: int) -> None:
    made = evolve(contract_of("LlamaForCausalLM"), **knobs)
    """Cases 6.3 and 6.4 for every knob. The decode path, which knows one contract, leaves the others to the modules."""
    for modules in (None, True):
        for width in (1, 2, 3):
            assert _accepted(*successor_model(made, layers), width, modules) == 1.0
    if knobs:
        with pytest.raises(ConfigError, match=f"its MTP head is of another contract than .*: .*{next(iter(knobs))}"):
            model, head = successor_model(made, layers)
            TorchRuntime(model, head=head, modules=False)
    # Every row's position one higher or lower: rotary attention sees differences alone. Logits pin it: test_head, test_plain_mtp.
    model, head = successor_model(made, layers)
    head.contract = evolve(made, position="hidden")
    assert _accepted(model, head) == 1.0


def test_a_block_of_another_config_or_kind_is_left_to_the_modules() -> None:
    model, made = tiny_model("llama"), contract_of("LlamaForCausalLM")
    assert TorchRuntime(model, head=MtpHead(model), modules=False).info.draft is not None
    others: tuple[dict[str, Any], ...] = ({"layer_config": lambda config, layers: config}, {"block": lambda target, config, index: None})
    for changes in others:
        with pytest.raises(ConfigError, match=f"of another contract than .*: {next(iter(changes))}"):
            head = MtpHead(model, made)
            head.contract = evolve(made, **changes)
            TorchRuntime(model, head=head, modules=False)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [(name, wrong) for name, (_, _, several) in _KNOBS.items() for wrong in several],
    ids=lambda one: one if isinstance(one, str) else "-".join(map(str, (*one, *one.values()))),
)
def test_every_other_setting_of_a_knob_loses_drafts_and_no_token(name: str, wrong: dict[str, Any]) -> None:
    knobs, layers, _ = _KNOBS[name]
    made = evolve(contract_of("LlamaForCausalLM"), **knobs)
    model, right = successor_model(made, layers)
    changes = {name: value for name, value in wrong.items() if name != "offset"}
    other = MtpHead(model, evolve(made, **changes), 1 if "chain" in wrong else layers)
    missing, _ = other.load_state_dict(right.state_dict(), strict=False)
    assert missing == []
    if "offset" in wrong:
        with torch.no_grad():
            for parameter in [one for key, one in other.named_parameters() if "norm" in key]:
                parameter.add_(1.0)
    assert _accepted(model, other.eval().requires_grad_(False)) < 0.9


def _kit(family: str) -> type:
    @cache
    def loaded() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            made = tiny_families.write(family, Path(folder))
            return load(made, device="cpu", dtype="float32", attn_implementation=None, draft=True, revision=None)

    def make() -> TorchRuntime:
        return TorchRuntime(loaded().model, head=loaded().head, name=f"tiny {family}")

    return conform(make, margin=1e-3, rounds=4, examples=2)


# The conformance kit on one model of each kind of cache: latent rows, sliding windows, recurrent states, a chain of windowed layers.
TestLatent = _kit("deepseek_v3")
TestWindowed = _kit("exaone_moe")
TestRecurrent = _kit("qwen3_5")
TestChained = _kit("mimo_v2")
