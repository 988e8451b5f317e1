# Everything needed is installed into .venv by the first target that needs it.

PYTHON ?= python3
JOBS ?= $(shell nproc 2>/dev/null || echo 2)
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check

# The tests start hundreds of processes: none should compile the modules that it imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-all fast-tests all-tests lowest mutate fuzz soak bench bench-all \
  lint layout types contracts format docs dist clean
.DELETE_ON_ERROR:

help:
	@echo "make demo      compile and run a real network, timed beside ONNX Runtime"
	@echo "make test      lint, types, import contracts, the fast tests"
	@echo "make test-all  the same with the slow tests, and the least versions of all dependencies"
	@echo "make lowest    a smoke test with the least versions of all dependencies"
	@echo "make mutate    seed faults into the sources: at least 95% must be caught; goes on where it was"
	@echo "make fuzz      random programs for SECONDS=600: what fails becomes a test; seeds are used once"
	@echo "make soak      a server's life for SECONDS=3600: no wrong result, and nothing grows"
	@echo "make bench     side by side with the best peers on networks and operators; goes on where it was"
	@echo "make bench-all the same, with jax, apache-tvm and iree where they are near"
	@echo "make lint      lint, types, import contracts"
	@echo "make format    lay out the code"
	@echo "make docs      the documentation as a site in build/site; a warning is an error"
	@echo "make dist      wheel and source archive in dist/, installed elsewhere and tried"
	@echo "make clean     delete the environment and all caches of tools"

mutate: .venv/.installed-test
	$(BIN)/python -m tilewright.testing.mutation.run --jobs $(JOBS)

demo: .venv/.installed-demo
	$(BIN)/tilewright demo

# Types and contracts take a minute on one processor, beside the tests.
test: layout
	$(MAKE) --no-print-directory -j 3 types contracts fast-tests

test-all: layout
	$(MAKE) --no-print-directory -j 3 types contracts all-tests
	$(MAKE) --no-print-directory lowest

fast-tests: .venv/.installed-test
	$(BIN)/pytest -n $(JOBS) -q -m "not slow"

all-tests: .venv/.installed-test
	$(BIN)/pytest -n $(JOBS) -q

# The least versions that pyproject.toml declares, in an environment of their own.
lowest: build/lowest/.installed
	PYTHONPATH=src:. build/lowest/bin/python -m tests.robust.lowest smoke

build/lowest/.installed: pyproject.toml tests/robust/lowest.py
	rm -rf build/lowest && $(PYTHON) -m venv build/lowest
	$(PYTHON) tests/robust/lowest.py > build/lowest/requirements.txt
	build/lowest/bin/pip --disable-pip-version-check install --quiet -r build/lowest/requirements.txt
	@touch $@

fuzz: .venv/.installed-test
	$(BIN)/python -m tilewright.testing.fuzz --seconds $(or $(SECONDS),600) --jobs $(JOBS)

soak: .venv/.installed-test
	$(BIN)/python -m tests.robust.soak $(or $(SECONDS),3600)

bench: .venv/.installed-bench
	$(BIN)/python -m benchmarks.bench

# The other compilers are not needed: one that cannot be installed here is left out, and said.
bench-all: .venv/.installed-bench
	for packages in jax apache-tvm "iree-base-compiler iree-base-runtime"; do \
	  $(PIP) install --quiet $$packages || echo "left out: $$packages cannot be installed"; \
	done
	$(BIN)/python -m benchmarks.bench --probe jax,tvm,iree

lint: layout types contracts

layout: .venv/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/.installed-test
	$(BIN)/mypy

contracts: .venv/.installed-test
	$(BIN)/lint-imports

format: .venv/.installed-test
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

docs: .venv/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Each archive goes into an environment of its own, and is run in a folder without sources.
dist: .venv/.installed-dist
	rm -rf dist build/elsewhere
	$(BIN)/python -m build --quiet --outdir dist
	$(BIN)/twine check --strict dist/*
	for made in dist/*; do \
	  rm -rf build/elsewhere && $(PYTHON) -m venv build/elsewhere && \
	  build/elsewhere/bin/pip install --quiet "$$made[demo]" && \
	  (cd build/elsewhere && bin/tilewright demo --threads 1) || exit 1; \
	done

clean:
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(BIN)/python:
	$(PYTHON) -m venv .venv

# The extras that each group of targets needs; installed again when pyproject.toml changes.
.venv/.installed-demo: EXTRAS := demo
.venv/.installed-bench: EXTRAS := bench,torch
.venv/.installed-docs: EXTRAS := docs
.venv/.installed-dist: EXTRAS := dist
.venv/.installed-test: EXTRAS := test,dev

.venv/.installed-%: pyproject.toml | $(BIN)/python
	$(PIP) install --quiet --editable ".[$(EXTRAS)]"
	@touch $@
