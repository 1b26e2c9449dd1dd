"""The command line: ``spanfold`` and ``python -m spanfold.engine``."""

from .main import main

__all__ = ["main"]
