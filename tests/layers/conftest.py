"""What the tests of layers share: programs that run once or twice are not worth compiling well."""

import jax
import pytest


@pytest.fixture(autouse=True)
def compiled_quickly():
    """Leave most optimizations out; golden numbers, training and examples are tested with all of them."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
