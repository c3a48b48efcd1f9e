# Commands, each doing all the set-up in .venv from nothing:
#
#   make train                  a tiny model learns to use tools, in minutes, on a CPU
#   make train algorithm=ppo    any config group or key=value through args="trainer.steps=10 ..."
#   make test                   lint, types, tests (make test-whole: pages followed word for word, faults, kills)
#   make fuzz                   10,000 random rows, configurations, service requests and tool outputs; all property tests
#   make coverage               line coverage of agent_r1 by the unit tests, with a floor
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.agent-r1-installed

overrides = $(if $(algorithm),algorithm=$(algorithm)) $(args)

.PHONY: train test test-unit test-integration test-whole test-slow fuzz coverage lint clean

train: $(SETUP)
	$(BIN)/agent-r1 train recipes/quickstart $(overrides)

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

test: lint
	$(PYTEST) -m "not slow and not whole"

test-unit: $(SETUP)
	$(PYTEST) -m "not slow and not whole" tests/unit tests/cuda

test-integration: $(SETUP)
	$(PYTEST) -m "not slow and not whole" tests/integration tests/docs

test-whole: $(SETUP)
	$(PYTEST) -m "whole and not slow"

test-slow: $(SETUP)
	$(BIN)/python -m pytest -m slow

# 2,500 cases for each of rows, configurations, service requests and tool output; every other property test in full.
fuzz: $(SETUP)
	FUZZ_CASES=2500 $(PYTEST) -m "hypothesis and not slow"

# Line coverage by the unit tests, with few examples per property: coverage's tracer makes Python code about twice as slow
# (Python 3.12 and later measure without it). Processes that tests start are not measured.
coverage: $(SETUP)
	FEW_CASES=3 COVERAGE_CORE=$$($(BIN)/python -c "import sys; print('sysmon' if sys.version_info >= (3, 12) else 'ctrace')") \
	$(PYTEST) -m "not slow and not whole" tests/unit --cov --cov-report=term:skip-covered

lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(SETUP): pyproject.toml constraints.txt
	@echo "setting up .venv; the first time this takes some minutes"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $(SETUP)

clean:
	rm -rf .venv runs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
