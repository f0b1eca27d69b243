"""Prior boxes and anchors: boxes on a regular grid over the image, from which detectors predict offsets."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.core import Value
from fluid.layers.base import Layer, layer, wide_dtype
from fluid.layers.image.spatial import Image, image_of

# The type of a list of box sizes (width, height), in pixels of the image.
BoxSizes = list[tuple[float, float]]


@layer
def prior_box(
    input: Value,
    image: Value,
    min_sizes: float | Sequence[float],
    max_sizes: Sequence[float] | None = None,
    aspect_ratios: float | Sequence[float] = (1.0,),
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = False,
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Generate the prior boxes of SSD (Liu et al., 2016): several boxes around each pixel of a feature map.

    Each number `min_size` in `min_sizes` yields a square with this side length, and one box of equal area for each
    aspect ratio other than 1. With `max_sizes`, it also yields a square with side length `sqrt(min_size * max_size)`.

    Args:
      input: the feature map, `[batch, channels, height, width]`; only the size is used.
      image: the image, `[batch, channels, height, width]`; only the size is used.
      min_sizes: one or several lengths, in pixels of the image.
      max_sizes: one length for each of `min_sizes`, in pixels of the image, or None.
      aspect_ratios: ratios of width to height, in addition to 1.
      variance: four variances, by which `box_coder` divides the offsets.
      flip: whether to add the reciprocal of each ratio.
      clip: whether to clip boxes to the image.
      steps: the distances along width and height between neighbouring pixels of the feature map, in pixels of the
        image. If one of the two is 0, both are the size of the image divided by the size of the feature map.
      offset: boxes around pixel `i` of the feature map are centred at `(i + offset) * step` in the image.
      name: name of the layer; by default `prior_box_N`.
      min_max_aspect_ratios_order: whether the square from `max_sizes` is the second box, as in Caffe, and not the last.

    Returns:
      Boxes in fractions of the image, and their variances, each `[height, width, priors, 4]`.

    Raises:
      ArgumentError: an argument has the wrong length, or a number in it is not positive.
      ShapeError: the feature map or the image does not have four dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 32, 32])
      ...     features = fluid.layers.conv2d(image, num_filters=8, filter_size=3, stride=8, padding=1)
      ...     return fluid.layers.prior_box(features, image, min_sizes=[8.0], aspect_ratios=[2.0], flip=True)
      >>> print(*fluid.Program(program).outputs)
      float32[4, 4, 3, 4] float32[4, 4, 3, 4]
    """
    this = Layer("prior_box", name)
    small = positive_numbers(this, "min_sizes", min_sizes)
    large = [] if max_sizes is None or _is_empty(max_sizes) else positive_numbers(this, "max_sizes", max_sizes)
    if large and len(large) != len(small):
        raise errors.ArgumentError(
            f"{this.name}: {len(large)} max_sizes for {len(small)} min_sizes; expected one for each, as in "
            f"max_sizes={[2 * size for size in small]}"
        )
    ratios = _ratios([] if _is_empty(aspect_ratios) else positive_numbers(this, "aspect_ratios", aspect_ratios), flip)
    sizes: BoxSizes = []
    for i, size in enumerate(small):
        square = [(math.sqrt(size * large[i]),) * 2] if large else []
        others = [(size * math.sqrt(ratio), size / math.sqrt(ratio)) for ratio in ratios[1:]]
        sizes += [(size, size), *(square + others if min_max_aspect_ratios_order else others + square)]
    grid = _grid(this, input, image, steps, offset)
    boxes = grid.boxes(np.zeros((len(sizes), 2)), np.array(sizes))
    return _finished(this, grid.features, boxes, variance, clip)


@layer
def density_prior_box(
    input: Value,
    image: Value,
    densities: Sequence[int] | None = None,
    fixed_sizes: Sequence[float] | None = None,
    fixed_ratios: Sequence[float] | None = None,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    clip: bool = False,
    steps: Sequence[float] = (0.0, 0.0),
    offset: float = 0.5,
    flatten_to_2d: bool = False,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generate dense prior boxes (Zhang et al., 2017): several boxes of equal size around each pixel of a feature map.

    For each size and each ratio, the layer puts `density * density` boxes on a regular grid around each pixel. The
    distance between neighbouring centres is rounded down to whole pixels of the image.

    Args:
      input: the feature map, `[batch, channels, height, width]`; only the size is used.
      image: the image, `[batch, channels, height, width]`; only the size is used.
      densities: for each of `fixed_sizes`, the number of boxes around a pixel along the width, and along the height.
      fixed_sizes: square roots of the areas of the boxes, in pixels of the image.
      fixed_ratios: ratios of width to height, for all sizes.
      variance: four variances, by which `box_coder` divides the offsets.
      clip: whether to clip all coordinates to the image. Otherwise, `x1` and `y1` are clipped only to at least 0, and
        `x2` and `y2` only to at most 1.
      steps: the distances along width and height between neighbouring pixels of the feature map, see `prior_box`.
      offset: the grid of boxes around pixel `i` of the feature map is centred at `(i + offset) * step` in the image.
      flatten_to_2d: whether to flatten the results to `[height * width * priors, 4]`.
      name: name of the layer; by default `density_prior_box_N`.

    Returns:
      Boxes in fractions of the image, and their variances, each `[height, width, priors, 4]`.

    Raises:
      ArgumentError: an argument has the wrong length, or a number in it is not positive.
      ShapeError: the feature map or the image does not have four dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 32, 32])
      ...     features = fluid.layers.conv2d(image, num_filters=8, filter_size=3, stride=8, padding=1)
      ...     return fluid.layers.density_prior_box(
      ...         features, image, densities=[2, 1], fixed_sizes=[8.0, 16.0], fixed_ratios=[1.0])
      >>> print(*fluid.Program(program).outputs)
      float32[4, 4, 5, 4] float32[4, 4, 5, 4]
    """
    this = Layer("density_prior_box", name)
    lists = {"densities": densities, "fixed_sizes": fixed_sizes, "fixed_ratios": fixed_ratios}
    counts, sizes, ratios = (positive_numbers(this, argument, value) for argument, value in lists.items())
    if len(counts) != len(sizes):
        raise errors.ArgumentError(
            f"{this.name}: {len(counts)} densities for {len(sizes)} fixed_sizes; expected one for each, as in "
            f"densities={[1] * len(sizes)}"
        )
    grid = _grid(this, input, image, steps, offset)
    step = int(sum(grid.steps) / 2)
    moves = []
    shapes = []
    for size, density in zip(sizes, map(int, counts), strict=True):
        apart = step // density
        places = [(apart - step) / 2 + i * apart for i in range(density)]
        for ratio in ratios:
            moves += [(across, down) for down in places for across in places]
            shapes += [(size * math.sqrt(ratio), size / math.sqrt(ratio))] * density**2
    boxes = grid.boxes(np.array(moves), np.array(shapes))
    boxes = np.concatenate([np.maximum(boxes[..., :2], 0), np.minimum(boxes[..., 2:], 1)], axis=-1)
    return _finished(this, grid.features, boxes, variance, clip, flatten_to_2d)


@layer
def anchor_generator(
    input: Value,
    anchor_sizes: float | Sequence[float] | None = None,
    aspect_ratios: float | Sequence[float] | None = None,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    stride: Sequence[float] | None = None,
    offset: float = 0.5,
    name: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Generate the anchors of Faster R-CNN (Ren et al., 2015): several boxes around each pixel of a feature map.

    Args:
      input: the feature map, `[batch, channels, height, width]`; only the size is used.
      anchor_sizes: one or several square roots of the areas of the anchors, in pixels of the image.
      aspect_ratios: one or several ratios of height to width.
      variance: four variances, by which `box_coder` divides the offsets.
      stride: the distances along width and height between neighbouring pixels of the feature map, in pixels of the
        image.
      offset: anchors around pixel `i` are centred at `i * stride + offset * (stride - 1)` in the image.
      name: name of the layer; by default `anchor_generator_N`.

    Returns:
      Anchors in pixels, whose width is `x2 - x1 + 1`, and their variances, each `[height, width, anchors, 4]`. The
      anchors of all sizes for the first ratio come first.

    Raises:
      ArgumentError: an argument has the wrong length, or a number in it is not positive.
      ShapeError: the feature map does not have four dimensions.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.data("features", shape=[8, 4, 4])
      ...     return fluid.layers.anchor_generator(
      ...         features, anchor_sizes=[32.0, 64.0], aspect_ratios=[0.5, 1.0, 2.0], stride=[16.0, 16.0])
      >>> print(*fluid.Program(program).outputs)
      float32[4, 4, 6, 4] float32[4, 4, 6, 4]
    """
    this = Layer("anchor_generator", name)
    sides = positive_numbers(this, "anchor_sizes", anchor_sizes)
    ratios = positive_numbers(this, "aspect_ratios", aspect_ratios)
    across, down = positive_numbers(this, "stride", stride, 2)
    features = image_of(this, input, 4, "NCHW")
    sizes: BoxSizes = []
    for ratio in ratios:
        # A pixel of the feature map covers `across` x `down` pixels of the image. First compute a box of this area,
        # with a height of `ratio` times the width. Round its sides to whole pixels. Then scale the box to each anchor
        # size.
        width = _rounded(math.sqrt(across * down / ratio))
        height = _rounded(width * ratio)
        sizes += [(side / across * width, side / down * height) for side in sides]
    centres = _centres(features, (across, down), (offset * (across - 1), offset * (down - 1)))
    return _finished(this, features, _around(centres, (np.array(sizes) - 1) / 2), variance)


class _Grid(NamedTuple):
    """The grid of a feature map over an image.

    Attributes:
      features: the feature map.
      steps: the distances in x and in y between neighbouring pixels of the feature map, in pixels of the image.
      first: x and y of the first pixel of the feature map, in pixels of the image.
      image: width and height of the image in pixels.
    """

    features: Image
    steps: tuple[float, float]
    first: tuple[float, float]
    image: tuple[int, int]

    def boxes(self, moves: np.ndarray, sizes: np.ndarray) -> np.ndarray:
        """Return `n` boxes around each pixel of the feature map, in fractions of the image: `[height, width, n, 4]`.

        Args:
          moves: shifts (x, y) of the box centres from the pixel, `[n, 2]`, in pixels of the image.
          sizes: widths and heights of the boxes, `[n, 2]`, in pixels of the image.
        """
        return _around(_centres(self.features, self.steps, self.first) + moves, sizes / 2) / np.tile(self.image, 2)


def _grid(this: Layer, input: Value, image: Value, steps: Sequence[float], offset: float) -> _Grid:
    """Check arguments of `prior_box`, and return the grid of the feature map over the image."""
    given = list(steps) if isinstance(steps, list | tuple) else []
    if len(given) != 2 or min(given) < 0:
        raise errors.ArgumentError(
            f"{this.name}: steps={steps!r}; expected two numbers, for width and height, as in steps=[0.0, 0.0]"
        )
    features = image_of(this, input, 4, "NCHW")
    high, broad = image_of(this, image, 4, "NCHW").pixels
    rows, columns = features.pixels
    across, down = (broad / columns, high / rows) if 0 in given else map(float, given)
    return _Grid(features, (across, down), (offset * across, offset * down), (broad, high))


def _centres(features: Image, steps: tuple[float, float], first: tuple[float, float]) -> np.ndarray:
    """Return the image coordinates (x, y) of the pixels of a feature map, `[height, width, 1, 2]`."""
    across, down = (
        step * np.arange(count) + start for step, count, start in zip(steps, features.pixels[::-1], first, strict=True)
    )
    return np.stack(np.meshgrid(across, down), axis=-1)[:, :, None]


def _around(centres: np.ndarray, half: np.ndarray) -> np.ndarray:
    return np.concatenate([centres - half, centres + half], axis=-1)


def _rounded(value: float) -> float:
    return math.floor(value + 0.5)


def _ratios(given: list[float], flip: bool) -> list[float]:
    """Return the list of 1 and the given aspect ratios, without repetition; `flip` adds the reciprocal of each."""
    ratios = [1.0]
    for ratio in given:
        if all(abs(ratio - known) >= 1e-6 for known in ratios):
            ratios += [ratio, 1 / ratio] if flip else [ratio]
    return ratios


def _finished(
    this: Layer, features: Image, boxes: np.ndarray, variance: Sequence[float], clip: bool = False, flat: bool = False
) -> tuple[jax.Array, jax.Array]:
    """Record boxes `[height, width, n, 4]` and their variances as outputs of a layer.

    Args:
      flat: whether to reshape both results to `[height * width * n, 4]`.
    """
    variances = positive_numbers(this, "variance", variance, 4)
    boxes = np.clip(boxes, 0, 1) if clip else boxes
    boxes = boxes.reshape(-1, 4) if flat else boxes
    dtype = wide_dtype(features.array.dtype)
    first = this.output(jnp.asarray(boxes, dtype))
    return first, this.output(jnp.broadcast_to(jnp.asarray(variances, dtype), boxes.shape))


def positive_numbers(this: Layer, argument: str, value: float | Sequence[float] | None, count: int = 0) -> list[float]:
    """Check that a value is a positive number or a list of positive numbers, and return a list of floats.

    Raises:
      ArgumentError: there is no number, the list has another length than `count`, or a number is not positive.
    """
    numbers: list[Any] = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    if not numbers or (count and len(numbers) != count) or not all(map(core.is_positive, numbers)):
        wanted = [16.0] * count if count else [1.0, 2.0]
        raise errors.ArgumentError(
            f"{this.name}: {argument}={value!r}; expected {count or 'some'} positive numbers, as in {argument}={wanted}"
        )
    return [float(v) for v in numbers]


def _is_empty(value: object) -> bool:
    return isinstance(value, list | tuple) and not value
