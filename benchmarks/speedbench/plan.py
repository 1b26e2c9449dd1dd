"""What is to be measured, and on which machine."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from attrs import asdict, frozen

ROOT: Final = Path(__file__).resolve().parents[2]
#: Prompts are tuned on from the end of the file, so that none is measured that a setting was chosen by.
TUNING_PROMPTS: Final = 2


class PlanError(Exception):
    """The command cannot do what it was asked; one line that says why."""


@frozen(kw_only=True)
class Plan:
    """The measurements of one model in one dtype.

    Attributes:
        folder: the model's directory, or ``scripted``; ``weights`` tells one state of it from another.
        prompts: the texts that are measured; ``tuning`` those that settings are chosen by.
        peer_prompts: of how many of them the peers are measured; they are slow, and a ratio needs fewer pairs than acceptance.
        turns: most turns over the prompts; fewer where the time is up.
        minutes: after which no further prompt is begun.
        backend: of spanfold, which opens the directory.
        row_width: rows to which its forwards are padded, where the backend has that option; None: its own choice.
    """

    model: str
    kind: str
    folder: str
    weights: str
    dtype: str
    threads: int
    prompts_file: str
    prompts_sha256: str
    prompts: tuple[str, ...]
    tuning: tuple[str, ...]
    max_tokens: int
    turns: int
    minutes: float
    row_rounds: int
    row_repeats: int
    past: int
    peers: tuple[str, ...]
    peer_prompts: int
    backend: str = "torch"
    row_width: int | None = None

    @property
    def key(self) -> str:
        """Names what is measured: another plan, or another source, is another file of raw measurements."""
        fields: dict[str, Any] = asdict(self)
        fields.pop("minutes")
        digest = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        for path in sources():
            digest.update(path.read_bytes())
        return f"{self.kind}-{self.dtype}-{digest.hexdigest()[:12]}"


def sources() -> list[Path]:
    """The Python files that decide what the figures are: of the installed package, and of the peers."""
    found = [*sorted((ROOT / "benchmarks" / "peers").rglob("*.py")), Path(__file__).with_name("recorded.py")]
    for name in ("spanfold.engine", "spanfold.backends"):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            found += sorted(Path(spec.origin).parent.rglob("*.py"))
    return found


def state_of(folder: Path) -> str:
    """A short digest of which weight files lie there, their sizes and when they were written."""
    files = sorted(folder.glob("*.safetensors"))
    return hashlib.sha256(repr([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]).encode()).hexdigest()[:12]


def read_prompts(path: Path, count: int) -> tuple[tuple[str, ...], tuple[str, ...], str]:
    """The first ``count`` prompts, those to tune by, and the digest of all that are used.

    Raises:
        PlanError: the file is no list of strings, alone or under ``prompts``, or holds too few.
    """
    try:
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PlanError(f"the prompts cannot be read from {path}: {error}") from error
    texts: Any = content.get("prompts") if isinstance(content, dict) else content
    if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
        raise PlanError(f'{path} must hold a list of strings, or {{"prompts": [...]}}')
    if len(texts) < count + 1:
        raise PlanError(f"{path} holds {len(texts)} prompts; {count} to measure and one to tune by are asked for: use --count")
    chosen, tuning = tuple(texts[:count]), tuple(texts[max(count, len(texts) - TUNING_PROMPTS) :])
    digest = hashlib.sha256(json.dumps([chosen, tuning]).encode()).hexdigest()
    return chosen, tuning, digest


def cpu_name() -> str:
    """The processor's name, as the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def revision() -> str:
    """The commit of this tree; ``+`` behind it where files were changed since."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty=+"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
