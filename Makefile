# Two commands matter: `make run` decodes with a real model, `make test` runs every check.
# The README says what they do in plain commands.
PYTHON ?= python3
VENV ?= .venv
EXTRAS ?= torch,onnx,otel,cli,dev
PROMPT ?= def read_lines(path):
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help run test lint check wheel-test clean
.DELETE_ON_ERROR:

help:
	@echo "make run         install into $(VENV) and generate with the embedded model (PROMPT=... for your own prompt)"
	@echo "make test        install into $(VENV), then ruff, pyright and the test suite"
	@echo "make lint        ruff and pyright alone"
	@echo "make wheel-test  build the wheel, install it alone into a clean environment, run the tests of what ships against it"
	@echo "make clean       remove what the above made (the demo model's cache stays)"

SOURCES := $(shell find engine backends telemetry -type f -not -path '*/__pycache__/*')

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "spanfold needs Python 3.11 or newer, this is " + sys.version.split()[0] + ": make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# A regular install: tests and pyright see what a user gets. Left-over build folders would ship deleted modules, so they go first.
$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt README.md $(SOURCES)
	rm -rf build *.egg-info
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt ".[$(EXTRAS)]"
	rm -rf build *.egg-info
	@touch $@

run: $(VENV)/.installed
	$(BIN)/spanfold generate "$(PROMPT)" --max-tokens 96

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

check: $(VENV)/.installed
	cd tests && ../$(BIN)/pytest -n 2 --dist loadfile -c ../pyproject.toml --rootdir .. .

test: lint check

# What can tell a wheel from the sources: what is in it, what its commands find, what its pages and descriptors open.
SHIPPED := house cli docs backends telemetry conformance/test_kit.py onnx/test_installed.py torch/test_installed.py torch/test_embedded.py

wheel-test:
	bash tools/wheel_test.sh "$(PYTHON)" $(SHIPPED)

clean:
	rm -rf $(VENV) .venv-wheel build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find engine backends telemetry tests tools benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
