"""The conformance kit on the scripted runtime: every kind of rollback, target and head that it can be made with."""

from __future__ import annotations

from contextlib import contextmanager

from spanfold.backends.conformance import conform
from spanfold.backends.scripted import Fault, ScriptedRuntime, adversarial, hash_target, list_target, noisy, oracle, short


@contextmanager
def half_way(runtime):
    runtime.inject(Fault(call="forward", started=True, done=1))
    yield


def scripted(target=None, *, fail=half_way, **options):
    """A runtime without its log of calls, which would count as a leak, and with a context short enough to be filled."""
    options = {"drafts": noisy(5, 0.6), "context_length": 160, "record": False} | options
    return conform(lambda: ScriptedRuntime(target or hash_target(3, 17), **options), fail=fail)


def sliding(prefix):
    """A function of the last three tokens, given as scores."""
    best = (7 * sum(prefix[-3:]) + len(prefix)) % 9
    return [-float((token - best) % 9) for token in range(9)]


TestCrop = scripted()
TestCheckpoint = scripted(rollback="checkpoint")
TestNoRollback = scripted(rollback="none")
TestWithoutHead = scripted(head=False)
TestWithoutHeadOrRollback = scripted(head=False, rollback="none")
TestEarlyExit = scripted(early_exit=True, rollback="checkpoint", backlog=1)
TestBatches = scripted(max_batch=3, backlog=3)
TestDraftsOfOne = scripted(depth=1, draft_context=30)
TestOneThread = scripted(threads="one", drafts=oracle())
TestWrongHead = scripted(drafts=adversarial(), rollback="checkpoint", stop_tokens=(2, 16))
TestShortDrafts = scripted(list_target([1, 5, 2, 2, 7, 0, 3], prompt=4, vocabulary=11), drafts=short(2))
TestScores = scripted(sliding, vocabulary=9, context_length=96, early_exit=True)
TestTwoIds = scripted(hash_target(1, 2), drafts=oracle())
TestOneId = scripted(hash_target(1, 1), fail=None)
TestSmallContext = scripted(context_length=24, draft_context=12)
TestAsItIsMade = scripted(context_length=1 << 20)
