"""What layers that pool regions of images share: reading them, and pooling one after the other."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.layers.base import Layer, describe, like, wide
from fluid.layers.detection.box import exact
from fluid.layers.image.spatial import image_of

# So many regions are pooled at once; what lies between features and result grows with it.
_AT_ONCE = 16


class Regions(NamedTuple):
    """Feature maps, regions of them, and the size that each region is pooled to.

    Attributes:
      this: the layer.
      features: `[batch, channels, height, width]`, in float32 or wider.
      boxes: `[batch, regions, 4]`, in pixels of the image.
      scale: pixels of the feature map for each pixel of the image.
      pooled: height and width of the result.
      given: what the user gave: the feature maps and the regions.
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
        """Pool each region, and record the results.

        Args:
          pool: from a feature map `[channels, height, width]` and a box `[4]` to `[channels', pooled height, width]`.

        Returns:
          `[batch, regions, channels', pooled height, pooled width]`, a SequenceBatch where the regions are one.
        """
        count = self.boxes.shape[1]
        at_once = _AT_ONCE if isinstance(count, int) and count > _AT_ONCE else None

        def image(features: jax.Array, boxes: jax.Array) -> jax.Array:
            return jax.lax.map(lambda box: pool(features, box), boxes, batch_size=at_once)

        results = jax.vmap(image)(self.features, self.boxes)
        features, rois = self.given
        return self.this.output(like(rois, results.astype(jnp.asarray(features).dtype)))


def regions(
    this: Layer,
    input: core.Value,
    rois: core.Value,
    pooled: tuple[int, int],
    scale: float,
    counts: tuple[str, Any] = ("rois_lod", None),
) -> Regions:
    """Read feature maps and regions of them.

    Args:
      this: the layer.
      input: feature maps `[batch, channels, height, width]`.
      rois: a SequenceBatch `[batch, regions, 4]`, or an array of that shape.
      pooled: height and width to pool to.
      scale: pixels of the feature map for each pixel of the image.
      counts: name and value of the argument that says which regions belong to which image; it is not possible here.

    Raises:
      ArgumentError: a size is not positive, or `counts` were given.
      ShapeError: the input are no feature maps, or there are no regions for each of them.
    """
    features = wide(image_of(this, input, 4, "NCHW").array)
    boxes = exact(rois)
    argument, value = counts
    if value is not None:
        raise errors.ArgumentError(
            f"{this.name}: {argument}= is not possible; rois are a sequence batch, which knows how many there are in "
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
