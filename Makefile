# Everything a newcomer types. `make help` lists it.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

CARETAKER_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/caretaker
export CARETAKER_CACHE

# In CI every run is a fresh clone: what it compiled last time is kept outside of it. It is not in the folder of the
# other caches, which is small enough to be saved and restored.
ifdef CI
export CARGO_TARGET_DIR ?= $(CARETAKER_CACHE)-target
endif

# All programs at once, and with the features that the tests need, so that no dependency is compiled twice: cargo gives
# a single package other features than the workspace, and adds those of the tests only where something like a test is
# asked for. There are no examples to build.
BUILD := cargo build --workspace --bins --examples
BIN := $(or $(CARGO_TARGET_DIR),target)/debug
TESTKIT := $(BIN)/testkit
XTASK := $(BIN)/xtask

.PHONY: help
help: ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

.PHONY: packages
packages:
	@scripts/packages

.PHONY: programs
programs: packages
	@$(BUILD)

.PHONY: setup
setup: programs ## Install the Debian packages that are missing, and get the binaries of Kubernetes and Flux
	@$(TESTKIT) binaries >/dev/null
	@$(XTASK) flux >/dev/null

.PHONY: test
test: setup ## Run all tests, on a real API server and, as root, a real node; ONLY= takes words of crates, modules and tests
	@$(XTASK) helm >/dev/null
	@$(TESTKIT) containerd >/dev/null
	@$(TESTKIT) test $(if $(CI),--again) $(ONLY) $(KINDS_$(KIND))

# KIND=it runs what needs an API server at most, KIND=node what needs a node or containerd.
KINDS_it := -- --test it
KINDS_node := -- --test node --test containerd

.PHONY: test-unit
test-unit: packages ## Run the unit tests alone, which need no cluster
	cargo test --workspace --lib --bins --no-fail-fast

.PHONY: test-more
test-more: setup ## What takes long: more cases of the properties, the shipped images, the whole suite on a busy machine
	PROPTEST_CASES=$(or $(CASES),50000) $(TESTKIT) test properties log_follower activity_state
	$(MAKE) test-images
	@trap 'kill $$(jobs -p)' EXIT; for _ in $$(seq $(or $(LOAD),15)); do while :; do :; done & done; $(MAKE) test

.PHONY: binaries
binaries: ## Build the binaries of Kubernetes, Flux, Helm and containerd from Go modules, into the cache
	cargo build --package caretaker-testkit --package xtask --bins
	$(TESTKIT) binaries
	$(TESTKIT) containerd
	$(XTASK) flux
	$(XTASK) helm

# Flux's controllers take part if make setup or make test has built them; their kinds alone are quick to get.
.PHONY: demo
demo: programs ## Show all keepers at work; DEMO_FOR=120s checks it unattended, KUBECONTEXT=name plays on that cluster
	@$(if $(KUBECONTEXT),,$(TESTKIT) binaries >/dev/null)
	@$(XTASK) flux --definitions >/dev/null || true
	@$(BIN)/caretaker-demo $(if $(KUBECONTEXT),--context '$(KUBECONTEXT)')

.PHONY: cluster
cluster: setup ## Start a throwaway cluster and print how to reach it
	@$(TESTKIT) up

.PHONY: cluster-down
cluster-down: programs ## End that cluster
	@$(TESTKIT) down

.PHONY: bench
bench: setup ## Measure what docs/benchmarks.md reports; PART=operator measures one part
	cargo build --quiet --release --workspace --bins
	$(or $(CARGO_TARGET_DIR),target)/release/caretaker-bench $(PART)

.PHONY: images
images: programs ## Build the images of both programs as archives, without a container engine, into target/images
	@$(XTASK) images

.PHONY: test-images
test-images: setup images ## Install the chart with those images on a real node, and take it away again
	@$(XTASK) helm >/dev/null
	@CARETAKER_IMAGES=$(abspath target/images) $(TESTKIT) test caretaker/node/chart_node

.PHONY: release
release: packages ## Make every file of a release with checksums into target/release-files; IMAGES=no leaves out the images
	@scripts/release

# A build script needs a C compiler even where nothing is linked in the end.
.PHONY: lint
lint: packages ## Formatting, clippy and documentation, warnings denied
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- --deny warnings
	RUSTDOCFLAGS='--deny warnings' cargo doc --workspace --no-deps --quiet
	@if type -P cargo-deny >/dev/null; then cargo deny --offline check licenses bans sources; fi

.PHONY: fmt
fmt: ## Format everything
	cargo fmt --all
