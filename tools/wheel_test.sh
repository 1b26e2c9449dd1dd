#!/usr/bin/env bash
# Build the wheel, install it alone into a clean environment, and run the suite against it.
# Arguments: the Python to use (python3), then what pytest is to run (default: everything).
# The tests run from tests/, so that the source folders at the top are not importable; a test asserts that they are not used.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${1:-python3}
shift || true
venv=.venv-wheel

rm -rf build dist ./*.egg-info "$venv"
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt setuptools
"$venv/bin/python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .
rm -rf build ./*.egg-info

wheel=$(ls dist/*.whl)
echo "built $wheel"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$wheel[torch,onnx,otel,cli,dev]"
(cd tests && "../$venv/bin/pytest" -c ../pyproject.toml --rootdir .. -p no:cacheprovider "${@:-.}")
