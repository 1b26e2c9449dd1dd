"""The report as text and as Markdown: the same rows, two ways to draw them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from .figures import DULL
from .report import Report, Result, Setting, Target

Rows = Sequence[Sequence[str]]
Draw = Callable[[Sequence[str], Rows], str]


def number(value: float | None, digits: int = 2, after: str = "") -> str:
    """A figure, or a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}{after}"


def aligned(head: Sequence[str], rows: Rows) -> str:
    """Columns of plain text: the first to the left, the others to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        first = cells[0].ljust(widths[0])
        return "  ".join([first, *(cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True))]).rstrip()

    return "\n".join([line(head), "  ".join("-" * width for width in widths), *map(line, rows)])


def markdown(head: Sequence[str], rows: Rows) -> str:
    """A Markdown table."""

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    return "\n".join([line(head), "|" + "---|" * len(head), *map(line, rows)])


def _speed_up(setting: Setting) -> str:
    if setting.measured is not None:
        return f"{setting.measured:.2f}x"
    if not setting.runs or setting.dull == setting.runs:
        return "-"
    return "tokens differ"  # no speed-up is stated for different outputs


def settings(result: Result, draw: Draw) -> str:
    """What spanfold does, by width."""
    head = ("spanfold", "policy", "ms/token", "verify ms", "head ms", "settle ms", "engine us/round", "tokens/span", "accepted by depth")
    head += ("predicted", "measured", "runs", "pairs", "near ties", "differ", "dull")
    rows: list[list[str]] = []
    for one in result.settings:
        cost = one.cost
        parts = [number(None if cost is None else value) for value in (() if cost is None else (cost.verify, cost.draft, cost.settle))]
        rows.append(
            [
                one.label,
                one.policy,
                number(one.ms_per_token),
                *(parts or ["-", "-", "-"]),
                number(None if cost is None else cost.engine * 1e3, 0),
                number(one.tokens_per_span),
                " ".join(f"{share:.2f}" for share in one.acceptance) or "-",
                number(one.predicted, 2, "x"),
                _speed_up(one),
                *(str(count) for count in (one.runs, one.pairs, one.ties, one.differs, one.dull)),
            ]
        )
    return draw(head, rows)


def peers(result: Result, draw: Draw) -> str:
    """The peers: times longer per token than spanfold's serial decoding, k = 1 and default policy."""
    head = (
        "peer",
        "way",
        "setting",
        "ms/token",
        "/ our serial",
        "/ our k=1",
        "/ our default",
        "runs",
        "pairs",
        "near ties",
        "differ",
        "dull",
    )
    rows: list[list[str]] = []
    for one in result.peers:
        name = f"{one.name} {one.versions.get(one.name, '')}".strip()
        if one.unavailable is not None:
            rows.append([name, one.way or "-", "n/a, see below", *("-" for _ in head[3:])])
            continue
        versus = [number(one.versus.get(label), 2, "x") for label in ("serial", "k=1", "default")]
        counts = [str(count) for count in (one.runs, one.pairs, one.ties, one.differs, one.dull)]
        rows.append([name, one.way, one.setting, number(one.ms_per_token), *versus, *counts])
    return draw(head, rows)


def forwards(result: Result, draw: Draw) -> str:
    """Bare forwards by rows."""
    head = ("one forward, ms", *(f"{rows} rows" if rows != "1" else "1 row" for rows in result.rows_ms))
    rows = [["spanfold's runtime", *(number(ms) for ms in result.rows_ms.values())]]
    if result.ort_rows_ms:
        rows.append(["bare ONNX Runtime session", *(number(result.ort_rows_ms.get(count)) for count in result.rows_ms)])
    return draw(head, rows)


def targets(found: Sequence[Target], draw: Draw) -> str:
    """The targets."""
    words = {True: "reached", False: "NOT reached", None: "not measured"}
    return draw(("target", "wanted", "found", ""), [[one.name, one.wanted, number(one.value), words[one.reached]] for one in found])


def heading(result: Result) -> str:
    """The model and its configuration in one line."""
    done = (
        f"{result.prompts_done} of {result.prompts_planned} prompts"
        if result.prompts_done < result.prompts_planned
        else f"{result.prompts_done} prompts"
    )
    turns = f", {result.turns} turns" if result.turns > 1 else ""
    threads = f"{result.threads} thread{'' if result.threads == 1 else 's'}"
    return f"{result.model}, {result.dtype}, {threads}: {done}{turns}, at most {result.max_tokens} tokens"


def remarks(result: Result) -> list[str]:
    """What a reader of the tables must know of this result."""
    dull = len(result.shares) - result.telling
    shares = ", ".join(f"{share:.2f}" for share in result.shares)
    lines = [
        f"prompts: {result.prompts}, SHA-256 of those used {result.prompts_sha256[:16]}",
        f"share of distinct 8-grams of each serial output: {shares or 'none'}; {dull} below {DULL}, left out of acceptance and speed-up",
        f"rows independent of each other: {'yes, the runtime says so' if result.row_exact else 'not claimed'}",
    ]
    if result.step_ms is not None:
        lines.append(f"a head step takes {result.step_ms:.2f} ms, and a draft {number(result.draft_fixed_ms)} ms besides")
    if result.row_ratio is not None:
        lines.append(
            f"one row takes {result.row_ratio:.2f} times ONNX Runtime's time (median over alternating rounds, {result.past} rows before it)"
        )
    lines += [f"{peer.name}: n/a: {peer.unavailable}" for peer in result.peers if peer.unavailable is not None]
    for peer in result.peers:
        if len(peer.tuned) > 1:
            tried = ", ".join(f"{label}: {ms:.1f}" for label, ms in sorted(peer.tuned.items(), key=lambda item: item[1]))
            lines.append(f"{peer.name}, {peer.way}: the fastest of these on other prompts, ms per token: {tried}")
    return [*lines, *result.notes]


def text(report: Report) -> str:
    """The whole report for a terminal."""
    parts = [configuration(report)]
    for result in report.results:
        tables = [settings(result, aligned), peers(result, aligned)] if result.peers else [settings(result, aligned)]
        parts += ["== " + heading(result), *tables, forwards(result, aligned), "\n".join(f"- {line}" for line in remarks(result))]
    parts.append(targets(report.targets, aligned))
    missed = [f"- {one.name}: {one.why}" for one in report.targets if one.why]
    if missed:
        parts.append("Where the time goes:\n" + "\n".join(missed))
    return "\n\n".join(parts) + "\n"


def configuration(report: Report) -> str:
    """Machine, versions, date and command."""
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    quick = " (--quick: too few prompts for a statement)" if report.quick else ""
    return (
        f"spanfold {report.spanfold}, {versions}\n{report.cpu}, {report.cores} core{'' if report.cores == 1 else 's'}, {report.system}\n"
        f"{report.date}{quick}\n{report.command}"
    )
