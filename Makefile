# `make demo` shows koordgate, `make test` tests all of it; both set up what they need.

# Succeeds in a Python that is 3.11 or newer.
NEW := -c 'import sys; sys.exit(sys.version_info < (3, 11))'
# The first one found.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" $(NEW) 2>/dev/null && command -v "$$p" && break; done)
BIN := .venv/bin
UNIT := not controlplane and not node and not browser
# Unit tests share nothing and run side by side.
PARALLEL := --numprocesses=auto --maxprocesses=8
# Each worker has a control plane of its own, and one of them the node: two use a machine of two cores.
TWO := --numprocesses=2 --dist=loadfile
NAME ?=
ARGS ?=
# The settings of image/build.sh that an image and a release have in common.
BUILT_WITH = BASE='$(BASE)' RUNTIME='$(RUNTIME)' ENGINE='$(ENGINE)' PLATFORMS='$(PLATFORMS)' UNPINNED='$(UNPINNED)' PIP_CONFIG='$(PIP_CONFIG)' PIP_CA='$(PIP_CA)'

# pip does not tell of its newer releases.
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo map play test check docs unit controlplane browser test-matrix node bench generate image release requirements clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):[^#]*## /  make \1\t/' | expand -t 24

setup: .venv/.installed  ## install koordgate and what its tests need into .venv, nothing else

.venv/.runs: requirements-pip.txt requirements.txt requirements-build.txt pyproject.toml
	@"$(PYTHON)" $(NEW) 2>/dev/null || { echo "koordgate needs Python 3.11 or newer$(if $(PYTHON), ($(PYTHON) is none)): install it, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@# one whose Python is older, or gone, is made again
	"$(PYTHON)" -m venv $$($(BIN)/python $(NEW) 2>/dev/null || echo --clear) .venv
	@# pip first: one older than 24 fails where a package is required with an extra and a release newer than its pin exists
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements-pip.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements.txt --requirement requirements-build.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.installed: .venv/.runs requirements-dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes --requirement requirements-dev.txt
	@touch $@

demo: .venv/.runs  ## show the whole product on this machine: translate, guard, allocate, holdings
	$(BIN)/koordgate demo $(ARGS)

map: .venv/.runs  ## run the demo, and open the device map in a browser
	$(BIN)/koordgate demo --open $(ARGS)

play: .venv/.runs  ## run a cluster with koordgate and tenants, to try kubectl and koordgate on, until Ctrl-C
	@$(BIN)/python -m localplane.playground

test: setup check docs  ## run everything: lint, types, contracts, unit, property, API, control-plane and node tests
	$(BIN)/python -m localplane build
	$(BIN)/python -m pytest -m "$(UNIT)" $(PARALLEL) $(ARGS)
	$(BIN)/python -m pytest -m "not ($(UNIT))" $(TWO) $(ARGS)

check: setup  ## run lint, types and import contracts only
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv-docs/.installed  ## build the documents as a site, with each link checked: build/docs/index.html
	@# not --quiet: strict mode counts the warnings that are written
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict
	@echo "The site is in build/docs/index.html. For its search, serve it: .venv-docs/bin/mkdocs serve"

.venv-docs/.installed: requirements-pip.txt requirements-docs.txt
	@"$(PYTHON)" $(NEW) 2>/dev/null || { echo "the site needs Python 3.11 or newer$(if $(PYTHON), ($(PYTHON) is none)): install it, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	"$(PYTHON)" -m venv $$(.venv-docs/bin/python $(NEW) 2>/dev/null || echo --clear) .venv-docs
	.venv-docs/bin/python -m pip install --quiet --require-hashes --requirement requirements-pip.txt
	.venv-docs/bin/python -m pip install --quiet --require-hashes --requirement requirements-docs.txt
	@touch $@

unit: setup  ## run the tests that need only Python
	$(BIN)/python -m pytest -m "$(UNIT)" $(PARALLEL) $(ARGS)

controlplane: setup  ## run the tests on a real etcd, kube-apiserver and kube-scheduler
	$(BIN)/python -m localplane build
	$(BIN)/python -m pytest -m controlplane $(TWO) $(ARGS)

test-matrix: setup  ## run the control-plane tests on every supported Kubernetes: make test-matrix ARGS="--kubernetes 1.34 -x"
	PYTHONPATH=tests $(BIN)/python -m matrix $(ARGS)

browser: setup  ## run the tests of the device map in headless Chromium
	$(BIN)/python -m pytest -m browser $(ARGS)

node: setup  ## run the tests on a real kubelet and containerd (root)
	$(BIN)/python -m localplane build
	$(BIN)/python -m pytest -m node $(ARGS)

bench: setup  ## run one benchmark: make bench NAME=mutate_pod ARGS=...; without NAME, list them
	@test -n "$(NAME)" -a -f "bench/$(NAME).py" || { echo "name one of: $(filter-out loads result pod_cost packed_cluster hurried claiming,$(basename $(notdir $(wildcard bench/*.py))))   as in: make bench NAME=mutate_pod" >&2; exit 2; }
	$(BIN)/python bench/$(NAME).py $(ARGS)

generate: setup  ## write the files that follow from the code: the chart's resources and dashboard, the page about metrics
	$(BIN)/python -m localplane generate
	$(BIN)/python docs/generate.py

image:  ## build the container image: make image IMAGE=registry.example.com/koordgate:1 BASE=NAME@sha256:... (docker, podman or buildah)
	@IMAGE='$(IMAGE)' PUSH='$(PUSH)' ARCHIVE='$(ARCHIVE)' SBOM='$(SBOM)' $(BUILT_WITH) image/build.sh

release: setup  ## build what is published into dist/VERSION: make release VERSION=0.2.0 IMAGE=registry.example.com/koordgate BASE=NAME@sha256:...
	@$(BUILT_WITH) $(BIN)/python -m release '$(VERSION)' '$(IMAGE)' $(ARGS)

requirements: setup  ## update the pins of pyproject.toml's dependencies, with hashes
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --strip-extras --allow-unsafe --extra console --extra dev --extra tracing --output-file requirements-dev.txt pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --strip-extras --constraint requirements-dev.txt --extra console --extra tracing --output-file requirements.txt pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --strip-extras --allow-unsafe --constraint requirements-dev.txt --only-build-deps --build-deps-for editable --output-file requirements-build.txt pyproject.toml
	$(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --strip-extras --allow-unsafe --constraint requirements-dev.txt --output-file image/tools.txt image/tools.in
	echo pip | $(BIN)/pip-compile --quiet --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --strip-extras --allow-unsafe --constraint requirements-dev.txt --output-file requirements-pip.txt -
	image/wheels.sh
	$(BIN)/pip-compile --quiet --upgrade --generate-hashes --no-emit-index-url --no-emit-trusted-host --no-emit-find-links --no-emit-options --strip-extras --allow-unsafe --output-file requirements-docs.txt docs/tools.in

clean:  ## remove what the targets above made, except the built control plane
	rm -rf .venv .venv-docs .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist build
