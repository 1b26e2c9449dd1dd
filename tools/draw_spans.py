"""Draw the first turn of a trace as its tree of spans over time, as an SVG.

    python tools/draw_spans.py docs/traces/slow.jsonl docs/how-to/slow-spans.svg

One line per span: its name, indented below its parent, and a bar from its start to its end. Plain SVG, no package needed.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

from spanfold.engine.trace import TraceReader
from spanfold.telemetry import names
from spanfold.telemetry.recorded import RecordedSpan, recorded_spans
from spanfold.telemetry.rounds import Options

LINE: Final = 17
LEFT: Final = 236
WIDTH: Final = 640
TOP: Final = 34
COLOURS: Final = {
    names.PREFILL: "#7b6fb0",
    names.SPAN: "#4c78a8",
    names.SERIAL_STEP: "#8c8c8c",
    names.DRAFT: "#e08a3c",
    names.VERIFY: "#4c9f70",
    names.SETTLE: "#c14b5a",
}


def ordered(spans: Sequence[RecordedSpan]) -> Iterator[RecordedSpan]:
    """The first turn's spans, each before its children, in the order of time."""
    below: dict[int | None, list[RecordedSpan]] = defaultdict(list)
    for span in spans:
        below[span.parent_id].append(span)

    def branch(span: RecordedSpan) -> Iterator[RecordedSpan]:
        yield span
        for child in sorted(below[span.span_id], key=lambda child: child.start_ns):
            yield from branch(child)

    yield from branch(below[None][0])


def note(span: RecordedSpan) -> str:
    """What stands beside a bar."""
    found = span.attributes
    took = f"{(span.end_ns - span.start_ns) / 1e6:.1f} ms"
    if span.name == names.SPAN:
        return f"{took}: {found[names.ACCEPTED]} of {found[names.VERIFIED]} accepted, {found[names.COMMITTED]} tokens"
    if span.parent_id is None:
        return f"{found[names.OUTPUT_TOKENS]} tokens in {took}"
    return took


def draw(spans: Sequence[RecordedSpan]) -> str:
    """The SVG."""
    lines = list(ordered(spans))
    turn = lines[0]
    whole = max(turn.end_ns - turn.start_ns, 1)
    height = TOP + LINE * len(lines) + 8
    ink = "#57606a"  # readable on light and on dark
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 30} {height}" font-family="sans-serif" font-size="11">',
        f"<title>{escape(turn.name)}: spans of one turn over time</title>",
    ]
    step = next(step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10**9) if whole / 1e6 / step <= 12)
    for ms in range(0, int(whole / 1e6) + 1, step):
        x = LEFT + WIDTH * ms * 1e6 / whole
        parts.append(f'<line x1="{x:.1f}" y1="{TOP - 8}" x2="{x:.1f}" y2="{height}" stroke="{ink}" stroke-opacity="0.2"/>')
        parts.append(f'<text x="{x:.1f}" y="{TOP - 14}" text-anchor="middle" fill="{ink}">{ms} ms</text>')
    for at, span in enumerate(lines):
        y = TOP + LINE * at
        x = LEFT + WIDTH * (span.start_ns - turn.start_ns) / whole
        wide = max(WIDTH * (span.end_ns - span.start_ns) / whole, 1.5)
        colour = COLOURS.get(span.name, "#6b7a89")
        parts.append(f'<text x="{8 + 14 * span.depth}" y="{y + 10}" fill="{ink}">{escape(span.name)}</text>')
        parts.append(f'<rect x="{x:.1f}" y="{y + 1}" width="{wide:.1f}" height="{LINE - 5}" rx="2" fill="{colour}"/>')
        said = note(span)
        # Beside the bar: to its right where there is room, else to its left; the turn's within its own.
        if span.parent_id is None:
            parts.append(f'<text x="{x + 6:.1f}" y="{y + 10}" fill="#ffffff">{said}</text>')
        elif x + wide + 6 * len(said) < LEFT + WIDTH + 20:
            parts.append(f'<text x="{x + wide + 5:.1f}" y="{y + 10}" fill="{ink}">{said}</text>')
        else:
            parts.append(f'<text x="{x - 5:.1f}" y="{y + 10}" text-anchor="end" fill="{ink}">{said}</text>')
    return "\n".join([*parts, "</svg>", ""])


def drawn(trace: Path) -> str:
    """The picture of a trace file."""
    return draw(list(recorded_spans(TraceReader(trace), Options(level="debug"))))


def main() -> int:
    """Draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("svg", type=Path)
    args = parser.parse_args()
    args.svg.write_text(drawn(args.trace), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
