"""Fully connected layers: Fluid's `fc`, which flattens its input, and `dense`, which maps the last axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fluid import core, errors
from fluid.core import Value
from fluid.layers import base
from fluid.layers.base import Layer, describe, is_sequence, layer, like, row_dims
from fluid.layers.functional import Activation
from fluid.layers.kernels.lookup_table import plus, times_matrix
from fluid.layers.no_effect import no_effect
from fluid.param_attr import ParamSetting

_ROWS_ONLY = core.default(1)


@layer
@no_effect(is_test="this layer is the same when training and testing", use_mkldnn="XLA chooses the kernels")
def fc(
    input: Value | Sequence[Value],
    size: int,
    num_flatten_dims: int = _ROWS_ONLY,
    param_attr: ParamSetting | Sequence[ParamSetting] = None,
    bias_attr: ParamSetting = None,
    act: Activation = None,
    name: str | None = None,
    is_test: bool = False,
    use_mkldnn: bool = False,
) -> Any:
    """Apply a fully connected layer: `act(sum_i input_i @ weight_i + bias)`.

    Args:
      input: `[batch, ..., in]`; a SequenceBatch, whose steps are mapped one by one; or a list or tuple of several
        inputs, whose results are summed.
      size: the number of outputs.
      num_flatten_dims: the number of leading dimensions to keep; the others are flattened to one. Negative counts from
        the end. The default, 1, also flattens `[batch, time, features]`, with a warning; to map only the last axis, use
        `dense`.
      param_attr: ParamAttr of the weights `[in, size]`, or a list with one for each input.
      bias_attr: ParamAttr of the bias `[size]`; False for none.
      act: name of an activation, or a function.
      name: name of the layer; by default `fc_N`.
      is_test: accepted for programs written for Fluid, but has no effect: this layer is the same when training and
        testing.
      use_mkldnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.

    Returns:
      `[batch, size]`, or `[*leading, size]` where `num_flatten_dims` keeps more leading dimensions.

    Raises:
      ArgumentError: `size` is not a positive integer, or there is not one `param_attr` for each input.
      ShapeError: an input has too few dimensions, or the inputs differ in the dimensions that are kept.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[1, 3, 4])
      ...     return fluid.layers.fc(image, size=2, act="relu")
      >>> fluid.Program(program).parameters["fc_0.w_0"].shape
      (12, 2)
    """
    core.whole_number("fc", "size", size)
    this = Layer("fc", name)
    inputs = list(input) if isinstance(input, list | tuple) else [input]
    attrs: list[Any] = list(param_attr) if isinstance(param_attr, list | tuple) else [param_attr] * len(inputs)
    if len(attrs) != len(inputs) or not inputs:
        raise errors.ArgumentError(f"fc has {len(inputs)} inputs and {len(attrs)} param_attr; give one for each input")
    products = [_project(this, x, size, num_flatten_dims, a) for x, a in zip(inputs, attrs, strict=True)]
    total = products[0] if len(products) == 1 else this.output(_sum(products))
    return this.activate(_with_bias(this, total, bias_attr), act)


@layer
def dense(
    x: Value,
    size: int,
    act: Activation = None,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    name: str | None = None,
) -> Any:
    """Apply a linear map to the last axis: `act(x @ weight + bias)`.

    All other dimensions stay unchanged, while `fc` flattens them.

    Args:
      x: `[batch, ..., in]`, or a SequenceBatch of steps `[..., in]`.
      size: the number of outputs.
      act: name of an activation, or a function.
      param_attr: ParamAttr of the weight `[in, size]`.
      bias_attr: ParamAttr of the bias `[size]`; False for none.
      name: name of the layer; by default `dense_N`.

    Returns:
      `[batch, ..., size]`, of the type of `x` (array or SequenceBatch).

    Raises:
      ArgumentError: `size` is not a positive integer.
      ArgumentTypeError: `x` is a list of values.
      ShapeError: `x` has no dimension after its rows.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[5, 8])
      ...     return fluid.layers.dense(x, size=2, act="relu")
      >>> p = fluid.Program(program)
      >>> print(p.outputs[0], p.parameters["dense_0.w_0"].shape)
      float32[batch, 5, 2] (8, 2)
    """
    core.whole_number("dense", "size", size)
    this = Layer("dense", name)
    if isinstance(x, list | tuple | int):
        found = f"the number {x}" if isinstance(x, int) else f"a list of {len(x)}"
        raise errors.ArgumentTypeError(
            f"{this.name}: x is {found}, expected one value of the program, as in layers.dense(x, size={size}), which "
            f"finds the number of inputs by itself; join several first: layers.concat([a, b], axis=-1)"
        )
    if base.dense(x).ndim <= row_dims(x):
        raise errors.ShapeError(
            f"{this.name}: input {describe(x)} has no features; expected [batch, ..., features], as from "
            f"layers.unsqueeze(x, [-1])"
        )
    return this.activate(_with_bias(this, _project(this, x, size, -1, param_attr), bias_attr), act)


def _with_bias(this: Layer, total: Any, bias_attr: ParamSetting) -> Any:
    """Create a bias, and return a value `[..., size]` plus the bias; if `bias_attr` is False, return the value."""
    array = base.dense(total)
    bias = this.bias(bias_attr, [array.shape[-1]], array.dtype)
    if bias is not None:
        total = this.output(like(total, plus(array, bias)))
    this.frame.note(total, made="product")
    return total


def _project(this: Layer, value: Any, size: int, num_flatten_dims: int, attr: ParamSetting) -> Any:
    """Create a weight, flatten an input to `[*leading, in]`, and return their product, `[*leading, size]`.

    `num_flatten_dims` is the number of leading dimensions to keep, as in `fc`.
    """
    x = base.dense(value)
    # `keep` is the number of dimensions to keep. In a sequence batch, `num_flatten_dims` counts batch and time as one
    # dimension, but `keep` counts two dimensions.
    keep = num_flatten_dims + row_dims(value) - 1 if num_flatten_dims > 0 else x.ndim + num_flatten_dims
    if not row_dims(value) <= keep < x.ndim:
        if isinstance(value, int):
            raise errors.ArgumentTypeError(
                f"{this.name}: input is the number {value}, expected a value of the program; the number of inputs is "
                f"found by itself: layers.fc(x, size={size})"
            )
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} cannot keep {num_flatten_dims} leading dimensions and flatten the "
            f"rest; expected at least two dimensions, [batch, features]"
        )
    if 0 in x.shape[keep:]:
        raise errors.ShapeError(
            f"{this.name}: input {describe(value)} has no numbers to map; a slice that begins at the end of a "
            f"dimension is empty, as x[:, 4:5] of 4 columns, of which the last is x[:, 3:4]"
        )
    if core.is_default(num_flatten_dims) and row_dims(value) == 1 and x.ndim == 3 and x.shape[1] > 1:
        time, features = x.shape[1:]
        core.doubt_reading(
            f"{this.name} flattens {describe(value)} to rows of {time} x {features} = {time * features} numbers, time "
            f"too. To map the features of each step, write layers.dense(x, size={size}), or num_flatten_dims=2; if "
            f"flattening is meant, num_flatten_dims=1"
        )
    weight = this.weight(attr, [math.prod(x.shape[keep:]), size], x.dtype)
    rows = x if keep == x.ndim - 1 else x.reshape(*x.shape[:keep], -1)
    return this.output(like(value, times_matrix(rows, weight)))


def _sum(values: Sequence[Any]) -> Any:
    """Add values `[*leading, size]`; the sum is a sequence batch if one of the values is a sequence batch."""
    arrays = [base.dense(v) for v in values]
    shapes = {a.shape[:-1] for a in arrays}
    if len(shapes) > 1:
        raise errors.ShapeError(
            f"the inputs of fc are projected to {' and '.join(describe(v) for v in values)}, which cannot be added; "
            f"all but the last dimension must agree"
        )
    total = sum(arrays[1:]) + arrays[0]
    batch = next((v for v in values if is_sequence(v)), None)
    return total if batch is None else batch.with_data(total)
