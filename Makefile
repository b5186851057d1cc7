# Everything a developer or a CI run calls. `make` alone prints the list.

PYTHON ?= python3
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help venv clibs test test-all test-beds c-test lint format bench docs demo clean

help: ## this list
	@echo 'make TARGET [PYTHON=python3.12] [ARGS="-k wire"]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: ## set up .venv with all that the other targets need (they call it themselves)
	@scripts/bootstrap.sh $(VENV) $(PYTHON)

clibs:
	@scripts/build-clibs.sh

test: venv clibs ## run the test suite; ARGS goes to pytest
	@$(PY) -m pytest $(ARGS)

test-all: clibs ## run it on every Python from 3.9 to 3.13 that this machine has (VERSIONS="3.9 3.13": on these)
	@scripts/test-all.sh $(ARGS)

test-beds: venv clibs ## run Colmet against real batch systems, tools and simulated hardware, which this installs with apt; as root
	@$(PY) -m pytest -v tests/beds $(ARGS)

c-test: ## test the C libraries with ASan and UBSan, and with valgrind where it is installed; as root
	@for makefile in colmet/node/backends/lib_*/Makefile; do \
		$(MAKE) -s --no-print-directory -C "$${makefile%/Makefile}" test || exit; \
		if command -v valgrind >/dev/null; then \
			$(MAKE) -s --no-print-directory -C "$${makefile%/Makefile}" valgrind || exit; \
		else \
			echo "c-test: no valgrind: leaks are looked for by ASan alone (apt-get install valgrind)"; \
		fi; \
	done

lint: venv ## check style, format and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: venv ## rewrite the source in the project's format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: venv clibs ## run the benchmarks; ARGS goes to benchmarks/run.py
	@$(PY) benchmarks/run.py $(ARGS)

docs: venv ## write docs/metrics.md from the schemas
	@$(PY) -m colmet.tools.metrics docs/metrics.md

demo: venv clibs ## watch one real job go from the kernel to an HDF5 file; as root shows all of it
	@$(PY) -m colmet.tools.demo $(ARGS)

clean: ## remove everything that was built here
	@for lib in colmet/node/backends/lib_*/; do [ ! -e "$$lib/Makefile" ] || $(MAKE) -s -C "$$lib" clean; done
	@rm -rf .venv .venvs build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
