from importlib.util import find_spec

import pytest


@pytest.mark.parametrize("name", ["torch", "transformers", "safetensors", "gguf"])
def test_the_torch_extra_is_installed(name: str) -> None:
    """Case 6.13: tests that cannot run are seen to be missing, they do not pass in silence."""
    if find_spec(name) is None:
        pytest.skip(f"{name} is not installed: the tests of the torch backend are not run (pip install 'spanfold[torch]')")
