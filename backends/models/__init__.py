"""Models that ship with spanfold: a whole small one, and the parts of a larger one that cannot be had elsewhere.

``embedded`` is the directory of the model inside this package, which needs no download. ``assemble`` makes the demo model,
SmolLM2-135M-Instruct with an MTP head trained for this project, as an ordinary Hugging Face directory in a cache folder;
``python -m spanfold.backends.models`` does it from the shell. Importing this package loads neither torch nor transformers.
"""

from __future__ import annotations

from .embedded import EMBEDDED, embedded
from .smollm2 import DEMO, NAME, assemble, default_cache

__all__ = ["DEMO", "EMBEDDED", "NAME", "assemble", "default_cache", "embedded"]
