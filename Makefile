# Everything runs from .venv, which `make venv` builds and the other targets build on.
SHELL   := /bin/bash
PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
STAMP   := $(VENV)/.installed
MINUTES ?= 10
SCALE   ?= 0.1
ARGS    ?=
# Two workers, each with a PostgreSQL and a Spark of its own: one test keeps one core busy.
WORKERS ?= -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help venv java demo test test-rest test-all lint format bench bench-tpch bench-tpcds bench-nexmark bench-dag soak \
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

soak: venv ## Random histories against PostgreSQL for MINUTES=10 minutes, then as long by tasks, then TPC-H and Nexmark by tasks
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --tasks-above 1 $(ARGS)
	@RUNNEL_TEST_TASKS_ABOVE=1 $(BIN)/python -m pytest tests/bench/test_tpch.py tests/bench/test_nexmark.py

soak-lake: venv ## The proofs of the lake at full size: 50 refreshes, 25 kills, minutes of other writers
	@RUNNEL_LAKE_FULL=1 $(BIN)/python -m pytest -s tests/lake/test_proof_*.py tests/lake/test_commit_concurrent.py tests/lake/test_maintain.py $(ARGS)

clean: ## Remove .venv, caches and build products
	@rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@rm -rf spark-warehouse metastore_db derby.log
	@find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
