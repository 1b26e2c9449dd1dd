"""A fast ``attrs.evolve`` for the two values that change with every event.

``attrs.evolve`` builds its argument dict field by field and runs ``__init__`` again: 6 microseconds for the state's fields
on the machine of docs/explanation/numerics.md, several times per round. Copying slot by slot takes a third of that. It skips
validators; the state has none (the reducer checks instead).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, TypeVar

import attrs

__all__ = ["evolver"]

T = TypeVar("T")


def evolver(cls: type[T]) -> Callable[..., T]:
    """A function ``(instance, **changes) -> instance`` for a slotted attrs class with at least two fields."""
    names = tuple(attribute.name for attribute in attrs.fields(cls))  # pyright: ignore[reportArgumentType]
    read: Callable[[T], tuple[Any, ...]] = operator.attrgetter(*names)
    slots: dict[str, Callable[[T, Any], None]] = {name: getattr(cls, name).__set__ for name in names}
    writers = tuple(slots.values())

    def evolve(instance: T, **changes: Any) -> T:
        new = object.__new__(cls)
        for write, value in zip(writers, read(instance), strict=True):
            write(new, value)
        for name, value in changes.items():
            slots[name](new, value)
        return new

    return evolve
