"""The text that the embedded model learns: the Python standard library's own source (PSF licence), as it lies on every machine.

Held out are whole files, chosen by a hash of their path, and only those that no training file resembles: a held-out file
that shares more than ``NEAR`` of its line groups with the training files is left out of both sides.
"""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

#: Folders of tables, generated text or test data, and copies of the library in another dialect.
LEFT_OUT: Final = frozenset(
    {"site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data", "lib2to3", "test", "tests", "idle_test"}
)
HELD_OUT_OF: Final = 16  # one file in so many
GROUP: Final = 4  # lines that make up a line group
NEAR: Final = 0.05
LARGEST: Final = 200_000  # bytes; larger files are mostly tables


class Division(NamedTuple):
    """Texts by path, and a digest of them all."""

    train: dict[str, str]
    held_out: dict[str, str]
    near_duplicates: tuple[str, ...]
    digest: str


def _files(root: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if LEFT_OUT.isdisjoint(place.parts) and not place.parts[0].startswith("config-"):
            raw = path.read_bytes()
            if 400 <= len(raw) <= LARGEST:
                try:
                    yield place.as_posix(), raw.decode("utf-8").replace("\r\n", "\n")
                except UnicodeDecodeError:
                    continue


def _groups(text: str) -> set[int]:
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line]
    return {hash("\n".join(lines[at : at + GROUP])) for at in range(len(lines) - GROUP + 1)}


def collect(root: Path | None = None) -> Division:
    """Read the standard library (or ``root``) and divide it."""
    texts = dict(_files(root or Path(sysconfig.get_path("stdlib"))))
    chosen = {name for name in texts if int(hashlib.sha256(name.encode()).hexdigest(), 16) % HELD_OUT_OF == 0}
    train = {name: text for name, text in texts.items() if name not in chosen}
    known: set[int] = set().union(*map(_groups, train.values()))
    near = tuple(name for name in sorted(chosen) if (own := _groups(texts[name])) and len(own & known) > NEAR * len(own))
    digest = hashlib.sha256("\0".join(f"{name}\0{text}" for name, text in sorted(texts.items())).encode()).hexdigest()
    return Division(train, {name: texts[name] for name in sorted(chosen) if name not in near}, near, digest)


if __name__ == "__main__":
    found = collect()
    for what, held in (("train", found.train), ("held out", found.held_out)):
        print(f"{what}: {len(held)} files, {sum(len(text.encode()) for text in held.values()):,} bytes")
    print(f"near duplicates left out: {', '.join(found.near_duplicates) or 'none'}")
    print(f"sha256 {found.digest}")
