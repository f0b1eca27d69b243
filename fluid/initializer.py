"""Initializers: callables `(key, shape, dtype) -> array`, with the protocol of `jax.nn.initializers`.

Some initializers depend on the fans of a weight: `fan_in` is the number of inputs of each output, and `fan_out` is the
number of outputs of each input. For a matrix `[in, out]` they are `in` and `out`. For a filter
`[out, in, height, width]` they are `in * height * width` and `out * height * width`. For a vector both are its length.
"""

import functools
import math
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fluid import errors
from fluid._util import host_random
from fluid._util.known_names import getattr_of
from fluid.core import default, doubt_setting, fitting, is_default, whole_number

__getattr__ = getattr_of(__name__)

# The largest number of elements that XLA draws at once; larger arrays are drawn in blocks of rows.
_BLOCK = 1 << 20
# The truncation limit of the truncated normal distribution, in standard deviations from the mean.
_CUT = 2.0


@fitting("fluid.initializer.Constant")
@dataclass(frozen=True)
class Constant:
    """An initializer that sets every element to one value.

    Args:
      value: the value of every element.
      force_cpu: accepted for programs written for Fluid, but has no effect: XLA decides where values are stored.

    Example:
      >>> Constant(2.0)(None, (2,), "float32").tolist()
      [2.0, 2.0]
    """

    value: float = 0.0
    force_cpu: bool = field(default=False, repr=False)

    def __call__(self, key: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array in which every element is `value`."""
        return np.full(shape, self.value, dtype)


@fitting("fluid.initializer.Uniform")
@dataclass(frozen=True)
class Uniform:
    """An initializer that draws from the uniform distribution on `[low, high)`.

    Args:
      low: lower bound.
      high: upper bound.
      seed: if not 0, the values depend only on this seed, and not on the Session's seed.
      diag_num: the number of elements that are set to `diag_val`, such as the diagonal of a matrix.
      diag_step: the number of elements between two elements of the diagonal; for a matrix, the number of columns.
      diag_val: the value of the diagonal.

    Raises:
      ArgumentError: `low` is above `high`, or `diag_num` or `diag_step` is negative. Raised while drawing: the array
        has too few elements for the diagonal.

    Example:
      >>> import jax
      >>> x = Uniform(0.0, 0.5)(jax.random.key(0), (100,), "float32")
      >>> bool((x >= 0).all() and (x < 0.5).all())
      True
    """

    low: float = -1.0
    high: float = default(1)
    seed: int = 0
    diag_num: int = 0
    diag_step: int = 0
    diag_val: float = 1.0

    def __post_init__(self) -> None:
        if is_default(self.high):
            object.__setattr__(self, "high", 1.0)
            if isinstance(self.low, Real) and -1 < self.low < 1 and self.low != 0:
                doubt_setting(
                    f"Uniform({self.low!r}) draws numbers from {self.low!r} to 1, the default of high; a range around "
                    f"0 is Uniform({-abs(self.low)!r}, {abs(self.low)!r}), and this one Uniform({self.low!r}, 1.0)"
                )
        if isinstance(self.low, Real) and isinstance(self.high, Real) and self.low > self.high:
            raise errors.ArgumentError(
                f"Uniform(low={self.low!r}, high={self.high!r}): expected low <= high, as in "
                f"Uniform({self.high!r}, {self.low!r})"
            )
        whole_number("Uniform", "diag_num", self.diag_num, least=0)
        whole_number("Uniform", "diag_step", self.diag_step, least=0)

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw an array of the given shape and dtype from the uniform distribution, and set its diagonal."""
        drawn = _drawn("uniform", _seeded(key, self.seed), tuple(shape), jnp.dtype(dtype), self.low, self.high)
        if not self.diag_num:
            return drawn
        places = np.arange(self.diag_num) * (self.diag_step + 1)
        if places[-1] >= math.prod(shape):
            raise errors.ArgumentError(
                f"Uniform(diag_num={self.diag_num}, diag_step={self.diag_step}): an array {list(shape)} has no element "
                f"{places[-1]}; expected the size of its diagonal, as in diag_num=3, diag_step=4 of an array [3, 4]"
            )
        return jnp.ravel(drawn).at[places].set(self.diag_val).reshape(shape)


@fitting("fluid.initializer.Normal")
@dataclass(frozen=True)
class Normal:
    """An initializer that draws from the normal distribution.

    Args:
      loc: the mean.
      scale: the standard deviation.
      seed: if not 0, the values depend only on this seed, and not on the Session's seed.

    Example:
      >>> import jax
      >>> Normal(0.0, 0.1)(jax.random.key(0), (2, 3), "float32").shape
      (2, 3)
    """

    loc: float = 0.0
    scale: float = default(1)
    seed: int = 0

    def __post_init__(self) -> None:
        _check_scale(self)

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw an array of the given shape and dtype from the normal distribution."""
        return _drawn("normal", _seeded(key, self.seed), tuple(shape), jnp.dtype(dtype), self.loc, self.scale)


@fitting("fluid.initializer.TruncatedNormal")
@dataclass(frozen=True)
class TruncatedNormal:
    """An initializer that draws from the normal distribution, truncated at two standard deviations from the mean.

    Args:
      loc: the mean.
      scale: the standard deviation before truncation; the standard deviation of the values is about `0.88 * scale`.
      seed: if not 0, the values depend only on this seed, and not on the Session's seed.

    Example:
      >>> import jax
      >>> x = TruncatedNormal(0.0, 1.0)(jax.random.key(0), (1000,), "float32")
      >>> bool(abs(x).max() <= 2)
      True
    """

    loc: float = 0.0
    scale: float = default(1)
    seed: int = 0

    def __post_init__(self) -> None:
        _check_scale(self)

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw an array of the given shape and dtype from the truncated normal distribution."""
        return _drawn("truncated", _seeded(key, self.seed), tuple(shape), jnp.dtype(dtype), self.loc, self.scale)


@fitting("fluid.initializer.Xavier")
@dataclass(frozen=True)
class Xavier:
    """An initializer that keeps the variance of activations and gradients across layers (Glorot and Bengio, 2010).

    Args:
      uniform: True for uniform values with the limit `sqrt(6 / (fan_in + fan_out))`; False for normal values with the
        standard deviation `sqrt(2 / (fan_in + fan_out))`.
      fan_in: replaces the number of inputs that is computed from the shape.
      fan_out: replaces the number of outputs that is computed from the shape.
      seed: if not 0, the values depend only on this seed, and not on the Session's seed.

    Example:
      >>> Xavier().limits((6, 10))
      (-0.6123724356957945, 0.6123724356957945)
    """

    uniform: bool = True
    fan_in: float | None = None
    fan_out: float | None = None
    seed: int = 0

    def limits(self, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return two numbers that define the distribution of initial values.

        These are the bounds of a uniform distribution, or the mean and the standard deviation of a normal distribution.
        """
        fan_in, fan_out = fans(shape)
        total = (fan_in if self.fan_in is None else self.fan_in) + (fan_out if self.fan_out is None else self.fan_out)
        return _parameters(self.uniform, 2.0 / max(total, 1e-30))

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw an array of the given shape and dtype from the uniform or normal distribution of this initializer."""
        kind = "uniform" if self.uniform else "normal"
        return _drawn(kind, _seeded(key, self.seed), tuple(shape), jnp.dtype(dtype), *self.limits(shape))


@fitting("fluid.initializer.MSRA")
@dataclass(frozen=True)
class MSRA:
    """An initializer that keeps the variance of activations across layers with rectifiers (He et al., 2015).

    Args:
      uniform: True for uniform values with the limit `sqrt(6 / fan_in)`; False for normal values with the standard
        deviation `sqrt(2 / fan_in)`.
      fan_in: replaces the number of inputs that is computed from the shape.
      seed: if not 0, the values depend only on this seed, and not on the Session's seed.

    Example:
      >>> MSRA(uniform=False).limits((8, 2))
      (0.0, 0.5)
    """

    uniform: bool = True
    fan_in: float | None = None
    seed: int = 0

    def limits(self, shape: tuple[int, ...]) -> tuple[float, float]:
        """Return the two parameters of the distribution from which initial values are drawn.

        A uniform distribution has a lower and an upper bound. A normal distribution has a mean and a standard
        deviation.
        """
        fan_in = fans(shape)[0] if self.fan_in is None else self.fan_in
        return _parameters(self.uniform, 2.0 / max(fan_in, 1e-30))

    def __call__(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Draw an array of the given shape and dtype from the uniform or normal distribution of this initializer."""
        kind = "uniform" if self.uniform else "normal"
        return _drawn(kind, _seeded(key, self.seed), tuple(shape), jnp.dtype(dtype), *self.limits(shape))


@fitting("fluid.initializer.Bilinear")
@dataclass(frozen=True)
class Bilinear:
    """An initializer for filters `[out, in, size, size]` of transposed convolutions: the kernel of bilinear upsampling.

    Raises:
      ShapeError: the filter is not square.

    Example:
      >>> Bilinear()(None, (1, 1, 4, 4), "float32")[0, 0, 1].tolist()
      [0.1875, 0.5625, 0.5625, 0.1875]
    """

    def __call__(self, key: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Compute the bilinear kernel `[size, size]`, and repeat it for every pair of channels."""
        if len(shape) != 4 or shape[2] != shape[3]:
            raise errors.ShapeError(f"Bilinear needs a filter of shape [out, in, size, size], found {list(shape)}")
        factor = math.ceil(shape[3] / 2)
        center = (2 * factor - 1 - factor % 2) / (2 * factor)
        row = 1 - np.abs(np.arange(shape[3]) / factor - center)
        return np.broadcast_to(np.outer(row, row), shape).astype(dtype)


@fitting("fluid.initializer.NumpyArray")
class NumpyArray:
    """An initializer that copies a given array.

    Args:
      value: an array, or any value that `np.asarray` converts; its shape must equal the parameter's shape.

    Raises:
      ShapeError: raised while drawing: the shapes differ.

    Example:
      >>> NumpyArray([1.0, 2.0])(None, (2,), "float32").tolist()
      [1.0, 2.0]
    """

    def __init__(self, value: Any):
        self.value = np.asarray(value)

    def __call__(self, key: Any, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return a copy of the array, converted to the dtype."""
        if self.value.shape != tuple(shape):
            raise errors.ShapeError(
                f"the initial value has shape {list(self.value.shape)}, the parameter {list(shape)}; "
                f"reshape the array that NumpyArray is given"
            )
        return np.array(self.value, dtype)


def fans(shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the number of inputs of each output of a weight, and the number of outputs of each input.

    Args:
      shape: the shape of the weight: `[n]`, `[in, out]`, or `[out, in, ...]`.

    Returns:
      `(fan_in, fan_out)`.

    Example:
      >>> fans((20, 10, 5, 5))
      (250, 500)
    """
    if len(shape) < 2:
        return (shape[0] if shape else 1,) * 2
    if len(shape) == 2:
        return shape[0], shape[1]
    cells = math.prod(shape[2:])
    return shape[1] * cells, shape[0] * cells


def _check_scale(normal: Normal | TruncatedNormal) -> None:
    """Set the default standard deviation of a normal initializer; warn if the user set only a small mean.

    A user who writes `Normal(0.01)` probably means the standard deviation 0.01, not the mean 0.01.
    """
    if not is_default(normal.scale):
        return
    object.__setattr__(normal, "scale", 1.0)
    if isinstance(normal.loc, Real) and 0 < abs(normal.loc) < 1:
        kind = type(normal).__name__
        doubt_setting(
            f"{kind}({normal.loc!r}) has the mean {normal.loc!r} and the standard deviation 1, the default of scale; a "
            f"standard deviation of {abs(normal.loc)!r} is {kind}(0.0, {abs(normal.loc)!r}), and this one "
            f"{kind}({normal.loc!r}, 1.0)"
        )


def _parameters(uniform: bool, variance: float) -> tuple[float, float]:
    """Return bounds (uniform) or mean and standard deviation (normal) of a distribution with the given variance.

    The mean of the distribution is 0.
    """
    if not uniform:
        return 0.0, math.sqrt(variance)
    limit = math.sqrt(3 * variance)
    return -limit, limit


def _seeded(key: jax.Array, seed: int) -> jax.Array:
    return host_random.root_key(seed) if seed else key


def _drawn(kind: str, key: jax.Array, shape: tuple[int, ...], dtype: Any, first: float, second: float) -> Any:
    """Draw an array of random numbers, if possible on the host, which avoids an XLA compilation for each shape.

    Large arrays, arrays of one element, 64-bit dtypes and traced keys are drawn by XLA.
    """
    words = host_random.key_data(key)
    count = math.prod(shape)
    # XLA may round a single number differently from an array, because it uses other instructions. So XLA also draws
    # arrays of one element.
    if words is None or dtype.itemsize > 4 or count == 1 or (shape and shape[0] > _rows(shape)):
        return _draw(kind, key, shape, dtype, first, second)
    # Most weights are uniform float32 arrays, so a separate function draws them without any compilation.
    if kind == "uniform" and dtype == np.float32:
        uniform = host_random.between(words, count, first, second)
        if uniform is not None:
            return uniform.reshape(shape)
    blocks = host_random.blocks_of_fractions(words, count, dtype)
    drawn = [np.asarray(_from_fractions(kind, fractions, first, second)) for fractions in blocks]
    return np.concatenate([np.empty(0, dtype), *drawn])[:count].reshape(shape)


@functools.partial(jax.jit, static_argnums=0)
def _from_fractions(kind: str, fractions: jax.Array, first: Any, second: Any) -> jax.Array:
    """Convert random fractions `[count]` to the requested distribution, by the same operations as `jax.random`.

    The function uses `jax.lax`, because each function of `jax.numpy` would be traced separately in every process.

    Args:
      fractions: random numbers in `[0, 1)`.
    """
    dtype = fractions.dtype
    first = lax.convert_element_type(first, dtype)
    second = lax.convert_element_type(second, dtype)
    if kind == "uniform":
        return _between(fractions, first, second)
    root = np.array(math.sqrt(2), dtype)
    if kind == "normal":
        least = np.nextafter(np.array(-1.0, dtype), np.array(0.0, dtype), dtype=dtype)
        drawn = lax.mul(lax.erf_inv(_between(fractions, least, np.array(1.0, dtype))), root)
    else:
        lowest, highest = np.array(-_CUT, dtype), np.array(_CUT, dtype)
        ends = (lax.erf(lax.div(end, root)) for end in (lowest, highest))
        whole = lax.mul(lax.erf_inv(_between(fractions, *ends)), root)
        drawn = lax.clamp(np.nextafter(lowest, highest), whole, np.nextafter(highest, lowest))
    return lax.add(lax.mul(drawn, second), first)


def _between(fractions: jax.Array, low: Any, high: Any) -> jax.Array:
    """Scale fractions from 0 to 1 to numbers in `[low, high)`. Because of rounding, a number may equal `high`.

    `low` and `high` are scalars with the dtype of the fractions.
    """
    return lax.max(lax.add(lax.mul(fractions, lax.sub(high, low)), low), low)


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _draw(kind: str, key: jax.Array, shape: tuple[int, ...], dtype: Any, first: Any, second: Any) -> jax.Array:
    """Draw an array of random numbers by XLA.

    A large array is drawn in blocks of rows, because XLA needs several times the memory of the numbers that it draws
    at once.
    """
    first = jnp.asarray(first, dtype)
    second = jnp.asarray(second, dtype)
    rows = _rows(shape)
    if not shape or shape[0] <= rows:
        return _draw_block(kind, key, shape, dtype, first, second)

    def fill(number: Any, table: Any) -> Any:
        part = (rows, *shape[1:])
        block = _draw_block(kind, jax.random.fold_in(key, number), part, dtype, first, second)
        return lax.dynamic_update_slice_in_dim(table, block, number * rows, axis=0)

    return lax.fori_loop(0, -(-shape[0] // rows), fill, jnp.zeros(shape, dtype))


def _rows(shape: tuple[int, ...]) -> int:
    return max(1, _BLOCK // max(1, math.prod(shape[1:])))


def _draw_block(kind: str, key: jax.Array, shape: tuple[int, ...], dtype: Any, first: Any, second: Any) -> jax.Array:
    if kind == "uniform":
        return jax.random.uniform(key, shape, dtype, first, second)
    if kind == "normal":
        return first + second * jax.random.normal(key, shape, dtype)
    return first + second * jax.random.truncated_normal(key, -_CUT, _CUT, shape, dtype)


ConstantInitializer = Constant
UniformInitializer = Uniform
NormalInitializer = Normal
TruncatedNormalInitializer = TruncatedNormal
XavierInitializer = Xavier
MSRAInitializer = MSRA
BilinearInitializer = Bilinear
NumpyArrayInitializer = NumpyArray
