# Commands, each doing all the set-up in .venv from nothing:
#
#   make train                  a tiny model learns to use tools, in minutes, on a CPU
#   make train algorithm=ppo    any config group or key=value through args="trainer.steps=10 ..."
#   make test                   lint, types, tests (make test-whole: pages followed word for word, faults, kills)
#   make fuzz                   10,000 random rows, configurations, service requests and tool outputs
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.agent-r1-installed

overrides = $(if $(algorithm),algorithm=$(algorithm)) $(args)

.PHONY: train test test-whole test-slow fuzz lint clean

train: $(SETUP)
	$(BIN)/agent-r1 train recipes/quickstart $(overrides)

test: lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not whole"

test-whole: $(SETUP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "whole and not slow"

test-slow: $(SETUP)
	$(BIN)/python -m pytest -m slow

# 2,500 cases for each of rows, configurations, service requests and tool output; every other property test in full.
fuzz: $(SETUP)
	FUZZ_CASES=2500 $(BIN)/python -m pytest -n 2 --dist worksteal -m "hypothesis and not slow"

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
	rm -rf .venv runs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
