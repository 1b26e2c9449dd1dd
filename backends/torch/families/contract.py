"""What an MTP contract says. Data only: ``head.MtpHead`` is built from it, ``loading`` reads a checkpoint by it.

A wrong contract changes no output: drafts never decide. It lowers acceptance, silently. So every field is stated for
every family, each with its source, and the tests compare each family with the same mathematics written down a second time.

The common form, from which the fields deviate. ``E`` is the embedding, ``h_p`` the target's hidden state of row p::

    u = eh_proj(cat[enorm(E[x_{p+1}]), hnorm(h_p)])
    y = block(u)                    a decoder layer with a cache of its own
    z = norm(y)
    logits = head(z)                predict x_{p+2}; z takes the place of h for the next drafted token
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from attrs import frozen

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Contract", "Names", "Stage", "blocks", "locate"]

#: Of a hidden state: after the final norm, or before it.
Stage: TypeAlias = Literal["post", "pre"]
#: Ordered: (beginning of a checkpoint key, beginning of the name here); the first that fits decides.
Names: TypeAlias = tuple[tuple[str, str], ...]


def blocks(**fields: Any) -> Callable[[Any, int], Any]:
    """A ``layer_config``: a copy of the target's config in which every block is of one kind.

    A name becomes a list of it, one per layer; any other value is set as it is. What the config does not have stays away.
    """

    def build(config: Any, layers: int) -> Any:
        made = copy.deepcopy(config)
        made.num_hidden_layers = layers
        for field, value in fields.items():
            if hasattr(made, field):
                setattr(made, field, [value] * layers if isinstance(value, str) else value)
        return made

    return build


@frozen(kw_only=True)
class Contract:
    """The MTP layers of one family of checkpoints.

    Attributes:
        name: the family's.
        architectures: names of transformers' classes that it is for.
        text_of: (architecture, class) for checkpoints with more than text, of which the class loads the text part.
        checkpoints: public checkpoints of this layout, for people.
        source: where the contract was read.
        norm: the attribute of the target's decoder that is its final norm.
        names: checkpoint keys and what they are here. In a key ``{n}`` stands for ``num_hidden_layers + i`` and ``{i}`` for i, the index
            of the MTP layer. Here: ``enorm.``, ``hnorm.``, ``eh_proj.``, ``norm.``, ``block.``, and ``head.`` for a layer's own
            or a copy of the target's, ``embed_tokens.`` for a copy.
        count: the config's fields that may say how many MTP layers there are; the first that is there does.
        concat: which side comes first in the input of ``eh_proj``.
        fed: which hidden state of the target the first layer is given.
        recycled: which one of its own takes the place of h for the next token, and is given to the next layer.
        position: the position id of the pair (h_p, x_{p+1}): the token's, p + 1, or the hidden state's, p.
        final_norm: whether a norm follows the block. Without, y is z.
        chain: ``recycle``: one layer drafts every token. ``layers``: layer i drafts the token i + 1 from (z of layer i - 1 at row p,
            E[x_{p+1+i}]) at a position id higher by i; the last one is recycled beyond their number.
        own_head: each layer scores by an output matrix of its own.
        norm_offset: what a norm adds to the weight in the file. The target's own norm class does; stated for the second formulation.
        layer_config: (the target's text config, number of MTP layers) -> the config that the blocks are built with, by index from 0.
        block: (target, that config, i) -> the decoder layer, where it is not ``type(target.layers[-1])(config, i)``.
        rotary_by_type: the target's rotary table is asked for by layer type.
    """

    name: str
    architectures: tuple[str, ...]
    text_of: tuple[tuple[str, str], ...] = ()
    checkpoints: str
    source: str
    names: Names
    count: tuple[str, ...]
    concat: Literal["embedding_first", "hidden_first"] = "embedding_first"
    fed: Stage = "post"
    recycled: Stage = "post"
    position: Literal["token", "hidden"] = "token"
    norm: str = "norm"
    final_norm: bool = True
    chain: Literal["recycle", "layers"] = "recycle"
    own_head: bool = False
    norm_offset: Literal[0, 1] = 0
    layer_config: Callable[[Any, int], Any]
    block: Callable[[Any, Any, int], nn.Module] | None = None
    rotary_by_type: bool = False


def locate(contract: Contract, keys: Iterable[str], hidden_layers: int) -> dict[str, str]:
    """The keys that belong to MTP layers of this family, and what each is here (``layers.{i}.…``)."""
    rules: list[tuple[re.Pattern[str], str]] = []
    for key, leaf in contract.names:
        pattern = re.escape(key).replace(r"\{n\}", r"(?P<n>\d+)").replace(r"\{i\}", r"(?P<i>\d+)")
        rules.append((re.compile(pattern), leaf))
    found: dict[str, str] = {}
    for key in keys:
        for pattern, leaf in rules:
            match = pattern.match(key)
            if match is None:
                continue
            groups = match.groupdict()
            index = int(groups["i"]) if "i" in groups else int(groups["n"]) - hidden_layers if "n" in groups else 0
            if index >= 0:
                found[key] = f"layers.{index}.{leaf}{key[match.end() :]}"
                break
    return found
