"""Layers that draw random values; each step uses a new random key, which also depends on the layer name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, array_of, dense, describe, layer, wide
from fluid.layers.checks import dtype_of, known_shape, shape_of
from fluid.layers.no_effect import Warned, no_effect


def _drawn_by_probability(default: float) -> Warned:
    """Return the warning for users who pass `min` or `max` to `sampling_id`, with a value other than `default`.

    Both arguments have no effect here. Fluid draws a number between these bounds, and looks it up in the cumulative
    probabilities of the classes. So in Fluid, bounds other than 0 and 1 exclude classes.
    """
    return Warned(
        "each class is drawn with its probability",
        asks=lambda value, given: value != default,
        instead="to leave classes out, set their probabilities to 0",
    )


@layer
def uniform_random(
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
    name: str | None = None,
) -> jax.Array:
    """Draw numbers uniformly from `[min, max)`.

    Args:
      shape: the shape of the result.
      dtype: the dtype of the result.
      min: the lower bound.
      max: the upper bound.
      seed: if not 0, every step draws equal numbers.
      name: name of the layer; by default `uniform_random_N`; the numbers depend on the name.

    Returns:
      An array of shape `shape`.

    Raises:
      ArgumentError: a size is negative, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.uniform_random([2, 3])).outputs[0])
      float32[2, 3]
    """
    this = Layer("uniform_random", name)
    return this.output(_uniform(this, known_shape(this, shape), dtype, min, max, seed))


@layer
def gaussian_random(
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> jax.Array:
    """Draw numbers from a normal distribution.

    Args:
      shape: the shape of the result.
      mean: the mean of the distribution.
      std: the standard deviation of the distribution.
      seed: if not 0, every step draws equal numbers.
      dtype: the dtype of the result.
      name: name of the layer; by default `gaussian_random_N`; the numbers depend on the name.

    Returns:
      An array of shape `shape`.

    Raises:
      ArgumentError: a size is negative, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> print(fluid.Program(lambda: fluid.layers.gaussian_random([2, 3], std=0.1)).outputs[0])
      float32[2, 3]
    """
    this = Layer("gaussian_random", name)
    return this.output(_gaussian(this, known_shape(this, shape), dtype, mean, std, seed))


@layer
def uniform_random_batch_size_like(
    input: Value,
    shape: Sequence[int],
    dtype: DTypeLike = "float32",
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    min: float = -1.0,
    max: float = 1.0,
    seed: int = 0,
    name: str | None = None,
) -> jax.Array:
    """Draw numbers uniformly from `[min, max)`, in a shape that copies one size, such as the batch size, from `input`.

    Args:
      input: the array or SequenceBatch whose size is copied.
      shape: the shape, in which the size at `output_dim_idx` is replaced.
      dtype: the dtype of the result.
      input_dim_idx: the dimension of the input whose size is used.
      output_dim_idx: the dimension of `shape` whose size is replaced.
      min: the lower bound.
      max: the upper bound.
      seed: if not 0, every step draws equal numbers.
      name: name of the layer; by default `uniform_random_batch_size_like_N`.

    Returns:
      An array of shape `shape`, in which the size at `output_dim_idx` is replaced.

    Raises:
      ArgumentError: another size is negative, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.uniform_random_batch_size_like(x, shape=[-1, 16])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 16]
    """
    this = Layer("uniform_random_batch_size_like", name)
    sizes = _like(this, input, shape, input_dim_idx, output_dim_idx)
    return this.output(_uniform(this, sizes, dtype, min, max, seed))


@layer
def gaussian_random_batch_size_like(
    input: Value,
    shape: Sequence[int],
    input_dim_idx: int = 0,
    output_dim_idx: int = 0,
    mean: float = 0.0,
    std: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = "float32",
    name: str | None = None,
) -> jax.Array:
    """Draw numbers from a normal distribution, in a shape that copies one size, such as the batch size, from `input`.

    Args:
      input: the array or SequenceBatch whose size is copied.
      shape: the shape, in which the size at `output_dim_idx` is replaced.
      input_dim_idx: the dimension of the input whose size is used.
      output_dim_idx: the dimension of `shape` whose size is replaced.
      mean: the mean of the distribution.
      std: the standard deviation of the distribution.
      seed: if not 0, every step draws equal numbers.
      dtype: the dtype of the result.
      name: name of the layer; by default `gaussian_random_batch_size_like_N`.

    Returns:
      An array of shape `shape`, in which the size at `output_dim_idx` is replaced.

    Raises:
      ArgumentError: another size is negative, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.gaussian_random_batch_size_like(x, shape=[-1, 16])
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 16]
    """
    this = Layer("gaussian_random_batch_size_like", name)
    sizes = _like(this, input, shape, input_dim_idx, output_dim_idx)
    return this.output(_gaussian(this, sizes, dtype, mean, std, seed))


@layer
@no_effect(min=_drawn_by_probability(0.0), max=_drawn_by_probability(1.0), dtype="the numbers of classes are int64")
def sampling_id(
    x: Value,
    min: float = 0.0,
    max: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = "int64",
    name: str | None = None,
) -> jax.Array:
    """Draw one class for each row of probabilities.

    Args:
      x: probabilities `[batch, classes]`.
      min: accepted for programs written for Fluid, but has no effect: each class is drawn with its probability.
      max: accepted for programs written for Fluid, but has no effect: each class is drawn with its probability.
      seed: if not 0, every step draws with the same random key.
      dtype: accepted for programs written for Fluid, but has no effect: the numbers of classes are int64.
      name: name of the layer; by default `sampling_id_N`; the drawn classes depend on the name.

    Returns:
      The indices of the classes, integers `[batch]`.

    Raises:
      ShapeError: the input is not a matrix.

    Example:
      >>> import fluid
      >>> def program():
      ...     p = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=10, act="softmax")
      ...     return fluid.layers.sampling_id(p)
      >>> print(fluid.Program(program).outputs[0])
      int32[batch]
    """
    this = Layer("sampling_id", name)
    p = wide(array_of(this, x))
    if p.ndim != 2:
        raise errors.ShapeError(
            f"{this.name}: {describe(x)}; expected probabilities [batch, classes], as from layers.softmax(x)"
        )
    core.expect("probabilities", "layers.sampling_id", x, "write layers.sampling_id(layers.softmax(x))")
    drawn = jax.random.categorical(_key(this, seed), jnp.log(jax.lax.stop_gradient(p)), axis=1)
    return this.output(drawn.astype(dtype_of("sampling_id", "int64")))


def _key(this: Layer, seed: int) -> Any:
    return jax.random.key(seed) if seed else core.random_key(this.name)


def _uniform(this: Layer, shape: Sequence[int], dtype: Any, low: float, high: float, seed: int) -> Any:
    found = dtype_of(this.name, dtype)
    if jnp.issubdtype(found, jnp.integer):
        return jax.random.randint(_key(this, seed), shape, int(low), int(high), found)
    return this.frame.compute(jax.random.uniform(_key(this, seed), shape, found, low, high))


def _gaussian(this: Layer, shape: Sequence[int], dtype: Any, mean: float, std: float, seed: int) -> Any:
    found = dtype_of(this.name, dtype)
    if not jnp.issubdtype(found, jnp.floating):
        raise errors.ArgumentError(
            f'{this.name}: dtype={dtype!r}; numbers of a normal distribution are floats: dtype="float32"'
        )
    return this.frame.compute(mean + std * jax.random.normal(_key(this, seed), shape, found))


def _like(this: Layer, input: Any, shape: Any, taken: int, place: int) -> list[int]:
    sizes = shape_of(this.name, shape)
    sizes[place] = dense(input).shape[taken]
    return known_shape(this, sizes)
