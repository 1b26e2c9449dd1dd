"""All checks, in reading order: simple things first, so that the first failure says most."""

from __future__ import annotations

from typing import Final

from .batch import BATCH
from .capability import CAPABILITY
from .decoding import DECODING
from .head import HEAD
from .interface import INTERFACE
from .machine import MACHINE
from .registry import Check
from .target import TARGET

__all__ = ["CHECKS"]

CHECKS: Final[tuple[Check, ...]] = (*INTERFACE, *TARGET, *BATCH, *HEAD, *CAPABILITY, *DECODING, *MACHINE)
