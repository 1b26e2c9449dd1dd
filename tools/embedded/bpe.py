"""The embedded model's tokenizer: byte-level BPE trained on the corpus, with a run of indentation as one token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

VOCABULARY: Final = 2048
END: Final = "<|end|>"
#: Words and operators may take the one space before them; two spaces or more stand alone, so that an indentation is one token.
PIECES: Final = r" ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\n+| {2,}|\s"
INDENTATIONS: Final = tuple(" " * width for width in range(4, 33, 4))


def train(texts: Iterable[str], vocabulary: int = VOCABULARY) -> Any:
    """A transformers tokenizer over ``vocabulary`` ids; ``END`` is id 0, the indentations of 4, 8 ... 32 spaces follow."""
    tokenizer = Tokenizer(BPE())
    split = pre_tokenizers.Split(Regex(PIECES), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[AddedToken(END, special=True)],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, clean_up_tokenization_spaces=False, model_max_length=512)
