# On a fresh machine:  make demo   (see latfix at work)      make test   (run the tests that take minutes)
#                      make test-all   (those that start, kill and replay real processes too; CI runs them)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A bare torch pulls gigabytes of CUDA libraries; without a GPU they are of no use.
TORCH := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1 && echo torch || echo torch==2.13.0)

.PHONY: demo test test-all lint format setup clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "latfix needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(TORCH)
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/latfix optimize recommender --duration 30 --budget 180s

# Tests that measure no time share the cores; those that do ("alone") come after them, one by one.
test: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not alone and not slow"
	$(BIN)/python -m pytest -q -m "alone and not slow"

test-all: setup
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "not alone"
	$(BIN)/python -m pytest -q -m alone

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info latfix-runs
