"""Checks that every room needs: of arguments, and of the machine."""

import operator
from typing import Any, cast

import jax
import numpy as np

from fluid import errors


def whole_number(owner: str, name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Check an argument that counts something.

    Args:
      owner: whose argument it is, for the message, such as "fc" or "EarlyStopping".
      name: of the argument.
      value: what was given; any integer type counts, bool does not. So does what stands for a size in an export.
      least: the smallest that makes sense.
      most: the largest that makes sense; None for no limit.

    Returns:
      The number, as an int.

    Raises:
      ArgumentError: it is no integer, or lies outside `least ... most`.

    Example:
      >>> whole_number("fc", "size", 10)
      10
      >>> whole_number("fc", "size", 0)
      Traceback (most recent call last):
        ...
      fluid.errors.ArgumentError: fc(size=0): expected a whole number from 1 on, as in size=1
    """
    if jax.export.is_symbolic_dim(value):  # while a program is exported; its bounds are those of the export
        return cast(int, value)
    try:
        number = least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = least - 1
    if number < least or (most is not None and number > most):
        span = f"from {least} on" if most is None else f"from {least} to {most}"
        raise errors.ArgumentError(f"{owner}({name}={value!r}): expected a whole number {span}, as in {name}={least}")
    return number


def one_of(name: str, value: Any, other_name: str, other: Any) -> Any:
    """The value of an argument that has two spellings, or None where neither is given.

    Raises:
      ArgumentTypeError: both are given.

    Example:
      >>> one_of("optimizer", None, "optimizer_func", 3)
      3
    """
    if value is not None and other is not None:
        raise errors.ArgumentTypeError(f"{name} and {other_name} are two spellings of one argument; give one")
    return other if value is None else value


def is_size(value: Any) -> bool:
    """Whether a value can be a size of an array: an integer, or what stands for one while a program is exported.

    Example:
      >>> is_size(4), is_size(True), is_size("4"), is_size(jax.export.symbolic_shape("batch")[0])
      (True, False, False, True)
    """
    if isinstance(value, int | np.integer):
        return not isinstance(value, bool)
    return bool(jax.export.is_symbolic_dim(value))


def refuse_parallel(owner: str, parallel: Any) -> None:
    """Check `parallel=`, which programs written for Fluid give: False and None change nothing.

    Raises:
      ArgumentError: it is True; the message says what to do.
    """
    if parallel not in (None, False):
        raise errors.ArgumentError(
            f"{owner}(parallel={parallel!r}): one process works on one device, with all cores of a CPU; leave parallel "
            f"out. Batches that are too large for the device go in parts, "
            f"fluid.optimizer.Adam(1e-3, accumulate_steps=4)"
        )


def is_compiled_with_cuda() -> bool:
    """Whether JAX is installed with CUDA and sees a GPU, so that `place=fluid.CUDAPlace(0)` works.

    Example:
      >>> import fluid
      >>> place = fluid.CUDAPlace(0) if fluid.core.is_compiled_with_cuda() else fluid.CPUPlace()
    """
    try:
        return bool(jax.local_devices(backend="cuda"))
    except RuntimeError:  # JAX knows no such backend
        return False
