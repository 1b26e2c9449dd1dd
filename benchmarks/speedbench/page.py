"""The page of results, docs/benchmarks.md, from a report's JSON."""

from __future__ import annotations

from .report import Report
from .table import configuration, forwards, heading, markdown, peers, remarks, settings, targets

_INTRODUCTION = """# Benchmarks

Written by `python benchmarks/speed.py --report {source} --page docs/benchmarks.md`; do not edit it by hand.
[How to run and read them](how-to/run-the-benchmarks.md).

```text
{configuration}
```

`predicted` is tokens per span x a serial round / (head + verify + settle + engine), all medians of the costs recorded in these
runs; `measured` is by the clock, the median over pairs of runs of one prompt in one turn. No speed-up is stated where tokens
differ.
"""


def page(report: Report, source: str, picture: str | None) -> str:
    """The page.

    Args:
        report: what was measured.
        source: where its JSON lies, from the repository's root.
        picture: the plot's path from docs/, or None.
    """
    parts = [_INTRODUCTION.format(source=source, configuration=configuration(report)).rstrip()]
    if report.quick:
        parts.append("This was a quick run over few prompts: it shows the form of the tables and supports no statement.")
    if picture is not None:
        parts.append(f"![Milliseconds per token and speed-up by width]({picture})")
    parts.append("## Targets\n\n" + targets(report.targets, markdown))
    missed = [f"- **{one.name}**: {one.why}" for one in report.targets if one.why]
    if missed:
        parts.append("Where a target was not reached or not measured:\n\n" + "\n".join(missed))
    for result in report.results:
        parts.append("## " + heading(result))
        parts.append(settings(result, markdown))
        if result.peers:
            parts.append(peers(result, markdown))
        parts.append(forwards(result, markdown))
        parts.append("\n".join(f"- {line}" for line in remarks(result)))
    return "\n\n".join(parts) + "\n"
