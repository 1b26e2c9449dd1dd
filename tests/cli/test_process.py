"""The command line as a process: both ways to start it, encodings, pipes, terminals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from spanfold.backends.scripted.toy import RECITED

GENERATE = ["generate", "hi", "--backend", "scripted"]
SCRIPT = str(Path(sys.executable).with_name("spanfold"))


def run(*command: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env=os.environ | environment, check=False)


@pytest.mark.parametrize("start", [[SCRIPT], [sys.executable, "-m", "spanfold.engine"]], ids=["script", "module"])
def test_both_ways_to_start_it(start: list[str]):
    done = run(*start, *GENERATE, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == RECITED
    failed = run(*start, "generate", "hi", "--backend", "none such")
    assert failed.returncode == 2 and failed.stderr.count(b"\n") == 1


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_is_valid_utf8_whatever_the_locale_says(encoding: str):
    done = run(SCRIPT, *GENERATE, PYTHONIOENCODING=encoding, LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("utf-8").startswith(RECITED)


def test_a_reader_that_goes_away_is_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "wb") as gone:
        done = subprocess.run([SCRIPT, *GENERATE], stdout=gone, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 141
    assert done.stderr == b""


def test_without_a_prompt_and_without_a_pipe_it_asks_for_one():
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    leader, follower = pty.openpty()
    done = subprocess.run([SCRIPT, "generate", "--backend", "scripted"], stdin=follower, capture_output=True, check=False)
    os.close(leader)
    os.close(follower)
    assert done.returncode == 2 and b"give a prompt" in done.stderr


def on_a_terminal(**environment: str) -> bytes:
    pty = pytest.importorskip("pty", reason="this system has no pseudo-terminals")
    leader, follower = pty.openpty()
    keep = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen([SCRIPT, *GENERATE, "--max-tokens", "5"], stdout=follower, stdin=subprocess.DEVNULL, env=keep | environment)
    os.close(follower)
    seen = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # the terminal's other side is closed
            break
        if not chunk:
            break
        seen += chunk
    os.close(leader)
    assert process.wait() == 0
    return seen


def test_colour_needs_a_terminal_and_honours_no_color():
    pytest.importorskip("rich", reason="comes with the extra [cli]")
    assert b"\x1b[" in on_a_terminal(TERM="xterm")
    assert b"\x1b[" not in on_a_terminal(TERM="xterm", NO_COLOR="1")
    assert b"\x1b[" not in run(SCRIPT, *GENERATE).stdout
