"""The MTP contracts of the model families, one module each. A new family is a module like these and a line here.

What is supported, and how to add a family: docs/reference/model-families.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ....engine.errors import ConfigError
from .contract import Contract, locate
from .deepseek import DEEPSEEK
from .ernie import ERNIE
from .exaone import EXAONE_MOE
from .longcat import LONGCAT
from .mimo import MIMO_V2
from .nemotron import NEMOTRON_H
from .qwen import QWEN
from .step import STEP

__all__ = ["ARCHITECTURES", "CONTRACTS", "PLAIN", "Contract", "contract_of", "contract_for", "locate"]

#: In the order in which they are tried for a checkpoint.
CONTRACTS: Final[tuple[Contract, ...]] = (
    DEEPSEEK,
    QWEN,
    EXAONE_MOE,
    MIMO_V2,
    ERNIE,
    LONGCAT,
    NEMOTRON_H,
    STEP,
)
#: Classes of transformers that the decode path of this package runs: dense, full attention, keys and values alike in all layers.
PLAIN: Final = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
#: Architecture names (``config.architectures``) that the backend takes, and the class of transformers that each is loaded as.
ARCHITECTURES: Final[dict[str, str]] = {
    name: as_class for contract in CONTRACTS for name, as_class in ((*((one, one) for one in contract.architectures), *contract.text_of))
}


def contract_of(kind: str) -> Contract:
    """The first contract for a class of transformers; ConfigError where there is none."""
    for contract in CONTRACTS:
        if kind in contract.architectures:
            return contract
    raise ConfigError(f"no MTP contract is known for {kind}")


def contract_for(kind: str, keys: Iterable[str], hidden_layers: int) -> tuple[Contract, dict[str, str]]:
    """The contract of a class that finds MTP tensors among a checkpoint's keys, and those; else the first one, and {}."""
    names = list(keys)
    for contract in CONTRACTS:
        if kind in contract.architectures:
            found = locate(contract, names, hidden_layers)
            if found:
                return contract, found
    return contract_of(kind), {}
