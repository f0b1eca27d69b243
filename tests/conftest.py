"""Settings and fixtures for all tests: the CPU by default, reproducible hypothesis runs, the digits."""

import gc
import os
import shutil
import signal
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # before the import of JAX; to test a GPU, set cuda,cpu
os.environ.setdefault("MPLBACKEND", "agg")

import hypothesis
import jax
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


@pytest.hookimpl(trylast=True)
def pytest_collection_finish():
    """Collect garbage less often, and never traverse the test items, which saves a tenth of the suite's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(autouse=True, scope="module")
def forgotten():
    """Clear JAX's caches after each test module, because a process with large caches becomes slow."""
    yield
    jax.clear_caches()


def pytest_configure(config):
    """Create one folder of compiled programs for all workers and for the processes that tests start.

    Tests do not use the folder of the user, nor the folder of JAX's cache.
    """
    if not is_worker(config):
        os.environ.pop("JAX_COMPILATION_CACHE_DIR", None)
        os.environ["FLUID_COMPILATION_CACHE"] = tempfile.mkdtemp(prefix="fluid-compiled-")
    fluid.set_compilation_cache(os.environ["FLUID_COMPILATION_CACHE"])


def is_worker(config):
    """Return whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def pytest_unconfigure(config):
    if not is_worker(config):
        shutil.rmtree(os.environ["FLUID_COMPILATION_CACHE"], ignore_errors=True)


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
