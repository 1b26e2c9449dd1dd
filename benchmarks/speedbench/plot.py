"""The report as a picture: milliseconds per token of everyone, and the speed-up by width, predicted and measured."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportUnknownMemberType=false
from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .report import Report, Result
from .table import heading


def available() -> bool:
    """Whether the plot can be drawn."""
    return find_spec("matplotlib") is not None


def draw(report: Report, stem: Path) -> list[Path]:
    """Write ``stem``.png and ``stem``.svg; one row of two panels per model and dtype.

    Raises:
        ImportError: matplotlib is not installed (the extra ``bench``).
    """
    import matplotlib as mpl

    mpl.use("agg")
    mpl.rcParams["svg.hashsalt"] = "spanfold"  # the same figures give the same file
    from matplotlib import pyplot as plt

    count = max(len(report.results), 1)
    figure, axes = plt.subplots(count, 2, figsize=(11, 3.6 * count), squeeze=False, layout="constrained")
    for panels, result in zip(axes, report.results, strict=False):
        _bars(panels[0], result)
        _widths(panels[1], result)
    figure.suptitle(f"spanfold {report.spanfold}, {report.cpu}, {report.date[:10]}", fontsize=10)
    written = [stem.with_suffix(".png"), stem.with_suffix(".svg")]
    for path in written:
        figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else {})
    plt.close(figure)
    return written


def _bars(panel: Any, result: Result) -> None:
    own = [(f"spanfold {one.label}", one.ms_per_token, "#3b6ea5") for one in result.settings]
    others = [(f"{one.name} {one.way}", one.ms_per_token, "#b0b0b0") for one in result.peers]
    shown = [(name, ms, colour) for name, ms, colour in [*own, *others] if ms is not None]
    panel.barh([name for name, _, _ in shown], [ms for _, ms, _ in shown], color=[colour for _, _, colour in shown])
    panel.invert_yaxis()
    for at, (_, ms, _) in enumerate(shown):
        panel.text(ms, at, f" {ms:.3g}", va="center", fontsize=8)
    panel.margins(x=0.12)
    panel.set_xlabel("ms per token after the first (less is better)", fontsize=8)
    panel.set_title(heading(result), fontsize=9)
    panel.tick_params(labelsize=8)


def _widths(panel: Any, result: Result) -> None:
    widths = [(int(one.label[2:]), one) for one in result.settings if one.label.startswith("k=")]
    for name, mark, points in (
        ("predicted", "o--", [(k, one.predicted) for k, one in widths if one.predicted is not None]),
        ("measured", "s-", [(k, one.measured) for k, one in widths if one.measured is not None]),
    ):
        if points:
            panel.plot([k for k, _ in points], [value for _, value in points], mark, label=name, markersize=5)
    default = result.setting("default")
    if default is not None and default.measured is not None:
        panel.axhline(default.measured, color="#3b6ea5", linewidth=1, label=f"default ({default.policy}), measured")
    panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    panel.set_xticks([k for k, _ in widths])
    panel.set_xlabel("tokens drafted per span, k", fontsize=8)
    panel.set_title("speed-up over our serial decoding", fontsize=9)
    panel.tick_params(labelsize=8)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize=8)
