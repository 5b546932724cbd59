# Every target works on a fresh checkout where only make and Python >= 3.11 are present.
# Choose another interpreter with `make PYTHON=python3.12 ...`.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 && echo $$p && break; \
	done)

VENV := .venv
DEV := $(VENV)/.installed

# The benchmarks have an environment of their own: their peers must not be importable where the tests
# run, or an import that slipped in would go unnoticed there.
VENV_BENCH := .venv-bench
BENCH := $(VENV_BENCH)/.installed

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Hundreds of processes of the tests import the same files, so their bytecode is kept.
export PYTHONDONTWRITEBYTECODE :=

# One more process than there are cores: many tests wait for processes that they have started.
WORKERS = $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) + 1)')

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-rest test-slow test-matrix test-annbatch test-formats test-iterables test-ray test-extras test-trainers test-trainers-all test-azure fuzz bench bench-pack bench-remote bench-plots lint format docs clean

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(DEV) ## Train, stop, kill, resize and audit real processes
	$(VENV)/bin/feedline demo

test: $(DEV) ## Run the tests, without the slow ones
	$(VENV)/bin/pytest -q -n $(WORKERS) -m "not slow"

# What most changes break, in less than a minute: orders, positions, loaders, states and the clock.
QUICK := $(addprefix tests/plan/test_,golden.py contract.py cursor.py buckets.py windows.py mixture.py) \
	tests/contract tests/feed/test_peers.py tests/feed/test_foreign.py tests/test_plan_kinds.py \
	tests/steps/test_states.py tests/torch/test_samplers.py

test-quick: $(DEV) ## Run what most changes break, in less than a minute
	FEEDLINE_HYPOTHESIS_PROFILE=quick $(VENV)/bin/pytest -q -n $(WORKERS) -m "not slow" $(QUICK)

test-rest: $(DEV) ## Run the slow tests alone, which `make test` leaves out
	$(VENV)/bin/pytest -q -n $(WORKERS) -m slow

test-slow: $(DEV) ## Run all tests, with many more hypothesis examples
	FEEDLINE_HYPOTHESIS_PROFILE=thorough $(VENV)/bin/pytest -q

test-matrix: ## Run the golden vectors on every Python found, with the oldest and newest numpy
	@$(require-python)
	$(PYTHON) scripts/test_matrix.py

test-annbatch: ## Run the tests beside annbatch 0.1.6 and the newest, on a Python 3.12 or 3.13
	@$(require-python)
	$(PYTHON) scripts/test_annbatch.py

test-formats: $(DEV) ## Write data with the libraries whose formats we read, and test on that
	$(VENV)/bin/python scripts/test_formats.py

test-iterables: ## Run the tests beside torchdata and Hugging Face's datasets
	@$(require-python)
	$(PYTHON) scripts/test_iterables.py

test-ray: ## Run the tests on a Ray cluster of several node processes
	@$(require-python)
	$(PYTHON) scripts/test_ray.py

test-extras: ## Install each extra into an environment of its own, and run its tests there
	@$(require-python)
	$(PYTHON) scripts/test_extras.py

test-trainers: ## Run the tests and a pairwise cover of the stories of every trainer
	@$(require-python)
	$(PYTHON) scripts/test_trainers.py $(TRAINERS)

test-trainers-all: ## Run all stories of every trainer; `make test-trainers-all TRAINERS=accelerate` runs one
	@$(require-python)
	$(PYTHON) scripts/test_trainers.py --all $(TRAINERS)

test-azure: $(DEV) ## Read az:// from azurite, which npm installs into .azurite
	npm install --no-audit --no-fund --prefix .azurite azurite@3.35.0
	$(VENV)/bin/pytest -q -m slow tests/store/remote/test_clouds.py

# More cases, another seed, one format: `make fuzz FUZZ="--cases 100000 --seed 7 --target zarr"`.
FUZZ ?= --cases 5000 --seconds 600

fuzz: $(DEV) ## Read damaged files of every format, within limits of memory and time
	$(VENV)/bin/python tests/fuzz/fuzz.py $(FUZZ)

bench: $(BENCH) ## Run the benchmarks and draw the plots (installs their peers into .venv-bench)
	@failed=; \
	for name in plan indices samplers folder store steps cli scale; do \
		$(VENV_BENCH)/bin/python benchmarks/$$name.py || failed="$$failed $$name"; \
	done; \
	if $(PYTHON) scripts/test_annbatch.py --collect-only --quiet >/dev/null \
		&& test -x .venv-annbatch/bin/python; then \
		PYTHONPATH=src .venv-annbatch/bin/python benchmarks/chunks.py || failed="$$failed chunks"; \
	else \
		echo "no Python 3.12 found, so benchmarks/chunks.py did not run"; \
	fi; \
	$(VENV_BENCH)/bin/python benchmarks/plots.py || failed="$$failed plots"; \
	test -z "$$failed" || { echo "failed, or missed a target:$$failed" >&2; exit 1; }

bench-pack: $(BENCH) ## Run the benchmark of packing, beside Ray and the writers of others
	$(VENV_BENCH)/bin/python benchmarks/pack.py

bench-remote: $(BENCH) ## Run the benchmark of object storage, which needs nginx
	$(VENV_BENCH)/bin/python benchmarks/remote.py

bench-plots: $(BENCH) ## Draw the plots of the last benchmarks into docs/images
	$(VENV_BENCH)/bin/python benchmarks/plots.py

lint: $(DEV) ## Check style, formatting and types
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --config-file benchmarks/mypy.ini

format: $(DEV) ## Fix what ruff can fix, and format
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

docs: $(DEV) ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

clean: ## Remove environments, caches and build outputs
	rm -rf .azurite $(VENV) $(VENV_BENCH) .venv-matrix .venv-annbatch .venv-annbatch-* .venv-iterables .venv-ray .venv-trainers-* site build dist
	rm -rf .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests scripts examples benchmarks -name __pycache__ -type d -prune \
		-exec rm -rf {} + 2>/dev/null || true

# Stamps: an environment is made anew when its pins or pyproject.toml change. The stamp is written
# last, so an installation that broke off is never taken for a whole one.
$(DEV): requirements/dev.txt pyproject.toml
	$(call make-venv,$(VENV),requirements/dev.txt)

$(BENCH): requirements/bench.txt requirements/dev.txt pyproject.toml
	$(call make-venv,$(VENV_BENCH),requirements/bench.txt)

define require-python
test -n "$(PYTHON)" || { echo "no Python >= 3.11 found; install one or set PYTHON=..." >&2; exit 1; }
endef

# The package is built with the pinned hatchling (no build isolation) and brings no unpinned
# dependency (--no-deps).
define make-venv
@$(require-python)
$(PYTHON) -m venv --clear $(1)
$(1)/bin/python -m pip install --quiet --requirement $(2)
$(1)/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
touch $@
endef
