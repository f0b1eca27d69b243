"""What layers on boxes share: reading them, their sides, their centres, and how much two of them have in common.

A box is four numbers, `[x1, y1, x2, y2]`: its left, top, right and bottom. Where boxes count pixels, `x2` is the last
pixel inside, so that a box is one wider than `x2 - x1`; `pixel` is that 1, and 0 for boxes in shares of the image.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, array_of, describe, is_sequence, wide


class Centred(NamedTuple):
    """Boxes by their centre and their size, each `[...]`."""

    x: jax.Array
    y: jax.Array
    width: jax.Array
    height: jax.Array


def exact(value: core.Value) -> jax.Array:
    """The array of a value, in float32 or wider; zeros for the padding of a sequence batch.

    What a user wrote down is not rounded first to the half precision that a program may compute in: of an image of 1000
    pixels that leaves every fourth.
    """
    return wide(jnp.asarray(value) if isinstance(value, np.ndarray) else value)


def exact_array(this: Layer, value: core.Value) -> jax.Array:
    """The same of a value that must not be a sequence.

    Raises:
      ShapeError: it is a sequence batch.
    """
    return exact(array_of(this, value) if is_sequence(value) else value)


def boxes_of(this: Layer, value: core.Value, argument: str, dims: int | None = None) -> jax.Array:
    """The array of boxes `[..., 4]`, in float32 or wider; zeros for the padding of a sequence batch.

    Args:
      this: the layer, for messages.
      value: boxes; how many dimensions there are is checked only of arrays.
      argument: what the layer calls them.
      dims: how many dimensions an array of them has; None for any.

    Raises:
      ShapeError: a box is not four numbers, or an array has another number of dimensions.
    """
    array = exact(value)
    if array.ndim < 2 or array.shape[-1] != 4 or (dims is not None and not is_sequence(value) and array.ndim != dims):
        expected = "[..., 4]" if dims is None else f"[{', '.join(['boxes', 'boxes', 'batch'][: dims - 1][::-1])}, 4]"
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)} are no boxes; expected {expected}, x1, y1, x2, y2 of each, as "
            f'from layers.data("{argument}", shape=[4], lod_level=1)'
        )
    return array


def sides(boxes: jax.Array, pixel: float) -> tuple[jax.Array, jax.Array]:
    """Width and height `[...]` of boxes `[..., 4]`."""
    return boxes[..., 2] - boxes[..., 0] + pixel, boxes[..., 3] - boxes[..., 1] + pixel


def areas(boxes: jax.Array, pixel: float) -> jax.Array:
    """Areas `[...]` of boxes `[..., 4]`; 0 where the left lies right of the right."""
    width, height = (jnp.maximum(side, 0) for side in sides(boxes, pixel))
    return width * height


def overlaps(first: jax.Array, second: jax.Array, pixel: float) -> jax.Array:
    """The area that two boxes share, as a part of the area that they cover together; 0 where they cover none.

    Args:
      first: boxes `[..., 4]`.
      second: boxes of a shape that is broadcast with it: `overlaps(a[:, None], b[None], 0)` compares each with each.
      pixel: 1 for boxes of pixels, else 0.

    Returns:
      `[...]`, between 0 and 1.
    """
    corner = jnp.maximum(first[..., :2], second[..., :2])
    shared = areas(jnp.concatenate([corner, jnp.minimum(first[..., 2:], second[..., 2:])], axis=-1), pixel)
    covered = areas(first, pixel) + areas(second, pixel) - shared
    return jnp.where(covered > 0, shared / jnp.where(covered > 0, covered, 1), 0)


def centred(boxes: jax.Array, pixel: float) -> Centred:
    """Centres and sizes of boxes `[..., 4]`."""
    width, height = sides(boxes, pixel)
    return Centred(boxes[..., 0] + width / 2, boxes[..., 1] + height / 2, width, height)


def cornered(boxes: Centred, pixel: float) -> jax.Array:
    """Boxes `[..., 4]` that have these centres and sizes."""
    half = boxes.width / 2, boxes.height / 2
    corners = boxes.x - half[0], boxes.y - half[1], boxes.x + half[0] - pixel, boxes.y + half[1] - pixel
    return jnp.stack(corners, axis=-1)


def clipped(boxes: jax.Array, width: jax.Array, height: jax.Array) -> jax.Array:
    """Boxes `[..., 4]` held within `0 ... width` and `0 ... height`, which are broadcast with `[...]`."""
    most = jnp.stack(jnp.broadcast_arrays(width, height, width, height), axis=-1)
    return jnp.clip(boxes, 0, most)


def ground_truth(this: Layer, value: core.Value, argument: str) -> core.SequenceBatch:
    """Boxes of some objects in each image, as a SequenceBatch `[batch, objects, 4]`.

    Raises:
      ShapeError: it is none; an array does not say how many objects there are in each image.
    """
    if not isinstance(value, core.SequenceBatch) or value.data.ndim != 3 or value.shape[2] != 4:
        raise errors.ShapeError(
            f"{this.name}: {argument} {describe(value)}; expected the boxes in each image as a sequence batch "
            f'[batch, objects, 4], as from layers.data("{argument}", shape=[4], lod_level=1)'
        )
    return value.with_data(exact(value))


def image_sizes(this: Layer, im_info: core.Value, batch: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Height, width and scale `[batch]` of images, from `[batch, 3]`.

    Raises:
      ShapeError: it has another shape.
    """
    info = exact_array(this, im_info)
    if info.shape not in ((batch, 3), (1, 3)):
        raise errors.ShapeError(
            f"{this.name}: im_info {describe(im_info)}; expected height, width and scale of each image, [batch, 3], "
            f'as from layers.data("im_info", shape=[3])'
        )
    height, width, scale = jnp.broadcast_to(info, (batch, 3)).T
    return height, width, scale
