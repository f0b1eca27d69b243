"""Compositions of layers that occur in many models."""

from typing import Any

from fluid import errors, layers
from fluid.layers.base import layer


@layer
def simple_img_conv_pool(
    input: Any,
    num_filters: int,
    filter_size: Any,
    pool_size: Any,
    pool_stride: Any,
    pool_padding: Any = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Any = 1,
    conv_padding: Any = 0,
    conv_dilation: Any = 1,
    conv_groups: int | None = 1,
    param_attr: Any = None,
    bias_attr: Any = None,
    act: Any = None,
    use_cudnn: bool = True,
    name: str | None = None,
) -> Any:
    """A convolution and a pooling, as in LeNet-5 (LeCun et al., 1998).

    Args:
      input: `[batch, channels, height, width]`.
      num_filters: of the convolution.
      filter_size: of the convolution.
      pool_size: of the pooling.
      pool_stride: of the pooling.
      pool_padding: of the pooling.
      pool_type: "max" or "avg".
      global_pooling: whether one window covers the whole image.
      conv_stride: of the convolution.
      conv_padding: of the convolution.
      conv_dilation: of the convolution.
      conv_groups: of the convolution.
      param_attr: ParamAttr of the filters.
      bias_attr: ParamAttr of the bias; False for none.
      act: activation of the convolution.
      use_cudnn: has no effect.
      name: of both layers, instead of `conv2d_N` and `pool2d_N`.

    Returns:
      `[batch, num_filters, height', width']`.

    Raises:
      ShapeError: as `layers.conv2d` and `layers.pool2d`.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[1, 28, 28])
      ...     return fluid.nets.simple_img_conv_pool(
      ...         image, num_filters=20, filter_size=5, pool_size=2, pool_stride=2, act="relu")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 20, 12, 12]
    """
    hidden = layers.conv2d(
        input,
        num_filters,
        filter_size,
        stride=conv_stride,
        padding=conv_padding,
        dilation=conv_dilation,
        groups=conv_groups,
        param_attr=param_attr,
        bias_attr=bias_attr,
        act=act,
        name=name,
    )
    return layers.pool2d(hidden, pool_size, pool_type, pool_stride, pool_padding, global_pooling, name=name)


@layer
def img_conv_group(
    input: Any,
    conv_num_filter: Any,
    pool_size: Any,
    conv_padding: Any = 1,
    conv_filter_size: Any = 3,
    conv_act: Any = None,
    param_attr: Any = None,
    conv_with_batchnorm: Any = False,
    conv_batchnorm_drop_rate: Any = 0.0,
    pool_stride: Any = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
    name: str | None = None,
) -> Any:
    """Several convolutions and one pooling, as in VGG (Simonyan and Zisserman, 2014).

    Each setting of the convolutions is one for all, or a list of one for each.

    Args:
      input: `[batch, channels, height, width]`.
      conv_num_filter: a list: filters of each convolution.
      pool_size: of the pooling.
      conv_padding: of the convolutions.
      conv_filter_size: of the convolutions.
      conv_act: activation, after the batch normalisation where there is one.
      param_attr: ParamAttr of the filters.
      conv_with_batchnorm: whether batch normalisation follows a convolution.
      conv_batchnorm_drop_rate: dropout after the batch normalisation.
      pool_stride: of the pooling.
      pool_type: "max" or "avg".
      use_cudnn: has no effect.
      name: of all layers, instead of `conv2d_N`, `batch_norm_N`, `pool2d_N`.

    Returns:
      `[batch, conv_num_filter[-1], height', width']`.

    Raises:
      ArgumentError: a list has not one setting for each convolution.
      ShapeError: as `layers.conv2d` and `layers.pool2d`.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 32, 32])
      ...     return fluid.nets.img_conv_group(
      ...         image, [64, 64], pool_size=2, pool_stride=2, conv_act="relu", conv_with_batchnorm=True)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 64, 16, 16]
    """
    if not isinstance(conv_num_filter, list | tuple) or not conv_num_filter:
        raise errors.ArgumentError(
            f"img_conv_group: conv_num_filter={conv_num_filter!r}; expected a list, as in [64, 64]"
        )
    count = len(conv_num_filter)
    settings = zip(
        conv_num_filter,
        _each("conv_filter_size", conv_filter_size, count),
        _each("conv_padding", conv_padding, count),
        _each("param_attr", param_attr, count),
        _each("conv_with_batchnorm", conv_with_batchnorm, count),
        _each("conv_batchnorm_drop_rate", conv_batchnorm_drop_rate, count),
        strict=True,
    )
    hidden = input
    for filters, size, padding, attr, normalise, drop_rate in settings:
        act = None if normalise else conv_act
        hidden = layers.conv2d(hidden, filters, size, padding=padding, param_attr=attr, act=act, name=name)
        if normalise:
            hidden = layers.batch_norm(hidden, act=conv_act, name=name)
            if drop_rate > 1e-5:
                hidden = layers.dropout(hidden, dropout_prob=drop_rate, name=name)
    return layers.pool2d(hidden, pool_size, pool_type, pool_stride, name=name)


def _each(argument: str, value: Any, count: int) -> list[Any]:
    values = list(value) if isinstance(value, list | tuple) else [value] * count
    if len(values) != count:
        raise errors.ArgumentError(
            f"img_conv_group: {argument}={value!r} has {len(values)} settings for {count} convolutions; "
            f"give one for each, or one for all"
        )
    return values
