# On a fresh machine:  make demo       set up, and optimize a sample
#                      make test       the tests that take minutes
#                      make test-all   also tests that start, kill and replay real processes, as CI does
#                      make screenshots  pictures of a page of every kind, for review
#                      make results    list benchmark results older than their code, and repeat the cheap ones
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The default torch includes gigabytes of CUDA libraries; without a GPU, install the CPU build.
TORCH := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi >/dev/null 2>&1 && echo torch || echo torch==2.13.0)
# Compiling all 13,000 modules would take longer than the download: only those that every process imports are compiled,
# also where Python is told not to (PYTHONDONTWRITEBYTECODE). Without that, each process starts two seconds later.
PIP := --quiet --no-compile
COMPILED := torch, torch._dynamo, torch.ao.quantization, torch.export, pandas, pyarrow.parquet, scipy.stats, \
	scipy.optimize, matplotlib.pyplot, latfix.runners.replay.runner_main

.PHONY: demo test test-all test-shared test-alone compiled screenshots lint format results setup clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "latfix needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP) $(TORCH)
	$(BIN)/python -m pip install $(PIP) --editable '.[dev]'
	$(BIN)/python -c 'import $(COMPILED)'
	touch $@

demo: setup
	$(BIN)/latfix optimize recommender --duration 30 --budget 180s

# Tests that measure time ("alone") run after the others, one at a time, from the files that have any.
# Keep compiled modules: otherwise each of some two hundred processes compiles latfix again.
unexport PYTHONDONTWRITEBYTECODE
# Three processes on two cores, because tests often wait for a process or a clock.
SHARED := -n 3 --dist worksteal
# One thread of linear algebra: a second one only spins while tests share the cores.
PYTEST := OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -q
ALONE = $(shell grep -rl --include='test_*.py' 'mark\.alone' tests)

test: setup
	$(PYTEST) $(SHARED) -m "not alone and not slow"
	$(PYTEST) -m "alone and not slow" $(ALONE)

test-all:
	$(MAKE) test-shared
	$(MAKE) test-alone

test-shared: setup $(FIRST)
	$(PYTEST) $(SHARED) -m "not alone"

# Compiles what the tests import, once: in a fresh clone each process that runs tests does it, at the same time.
compiled: setup
	$(BIN)/python -c 'import $(COMPILED)'
	$(PYTEST) --collect-only | tail -1

test-alone: setup
	$(PYTEST) -m alone $(ALONE)

# A page of every kind, 1280 and 400 px wide. Needs Chromium.
screenshots: setup
	$(BIN)/python -m tests.reports.html.screenshots screenshots

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=. $(BIN)/lint-imports

results: setup
	$(BIN)/python -m benchmarks.rerun

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist *.egg-info latfix-runs
