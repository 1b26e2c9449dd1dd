"""Backends by name: light descriptors that installed packages announce in the entry-point group ``spanfold.backends``.

Listing them imports no backend. A descriptor says what it is, what it needs and how to open it; only opening loads the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Final

from attrs import field, frozen

from .errors import ConfigError
from .runtime import Runtime
from .text import TextSource

__all__ = ["GROUP", "Backend", "OpenOptions", "Opened", "backend", "backends"]

GROUP: Final = "spanfold.backends"


def _quiet(message: str) -> None:
    """Say nothing."""


@frozen(kw_only=True)
class OpenOptions:
    """What a backend is asked to open.

    Attributes:
        model: a directory or a name that the backend understands; None: its default model.
        device, dtype: words that the backend understands; None: its own choice. One that it cannot honour is a ConfigError.
        drafting: whether the model's own MTP head will be used, if it has one.
        progress: called with a line of text before and during slow parts.
    """

    model: str | None = None
    device: str | None = None
    dtype: str | None = None
    drafting: bool = True
    progress: Callable[[str], None] = _quiet


@frozen(kw_only=True)
class Opened:
    """An open model.

    Attributes:
        runtime: what decodes; the caller closes it.
        text: how its tokens become text.
        encode: ``(prompt, chat) -> ids``; chat None: as a chat turn if the model has a chat template. ConfigError if it cannot.
    """

    runtime: Runtime
    text: TextSource
    encode: Callable[[str, bool | None], Sequence[int]]


@frozen(kw_only=True)
class Backend:
    """A backend's descriptor.

    Attributes:
        name: what ``--backend`` takes.
        summary: one line for people.
        extra: the extra of the distribution ``spanfold`` that installs what it needs; None: nothing more is needed.
        needs: import names that must be there.
        default_model: what is opened without a model; None: a model must be named.
        open: opens a model.
    """

    name: str
    summary: str
    extra: str | None = None
    needs: tuple[str, ...] = field(default=(), converter=tuple)
    default_model: str | None = None
    open: Callable[[OpenOptions], Opened]

    def missing(self) -> tuple[str, ...]:
        """The needed modules that are not installed."""
        return tuple(name for name in self.needs if find_spec(name) is None)

    def remedy(self) -> str:
        """The command that adds what is missing."""
        return f"pip install 'spanfold[{self.extra}]'" if self.extra else f"pip install {' '.join(self.needs)}"


@cache
def backends() -> dict[str, Backend]:
    """The descriptors of everything installed, by name.

    Raises:
        ConfigError: an entry point cannot be loaded, is no descriptor, or two bear one name.
    """
    found: dict[str, Backend] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            descriptor = entry.load()
        except Exception as error:
            raise ConfigError(
                f"the backend {entry.name!r} ({entry.value}) cannot be listed: {error}; reinstall or remove its package"
            ) from error
        if not isinstance(descriptor, Backend):
            raise ConfigError(f"the backend {entry.name!r} ({entry.value}) is announced by no descriptor but by {descriptor!r}")
        if found.setdefault(descriptor.name, descriptor) != descriptor:
            raise ConfigError(f"two installed packages announce a backend named {descriptor.name!r}; remove one")
    return found


def backend(name: str) -> Backend:
    """The descriptor of one backend that can be opened.

    Raises:
        ConfigError: unknown, or what it needs is not installed; the message says what is there and what to install.
    """
    known = backends()
    if name not in known:
        ready = ", ".join(one.name for one in known.values() if not one.missing()) or "none"
        more = "".join(f"; {one.name} with {one.remedy()}" for one in known.values() if one.missing())
        raise ConfigError(f"there is no backend {name!r}; installed: {ready}{more}")
    chosen = known[name]
    if missing := chosen.missing():
        ready = ", ".join(one.name for one in known.values() if not one.missing()) or "none"
        raise ConfigError(f"the backend {name!r} needs {', '.join(missing)}: {chosen.remedy()} (ready now: {ready})")
    return chosen
