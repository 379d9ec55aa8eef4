# `make demo` and `make test` do everything, from the environment on.
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Two test workers, one thread each: tests are many and small.
WORKERS ?= 2
# With bytecode, whatever the environment says: each of the hundred processes would compile everything anew.
PYTEST := PYTHONDONTWRITEBYTECODE= OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

.PHONY: help chromium demo test coverage test-slow test-versions research lint format docs pictures dist clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

# One stamp per set of extras; each reinstalls when the requirements change. Both packages, in one call of pip: the
# second needs the first, which is in no index.
$(VENV)/base.stamp: requirements.txt pyproject.toml lab/pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -r requirements.txt
	touch $@

$(VENV)/%.stamp: $(VENV)/base.stamp
	$(BIN)/python -m pip install --quiet $(or $(INSTALL_$*),-e '.[$*]' -e ./lab)
	touch $@

INSTALL_lab  := -e . -e ./lab
INSTALL_test := -e '.[test]' -e './lab[test]'
INSTALL_slow := -e '.[slow]' -e './lab[test]'

demo: $(VENV)/lab.stamp  ## compare the paper's optimizers, AdamW and SUPER-ADAM⁺ on embedded data: a verdict and a report
	rm -rf demo-report
	$(BIN)/superadam compare digits-autoencoder pinn-poisson --methods paper --methods super_adam_plus --scale tiny \
		--warmup 0.05 --trials 6 --halving 3 --out demo-report

# Tests look at reports in Chromium; without one they are skipped.
chromium:
	@command -v chromium >/dev/null || { apt-get update -q && apt-get install -y -q chromium; } >/dev/null 2>&1 \
		|| echo "Chromium is not there and cannot be installed: tests that need it are skipped."

test: $(VENV)/test.stamp lint chromium  ## lint, types, tests
	$(PYTEST) -m "not slow"

# Apart from `test`, which it would make half as long again.
coverage: $(VENV)/test.stamp chromium  ## the same tests, with the lines that they run; fails below the floor in pyproject.toml
	$(PYTEST) -m "not slow" --cov --cov-report=term

# Hypothesis draws the same examples in `test` everywhere, many new ones here (conftest.py).
test-slow: $(VENV)/slow.stamp  ## the tests marked slow; properties on thousands of random examples
	$(PYTEST) -m "slow or hypothesis" --hypothesis-profile=random

# Apart from `test`: records of what was found, of no use to whoever changes the optimizer.
research: $(VENV)/test.stamp  ## recompute the pages of research/ from the stored data; fails where a number differs
	$(PYTEST) --import-mode=importlib -m "not slow" research

# The examples as a user's checker sees them: without our settings, and their functions without types checked, too.
lint: $(VENV)/test.stamp  ## ruff, words of docstrings, mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python scripts/words.py
	$(BIN)/mypy
	MYPYPATH=src:lab/src $(BIN)/mypy --config-file= --check-untyped-defs --disable-error-code=import-untyped examples

format: $(VENV)/test.stamp  ## let ruff rewrite
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/docs.stamp  ## build the site into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

pictures: $(VENV)/lab.stamp  ## draw the pictures of the docs and of research/
	$(BIN)/python scripts/pictures.py
	$(BIN)/python -m research.pictures

# Several GB in ~/.cache/superadam/versions, or where VERSIONS says.
VERSIONS ?= $(HOME)/.cache/superadam/versions
test-versions: $(VENV)/base.stamp  ## the core's tests with the oldest torch, one in the middle and the newest: docs/compatibility.md
	$(BIN)/python scripts/test_versions.py --cache $(VERSIONS) --jobs $(WORKERS)

dist: $(VENV)/dist.stamp  ## build sdist and wheel, and try the wheel in an empty environment
	$(BIN)/python scripts/check_dist.py

clean:  ## remove the environment and everything built
	rm -rf $(VENV) site build dist demo-report .coverage .pytest_cache .mypy_cache .ruff_cache
