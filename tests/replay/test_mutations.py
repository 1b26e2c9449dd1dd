"""A change of any one field of any record is noticed, by the check or by the replay, or it is in the list of those that cannot be.

The digest is no help here: who changes a file can compute it anew. The list is the one of docs/explanation/what-a-trace-proves.md.
"""

import json
import re
from collections import Counter
from pathlib import Path

import corpus
import pytest
from mutations import mutations, noticed_by

from spanfold.engine import NEW, reduce
from spanfold.engine.replay import Replayer, check
from spanfold.engine.trace import TraceWriter, record_from_dict

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "what-a-trace-proves.md"
LOGS = corpus.logs()

#: Nothing in the trace says a second time what these hold: they are measured, or words for people, or facts about the runtime that no
#: decision looks at. Every change that the format allows goes unnoticed.
NEVER = {
    *(
        "Record.at_ns",
        "Prefilled.cost_ns",
        "Trimmed.cost_ns",
        "CheckpointRetired.cost_ns",
        "Prefilled.margin",
        "Prefilled.logprob",
        "SerialDecoded.margin",
    ),
    *("SerialDecoded.logprob", "SpanVerified.margins", "SpanVerified.logprobs", "DraftFailed.error", "DraftFailed.message"),
    *("RuntimeFailed.message", "SessionOpened.sampling.seed", "Extended.sampling.seed"),
    *(f"{kind}.runtime.{name}" for kind in ("SessionOpened", "SessionResumed") for name in ("backend", "model", "device", "dtype")),
    *(
        f"{kind}.runtime.{name}"
        for kind in ("SessionOpened", "SessionResumed")
        for name in ("threads", "max_batch", "row_exact", "rollback_note")
    ),
    *(f"{kind}.runtime.draft" for kind in ("SessionOpened", "SessionResumed")),
    *(
        f"{kind}.runtime.draft.{name}"
        for kind in ("SessionOpened", "SessionResumed")
        for name in ("origin", "layers", "depth", "context_length")
    ),
    *(f"{kind}.draft.layers" for kind in ("SessionOpened", "SessionResumed")),
}

#: Inputs: another value, and the engine would have done just the same in this run. Noticed wherever something was decided by them.
SOMETIMES = {
    # what the caller gave
    *("SessionOpened.prompt", "Extended.tokens", "SessionOpened.limits.max_tokens", "SessionOpened.stops.tokens", "Extended.stops.tokens"),
    *("SessionOpened.stops.texts", "SessionOpened.stops.ignore_eos", "Extended.stops.ignore_eos"),
    *("SessionOpened.policy.width", "SessionOpened.policy.min_draft", "SessionOpened.policy.prefill_chunk"),
    *("SessionOpened.policy.give_up_after", "SessionOpened.policy.kind", "SessionOpened.rules", "SessionResumed.rules"),
    # what the policy auto decides by: inputs that made no difference
    *("SessionOpened.prior", "DraftOffered.cost_ns", "SpanVerified.cost_ns", "SerialDecoded.cost_ns"),
    # what the runtime and the draft source said of themselves
    *(f"{kind}.draft" for kind in ("SessionOpened", "SessionResumed")),
    *(f"{kind}.draft.{name}" for kind in ("SessionOpened", "SessionResumed") for name in ("origin", "depth", "context_length")),
    *(f"{kind}.runtime.{name}" for kind in ("SessionOpened", "SessionResumed") for name in ("context_length", "rollback")),
    *(f"{kind}.runtime.{name}" for kind in ("SessionOpened", "SessionResumed") for name in ("stop_tokens",)),
    "SessionOpened.runtime.vocabulary",
    # what the runtime answered and nothing was made of
    *("Prefilled.prediction", "SpanVerified.predictions", "DraftOffered.tokens", "Trimmed.replayed_rows"),
    # how a call failed
    *("RuntimeFailed.call", "RuntimeFailed.started", "RuntimeFailed.error", "RuntimeFailed.observed"),
    # what the caller decided or said
    *("Committed.cut_by", "Committed.detail", "SessionFinished.reason", "SessionFinished.detail", "SessionDropped.reason"),
}


@pytest.fixture(scope="module")
def tried():
    """Path of a field -> how many mutations of it there were, by what noticed them."""
    found = {}
    for log in LOGS.values():
        state = NEW
        for at, record in enumerate(log):
            for path, mutated in mutations(record):
                path = "SessionOpened.prior" if path.startswith("SessionOpened.prior.") else path  # one input, of many numbers
                found.setdefault(path, Counter())[noticed_by(log, at, mutated, state)] += 1
            state = reduce(state, record.event)
    return found


@pytest.mark.slow
def test_a_change_of_one_field_is_noticed_or_the_field_is_in_the_list(tried, capsys):
    unnoticed = {path for path, by in tried.items() if by[None]}
    assert unnoticed - NEVER - SOMETIMES == set(), "these fields can be changed and nothing notices"
    by = sum(tried.values(), Counter())
    with capsys.disabled():
        print(f"\n  {by.total()} mutations of {len(tried)} fields: {dict(by)}", end="", flush=True)
    assert by["check"] > 10_000 and by["replay"] > 1000


def test_the_list_names_no_field_whose_changes_are_all_noticed(tried):
    unnoticed = {path for path, by in tried.items() if by[None]}
    assert (NEVER | SOMETIMES) - unnoticed == set()


def test_what_is_listed_as_never_noticed_never_is_and_the_rest_is_noticed_somewhere(tried):
    """ "Codec" aside: a value that the field cannot hold is refused whatever the field is."""
    assert {path for path in NEVER if tried[path]["check"] or tried[path]["replay"]} == set()
    always = {path for path in SOMETIMES if not (tried[path]["check"] or tried[path]["replay"])}
    assert always == SAID_TO_MATTER_BUT_NEVER_DID


#: Decisions look at these, but no run of the corpus comes near the place where it would show.
SAID_TO_MATTER_BUT_NEVER_DID = {"Extended.stops.ignore_eos", "SessionResumed.runtime.stop_tokens"}


def test_the_page_lists_the_same_fields():
    listed = set(re.findall(r"`([A-Z]\w+\.[\w.]+)`", PAGE.read_text(encoding="utf-8")))
    assert listed == NEVER | SOMETIMES


@pytest.mark.parametrize("name", ["plain", "turns", "cancel 4"])
def test_the_same_on_files_with_the_digest_computed_anew(name, tmp_path):
    """The judgement on records at hand is that of the file verbs."""
    log, state = LOGS[name], NEW
    for at, record in enumerate(log):
        for number, (path, mutated) in enumerate(mutations(record)):
            if number % 7:
                continue
            by = noticed_by(log, at, mutated, state)
            if by in ("codec", None) or path.startswith("Record."):
                continue
            file = tmp_path / "mutated.jsonl"
            file.unlink(missing_ok=True)
            with TraceWriter(file) as writer:
                for one in (*log[:at], record_from_dict(json.loads(json.dumps(mutated))), *log[at + 1 :]):
                    writer.write(one)
            report = check(file)
            assert report.files[0].segments[0].digest == "closed"
            if by == "check":
                assert report.status == "violated", path
            else:
                assert [one.outcome for one in Replayer(fail_fast=False).replay_file(file)] == ["diverged"], path
        state = reduce(state, record.event)
