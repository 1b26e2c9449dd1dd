"""What the documentation shows is run, and what it says is printed is printed."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]
#: A python block, and the text block that directly follows it, if one does.
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)


#: A command of the trace tutorial and what it prints.
CONSOLE = re.compile(r"^```console\n\$ spanfold ([^\n]*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def shown(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def examples(path: Path) -> list[tuple[str, str | None]]:
    return [(match[1], match[2]) for match in BLOCK.finditer(path.read_text(encoding="utf-8"))]


def run(path: Path) -> list[tuple[str, str | None]]:
    """What each block printed, and what the page says it prints."""
    space: dict[str, Any] = {"__name__": "example"}
    printed: list[tuple[str, str | None]] = []
    for number, (code, expected) in enumerate(examples(path), 1):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile(code, f"{shown(path)}, example {number}", "exec"), space)
        printed.append((out.getvalue(), expected))
    return printed


@pytest.mark.parametrize("path", [path for path in PAGES if examples(path) and path.name != "README.md"], ids=shown)
def test_the_examples_run_and_print_what_the_page_says(path: Path):
    if "from opentelemetry" in path.read_text(encoding="utf-8"):
        pytest.importorskip("opentelemetry.sdk", reason="the page's examples need the extra [otel]")
    for out, expected in run(path):
        assert out == (expected or "")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Two threads on two busy cores are far slower than one."""
    torch = pytest.importorskip("torch", reason="the README's example needs the extra [torch]")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_lines_of_the_readme_run_on_the_embedded_model(one_thread: None):
    (code, _) = examples(ROOT / "README.md")[0]
    assert len([line for line in code.splitlines() if line]) <= 16
    [(out, _)] = run(ROOT / "README.md")
    *text, account, last = out.splitlines()
    assert "".join(text).strip() and account.startswith("32 tokens, ") and account.endswith("% of the drafts accepted")
    assert len(last.split("(")[0].split()) == 8 and last.endswith(" False")


def test_the_generated_parts_are_current():
    done = subprocess.run([sys.executable, str(ROOT / "tools" / "refresh_docs.py"), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_links_inside_the_documentation_lead_somewhere(path: Path):
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text(encoding="utf-8")):
        assert (path.parent / target).exists(), f"{shown(path)} links to {target}"


def test_every_page_is_reached_from_the_index():
    text = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    linked = {(ROOT / "docs" / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", text)}
    assert {path for path in PAGES if path.is_relative_to(ROOT / "docs") and path.name != "index.md"} <= linked


def test_the_makefile_knows_what_the_readme_names():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"^make (\w[\w-]*)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


@pytest.mark.parametrize(("command", "expected"), CONSOLE.findall((ROOT / "docs" / "find-the-bug.md").read_text(encoding="utf-8")))
def test_the_commands_of_the_trace_tutorial_print_what_it_says(
    command: str, expected: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from spanfold.engine.cli import main

    monkeypatch.chdir(ROOT / "docs" / "traces")
    main(command.split())
    assert capsys.readouterr().out == expected
