"""Classification losses other than cross entropy (ranking, Dice, distillation, focal, center); label smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.core import Value
from fluid.initializer import Xavier
from fluid.layers.base import Layer, array_of, as_rows, dense, describe, layer, like, wide
from fluid.layers.checks import check_ids, check_same_shape, dtype_of
from fluid.param_attr import ParamSetting, to_attr


@layer
def bpr_loss(input: Value, label: Value, name: str | None = None) -> Any:
    """Compute the Bayesian personalised ranking loss of the right class against all others (Hidasi et al., 2016).

    Args:
      input: scores `[batch, classes]`, or a SequenceBatch of steps `[classes]`.
      label: classes `[batch, 1]` of an integer dtype, or a SequenceBatch of them.
      name: name of the layer; by default `bpr_loss_N`.

    Returns:
      `[batch, 1]`: the mean of `log(1 + exp(score_of_other - score_of_right))` over the other classes.

    Raises:
      ArgumentTypeError: the labels are not integers.
      ShapeError: labels do not fit the input, or there is only one class.

    Example:
      >>> import fluid
      >>> def program():
      ...     scores = fluid.layers.data("scores", shape=[5])
      ...     return fluid.layers.bpr_loss(scores, fluid.layers.data("label", shape=[1], dtype="int64"))
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("bpr_loss", name)
    (given, labels), back = as_rows(this, input, label)
    scores = wide(given)
    classes = _column(this, given, labels)
    if scores.shape[-1] < 2:
        raise errors.ShapeError(f"{this.name}: input {describe(input)} has only one class; expected two or more")
    core.limit_feed(label, 0, scores.shape[-1])
    core.expect("scores", "layers.bpr_loss", input, "leave out that activation: fc(x, size=classes) makes scores")
    right = jnp.take_along_axis(scores, classes, axis=1)
    behind = jax.nn.softplus(scores - right)
    others = jnp.arange(scores.shape[-1])[None, :] != classes
    return this.output(back(jnp.sum(behind, axis=1, keepdims=True, where=others) / (scores.shape[-1] - 1)))


@layer
def dice_loss(input: Value, label: Value, epsilon: float = 1e-5, name: str | None = None) -> jax.Array:
    """Compute 1 minus the Dice coefficient of overlap, averaged over images (Milletari, Navab and Ahmadi, 2016).

    Args:
      input: probabilities `[batch, ..., classes]`.
      label: classes `[batch, ..., 1]` of an integer dtype.
      epsilon: added to the divisor, to keep it away from 0.
      name: name of the layer; by default `dice_loss_N`.

    Returns:
      A scalar, `[]`.

    Raises:
      ArgumentTypeError: the labels are not integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     p = fluid.layers.data("p", shape=[8, 8, 2])
      ...     return fluid.layers.dice_loss(p, fluid.layers.data("label", shape=[8, 8, 1], dtype="int64"))
      >>> print(fluid.Program(program).outputs[0])
      float32[]
    """
    this = Layer("dice_loss", name)
    p = wide(array_of(this, input))
    classes = check_ids(this.name, array_of(this, label))
    if classes.shape != (*p.shape[:-1], 1):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected one class in the "
            f"place of the {p.shape[-1]} probabilities, [batch, ..., 1]"
        )
    core.limit_feed(label, 0, p.shape[-1])
    core.expect("probabilities", "layers.dice_loss", input, "write layers.dice_loss(layers.softmax(x), label)")
    truth = jax.nn.one_hot(classes[..., 0], p.shape[-1], dtype=p.dtype)
    axes = tuple(range(1, p.ndim))
    overlap = jnp.sum(p * truth, axes)
    total = jnp.sum(p, axes) + jnp.sum(truth, axes)
    result = this.output(jnp.mean(1 - 2 * overlap / (total + epsilon)))
    this.frame.note(result, weight=p.shape[0])
    return result


@layer
def label_smooth(
    label: Value,
    prior_dist: Value | Sequence[float] | None = None,
    epsilon: float = 0.1,
    dtype: str = "float32",
    name: str | None = None,
) -> Any:
    """Smooth labels with a prior (Szegedy et al., 2015): `(1 - epsilon) * label + epsilon * prior`.

    Args:
      label: probabilities of classes `[batch, ..., classes]`, such as from `one_hot`.
      prior_dist: the prior distribution, probabilities `[1, classes]`; uniform by default.
      epsilon: the weight of the prior.
      dtype: the dtype of the result.
      name: name of the layer; by default `label_smooth_N`.

    Returns:
      A value of the same type and shape as `label`.

    Raises:
      ArgumentError: `epsilon` is not between 0 and 1, or the dtype does not exist.

    Example:
      >>> import fluid
      >>> def program():
      ...     label = fluid.layers.data("label", shape=[1], dtype="int64")
      ...     return fluid.layers.label_smooth(fluid.layers.one_hot(label, 10), epsilon=0.1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 10]
    """
    this = Layer("label_smooth", name)
    if not 0 <= epsilon <= 1:
        raise errors.ArgumentError(f"{this.name}: epsilon={epsilon!r}; expected 0 to 1, as in epsilon=0.1")
    if epsilon == 1:
        core.doubt(
            f"{this.name}: epsilon=1 replaces the labels by the prior, so that they are not learnt; it is the share of "
            f"the prior, as in epsilon=0.1"
        )
    target = dense(label).astype(dtype_of("label_smooth", dtype))
    prior = 1.0 / target.shape[-1] if prior_dist is None else dense(prior_dist).reshape(-1)
    return this.output(like(label, ((1 - epsilon) * target + epsilon * prior).astype(target.dtype)))


@layer
def teacher_student_sigmoid_loss(
    input: Value,
    label: Value,
    soft_max_up_bound: float = 15.0,
    soft_max_lower_bound: float = -15.0,
    name: str | None = None,
) -> Any:
    """Compute the loss of predicted clicks against both the click and the score of a teacher, for distillation.

    The label encodes the click and the score. Without a teacher it is -2 for no click and -1 for a click; with the
    score `z` of a teacher, from 0 to 1, it is `z` for no click and `1 + z` for a click.

    Args:
      input: logits `[batch, 1]`.
      label: `[batch, 1]`, encoded as described above.
      soft_max_up_bound: logits at or above this bound receive no gradient. The value of the loss is not clipped.
      soft_max_lower_bound: logits at or below this bound receive no gradient.
      name: name of the layer; by default `teacher_student_sigmoid_loss_N`.

    Returns:
      `[batch, 1]`.

    Raises:
      ShapeError: the shapes differ.

    Example:
      >>> import fluid
      >>> def program():
      ...     x, label = fluid.layers.data("x", shape=[1]), fluid.layers.data("label", shape=[1])
      ...     return fluid.layers.teacher_student_sigmoid_loss(x, label)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 1]
    """
    this = Layer("teacher_student_sigmoid_loss", name)
    check_same_shape(this, input, label)
    logits = wide(input)
    instead = "leave out that activation: fc(x, size=1) makes logits"
    core.expect("logits", "layers.teacher_student_sigmoid_loss", input, instead)
    within = (logits > soft_max_lower_bound) & (logits < soft_max_up_bound)
    x = jnp.where(within, logits, jax.lax.stop_gradient(logits))
    target = wide(label)
    clicked = ((target >= -1) & (target < 0)) | (target >= 1)
    taught = target >= 0
    teacher = jnp.where(target >= 1, target - 1, target)
    click_loss = jax.nn.softplus(x) - jnp.where(clicked, x, 0)
    teacher_loss = jax.nn.softplus(x) - x * teacher
    return this.output(like(input, click_loss + jnp.where(taught, teacher_loss, 0)))


@layer
def sigmoid_focal_loss(
    x: Value,
    label: Value,
    fg_num: Value,
    gamma: float = 2.0,
    alpha: float = 0.25,
    name: str | None = None,
) -> jax.Array:
    """Compute the focal loss, a cross entropy that gives well-classified examples little weight (Lin et al., 2017).

    Args:
      x: logits `[batch, classes]`.
      label: classes `[batch, 1]` of an integer dtype, counted from 1; 0 is background, and rows with label -1 have loss
        0.
      fg_num: the number of foreground examples, `[1]`, by which the loss is divided.
      gamma: the exponent; a larger one gives well-classified examples less weight.
      alpha: the weight of the foreground, between 0 and 1; the background has the weight `1 - alpha`.
      name: name of the layer; by default `sigmoid_focal_loss_N`.

    Returns:
      `[batch, classes]`.

    Raises:
      ArgumentTypeError: the labels are not integers.
      ShapeError: labels do not fit the logits.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[3])
      ...     label = fluid.layers.data("label", shape=[1], dtype="int64")
      ...     count = fluid.layers.data("count", shape=[1], dtype="int32", append_batch_size=False)
      ...     return fluid.layers.sigmoid_focal_loss(x, label, count)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    this = Layer("sigmoid_focal_loss", name)
    logits = wide(x)
    classes = _column(this, x, label)
    core.limit_feed(label, 0, logits.shape[1] + 1, also=-1)
    instead = "leave out that activation: fc(x, size=classes) makes logits"
    core.expect("logits", "layers.sigmoid_focal_loss", x, instead)
    count = jnp.maximum(dense(fg_num).reshape(()), 1).astype(logits.dtype)
    own = classes == jnp.arange(1, logits.shape[1] + 1)[None, :]
    p = jax.nn.sigmoid(logits)
    hit = -alpha * (1 - p) ** gamma * jax.nn.log_sigmoid(logits)
    miss = -(1 - alpha) * p**gamma * jax.nn.log_sigmoid(-logits)
    return this.output(jnp.where(classes == -1, 0, jnp.where(own, hit, miss)) / count)


def _column(this: Layer, value: Value, label: Value) -> Any:
    """Return labels as integers `[batch, 1]` after checking that they fit an input `[batch, classes]`."""
    classes = check_ids(this.name, array_of(this, label))
    if array_of(this, value).ndim != 2 or classes.shape not in ((dense(value).shape[0], 1), (dense(value).shape[0],)):
        raise errors.ShapeError(
            f"{this.name}: {describe(value)} and label {describe(label)} do not fit; expected [batch, classes] and "
            f'[batch, 1], as from layers.data("label", shape=[1], dtype="int64")'
        )
    return classes.reshape(-1, 1)


@layer
def center_loss(
    input: Value,
    label: Value,
    num_classes: int,
    alpha: Value | float,
    param_attr: ParamSetting = None,
    update_center: bool = True,
    name: str | None = None,
) -> jax.Array:
    """Compute half the squared distance of features from the center of their class: center loss (Wen et al., 2016).

    The centers are a state of the program, which no optimizer changes. In a training step, the center `c` of each class
    moves by `alpha * sum(x - c) / (1 + n)`, over the `n` rows `x` of this class.

    Args:
      input: features `[batch, width]`.
      label: classes `[batch, 1]` of an integer dtype.
      num_classes: the number of classes.
      alpha: the learning rate of the centers, as in the formula above: a number or a value of one element.
      param_attr: ParamAttr of the centers `[num_classes, width]`; only its name and its initializer have an effect.
      update_center: whether training steps move the centers.
      name: name of the layer; by default `center_loss_N`.

    Returns:
      `[batch, 1]`.

    Raises:
      ArgumentError: `num_classes` is not positive, or `param_attr` is False.
      ArgumentTypeError: the labels are not integers.
      ShapeError: labels do not fit the input.

    Example:
      >>> import fluid
      >>> def program():
      ...     features = fluid.layers.fc(fluid.layers.data("x", shape=[8]), size=4)
      ...     label = fluid.layers.data("label", shape=[1], dtype="int64")
      ...     return fluid.layers.center_loss(features, label, num_classes=10, alpha=0.1, param_attr="centers")
      >>> p = fluid.Program(program)
      >>> print(p.outputs[0], p.states["centers"].shape)
      float32[batch, 1] (10, 4)
    """
    this = Layer("center_loss", name)
    x = wide(array_of(this, input))
    classes = check_ids(this.name, array_of(this, label), "label")
    if x.ndim != 2 or classes.shape not in ((x.shape[0], 1), (x.shape[0],)):
        raise errors.ShapeError(
            f"{this.name}: input {describe(input)} and label {describe(label)} do not fit; expected [batch, width] and "
            f'[batch, 1], as from layers.data("label", shape=[1], dtype="int64")'
        )
    count = core.whole_number(this.name, "num_classes", num_classes)
    core.limit_feed(label, 0, count)
    settings = to_attr(param_attr)
    if settings is None:
        raise errors.ArgumentError(f"{this.name} cannot do without its centers; param_attr=False is not possible")
    start = settings.initializer or Xavier()
    centers_name, centers = this.state(settings.name, "w", [count, x.shape[1]], x.dtype, start)
    rows = classes.reshape(-1)
    difference = x - centers[rows]
    if update_center:
        fixed = jax.lax.stop_gradient(difference)
        total = jnp.zeros_like(centers).at[rows].add(fixed)
        often = jnp.zeros(count, centers.dtype).at[rows].add(1)
        rate = alpha if isinstance(alpha, int | float) else dense(alpha).reshape(())
        core.set_state(centers_name, centers + rate * total / (1 + often)[:, None])
    return this.output(0.5 * jnp.sum(jnp.square(difference), axis=1, keepdims=True))
