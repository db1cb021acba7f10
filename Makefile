# Everything from a bare checkout: Python 3.11 or later, make and a package index are all that is needed.

SHELL := bash
.DEFAULT_GOAL := help
.NOTPARALLEL:

# The first interpreter that is new enough and can make a virtual environment; `make PYTHON=... audit` names another.
usable = import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for p in python3.12 python3.11 python3.13 python3; do \
	$$p -c '$(usable)' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
TFDS := .venv-tfds/bin
ACCELERATORS := .venv-accelerators/bin
PINS := pyproject.toml constraints/py311.txt constraints/py312.txt

.PHONY: help audit test integration mutants verify docs notebooks results reproduce libraries bench bench-gpu tfds accelerators clean

# The public project, owner/name on GitHub: badges of notebooks and links of the documentation lead there.
REPOSITORY ?= PROJECT_OWNER/dpaudit

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

audit: .venv/.core  ## the main job: audit LDP-SGD on the bundled digits, report in results/audit/
	$(BIN)/dpaudit ldp --data digits --craft all --epsilon 0.5 1 2 4 --trials 10000 --repeats 10 \
		--out results/audit --force

# Most programs of the tests run once, so that compiling them takes most of the time: it falls to a third without LLVM's
# passes and, where jaxlib can do without them, without its fusion emitters. The long proofs are compiled as users'
# programs are.
QUICKLY = --xla_backend_optimization_level=0 $(shell $(BIN)/python -c \
	'import jaxlib; print("--xla_cpu_use_fusion_emitters=false" * jaxlib.__version__.startswith("0.10."))')
PYTEST = XLA_FLAGS="$$XLA_FLAGS $(QUICKLY)" $(BIN)/pytest -rs --numprocesses 2 --dist worksteal --durations=15

test: .venv/.dev  ## style, types and the unit tests, in a few minutes
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@said=$$(mktemp); $(BIN)/pyright --pythonpath $(BIN)/python >$$said 2>&1 & types=$$!; \
		$(PYTEST); tests=$$?; wait $$types; types=$$?; cat $$said; rm $$said; exit $$((tests || types))

integration: .venv/.dev  ## tests of more than a second each: processes, commands, experiments, notebooks, whole audits
	$(PYTEST) -m 'integration and not slow'

# ROOM=secure: of one room. MINUTES=30: no fault is begun later; what is done is kept, and the next run goes on.
mutants: .venv/.dev  ## puts small faults into a copy of the code and runs their tests; tells which faults no test sees
	XLA_FLAGS="$$XLA_FLAGS $(QUICKLY)" $(BIN)/python -m tests.mutants \
		$(if $(ROOM),--room $(ROOM)) $(if $(MINUTES),--minutes $(MINUTES))

verify: .venv/.dev  ## the long proofs, logged in experiments/trust/results/verify.log
	@mkdir -p experiments/trust/results
	set -o pipefail; { date -u '+%Y-%m-%d %H:%M UTC'; $(BIN)/pytest -v -rs -m slow --numprocesses 2 --dist worksteal \
		--durations=30; } 2>&1 \
		| tee experiments/trust/results/verify.log

docs: .venv/.docs  ## the documentation, in site/: open site/index.html
	REPOSITORY=$(REPOSITORY) NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs --quiet build --strict

notebooks: .venv/.dev  ## execute the notebooks and keep their outputs; ONLY="personalization": these alone
	REPOSITORY=$(REPOSITORY) $(BIN)/python colab/execute.py $(ONLY)

results: .venv/.dev  ## rewrite experiments/README.md from the committed results
	$(BIN)/python -m experiments.make_results

# ONLY="spgc_audit coverage": these experiments alone. SECONDS_EACH: leave parts that took longer, 60 if not given.
reproduce: .venv/.dev  ## make a sample of the committed rows again from what they carry, and compare: minutes
	$(BIN)/python -m experiments.reproduce $(if $(ONLY),--only $(ONLY)) $(if $(SECONDS_EACH),--seconds $(SECONDS_EACH))

# ONLY="opendp opacus": these alone. Each library is installed into an environment of its own below .venv-libraries.
libraries: .venv/.core  ## audit what libraries of differential privacy promise: an hour, and 20 GB for all of them
	$(BIN)/python -m experiments.libraries.run $(if $(ONLY),--only $(ONLY))

# ONLY="training secure": these parts alone. TORCH_PYTHON: an interpreter that has torch and opacus. ROUNDS: of timing.
BENCH = $(BIN)/python -m experiments.bench.run $(if $(TORCH_PYTHON),--torch-python $(TORCH_PYTHON)) $(if $(ROUNDS),--rounds $(ROUNDS))

bench: .venv/.dev  ## speed and memory beside peers, on the CPU: make bench ONLY="ldp secure" TORCH_PYTHON=PATH
	$(BENCH) $(if $(ONLY),--only $(ONLY))

bench-gpu: .venv/.dev  ## the same of one accelerator; JAX for it must be in .venv, torch for it in TORCH_PYTHON
	$(BENCH) --only gpu
	$(BIN)/python -m experiments.bench.kernels

tfds: .venv-tfds/.core  ## MNIST through TensorFlow Datasets, in an environment of its own
	$(TFDS)/pytest -rs tests/data/test_tfds.py

# Compiling is slow, running is not needed: nothing is timed, and no accelerator has to be there. ONLY="-k kernel -m
# integration": these tests alone. `$(ACCELERATORS)/python -m experiments.bench.accelerators` writes the table's rows.
accelerators: .venv-accelerators/.core  ## every program compiled for a TPU and an H100 without either: an hour or two
	$(ACCELERATORS)/python -c 'from dpaudit._engine import topologies as t; t.machine("h100"), t.machine("v5e")'
	JAX_PLATFORMS=cpu JAX_ENABLE_COMPILATION_CACHE=false $(ACCELERATORS)/pytest -rs --durations=15 $(if $(ONLY),$(ONLY),-m '') tests/accelerators

clean:  ## remove environments, caches and builds; results stay
	rm -rf .venv .venv-tfds .venv-accelerators .venv-libraries .cache .hypothesis .pytest_cache .ruff_cache build dist dpaudit.egg-info site

# pip shows errors only. A stamp is touched last, so an interrupted installation is taken up again.
pip = $(1)/python -m pip install -qq --disable-pip-version-check --no-build-isolation
install = $(pip) \
	--constraint constraints/$$($(1)/python -c 'import sys; print("py311" if sys.version_info < (3, 12) else "py312")').txt

.venv/.core: $(PINS) | $(BIN)/pip
	@echo "Installing pinned dependencies into .venv: a minute or two, once."
	@$(call install,$(BIN)) setuptools
	@$(call install,$(BIN)) --editable '.[data,report]'
	@touch $@

.venv/.dev: .venv/.core
	@echo "Installing the tools for testing into .venv."
	@$(call install,$(BIN)) --editable '.[dev]'
	@touch $@

.venv/.docs: .venv/.core
	@echo "Installing MkDocs into .venv."
	@$(call install,$(BIN)) --editable '.[docs]'
	@touch $@

.venv-tfds/.core: $(PINS) | $(TFDS)/pip
	@echo "Installing TensorFlow Datasets into .venv-tfds: a few minutes, once."
	@$(call install,$(TFDS)) setuptools
	@$(call install,$(TFDS)) --editable '.[tfds]' hypothesis pytest
	@touch $@

# The wheels that compile fit one version of jax, that of these pins, whatever the interpreter.
COMPILES := constraints/py311.txt

.venv-accelerators/.core: $(PINS) | $(ACCELERATORS)/pip
	@echo "Installing what compiles for TPUs and H100s into .venv-accelerators: a few minutes, once."
	@$(call pip,$(ACCELERATORS)) --constraint $(COMPILES) setuptools
	@$(call pip,$(ACCELERATORS)) --constraint $(COMPILES) --editable '.[train]' hypothesis pytest 'libtpu==0.0.42.*'
	@$(call pip,$(ACCELERATORS)) --no-deps jax-cuda12-plugin==0.10.2 jax-cuda12-pjrt==0.10.2
	@touch $@

%/bin/pip:
	@$(or $(PYTHON),false) -c '$(usable)' 2>/dev/null || { echo "$(or $(PYTHON),PATH): expected Python 3.11 or later with" \
		"its venv and ensurepip modules; name one with make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $*
