"""Python functions that are called while a compiled program runs."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, layer


@layer
def py_func(
    func: Callable[..., Any],
    x: core.Value | Sequence[core.Value],
    out: Any = None,
    backward_func: Callable[..., Any] | None = None,
    skip_vars_in_backward_input: Any = None,
    name: str | None = None,
) -> Any:
    """Call a Python function on NumPy arrays while the program runs, for computations that JAX does not support.

    The compiled step waits for the function on the host. The result must depend on the arguments alone. The function is
    called when its results are needed, perhaps more than once.

    Args:
      func: called with an array for each of `x`; returns an array, or several.
      x: an array, or a list of arrays.
      out: shape and dtype of the results: an object that has both, such as `x` itself or
        `jax.ShapeDtypeStruct((x.shape[0], 4), "float32")`, or a list of such objects. Without `out` the function is
        called for its side effects, such as printing, and there is no result.
      backward_func: called with the arrays of `x`, of the results and of the gradients of the results. It returns the
        gradient of each of `x`, or None for an input without gradient. Without `backward_func` no gradient passes.
      skip_vars_in_backward_input: the values of `x` and `out`, one or a list, that `backward_func` does not take.
      name: name of the layer; by default `py_func_N`.

    Returns:
      The result of `func`: an array in the shape and dtype of `out`, or a list of arrays if `out` is a list.

    Raises:
      ArgumentTypeError: a function cannot be called, or `out` has no shape and dtype.
      ArgumentError: the program runs on several devices.
      ShapeError: an input is a sequence batch; or, while the program runs, the results of `func` do not match `out`.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     y = fluid.layers.py_func(np.sinh, x, out=x, backward_func=lambda x, y, slope: slope * np.cosh(x))
      ...     return fluid.layers.reduce_sum(y)
      >>> with fluid.Session(program) as session:
      ...     print(session.run(feed={"x": np.zeros((1, 2), "float32")}, fetch=["x@GRAD"], mode="test")[0])
      [[1. 1.]]
    """
    this = Layer("py_func", name)
    core.refuse_mesh(this.name, "compute it by layers or jax.numpy")
    given = _listed(x)
    arrays = [array_of(this, value) for value in given]
    for function in (func, backward_func):
        if not callable(function) and function is not None:
            raise errors.ArgumentTypeError(f"{this.name}: {function!r} is no function; expected py_func(np.sinh, x, x)")
    if out is None:

        def tell(*values: Any) -> None:
            _called(func, values)

        jax.debug.callback(tell, *arrays)
        return None
    wanted = [_look(this, value) for value in _listed(out)]
    skipped = {id(value) for value in _listed(skip_vars_in_backward_input)}
    kept = [id(value) not in skipped for value in (*given, *_listed(out))]
    results = [this.output(value) for value in _on_host(this.name, func, backward_func, kept, wanted)(*arrays)]
    return results if isinstance(out, list | tuple) else results[0]


def _listed(value: Any) -> list[Any]:
    """Return one value, several values, or None for no value, as a list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _look(this: Layer, value: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and the dtype of an object that has both."""
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise errors.ArgumentTypeError(
            f"{this.name}: out={value!r} has no shape and dtype; expected something like the result, as in "
            f'out=jax.ShapeDtypeStruct((x.shape[0], 4), "float32")'
        )
    return jax.ShapeDtypeStruct(value.shape, jax.dtypes.canonicalize_dtype(value.dtype))


def _called(function: Callable[..., Any], values: Sequence[Any]) -> list[Any]:
    """Call a function with NumPy arrays and return its results as a list; a single None is one result."""
    result = function(*(np.asarray(value) for value in values))
    return list(result) if isinstance(result, list | tuple) else [result]


def _on_host(
    name: str,
    func: Callable[..., Any],
    backward_func: Callable[..., Any] | None,
    kept: Sequence[bool],
    wanted: Sequence[jax.ShapeDtypeStruct],
) -> Callable[..., tuple[jax.Array, ...]]:
    """Return a function of arrays that calls `func` on the host, and `backward_func` for the gradient; see `py_func`.

    Args:
      name: of the layer, for messages.
      func: see `py_func`.
      backward_func: see `py_func`.
      kept: for each input and then for each result, whether `backward_func` takes it.
      wanted: shapes and dtypes of the results.
    """

    def ask(function: Callable[..., Any], looks: Sequence[jax.ShapeDtypeStruct], *values: Any) -> tuple[Any, ...]:
        answer = _called(function, values)
        found = [
            np.zeros(s.shape, s.dtype) if a is None else np.asarray(a) for a, s in zip(answer, looks, strict=False)
        ]
        if len(answer) != len(looks) or any(a.shape != s.shape for a, s in zip(found, looks, strict=True)):
            raise errors.ShapeError(
                f"{name}: {function!r} returned {', '.join(str(np.shape(a)) for a in answer)}; expected "
                f"{', '.join(str(s.shape) for s in looks)}, as out= says"
            )
        return tuple(a.astype(s.dtype) for a, s in zip(found, looks, strict=True))

    @jax.custom_vjp
    def run(*arrays: Any) -> tuple[jax.Array, ...]:
        answer = functools.partial(ask, func, wanted)
        return jax.pure_callback(answer, tuple(wanted), *arrays, vmap_method="sequential")

    def forward(*arrays: Any) -> Any:
        results = run(*arrays)
        return results, (arrays, results)

    def backward(residuals: Any, slopes: Any) -> tuple[Any, ...]:
        arrays, results = residuals
        looks = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays]
        if backward_func is None:
            found: Sequence[Any] = [jnp.zeros(s.shape, s.dtype) for s in looks]
        else:
            values = [v for v, keep in zip((*arrays, *results), kept, strict=True) if keep]
            answer = functools.partial(ask, backward_func, looks)
            floats = [s for s in slopes if s.dtype != jax.dtypes.float0]
            found = jax.pure_callback(answer, tuple(looks), *values, *floats, vmap_method="sequential")
        return tuple(
            f if jnp.issubdtype(a.dtype, jnp.inexact) else np.zeros(a.shape, jax.dtypes.float0)
            for f, a in zip(found, arrays, strict=True)
        )

    run.defvjp(forward, backward)
    return run
