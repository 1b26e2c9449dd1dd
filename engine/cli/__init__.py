"""The command line: ``spanfold`` and ``python -m spanfold.engine``."""

from .commands import main

__all__ = ["main"]
