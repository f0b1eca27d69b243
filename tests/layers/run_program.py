"""Helpers for tests of layers: they run a program function on arrays, without a Session."""

import jax
import jax.numpy as jnp
import numpy as np

import fluid


def run(function, feed, mode="train", arrays=None, key=0, **options):
    """Apply a program once, and return the result of `Program.apply`; `arrays` replace initial values by name."""
    program = fluid.Program(function)
    given = program.init(jax.random.key(1)) | {n: jnp.asarray(v) for n, v in (arrays or {}).items()}
    feeds = {n: v if isinstance(v, fluid.SequenceBatch) else jnp.asarray(v) for n, v in feed.items()}
    return program.apply(given, feeds, key=jax.random.key(key), mode=mode, **options)


def output(function, feed, **options):
    """Return the first output of a program, as a NumPy array."""
    return np.asarray(run(function, feed, **options).outputs[0])


def feeds(**arrays):
    """Declare and return a feed for each array or SequenceBatch, whose first dimension is the batch."""
    kinds = {"f": "float32", "i": "int64", "b": "bool"}
    return [
        fluid.layers.data(
            n, v.shape[1 + hasattr(v, "mask") :], kinds[np.dtype(v.dtype).kind], lod_level=int(hasattr(v, "mask"))
        )
        for n, v in arrays.items()
    ]


def check(build, want, rtol=1e-5, atol=1e-6, **arrays):
    """Check that `build`, called with a feed for each array, returns the value `want`."""
    np.testing.assert_allclose(output(lambda: build(*feeds(**arrays)), arrays), want, rtol=rtol, atol=atol)
