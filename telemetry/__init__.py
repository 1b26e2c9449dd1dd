"""OpenTelemetry spans and metrics of what the engine does.

::

    decoder = Decoder(runtime, observers=[OTelObserver(level="rounds")])

The observer needs the package opentelemetry-api and writes to whatever providers the program has set up; it is loaded when first named,
so that the rest works without. ``names`` holds every name that is written, with its unit and meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .observer import OTelObserver as OTelObserver

__all__ = ["OTelObserver"]


def __getattr__(name: str) -> Any:
    if name == "OTelObserver":
        from .observer import OTelObserver

        return OTelObserver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
