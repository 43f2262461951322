# Everything a newcomer types. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARETAKER_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/caretaker
export CARETAKER_CACHE

# In CI every run is a fresh clone; what it compiled last time is kept beside the other caches.
ifdef CI
export CARGO_TARGET_DIR ?= $(CARETAKER_CACHE)/target
endif

TESTKIT := cargo run --quiet --package caretaker-testkit --bin testkit --

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

.PHONY: packages
packages:
	@scripts/packages

.PHONY: setup
setup: packages ## Install the Debian packages that are missing, and get the binaries of Kubernetes and Flux
	@$(TESTKIT) binaries >/dev/null
	@$(TESTKIT) flux >/dev/null

.PHONY: test
test: setup ## Run all tests, against a real API server and, as root, a real node; ONLY=engine/lease runs one program
	@$(TESTKIT) helm >/dev/null
	@$(TESTKIT) containerd >/dev/null
	@$(TESTKIT) test $(if $(CI),--again) $(ONLY)

.PHONY: demo
demo: setup ## Show the main job on a throwaway cluster
	@cargo build --quiet --package caretaker --package caretaker-node
	@$(TESTKIT) demo
	@echo
	@echo "And what Caretaker would do to the example cluster in the next two days:"
	@echo
	@cargo run --quiet --package caretaker -- simulate --from examples/cluster --start 2026-03-02T09:00:00Z --for 48h --activity examples/activity.jsonl

.PHONY: cluster
cluster: setup ## Start a throwaway cluster and print how to reach it
	@$(TESTKIT) up

.PHONY: cluster-down
cluster-down: ## End that cluster
	@$(TESTKIT) down

.PHONY: bench
bench: setup ## Measure what docs/benchmarks.md reports; PART=operator measures one part
	cargo build --quiet --release --package caretaker --package caretaker-node
	cargo run --quiet --release --package caretaker-bench -- $(PART)

.PHONY: images
images: packages ## Build the images of both programs as archives, without a container engine, into target/images
	@$(TESTKIT) images

# A build script needs a C compiler even where nothing is linked in the end.
.PHONY: lint
lint: packages ## Formatting, clippy, documentation and names that must not come back, warnings denied
	@if [ -e scripts/removed-names ]; then scripts/removed-names; fi
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS='--deny warnings' cargo doc --workspace --no-deps --quiet
	@if type -P cargo-deny >/dev/null; then cargo deny --offline check licenses bans sources; fi

.PHONY: fmt
fmt: ## Format everything
	cargo fmt --all
