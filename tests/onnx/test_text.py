"""The tokenizer without transformers: the same ids and the same text, and the command line that uses it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx_models import Shape, export

from spanfold.backends.models import embedded
from spanfold.backends.onnx.text import load_tokenizer
from spanfold.backends.tokenizer_text import encoder, from_transformers
from spanfold.engine.cli import main
from spanfold.engine.errors import ConfigError

TEXTS = ("def read_lines(path):", "  naïve 🙂\n\tx = 1", "")
TEMPLATE = (
    "{% for message in messages %}{{ bos_token }}{{ message['role'] }}: {{ message['content'] | tojson }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def copied(folder: Path, **config: Any) -> Path:
    (folder / "tokenizer.json").write_bytes((embedded() / "tokenizer.json").read_bytes())
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_are_those_of_transformers(text: str) -> None:
    transformers = pytest.importorskip("transformers")
    ours: Any = load_tokenizer(embedded(), "embedded")
    theirs = transformers.AutoTokenizer.from_pretrained(embedded())
    ids = theirs(text)["input_ids"]
    assert ours(text)["input_ids"] == ids
    assert ours.decode(ids) == theirs.decode(ids) and ours.decode(ids, skip_special_tokens=True) == theirs.decode(
        ids, skip_special_tokens=True
    )
    one, other = from_transformers(ours), from_transformers(theirs)
    assert not callable(one) and not callable(other)
    assert [one.token_bytes(id) for id in ids] == [other.token_bytes(id) for id in ids]


def test_a_chat_template_is_rendered_as_transformers_does(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = copied(tmp_path, chat_template=TEMPLATE, bos_token="<|end|>", tokenizer_class="PreTrainedTokenizerFast")
    ours: Any = load_tokenizer(folder, "chat")
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    turn = [{"role": "user", "content": "why, ä?"}]
    text = ours.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert text == theirs.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert encoder(ours)("why, ä?", None) == encoder(theirs)("why, ä?", None)


def test_what_cannot_be_loaded_or_rendered_is_named(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path, "none") is None
    folder = copied(tmp_path, chat_template="{{ raise_exception('roles must alternate') }}")
    tokenizer: Any = load_tokenizer(folder, "bad")
    with pytest.raises(ConfigError, match="chat template cannot be rendered: roles must alternate"):
        encoder(tokenizer)("hi", True)
    (folder / "chat_template.jinja").write_text("{{ 1/0 }}")
    with pytest.raises(ConfigError, match="chat template cannot be rendered: division by zero"):
        encoder(load_tokenizer(folder, "raising"))("hi", None)
    for config in ({"chat_template": 5}, {"chat_template": [{"name": "default"}]}, {"chat_template": [5]}):
        broken = tmp_path / "broken"
        broken.mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match="the tokenizer of broken cannot be loaded"):
            load_tokenizer(copied(broken, **config), "broken")
    assert load_tokenizer(copied(broken, bos_token={}), "broken") is not None
    (folder / "chat_template.jinja").write_text("plain")
    assert encoder(load_tokenizer(folder, "file"))("hi", True) == encoder(tokenizer)("plain", False)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="the tokenizer of bad cannot be loaded"):
        load_tokenizer(folder, "bad")


def test_the_backend_loads_neither_torch_nor_transformers(tmp_path: Path) -> None:
    code = (
        "import sys, spanfold.backends.onnx, spanfold.backends.onnx.opening\n"
        "print([name for name in ('torch', 'transformers', 'onnx') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


def test_the_command_line_opens_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = copied(export(tmp_path / "model", shape=Shape(vocabulary=2048)))
    arguments = ["generate", "def f(x):", "--backend", "onnx", "--model", str(folder), "--max-tokens", "12"]
    assert main([*arguments, "--compare"]) == 0
    shown = capsys.readouterr()
    assert "identical" in shown.out + shown.err
    assert main([*arguments, "--dtype", "float16"]) == 2
    said = capsys.readouterr().err
    assert f"{folder} is float32, not float16: an export has one precision" in said
    assert "`spanfold export --precision fp16`" in said
    assert main([*arguments, "--dtype", "foo"]) == 2
    assert "dtype must be one of float32, float16, int4 for the onnx backend, not 'foo'" in capsys.readouterr().err
    (folder / "tokenizer.json").unlink()
    assert main(arguments) == 2
    assert "has no tokenizer.json, so it has no text" in capsys.readouterr().err
    assert main(["generate", "x", "--backend", "onnx", "--model", str(tmp_path / "nowhere")]) == 2
    assert "is no directory: export a model first" in capsys.readouterr().err
