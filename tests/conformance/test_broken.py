"""The kit finds every runtime that is broken on purpose, and none that is not.

``broken_runtimes`` were written by someone who had not read the kit's checks: all that is asked is that one of them fails.
``sabotaged_runtimes`` were written beside the checks: the one that is about the mistake must fail.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import cache

import pytest
from broken_runtimes import BROKEN, SOUND, TIE
from sabotaged_runtimes import SABOTAGED, made

from spanfold.backends.conformance import CHECKS, run_checks
from spanfold.backends.scripted import Fault, ScriptedRuntime


@contextmanager
def half_way(runtime):
    runtime.inject(Fault(call="forward", started=True, done=1))
    yield


def report_of(make):
    return run_checks(make, shrink=False, examples=8, rounds=20, margin=2 * TIE, fail=half_way)


@cache
def report_on(name):
    """All checks on one broken runtime."""
    return report_of(BROKEN[name] if name in BROKEN else SABOTAGED[name][0])


@pytest.mark.parametrize("name", SOUND)
def test_the_sound_runtimes_that_the_broken_ones_are_made_of_keep_the_contract(name):
    """Else a check that fails below would say nothing."""
    report = report_of(SOUND[name])
    assert not report.failed, str(report)


@pytest.mark.parametrize("rollback", ["crop", "checkpoint"])
def test_the_runtime_that_the_sabotaged_ones_are_made_of_keeps_the_contract(rollback):
    assert not report_of(made(ScriptedRuntime, rollback=rollback)).failed


@pytest.mark.parametrize("name", BROKEN)
def test_a_runtime_broken_by_someone_who_had_not_read_the_checks_is_found(name):
    report = report_on(name)
    assert report.failed, f"{name} keeps the contract, says the kit:\n{report}"


@pytest.mark.parametrize("name", SABOTAGED)
def test_a_sabotaged_runtime_is_found_by_the_check_that_is_about_it(name):
    report = report_on(name)
    assert SABOTAGED[name][1] in report.failed, str(report)


def test_every_check_finds_something():
    """A check that fails for no broken runtime would be one that cannot fail."""
    found = {check for name in (*BROKEN, *SABOTAGED) for check in report_on(name).failed}
    assert {check.name for check in CHECKS} == found
