"""Hypothesis strategies for every event and record, from the declared types of their fields."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal, Union

import attrs
from hypothesis import strategies as st

from spanfold.engine.adaptive import Pace, after_serial, after_span, first_pace
from spanfold.engine.events import EVENT_TYPES, Record, SessionFinished
from spanfold.engine.values import Limits, Policy, Sampling

LARGEST = 2**53 - 1
#: From 2 up, so that one strategy serves fields that start at 0, 1 and 2; the small ends are tested by examples.
counts = st.integers(2, LARGEST)
texts = st.text(max_size=12)
finite = st.floats(allow_nan=False, allow_infinity=False)


def of_type(kind: Any, name: str) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if name == "seed":
        return st.integers(0, 2**70)
    if kind is int:
        return counts
    if kind is float:
        return finite
    if kind is bool:
        return st.booleans()
    if kind is str:
        return texts
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (Union, types.UnionType):
        return st.one_of([st.none() if one is type(None) else of_type(one, name) for one in args])
    if origin is tuple and args[-1] is Ellipsis:
        inner = st.text(min_size=1, max_size=5) if name == "texts" else of_type(args[0], name)
        return st.lists(inner, max_size=4).map(tuple)
    if origin is tuple:
        return st.tuples(*(of_type(one, name) for one in args))
    if attrs.has(kind):
        return of_class(kind)
    raise AssertionError(f"no strategy for {kind}")


def of_class(cls: type) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    fields = {field.name: of_type(hints[field.name], field.name) for field in attrs.fields(cls)}
    if cls is Limits:
        return st.builds(Limits, max_tokens=st.none() | st.integers(50, LARGEST), min_tokens=st.integers(0, 50))
    if cls is Pace:
        return paces
    if cls is Policy:
        fields |= {"width": st.integers(5, 64), "min_draft": st.integers(1, 5)}
    if cls is Sampling:
        fields["temperature"] = st.just(0.0)
    if cls is SessionFinished:
        fields.pop("limit")
        by_limit = fields | {"reason": st.just("length"), "limit": st.sampled_from(["max_tokens", "context"])}
        others = fields | {"reason": st.sampled_from(["stop_token", "stop_text", "stop_when", "cancelled", "closed", "failed"])}
        return st.builds(cls, **by_limit) | st.builds(cls, **others)
    return st.builds(cls, **fields)


@st.composite
def _paces(draw: st.DrawFn) -> Pace:
    """Paces that sessions come to: whatever the rounds were, with costs as large as a trace can hold."""
    pace = first_pace(draw(st.integers(1, 5)))
    for forward in range(1, draw(st.integers(1, 60))):
        cost = draw(st.sampled_from([0, 1, 100, 150, 1000, 2**40]))
        if pace.width:
            accepted = draw(st.integers(0, pace.width))
            pace = after_span(pace, pace.width, accepted, accepted < pace.width, min(accepted + 1, pace.width), cost, forward, 0)
        else:
            pace = after_serial(pace, cost, forward, 0)
    return pace


paces = _paces()
events = st.one_of([of_class(cls) for cls in EVENT_TYPES])
records = st.builds(Record, seq=st.integers(0, LARGEST), session=st.integers(0, LARGEST), at_ns=st.integers(0, 2**70), event=events)
