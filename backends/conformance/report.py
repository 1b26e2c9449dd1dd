"""Running the checks without pytest: a report of what passed, failed and was skipped, and why."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, Literal, TypeAlias, Unpack

from attrs import field, frozen

from ...engine.errors import ConfigError, described
from .bench import Bench, Make, Options, Reference
from .checks import CHECKS
from .keywords import Keywords
from .outcome import NotApplicable
from .registry import Check

__all__ = ["Outcome", "Report", "run_check", "run_checks"]

Ending: TypeAlias = Literal["passed", "failed", "skipped"]

_NAMES: Final = tuple(check.name for check in CHECKS)


@frozen
class Outcome:
    """How one check ended.

    Attributes:
        check: its name.
        ending: passed, failed or skipped.
        reason: why, in one line; empty for a check that passed.
        error: the exception of a check that failed.
    """

    check: str
    ending: Ending
    reason: str = ""
    error: Exception | None = field(default=None, eq=False, repr=False)


@frozen
class Report:
    """How all checks ended, in their order."""

    outcomes: tuple[Outcome, ...]

    def _of(self, ending: Ending) -> tuple[str, ...]:
        return tuple(outcome.check for outcome in self.outcomes if outcome.ending == ending)

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed."""
        return self._of("failed")

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of the checks that passed."""
        return self._of("passed")

    @property
    def skipped(self) -> tuple[str, ...]:
        """Names of the checks that were skipped."""
        return self._of("skipped")

    def __str__(self) -> str:
        lines = [f"{len(self.passed)} passed, {len(self.failed)} failed, {len(self.skipped)} skipped"]
        for outcome in self.outcomes:
            if outcome.ending != "passed":
                lines.append(f"{outcome.ending:8} {outcome.check}: {outcome.reason}")
        return "\n".join(lines)


def run_check(check: Check, options: Options, reference: Reference) -> None:
    """Run one check; what it raises, it raises."""
    bench = Bench(options, reference)
    try:
        check.run(bench)
        bench.finish()
    finally:
        bench.close()


def run_checks(make: Make, *, only: Collection[str] | None = None, stop_at_first: bool = False, **options: Unpack[Keywords]) -> Report:
    """Run the checks on a runtime, without pytest.

    Args:
        make: makes a new runtime each time it is called; the kit closes it.
        only: names of checks; None: all.
        stop_at_first: leave out what comes after the first check that failed.
        **options: see `Options`.

    Raises:
        ConfigError: an option is unusable, or a name is not that of a check.
    """
    unknown = sorted(set(only or ()) - set(_NAMES))
    if unknown:
        raise ConfigError(f"there is no check {unknown[0]!r}; the names are in spanfold.backends.conformance.CHECKS")
    chosen = Options(make=make, **options)
    reference = Reference(chosen)
    outcomes: list[Outcome] = []
    try:
        for check in CHECKS:
            if only is not None and check.name not in only:
                continue
            outcomes.append(_outcome(check, chosen, reference))
            if stop_at_first and outcomes[-1].ending == "failed":
                break
    finally:
        reference.close()
    return Report(tuple(outcomes))


def _outcome(check: Check, options: Options, reference: Reference) -> Outcome:
    try:
        run_check(check, options, reference)
    except NotApplicable as reason:
        return Outcome(check.name, "skipped", described(reason))
    except Exception as error:
        return Outcome(check.name, "failed", f"{type(error).__name__}: {described(error)}", error)
    return Outcome(check.name, "passed")
