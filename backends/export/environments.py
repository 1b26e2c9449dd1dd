"""Environments beside this one: packages that must not be installed here, with everything that is installed here behind them.

The model builder of onnxruntime-genai brings the package ``onnxruntime``, whose files are those of ``onnxruntime-gpu``: installed
together, one overwrites the other. So the builder lives in an environment of its own. What this interpreter has stays visible in
it, behind its own packages, so that one build of torch serves both (a second one would be a download of gigabytes).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ...engine.errors import ConfigError

__all__ = ["EXPORTERS", "add_sites", "environment_of", "make_environment", "python_in", "sites"]

#: What the export environment holds. Exact versions: another builder writes another graph.
EXPORTERS: Final = ("onnxruntime==1.32.0", "onnxruntime-genai==0.18.0", "onnx==1.23.2", "onnx-ir==1.1.0")

_COMPLETE: Final = ".complete"
_INHERITED: Final = "zz_inherited.pth"
_PURELIB: Final = "import sysconfig; print(sysconfig.get_path('purelib'))"


def environment_of(name: str, requirements: bytes, cache: Path) -> Path:
    """Where the environment for these requirements lies: other ones, another Python, or other packages behind it, are another folder."""
    digest = hashlib.sha256(requirements + "\n".join([sys.version, *sites()]).encode()).hexdigest()[:12]
    return cache / "environments" / f"{name}-{digest}"


def python_in(folder: Path) -> Path | None:
    """The interpreter of an environment that was made completely; None where there is none."""
    return _python(folder) if (folder / _COMPLETE).is_file() else None


def _python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def sites() -> list[str]:
    """The folders of this interpreter's installed packages."""
    return sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})


def add_sites(folders: Sequence[str]) -> str:
    """One line of Python that puts folders behind what is importable, and reads the .pth files in them."""
    return "; ".join(["import site", *(f"site.addsitedir({one!r})" for one in folders)])


def make_environment(folder: Path, install: Sequence[str], progress: Callable[[str], None]) -> Path:
    """Make an environment where it is not there yet; returns its interpreter.

    Args:
        folder: where it goes. One that was left half-made is made anew.
        install: arguments of ``pip install``.
        progress: called with a line of text before a slow part.

    Raises:
        ConfigError: it cannot be made; the last line that venv or pip wrote says why.
    """
    python = python_in(folder)
    if python is not None:
        return python
    progress(f"making the environment {folder.name} (once; pip downloads what it needs)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    python = _python(folder)
    _run([sys.executable, "-m", "venv", str(folder)], folder)
    own = _run([str(python), "-c", _PURELIB], folder).strip()
    (Path(own) / _INHERITED).write_text(add_sites(sites()) + "\n", encoding="utf-8")
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *install], folder)
    (folder / _COMPLETE).touch()
    return python


def _run(command: Sequence[str], folder: Path) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise ConfigError(f"the environment {folder} cannot be made: {error}") from error
    if done.returncode:
        lines = [line.strip() for line in (done.stderr + "\n" + done.stdout).splitlines() if line.strip()]
        told = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else f"exit code {done.returncode}")
        raise ConfigError(f"the environment {folder} cannot be made: {told}")
    return done.stdout
