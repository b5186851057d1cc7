# Everything a developer or a CI run calls. `make` alone prints the list.

PYTHON ?= python3
ARGS ?=

VENV := .venv
PY := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help venv clibs test test-slow test-all test-bare test-beds test-machines c-test coverage fuzz lint format bench soak soak-weeks docs diagrams docs-pictures dashboards deb wheel release constraints demo clean test-packages test-arm rpm oci

help: ## this list
	@echo 'make TARGET [PYTHON=python3.12] [ARGS="-k wire"]'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: ## set up .venv with all that the other targets need (they call it themselves)
	@scripts/bootstrap.sh $(VENV) $(PYTHON)

clibs:
	@scripts/build-clibs.sh

test: venv clibs ## run the tests but for the slow ones on all CPUs, in five minutes; ARGS goes to pytest, in one process
	@scripts/test.sh $(PY) $(ARGS)

test-slow: venv clibs ## run the slow tests, on all CPUs
	@scripts/test.sh $(PY) slow

test-all: clibs ## run all of them, on every Python from 3.9 to 3.15; Debian's packages give missing ones (VERSIONS="3.15 3.9": on these)
	@scripts/test-all.sh $(ARGS)

test-bare: ## the README's two commands in a bare Debian; ARGS="trixie nobody container": another one, a user, a place; as root
	@scripts/test-bare.sh $(ARGS)

test-beds: venv clibs ## run Colmet against real batch systems, tools and simulated hardware, installed with apt; as root
	@scripts/test-beds.sh $(PY) $(ARGS)

test-machines: venv clibs ## boot whole machines with other kernels, by qemu: values by kernel, power cuts; ARGS goes to pytest; as root
	@$(PY) -m pytest -v -o faulthandler_timeout=0 tests/beds/machines $(ARGS)

test-packages: venv clibs ## install each kind of package in a system of its own, measure a job, remove it; half an hour, not in CI; as root
	@$(PY) -m pytest -v -o faulthandler_timeout=0 tests/beds/packages $(ARGS)

test-arm: ## run the tests of decoders and formats on an emulated arm64, some minutes; ARGS goes to pytest; installs packages as root
	@scripts/test-arm.sh $(ARGS)

c-test: ## test the C libraries with ASan and UBSan, and with valgrind where it is installed; as root
	@for makefile in colmet/node/backends/lib_*/Makefile; do \
		$(MAKE) -s --no-print-directory -C "$${makefile%/Makefile}" test || exit; \
		if command -v valgrind >/dev/null; then \
			$(MAKE) -s --no-print-directory -C "$${makefile%/Makefile}" valgrind || exit; \
		else \
			echo "c-test: no valgrind: only ASan searches for leaks (apt-get install valgrind)"; \
		fi; \
	done
	@if command -v clang-14 >/dev/null; then \
		$(MAKE) -s --no-print-directory -C colmet/node/backends/lib_bpf check; \
	else \
		echo "c-test: no clang-14: the programs of lib_bpf are not compared with their source (apt-get install clang-14 llvm-14 libbpf-dev)"; \
	fi

coverage: venv clibs ## say how much of each module the tests run, in branches, the slow ones left out; ARGS goes to pytest
	@$(PY) -m pip --disable-pip-version-check install -q 'pytest-cov>=6.3' 'coverage>=7.10'
	@$(PY) -m pytest -q -n auto -m "not slow" --cov --cov-report=term:skip-covered $(ARGS)

fuzz: ## fuzz one decoder, guided by coverage: make fuzz PYTHON=python3.12 ARGS="v1 --seconds 600"
	@scripts/bootstrap.sh .venvs/fuzz $(PYTHON)
	@.venvs/fuzz/bin/python -m pip install -q --only-binary :all: atheris
	@.venvs/fuzz/bin/python tests/fuzz/run.py $(ARGS)

lint: venv ## check style, format and types
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy

format: venv ## rewrite the source in the project's format
	@$(PY) -m ruff check --fix .
	@$(PY) -m ruff format .

bench: venv clibs ## run the benchmarks; ARGS goes to benchmarks/run.py
	@$(PY) benchmarks/run.py $(ARGS)

soak: venv clibs ## run agent and collector with jobs that come and go, and print what grew; ARGS="--hours 2"; as root
	@$(PY) benchmarks/soak.py $(ARGS)

soak-weeks: venv ## the same for weeks of a collector whose clock goes 1000 times faster, in half an hour; ARGS="--weeks 3"
	@$(PY) benchmarks/soak_weeks.py $(ARGS)

docs: venv ## write docs/metrics.md from the catalogue of tables, and build the documentation site in build/site
	@$(PY) -m dev.metrics docs/metrics.md
	@$(PY) -m pip --disable-pip-version-check install -q -r requirements-docs.txt
	@$(PY) -m sphinx -q -W --keep-going -c dev/site -d build/doctrees docs build/site
	@echo build/site/index.html

diagrams: ## render docs/pictures/*.dot as SVG, with Graphviz
	@$(PYTHON) -m dev.diagrams docs/pictures

docs-pictures: venv clibs ## make the pictures of the documentation of a real run, in four minutes; as root
	@$(PY) -m dev.pictures docs/pictures $(ARGS)

dashboards: venv ## write packaging/grafana/dashboards from the table of panels
	@$(PY) -m dev.dashboards packaging/grafana/dashboards

deb: ## build the Debian packages, in dist/; as root it installs missing tools
	@scripts/build-debs.sh dist

rpm: ## build the RPM packages, in dist/, for the Python of the system or PYTHON; as root it installs missing tools
	@scripts/build-rpms.sh dist $(if $(filter command% environment,$(origin PYTHON)),$(PYTHON))

oci: ## build the OCI images of collector and node, in dist/, with the Debian packages; as root
	@scripts/build-oci.sh dist

wheel: ## build the wheel, for pip on each Linux with this processor, in dist/; as root it installs missing tools
	@scripts/build-wheel.sh dist $(PYTHON)

release: venv ## check that this version can be released; ARGS="--prepare 1.2.3" sets it; --verify builds twice and compares; --do makes tag and artefacts
	@scripts/release.sh $(ARGS) $(PY)

constraints: ## pin what pip installs at run time, with hashes: packaging/constraints.txt
	@scripts/pin-requirements.sh $(PYTHON)

demo: venv clibs ## watch one real job go from the kernel to its report and the page; as root shows all of it; ARGS=--page keeps the page open
	@$(PY) -m dev.demo $(ARGS)

clean: ## remove everything that was built here
	@for lib in colmet/node/backends/lib_*/; do [ ! -e "$$lib/Makefile" ] || $(MAKE) -s -C "$$lib" clean; done
	@rm -rf .venv .venvs .fuzz build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
