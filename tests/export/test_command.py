"""`spanfold export` refuses what it cannot do in one line that says what to do, and leaves nothing behind."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch_models

from spanfold.backends.export import export, exporting
from spanfold.backends.export.environments import environment_of, make_environment, python_in
from spanfold.backends.models import embedded
from spanfold.engine.cli import main
from spanfold.engine.errors import ConfigError


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    assert main(["export", str(embedded()), "-o", str(tmp_path / "there")]) == 2
    said = capsys.readouterr().err.splitlines()
    assert said == [f"spanfold export: {tmp_path / 'there'} is there already: remove it, or name another directory"]


def test_an_interpreter_without_the_exporters_is_named_with_what_it_lacks(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"lacks .*onnxruntime_genai.*: install onnxruntime==\S+ onnxruntime-genai=="):
        export(embedded(), tmp_path / "out", python=sys.executable)
    with pytest.raises(ConfigError, match="cannot be run: No such file"):
        export(embedded(), tmp_path / "out", python=tmp_path / "nowhere")
    assert not list(tmp_path.iterdir())


def test_nothing_is_fetched_for_an_export_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The environment of the exporters is a download; what is wrong with the arguments is said before it."""

    def fetched(*given: object) -> Path:
        raise AssertionError("an environment was made")

    monkeypatch.setattr(exporting, "make_environment", fetched)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    torch_models.save_checkpoint(tmp_path / "plain", torch_models.tiny_model("llama", head_dim=16), None)
    torch_models.save_checkpoint(tmp_path / "narrow", torch_models.tiny_model("llama"), None)
    for model, out, options, words in [
        (tmp_path / "nowhere", "out", {}, "nowhere is neither a directory nor a hub id"),
        (tmp_path / "empty", "out", {}, "empty has no usable config.json"),
        (tmp_path / "plain", "out", {"head": True}, "has no MTP layer: leave out --head"),
        (tmp_path / "narrow", "out", {}, "has heads of 8: the exported attention takes multiples of 16"),
        (tmp_path / "plain", "file", {}, "is there already"),
        (tmp_path / "plain", "file/out", {}, f"{tmp_path / 'file'} is no directory that can be written to"),
        (tmp_path / "plain", "out", {"precision": "int3"}, "precision must be one of"),
    ]:
        with pytest.raises(ConfigError, match=re.escape(words)):
            export(model, tmp_path / out, **options)
    with pytest.raises(AssertionError, match="an environment was made"):
        export(tmp_path / "plain", tmp_path / "empty")


def test_an_unknown_precision_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="precision must be one of fp32, fp16, int4, not 'int3'"):
        export(embedded(), tmp_path / "out", precision="int3")


def test_an_environment_that_pip_cannot_fill_is_an_error_and_no_environment(tmp_path: Path):
    folder = environment_of("export", b"nothing", tmp_path)
    with pytest.raises(ConfigError, match=r"the environment .* cannot be made: ERROR: .*no-such-package"):
        make_environment(folder, ["--no-index", "no-such-package"], lambda message: None)
    assert python_in(folder) is None


def test_an_environment_sees_what_is_installed_here_behind_its_own_packages(tmp_path: Path):
    folder = environment_of("export", b"nothing", tmp_path)
    said: list[str] = []
    python = make_environment(folder, ["pip"], said.append)  # it has pip: nothing is fetched
    code = "import sys, attrs, pip; print(pip.__file__.startswith(sys.prefix), attrs.__file__.startswith(sys.prefix))"
    assert subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.split() == ["True", "False"]
    assert (python_in(folder), len(said)) == (python, 1)
    assert make_environment(folder, ["--no-index", "no-such-package"], said.append) == python
    assert len(said) == 1


def test_other_requirements_are_another_environment(tmp_path: Path):
    assert environment_of("export", b"one", tmp_path) != environment_of("export", b"two", tmp_path)
    assert environment_of("export", b"one", tmp_path) == environment_of("export", b"one", tmp_path)
