"""The conformance kit: whether a runtime keeps the contract of the Runtime protocol, by trying it.

In a test module of a backend, one line::

    from spanfold.backends.conformance import conform

    TestMyRuntime = conform(lambda: MyRuntime("path/to/a/small/model"), margin=1e-3)

Every check is a test of its own. `run_checks` does the same without pytest and returns a `Report`. The kit needs hypothesis, and
`conform` pytest: ``pip install "spanfold[conformance]"``. What each check holds is in docs/reference/conformance.md.
"""

from .bench import Fail, Make, Options
from .checks import CHECKS
from .outcome import ContractBroken, NotApplicable
from .pytesting import conform
from .registry import Check
from .report import Outcome, Report, run_checks

__all__ = [
    "CHECKS",
    "Check",
    "ContractBroken",
    "Fail",
    "Make",
    "NotApplicable",
    "Options",
    "Outcome",
    "Report",
    "conform",
    "run_checks",
]
