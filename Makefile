# Everything here needs only Python (3.11 or newer) and make; the first call sets up .venv, later ones reuse it.
#   make demo    train the convolutional net on handwritten digits, and show some predictions
#   make test    check, then the whole test suite
#   make check   lint, format, types, layering
#   make examples  every example at full strength, against the accuracy that it reaches; what else takes minutes
#   make peers   fluid beside PyTorch, Keras, Lightning and transformers, which it installs (6 GB) in .venv-peers
#   make soak    what takes too long for every day: 220 kills, every byte of a checkpoint flipped, 20,000 bad requests to each server,
#                what goes wrong among several processes, the whole of long tables, layers and deep examples on eight devices, the benchmarks for a GPU
#   make stubs   write the list of all layers, fluid/layers/__init__.pyi, anew
#   make mistakes  write tests/MISTAKES.md anew: what fluid says to typical mistakes
#   make docs    the site, in docs/_build/html; make docs-serve shows it
#   make package builds wheel and sdist in dist/, and tries the wheel in a clean environment
#   make bench   fluid beside hand-written JAX
#   make bench-check  fails when a ratio is worse than the one in benchmarks/FIGURES.md
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_STAMP := $(VENV)/.installed-demo
DOCS_STAMP := $(VENV)/.installed-docs
IREE_STAMP := $(VENV)/.installed-iree
WORKERS ?= 2
PYTEST_ARGS ?=
comma := ,
# Most tests run a program once or twice, so how fast it compiles is all that counts; to split a program for several
# threads costs more than it gains where every core has a worker. Those marked slow, which train, run what users run.
# (XLA of later years has no such flags.)
FEWER_PASSES := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
XLA_FLAG := import jaxlib.version as v; print("$(FEWER_PASSES)" if v.__version_info__ < (0, 11) else "")
COMPILE_QUICKLY = JAX_DISABLE_MOST_OPTIMIZATIONS=1 XLA_FLAGS="$$XLA_FLAGS $$($(BIN)/python -c '$(XLA_FLAG)')"
# Tests start many processes, each of which would compile the modules of fluid anew where this is set.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) $(PYTEST_ARGS)
# A file's tests share what they have compiled and set up.
BY_FILE := --dist loadfile --no-loadscope-reorder
# Devices of one machine spin while they wait for each other; beside other tests they take four times as long.
EIGHT := tests/parallel/test_eight_devices.py
QUICK := -m "not slow and not full and not soak and not peers"

.PHONY: demo docs docs-serve test check quick examples package peers format mistakes bench bench-check soak stubs clean setup

setup: $(STAMP)

# $(call install,EXTRAS) installs fluid with some of its extras.
define install
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(v < (3, 11) and "fluid needs Python 3.11 or newer, found %d.%d; say which to use: make PYTHON=/path/to/python3.11" % v[:2])'
	@echo "setting up $(VENV) with $$($(PYTHON) --version) (once)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --no-compile --disable-pip-version-check -e '.[$(1)]'
	@touch $@
endef

$(STAMP): pyproject.toml
	$(call install,dev$(comma)bench)

$(DOCS_STAMP): $(STAMP)
	$(call install,dev$(comma)bench$(comma)docs)

# The demo needs less; an environment that has everything serves it too.
$(DEMO_STAMP): pyproject.toml
	$(call install,demo)

# 0.4 GB, for the tests of models without Python.
$(IREE_STAMP): $(STAMP)
	$(call install,iree)

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	$(BIN)/python examples/recognize_digits.py --net conv

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/helpers/layers_stub.py --check
	$(BIN)/python -m pytest -q tests/test_layering.py

test: check quick
	$(PYTEST) $(BY_FILE) --ignore=$(EIGHT) -m slow || test $$? -eq 5  # 5: PYTEST_ARGS leaves none of them
	$(if $(PYTEST_ARGS),,$(BIN)/python -m pytest -q $(EIGHT) -m slow)

examples: $(STAMP) $(IREE_STAMP)
	$(PYTEST) --ignore=$(EIGHT) -m full
	$(if $(PYTEST_ARGS),,$(BIN)/python -m pytest -q $(EIGHT) -m full)

peers: .venv-peers/.installed-peers
	.venv-peers/bin/python -m pytest -q $(PYTEST_ARGS) tests/peers -m peers

.venv-peers/.installed-peers: VENV := .venv-peers
.venv-peers/.installed-peers: BIN := .venv-peers/bin
.venv-peers/.installed-peers: pyproject.toml
	$(call install,test$(comma)peers)

quick: $(STAMP)
	$(COMPILE_QUICKLY) $(PYTEST) $(BY_FILE) --ignore=$(EIGHT) $(QUICK) || test $$? -eq 5
	$(if $(PYTEST_ARGS),,$(COMPILE_QUICKLY) $(BIN)/python -m pytest -q $(EIGHT) $(QUICK))

soak: $(STAMP)
	FLUID_KILLS=20 FLUID_ONLINE_KILLS=200 FLUID_STRIDE=1 FLUID_REQUESTS=20000 $(BIN)/python -m pytest -q \
	    tests/trainer/checkpoint/test_kill.py tests/trainer/checkpoint/test_faults.py tests/serving/test_fuzz.py tests/export/test_every_program.py \
	    tests/static/test_paddle_numbers.py tests/online/test_kill.py tests/online/test_journal.py tests/checkpoint/test_bad_json.py tests/distributed/test_processes.py tests/parallel/test_eight_devices.py \
	    tests/test_benchmarks.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stubs: $(STAMP)
	$(BIN)/python tests/helpers/layers_stub.py

# Builds the wheel, also from the sdist, and runs a training of the wheel where nothing else of this folder is seen.
package: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build -q
	$(PYTHON) -m venv dist/clean
	dist/clean/bin/python -m pip install -qq --no-compile --disable-pip-version-check dist/*.whl
	cd dist && clean/bin/python ../tests/packaged.py *.whl *.tar.gz

docs: $(DOCS_STAMP)
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html

docs-serve: docs
	$(BIN)/python -m http.server --directory docs/_build/html

mistakes: $(STAMP)
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m mistakes

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

bench-check: $(STAMP)
	$(BIN)/python benchmarks/check.py

clean:
	rm -rf $(VENV) .venv-newest .venv-peers .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
