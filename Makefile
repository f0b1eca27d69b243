# All targets need only Python (3.11 or newer) and make. The first call creates .venv, and later calls reuse .venv.
#   make demo         train the convolutional net on handwritten digits, and show some predictions
#   make test         run `make check` and the test suite, with a part of the rows of long tables (FLUID_TEST_ALL=1: all)
#   make check        check lint, format, types, layering and words
#   make examples     run every example with its full settings, check its accuracy, and run the other long tests: kills,
#                     several processes, tutorials
#   make peers        compare fluid with PyTorch, Keras, Lightning and transformers (installs 6 GB in .venv-peers)
#   make soak         run the tests that are too slow for every day: 220 kills, every byte of a checkpoint flipped, 20,000 bad
#                     requests to each server, faults in multi-process training, all rows of long tables, layers and deep
#                     examples on eight devices, 1,000 random programs, the benchmarks for a GPU
#   make strength     apply each fault of tests/strength/ to a copy, and print the test that finds it; N=10 draws ten
#   make stubs        write fluid/layers/__init__.pyi, the list of all layers
#   make mistakes     write tests/MISTAKES.md, the messages of fluid for typical mistakes
#   make docs         build the site in docs/_build/html
#   make docs-serve   build the site, and serve it
#   make package      build the wheel and the sdist in dist/, and test the wheel in a clean environment
#   make bench        compare fluid with hand-written JAX
#   make bench-check  fail if a ratio is worse than in benchmarks/FIGURES.md
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
# Most tests run a program once or twice, so only the compilation time matters. Each core has a worker, so compiling a
# program in several threads costs more time than it saves. Tests marked full train for long, so they use the default flags.
# jaxlib 0.11 and newer versions do not have these flags.
FEWER_PASSES := --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1
XLA_FLAG := import jaxlib.version as v; print("$(FEWER_PASSES)" if v.__version_info__ < (0, 11) else "")
COMPILE_QUICKLY = JAX_DISABLE_MOST_OPTIMIZATIONS=1 XLA_FLAGS="$$XLA_FLAGS $$($(BIN)/python -c '$(XLA_FLAG)')"
# Tests start many processes. With PYTHONDONTWRITEBYTECODE, each process would compile the modules of fluid again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST = $(BIN)/python -m pytest -q -n $(WORKERS) --durations=10 $(PYTEST_ARGS)
# The tests of a file share compiled programs and fixtures.
BY_FILE := --dist loadfile --no-loadscope-reorder
# Simulated devices spin while they wait for each other, so these tests take four times as long during other tests.
EIGHT := tests/parallel/test_eight_devices.py
QUICK := -m "not full and not soak and not peers"

.PHONY: demo docs docs-serve test check quick strength examples package peers format mistakes bench bench-check soak stubs clean setup

setup: $(STAMP)

# $(call install,EXTRAS) installs fluid with the extras EXTRAS.
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

# The demo needs fewer packages. If the full environment exists, the demo uses the full environment.
$(DEMO_STAMP): pyproject.toml
	$(call install,demo)

# iree needs 0.4 GB, and only tests of models without Python use iree.
$(IREE_STAMP): $(STAMP)
	$(call install,iree)

demo: $(if $(wildcard $(STAMP)),$(STAMP),$(DEMO_STAMP))
	$(BIN)/python examples/recognize_digits.py --net conv

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tests/helpers/layers_stub.py --check
	$(BIN)/python -m pytest -q tests/test_layering.py tests/test_words.py

# `make check` is one process that runs while the tests start; its output is shown after the tests.
CHECKED := $(VENV)/checked.log
test: $(STAMP)
	$(if $(PYTEST_ARGS),,@$(BIN)/python benchmarks/yardstick.py)
	@begin=$$(date +%s); \
	$(MAKE) --no-print-directory check > $(CHECKED) 2>&1 & check=$$!; \
	$(MAKE) --no-print-directory quick; tests=$$?; \
	wait $$check; checked=$$?; cat $(CHECKED); \
	echo "make test: $$(( $$(date +%s) - begin )) s"; \
	test $$tests -eq 0 && test $$checked -eq 0

examples: $(STAMP) $(IREE_STAMP)
	FLUID_TEST_ALL=1 $(PYTEST) --ignore=$(EIGHT) -m full
	$(if $(PYTEST_ARGS),,FLUID_TEST_ALL=1 $(BIN)/python -m pytest -q $(EIGHT) -m full)

peers: .venv-peers/.installed-peers
	.venv-peers/bin/python -m pytest -q $(PYTEST_ARGS) tests/peers -m peers

.venv-peers/.installed-peers: VENV := .venv-peers
.venv-peers/.installed-peers: BIN := .venv-peers/bin
.venv-peers/.installed-peers: pyproject.toml
	$(call install,test$(comma)peers)

quick: $(STAMP)
	$(COMPILE_QUICKLY) $(PYTEST) $(BY_FILE) --ignore=$(EIGHT) $(QUICK) || test $$? -eq 5  # 5: PYTEST_ARGS selects no test
	$(if $(PYTEST_ARGS),,$(COMPILE_QUICKLY) $(BIN)/python -m pytest -q $(EIGHT) $(QUICK))

strength: $(STAMP)
	$(BIN)/python tests/strength/run.py $(if $(N),-n $(N)) --workers $(WORKERS)

soak: $(STAMP)
	FLUID_TEST_ALL=1 FLUID_KILLS=20 FLUID_ONLINE_KILLS=200 FLUID_STRIDE=1 FLUID_REQUESTS=20000 FLUID_SEEDS=1000 $(BIN)/python -m pytest -q tests/differential \
	    tests/trainer/checkpoint/test_kill.py tests/trainer/checkpoint/test_faults.py tests/serving/test_fuzz.py tests/export/test_every_program.py \
	    tests/static/test_paddle_numbers.py tests/online/test_kill.py tests/online/test_journal.py tests/checkpoint/test_bad_json.py tests/distributed/test_processes.py tests/parallel/test_eight_devices.py \
	    tests/test_benchmarks.py tests/layers/test_every_layer.py tests/layers/kernels tests/layers/detection tests/_util

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

stubs: $(STAMP)
	$(BIN)/python tests/helpers/layers_stub.py

# Build the wheel, also from the sdist, and train with the installed wheel in a folder without the sources.
package: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build -q
	$(PYTHON) -m venv dist/clean
	dist/clean/bin/python -m pip install -qq --no-compile --disable-pip-version-check dist/*.whl
	cd dist && clean/bin/python ../tests/packaged.py *.whl *.tar.gz

docs: $(DOCS_STAMP)
	JAX_PLATFORMS=cpu $(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python -m pytest -q tests/test_reference.py

docs-serve: docs
	$(BIN)/python -m http.server --directory docs/_build/html

mistakes: $(STAMP)
	PYTHONPATH=tests:tests/helpers $(BIN)/python -m mistakes

bench: $(STAMP)
	$(BIN)/python benchmarks/run.py

bench-check: $(STAMP)
	$(BIN)/python benchmarks/check.py

clean:
	rm -rf $(VENV) .venv-newest .venv-peers .compiled .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
