"""What is written for users speaks of the project, not of the machine that it was made on."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = {".md", ".toml", ".txt", ".py", ".cfg", ".json", ".sh", ""}
SKIPPED = {".venv", ".venv-wheel", ".git", "build", "dist", "__pycache__", ".hypothesis", ".pytest_cache", ".ruff_cache", ".mutants"}


def texts() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0 and listed.stdout:
        found = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # an unpacked archive
        found = [path for path in ROOT.rglob("*") if not SKIPPED & set(path.relative_to(ROOT).parts)]
    return [path for path in found if path.is_file() and path.suffix in SUFFIXES and path.stat().st_size < 1_000_000]


@pytest.mark.parametrize("path", texts(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_text_holds_a_path_of_one_machine(path: Path):
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"(?<![\w/.$~}-])/(?:work|tmp|home|root|Users)/[\w.-]+", text)
    assert not found, f"{path.relative_to(ROOT)} holds {found}"


def test_the_constraints_satisfy_the_ranges_of_the_project():
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pins = {canonicalize_name(name): version for name, version in pins.items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *(need for needs in project["optional-dependencies"].values() for need in needs)]
    for need in map(Requirement, wanted):
        if need.name == "spanfold":
            continue
        assert need.specifier.contains(pins[canonicalize_name(need.name)]), need
