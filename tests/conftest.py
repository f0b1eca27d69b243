"""Settings and fixtures for all tests: the CPU by default, reproducible hypothesis runs, the digits."""

import contextlib
import ctypes
import gc
import hashlib
import os
import pathlib
import platform
import random
import shutil
import signal
import sys
import tempfile
import threading
import zlib

if sys.argv[:1] == ["-c"]:  # a worker of pytest-xdist; fluid must not take its start for a program of a user
    sys.argv[0] = "pytest"

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the import of JAX; to test a GPU, set cuda,cpu
os.environ.setdefault("MPLBACKEND", "agg")

import hypothesis
import jax
import jaxlib.version
import numpy as np
import pytest

import fluid

# A process that a shell starts in the background ignores SIGINT (Ctrl-C), but some tests send SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile("fluid", derandomize=True, deadline=None, database=None)
hypothesis.settings.load_profile("fluid")


def pytest_ignore_collect(collection_path, config):
    """Collect only files with the mark of `-m MARK`, because reading all files takes a quarter of a minute."""
    mark = config.option.markexpr
    if collection_path.suffix != ".py" or not mark.isidentifier():
        return None
    return f"mark.{mark}" not in collection_path.read_text() or None


def pytest_collection_modifyitems(config, items):
    """Keep one of n items with the mark `sample(n)`, selected by FLUID_TEST_SEED; FLUID_TEST_ALL=1 keeps all items."""
    if os.environ.get("FLUID_TEST_ALL"):
        return
    kept, left = [], []
    for item in items:
        (left if is_left_out(item) else kept).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def is_left_out(item):
    """Return whether this run omits an item: the seed selects one of n items; with n = 0, only a run of all has it."""
    mark = item.get_closest_marker("sample")
    if mark is None:
        return False
    (n,) = mark.args
    return not n or zlib.crc32(f"{os.environ['FLUID_TEST_SEED']} {item.nodeid}".encode()) % n > 0


def pytest_terminal_summary(terminalreporter):
    """Print how to repeat this selection of tests."""
    selected = f"FLUID_TEST_SEED={os.environ['FLUID_TEST_SEED']}"
    if os.environ.get("FLUID_TEST_ALL"):
        selected = "all rows of all tables"
    terminalreporter.write_line(f"{selected}; compiled programs in {os.environ['FLUID_COMPILATION_CACHE']}")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Collect garbage less often, and never traverse the test items, which saves a tenth of the suite's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


# Bytes of resident memory above which a worker clears JAX's caches. Two workers and the processes that tests start stay
# below 8 GiB.
_LARGE = 2 * 2**30


@pytest.fixture(autouse=True, scope="module")
def forgotten():
    """Clear JAX's caches after a test module if the process is large; smaller caches serve the next modules.

    A frozen object is not traversed by later collections, which otherwise take a tenth of the suite's time.
    """
    yield
    if resident_bytes() > _LARGE:
        jax.clear_caches()
        gc.unfreeze()
        gc.collect()
        # Half of the resident memory is free, in pieces that malloc keeps; a Python without glibc has no such function.
        getattr(ctypes.CDLL(None), "malloc_trim", lambda pad: None)(0)
    gc.freeze()


def resident_bytes():
    """Return the size of the resident memory of this process; 0 where the system has no `/proc`."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def pytest_configure(config):
    """Select the seed of this run, and the folder of compiled programs for workers and processes that tests start.

    Tests do not use the folder of the user, nor the folder of JAX's cache.
    """
    config.addinivalue_line("markers", "sample(n): run one item of n, which FLUID_TEST_SEED selects")
    reuse_contexts()
    # Programs contain a Python line for each operation. Collecting whole tracebacks takes a tenth of the time.
    with contextlib.suppress(AttributeError):  # another JAX may lack these settings
        jax.config.update("jax_include_full_tracebacks_in_locations", False)
        jax.config.update("jax_traceback_in_locations_limit", 1)
    if not is_worker(config):
        if memory := temporary_memory():
            os.environ["PYTEST_DEBUG_TEMPROOT"] = tempfile.tempdir = os.environ["TMPDIR"] = memory
        os.environ.setdefault("FLUID_TEST_SEED", str(random.randrange(1 << 16)))
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        os.environ["FLUID_COMPILATION_CACHE"] = str(compiled_programs())
    fluid.set_compilation_cache(os.environ["FLUID_COMPILATION_CACHE"])


def reuse_contexts(uses=200):
    """Lower many programs of a thread in one MLIR context: making a context for each takes a sixth of the suite's time.

    A new context after `uses` programs bounds its memory. Measured with jax 0.10.2; a JAX without the private function
    `make_ir_context` makes its contexts as usual.
    """
    from jax._src.interpreters import mlir

    if not hasattr(mlir, "make_ir_context"):
        return
    make, kept = mlir.make_ir_context, threading.local()

    def make_ir_context():
        if not (count := getattr(kept, "count", 0)):
            kept.context = make()
        kept.count = (count + 1) % uses
        return kept.context

    mlir.make_ir_context = make_ir_context


def temporary_memory():
    """Return a folder in memory for temporary files, because many tests wait for a disk; None if there is none."""
    folder = pathlib.Path("/dev/shm")
    try:
        return str(folder) if os.access(folder, os.W_OK) and shutil.disk_usage(folder).free > 4 * 2**30 else None
    except OSError:
        return None


def compiled_programs():
    """Return the folder of compiled programs for this jaxlib, Python, processor and these flags, shared by all runs.

    FLUID_TEST_CACHE names the folder around it; `make clean` removes `.compiled`.
    """
    root = pathlib.Path(os.environ.get("FLUID_TEST_CACHE") or pathlib.Path(__file__).parents[1] / ".compiled")
    optimizations = os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS")
    machine = hashlib.sha256(repr((processor(), os.environ.get("XLA_FLAGS"), optimizations)).encode()).hexdigest()
    return root / f"jaxlib-{jaxlib.version.__version__}-python-{platform.python_version()}-{machine[:8]}"


def processor():
    """Return the description of the processor; a compiled program may use all of its instructions."""
    try:
        with open("/proc/cpuinfo") as file:
            lines = [line for line in file if line.startswith(("model name", "flags", "Features"))]
        return sorted(set(lines))
    except OSError:
        return [platform.machine(), platform.processor()]


def is_worker(config):
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


@pytest.fixture(scope="module")
def optimized():
    """Enable all optimizations of XLA for a test: without them, results inside and outside of a loop may differ."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


class Digits:
    """1797 handwritten digits of scikit-learn, 360 of them for tests: images `[n, 1, 8, 8]` in 0..1, labels `[n]`."""

    def __init__(self):
        from sklearn.datasets import load_digits

        data = load_digits()
        order = np.random.default_rng(0).permutation(len(data.target))
        images = (data.images[order] / 16).astype("float32")[:, None]
        labels = data.target[order].astype("int64")
        self.train_images, self.test_images = images[:-360], images[-360:]
        self.train_labels, self.test_labels = labels[:-360], labels[-360:]

    def rows(self, part="train", flat=False):
        """List the rows `(image, label)` of "train" or "test"; an image is `[1, 8, 8]`, or `[64]` if `flat`."""
        images, labels = getattr(self, f"{part}_images"), getattr(self, f"{part}_labels")
        images = images.reshape(len(images), -1) if flat else images
        return list(zip(images, labels, strict=True))


@pytest.fixture(scope="session")
def digits():
    """Return handwritten digits, always in the same shuffled order and with the same split."""
    return Digits()


@pytest.fixture
def in_tmp(tmp_path, monkeypatch):
    """Run the test in an empty current directory, and return its path."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_compilation_cache():
    """Let a test set the folder of compiled programs, and restore the old folder afterwards."""
    before = jax.config.jax_compilation_cache_dir
    yield
    if jax.config.jax_compilation_cache_dir != before or not jax.config.jax_enable_compilation_cache:
        fluid.set_compilation_cache(before)
