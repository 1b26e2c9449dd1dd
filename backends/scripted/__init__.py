"""A scripted model in memory: the laws run on it, the documentation's examples run on it, and users test their embedding with it."""

from .drafts import DraftModel, HeadView, adversarial, constant, invalid, listed, mapped, noisy, oracle, short, surplus
from .faults import DeviceError, Fault
from .runtime import Call, Chooser, Costs, ScriptedRuntime
from .targets import FunctionTarget, HashTarget, ListTarget, PrefixFunction, State, Target, hash_target, list_target

__all__ = [
    "Call",
    "Chooser",
    "Costs",
    "DeviceError",
    "DraftModel",
    "Fault",
    "FunctionTarget",
    "HashTarget",
    "HeadView",
    "ListTarget",
    "PrefixFunction",
    "ScriptedRuntime",
    "State",
    "Target",
    "adversarial",
    "constant",
    "hash_target",
    "invalid",
    "list_target",
    "listed",
    "mapped",
    "noisy",
    "oracle",
    "short",
    "surplus",
]
