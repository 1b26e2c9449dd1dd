"""Faults to inject at any call of the scripted runtime: refusals, crashes half way, and answers that are not true."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import attrs
from attrs import field

from ...engine.errors import NotStarted

__all__ = ["CALLS", "WRONG", "Armed", "CallName", "DeviceError", "Fault", "Wrong", "strike"]

CallName: TypeAlias = Literal["open", "configure", "drop", "forward", "settle", "draft", "view"]
Wrong: TypeAlias = Literal[
    "short",
    "long",
    "vocabulary",
    "masked",
    "position",
    "lost_row",
    "trim_noop",
    "trim_lie",
    "trim_off_by_one",
    "keep_state",
    "stale",
    "unfed",
    "gone",
]

CALLS: Final[tuple[CallName, ...]] = ("open", "configure", "drop", "forward", "settle", "draft", "view")

#: Which wrong answers each call knows.
WRONG: Final[dict[CallName, tuple[Wrong, ...]]] = {
    "open": (),
    "configure": (),
    "drop": (),
    "forward": ("short", "long", "vocabulary", "masked", "position", "lost_row"),
    "settle": ("position", "trim_noop", "trim_lie", "trim_off_by_one", "keep_state"),
    "draft": ("stale", "unfed"),
    "view": ("position", "gone"),
}


class DeviceError(RuntimeError):
    """What a started fault raises unless another exception is given."""


@attrs.frozen(kw_only=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        call: which call.
        at: the how manieth such call, counted from 0 (of ``session`` alone, if one is given).
        times: how many calls in a row, from ``at`` on.
        session: only calls of this session count; None: all.
        started: False: `NotStarted` is raised and nothing is touched. True: `exception` (default `DeviceError`) is raised after
            ``done`` units of the work.
        done: for a forward the rows really written before it fails, for a draft the pairs fed to the head, for other calls 0;
            None: all the work is done, then it fails.
        exception: what to raise; an instance, or a type to build one with the fault's description.
        element: answer with a `Failure` element instead of raising.
        wrong: raise nothing and answer wrongly instead:

            * forward ``short`` (the last prediction is missing), ``long`` (one too many), ``vocabulary`` (the last one is
              outside it), ``masked`` (the last one is a masked id), ``position`` (one more than true), ``lost_row`` (the last
              row was not written, and the reported position tells);
            * settle ``position`` (one more than true is reported), ``trim_noop`` (nothing is cut, and the report tells),
              ``trim_lie`` (nothing is cut, and the report claims it), ``trim_off_by_one`` (one row too many is cut, and the
              report tells), ``keep_state`` (the cache is cut, the recurrent state is not restored: checkpoint runtimes);
            * draft ``stale`` (the speculative pairs stay in the head), ``unfed`` (the head skips what it has not seen);
            * view ``position`` (one more than true), ``gone`` (None).
    """

    call: CallName
    at: int = 0
    times: int = 1
    session: int | None = None
    started: bool = False
    done: int | None = 0
    exception: BaseException | type[BaseException] | None = None
    element: bool = False
    wrong: Wrong | None = field(default=None)

    def __attrs_post_init__(self) -> None:
        if self.call not in CALLS:
            raise ValueError(f"Fault.call must be one of {', '.join(CALLS)}, not {self.call!r}")
        if self.wrong is not None and self.wrong not in WRONG[self.call]:
            known = ", ".join(WRONG[self.call]) or "nothing"
            raise ValueError(f"Fault.wrong for {self.call} must be one of: {known}; not {self.wrong!r}")
        if self.at < 0 or self.times < 1 or (self.done is not None and self.done < 0):
            raise ValueError("Fault.at and Fault.done count from 0, Fault.times from 1")

    def error(self) -> BaseException:
        """The exception of this fault."""
        made = self.exception
        if isinstance(made, BaseException):
            return made
        kind = made if made is not None else (DeviceError if self.started else NotStarted)
        return kind(f"scripted fault at {self.call} {self.at}")


class Armed:
    """A fault with its own count of the calls that it looks at."""

    __slots__ = ("fault", "seen")

    def __init__(self, fault: Fault) -> None:
        self.fault = fault
        self.seen = 0

    def counts(self, name: CallName, session: int) -> bool:
        """Count a call if it is one that the fault looks at; whether it strikes."""
        fault = self.fault
        if name != fault.call or (fault.session is not None and fault.session != session):
            return False
        self.seen += 1
        return fault.at < self.seen <= fault.at + fault.times


def strike(fault: Fault | None, *, before: bool) -> None:
    """Raise a plain fault at its place: a refusal or a crash before the work, or a crash when all was done."""
    if fault is not None and fault.wrong is None and before != (fault.started and fault.done is None):
        raise fault.error()
