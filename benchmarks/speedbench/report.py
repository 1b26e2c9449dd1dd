"""What a run of the benchmark comes to: values, and their JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import cattrs
from attrs import field, frozen

from .figures import DULL, RoundCost

#: Version of the JSON; a file of another one is refused.
SCHEMA: Final = 1


@frozen(kw_only=True)
class Setting:
    """spanfold at one width.

    Attributes:
        label: ``serial``, ``k=1`` and so on, or ``default``.
        policy: the policy as SessionOpened recorded it.
        ms_per_token: median over the outputs that are not dull.
        cost: median parts of a round; None for the default policy, whose rounds differ.
        tokens_per_span, acceptance: None and empty without a span.
        predicted, measured: speed-up over serial; measured is None where no run has the serial tokens.
        pairs: pairs of runs behind ``measured``.
        ties, differs: runs whose tokens part from the serial ones at a near tie, or anywhere else (a defect).
        dull: runs left out because they repeat themselves.
    """

    label: str
    policy: str
    runs: int
    ms_per_token: float | None
    cost: RoundCost | None
    tokens_per_span: float | None
    acceptance: tuple[float, ...]
    predicted: float | None
    measured: float | None
    pairs: int
    ties: int
    differs: int
    dull: int


@frozen(kw_only=True)
class Peer:
    """Another way to decode the same model.

    Attributes:
        setting: the fastest of ``tuned`` (milliseconds per token of each on other prompts).
        versus: how many times longer it takes per token than spanfold, by spanfold's setting.
        unavailable: why there are no figures.
        ties, differs, dull: as in Setting, compared with spanfold's serial tokens.
    """

    name: str
    way: str
    setting: str
    versions: dict[str, str]
    tuned: dict[str, float]
    runs: int
    ms_per_token: float | None
    versus: dict[str, float | None]
    pairs: int
    ties: int
    differs: int
    dull: int
    unavailable: str | None = None


@frozen(kw_only=True)
class Result:
    """One model in one dtype.

    Attributes:
        kind: ``demo``, ``embedded``, ``scripted`` or ``directory``: which targets hold.
        shares: share of distinct 8-grams of each output of the serial decode, in the prompts' order.
        rows_ms, ort_rows_ms: one bare forward over so many rows behind ``past`` others.
        row_ratio: one row here / one row in ONNX Runtime, median over alternating rounds.
        step_ms, draft_fixed_ms: one head step, and what every draft costs besides.
        row_exact: whether the runtime says that a row's scores do not depend on the other rows.
    """

    model: str
    kind: str
    dtype: str
    threads: int
    prompts: str
    prompts_sha256: str
    prompts_planned: int
    prompts_done: int
    turns: int
    max_tokens: int
    seconds: float
    row_exact: bool
    shares: tuple[float, ...]
    settings: tuple[Setting, ...]
    peers: tuple[Peer, ...]
    past: int
    rows_ms: dict[str, float]
    ort_rows_ms: dict[str, float]
    row_ratio: float | None
    step_ms: float | None
    draft_fixed_ms: float | None
    notes: tuple[str, ...]

    @property
    def telling(self) -> int:
        """How many prompts have an output that does not repeat itself: all figures of speed rest on these."""
        return sum(share >= DULL for share in self.shares)

    def setting(self, label: str) -> Setting | None:
        """The setting with this label."""
        return next((one for one in self.settings if one.label == label), None)

    @property
    def best_fixed(self) -> Setting | None:
        """The fixed width with the greatest measured speed-up; the greatest predicted one where none could be stated."""
        fixed = [one for one in self.settings if one.label.startswith("k=")]
        stated = [one for one in fixed if one.measured is not None]
        return max(stated or fixed, key=lambda one: one.measured or one.predicted or 0.0, default=None)


@frozen(kw_only=True)
class Engine:
    """The engine over a target of no cost (benchmarks/engine_overhead.py)."""

    overhead_us_per_round: float
    growth: float


@frozen(kw_only=True)
class Target:
    """What was to be reached.

    Attributes:
        reached: None where it could not be measured.
        why: where the time goes, or why there is no figure; empty where it was reached.
    """

    name: str
    wanted: str
    value: float | None
    reached: bool | None
    why: str


@frozen(kw_only=True)
class Report:
    """A whole run of the command."""

    command: str
    date: str
    quick: bool
    cpu: str
    cores: int
    system: str
    spanfold: str
    versions: dict[str, str]
    results: tuple[Result, ...]
    engine: Engine | None
    targets: tuple[Target, ...]
    schema: int = field(default=SCHEMA)

    @schema.validator  # pyright: ignore[reportAttributeAccessIssue, reportUntypedFunctionDecorator]
    def _known(self, attribute: object, value: int) -> None:
        if value != SCHEMA:
            raise ValueError(f"the file is of version {value}, this command reads {SCHEMA}")


_CONVERTER: Final = cattrs.Converter(forbid_extra_keys=True)


@_CONVERTER.register_structure_hook
def _number(value: object, kind: type) -> float:  # pyright: ignore[reportUnusedFunction]
    # cattrs would make a number of anything that float() takes.
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def to_json(report: Report) -> str:
    """The report as JSON text."""
    return json.dumps(_CONVERTER.unstructure(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def from_json(text: str) -> Report:
    """The report of a JSON text.

    Raises:
        ValueError: it is no report; the message says where.
    """
    try:
        return _CONVERTER.structure(json.loads(text), Report)
    except cattrs.BaseValidationError as error:
        raise ValueError("; ".join(cattrs.transform_error(error))) from error


def load(path: Path) -> Report:
    """The report in a file."""
    return from_json(path.read_text(encoding="utf-8"))
