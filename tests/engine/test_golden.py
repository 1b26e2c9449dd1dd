"""The engine decides as it decided when golden/corpus.txt was written: a change of a decision shows here, event by event.

After a wanted change (and a raised ``rules.VERSION`` where it changes what a log comes to), write the file anew and read its diff::

    SPANFOLD_GOLDEN=write python -m pytest tests/engine/test_golden.py
"""

import os
from pathlib import Path

import attrs
import corpus

from spanfold.engine import NEW, reduce

GOLDEN = Path(__file__).parent / "golden" / "corpus.txt"


# What a session is opened with is told by its log's name; tokens are in the commits; plain counts of the state are in its stats.
LEFT_OUT = {
    "limits",
    "stops",
    "sampling",
    "prompt",
    "policy",
    "runtime",
    "draft",
    "turn",
    "canonical",
    "stats",
    "finish",
    "discarded_counts",
}


def line(value):
    """One event, state or account on one line, defaults left out."""
    shown = []
    for field in attrs.fields(type(value)):
        held = getattr(value, field.name)
        if field.eq and field.name not in LEFT_OUT and held not in (None, field.default):
            shown.append(f"{field.name}={held!r}" if isinstance(held, str) else f"{field.name}={held}".replace(" ", ""))
    return f"  {type(value).__name__} {' '.join(shown)}".rstrip()


def seen(state):
    """What there is of a state besides its tokens and its account, as far as it is not the default."""
    shown = {
        "tokens": len(state.canonical),
        "turn": f"{state.turn.number} from {state.turn.start}",
        "pending": len(state.pending),
        "forward": type(state.forward).__name__ if state.forward is not None else None,
        "failed": state.failed.call if state.failed is not None else None,
        "finish": state.finish.reason if state.finish is not None else None,
    }
    if state.pace is not None:
        pace = state.pace
        shown["pace"] = f"{pace.width} {pace.chosen} gain {pace.gain} debt {pace.debt} chances {pace.chances} costs {pace.costs}"
    plain = "phase position primed surplus offer_limit committed cut cut_detail refused drafting_off held"
    return shown | {name: getattr(state, name) for name in plain.split()}


def text():
    """Every event of every log with what it changes in the state, and the account at the end."""
    made = []
    for name, log in corpus.logs().items():
        made.append(f"{name}:")
        state, before = NEW, {}
        for record in log:
            state = reduce(state, record.event)
            now = seen(state)
            changes = ", ".join(f"{field} {value}" for field, value in now.items() if before.get(field) != value)
            made.append(f"{line(record.event)} | {changes}")
            before = now
        made.append(f"{line(state.stats)} discarded={state.stats.discarded}")
    return "\n".join(made) + "\n"


def test_every_decision_is_the_recorded_one():
    now = text()
    if os.environ.get("SPANFOLD_GOLDEN") == "write":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(now, encoding="utf-8")
    assert now.splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()
