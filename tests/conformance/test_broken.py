"""The kit finds every runtime that is broken on purpose, and none that is not."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from sabotaged_runtimes import SABOTAGED, made

from spanfold.backends.conformance import CHECKS, run_checks
from spanfold.backends.scripted import Fault, ScriptedRuntime


@contextmanager
def half_way(runtime):
    runtime.inject(Fault(call="forward", started=True, done=1))
    yield


def report_of(make):
    return run_checks(make, fail=half_way, shrink=False, examples=10, rounds=20)


@pytest.mark.parametrize("rollback", ["crop", "checkpoint"])
def test_the_runtime_that_the_others_are_made_of_keeps_the_contract(rollback):
    """Else a check that fails below would say nothing."""
    assert not report_of(made(ScriptedRuntime, rollback=rollback)).failed


@pytest.mark.parametrize("name", SABOTAGED)
def test_a_broken_runtime_is_found_by_the_check_that_is_about_it(name):
    make, check = SABOTAGED[name]
    assert check in {one.name for one in CHECKS}
    report = report_of(make)
    assert check in report.failed, str(report)
