"""Draft sources: what each is, and what it makes of the runtime's own head."""

import pytest

from spanfold.backends.scripted import ScriptedRuntime, hash_target, list_target
from spanfold.engine import ConfigError, Decoder, DraftOffered, PromptLookup, TokenLog


def _runtime(**options):
    return ScriptedRuntime(hash_target(1, 50), vocabulary=50, **options)


@pytest.mark.parametrize(("source", "fed"), [("auto", True), ("mtp", True), ("prompt_lookup", False), ("none", False)])
def test_the_head_is_fed_only_for_a_session_that_will_ask_it(source, fed):
    runtime = _runtime()
    with Decoder(runtime, policy=2, source=source) as decoder, decoder.open([1, 2, 3], max_tokens=20) as session:
        while not session.finished:
            session.step()
        view = runtime.view(session.runtime_session)
        assert (view.head_position is not None) == fed


def test_a_session_with_width_zero_leaves_the_head_alone():
    runtime = _runtime()
    with Decoder(runtime) as decoder, decoder.open([1, 2, 3], max_tokens=4, policy=0) as session:
        session.step()
        assert runtime.view(session.runtime_session).head_position is None


def test_prompt_lookup_repeats_what_followed_last_time_and_records_its_origin():
    record = []
    runtime = ScriptedRuntime(list_target([4, 5, 6, 4, 5, 6, 4, 5, 6], prompt=3), vocabulary=10, head=False)
    with Decoder(runtime, policy=3, source="prompt_lookup", observers=[record.append]) as decoder:
        result = decoder.generate([4, 5, 6], max_tokens=9)
    assert result.tokens == (4, 5, 6, 4, 5, 6, 4, 5, 6)
    offers = [r.event for r in record if isinstance(r.event, DraftOffered)]
    assert {offer.origin for offer in offers} == {"prompt_lookup"}
    assert result.stats.accepted > 0


def test_the_index_grows_with_the_text_and_survives_a_rewind():
    drafter = PromptLookup(longest=2, shortest=1).open(0, lambda canonical, limit: pytest.fail("asked the head"))
    text = TokenLog([1, 2, 3, 1, 2])
    assert drafter.draft(text, 3).tokens == (3, 1, 2)
    longer = text.append([9, 1, 2])
    assert drafter.draft(longer, 2).tokens == (9, 1), "the most recent occurrence"
    shorter = longer.shortened(4)
    assert shorter[:] == (1, 2, 3, 1)
    assert drafter.draft(shorter, 2).tokens == (2, 3), "nothing that was taken back"
    branch = shorter.append([7, 1])
    assert drafter.draft(branch, 2).tokens == (7, 1)


def test_a_shorter_draft_is_the_beginning_of_a_longer_one():
    text = TokenLog([1, 2, 3, 4, 1, 2])
    for limit in range(1, 5):
        drafter = PromptLookup().open(0, lambda canonical, limit: pytest.fail("asked the head"))
        assert drafter.draft(text, limit).tokens == (3, 4, 1, 2)[:limit]


def test_the_head_of_a_model_without_one_is_an_error_and_not_a_fallback():
    with pytest.raises(ConfigError, match="has no MTP head"):
        Decoder(_runtime(head=False), source="mtp")
