"""The kit as a tool: one test per check, visible skips, options that are checked, and nothing imported by those who do not use it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from spanfold.backends.conformance import CHECKS, Report, conform, run_checks
from spanfold.backends.scripted import ScriptedRuntime, hash_target
from spanfold.engine import ConfigError


def make(**options):
    return ScriptedRuntime(hash_target(3, 17), context_length=64, record=False, **options)


def test_every_check_is_a_test_of_its_own_with_a_name_and_a_sentence():
    tests = [name for name in dir(conform(make)) if name.startswith("test_")]
    assert sorted(tests) == sorted(f"test_{check.name}" for check in CHECKS)
    assert len({check.name for check in CHECKS}) == len(CHECKS) > 40
    for check in CHECKS:
        assert check.holds.endswith(".") and check.source


def test_one_line_in_a_test_file_is_enough_and_case_6_13_a_skipped_check_says_why(tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "from spanfold.backends.conformance import conform\n"
        "from spanfold.backends.scripted import ScriptedRuntime, hash_target\n"
        "TestMine = conform(lambda: ScriptedRuntime(hash_target(1, 9), head=False, context_length=64, record=False), examples=2)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", "test_mine.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "draft is None: this model has no MTP head" in done.stdout
    assert "no way to make a forward fail half way was given (fail=)" in done.stdout


def test_a_failure_names_the_check_and_says_in_one_sentence_what_was_wrong():
    class Forgetful(ScriptedRuntime):
        def drop_session(self, session):
            pass

    report = run_checks(
        lambda: Forgetful(hash_target(3, 17), context_length=64, record=False),
        only=["a_dropped_session_is_gone_and_its_number_can_be_opened_anew"],
    )
    assert report.failed == ("a_dropped_session_is_gone_and_its_number_can_be_opened_anew",)
    (outcome,) = report.outcomes
    assert re.fullmatch(r"ContractBroken: session \d+ was dropped and view still knows it", outcome.reason)
    assert isinstance(outcome.error, AssertionError)
    assert str(report).splitlines()[0] == "0 passed, 1 failed, 0 skipped"


def test_a_runtime_that_cannot_be_made_fails_every_check():
    def broken():
        raise RuntimeError("no such model")

    report = run_checks(broken)
    assert isinstance(report, Report) and len(report.failed) == len(CHECKS)
    assert all("no such model" in outcome.reason for outcome in report.outcomes)
    assert len(run_checks(broken, stop_at_first=True).outcomes) == 1


def test_a_make_that_returns_one_runtime_twice_is_told_so():
    shared = make()
    report = run_checks(lambda: shared, only=["closing_ends_everything_and_closing_again_does_nothing"])
    assert "make must return a new runtime each time" in report.outcomes[0].reason


def test_a_difference_at_a_near_tie_is_allowed_up_to_the_bound_and_a_larger_one_is_a_defect():
    """Cases 4.1 and 4.2: the choice of a span differs from the serial one where the two best scores are 0.01 apart."""

    def scores(prefix):
        top = sum(prefix) % 5
        return [1.0 if token == top else 0.99 if token == (top + 1) % 5 else 0.0 for token in range(5)]

    class Rounds(ScriptedRuntime):
        """In a forward of several rows the second best wins."""

        def _forward(self, call, fault):
            rows = super()._forward(call, fault)
            if len(call.tokens) == 1 or call.canonical:
                return rows
            import attrs

            return attrs.evolve(rows, predictions=tuple((token + 1) % 5 for token in rows.predictions))

    def rounds():
        return Rounds(scores, vocabulary=5, context_length=64, record=False, head=False)

    check = ["every_cut_of_a_span_leaves_exactly_the_rows_below_it", "a_verify_chooses_in_every_row_what_serial_steps_choose"]
    assert not run_checks(rounds, margin=0.02, only=check).failed
    for margin in (0.0, 0.005):
        report = run_checks(rounds, margin=margin, only=check)
        assert set(report.failed) == set(check)
    assert "its margin is 0.01, the bound 0.005" in report.outcomes[0].reason


@pytest.mark.parametrize("option", ["margin", "draft_differences", "context_reach", "rounds", "examples", "steps"])
def test_options_are_checked(option):
    with pytest.raises(ConfigError, match=f"{option} must be a number of at least"):
        conform(make, **{option: -1})
    with pytest.raises(ConfigError, match="there is no check 'nonsense'"):
        run_checks(make, only=["nonsense"])


def test_neither_the_backends_nor_the_kits_descriptors_import_what_only_tests_need(tmp_path):
    code = (
        "import sys, spanfold.backends, spanfold.backends.scripted, spanfold.backends.descriptors\n"
        "assert not {'pytest', 'hypothesis', 'spanfold.backends.conformance'} & set(sys.modules)\n"
        "import spanfold.backends.conformance\n"
        "assert 'pytest' not in sys.modules and 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
