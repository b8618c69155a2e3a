# Two commands are enough: `make up` shows the product running, `make test` proves it.
REAL ?= 0
STACK ?= $(if $(filter 1,$(REAL)),demo-cpu,demo)
PYTHON ?= python3
BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help setup up down preview test unit metrics e2e lint tools schema lock

help: ## show the commands
	@grep -E '^[a-z0-9]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.venv/.complete: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "Python 3.10 or newer is needed: make PYTHON=python3.12 …"; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "the module venv is missing: on Debian and Ubuntu, apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --require-hashes --requirement requirements.lock
	$(BIN)/pip install --quiet --no-deps --editable .
	@touch $@

setup: .venv/.complete ## make .venv with everything that Python needs; build nothing

up: .venv/.complete ## set up, start the simulated cluster, deploy STACK (demo), show what runs; REAL=1: a real server answers
	$(BIN)/python -m sim deploy --stack $(STACK) $(if $(filter 1,$(REAL)),--real)

down: .venv/.complete ## stop the simulated cluster and forget what ran in it
	$(BIN)/python -m sim down

preview: .venv/.complete ## preview STACK against the simulated cluster
	$(BIN)/python -m sim preview --stack $(STACK)

test: .venv/.complete ## lint, types, unit tests, and the tests on the real engine (minutes)
	scripts/test.sh

unit: .venv/.complete ## only what needs no engine (seconds)
	$(BIN)/pytest -m "not engine and not metrics and not e2e" -n auto

metrics: .venv/.complete ## a real vLLM on the processor, scraped by a real Prometheus (6 GB of disk once)
	$(BIN)/pytest -m metrics

e2e: .venv/.complete ## the program on a real node, with a real vLLM (root on Linux; 45 minutes); writes docs/end-to-end.md
	scripts/e2e.sh all --report

lint: .venv/.complete ## style, types, and whether generated files are up to date
	scripts/lint.sh

tools: .venv/.complete ## build the tools that are not on PATH (45 minutes on two cores, once)
	$(BIN)/python -m sim tools

schema: .venv/.complete ## write stacks/schema.json from the models
	$(BIN)/python -m infra.config.schema

lock: .venv/.complete ## resolve requirements.lock again from pyproject.toml
	scripts/lock.sh --upgrade
