# Each target's line after ## is its help.
.DEFAULT_GOAL := help
.PHONY: help run test lint types bundle reference vendor bench screenshots clean environment

# Any Python 3 will do here: filter/environments.py finds a 3.11 or 3.12 from it.
PYTHON ?= python3
PY := .venv/bin/python
# Scripts outside the three packages; each is checked by itself.
SCRIPTS := $(filter-out filter/eunoe_filter.py,$(wildcard filter/*.py observer/*.py))

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: environment  ## start the observer and a real Open WebUI with the filter in it (ARGS="--help" for options)
	@$(PY) filter/run.py $(ARGS)

test:  ## make the environments, then run lint, types and all tests under both Python versions
	@$(PYTHON) filter/environments.py debian dev open-webui llama embedding tokenizers
	@$(MAKE) --no-print-directory lint types
	$(PY) -m pytest
	@other=$$($(PYTHON) filter/environments.py other) || exit 1; \
	if [ -n "$$other" ]; then \
		echo "$$other/bin/python -m pytest tests/engine tests/hosts tests/bundle"; \
		"$$other/bin/python" -m pytest tests/engine tests/hosts tests/bundle; \
	fi

lint: environment  ## check style, format, and that the one-file filter is up to date
	$(PY) -m ruff check
	$(PY) -m ruff format --check
	$(PY) filter/amalgamate.py --check

types: environment  ## check types
	$(PY) -m mypy
	$(PY) -m mypy --strict $(SCRIPTS)

bundle: environment  ## build filter/eunoe_filter.py from shared/eunoe and its Open WebUI host
	$(PY) filter/amalgamate.py

reference: environment  ## write docs/valves.md, docs/events.md and the README's tables from the code
	$(PY) filter/reference.py

vendor: environment  ## fetch the observer's browser libraries again, in the versions it names
	$(PY) observer/vendor.py

bench: environment  ## measure the time that the filter takes per turn (ARGS="--help" for more)
	$(PY) filter/bench.py $(ARGS)

screenshots: environment  ## take docs/run-page.png from a real run (ARGS="--help" for options)
	@$(PYTHON) filter/environments.py open-webui >/dev/null
	$(PY) -m tests.e2e.screenshots $(ARGS)

clean:  ## remove what builds and tests left in the checkout; data/ stays
	rm -rf .venv .venv-3.11 .venv-3.12 artifacts .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "Open WebUI and llama.cpp stay in $${XDG_CACHE_HOME:-$$HOME/.cache}/eunoe"

environment:
	@$(PYTHON) filter/environments.py dev >/dev/null
