"""Real tokenizers' text, streamed: the same as decoding all ids at once (cases 2.13 to 2.16)."""

from __future__ import annotations

import random
from typing import Any

import pytest

from spanfold.backends.tokenizer_text import encoder, from_transformers
from spanfold.engine.errors import ConfigError
from spanfold.engine.text import TextStream, TokenText

tokenizers = pytest.importorskip("tokenizers", reason="comes with the extra [torch]")
transformers = pytest.importorskip("transformers", reason="comes with the extra [torch]")

CORPUS = [
    "Why is the sky blue? Because molecules scatter blue light more than red light.",
    "naïve café, 🙂🙃 and 日本語 — done",
    "\tif x:\n\t\treturn 1",
]


def byte_level() -> Any:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        CORPUS * 4,
        tokenizers.trainers.BpeTrainer(vocab_size=400, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False),
    )
    made.add_tokens([tokenizers.AddedToken("<plain 🙂>", special=False)])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|end|>")


def byte_fallback(strip: bool = True) -> Any:
    """Llama 2's kind: bytes as tokens for what the vocabulary lacks, a leading space that decoding strips."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁sky", "blue", "é", "▁▁"]
    model = tokenizers.models.BPE({word: at for at, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    made = tokenizers.Tokenizer(model)
    steps = [tokenizers.decoders.Replace("▁", " "), tokenizers.decoders.ByteFallback(), tokenizers.decoders.Fuse()]
    if strip:
        steps.append(tokenizers.decoders.Strip(" ", 1, 0))
    made.decoder = tokenizers.decoders.Sequence(steps)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def streamed(tokenizer: Any, ids: list[int]) -> str:
    stream = TextStream(from_transformers(tokenizer))
    return "".join([*map(stream.push, ids), stream.finish()])


def decoded(tokenizer: Any, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_a_byte_level_vocabulary_streams_what_decoding_gives_for_any_ids():
    tokenizer = byte_level()
    assert isinstance(from_transformers(tokenizer), TokenText)
    draw = random.Random(7)
    for _ in range(300):
        ids = [draw.randrange(len(tokenizer)) for _ in range(draw.randrange(1, 30))]
        assert streamed(tokenizer, ids) == decoded(tokenizer, ids)
    for text in CORPUS:
        assert streamed(tokenizer, tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize("strip", [True, False])
def test_a_byte_fallback_vocabulary_streams_what_decoding_gives_for_valid_text(strip: bool):
    tokenizer = byte_fallback(strip)
    assert isinstance(from_transformers(tokenizer), TokenText)
    draw = random.Random(8)
    pieces = [[word] for word in (259, 260, 261, 262, 263, 1, 2)] + [
        [3 + byte for byte in text.encode()] for text in ("🙂", "日", "é", "a")
    ]
    for _ in range(300):
        ids = [id for _ in range(draw.randrange(1, 20)) for id in draw.choice(pieces)]
        assert streamed(tokenizer, ids) == decoded(tokenizer, ids)


def test_a_byte_fallback_vocabulary_replaces_only_the_invalid_part_of_a_run():
    """Decoding replaces every byte of the run, the valid ones before the fault too; what was shown cannot be taken back."""
    tokenizer = byte_fallback()
    ids = [3 + byte for byte in "é".encode()] + [3 + 0xFF]
    assert decoded(tokenizer, ids) == 3 * "\N{REPLACEMENT CHARACTER}"
    assert streamed(tokenizer, ids) == "é\N{REPLACEMENT CHARACTER}"


def test_another_vocabulary_streams_through_a_window():
    words = {word: at for at, word in enumerate(["[UNK]", "the", "sky", "##ing", "blue", "[SEP]"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(words, unk_token="[UNK]"))
    made.decoder = tokenizers.decoders.WordPiece(cleanup=False)
    made.add_special_tokens(["[UNK]", "[SEP]"])
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]", sep_token="[SEP]")
    assert not isinstance(from_transformers(tokenizer), TokenText)
    draw = random.Random(9)
    for _ in range(100):
        ids = [draw.randrange(len(words)) for _ in range(draw.randrange(1, 20))]
        assert streamed(tokenizer, ids) == decoded(tokenizer, ids)


def test_unknown_ids_show_nothing():
    source = from_transformers(byte_level())
    assert isinstance(source, TokenText)
    assert source.token_bytes(10**6) == b""


def test_prompts_are_encoded_as_chat_turns_where_there_is_a_template():
    tokenizer = byte_level()
    plain = encoder(tokenizer)
    assert plain("the sky", None) == plain("the sky", False) == tuple(tokenizer("the sky")["input_ids"])
    with pytest.raises(ConfigError, match="no chat template"):
        plain("the sky", True)
    with pytest.raises(ConfigError, match="no tokens"):
        plain("", None)
    tokenizer.chat_template = (
        "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    assert encoder(tokenizer)("the sky", None) == encoder(tokenizer)("the sky", True) == plain("[user]the sky[assistant]", False)
