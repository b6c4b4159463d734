# `make run` starts a broker, `make quick` checks what changed, `make test` runs what every change has to pass, `make
# test-slow` what takes longer: CI runs the last two. Each does the set-up that it needs.
# ARGS passes flags on: make run ARGS="--amqp 127.0.0.1:0 --shards 2"

VENV ?= .venv
BIN := $(VENV)/bin
ARGS ?=
export VENV

.PHONY: help run dev quick test test-slow check setup lint types imports unit compiled test-compiled wheel docs bench bench-peers soak fuzz compose-test constraints clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

run: ## set up, then serve a broker on this machine
	@scripts/setup.sh run
	@exec $(BIN)/lightrail serve $(ARGS)

dev: ## set up what unit tests, lint and types need, and nothing else
	@scripts/setup.sh dev

quick: dev ## lint, types, layers of imports, unit tests of what changed since LIGHTRAIL_BASE (default: the branch's beginning)
	@$(BIN)/python scripts/quick.py

test: setup lint types imports unit ## set up, then what every change has to pass

check: test ## the same

setup:
	@scripts/setup.sh test

lint: setup ## ruff
	$(BIN)/ruff check

# Examples as applications see them; those of other clients have no types.
EXAMPLES := $(shell grep -lr --include='*.py' 'lightrail\.\(client\|bus\)' examples)
types: setup ## mypy --strict, tests and examples of the client included
	$(BIN)/mypy
	MYPYPATH=examples/shop $(BIN)/mypy --strict --explicit-package-bases $(EXAMPLES)

imports: setup ## layers and purity, by import-linter; and that no count of the structure is worse than it was
	$(BIN)/lint-imports
	$(BIN)/python scripts/structure.py

# Both processors are used: test by test where tests compute, file by file where they have processes of their own. The slower
# half is one run, so that processes that mostly wait, for leases to expire and for peers to be silent, share the processors
# with those that compute, and so that only its last file leaves a processor idle; of its three workers one mostly waits. Its
# order is from files with few long tests to files with many short ones; last is Spark, whose processes stay until the end.
COMPUTING := tests/unit tests/model
SIMULATED := tests/simulation
TALKING := tests/bus tests/client tests/conformance tests/contracts tests/http tests/transport
FAULTS := tests/brokers tests/chaos tests/cluster
FOREIGN := tests/interop tests/policies tests/ui
PIPELINES := tests/kombu tests/spark
OTHERS := $(filter-out $(COMPUTING) $(SIMULATED) $(TALKING) $(FAULTS) $(FOREIGN) $(PIPELINES) tests/benchmarks, \
	$(patsubst %/,%,$(wildcard tests/*/)) $(wildcard tests/test_*.py))
unit: setup ## the faster half of the tests, examples with real files included; ARGS chooses: make unit ARGS="tests/unit -k names"
ifeq ($(ARGS),)
	$(BIN)/pytest -m "not soak" -n 2 $(COMPUTING)
	LIGHTRAIL_INTERPRETED=1 $(BIN)/pytest -m "not soak" -n 2 tests/unit/amqp
	$(BIN)/pytest -m "not soak" -n 2 --dist loadfile $(TALKING)
else
	$(BIN)/pytest -m "not soak" --ignore=tests/benchmarks $(ARGS)
endif

test-slow: setup ## set up, then the slower half: simulated crashes, clients and browsers of others, Celery, Spark, faults, containers
	$(BIN)/pytest -m "not soak" -n 2 $(SIMULATED) $(ARGS)
	$(BIN)/pytest -m "not soak" -n 3 --dist loadfile --no-loadscope-reorder $(FAULTS) $(OTHERS) $(FOREIGN) $(PIPELINES) $(ARGS)

compiled: dev ## machine code of the modules that a message passes, for the frontends and shards of this checkout; some minutes
	$(BIN)/python -m scripts.compiling

wheel: dev ## a wheel with machine code for this Python and this kind of machine, in dist; some minutes, unless `make compiled` was run
	LIGHTRAIL_COMPILED=1 $(BIN)/python -m pip wheel --disable-pip-version-check --no-cache-dir --no-deps --no-build-isolation --wheel-dir dist .

# What a process of the tests can have as machine code; the other suites have processes, which use what `make compiled` makes.
COMPILED := $(addprefix tests/unit/,amqp frontend service_bus shard shard_client wire) tests/model $(SIMULATED)
test-compiled: setup ## machine code in a form for tests, and what computes on it: models, simulated crashes, unit tests
	$(BIN)/python -m scripts.compiling --for-tests
	LIGHTRAIL_TEST_FORM=compiled $(BIN)/pytest -m "not soak" -n 2 $(COMPILED) $(ARGS)

docs: ## the documents as a site, in build/site; a broken link is an error
	@scripts/setup.sh docs
	$(BIN)/mkdocs build --strict
	@echo "docs: open build/site/index.html"

bench: setup ## measure this machine and write docs/benchmarks.md
	$(BIN)/python scripts/bench.py $(ARGS)

bench-peers: setup ## the same load against other brokers, and the ratios
	$(BIN)/python scripts/bench_peers.py $(ARGS)

soak: setup ## the long tests
	$(BIN)/pytest -m soak --timeout=0 $(ARGS)
	LIGHTRAIL_SLOWEST_S=2 $(BIN)/pytest --timeout=0 tests/chaos/test_bad_input.py tests/chaos/test_memory_of_frontends.py

fuzz: setup ## mutated AMQP for the scanner: compiled, interpreted, under AddressSanitizer; 10 minutes, LIGHTRAIL_SOAK_SECONDS chooses
	$(BIN)/python scripts/fuzz.py $(ARGS)

compose-test: ## docker-compose.yml on a Docker engine of the test's own, as root
	@scripts/setup.sh compose
	$(BIN)/pytest tests/deploy/test_image.py tests/deploy/test_compose.py $(ARGS)

constraints: setup ## write constraints.txt from what is installed
	@{ sed -n '/^#/p;/^#/!q' constraints.txt; $(BIN)/python -m pip freeze --exclude-editable; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt constraints.txt

clean: ## remove what was set up; data stays
	rm -rf $(VENV) tests/interop/node_modules tests/interop/jms/target tests/interop/azure/java/target tests/interop/vertx/target tests/interop/go/vendor tests/interop/go/target tests/interop/rust/target tests/brokers/artemis/target tests/brokers/broker-j/target .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build/compiled build/for_tests build/compiled_for_tests lightrail/_compiled
