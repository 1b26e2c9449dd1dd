"""What telemetry needs: nothing for spans of traces, the API package for the observer, the SDK for sending alone."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "telemetry"

#: Which parts of OpenTelemetry a module may name.
ALLOWED = {
    "observer.py": ("opentelemetry.context", "opentelemetry.trace", "opentelemetry"),
    "metrics.py": ("opentelemetry.metrics",),
    "sending.py": ("opentelemetry.",),
}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda path: path.name)
def test_only_sending_needs_the_sdk_and_most_modules_nothing(path):
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module)
    outside = {name for name in found if name.startswith("opentelemetry")}
    allowed = ALLOWED.get(path.name, ())
    assert all(name in allowed or (name.startswith("opentelemetry.") and "opentelemetry." in allowed) for name in outside), outside


WITHOUT = """
import sys
sys.modules["opentelemetry"] = None  # as if it were not installed
from spanfold.engine.cli import main
trace, *arguments = sys.argv[1:]
sys.exit(main(["spans", trace, *arguments]))
"""


def test_the_spans_of_a_trace_can_be_written_without_opentelemetry(tmp_path):
    from spanfold.engine.cli import main

    trace = tmp_path / "run.jsonl"
    assert main(["generate", "hi", "--backend", "scripted", "--max-tokens", "8", "--trace", str(trace), "--json"]) == 0

    def run(*arguments):
        command = [sys.executable, "-c", WITHOUT, str(trace), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    for arguments in (["--console"], ["--json", "-"], ["--perfetto", "-"]):
        done = run(*arguments)
        assert done.returncode == 0 and "text_completion toy" in done.stdout and done.stderr == ""
    done = run("--otlp", "http://localhost:1")
    assert done.returncode == 2
    assert "needs opentelemetry.sdk" in done.stderr and "pip install 'spanfold[otel]'" in done.stderr and done.stderr.count("\n") == 1
