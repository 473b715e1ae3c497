# Every target sets up what it needs in .venv and says what it does.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check

# What Python has compiled is kept, whatever the environment says: the tests start hundreds of processes, and each would
# compile all our modules for itself, for longer than it then runs.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help demo test test-external lint types sim loadtest soak explore fuzz bench bench-core bench-compare vram-report gpu-check clean

help:
	@echo "make demo           see it work: real engine, real models, a chat that overtakes an indexer (about 3 minutes)"
	@echo "make test           the whole suite (four minutes of processor time); needs Python 3.11+ and the package index, nothing else"
	@echo "make test-external  checks against outside programs and clients for Node (fetches them; a node that is missing is installed)"
	@echo "make lint           ruff, formatting, floors"
	@echo "make types          mypy, strict"
	@echo "make sim            10,000 simulated runs of the scheduler with faults (about half an hour on two cores)"
	@echo "make loadtest       clients of every class against a running server, for SECONDS=300 (URL=http://... names another one than usual)"
	@echo "make soak           random load and harm against a real server with stand-in engines (MINUTES=3, SEED=1)"
	@echo "make explore        random orders of events and tasks for the scheduler, other ones each time (about 15 minutes)"
	@echo "make fuzz           200,000 damaged model headers, then as many that a coverage-guided fuzzer makes up (about 20 minutes)"
	@echo "make bench          what it costs that gridsched stands between, beside llama-server's router and LiteLLM (about 11 minutes; ROUNDS=5,"
	@echo "                    CASES=\"small_request stream\", ENGINE=path, OUT=folder; needs a C compiler); into loadtest/results"
	@echo "make bench-compare  whether this tree is faster than another revision: BASE=HEAD~1"
	@echo "make bench-core     how fast the core and the header reader are here, and what a step costs as everything grows; how long a page of metrics takes"
	@echo "make vram-report    how far memory estimates are from the facts: tables, and build/vram-report.md and .svg (seconds)"
	@echo "make gpu-check      on a machine with an NVIDIA GPU: what real launches take, against what is predicted (up to 20 minutes;"
	@echo "                    ENGINE=path/to/llama-server names the engine, CHECK=--host does it in host memory)"
	@echo "make clean          remove .venv and everything made by the above"

# One stamp for each set of extras: made again when the pins or the project file change. Whoever installs one has those
# that it holds, as pyproject.toml says.
HOLDS_test := demo
HOLDS_external := test demo
HOLDS_dev := external test demo
HOLDS_fuzz := test demo

.venv/.demo .venv/.test .venv/.external .venv/.dev .venv/.fuzz: .venv/.%: pyproject.toml constraints/constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gridsched needs Python 3.11 or newer, this is " + sys.version.split()[0] + " (choose another: make PYTHON=python3.12 ...)")'
	@test -x $(BIN)/pip || { echo "== making .venv"; rm -rf .venv; $(PYTHON) -m venv .venv || { rm -rf .venv; echo "the venv module is missing or incomplete: install your system's python3-venv package"; exit 1; }; }
	@echo "== installing gridsched[$*] into .venv"
	@$(PIP) install --quiet --constraint constraints/constraints.txt --editable '.[$*]'
	@touch $@ $(HOLDS_$*:%=.venv/.%)

demo: .venv/.demo
	$(BIN)/gridsched demo

# Clients whose requirements are not for our own environment: every package by name and version.
.cache/clients/litellm/made: constraints/litellm.txt
	@echo "== installing LiteLLM, a client, into $(@D)"
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip --disable-pip-version-check install --quiet --no-deps --no-compile --requirement $<
	@touch $@

# Side by side, one more than two processors would take: half of the suite waits for processes. A file's tests stay
# together, because they may share a server; tests/conftest.py says in which order files go.
BESIDE ?= 3

test: .venv/.test .cache/clients/litellm/made
	$(BIN)/pytest -n $(BESIDE) --dist loadfile --no-loadscope-reorder --ignore tests/external

test-external: .venv/.external
	sh tests/external/install.sh
	$(BIN)/pytest -n 2 --dist loadfile tests/external

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/.dev
	$(BIN)/mypy

# 3,000 events a run, and some hundreds to wind it up: 32 million in all, at 9,000 to 13,000 a second and core.
sim: .venv/.test
	$(BIN)/python -m sim --seeds 1-10000 --events 3000

SECONDS ?= 300

loadtest: .venv/.test
	$(BIN)/gridsched loadtest --seconds $(SECONDS) --seed $(SEED) $(if $(URL),--url "$(URL)")

# The same seed is the same schedule; what the machine makes of it differs.
MINUTES ?= 3

soak: .venv/.test
	$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

explore: .venv/.test
	$(BIN)/pytest tests/core/test_machine.py tests/runtime/test_races.py --hypothesis-profile explore

# Another seed each time would find other things: make fuzz SEED=7
SEED ?= 1

fuzz: .venv/.fuzz
	$(BIN)/python -m tests.fuzz.header --runs 200000 --seed $(SEED)
	$(BIN)/python -m tests.fuzz.header --runs 200000 --seed $(SEED) --coverage

# Another proxy that stands between: what its makers say is installed, by name and version.
.cache/bench/litellm/made: constraints/litellm-proxy.txt
	@echo "== installing LiteLLM's proxy into $(@D)"
	@rm -rf $(@D) && $(PYTHON) -m venv $(@D)
	@$(@D)/bin/pip --disable-pip-version-check install --quiet --no-deps --no-compile --requirement $<
	@touch $@

# Of each variant in each round so many seconds of load; other proxies: PROXIES="--proxy 'name=command {port} {upstream}'"
ROUNDS ?= 5
BENCH_SECONDS ?= 0.8

bench: .venv/.test
	@$(MAKE) --no-print-directory .cache/bench/litellm/made || echo "== LiteLLM's proxy cannot be installed here: it is left out"
	$(BIN)/python -m loadtest.bench --rounds $(ROUNDS) --seconds $(BENCH_SECONDS) $(if $(CASES),--cases $(CASES)) $(if $(ENGINE),--engine "$(ENGINE)") $(if $(OUT),--out "$(OUT)") $(PROXIES)

bench-compare: .venv/.test
	@test -n "$(BASE)" || { echo "say which revision to compare with: make bench-compare BASE=HEAD~1"; exit 2; }
	$(BIN)/python -m loadtest.bench.compare "$(BASE)" --rounds $(ROUNDS) --seconds $(BENCH_SECONDS) $(if $(CASES),--cases $(CASES))

bench-core: .venv/.test
	$(BIN)/python -m sim.bench
	$(BIN)/python -m sim.scale
	$(BIN)/python -m tests.metrics.bench

vram-report: .venv/.test
	$(BIN)/python -m tests.vram.report

# Model files are made of holes; nothing is fetched once .venv is there.
gpu-check: .venv/.test
	$(BIN)/python -m tests.vram.check $(if $(ENGINE),--engine "$(ENGINE)") $(CHECK)

clean:
	rm -rf .venv .cache/clients .cache/bench .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
