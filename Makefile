# Two commands, each doing all the set-up in .venv from nothing:
#
#   make train                  a tiny model learns to use tools, in minutes, on a CPU
#   make train algorithm=ppo    any config group or key=value through args="trainer.steps=10 ..."
#   make test                   lint, types, tests (make test-pages: the documentation, followed word for word)
PYTHON ?= python3
BIN := .venv/bin
SETUP := .venv/.agent-r1-installed

overrides = $(if $(algorithm),algorithm=$(algorithm)) $(args)

.PHONY: train test test-pages test-slow lint clean

train: $(SETUP)
	$(BIN)/agent-r1 train recipes/quickstart $(overrides)

test: lint
	$(BIN)/python -m pytest -n 2 -m "not slow and not page"

test-pages: $(SETUP)
	$(BIN)/python -m pytest -n 2 -m "page and not slow"

test-slow: $(SETUP)
	$(BIN)/python -m pytest -m slow

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
