"""One-field mutations of records in their wire form, and whether anything notices them.

A mutation changes one field of one record, in a way that the field's own type allows, so that the file stays a well-formed trace; the
digest is computed anew. What notices it: the codec (a value that its field cannot hold), the check (fold, laws, account) or the
redrive (the round decides something else).
"""

import json

from spanfold.engine import IllegalEvent, fold
from spanfold.engine.adaptive import first_pace
from spanfold.engine.errors import TraceError
from spanfold.engine.replay import Replayer, check_records
from spanfold.engine.replay.plain import plain
from spanfold.engine.trace import record_from_dict, record_to_dict

WORDS = {
    "cut_by": ("none", "stop_token", "stop_text", "stop_when", "stop_when_error", "length", "cancelled"),
    "source": ("prefill", "serial", "span"),
    "verdict": ("none", "accepted", "rejected"),
    "cause": ("span", "failure", "rewind", "cancel"),
    "kind": ("fixed", "auto"),
    "origin": ("mtp", "prompt_lookup", "grammar"),
    "call": ("open", "configure", "prefill", "serial", "span", "settle", "reset", "drop"),
    "rollback": ("crop", "checkpoint", "none"),
    "threads": ("any", "one"),
    "limit": ("max_tokens", "context", None),
    "DraftRestored.reason": ("not_started", "cancelled"),
    "DraftDiscarded.reason": (
        *("rejected_tail", "clipped", "short", "invalid", "stopped", "cancelled", "superseded", "rewound", "extended", "resumed"),
        *("finished", "failed"),
    ),
    "SessionDropped.reason": ("closed", "failed", "interrupted: KeyboardInterrupt", "span failed: NotStarted", "x", ""),
    "SessionFinished.reason": ("stop_token", "stop_text", "stop_when", "length", "cancelled", "closed", "failed"),
}
OPTIONAL_NUMBERS = ("max_tokens", "give_up_after", "observed")


def scalars(kind, name, value):
    """Other values that a field of this kind can hold."""
    words = WORDS.get(f"{kind}.{name}") or WORDS.get(name)
    if words is not None and not isinstance(value, int):
        return [word for word in words if word != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [other for other in (value + 1, value - 1, value + 7, 0, 1) if other != value]
    if isinstance(value, float):
        return [value + 1.5]
    if isinstance(value, str):
        return [str(int(value) + 1)] if name in ("at_ns", "seed") else [value + "x", ""]
    if value is None and name in OPTIONAL_NUMBERS:
        return [0, 1, 5]
    if value is None and name == "row_exact":
        return [True]
    if value is None and name in ("margin", "logprob"):
        return [0.5]
    if value is None and name in ("margins", "logprobs"):
        return [[0.5]]
    if value is None and name == "detail":
        return ["x"]
    if value is None and name == "prior":
        return [plain(first_pace(3))]
    if value is None and name == "draft":
        return [{"origin": "mtp", "layers": 1, "depth": 3, "context_length": 64}]
    raise AssertionError(f"no other value for {kind}.{name}: {value!r}")


def arrays(value):
    """Other arrays: an item changed, taken away or added, at both ends."""
    item = (
        (lambda x: x + 1) if not value or not isinstance(value[0], (str, list, dict)) else (lambda x: x + "x" if isinstance(x, str) else x)
    )
    changes = [[*value, 3], value[:-1], value[1:]]
    if value:
        changes += [[item(value[0]), *value[1:]], [*value[:-1], item(value[-1])]]
    if value and isinstance(value[0], str):
        changes[0] = [*value, "x"]
    return [change for change in changes if change != value]


def mutations(record):
    """(path of the field, the mutated JSON object) for every field of a record."""
    whole = json.loads(json.dumps(record_to_dict(record)))
    kind = whole["type"]
    for name in ("seq", "session", "at_ns"):
        for other in scalars("Record", name, whole[name]):
            yield f"Record.{name}", {**whole, name: other}
    yield from ((path, {**whole, "event": event}) for path, event in _within(kind, kind, whole["event"]))


def _within(kind, path, fields):
    for name, value in fields.items():
        if isinstance(value, dict):
            for deeper, changed in _within(kind, f"{path}.{name}", value):
                yield deeper, {**fields, name: changed}
            if name == "draft":
                yield f"{path}.{name}", {**fields, name: None}
        else:
            others = arrays(value) if isinstance(value, list) else scalars(kind, name, value)
            for other in others:
                yield f"{path}.{name}", {**fields, name: other}


def noticed_by(log, at, mutated, before):
    """What notices the mutation of record ``at``: codec, check, replay; None: nothing does. ``before`` is the fold of log[:at]."""
    try:
        record = record_from_dict(mutated)
    except TraceError:
        return "codec"
    changed = [*log[:at], record, *log[at + 1 :]]
    try:
        fold(changed[at:], before)
    except IllegalEvent:
        return "check"  # the fold is a part of it, and the quickest
    sessions = check_records(changed)
    if len(sessions) != 1 or sessions[0].status != "holds":
        return "check"
    return None if Replayer(fail_fast=False).replay(changed).equal else "replay"
