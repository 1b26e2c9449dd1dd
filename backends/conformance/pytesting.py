"""The face for pytest: one class of tests, one test per check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from .bench import Make, Options, Reference
from .checks import CHECKS
from .keywords import Keywords
from .outcome import NotApplicable
from .registry import Check
from .report import run_check

__all__ = ["conform"]


def conform(make: Make, **options: Unpack[Keywords]) -> type:
    """A class of tests for pytest, one test per check.

    Assigned to a name that begins with Test it is collected: ``TestMyRuntime = conform(make_runtime)``.

    A check of something that the runtime does not claim is skipped, with the reason.

    Args:
        make: makes a new runtime each time it is called; the kit closes it. Several runtimes may share the loaded weights. It
            may call ``pytest.skip``.
        **options: see `Options`.

    Raises:
        ConfigError: an option is unusable.
    """
    chosen = Options(make=make, **options)
    shared: list[Reference] = []

    def reference() -> Reference:
        if not shared:
            shared.append(Reference(chosen))
        return shared[0]

    def teardown_class(cls: type) -> None:
        while shared:
            shared.pop().close()

    members: dict[str, Any] = {f"test_{check.name}": _test(check, chosen, reference) for check in CHECKS}
    members["teardown_class"] = classmethod(teardown_class)
    members["__doc__"] = "The conformance kit's checks of one runtime."
    return type("TestConformance", (), members)


def _test(check: Check, options: Options, reference: Callable[[], Reference]) -> Callable[[object], None]:
    def test(self: object) -> None:
        import pytest  # here, so that the kit itself needs no pytest

        try:
            run_check(check, options, reference())
        except NotApplicable as reason:
            pytest.skip(str(reason))

    test.__name__ = f"test_{check.name}"
    test.__doc__ = check.holds
    return test
