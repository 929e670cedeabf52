# On a fresh machine:  make demo   (see latfix at work)      make test   (run the tests that take minutes)
#                      make test-all   (those that start, kill and replay real processes too; CI runs them)
#                      make results    (which figures are of an older latfix; cheap ones are measured again)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# A bare torch pulls gigabytes of CUDA libraries; without a GPU they are of no use.
TORCH := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1 && echo torch || echo torch==2.13.0)
# What is imported is compiled then; all 13,000 modules would take longer than the download.
PIP := --quiet --no-compile

.PHONY: demo test test-all test-shared test-alone lint format results setup clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "latfix needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP) $(TORCH)
	$(BIN)/python -m pip install $(PIP) --editable '.[dev]'
	touch $@

demo: setup
	$(BIN)/latfix optimize recommender --duration 30 --budget 180s

# Tests share the cores; those that measure time ("alone") come after them, one by one, out of the files that have any.
# Compiled modules are kept in any case: each of some two hundred processes would compile latfix again.
unexport PYTHONDONTWRITEBYTECODE
# Three share two cores: every fourth second a test waits for a process or a clock.
SHARED := -n 3 --dist worksteal
# A second thread of linear algebra only spins where tests share the cores.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

test: setup
	$(PYTEST) $(SHARED) -m "not alone and not slow"
	$(PYTEST) -m "alone and not slow" $(ALONE)

test-all:
	$(MAKE) test-shared
	$(MAKE) test-alone

test-shared: setup
	$(PYTEST) $(SHARED) -m "not alone"

test-alone: setup
	$(PYTEST) -m alone $(ALONE)

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

results: setup
	$(BIN)/python benchmarks/rerun.py

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info latfix-runs
