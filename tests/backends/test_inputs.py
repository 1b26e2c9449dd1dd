"""Whatever stands in a model's files, and whatever is handed in for a model: one line that names it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from spanfold.backends.inputs import end_ids, model_path
from spanfold.backends.tokenizer_text import encoder
from spanfold.engine.errors import ConfigError


@pytest.mark.parametrize("value", ["a", ["a"], [None], [3, None], {}, 1.5, True, [True], -1, [-1]])
def test_end_ids_are_ids_or_the_file_and_the_field_are_named(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^model: config\.json: eos_token_id must be a token id or a list of them, not "):
        end_ids(value, "model: config.json")
    assert (end_ids(None, ""), end_ids(0, ""), end_ids([3, 4], ""), end_ids([], "")) == ((), (0,), (3, 4), ())


@pytest.mark.parametrize(("model", "words"), [(None, "not None"), (5, "not 5"), (b"bytes", "not b'bytes'"), ("", "an empty string")])
def test_what_is_no_path_is_no_model(model: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=f"^model must be a directory's path, .*{words}$"):
        model_path(model)
    assert model_path(Path("a") / "b") == os.path.join("a", "b")


def test_a_path_that_is_not_utf8_is_refused_in_words_that_can_be_printed() -> None:
    with pytest.raises(ConfigError, match="is not valid UTF-8: rename the directory") as caught:
        model_path(os.fsdecode(b"model-\xff"))
    assert str(caught.value).isascii()


def test_a_chat_template_that_raises_is_an_error_of_the_template() -> None:
    class Tokenizer:
        chat_template = "{{ 1/0 }}"

        def apply_chat_template(self, *given: Any, **options: Any) -> str:
            raise ZeroDivisionError("division by zero\nand more")

    with pytest.raises(ConfigError, match="^the tokenizer's chat template cannot be rendered: division by zero$"):
        encoder(Tokenizer())("hi", None)
