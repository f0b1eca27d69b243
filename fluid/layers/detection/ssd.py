"""SSD (Liu et al., 2016): the head that predicts boxes, and the decoding of predictions."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, describe, layer
from fluid.layers.detection.box import boxes_of, exact_array
from fluid.layers.detection.coder import Variance, decode, variance_of
from fluid.layers.detection.prior import prior_box
from fluid.layers.detection.suppression import candidates, count_of, detections, nms
from fluid.layers.image.conv import conv2d
from fluid.layers.image.spatial import image_of


@layer
def multi_box_head(
    inputs: Sequence[core.Value],
    image: core.Value,
    base_size: int,
    num_classes: int,
    aspect_ratios: Sequence[Any],
    min_ratio: int | None = None,
    max_ratio: int | None = None,
    min_sizes: Sequence[Any] | None = None,
    max_sizes: Sequence[Any] | None = None,
    steps: Sequence[float] | None = None,
    step_w: Sequence[float] | None = None,
    step_h: Sequence[float] | None = None,
    offset: float = 0.5,
    variance: Sequence[float] = (0.1, 0.1, 0.2, 0.2),
    flip: bool = True,
    clip: bool = False,
    kernel_size: Any = 1,
    pad: Any = 0,
    stride: Any = 1,
    name: str | None = None,
    min_max_aspect_ratios_order: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Build the head of SSD: on each feature map, prior boxes, and two convolutions for their offsets and classes.

    Args:
      inputs: a list of feature maps `[batch, channels, height, width]`, the finest first.
      image: the image, `[batch, channels, height, width]`; only the size is used.
      base_size: the size of the image in pixels; `min_ratio` and `max_ratio` are percentages of it.
      num_classes: the number of classes, including the background.
      aspect_ratios: a list of the `aspect_ratios` of `prior_box` for each feature map.
      min_ratio: without `min_sizes` and `max_sizes`, the size of boxes on the second feature map, in percent. The boxes
        on the first feature map then have sizes from 10 to 20 percent.
      max_ratio: the largest size of boxes, in percent; from feature map to feature map, sizes grow in equal steps.
      min_sizes: a list of the `min_sizes` of `prior_box` for each feature map.
      max_sizes: a list of the `max_sizes` of `prior_box` for each feature map.
      steps: a list of the `steps` of `prior_box` for each feature map, one number for width and height.
      step_w: a list of the steps along the width for each feature map, if `steps` is not given.
      step_h: a list of the steps along the height for each feature map, if `steps` is not given.
      offset: see `prior_box`.
      variance: see `prior_box`.
      flip: see `prior_box`.
      clip: see `prior_box`.
      kernel_size: the filter size of the convolutions.
      pad: the padding of the convolutions. Their results must have the size of the feature map.
      stride: the stride of the convolutions.
      name: the name of all convolutions, instead of `conv2d_N`.
      min_max_aspect_ratios_order: see `prior_box`.

    Returns:
      Offsets `[batch, priors, 4]`, logits of the classes `[batch, priors, num_classes]`, prior boxes `[priors, 4]` and
      their variances `[priors, 4]`, each concatenated from all feature maps.

    Raises:
      ArgumentError: sizes, ratios or steps are missing, or a list does not have one entry for each feature map.
      ShapeError: a feature map does not have four dimensions, or the convolutions change its size.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 32, 32])
      ...     fine = fluid.layers.conv2d(image, num_filters=8, filter_size=3, stride=4, padding=1)
      ...     coarse = fluid.layers.conv2d(fine, num_filters=8, filter_size=3, stride=2, padding=1)
      ...     return fluid.layers.multi_box_head(
      ...         [fine, coarse], image, base_size=32, num_classes=3, aspect_ratios=[[2.0], [2.0]],
      ...         min_sizes=[6.0, 12.0], max_sizes=[12.0, 24.0])
      >>> print(*fluid.Program(program).outputs)
      float32[batch, 320, 4] float32[batch, 320, 3] float32[320, 4] float32[320, 4]
    """
    this = Layer("multi_box_head", name)
    maps: list[Any] = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    if min_sizes is None and max_sizes is None and len(maps) > 2:
        min_sizes, max_sizes = _sizes(this, len(maps), base_size, min_ratio, max_ratio)
    small, large = _for_each(this, "min_sizes", min_sizes, maps), _for_each(this, "max_sizes", max_sizes, maps, ())
    ratios = _for_each(this, "aspect_ratios", aspect_ratios, maps)
    across = _for_each(this, "step_w", step_w if steps is None else steps, maps, 0.0)
    down = _for_each(this, "step_h", step_h if steps is None else steps, maps, 0.0)
    for features in maps:
        image_of(this, features, 4, "NCHW")
    parts: list[tuple[Any, ...]] = []
    for i, features in enumerate(maps):
        boxes, variances = prior_box(
            features, image, small[i], _listed(large[i]), ratios[i], variance, flip, clip, [across[i], down[i]], offset,
            name, min_max_aspect_ratios_order,
        )  # fmt: skip
        predicted = [
            _predicted(this, features, boxes, conv2d(features, boxes.shape[2] * k, kernel_size, stride, pad, name=name))
            for k in (4, num_classes)
        ]
        parts.append((*predicted, boxes.reshape(-1, 4), variances.reshape(-1, 4)))
    joined = [jnp.concatenate(same, axis=-2) for same in zip(*parts, strict=True)]
    offsets, logits, boxes, variances = (this.output(value) for value in joined)
    return offsets, logits, boxes, variances


@layer
def detection_output(
    loc: core.Value,
    scores: core.Value,
    prior_box: core.Value,
    prior_box_var: Variance,
    background_label: int = 0,
    nms_threshold: float = 0.3,
    nms_top_k: int = 400,
    keep_top_k: int = 200,
    score_threshold: float = 0.01,
    nms_eta: float = 1.0,
    return_index: bool = False,
    name: str | None = None,
) -> Any:
    """Detect objects from SSD's predictions: decode offsets, apply softmax to logits, and apply `multiclass_nms`.

    Args:
      loc: predicted offsets from the prior boxes, `[batch, priors, 4]`.
      scores: logits of the classes, `[batch, priors, classes]`.
      prior_box: normalized prior boxes `[priors, 4]`.
      prior_box_var: variances `[priors, 4]`, four numbers for all prior boxes, or None for ones.
      background_label: the class of the background, which is ignored; -1 if there is none.
      nms_threshold: see `multiclass_nms`.
      nms_top_k: see `multiclass_nms`.
      keep_top_k: see `multiclass_nms`.
      score_threshold: see `multiclass_nms`.
      nms_eta: see `multiclass_nms`.
      return_index: whether to return the index of the prior box of each row too.
      name: name of the layer; by default `detection_output_N`.

    Returns:
      `[label, probability, x1, y1, x2, y2]` of each object, as a SequenceBatch `[batch, keep_top_k, 6]`, ordered by
      class and then by probability. With `return_index` also a SequenceBatch of int32 `[batch, keep_top_k, 1]`: the
      index of the prior box, plus the number of prior boxes times the index of the image. Both have no gradient.

    Raises:
      ArgumentError: `nms_top_k` or `keep_top_k` is neither positive nor -1.
      ShapeError: the shapes do not fit together.

    Example:
      >>> import fluid
      >>> def program():
      ...     offsets, logits = fluid.layers.data("offsets", shape=[80, 4]), fluid.layers.data("logits", shape=[80, 3])
      ...     prior = fluid.layers.data("prior", shape=[80, 4], append_batch_size=False)
      ...     return fluid.layers.detection_output(offsets, logits, prior, [0.1, 0.1, 0.2, 0.2], keep_top_k=20)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 20, 6]
    """
    this = Layer("detection_output", name)
    core.expect("logits", "layers.detection_output", scores, "leave out that activation, the layer computes a softmax")
    prior = boxes_of(this, exact_array(this, prior_box), "prior_box", 2)
    offsets = exact_array(this, loc)
    if offsets.ndim != 3 or offsets.shape[1:] != prior.shape:
        raise errors.ShapeError(
            f"{this.name}: loc {describe(loc)} for {len(prior)} prior boxes; expected [batch, {len(prior)}, 4], as "
            f"from layers.multi_box_head"
        )
    boxes = decode(offsets, prior, variance_of(this, prior_box_var, prior), 0.0)
    chances = jnp.swapaxes(jax.nn.softmax(exact_array(this, scores), axis=-1), 1, 2)
    keep = count_of(this, "keep_top_k", keep_top_k)
    found = candidates(this, boxes, chances, score_threshold, nms_top_k, background_label)
    left = nms(found.boxes, found.scores > -jnp.inf, keep, nms_threshold, nms_eta, 0.0)
    rows, places = detections(found, jnp.where(left, found.scores, -jnp.inf), keep)
    rows = this.output(rows)
    if not return_index:
        return rows
    first = boxes.shape[1] * jnp.arange(boxes.shape[0], dtype=jnp.int32)[:, None, None]
    return rows, this.output(places.with_data(jnp.where(places.mask[..., None], places.data + first, 0)))


def _predicted(this: Layer, features: core.Value, boxes: jax.Array, result: jax.Array) -> jax.Array:
    """Reshape a convolution's result `[batch, boxes * k, height, width]` to `[batch, height * width * boxes, k]`.

    Raises:
      ShapeError: the convolution changed the size of the feature map.
    """
    if result.shape[2:] != boxes.shape[:2]:
        raise errors.ShapeError(
            f"{this.name}: the convolutions turn {describe(features)} into {list(result.shape[2:])} pixels, and there "
            f"are prior boxes for each pixel of the input; use stride=1, and pad=1 for kernel_size=3"
        )
    count = math.prod(boxes.shape[:3])
    return jnp.moveaxis(result, 1, -1).reshape(result.shape[0], count, -1)


def _sizes(this: Layer, count: int, base: int, least: int | None, most: int | None) -> tuple[list[float], list[float]]:
    """Compute `min_sizes` and `max_sizes` for each feature map from percentages of the size of the image.

    Raises:
      ArgumentError: a percentage is missing, or both are too close for the number of feature maps.
    """
    if least is None or most is None or not most - least >= count - 2:
        raise errors.ArgumentError(
            f"{this.name}: min_ratio={least!r}, max_ratio={most!r} for {count} feature maps without sizes; expected "
            f"two percentages, as in min_ratio=20, max_ratio=90, or min_sizes= and max_sizes="
        )
    step = int(math.floor((most - least) / (count - 2)))
    ratios = [10, *range(least, most + 1, step)][: count + 1]
    return [base * r / 100 for r in ratios], [base * 0.2, *(base * (r + step) / 100 for r in ratios[1:])]


def _for_each(this: Layer, argument: str, value: Any, maps: list[Any], default: Any = None) -> list[Any]:
    """Check that a value is a list with one entry for each feature map, and return it.

    Raises:
      ArgumentError: the value is no list, or is too short.
    """
    if value is None and default is not None:
        return [default] * len(maps)
    if not isinstance(value, list | tuple) or len(value) < len(maps):
        raise errors.ArgumentError(
            f"{this.name}: {argument}={value!r}; expected a list of {len(maps)}, one for each feature map"
        )
    return list(value)


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple | np.ndarray) else [value]
