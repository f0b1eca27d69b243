"""Debugging: `eager` runs a step without compilation, so that the program function sees numbers."""

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Run all steps inside a `with` block operation by operation, without compilation.

    Each step calls the program function with the data of the step. `print` shows numbers, and a debugger stops in the
    program, at `breakpoint()` or at an exception. In a training step, JAX wraps values to compute gradients; a printed
    value shows its numbers as `primal`. Loops such as `layers.scan` run iteration by iteration. Results equal the
    results of compiled steps up to rounding, but take far longer.

    A new program is still traced once on placeholder data, so a program function cannot branch on its values. The block
    has no effect on exported models, which have no program function, and on calls to a server.

    Returns:
      A context manager for the current thread.

    Example:
      >>> import fluid
      >>> seen = []
      >>> def program():
      ...     seen.append(fluid.layers.data("x", shape=[2]) * 2)
      ...     return seen[-1]
      >>> inferencer = fluid.Inferencer(program, params={})
      >>> with fluid.debug.eager():
      ...     results = inferencer.infer({"x": [[1.0, 2.0]]})
      >>> print(seen[-1])
      [[2. 4.]]
    """
    with jax.disable_jit():
        yield
