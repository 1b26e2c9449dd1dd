"""The ready-made targets: pure functions of the true prefix, with a well-defined choice under a mask."""

import pytest

from spanfold.backends.scripted import FunctionTarget, hash_target, list_target


def after(target, tokens):
    state = target.start()
    for token in tokens:
        state = target.advance(state, token)
    return state


def argmax(scores, masked=()):
    return min((token for token in range(len(scores)) if token not in masked), key=lambda token: (-scores[token], token))


TARGETS = [
    hash_target(seed=3, vocabulary=7),
    list_target([4, 5, 6], prompt=2, vocabulary=7),
    FunctionTarget(lambda prefix: sum(prefix) % 7, 7),
    FunctionTarget(lambda prefix: [float((token * 3 + len(prefix)) % 4) for token in range(7)], 7),
]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("masked", [(), (0,), (1, 2, 3), (0, 1, 2, 3, 4, 5)])
def test_a_choice_is_the_argmax_of_the_scores_under_the_mask_and_the_lowest_id_on_a_tie(target, masked):
    for prefix in [(1,), (1, 2), (1, 2, 4), (1, 2, 4, 5, 6, 4), (6, 6, 0)]:
        state = after(target, prefix)
        assert target.choose(state, masked) == argmax(target.scores(state), masked)


@pytest.mark.parametrize("target", TARGETS)
def test_masking_every_id_is_an_error(target):
    with pytest.raises(ValueError, match="all 7 ids are masked"):
        target.choose(after(target, (1,)), tuple(range(7)))


def test_a_hash_target_depends_on_every_token_of_its_prefix():
    target = hash_target(seed=0, vocabulary=1 << 30)
    choices = {target.choose(after(target, prefix), ()) for prefix in [(1, 2, 3), (2, 1, 3), (1, 2, 4), (1, 2), (0, 1, 2, 3), (1, 2, 3, 0)]}
    assert len(choices) == 6


def test_a_list_target_follows_its_list_and_notices_a_wrong_row():
    target = list_target([4, 5, 6], prompt=2, vocabulary=100)
    assert [target.choose(after(target, (9, 9, *[4, 5, 6, 4, 5][:n])), ()) for n in range(5)] == [4, 5, 6, 4, 5]
    assert target.choose(after(target, (1,)), ()) == 4
    astray = after(target, (9, 9, 5))
    assert astray < 0
    assert after(target, (9, 9, 5, 4)) != astray


def test_a_list_target_refuses_an_empty_list_and_ids_outside_its_vocabulary():
    with pytest.raises(ValueError, match="at least one token"):
        list_target([])
    with pytest.raises(ValueError, match="only ids below 3"):
        list_target([3], vocabulary=3)


def test_a_function_that_names_an_id_outside_the_vocabulary_is_an_error():
    with pytest.raises(ValueError, match="outside a vocabulary of 4"):
        FunctionTarget(lambda prefix: 4, 4).choose((1,), ())
