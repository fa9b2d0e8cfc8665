# Everything a user or a maintainer does, each from a fresh clone: `make demo`, `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   ?= toy_cnn
export DAGSTER_HOME ?= $(CURDIR)/data/dagster_home
# Byte-compiling all of torch up front takes longer than compiling what is imported, when it is.
PIP_INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --no-compile
# What is imported has to be kept compiled, then: else every process compiles it anew, and takes three times as long.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup emulator demo dev check quick test lint format bench trust models docs clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 15))' || \
	  { echo "Python 3.10 to 3.14 is needed; $(PYTHON) is another. Set PYTHON=/path/to/python3.x"; exit 1; }
	@echo "==> virtual environment and dependencies (a minute or two the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "==> test and lint tools"
	@$(PIP_INSTALL) --editable '.[dev]'
	@touch $@

setup: $(VENV)/.ready ## Create the virtual environment and install everything

emulator: setup ## Find or fetch QEMU >= 10.1, without root
	@$(BIN)/sme2 emulator

demo: setup ## Profile a model with SME2 on and off, show the comparison
	@$(BIN)/sme2 emulator || echo "(continuing without the emulated platform)"
	@$(BIN)/sme2 profile $(DEMO)
	@echo && echo "Next: 'make dev' opens the Dagster UI; '$(BIN)/sme2 sql \"SHOW TABLES\"' asks the warehouse."

dev: setup ## Open the Dagster UI on http://127.0.0.1:3000
	@$(BIN)/dagster dev --workspace workspace.yaml --host 127.0.0.1 --port $(or $(PORT),3000)

# How tests are dealt out to workers, and how many there are: sme2_assets_tests/lanes.py. The longest files begin.
PYTEST_TOGETHER := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --no-loadscope-reorder

# Exit code 5: PYTEST_ARGS selects nothing of that part.
test: $(VENV)/.ready-dev ## Run all tests, the slow ones too
	@$(PYTEST_TOGETHER) -m "not alone" $(PYTEST_ARGS) || test $$? -eq 5
	@$(BIN)/python -m pytest -m alone $(PYTEST_ARGS) || test $$? -eq 5

check: $(VENV)/.ready-dev ## Lint, types, and the quick tests, which need no emulator
	@$(MAKE) --no-print-directory --jobs 2 lint quick

# What needs neither QEMU nor a device nor a browser, and does not take long (lanes.py).
quick: $(VENV)/.ready-dev
	@$(PYTEST_TOGETHER) -m "not emulator and not slow and not alone" $(PYTEST_ARGS)

# actionlint's package fetches a binary when it is installed, from where not everybody gets: the workflow has it.
lint: $(VENV)/.ready-dev ## Lint, format check, types, Dagster's definitions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@DAGSTER_DISABLE_TELEMETRY=1 $(BIN)/dg check defs
	@if command -v actionlint >/dev/null; then actionlint; fi

format: $(VENV)/.ready-dev ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup ## Benchmarks, each beside its peer in the same run
	@$(BIN)/python -m benchmarks

trust: setup ## A/A and power of the measurement on this machine, about 15 minutes
	@$(BIN)/python -m benchmarks.measurement_bench

# Hugging Face's models are among them, and what they need comes with the test tools.
models: $(VENV)/.ready-dev ## Every kind of model at every precision in one table, an hour or two
	@$(BIN)/python -m benchmarks.models_bench

docs: $(VENV)/.ready-dev ## The documents as web pages: site/docs/index.html
	@rm -rf site
	@$(BIN)/python docs/site.py site

clean: ## Remove what can be made again; measurements stay
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info data/artifacts data/tools data/current/runner data/current/model
