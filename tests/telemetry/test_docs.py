"""What the pages about telemetry state and show is so."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")

from telemetry_overhead import batched, run

from spanfold.telemetry import names

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "reference" / "telemetry.md").read_text(encoding="utf-8")


def test_the_picture_is_drawn_from_the_trace_beside_it():
    path = ROOT / "tools" / "draw_spans.py"
    spec = importlib.util.spec_from_file_location("draw_spans", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    drawn = module.drawn(ROOT / "docs" / "traces" / "slow.jsonl")
    assert (ROOT / "docs" / "how-to" / "slow-spans.svg").read_text(encoding="utf-8") == drawn, f"python {path.relative_to(ROOT)} ..."


def test_case_9_7_the_stated_numbers_of_spans_of_10000_tokens_are_so():
    (stated,) = re.findall(r"makes \*\*(\d+)\*\* span at `summary`, \*\*([\d,]+)\*\* at `rounds` and \*\*([\d,]+)\*\* at `debug`", PAGE)
    for level, count in zip(("summary", "rounds", "debug"), stated, strict=True):
        setting = batched(level, 50_000, meter=False)
        run(10_000, setting)
        assert setting.close() == int(count.replace(",", "")), level


def test_the_recipes_name_metrics_and_attributes_that_exist():
    recipes = PAGE[PAGE.index("| figure | recipe |") : PAGE.index("## What it costs")]
    known = {metric.name for metric in names.METRICS} | {name for metric in names.METRICS for name in metric.attributes}
    named = set(re.findall(r"spanfold\.[a-z_.]+", recipes))
    assert len(named) > 10 and named <= known


def test_no_name_is_listed_twice_and_ours_have_our_prefix():
    for table in (names.ATTRIBUTES, names.METRICS, names.SPANS, names.ORIGINAL):
        listed = [one.name for one in table]
        assert len(listed) == len(set(listed))
    for one in (*names.ATTRIBUTES, *names.METRICS):
        assert one.name.startswith(("spanfold.", "gen_ai.")) or one.name == "error.type"
