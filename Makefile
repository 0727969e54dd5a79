# `make demo` and `make test` work on a bare machine with Python 3.11, make and git.
PYTHON ?= python3.11
SEED ?= 0
PORT ?= 8000
TASK ?=
EXTRAS ?= cpu,dev
BIN := .venv/bin

ifeq ($(filter output-sync,$(.FEATURES)),)
$(error make $(MAKE_VERSION) is too old -> install GNU make 4.0 or newer)
endif

.PHONY: help demo task test test-slow test-clusters test-engines test-jails test-services test-examples test-faults test-operations bare-machine images lint docs audit wheel bench clean
.DELETE_ON_ERROR:

help:  ## this list
	@sed -nE 's/^([a-z-]+):[^#]*  ## (.*)/\1|\2/p' $(MAKEFILE_LIST) | sort \
	  | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

demo: .venv/ready  ## a model learns to write small programs, in a minute: SEED=0 PORT=8000 TASK=folder
	@$(BIN)/millrace demo $(TASK) --seed $(SEED) --port $(PORT)

task: .venv/ready  ## five files of a task of your own, which `make demo` runs: TASK=name
	@$(BIN)/millrace init --task '$(TASK)'

# One part more than there are CPUs: each waits for something half of the time. With all six on two
# CPUs, deadlines of tests run out. The longest begin. Jails follow clusters: beside a cluster's
# processes, a program that starts in a jail may wait up to a minute for a CPU. On less than 16 GiB of
# memory AT_ONCE=2.
AT_ONCE ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 2) + 1)))
PARTS := test-clusters test-engines test-services test-jails test-examples test-faults

# What pytest's -m selects.
SELECT ?= not slow

test: .venv/ready  ## most tests; with less than 16 GiB of memory AT_ONCE=2
	@rm -rf build/test; began=$$(date +%s); \
	$(MAKE) --no-print-directory -j$(AT_ONCE) --output-sync=line --keep-going $(PARTS); ended=$$?; \
	$(BIN)/python -m tests.closing $$began $(PARTS) && exit $$ended

# The other parts have no test that is marked as slow, and a part without tests fails.
test-slow:  ## the tests that are marked as slow: trainings, audits, further cases
	@$(MAKE) --no-print-directory test SELECT=slow PARTS='test-clusters test-engines test-jails test-examples'

CLUSTERS := tests/cluster tests/one_gpu tests/demo
FAULTS := tests/chaos tests/cli
ENGINES := tests/conformance tests/router tests/rollout_server tests/trainer tests/transport
JAILS := tests/redteam tests/reward_service/workspaces tests/reward_service/workspace_api
EXAMPLES := tests/adapters tests/audit tests/contracts tests/deploy tests/examples tests/guides tests/release
OPERATIONS := tests/operations tests/chaos/test_whole_run.py

test-clusters:
	@$(BIN)/python -m tests.part $@ -m '$(SELECT)' $(CLUSTERS)

test-engines:
	@$(BIN)/python -m tests.part $@ -m '$(SELECT)' $(ENGINES)

test-services:
	@$(BIN)/python -m tests.part $@ -m '$(SELECT)' $(OPERATIONS:%=--ignore=%) \
	  $(patsubst %,--ignore=%,$(CLUSTERS) $(ENGINES) $(JAILS) $(EXAMPLES) $(FAULTS))

test-examples:
	@$(BIN)/python -m tests.part $@ -m '$(SELECT)' $(EXAMPLES)

test-jails:
	@$(BIN)/python -m tests.part $@ -m '$(SELECT)' $(JAILS)

test-faults:
	@$(BIN)/python -m tests.part $@ -m '$(SELECT)' $(FAULTS) $(OPERATIONS:%=--ignore=%)

# Whole clusters that are watched, cut apart and broken: one after the other, minutes each.
test-operations: .venv/ready  ## whole clusters, watched and broken: half an hour
	$(BIN)/pytest $(wildcard $(OPERATIONS))

# Both commands of README in a bare Debian 12, as root and as a user, quiet and busy: hours, and
# root. `python3.11 tests/bare_machine/check.py --help` has less of it.
bare-machine:  ## both commands of README in a bare Debian 12: hours, and root
	@$(PYTHON) tests/bare_machine/check.py --record

# The images of deploy/docker, built and run without a registry: half an hour to hours, and root.
images:  ## the images built, and that for CPUs run: root, buildah and podman
	@$(PYTHON) -m tests.images.check --record

lint: .venv/ready  ## ruff, mypy --strict, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: .venv/ready  ## the reference from the code, and the site of docs/: build/site/index.html
	$(BIN)/python docs/make_reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

audit: .venv/ready  ## known vulnerabilities of what is installed
	$(BIN)/uv tool run pip-audit --skip-editable --path $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')

wheel: .venv/ready  ## the wheel, in dist
	$(BIN)/python -m hatchling build -d dist

bench: .venv/ready  ## a table of first figures of this machine
	$(BIN)/python -m benchmarks.first_numbers

# uv does not read pip's find-links setting, so it is passed on. Where the default package
# index has no CPU build of torch, the second attempt takes it from PyTorch's own. The cache
# is elsewhere where the home folder cannot be written.
.venv/ready: pyproject.toml
	@command -v $(PYTHON) >/dev/null 2>&1 && py=$(PYTHON) || py=python3; \
	$$py -c 'import sys; sys.exit(sys.version_info[:2] not in ((3, 11), (3, 12)))' 2>/dev/null || \
	  { echo "error: python: Python 3.11 or 3.12 is needed -> install it or run make PYTHON=/path/to/python3.11"; exit 2; }; \
	test -x $(BIN)/pip || $$py -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: venv: this Python lacks it -> apt-get install python3-venv, or run make PYTHON=/path/to/python3.11"; exit 2; }; \
	echo "installing into .venv: 5 GB, a few minutes"; \
	test -x $(BIN)/pip || $$py -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.8'
	@export UV_FIND_LINKS="$${UV_FIND_LINKS:-$$PIP_FIND_LINKS}" VIRTUAL_ENV="$(CURDIR)/.venv"; \
	cache=$$($(BIN)/uv cache dir); mkdir -p "$$cache" 2>/dev/null && test -w "$$cache" || \
	  export UV_CACHE_DIR="$(CURDIR)/.venv/.cache"; \
	$(BIN)/uv pip install --quiet --compile-bytecode -e '.[$(EXTRAS)]' || \
	$(BIN)/uv pip install --quiet --compile-bytecode --torch-backend=cpu -e '.[$(EXTRAS)]'
	@touch $@

clean:  ## remove everything that was made, runs and models too
	rm -rf .venv build dist runs models
