"""The MTP layers of a model, built from its family's contract out of the target's own layer and norm classes.

``families.contract`` has the mathematics and its variants. Here a layer turns pairs (token, hidden state) into *states*: what is
recycled, z or what came before its norm. ``scores`` turns a state into the scores of the next token.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# transformers' modules carry partial type information.
from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from ...engine.errors import ConfigError
from .families import Contract, contract_of
from .families.deepseek import DEEPSEEK

__all__ = ["MtpHead", "MtpLayer"]

_MASKS: Final = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}


class MtpLayer(nn.Module):
    """One MTP layer: ``enorm``, ``hnorm``, ``eh_proj``, ``block``, and ``norm``, ``head`` where the contract has them.

    Args:
        model: the target.
        contract: of its family.
        config: what the block is built with.
        index: its place in the chain, in the config and in the head's cache.
    """

    def __init__(self, model: Any, contract: Contract, config: Any, index: int) -> None:
        super().__init__()
        base, size = model.get_decoder(), config.hidden_size
        output = model.get_output_embeddings()
        final: Any = getattr(base, contract.norm)
        eps = next(getattr(final, name) for name in ("variance_epsilon", "eps") if hasattr(final, name))
        norm: Any = type(final)
        self.enorm: nn.Module = norm(size, eps=eps)
        self.hnorm: nn.Module = norm(size, eps=eps)
        self.eh_proj = nn.Linear(2 * size, size, bias=False)
        build = contract.block
        self.block: nn.Module = type(base.layers[-1])(config, index) if build is None else build(model, config, index)
        self.norm: nn.Module | None = norm(size, eps=eps) if contract.final_norm else None
        if contract.own_head:
            self.head = nn.Linear(size, output.weight.shape[0], bias=False)


class MtpHead(nn.Module):
    """The MTP layers for a transformers causal LM.

    Args:
        model: the target; its decoder layer and norm classes, config, embedding, rotary table and output matrix are used. The
            head holds no copy of them and does not register them as its own.
        contract: of its family; None: the first one for the class of ``model`` (for Llama, Qwen2 and Qwen3 the DeepSeek layout).
        layers: how many; at least 1, and more than one only where the contract chains distinct layers.

    Raises:
        ConfigError: a class without a contract, or another number of layers than it allows.
    """

    # What transformers' loading of tensors asks of a module.
    base_model_prefix = ""

    def __init__(self, model: Any, contract: Contract | None = None, layers: int = 1) -> None:
        super().__init__()
        self.contract = contract_of(type(model).__name__) if contract is None else contract
        if layers < 1 or (layers > 1 and self.contract.chain == "recycle"):
            wanted = "at least one MTP layer" if layers < 1 else "one MTP layer, which is recycled"
            raise ConfigError(f"the {self.contract.name} contract takes {wanted}, not {layers}")
        text = model.config.get_text_config(decoder=True)
        self.config: Any = self.contract.layer_config(text, layers)
        self.layers = nn.ModuleList([MtpLayer(model, self.contract, self.config, index) for index in range(layers)])
        # In a tuple, so that torch does not take the target's modules for parts of this one.
        self._shared = (model,)

    def belongs_to(self, model: Any) -> bool:
        """Whether it was made for this very model."""
        return self._shared[0] is model

    @staticmethod
    def leaf(parameter: str) -> str:
        """The name in DeepSeek layout, behind ``model.layers.{N}.``, of a parameter of a head of one layer."""
        inner = parameter.removeprefix("layers.0.")
        for key, name in DEEPSEEK.names:
            if name and inner.startswith(name):
                return key.removeprefix("model.layers.{n}.") + inner.removeprefix(name)
        raise ValueError(f"{parameter} is no parameter of a head of one layer")

    def load_leaves(self, tensors: dict[str, Tensor]) -> None:
        """Take tensors by their names in DeepSeek layout; every one must be there, none more, in the right shape."""
        names = {self.leaf(name): name for name in self.state_dict()}
        self.load_state_dict({names.get(leaf, leaf): tensor for leaf, tensor in tensors.items()}, strict=True, assign=True)
        self.requires_grad_(False)
        self.eval()

    def embed(self, ids: Tensor) -> Tensor:
        """The target's embedding: ids ``[1, rows]`` -> ``[1, rows, hidden]``."""
        return self._shared[0].get_input_embeddings()(ids)

    def output(self, index: int = 0) -> nn.Linear:
        """The matrix that scores the states of a layer: its own or the target's."""
        return self._layer(index).head if self.contract.own_head else self._shared[0].get_output_embeddings()

    def normed(self, state: Tensor, index: int = 0) -> Tensor:
        """What ``output`` is applied to, from the states of a layer."""
        norm = self._layer(index).norm
        return norm(state) if self.contract.recycled == "pre" and norm is not None else state

    def scores(self, state: Tensor, index: int = 0) -> Tensor:
        """States ``[rows, hidden]`` of a layer -> ``[rows, vocabulary]``."""
        return self.output(index)(self.normed(state, index))

    def forward(self, ids: Tensor, hidden: Tensor, positions: Tensor, cache: Any, index: int = 0) -> Tensor:
        """Run pairs through a layer and append them to the cache.

        Args:
            ids: ``[1, rows]``, the token of each pair, x_{p+1} (of layer i: x_{p+1+i}).
            hidden: ``[1, rows, hidden]``, h_p of each pair as the contract feeds it, or the states of the layer before.
            positions: ``[1, rows]``, the position id of each pair.
            cache: the head's own, transformers' ``Cache``; its rows of this layer must be the pairs before these.
            index: the layer.

        Returns:
            states, ``[1, rows, hidden]``.
        """
        layer, contract = self._layer(index), self.contract
        embedded, fed = layer.enorm(self.embed(ids)), layer.hnorm(hidden)
        joined = torch.cat([embedded, fed] if contract.concat == "embedding_first" else [fed, embedded], dim=-1)
        projected = layer.eh_proj(joined)
        out = self._block(layer.block, projected, positions, cache, index)
        return out if layer.norm is None or contract.recycled == "pre" else layer.norm(out)

    def _block(self, block: nn.Module, projected: Tensor, positions: Tensor, cache: Any, index: int) -> Tensor:
        kinds = getattr(self.config, "layer_types", None)
        kind = kinds[index] if kinds else "full_attention"
        layer_config = self.config.per_layer_config[index] if self.config.is_heterogeneous else self.config
        mask = _MASKS[kind](
            config=layer_config, inputs_embeds=projected, attention_mask=None, cache=cache, position_ids=positions, layer_idx=index
        )
        given: dict[str, Any] = {"attention_mask": mask, "position_ids": positions, "cache": cache, "use_cache": True}
        rotary = getattr(self._shared[0].get_decoder(), "rotary_emb", None)
        if rotary is not None:
            by_type = {"layer_type": kind} if self.contract.rotary_by_type else {}
            given["position_embeddings"] = rotary(projected, position_ids=positions, **by_type)
        return block(projected, **given)

    def _layer(self, index: int) -> Any:
        return self.layers[index]
