"""The engine decides as it decided when golden/corpus.txt was written: a change of a decision shows here, event by event.

After a wanted change (and a raised ``rules.VERSION`` where it changes what a log comes to), write the file anew and read its diff::

    SPANFOLD_GOLDEN=write python -m pytest tests/engine/test_golden.py
"""

import os
from pathlib import Path

import attrs
import corpus

from spanfold.engine import fold

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


def text():
    made = []
    for name, log in corpus.logs().items():
        made.append(f"{name}:")
        made.extend(line(record.event) for record in log)
        state = fold(log)
        made += [line(state), f"{line(state.stats)} discarded={state.stats.discarded}"]
    return "\n".join(made) + "\n"


def test_every_decision_is_the_recorded_one():
    now = text()
    if os.environ.get("SPANFOLD_GOLDEN") == "write":
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(now, encoding="utf-8")
    assert now.splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()
