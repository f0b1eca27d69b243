"""Feeds: the layer `data`, which declares the named inputs of a program."""

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core.rows import STEPS
from fluid.layers.base import layer
from fluid.layers.no_effect import no_effect


@layer
@no_effect(
    type="lod_level says what kind of value it is",
    stop_gradient="the gradient of a feed is computed where it is fetched",
)
def data(
    name: str,
    shape: Sequence[int | None],
    dtype: str = "float32",
    lod_level: int = 0,
    append_batch_size: bool = True,
    column: int | None = None,
    allow_nan: bool = False,
    type: object = None,
    stop_gradient: bool = True,
    minimum: float | None = None,
    maximum: float | None = None,
) -> Any:
    """Declare a feed: a named input of the program.

    Args:
      name: the name under which data is fed.
      shape: the shape of one example. With `append_batch_size=False`, or if one size is -1 or None, `shape` is the
        complete shape, in which -1 or None stands for the batch size.
      dtype: "float32", "int64" and so on. "int64" becomes JAX's default integer dtype; data that does not fit in that
        dtype is refused.
      lod_level: 0 for examples of one shape, 1 for sequences of any length whose steps have this shape, 2 for sequences
        of sequences.
      append_batch_size: whether to add a batch dimension before `shape`.
      column: the index of this field in each sample of a reader; by default fields have the order of their
        declarations.
      allow_nan: whether the program expects NaN, such as for missing values. Otherwise a FluidWarning names the first
        sample of a feed that holds NaN.
      type: accepted for programs written for Fluid, but has no effect: lod_level says what kind of value it is.
      stop_gradient: accepted for programs written for Fluid, but has no effect: the gradient of a feed is computed
        where it is fetched.
      minimum: the smallest valid number; None for no limit. Data outside is refused with its sample, in training, by
        servers, and by an OnlineTrainer. Padding of sequences is not checked.
      maximum: the largest valid number; None for no limit.

    Returns:
      `[batch, *shape]`; or a SequenceBatch with data `[batch, time, *shape]`, or a NestedSequenceBatch with data
      `[batch, outer, inner, *shape]`.

    Raises:
      ArgumentError: `dtype` or `lod_level` does not exist, or `minimum` and `maximum` are not numbers in this order.
      ArgumentTypeError: the name is not a string.
      ProgramError: the name is declared already with another shape, dtype, `lod_level` or other limits.
      ShapeError: the shape is not a list.

    Example:
      >>> import fluid
      >>> fluid.Program(lambda: fluid.layers.data("image", shape=[1, 28, 28])).feeds["image"].shape
      (None, 1, 28, 28)
    """
    frame = core.current_frame("layers.data")
    feeds = frame.given.feeds
    if isinstance(shape, str):
        sizes = list(name) if isinstance(name, list | tuple) else [name]
        raise errors.ArgumentTypeError(
            f"layers.data({name!r}, {shape!r}): the name comes first, then the shape: "
            f"layers.data({shape!r}, shape={sizes})"
        )
    sizes = _whole_shape(name, shape, append_batch_size)
    site = core.user_site()
    bounds = None if minimum is None and maximum is None else (minimum, maximum)
    spec = core.FeedSpec(
        name, sizes, str(dtype), lod_level, column, site=site, allow_nan=bool(allow_nan), bounds=bounds
    )
    known = frame.declared.feeds.get(name)
    if known is not None:
        if (known.shape, known.dtype, known.lod_level) != (spec.shape, spec.dtype, spec.lod_level):
            raise errors.ProgramError(
                f"the feed {name!r} is declared twice: {known.dtype}{_shown(known.shape)} at {known.site} and "
                f"{spec.dtype}{_shown(spec.shape)} at {core.user_site()}; give the second another name"
            )
        if bounds not in (None, known.bounds):
            raise errors.ProgramError(
                f"the feed {name!r} is declared twice, with the limits {known.bounds} at {known.site} and {bounds} at "
                f"{site}; give minimum= and maximum= in the first call"
            )
        return feeds[name]
    if not isinstance(name, str) or not name:
        raise errors.ArgumentTypeError(f'a feed needs a name, found {name!r}: layers.data("image", shape=[1, 28, 28])')
    frame.declared.feeds[name] = _checked(spec)
    if frame.discovering:
        feeds[name] = _placeholder(spec, frame)
    elif name not in feeds:
        raise errors.FeedError(f"the program needs the feed {name!r}, which nobody gave: feed={{{name!r}: array}}")
    feeds[name] = _computed(frame, feeds[name])
    if name in frame.given.perturbations:
        feeds[name] = core.perturbed(feeds[name], frame.given.perturbations[name])
    frame.note(feeds[name], feed=name)
    return feeds[name]


def _whole_shape(name: str, shape: Sequence[int | None], append_batch_size: bool) -> tuple[int | None, ...]:
    """Return the shape of a feed with the batch dimension; None stands for the batch size."""
    if isinstance(shape, int):
        raise errors.ShapeError(f"layers.data({name!r}, shape={shape}): shape is a list: shape=[{shape}]")
    sizes = tuple(None if d is None or int(d) < 0 else int(d) for d in shape)
    if append_batch_size and None not in sizes:
        sizes = (None, *sizes)
    return sizes


def _checked(spec: core.FeedSpec) -> core.FeedSpec:
    """Check the dtype and `lod_level` of a feed declaration, and return the declaration."""
    try:
        jnp.dtype(spec.dtype)
    except TypeError as error:
        raise errors.ArgumentError(
            f'layers.data({spec.name!r}, dtype={spec.dtype!r}): no such dtype; use "float32" or "int64"'
        ) from error
    if str(spec.held) == "float32" and str(np.dtype(spec.dtype)) == "float64":
        core.doubt_reading(
            f"layers.data({spec.name!r}, dtype='float64') is held and computed in float32; write dtype='float32', or "
            f"enable 64 bits: jax.config.update('jax_enable_x64', True)"
        )
    if spec.lod_level not in (0, 1, 2):
        raise errors.ArgumentError(
            f"layers.data({spec.name!r}, lod_level={spec.lod_level}): expected 0 for examples of one shape, 1 for "
            f"sequences or 2 for sequences of sequences: lod_level=1"
        )
    if spec.bounds is not None:
        low, high = (end if n is None else n for n, end in zip(spec.bounds, (-math.inf, math.inf), strict=True))
        numbers = all(isinstance(n, int | float) and not isinstance(n, bool) for n in (low, high))
        if not numbers or not low <= high or spec.held.kind in "bc":
            raise errors.ArgumentError(
                f"layers.data({spec.name!r}, dtype={spec.dtype!r}, minimum={spec.bounds[0]!r}, "
                f"maximum={spec.bounds[1]!r}): expected two numbers in ascending order, for a feed of numbers: "
                f"minimum=-10, maximum=10"
            )
    return spec


def _placeholder(spec: core.FeedSpec, frame: core.Frame) -> Any:
    """Return placeholder data for a feed, for the first trace of a program, which finds its parameters and feeds."""
    # Outer and inner sequences get different numbers of steps, 3 and 5, so that a program that confuses them fails.
    value = core.stand_in(spec, frame.placeholder_batch or 1, steps=STEPS)
    given = frame.given.feeds.get(spec.name)
    if given is None:
        return value
    return value.with_data(given.astype(spec.held)) if spec.lod_level else given.astype(spec.held)


def _computed(frame: core.Frame, value: Any) -> Any:
    if isinstance(value, core.SequenceBatch | core.NestedSequenceBatch):
        return value.with_data(frame.compute(core.filled(value, 0)))
    return frame.compute(jnp.asarray(value))


def _shown(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join('batch' if d is None else str(d) for d in shape)}]"
