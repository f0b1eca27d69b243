"""`center_loss`: a loss that draws the features of each class together."""

import jax
import jax.numpy as jnp

from fluid import core, errors
from fluid.initializer import Xavier
from fluid.layers.base import Layer, array_of, dense, describe, layer, wide
from fluid.layers.checks import check_ids
from fluid.param_attr import ParamSetting, to_attr


@layer
def center_loss(
    input: core.Value,
    label: core.Value,
    num_classes: int,
    alpha: core.Value | float,
    param_attr: ParamSetting = None,
    update_center: bool = True,
    name: str | None = None,
) -> jax.Array:
    """Compute half the squared distance of features from the center of their class: center loss (Wen et al., 2016).

    The centers are a state, which no optimizer changes. In a training step the center `c` of each class moves by
    `alpha * sum(x - c) / (1 + n)`, over the `n` rows `x` of this class.

    Args:
      input: features `[batch, width]`.
      label: classes `[batch, 1]` of an integer dtype.
      num_classes: the number of classes.
      alpha: the rate at which the centers move, a number or a value of one element.
      param_attr: ParamAttr of the centers `[num_classes, width]`; only its name and its initializer have an effect.
      update_center: whether training steps move the centers.
      name: name of the layer; by default `center_loss_N`.

    Returns:
      `[batch, 1]`.

    Raises:
      ArgumentError: `num_classes` is not positive, or `param_attr` is False.
      ArgumentTypeError: labels are no integers.
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
