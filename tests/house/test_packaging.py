"""The traps of the house: three folders at the top, mapped under one import name. Each test pins one of them."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
MAPPED = {"spanfold.engine": "engine", "spanfold.backends": "backends", "spanfold.telemetry": "telemetry"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
SOURCES = sorted(path for folder in MAPPED.values() for path in (ROOT / folder).rglob("*.py"))


def name_of(folder: Path) -> str:
    return "spanfold." + ".".join(folder.relative_to(ROOT).parts)


def isolated(code: str, cwd: Path, *options: str) -> str:
    done = subprocess.run([sys.executable, "-I", *options, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_packages_are_the_folders_that_hold_an_init():
    folders = {name_of(path.parent) for path in SOURCES if path.name == "__init__.py"}
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders


def test_every_module_lies_in_a_listed_package():
    assert {name_of(path.parent) for path in SOURCES} <= set(PROJECT["tool"]["setuptools"]["packages"])


def test_the_three_folders_are_mapped():
    assert PROJECT["tool"]["setuptools"]["package-dir"] == MAPPED


def test_spanfold_is_a_namespace_without_code():
    assert not (ROOT / "spanfold").exists()
    assert not (ROOT / "__init__.py").exists()


def test_the_tests_run_against_an_installed_package_and_not_the_sources():
    import spanfold.engine

    assert Path(spanfold.engine.__file__).resolve().parent != ROOT / "engine"


def test_nothing_imports_as_plain_engine(tmp_path: Path):
    code = "import importlib.util as u, json; print(json.dumps([u.find_spec(n) is not None for n in ('engine', 'backends', 'telemetry')]))"
    assert json.loads(isolated(code, tmp_path)) == [False, False, False]


@pytest.mark.parametrize(
    "what",
    [
        "import spanfold.engine",
        "import spanfold.engine.trace, spanfold.engine.cli",
        "import spanfold.engine.cli.generate, spanfold.backends.descriptors",
        "import spanfold.backends, spanfold.backends.scripted, spanfold.backends.models",
        "import spanfold.telemetry, spanfold.telemetry.descriptors, spanfold.telemetry.commands",
        "from spanfold.engine.registry import backends; backends()",
        "from spanfold.engine.cli import main; main(['backends'])",
        "from spanfold.engine.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass",
        "from spanfold.engine.cli import main; main(['generate', 'x', '--backend', 'scripted'])",
    ],
)
def test_the_engine_and_the_command_line_load_nothing_heavy(what: str, tmp_path: Path):
    heavy = ("torch", "transformers", "onnxruntime", "numpy", "opentelemetry")
    code = f"import sys\n{what}\nprint()\nprint([name for name in {heavy!r} if name in sys.modules])"
    assert isolated(code, tmp_path).splitlines()[-1] == "[]"


def test_no_script_lies_in_a_mapped_folder():
    """`python backends/x.py` would put backends/ on sys.path, where `import torch` finds our own folder."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not text.startswith("#!"), path
        if path.name != "__main__.py":
            assert '__name__ == "__main__"' not in text, path


def imports(path: Path) -> list[tuple[int, str]]:
    """(level, module) of every import statement, those inside functions and TYPE_CHECKING blocks too."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(0, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or ""))
    return found


def resolved(path: Path, level: int, module: str) -> str:
    """The absolute name of a relative import."""
    package = name_of(path.parent).split(".")
    return ".".join([*package[: len(package) - level + 1], *([module] if module else [])])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_inside_are_relative_and_the_arrows_point_one_way(path: Path):
    owner = path.relative_to(ROOT).parts[0]
    allowed = {"engine": {"engine"}, "backends": {"backends", "engine"}, "telemetry": {"telemetry", "engine"}}[owner]
    for level, module in imports(path):
        if level == 0:
            assert module.split(".")[0] not in ("spanfold", "engine", "backends", "telemetry"), f"absolute import of {module}"
        else:
            parts = resolved(path, level, module).split(".")
            assert len(parts) > 1 and parts[0] == "spanfold", f"a relative import beyond the package: {module}"
            assert parts[1] in allowed, f"{owner} imports {parts[1]}"


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.relative_to(ROOT).parts[0] == "engine"], ids=lambda path: str(path.relative_to(ROOT))
)
def test_the_engine_depends_on_attrs_and_cattrs_alone(path: Path):
    known = {"attr", "attrs", "cattrs", "rich"} | set(sys.stdlib_module_names)
    assert {module.split(".")[0] for level, module in imports(path) if level == 0} <= known


def test_the_distribution_names_its_dependencies():
    needs = importlib.metadata.requires("spanfold") or []
    names = sorted(Requirement(need).name for need in needs if "extra ==" not in need)
    assert names == ["attrs", "cattrs"]
    extras = set(importlib.metadata.metadata("spanfold").get_all("Provides-Extra") or [])
    assert {"torch", "onnx", "otel", "cli", "all", "dev"} <= extras


def test_three_markers_of_types_are_installed():
    files = {str(file) for file in importlib.metadata.files("spanfold") or []}
    assert {f"spanfold/{folder}/py.typed" for folder in MAPPED.values()} <= files


def test_the_weights_that_ship_are_installed():
    files = {str(file) for file in importlib.metadata.files("spanfold") or []}
    assert {f"spanfold/backends/models/head/{name}.safetensors" for name in ("mtp", "draft_vocab")} <= files


def test_the_installed_modules_are_those_of_the_sources():
    """A left-over build folder would ship modules that were deleted; an old install would lack new ones."""
    installed = {str(file) for file in importlib.metadata.files("spanfold") or [] if file.suffix == ".py"}
    assert installed == {"spanfold/" + path.relative_to(ROOT).as_posix() for path in SOURCES}


def test_a_deleted_module_does_not_ship(tmp_path: Path):
    """Builds twice, a module deleted in between, with the commands of the Makefile: `rm -rf build *.egg-info` first."""
    import shutil

    recipe = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert recipe.index("rm -rf build *.egg-info") < recipe.index("pip install")
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", *MAPPED.values()):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.safetensors"))
        else:
            shutil.copy(source, tree)
    (tree / "engine" / "gone_tomorrow.py").write_text('"""Deleted before the second build."""\n', encoding="utf-8")

    def build(folder: str) -> set[str]:
        code = "import sys; from setuptools.build_meta import build_wheel; print(build_wheel(sys.argv[1]))"
        out = tmp_path / folder
        out.mkdir()
        done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=tree, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        with zipfile.ZipFile(next(out.glob("*.whl"))) as wheel:
            return set(wheel.namelist())

    assert "spanfold/engine/gone_tomorrow.py" in build("first")
    (tree / "engine" / "gone_tomorrow.py").unlink()
    assert "spanfold/engine/gone_tomorrow.py" in build("stale"), "if setuptools stopped shipping stale modules, this trap is gone"
    shutil.rmtree(tree / "build")
    for left in tree.glob("*.egg-info"):
        shutil.rmtree(left)
    assert "spanfold/engine/gone_tomorrow.py" not in build("fresh")


def test_doctests_of_the_engine_pass(tmp_path: Path):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--doctest-modules",
        "--pyargs",
        "spanfold.engine",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_version_is_the_same_everywhere():
    import spanfold.engine

    assert spanfold.engine.__version__ == PROJECT["project"]["version"] == importlib.metadata.version("spanfold")
    assert f"## {spanfold.engine.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
