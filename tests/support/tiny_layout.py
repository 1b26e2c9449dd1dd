"""What ``tiny_families`` has to know of a family to write a checkpoint of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Layout"]


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One family's.

    In a template ``{n}`` is the number of the target's layers plus i, ``{i}`` the index of the MTP layer, ``{last}`` the index of the
    layer that was added and ``{before}`` that of the one before it, where two were.

    Attributes:
        config: name of transformers' config class of the target's text part.
        model: name of transformers' class whose ``save_pretrained`` names the target's tensors.
        values: of that config.
        grown: what differs in it where the MTP block is the last layer.
        block: (beginning of a tensor's name in that layer, beginning of its name in an MTP layer), first match decides.
        parts: (name, what) of the tensors of an MTP layer beside the block. ``norm`` [H]; ``projection`` [H, 2H]; ``embedding`` and
            ``head``, copies of the target's; ``own head`` [V, H].
        layers: MTP layers.
        declared: what config.json says beside the config's own fields; in the text part of a config of two.
        hidden: fields that public config.json files of the family do not have.
        whole: (config class, model class, vision config) of a checkpoint that holds more than text.
        around_zero: norms are stored as the distance from one.
    """

    config: str
    model: str
    values: dict[str, Any]
    grown: dict[str, Any]
    block: tuple[tuple[str, str], ...]
    parts: tuple[tuple[str, str], ...]
    layers: int = 1
    declared: dict[str, Any] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    whole: tuple[str, str, dict[str, Any]] | None = None
    around_zero: bool = False
