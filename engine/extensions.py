"""What other packages add to the command line, by entry points; as ``registry`` does for backends.

``spanfold.commands``   a :class:`Command`: a command of its own, ``spanfold NAME``
``spanfold.observers``  a :class:`Watching`: options of ``spanfold generate`` that put an observer beside the decode

The entry points name light descriptors: listing them imports nothing of what they need.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import field, frozen

from .errors import ConfigError
from .hooks import AnyObserver

if TYPE_CHECKING:
    from .cli.terminal import Terminal

__all__ = ["COMMANDS", "OBSERVERS", "Command", "Watching", "commands", "require", "watchings"]

COMMANDS: Final = "spanfold.commands"
OBSERVERS: Final = "spanfold.observers"

_D = TypeVar("_D", "Command", "Watching")


@frozen(kw_only=True)
class Command:
    """A command.

    Attributes:
        name: what follows ``spanfold``.
        summary: one line for people.
        extra: the extra of the distribution ``spanfold`` that installs what it needs; None: nothing more is needed.
        needs: import names that must be there before it runs.
        arguments: adds its arguments to a parser; imports nothing heavy.
        run: carries it out and returns the exit code (0 done, 1 not as hoped, 2 an error).
    """

    name: str
    summary: str
    extra: str | None = None
    needs: tuple[str, ...] = field(default=(), converter=tuple)
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace, Terminal], int]


@frozen(kw_only=True)
class Watching:
    """Options of ``spanfold generate`` that put an observer beside the decode.

    Attributes:
        name: for messages.
        arguments: adds its options to the parser of ``generate``; imports nothing heavy.
        open: makes the observer, or None if the options do not ask for one. It is entered before the model is loaded and left after
            the decode. What goes wrong with it then, it says to the terminal: an observer never fails a decode.
    """

    name: str
    arguments: Callable[[argparse.ArgumentParser], None]
    open: Callable[[argparse.Namespace, Terminal], AbstractContextManager[AnyObserver | None]]


@cache
def commands() -> dict[str, Command]:
    """The commands that installed packages add, by name.

    Raises:
        ConfigError: an entry point cannot be loaded, is no descriptor, or two bear one name.
    """
    return _loaded(COMMANDS, Command)


@cache
def watchings() -> dict[str, Watching]:
    """The options that installed packages add to ``generate``, by name. Raises as :func:`commands`."""
    return _loaded(OBSERVERS, Watching)


def require(what: str, needs: tuple[str, ...], extra: str | None) -> None:
    """Raises ConfigError, with the command that mends it, where a needed module is not installed."""
    missing = [name for name in needs if not _found(name)]
    if missing:
        remedy = f"pip install 'spanfold[{extra}]'" if extra else f"pip install {' '.join(missing)}"
        raise ConfigError(f"{what} needs {', '.join(missing)}: {remedy}")


def _found(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # of a package that the name lies in
        return False


def _loaded(group: str, kind: type[_D]) -> dict[str, _D]:
    found: dict[str, _D] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        where = f"the entry point {entry.name!r} ({entry.value}) of {group}"
        try:
            descriptor = entry.load()
        except Exception as error:
            raise ConfigError(f"{where} cannot be loaded: {error}; reinstall or remove its package") from error
        if not isinstance(descriptor, kind):
            raise ConfigError(f"{where} is no {kind.__name__} but {descriptor!r}")
        if found.setdefault(descriptor.name, descriptor) is not descriptor:
            raise ConfigError(f"two installed packages announce {descriptor.name!r} in {group}; remove one")
    return found
