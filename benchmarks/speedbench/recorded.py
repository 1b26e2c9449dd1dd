"""The costs that a decode recorded, by the kind of call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from spanfold.engine import CheckpointRetired, DraftOffered, Record, SerialDecoded, SpanVerified, Trimmed


def recorded_costs(records: Iterable[Record]) -> dict[str, Any]:
    """Nanoseconds behind the prefill: ``serial`` and ``settle`` as lists, ``verify`` by rows and ``draft`` by tokens (as text)."""
    costs: dict[str, Any] = {"serial": [], "verify": {}, "draft": {}, "settle": []}
    for event in (record.event for record in records):
        match event:
            case SerialDecoded():
                costs["serial"].append(event.cost_ns)
            case SpanVerified():
                costs["verify"].setdefault(str(event.rows), []).append(event.cost_ns)
            case DraftOffered():
                costs["draft"].setdefault(str(len(event.tokens)), []).append(event.cost_ns)
            case Trimmed() | CheckpointRetired():
                costs["settle"].append(event.cost_ns)
            case _:
                pass
    return costs
