# Every target can be read off `make help`. PYTHON chooses the interpreter that .venv is made from.

PYTHON  ?= python3
SEED    ?= 1
COUNT   ?= 500
N       ?= 100
LETTERS ?= 1000000
RUN     ?= two-cores
DATA    ?= ./data
TABLES  ?= ./tables
PROFILE ?= ci

VENV := .venv
BIN  := $(VENV)/bin

# Hundreds of processes import the same modules: where this is set, each of them would compile every one anew.
unexport PYTHONDONTWRITEBYTECODE

# The stamp is named after what the environment is made from, so `make setup` does nothing when nothing changed, and does
# its work again when the lock, the project file or the place of the folder did.
STAMP := $(VENV)/setup-$(shell { pwd; cat requirements/dev.txt pyproject.toml; } | cksum | cut -d ' ' -f 1)

# pip brings uv, and uv the rest in a fifth of the time; where uv finds no way (an index that only pip knows of, say), pip
# goes on. Python compiles what it meets.
PIP    = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
LOCKED = --no-deps --require-hashes --requirement
UV     = $(BIN)/uv

CLASSES := $(VENV)/spark-classes.jsa
TIERS   := $(CURDIR)/$(VENV)/tiers.jsonl

SEEDS_TEST := tests/simulation/test_simulation.py::test_no_seed_breaks_a_promise_and_every_expected_event_happens

LOCKING    := --universal --python-version 3.11 --generate-hashes \
	--no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet
LOCK       := $(UV) pip compile pyproject.toml $(LOCKING)
LOCK_GROUP := $(UV) pip compile $(LOCKING) --group

.DEFAULT_GOAL := help
.PHONY: help setup browser tools classes quick quick-tests test-all test-spark test-rest test-patient run serve test check format sim sim-many crash archive-cycles bench bench-core bench-peers performance spark-chaos table-power-cuts docs screenshots console-scale lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Make .venv with the locked packages and a working .venv/bin/driftq

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "DriftQ needs Python 3.11 or newer, and '$(PYTHON)' is not. Try: make setup PYTHON=python3.12" >&2; exit 1; }
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || { rm -rf $(VENV) && $(PYTHON) -m venv $(VENV); } || { \
		echo "'$(PYTHON) -m venv' failed. On Debian and Ubuntu the package python3-venv is missing." >&2; exit 1; }
	@echo "Installing the locked packages into $(VENV)"
	@export DIST_EXTRA_CONFIG=$(CURDIR)/requirements/wheel.cfg; \
		awk '/^[^ ]/ { uv = /^uv==/ } uv' requirements/dev.txt | $(PIP) $(LOCKED) /dev/stdin && \
		$(UV) pip install --quiet --python $(BIN)/python $(LOCKED) requirements/dev.txt || \
		{ echo "uv could not: pip does it, and takes a minute" >&2; $(PIP) $(LOCKED) requirements/dev.txt; }
	@$(PIP) --no-deps --no-build-isolation --editable .
	@rm -f $(VENV)/setup-*
	@touch $@
	@echo "Ready: $$($(BIN)/driftq --version)"

# Without a browser its tests are skipped, and say so. Debian and Ubuntu have it as a package, which root can install.
browser: ## Install Chromium for the tests in a real browser, where that is possible
	@for name in chromium chromium-browser google-chrome; do command -v $$name > /dev/null && exit 0; done; { \
		[ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && echo "Installing Chromium" && \
		{ apt-get update -qq; DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
			> /dev/null 2>&1; } || \
		echo "No Chromium: the tests in a browser will be skipped. On Debian and Ubuntu, as root: apt-get install chromium" >&2

run: setup ## Show the whole: broker, workload, pipelines on Spark, audit (DATA=… TABLES=…)
	@$(BIN)/driftq demo --data $(DATA) --tables $(TABLES)

serve: setup ## Run the server alone, with its data in ./data (DATA=…)
	$(BIN)/driftq serve --data $(DATA)

# A loop of seconds for the time of writing. Tests that compare times (serial) and what starts processes is left to `test`.
quick: setup ## Lint, types, tidy, unit, scenarios, a few properties and seeds: under a minute
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target check quick-tests

quick-tests: setup ## The tests of `make quick` alone
	$(BIN)/python -m pytest --quiet --profile quick --numprocesses 2 --dist loadgroup -m "not serial" --session-timeout 300 \
		tests/tidy tests/unit tests/scenarios tests/property $(SEEDS_TEST)

# Without them the checks of deploy/ that need them are skipped, and say so. Nothing is installed on the machine.
DEBIAN := $(VENV)/debian
tools: setup ## Unpack promtool and systemd-analyze from Debian's packages into .venv, where that is possible
	@mkdir -p $(DEBIAN); for package in prometheus systemd libsystemd-shared; do \
		case $$package in prometheus) command -v promtool ;; *) command -v systemd-analyze ;; esac > /dev/null && continue; \
		[ -e $(DEBIAN)/$$package ] || { command -v apt-get && command -v dpkg-deb && cd $(DEBIAN) && \
			{ apt-get download -qq $$package || { apt-get update -qq; apt-get download -qq $$package; }; } && \
			dpkg-deb --extract $$package\_*.deb . && rm -f $$package\_*.deb && touch $$package; } > /dev/null 2>&1 || \
		echo "No package $$package of Debian: some checks of deploy/ will be skipped" >&2; done

test: setup browser tools ## Check, and every test (PROFILE=dev|ci|release); then what each kind of test took
	@date +%s > $(TIERS)
	@DRIFTQ_TIERS=$(TIERS) $(MAKE) --no-print-directory test-all; status=$$?; \
		$(BIN)/python -m tests.support.tiers $(TIERS); exit $$status

test-all: ## What `make test` runs, without the table
	@$(MAKE) --no-print-directory --jobs 4 --output-sync=target check test-spark test-rest
	@$(MAKE) --no-print-directory test-patient
	$(BIN)/python -m pytest --profile $(PROFILE) -m "serial" --session-timeout 1200 || [ $$? -eq 5 ]

# Spark has one process and one Java virtual machine; everything else shares two more.
test-spark: classes ## The tests on Spark alone, after `make setup`
	$(BIN)/python -m pytest --profile $(PROFILE) -m "not own_spark" --session-timeout 3000 tests/spark

test-rest: ## Everything that needs neither Spark nor a quiet machine, after `make setup`
	$(BIN)/python -m pytest --profile $(PROFILE) --numprocesses 2 --maxschedchunk 2 -m "not serial and not patient and (own_spark or not spark)" --session-timeout 3000

# The seeds keep every core busy for minutes. They run after the rest and not beside it at a low priority: on a busy
# machine a process with a low priority may never get to run.
test-patient: ## What keeps every core busy, after `make setup`
	$(BIN)/python -m pytest --profile $(PROFILE) -m "patient" --session-timeout 3000 tests/simulation

classes: $(CLASSES) ## Archive the classes of Spark once, so that tests start it in half the time

$(CLASSES): $(STAMP)
	$(BIN)/python -m tests.spark.class_archive

check: setup ## Lint, format, types and layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=src $(BIN)/lint-imports --no-logo

format: setup ## Let ruff write what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

sim: setup ## Run one simulation (SEED=…)
	$(BIN)/python -m tests.simulation $(SEED)

sim-many: setup ## Run many simulations (COUNT=…, from SEED=…)
	$(BIN)/python -m tests.simulation $(SEED) --count $(COUNT)

crash: setup ## Kill a real server under load, restart it, and audit what it acknowledged
	$(BIN)/python -m pytest -m crash --profile $(PROFILE)

spark-chaos: setup classes ## Kill broker, driver, executors and workers under Spark N times, and audit (N=…, SEED=…)
	$(BIN)/python -m tests.spark.chaos $(N) --seed $(SEED)

table-power-cuts: setup classes ## Cut the power of a real file system under an archive N times, and compare (N=…, SEED=…)
	$(BIN)/python -m tests.spark.power_cuts $(N) --seed $(SEED)

archive-cycles: setup ## Kill a broker, delete its folder, restore it from its archive and audit, N times in each mode (N=…, SEED=…)
	$(BIN)/python -m tests.crash.lost_machine $(N) --seed $(SEED)

bench: setup ## Measure everything; one JSON line per result
	$(BIN)/python -m bench

bench-core: setup ## Measure the core alone, without disk and network
	$(BIN)/python -m bench.core

bench-peers: setup ## Compare with Redis, Postgres, NATS, RabbitMQ, beanstalkd and durable-streams
	$(BIN)/python -m bench.peers

# Each part is saved under the name of the run, so a part can also be measured again by itself.
performance: setup ## Measure peers, growth and a steady load, and write docs/performance.md from it (RUN=name)
	$(BIN)/python -m bench.peers --save $(RUN)
	$(BIN)/python -m bench.steady --save $(RUN)
	$(BIN)/python -m bench.growth --save $(RUN)
	$(BIN)/python -m bench.performance $(RUN)

screenshots: setup ## Make the pictures of the console in docs/ anew, with Chromium
	$(BIN)/python -m tests.support.screenshots

console-scale: setup browser ## The console over a broker with 10,000 topics and LETTERS dead letters (a million)
	LETTERS=$(LETTERS) $(BIN)/python -m pytest tests/browser/test_console.py -k large --session-timeout 1800

docs: setup ## Rewrite the tables in docs/ that are made from code
	PYTHONPATH=src $(BIN)/python -m tests.tidy.tables

lock: setup ## Renew requirements/ from pyproject.toml
	$(LOCK) --output-file requirements/client.txt > /dev/null
	$(LOCK) --extra server --constraint requirements/client.txt --output-file requirements/runtime.txt > /dev/null
	$(LOCK) --extra server --extra spark --extra java --constraint requirements/runtime.txt --output-file requirements/spark.txt > /dev/null
	$(LOCK) --extra all --group dev --constraint requirements/spark.txt --output-file requirements/dev.txt > /dev/null
	$(LOCK_GROUP) pyproject.toml:peers --output-file requirements/peers.txt > /dev/null
	$(LOCK_GROUP) pyproject.toml:pandas-2 --output-file requirements/pandas-2.txt > /dev/null

clean: ## Remove everything that was made, except ./data and ./tables
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
