# Everything runs in one virtual environment, .venv, made from requirements.lock on first need and again when that changes.
.DEFAULT_GOAL := help
# Every test process would compile everything that it imports, for itself.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help demo up dev test check format bench bench-peers bench-plots chaos lock clean

# The directory is part of the stamp: an environment copied along with a clone would import the original's code.
STAMP := .venv/.ready-$(shell { pwd; sed '/^\[tool/,$$d' pyproject.toml; cat requirements.lock; } | cksum | tr ' ' -)
RUN := .venv/bin/python -m
# Libraries that agentrun is measured beside, and one that draws. Oban needs Python 3.12: PEERS_PYTHON=python3.12.
PEERS_PYTHON ?= .venv/bin/python
PEERS := .venv-peers/.ready-$(shell { echo "$(PEERS_PYTHON)"; cat bench/peers/requirements.txt; } | cksum | tr ' ' -)
ARGS ?=
# Of the tests. They wait as much as they compute: four keep two cores busy.
PROCESSES ?= 4

help: ## show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1@/' | column -t -s @ 2>/dev/null \
		|| grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST)

demo: $(STAMP) ## a real agent run, start to end, though its worker is killed in the middle
	@$(RUN) examples.support_desk.demo $(ARGS)

up: $(STAMP) ## everything on this machine: database, broker, worker, beat, Flower
	@.venv/bin/agentrun up $(ARGS)

dev: up ## the same as up

test: $(STAMP) ## all tests, on servers of their own (ARGS="-k name" to choose)
	@$(RUN) pytest -n $(PROCESSES) --dist loadfile $(ARGS)

check: $(STAMP) ## format, lint, types, import rules
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .
	@$(RUN) pyright --pythonpath .venv/bin/python
	@.venv/bin/lint-imports

format: $(STAMP) ## put the code into shape
	@$(RUN) ruff check --fix-only --quiet .
	@$(RUN) ruff format .

bench: $(STAMP) ## throughput and latency, next to bare Celery's
	@$(RUN) bench $(ARGS)

bench-peers: $(STAMP) $(PEERS) ## next to other libraries, which are installed for it into .venv-peers
	@$(RUN) bench peers $(ARGS)

bench-plots: $(PEERS) ## draw the newest results of `make bench`
	@.venv-peers/bin/python -m bench.plots $(ARGS)

chaos: $(STAMP) ## workers killed, Redis flushed, PostgreSQL restarted: every effect once (ARGS="--seed 7 --scale 1.0")
	@$(RUN) tests.chaos $(ARGS)

lock: $(STAMP) ## resolve requirements.lock anew from pyproject.toml (ARGS=--upgrade)
	@.venv/bin/uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-emit-find-links --no-annotate --no-header --quiet --output-file requirements.lock $(ARGS)

clean: ## remove the environment and all caches
	@rm -rf .venv .venv-peers .hypothesis .pytest_cache .ruff_cache .import_linter_cache build dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(PEERS): | $(STAMP)
	@$(PEERS_PYTHON) -m venv --clear .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r bench/peers/requirements.txt
	@touch $@

$(STAMP):
	@PYTHON="$(PYTHON)" .ci/venv && touch $@
