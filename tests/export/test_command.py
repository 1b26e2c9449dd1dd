"""`spanfold export` refuses what it cannot do in one line that says what to do, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.backends.export import export
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
