"""The directory's tokenizer through the ``tokenizers`` package alone, with the few methods of transformers' class that text needs."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportMissingTypeStubs=false
# tokenizers and jinja2 carry partial type information.
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from ...engine.errors import ConfigError
from ..inputs import one_line

__all__ = ["FileTokenizer", "load_tokenizer"]

_FILE: Final = "tokenizer.json"
_CONFIG: Final = "tokenizer_config.json"
_TEMPLATE: Final = "chat_template.jinja"


class FileTokenizer:
    """A ``tokenizer.json``, and the chat template that lies beside it.

    Attributes:
        backend_tokenizer: the ``tokenizers.Tokenizer``.
        chat_template: its source, or None.
    """

    def __init__(self, backend: Any, chat_template: str | None, special: Mapping[str, str]) -> None:
        self.backend_tokenizer = backend
        self.chat_template = chat_template
        self._special = special

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        """``{"input_ids": ids}``."""
        return {"input_ids": list(self.backend_tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False) -> str:
        """The text of ids. ``clean_up_tokenization_spaces`` is there for its name alone and must be False."""
        if clean_up_tokenization_spaces:
            raise ValueError("clean_up_tokenization_spaces is not supported: the text is what the tokenizer's decoder gives")
        return self.backend_tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def apply_chat_template(
        self, turns: Sequence[Mapping[str, str]], *, tokenize: bool = False, add_generation_prompt: bool = False
    ) -> str:
        """The turns as one text, by the chat template. ``tokenize`` must be False.

        Raises:
            ConfigError: the template cannot be rendered.
        """
        if tokenize or self.chat_template is None:
            raise ValueError("apply_chat_template gives text, and needs a chat template")
        try:
            from jinja2 import TemplateError
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise ConfigError("the tokenizer's chat template needs the package jinja2: pip install 'spanfold[onnx]'") from error

        def refuse(message: str) -> None:
            raise TemplateError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = refuse
        environment.filters["tojson"] = _to_json
        try:
            template = environment.from_string(self.chat_template)
            return template.render(messages=list(turns), add_generation_prompt=add_generation_prompt, **self._special)
        except Exception as error:  # a template is a program: 1/0 is not jinja2's own error
            raise ConfigError(f"the tokenizer's chat template cannot be rendered: {one_line(error)}") from error


def _to_json(value: Any, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=False, **options)


def load_tokenizer(folder: Path, name: str) -> FileTokenizer | None:
    """The tokenizer of a directory; None where there is no ``tokenizer.json``.

    Raises:
        ConfigError: it is there and cannot be loaded.
    """
    path = folder / _FILE
    if not path.is_file():
        return None
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(f"{name}: {_FILE} needs the package tokenizers: pip install 'spanfold[onnx]'") from error
    try:
        backend = Tokenizer.from_file(str(path))
        config: Any = json.loads((folder / _CONFIG).read_text(encoding="utf-8")) if (folder / _CONFIG).is_file() else {}
        template: Any = config.get("chat_template")
        if (folder / _TEMPLATE).is_file():
            template = (folder / _TEMPLATE).read_text(encoding="utf-8")
        if isinstance(template, list):  # several, by name
            template = next((one["template"] for one in template if one.get("name") == "default"), None)
    except Exception as error:  # tokenizers raises plain exceptions
        raise ConfigError(f"the tokenizer of {name} cannot be loaded: {one_line(error)}") from error
    if template is not None and not isinstance(template, str):
        raise ConfigError(f"the tokenizer of {name} cannot be loaded: {_CONFIG}: chat_template must be text, not {template!r}")
    special = {key: _content(config.get(key)) for key in ("bos_token", "eos_token", "pad_token", "unk_token") if config.get(key)}
    return FileTokenizer(backend, template, special)


def _content(token: Any) -> str:
    return str(token.get("content", "") if isinstance(token, dict) else token)
