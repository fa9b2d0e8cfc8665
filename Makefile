# Everything a user or a maintainer does, each from a fresh clone: `make demo`, `make test`.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   ?= toy_cnn
# The set-up compiles nothing, so what is imported has to be kept compiled: otherwise every process compiles it again,
# and takes three times as long.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup emulator demo dev check quick test test-all test-fifth lint format bench trust models lock resolve docs clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# An environment without this file is not ready: one that was interrupted is completed or replaced.
$(VENV)/.ready: pyproject.toml uv.lock
	@command -v $(PYTHON) >/dev/null || { echo "error: $(PYTHON) is not installed"; \
	  echo "  What to do: install Python 3.11 to 3.14, or name one: make setup PYTHON=/path/to/python3.12"; exit 1; } >&2
	@$(PYTHON) -m tools.set_up $(VENV)
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@echo "==> test and lint tools"
	@$(PYTHON) -m tools.set_up $(VENV) dev
	@touch $@

setup: $(VENV)/.ready ## Create the virtual environment and install everything

emulator: setup ## Find or fetch QEMU >= 10.1, without root
	@$(BIN)/sme2 emulator

demo: setup ## Profile a model with SME2 on and off, show which operators run on the SME unit
	@$(BIN)/sme2 demo $(DEMO)
	@echo && echo "Next: 'make dev' opens the Dagster UI; '$(BIN)/sme2 sql \"SHOW TABLES\"' asks the warehouse."

dev: setup ## Open the Dagster UI on http://127.0.0.1:3000
	@$(BIN)/sme2 dev --port $(or $(PORT),3000)

# Which tests are in which tier, and in which order they begin: sme2_assets_tests/tiers.py.
PYTEST_TOGETHER := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

check: $(VENV)/.ready-dev ## Lint, types, and the quick tests: what to run before a commit
	@$(MAKE) --no-print-directory --jobs 2 lint quick

quick: $(VENV)/.ready-dev
	@$(PYTEST_TOGETHER) -m quick $(PYTEST_ARGS)

test: $(VENV)/.ready-dev ## Every capability once, for real: what to run before a change lands
	@$(PYTEST_TOGETHER) -m "not thorough and not alone" $(PYTEST_ARGS)

test-all: $(VENV)/.ready-dev ## Every test there is, an hour: what runs each night
	@$(PYTEST_TOGETHER) -m "not alone" $(PYTEST_ARGS)
	@$(BIN)/python -m pytest -m alone $(PYTEST_ARGS)

# A fifth of what `make test` leaves out, another one for each commit. Exit code 5: most parts have none of those alone.
test-fifth: $(VENV)/.ready-dev
	@$(BIN)/python -m pytest -m alone --fifth=$$(git rev-parse HEAD) $(PYTEST_ARGS) || test $$? -eq 5
	@$(PYTEST_TOGETHER) -m "thorough and not alone" --fifth=$$(git rev-parse HEAD) $(PYTEST_ARGS)

CPP := $(wildcard $(foreach folder,sme2_assets/runner/native/src sme2_assets/work/counter sme2_assets_tests/runner/native,$(folder)/*.cpp $(folder)/*.h))

# actionlint's package fetches a binary when it is installed, from where not everybody gets: the workflow has it.
lint: $(VENV)/.ready-dev ## Lint, format check, types, Dagster's definitions
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/clang-format --dry-run --Werror $(CPP)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo --no-cache
	@DAGSTER_DISABLE_TELEMETRY=1 $(BIN)/dg check defs
	@if command -v actionlint >/dev/null; then actionlint; fi

format: $(VENV)/.ready-dev ## Format and fix what can be fixed
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
	@$(BIN)/clang-format -i $(CPP)

bench: setup ## Benchmarks, each beside its peer in the same run
	@$(BIN)/python -m benchmarks

trust: setup ## Blind trials: false alarms and power of the verdicts on this machine, about half an hour
	@$(BIN)/python -m benchmarks.measurement_bench

# Hugging Face's models are among them, and what they need comes with the test tools.
models: $(VENV)/.ready-dev ## Every kind of model at every precision in one table, an hour or two
	@$(BIN)/python -m benchmarks.models_bench

COMPILE := $(BIN)/uv pip compile --quiet --generate-hashes --no-deps --no-annotate --custom-compile-command 'make lock'
TORCH   := sed -n '/^name = "torch"$$/{n;s/version = "\(.*\)"/torch==\1+cpu/p;}' uv.lock

# What set-up installs without uv.lock has files of its own: uv, and torch as PyTorch's own index has it.
lock: setup ## Rewrite uv.lock with the newest versions, and hashes of everything
	@$(BIN)/uv lock --upgrade
	@echo uv | $(COMPILE) --upgrade --output-file tools/uv.txt -
	@$(TORCH) | $(COMPILE) --default-index https://download.pytorch.org/whl/cpu --output-file tools/torch-cpu.txt -

# Not pip: it cannot look for another machine's wheels without downloading gigabytes.
resolve: setup ## Check that uv.lock has a wheel of everything for every Python and architecture
	@for python in 3.11 3.12 3.13 3.14; do \
	  for machine in aarch64 x86_64; do \
	    $(BIN)/uv export --frozen --quiet --no-emit-project --extra dev | $(BIN)/uv pip install --dry-run --quiet \
	      --no-deps --require-hashes --only-binary :all: --requirement - --target $(VENV)/none \
	      --python-version $$python --python-platform $$machine-manylinux_2_28 || exit 1; \
	    echo "Python $$python, $$machine: ok"; \
	  done; \
	done

docs: $(VENV)/.ready-dev ## The documents as a web site with search: site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html; to search it: $(BIN)/python -m http.server --directory site"

clean: ## Remove everything that can be made again; measurements stay
	rm -rf $(VENV) site .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info data/artifacts data/tools data/current/runner data/current/model
