"""Reshape and resize layers; a size may be a variable that is computed only from shapes and constants."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import core, layers
from fluid.core.rows import BATCHES
from fluid.static.layers.data import reshape as reshape_any
from fluid.static.tape.calls import Call, Environment, inside
from fluid.static.tape.program import in_a_function, recorded
from fluid.static.tape.variable import Variable, dense_of, leaves

# Names of layers and operators without parameters or randomness, which `known_values` can compute before a run.
_COMPUTED = frozenset(
    "add sub mul truediv floordiv mod getitem assign cast concat elementwise_add elementwise_div elementwise_floordiv "
    "elementwise_mul elementwise_sub fill_constant gather increment reduce_prod reduce_sum reshape scale slice squeeze "
    "stack unsqueeze".split()
)
# The type of the result of `known_values`: the values of a variable at two trial batch sizes.
Known = tuple[np.ndarray, np.ndarray]


def known_values(variable: Variable, calls: Sequence[Call]) -> Known | None:
    """Return the values of a variable at two trial batch sizes; None if they depend on more than shapes."""
    place = next((i for i in reversed(range(len(calls))) if variable in calls[i].outputs), None)
    if place is None:
        return None
    call = calls[place]
    if call.function is layers.shape and not call.variables()[0].lod_level:
        first, second = (np.array(struct.shape) for struct in call.variables()[0].structs)
        return first, second
    read = {v: known_values(v, calls[:place]) for v in call.variables()}
    if call.type not in _COMPUTED or None in read.values():
        return None
    first, second = (
        _computed(call, variable, {v: both[i] for v, both in read.items() if both is not None}, BATCHES[i])
        for i in range(2)
    )
    return first, second


def _computed(call: Call, variable: Variable, read: dict[Variable, np.ndarray], batch: int) -> np.ndarray:
    """Run a recorded call at the trial batch size `batch`; return the value of its output `variable`.

    `read` is a dict from the variables among the call's arguments to their values."""
    environment = Environment()
    for given, value in read.items():
        environment[given] = jnp.asarray(value)
    with core.running(core.Frame(placeholder_batch=batch, as_fluid=True)), inside(environment):
        found = leaves(call.function(*environment.read(call.args), **environment.read(call.kwargs)))
    return np.asarray(found[call.outputs.index(variable)])


def _with_sizes(
    layer: Callable[..., Any], argument: str, record: Callable[..., Any] | None = None
) -> Callable[..., Any]:
    """Wrap a layer: replace variables that are passed as sizes by numbers, if the numbers are known before a run."""
    record = record or recorded(layer)
    names = list(inspect.signature(layer).parameters)

    @functools.wraps(layer)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        actual = given.get("actual_shape")
        sizes = None if in_a_function() else _sizes(given[names[0]], given.get(argument) if actual is None else actual)
        return record(*args, **kwargs) if sizes is None else record(**{**given, argument: sizes, "actual_shape": None})

    return call


def _sizes(x: Variable, wanted: Any) -> list[int] | None:
    """Compute the sizes to which a layer changes `x` as numbers, if the user gives some sizes as variables.

    The argument `wanted` has the user's sizes. The result is None if no size is a variable, or if a size cannot be
    computed. No size can be computed in the body of a loop or branch. A size that grows with the batch becomes 0 or -1.
    0 keeps the size of `x`, and is used if the size equals the size of `x` in this dimension. -1 stands for a size that
    follows from the other sizes.
    """
    listed = wanted if isinstance(wanted, list | tuple) else [wanted]
    if x.program.inside_block or not any(isinstance(size, Variable) for size in listed):
        return None
    both = [
        known_values(size, x.program.ops) if isinstance(size, Variable) else (np.array(size), np.array(size))
        for size in listed
    ]
    if None in both:
        return None
    first, second = (np.concatenate([np.ravel(pair[i]) for pair in both if pair is not None]) for i in range(2))
    dims = dict(enumerate(zip(*(dense_of(struct).shape for struct in x.structs), strict=True)))
    return [
        int(a) if a == b else -1 + (dims.get(i) == (a, b)) for i, (a, b) in enumerate(zip(first, second, strict=True))
    ]


reshape = _with_sizes(layers.reshape, "shape", reshape_any)
image_resize = _with_sizes(layers.image_resize, "out_shape")
interpolate = _with_sizes(layers.interpolate, "out_shape")
resize_bilinear = _with_sizes(layers.resize_bilinear, "out_shape")
resize_nearest = _with_sizes(layers.resize_nearest, "out_shape")
resize_trilinear = _with_sizes(layers.resize_trilinear, "out_shape")
