"""Replay: what can be proved, measured and compared from a trace alone, and done again from it."""

from .laws import LawChecker as LawChecker
from .laws import Violation as Violation
from .laws import law_violations as law_violations
