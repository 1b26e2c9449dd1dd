"""The raw measurements of a run, one JSON object per line, so that an interrupted run can go on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from attrs import define, field


@define
class Store:
    """Measurements by key. A torn last line, from a run that was killed while it wrote, is left out.

    Args:
        path: the file; made with its folder.
        resume: False starts it afresh.
    """

    path: Path
    resume: bool
    _items: dict[str, dict[str, Any]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.resume and self.path.is_file() else []
        for line in lines:
            try:
                item = json.loads(line)
            except ValueError:
                continue
            self._items[item["key"]] = item["value"]
        with self.path.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps({"key": key, "value": value}) + "\n" for key, value in self._items.items())

    def get(self, *key: object) -> dict[str, Any] | None:
        """What was measured under the key, or None."""
        return self._items.get(_name(key))

    def put(self, value: dict[str, Any], *key: object) -> None:
        """Keep a measurement."""
        self._items[_name(key)] = value
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"key": _name(key), "value": value}) + "\n")

    def having(self, *prefix: object) -> dict[tuple[str, ...], dict[str, Any]]:
        """Every measurement whose key begins so, by the rest of its key."""
        parts = tuple(map(str, prefix))
        found = {tuple(json.loads(name)): value for name, value in self._items.items()}
        return {key[len(parts) :]: value for key, value in found.items() if key[: len(parts)] == parts}


def _name(key: tuple[object, ...]) -> str:
    return json.dumps([str(part) for part in key])
