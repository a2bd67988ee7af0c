# koordgate: `make demo` shows it, `make test` tests all of it; both set up what they need.

# Any Python from 3.11 on; the first that is found.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v "$$p" && break; done)
BIN := .venv/bin
NAME ?=
ARGS ?=

.PHONY: help setup demo test check unit controlplane node bench generate requirements clean

help:  ## what can be made
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):[^#]*## /  make \1\t/' | expand -t 24

setup: .venv/.installed  ## Python packages into .venv, nothing else

.venv/.installed: requirements-dev.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "koordgate needs Python 3.11 or newer: install it, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	"$(PYTHON)" -m venv .venv
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

demo: setup  ## the whole product on this machine: translate, guard, allocate, who holds what
	$(BIN)/koordgate demo $(ARGS)

test: setup check  ## everything: lint, types, contracts, unit, property, API, control-plane and node tests
	$(BIN)/python -m webhook.localplane build
	$(BIN)/python -m pytest $(ARGS)

check: setup  ## lint, types and import contracts only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

unit: setup  ## tests that need only Python
	$(BIN)/python -m pytest -m "not controlplane and not node" $(ARGS)

controlplane: setup  ## tests on a real etcd, kube-apiserver and kube-scheduler
	$(BIN)/python -m webhook.localplane build
	$(BIN)/python -m pytest -m controlplane $(ARGS)

node: setup  ## tests on a real kubelet and containerd (root)
	$(BIN)/python -m webhook.localplane build
	$(BIN)/python -m pytest -m node $(ARGS)

bench: setup  ## one benchmark: make bench NAME=mutate_pod ARGS=...; without NAME it lists them
	@test -n "$(NAME)" -a -f "bench/$(NAME).py" || { echo "name one of: $(filter-out loads result filtering packed_cluster,$(basename $(notdir $(wildcard bench/*.py))))   as in: make bench NAME=mutate_pod" >&2; exit 2; }
	$(BIN)/python bench/$(NAME).py $(ARGS)

generate: setup  ## the chart's file of device resources, from the table of dialects
	$(BIN)/python -m webhook.localplane generate

requirements: setup  ## pin anew what pyproject.toml asks for, with hashes
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --strip-extras --allow-unsafe --extra dev --output-file requirements-dev.txt pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --strip-extras --constraint requirements-dev.txt --output-file requirements.txt pyproject.toml

clean:  ## remove what the commands above made, but for the built control plane
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
