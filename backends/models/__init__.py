"""Models that ship with spanfold: the parts that cannot be had elsewhere, and tools that assemble whole checkpoints.

``assemble`` makes the demo model, SmolLM2-135M-Instruct with an MTP head trained for this project, as an ordinary
Hugging Face directory in a cache folder. ``python -m spanfold.backends.models`` does it from the shell. Importing this
package loads neither torch nor transformers.
"""

from __future__ import annotations

from .smollm2 import NAME, assemble, default_cache

__all__ = ["NAME", "assemble", "default_cache"]
