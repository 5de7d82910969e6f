# Works on a fresh clone with python3.11 and make: both targets make .venv first when it is missing or out of date.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
# What a target installs in is remembered in a stamp, which is older than pyproject.toml when that has changed.
BASE := $(VENV)/.base.stamp
DEV := $(VENV)/.dev.stamp

export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: demo test check lint types imports tests clean

demo: $(BASE)
	$(BIN)/python tools/demo.py

test: lint types imports tests

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(DEV)
	$(BIN)/mypy metrale/core metrale/trace

imports: $(DEV)
	$(BIN)/lint-imports

tests: $(DEV)
	$(BIN)/pytest -n 2 --cov=metrale.core --cov=metrale.trace --cov-branch --cov-report=
	$(BIN)/coverage report --include='metrale/core/*,metrale/trace/*' --fail-under=95 --skip-covered --show-missing

check: $(BASE)
	$(BIN)/metrale check

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(BASE): pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e .
	touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/pip install --quiet -e '.[dev]'
	touch $@ $(BASE)

clean:
	rm -rf $(VENV) build dist *.egg-info .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
