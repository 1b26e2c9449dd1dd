"""What tests need that is not always installed."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest


def needed(names: tuple[str, ...], install: str) -> None:
    """Case 6.13: tests that cannot run are seen to be missing, they do not pass in silence. Where $CI is set all of them run."""
    missing = [name for name in names if find_spec(name) is None]
    if not missing:
        return
    message = f"the tests of this folder need {', '.join(missing)}: pip install '{install}'"
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message)
