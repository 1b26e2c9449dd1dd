"""A visible word where the tests of this folder cannot run."""

from optional import needed


def test_the_torch_extra_is_installed() -> None:
    needed(("torch", "transformers", "safetensors", "gguf"), "spanfold[torch]")
