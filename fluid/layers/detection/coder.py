"""Encoding of boxes as offsets from prior boxes, the predictions of networks, and decoding."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, as_rows, describe, is_sequence, layer, like, valid_steps, wide
from fluid.layers.detection.box import CenterForm, boxes_of, center_form, corner_form, exact, exact_array

# The variances of prior boxes: `[priors, 4]`, four numbers for all prior boxes, or None for ones.
Variance = core.Value | Sequence[float] | None

_ENCODE, _DECODE = "encode_center_size", "decode_center_size"


@layer
def box_coder(
    prior_box: core.Value,
    prior_box_var: Variance,
    target_box: core.Value,
    code_type: str = _ENCODE,
    box_normalized: bool = True,
    name: str | None = None,
    axis: int = 0,
) -> Any:
    """Encode boxes as offsets from prior boxes (Girshick et al., 2014), or decode offsets to boxes.

    The first two offsets are the differences of the centres, divided by width and height of the prior box. The last two
    are the logarithms of the ratios of widths and heights, box to prior box. All offsets are divided by the variances.

    Args:
      prior_box: `[priors, 4]`. For `axis=1`, one prior box for each row of `target_box`, as a SequenceBatch if
        `target_box` is one.
      prior_box_var: variances `[priors, 4]`, four numbers for all prior boxes, or None for ones.
      target_box: to encode, boxes `[boxes, 4]`, or a SequenceBatch of them. To decode, offsets `[batch, priors, 4]`, or
        for `axis=1` offsets `[boxes, n, 4]`, or a SequenceBatch of `[n, 4]`.
      code_type: "encode_center_size" or "decode_center_size".
      box_normalized: True for boxes in fractions of the image; False for boxes in pixels, which include their last
        pixel.
      name: name of the layer; by default `box_coder_N`.
      axis: when decoding, 0 if the prior boxes belong to the second dimension of `target_box`, 1 if to the first.

    Returns:
      When encoding, the offsets of each box from each prior box, `[boxes, priors, 4]`. When decoding, boxes in the
      shape of `target_box`. The result is a SequenceBatch if `target_box` is one.

    Raises:
      ArgumentError: `code_type` or `axis` has another value.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     prior = fluid.layers.data("prior", shape=[1, 4], append_batch_size=False)
      ...     box = fluid.layers.data("box", shape=[4], lod_level=1)
      ...     return fluid.layers.box_coder(prior, [0.1, 0.1, 0.2, 0.2], box)
      >>> feed = {"prior": [[0, 0, 2, 2]], "box": [[[1, 0, 3, 2]]]}
      >>> fluid.Session(program).run(program, feed)[0].rows()[0].tolist()
      [[[5.0, 0.0, 0.0, 0.0]]]
    """
    this = Layer("box_coder", name)
    if code_type not in (_ENCODE, _DECODE):
        raise errors.ArgumentError(f"{this.name}: code_type={code_type!r}; expected {_ENCODE!r} or {_DECODE!r}")
    if axis not in (0, 1):
        raise errors.ArgumentError(f"{this.name}: axis={axis!r}; expected 0 or 1")
    pixel = 0.0 if box_normalized else 1.0
    if code_type == _ENCODE:
        prior = boxes_of(this, exact_array(this, prior_box), "prior_box", 2)
        boxes = boxes_of(this, target_box, "target_box", 2)
        if is_sequence(target_box):  # padding has boxes of size 0, which have no logarithm
            boxes = jnp.where(valid_steps(target_box, boxes.ndim), boxes, jnp.asarray([0, 0, 1, 1], boxes.dtype))
        # As in Fluid, a target box in pixels has its centre at `(x1 + x2) / 2`, a prior box at `(x1 + x2 + 1) / 2`.
        boxes = boxes[..., None, :] - pixel / 2
        return this.output(like(target_box, encode(boxes, prior, variance_of(this, prior_box_var, prior), pixel)))
    prior, offsets, restore = _to_decode(this, prior_box, target_box, axis)
    variance = variance_of(this, prior_box_var, prior)
    prior, variance = (v[:, None] if axis == 1 and v.ndim == 2 else v for v in (prior, variance))
    return this.output(restore(decode(offsets, prior, variance, pixel)))


@layer
def box_decoder_and_assign(
    prior_box: core.Value,
    prior_box_var: Variance,
    target_box: core.Value,
    box_score: core.Value,
    box_clip: float,
    name: str | None = None,
) -> tuple[Any, Any]:
    """Decode the offsets of each class, and select for each region the box of its most probable class.

    Args:
      prior_box: regions in pixels, `[boxes, 4]`, or a SequenceBatch of them; they include their last pixel.
      prior_box_var: variances, four numbers.
      target_box: offsets from the regions for each class, `[boxes, classes * 4]`, or a SequenceBatch.
      box_score: probabilities `[boxes, classes]`, or a SequenceBatch; class 0 is the background.
      box_clip: the upper bound of the last two offsets, which are logarithms of ratios of sizes.
      name: name of the layer; by default `box_decoder_and_assign_N`.

    Returns:
      The boxes of all classes, `[boxes, classes * 4]`; and the box of the most probable class, without the background,
      `[boxes, 4]`, or the region itself if the only class is the background. SequenceBatches if the inputs are.

    Raises:
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     rois = fluid.layers.data("rois", shape=[4])
      ...     offsets, scores = fluid.layers.data("offsets", shape=[12]), fluid.layers.data("scores", shape=[3])
      ...     return fluid.layers.box_decoder_and_assign(rois, [0.1, 0.1, 0.2, 0.2], offsets, scores, box_clip=4.135)
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 12] float32[batch, 4]
    """
    this = Layer("box_decoder_and_assign", name)
    (_, offsets, scores), restore = as_rows(this, prior_box, target_box, box_score)
    prior = boxes_of(this, prior_box, "prior_box", 2).reshape(-1, 4)
    count = prior.shape[0]
    classes = scores.shape[-1]
    if scores.ndim != 2 or offsets.shape != (count, classes * 4) or scores.shape[0] != count:
        raise errors.ShapeError(
            f"{this.name}: prior_box {describe(prior_box)}, target_box {describe(target_box)} and box_score "
            f"{describe(box_score)} do not fit; expected [boxes, 4], [boxes, classes * 4] and [boxes, classes]"
        )
    moves = wide(offsets).reshape(-1, classes, 4) * variance_of(this, prior_box_var, prior[:1])
    moves = jnp.concatenate([moves[..., :2], jnp.minimum(moves[..., 2:], box_clip)], axis=-1)
    boxes = decode(moves, prior[:, None], jnp.ones(4, moves.dtype), 1.0)
    if classes == 1:
        chosen = prior
    else:
        best = 1 + jnp.argmax(scores[:, 1:], axis=1)
        chosen = jnp.take_along_axis(boxes, best[:, None, None], axis=1)[:, 0]
    return this.output(restore(boxes.reshape(count, -1))), this.output(restore(chosen))


def encode(boxes: jax.Array, prior: jax.Array, variance: jax.Array, pixel: float) -> jax.Array:
    """Encode boxes as offsets `[..., 4]` from prior boxes; the shapes broadcast."""
    box, near = center_form(boxes, pixel), center_form(prior, pixel)
    place = (box.x - near.x) / near.width, (box.y - near.y) / near.height
    size = jnp.log(box.width / near.width), jnp.log(box.height / near.height)
    return jnp.stack([*place, *size], axis=-1) / variance


def decode(offsets: jax.Array, prior: jax.Array, variance: jax.Array, pixel: float) -> jax.Array:
    """Decode offsets from prior boxes as boxes `[..., 4]`; the shapes broadcast."""
    near = center_form(prior, pixel)
    (x, y, width, height) = jnp.moveaxis(offsets * variance, -1, 0)
    centre = x * near.width + near.x, y * near.height + near.y
    return corner_form(CenterForm(*centre, jnp.exp(width) * near.width, jnp.exp(height) * near.height), pixel)


def _to_decode(this: Layer, prior_box: core.Value, target_box: core.Value, axis: int) -> tuple[jax.Array, Any, Any]:
    """Return prior boxes `[n, 4]`, offsets `[rows, n or any, 4]`, and a function that restores a result's lengths."""
    if axis == 1:
        (_, offsets), restore = as_rows(this, prior_box, target_box)
    else:
        (offsets,), restore = as_rows(this, target_box)
    prior = boxes_of(this, prior_box, "prior_box", 2)
    prior = prior.reshape(-1, 4) if is_sequence(prior_box) else prior
    count = prior.shape[0]
    wanted = (count, -1, 4) if axis == 1 else (-1, count, 4)
    if (
        prior.ndim != 2
        or offsets.ndim != 3
        or any(w not in (-1, d) for w, d in zip(wanted, offsets.shape, strict=True))
    ):
        raise errors.ShapeError(
            f"{this.name}: prior_box {describe(prior_box)} and target_box {describe(target_box)} do not fit; expected "
            f"[priors, 4] and [batch, priors, 4], or with axis=1 [boxes, 4] and [boxes, n, 4]"
        )
    return prior, wide(offsets), restore


def variance_of(this: Layer, value: Variance, prior: jax.Array) -> jax.Array:
    """Return variances as an array, `[4]` or, in the shape of the prior boxes, `[priors, 4]`.

    Raises:
      ShapeError: the variances have another shape.
    """
    if value is None:
        return jnp.ones(4, prior.dtype)
    array = jnp.asarray(value, prior.dtype) if isinstance(value, Sequence) else exact(value)
    array = array.reshape(-1, 4) if is_sequence(value) and array.shape[-1] == 4 else array
    if array.shape not in ((4,), prior.shape):
        raise errors.ShapeError(
            f"{this.name}: prior_box_var {np.shape(array)} for prior boxes {list(prior.shape)}; expected four numbers, "
            f"or four for each of them, as in prior_box_var=[0.1, 0.1, 0.2, 0.2]"
        )
    return array
