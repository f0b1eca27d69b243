"""Nets: functions that combine several layers, as many models do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from fluid import core, errors, layers
from fluid._util.known_names import getattr_of
from fluid.core import Value
from fluid.layers.attention.attention import attend, dropper, merge_heads, split_heads, visible
from fluid.layers.base import Layer, dense, describe, layer, like, row_dims
from fluid.layers.checks import Sizes
from fluid.layers.functional import Activation
from fluid.layers.image.spatial import CHANNELS_FIRST, Padding
from fluid.layers.no_effect import no_effect
from fluid.param_attr import ParamSetting
from fluid.reader.data_frame import Table

__getattr__ = getattr_of(__name__)


@layer
@no_effect(use_cudnn="XLA chooses the kernels")
def simple_img_conv_pool(
    input: Value,
    num_filters: int,
    filter_size: Sizes,
    pool_size: Sizes,
    pool_stride: Sizes,
    pool_padding: Padding = 0,
    pool_type: str = "max",
    global_pooling: bool = False,
    conv_stride: Sizes = 1,
    conv_padding: Padding = 0,
    conv_dilation: Sizes = 1,
    conv_groups: int | None = 1,
    param_attr: ParamSetting = None,
    bias_attr: ParamSetting = None,
    act: Activation = None,
    use_cudnn: bool = True,
    name: str | None = None,
    data_format: str = CHANNELS_FIRST,
) -> jax.Array:
    """Apply a convolution and a pooling, as in LeNet-5 (LeCun et al., 1998).

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      num_filters: the number of filters of the convolution.
      filter_size: `filter_size` of `layers.conv2d`.
      pool_size: `pool_size` of `layers.pool2d`.
      pool_stride: `pool_stride` of `layers.pool2d`.
      pool_padding: `pool_padding` of `layers.pool2d`.
      pool_type: "max" or "avg".
      global_pooling: whether one window covers the whole image.
      conv_stride: `stride` of `layers.conv2d`.
      conv_padding: `padding` of `layers.conv2d`.
      conv_dilation: `dilation` of `layers.conv2d`.
      conv_groups: `groups` of `layers.conv2d`.
      param_attr: ParamAttr of the filters.
      bias_attr: ParamAttr of the bias; False for none.
      act: the activation between convolution and pooling: its name, or a function.
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      name: a name that both layers get, instead of `conv2d_N` and `pool2d_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      `[batch, num_filters, height', width']`, or with the channels last.

    Raises:
      ShapeError: the input does not fit the convolution or the pooling; see `layers.conv2d` and `layers.pool2d`.

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
        data_format=data_format,
    )
    return layers.pool2d(
        hidden, pool_size, pool_type, pool_stride, pool_padding, global_pooling, name=name, data_format=data_format
    )  # fmt: skip


@layer
@no_effect(use_cudnn="XLA chooses the kernels")
def img_conv_group(
    input: Value,
    conv_num_filter: Sequence[int],
    pool_size: Sizes,
    conv_padding: Sizes = 1,
    conv_filter_size: Sizes = 3,
    conv_act: Activation = None,
    param_attr: ParamSetting | Sequence[ParamSetting] = None,
    conv_with_batchnorm: bool | Sequence[bool] = False,
    conv_batchnorm_drop_rate: float | Sequence[float] = 0.0,
    pool_stride: Sizes = 1,
    pool_type: str = "max",
    use_cudnn: bool = True,
    name: str | None = None,
    data_format: str = CHANNELS_FIRST,
) -> jax.Array:
    """Apply several convolutions and one pooling, as in VGG (Simonyan and Zisserman, 2014).

    A setting of the convolutions is either one value for all convolutions, or a list with one value for each.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      conv_num_filter: a list with the number of filters of each convolution.
      pool_size: `pool_size` of `layers.pool2d`.
      conv_padding: `padding` of each `layers.conv2d`.
      conv_filter_size: `filter_size` of each `layers.conv2d`.
      conv_act: the activation of each convolution, after the batch normalisation, if any: its name, or a function.
      param_attr: ParamAttr of the filters.
      conv_with_batchnorm: whether batch normalisation follows a convolution.
      conv_batchnorm_drop_rate: the probability of dropout after the batch normalisation.
      pool_stride: `pool_stride` of `layers.pool2d`.
      pool_type: "max" or "avg".
      use_cudnn: accepted for programs written for Fluid, but has no effect: XLA chooses the kernels.
      name: the name of all layers, instead of `conv2d_N`, `batch_norm_N`, `pool2d_N`.
      data_format: "NCHW" or "NHWC".

    Returns:
      `[batch, conv_num_filter[-1], height', width']`, or with the channels last.

    Raises:
      ArgumentError: `conv_num_filter` is not a list, or another list does not have one setting for each convolution.
      ShapeError: the input does not fit the convolution or the pooling; see `layers.conv2d` and `layers.pool2d`.

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
        _one_each("conv_filter_size", conv_filter_size, count),
        _one_each("conv_padding", conv_padding, count),
        _one_each("param_attr", param_attr, count),
        _one_each("conv_with_batchnorm", conv_with_batchnorm, count),
        _one_each("conv_batchnorm_drop_rate", conv_batchnorm_drop_rate, count),
        strict=True,
    )
    hidden = input
    for filters, size, padding, attr, normalise, drop_rate in settings:
        act = None if normalise else conv_act
        hidden = layers.conv2d(
            hidden, filters, size, padding=padding, param_attr=attr, act=act, name=name, data_format=data_format
        )
        if normalise:
            hidden = layers.batch_norm(hidden, act=conv_act, name=name, data_layout=data_format)
            if drop_rate > 1e-5:
                hidden = layers.dropout(hidden, dropout_prob=drop_rate, name=name)
    return layers.pool2d(hidden, pool_size, pool_type, pool_stride, name=name, data_format=data_format)


@layer
def sequence_conv_pool(
    input: Value,
    num_filters: int,
    filter_size: int,
    param_attr: ParamSetting = None,
    act: Activation = "sigmoid",
    pool_type: str = "max",
    bias_attr: ParamSetting = None,
    name: str | None = None,
) -> Any:
    """Apply a convolution over the steps of sequences, then pool each sequence, as Kim (2014) does for sentences.

    Args:
      input: a SequenceBatch `[batch, time, channels]`; or a NestedSequenceBatch, for its innermost sequences.
      num_filters: the number of filters.
      filter_size: the number of steps that a filter covers.
      param_attr: ParamAttr of the filters.
      act: the activation between convolution and pooling: its name, or a function.
      pool_type: `pool_type` of `layers.sequence_pool`.
      bias_attr: ParamAttr of the bias; False for none.
      name: the name of both layers, instead of `sequence_conv_N` and `sequence_pool_N`.

    Returns:
      `[batch, num_filters]`; for a NestedSequenceBatch a SequenceBatch with one step for each inner sequence.

    Raises:
      ShapeError: the input is not a sequence batch of vectors.

    Example:
      >>> import fluid
      >>> def program():
      ...     words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
      ...     emb = fluid.layers.embedding(words, size=[1000, 32])
      ...     return fluid.nets.sequence_conv_pool(emb, num_filters=16, filter_size=3, act="tanh", pool_type="sqrt")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 16]
    """
    hidden = layers.sequence_conv(
        input, num_filters, filter_size, bias_attr=bias_attr, param_attr=param_attr, act=act, name=name
    )
    return layers.sequence_pool(hidden, pool_type, name=name)


@layer
def glu(input: Value, dim: int = -1, name: str | None = None) -> Any:
    """Apply a gated linear unit: one half of the channels times the sigmoid of the other half (Dauphin et al., 2016).

    Args:
      input: an array of any shape, or a SequenceBatch, with an even size along `dim`.
      dim: the dimension of the channels.
      name: the name of all layers, instead of `split_N`, `sigmoid_N`, `elementwise_mul_N`.

    Returns:
      An array, or a SequenceBatch if the input is one, with half the size along `dim`.

    Raises:
      ShapeError: the size along `dim` is odd.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.nets.glu(fluid.layers.data("x", shape=[6]), dim=1)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3]
    """
    value, gate = layers.split(input, num_or_sections=2, dim=dim, name=name)
    return layers.elementwise_mul(value, layers.sigmoid(gate, name=name), name=name)


@layer
def scaled_dot_product_attention(
    queries: Value,
    keys: Value,
    values: Value,
    num_heads: int = 1,
    dropout_rate: float = 0.0,
    name: str | None = None,
) -> Any:
    """Apply scaled dot-product attention (Vaswani et al., 2017).

    The result for a query is the mean of the values, weighted by the softmax of the products of the query and the keys.
    With several heads, queries, keys and values are projected by learned weights, and the results of the heads are
    concatenated. `layers.multi_head_attention` also projects the result, and can decode step by step.

    Args:
      queries: `[batch, targets, d]`, or a SequenceBatch.
      keys: `[batch, sources, d]`, or a SequenceBatch, whose padding is masked.
      values: `[batch, sources, v]`, or a SequenceBatch like the keys.
      num_heads: the number of heads, which divides `d` and `v`.
      dropout_rate: the probability of dropout on the attention weights in training; in test mode the weights are scaled
        down.
      name: the name of all layers, instead of `fc_N`, `scaled_dot_product_attention_N` and so on.

    Returns:
      `[batch, targets, v]`, a SequenceBatch if the queries are one; zeros if a sequence of keys is empty.

    Raises:
      ArgumentError: `num_heads` is not a positive integer.
      ShapeError: the sizes do not match, or cannot be divided among the heads.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[5, 8])
      ...     return fluid.nets.scaled_dot_product_attention(x, x, x, num_heads=2)
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 5, 8]
    """
    core.whole_number("scaled_dot_product_attention", "num_heads", num_heads)
    arrays = [dense(v) for v in (queries, keys, values)]
    if (
        any(a.ndim != 3 for a in arrays)
        or arrays[0].shape[-1] != arrays[1].shape[-1]
        or arrays[1].shape[1] != arrays[2].shape[1]
        or any(a.shape[-1] % num_heads for a in arrays)
        or len({a.shape[0] for a in arrays}) > 1
    ):
        raise errors.ShapeError(
            f"scaled_dot_product_attention: queries {describe(queries)}, keys {describe(keys)} and values "
            f"{describe(values)} do not fit with num_heads={num_heads}; expected [batch, targets, d], "
            f"[batch, sources, d] and [batch, sources, v], with d and v multiples of num_heads"
        )
    if num_heads > 1:
        queries, keys, values = (
            layers.fc(v, dense(v).shape[-1], num_flatten_dims=3 - row_dims(v), name=name)
            for v in (queries, keys, values)
        )
    query, key, value = (split_heads(v, num_heads) for v in (queries, keys, values))
    drop = dropper(dropout_rate, "downgrade_in_infer", name)
    result = attend(query, key, value, visible(query, False, keys, values), drop)
    return Layer("scaled_dot_product_attention", name).output(like(queries, merge_heads(result)))


def _one_each(argument: str, value: Any, count: int) -> list[Any]:
    """Convert a setting of `img_conv_group` to a list with one setting for each convolution."""
    values = list(value) if isinstance(value, list | tuple) else [value] * count
    if len(values) != count:
        raise errors.ArgumentError(
            f"img_conv_group: {argument}={value!r} has {len(values)} settings for {count} convolutions; "
            f"give one for each, or one for all"
        )
    return values


@layer
def table_columns(table: Table) -> dict[str, jax.Array]:
    """Declare the feeds for the columns of a table of raw rows, and return these columns.

    The program then contains the table: `save_params`, checkpoints and exported models store the table, and
    `Inferencer.infer`, `Inferencer.predict` and servers accept raw rows.

    Args:
      table: the Table of the training rows: `fluid.reader.frame(rows, label="paid").table`.

    Returns:
      A dict by column name: numbers as float32 `[batch, 1]`; categories as int64 `[batch, 1]`, in which 0 stands for
      missing and unknown values.

    Raises:
      ArgumentTypeError: `table` is not a Table.
      ProgramError: the program already has another table.

    Example:
      >>> import fluid
      >>> table = fluid.reader.Table.fit({"age": [20, 40], "city": ["Rome", "Oslo"]})
      >>> def program():
      ...     columns = fluid.nets.table_columns(table)
      ...     return fluid.layers.fc([columns["age"], fluid.layers.embedding(columns["city"], size=[3, 4])], size=1)
      >>> {name: spec.shape for name, spec in fluid.Program(program).feeds.items()}
      {'numbers': (None, 1), 'categories': (None, 1)}
    """
    if not isinstance(table, Table):
        raise errors.ArgumentTypeError(
            f"nets.table_columns: found {type(table).__name__}, expected the Table of the training rows: "
            f"fluid.reader.frame(rows, label='paid').table"
        )
    declared = core.current_frame("nets.table_columns").declared
    if declared.table not in (None, table):
        raise errors.ProgramError(
            "nets.table_columns: the program has two different tables, expected one; join the columns of both in one "
            "DataFrame"
        )
    declared.table = table
    columns: dict[str, jax.Array] = {}
    for feed, names, dtype in (("numbers", table.numbers, "float32"), ("categories", table.categories, "int64")):
        if names:
            value = layers.data(feed, shape=[len(names)], dtype=dtype)
            columns |= {name: value[:, index : index + 1] for index, name in enumerate(names)}
    return columns


@layer
def table_features(table: Table, size: int = 8) -> jax.Array:
    """Declare the feeds for the columns of a table of raw rows, and return all columns as one array of numbers.

    An embedding maps each category to a trained vector. Like `table_columns`, this function stores the table in the
    program.

    Args:
      table: the Table of the training rows: `fluid.reader.frame(rows, label="paid").table`.
      size: the length of the vector for a category.

    Returns:
      float32 `[batch, n + size * c]`, for `n` columns of numbers and `c` columns of categories.

    Raises:
      ArgumentError: `size` is not a positive integer.
      ArgumentTypeError: `table` is not a Table.
      ProgramError: the program already has another table.

    Example:
      >>> import fluid
      >>> table = fluid.reader.Table.fit({"age": [20, 40], "city": ["Rome", "Oslo"]})
      >>> print(fluid.Program(lambda: fluid.nets.table_features(table, size=4)).outputs[0])
      float32[batch, 5]
    """
    size = core.whole_number("nets.table_features", "size", size)
    columns = table_columns(table)
    vectors = [layers.embedding(columns[name], size=[len(words) + 1, size]) for name, words in table.categories.items()]
    return layers.concat([*(columns[name] for name in table.numbers), *vectors], axis=1)
