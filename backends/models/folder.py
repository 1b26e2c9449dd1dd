"""A folder that is either whole or not there: built beside its place, then renamed into it.

A build holds a lock (released by the system when its process dies), so whatever partial folder lies there while the lock
is held was left by a build that was interrupted, and is removed. A manifest with the size of every file is written last;
a folder without a fitting one is not used.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

__all__ = ["MANIFEST", "Progress", "build", "damage"]

Progress: TypeAlias = Callable[[str], None]

MANIFEST: Final = "spanfold-model.json"
_FORMAT: Final = 1


def damage(folder: Path) -> str | None:
    """What is wrong with an assembled folder, in a few words; None if it is whole."""
    try:
        manifest: Any = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        files: dict[str, int] = manifest["files"]
        if manifest["format"] != _FORMAT:
            return f"{MANIFEST} has the unknown format {manifest['format']!r}"
    except FileNotFoundError:
        return f"{MANIFEST} is missing"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    for name, size in files.items():
        try:
            found = (folder / name).stat().st_size
        except OSError:
            return f"{name} is missing"
        if found != size:
            return f"{name} has {found} bytes instead of {size}"
    return None


def _write_manifest(folder: Path) -> None:
    files = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    text = json.dumps({"format": _FORMAT, "files": files}, indent=1)
    (folder / MANIFEST).write_text(text + "\n", encoding="utf-8")


def build(folder: Path, fill: Callable[[Path], None], progress: Progress) -> Path:
    """Return ``folder``, whole; where it is not there yet or damaged, ``fill`` an empty folder and move it there.

    ``fill`` may keep working files in subfolders: they are removed before the move. Safe against interruption at any
    point and against other processes that do the same (they wait, then use the result). What ``fill`` raises propagates.
    """
    # Only here: filelock comes with torch, and who does not assemble needs neither.
    from filelock import FileLock, Timeout

    if damage(folder) is None:
        return folder
    parent = folder.parent
    parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{folder.name}.partial-"
    lock = FileLock(parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(f"another process assembles {folder.name}: waiting for it")
        lock.acquire()
    try:
        fault = damage(folder)
        if fault is None:
            return folder
        for stale in parent.glob(prefix + "*"):
            shutil.rmtree(stale, ignore_errors=True)
        partial = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        try:
            if folder.exists():
                progress(f"the copy in {folder} is damaged ({fault}): assembling it again")
            fill(partial)
            for work in [path for path in partial.iterdir() if path.is_dir()]:
                shutil.rmtree(work)
            _write_manifest(partial)
            if folder.exists():
                folder.rename(Path(tempfile.mkdtemp(prefix=prefix, dir=parent)) / "damaged")
            for made in (partial, *partial.iterdir()):  # mkdtemp and safetensors make what only its owner may read
                made.chmod(0o755 if made.is_dir() else 0o644)
            partial.rename(folder)
        finally:
            for left in parent.glob(prefix + "*"):
                shutil.rmtree(left, ignore_errors=True)
        return folder
    finally:
        lock.release()
