"""Helpers for layers that pool regions of feature maps."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, like, wide
from fluid.layers.detection.box import exact
from fluid.layers.image.spatial import image_of

# The number of regions pooled at once; the memory of intermediate results is proportional to it.
_AT_ONCE = 16


class Regions(NamedTuple):
    """Feature maps, their regions, and the size of the pooled regions.

    Attributes:
      this: the layer.
      features: `[batch, channels, height, width]`, in float32 or wider.
      boxes: the regions, `[batch, regions, 4]`, in pixels of the image.
      scale: the size of the feature map divided by the size of the image.
      pooled: height and width of a pooled region.
      given: the user's arguments for feature maps and regions.
    """

    this: Layer
    features: jax.Array
    boxes: jax.Array
    scale: float
    pooled: tuple[int, int]
    given: tuple[core.Value, core.Value]

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width of the feature maps."""
        return self.features.shape[2], self.features.shape[3]

    def each(self, pool: Callable[[jax.Array, jax.Array], jax.Array]) -> Any:
        """Pool each region, and record the results as an output of the layer.

        Args:
          pool: a function from a feature map `[channels, height, width]` and a box `[4]` to the pooled region
            `[channels', pooled height, pooled width]`.

        Returns:
          `[batch, regions, channels', pooled height, pooled width]`, a SequenceBatch if the regions are one.
        """
        count = self.boxes.shape[1]
        chunks = -(-count // _AT_ONCE)
        # Copies of the last region fill the last chunk, so that every chunk has `_AT_ONCE` regions. An exported program
        # does not know the number of regions, but must add numbers in the order of a program that knows the number.
        filled = jnp.arange(chunks * _AT_ONCE)

        def image(features: jax.Array, boxes: jax.Array) -> jax.Array:
            parts = jnp.take(boxes, filled, axis=0, mode="clip").reshape(chunks, _AT_ONCE, 4)
            pooled = jax.lax.map(jax.vmap(lambda box: pool(features, box)), parts)
            return jnp.take(
                pooled.reshape(chunks * _AT_ONCE, *pooled.shape[2:]), jnp.arange(count), axis=0, mode="clip"
            )

        results = jax.vmap(image)(self.features, self.boxes)
        features, rois = self.given
        return self.this.output(like(rois, results.astype(jnp.asarray(features).dtype)))


def regions(
    this: Layer,
    input: core.Value,
    rois: core.Value,
    pooled: tuple[int, int],
    scale: float,
    **counts: Any,
) -> Regions:
    """Check feature maps and their regions, and return them.

    Args:
      this: the layer.
      input: feature maps `[batch, channels, height, width]`.
      rois: a SequenceBatch or an array, `[batch, regions, 4]`.
      pooled: height and width of a pooled region.
      scale: the size of the feature map divided by the size of the image.
      counts: Fluid's arguments that assign regions to images, by name; they are not supported.

    Raises:
      ArgumentError: a size is not positive, or one of `counts` is not None.
      ShapeError: the input does not have four dimensions, or does not fit `rois`.
    """
    features = wide(image_of(this, input, 4, "NCHW").array)
    boxes = exact(rois)
    given = next((argument for argument, value in counts.items() if value is not None), None)
    if given is not None:
        raise errors.ArgumentError(
            f"{this.name}: {given}= is not supported; give rois as a sequence batch, which has their number in "
            f'each image, as from layers.data("rois", shape=[4], lod_level=1)'
        )
    if boxes.ndim != 3 or boxes.shape[2] != 4 or boxes.shape[0] != features.shape[0]:
        raise errors.ShapeError(
            f"{this.name}: rois {describe(rois)} for feature maps {describe(input)}; expected the regions of each "
            f'image, [batch, regions, 4], as from layers.data("rois", shape=[4], lod_level=1)'
        )
    names = ("pooled_height", "pooled_width")
    high, broad = (core.whole_number(this.name, *pair) for pair in zip(names, pooled, strict=True))
    return Regions(this, features, boxes, float(scale), (high, broad), (input, rois))
