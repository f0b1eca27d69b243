"""Functions that compute PaddlePaddle ops with layers: convolution, pooling, resizing, normalisation and dropout."""

from collections.abc import Callable
from typing import Any

from fluid import layers
from fluid.compat.paddle_files.op import Op, OpRow, Outputs, Rule, unary


def _padding(op: Op, dims: int) -> Any:
    sizes = op.attr("paddings", [0] * dims)
    algorithm = op.attr("padding_algorithm", "EXPLICIT")
    return sizes if algorithm == "EXPLICIT" else algorithm


def _geometry(op: Op, dims: int) -> dict[str, Any]:
    padding = _padding(op, dims)
    dilation = op.attr("dilations", [1] * dims)
    return {
        "filter_size": list(op.desc_of("Filter").shape[2:]),
        "stride": op.attr("strides", [1] * dims),
        "padding": padding,
        # Like PaddlePaddle, use a dilation of 1 for the padding "SAME".
        "dilation": [1] * dims if padding == "SAME" else dilation,
        "groups": op.attr("groups", 1),
        "param_attr": op.parameter("Filter"),
        "bias_attr": op.parameter_or_none("Bias"),
        "data_format": op.layout("data_format", dims),
    }


def _conv(layer: Callable[..., Any], dims: int) -> Rule:
    def convolve(op: Op) -> Outputs:
        filters = op.desc_of("Filter").shape[0]
        return {"Output": layer(op.value("Input"), num_filters=filters, **_geometry(op, dims))}

    return convolve


def _conv_transpose(layer: Callable[..., Any], dims: int) -> Rule:
    def convolve(op: Op) -> Outputs:
        filters = op.desc_of("Filter").shape[1] * op.attr("groups", 1)
        size = op.attr("output_size", []) or None
        return {"Output": layer(op.value("Input"), num_filters=filters, output_size=size, **_geometry(op, dims))}

    return convolve


def _pool(pool: Callable[..., Any], adaptive: Callable[..., Any], dims: int) -> Rule:
    def run(op: Op) -> Outputs:
        where = {"data_format": op.layout("data_format", dims)}
        how = {
            "pool_padding": _padding(op, dims),
            "ceil_mode": op.attr("ceil_mode", False),
            "exclusive": op.attr("exclusive", True),
        }
        return _pooled(op, pool, adaptive, op.attr("pooling_type", str), where, how, dims)

    return run


def _pool_with_index(pool: Callable[..., Any], adaptive: Callable[..., Any], dims: int) -> Rule:
    def run(op: Op) -> Outputs:
        return _pooled(op, pool, adaptive, "max", {}, {"pool_padding": op.attr("paddings", [0] * dims)}, dims)

    return run


def _pooled(op: Op, pool: Any, adaptive: Any, kind: str, where: Any, how: Any, dims: int) -> Outputs:
    """Compute a pooling op: its attribute `ksize` is the window size, or for adaptive pooling the output size."""
    shared = {"pool_size": op.attr("ksize", list), "pool_type": kind, **where}
    stride = op.attr("strides", [1] * dims)
    whole = op.attr("global_pooling", False)
    if op.attr("adaptive", False):
        return {"Out": adaptive(op.value("X"), **shared)}
    return {"Out": pool(op.value("X"), pool_stride=stride, global_pooling=whole, **shared, **how)}


def _resize(resample: str, dims: int) -> Rule:
    def run(op: Op) -> Outputs:
        scale = op.attr("scale", 0.0)
        mode = op.attr("align_mode", 1)
        sizes = [op.attr(name, 0) for name in ("out_d", "out_h", "out_w")[-dims:]]
        return {
            "Out": layers.image_resize(
                op.value("X"),
                out_shape=None if scale > 0 else sizes,
                scale=scale,
                resample=resample,
                align_corners=op.attr("align_corners", True),
                align_mode=1 if resample == "NEAREST" else mode,
                data_format=op.layout("data_layout", dims),
            )
        }

    return run


def _im2sequence(op: Op) -> Outputs:
    out_stride = op.attr("out_stride", [1, 1])
    sizes = {}
    if op.given("Y"):
        sizes = {"input_image_size": layers.cast(op.value("Y"), "int64"), "out_stride": out_stride}
    return {
        "Out": layers.im2sequence(
            op.value("X"),
            filter_size=op.attr("kernels", list),
            stride=op.attr("strides", [1, 1]),
            padding=op.attr("paddings", [0, 0, 0, 0]),
            **sizes,
        )
    }


def _affine_channel(op: Op) -> Outputs:
    scale = op.value("Scale")
    return {"Out": layers.affine_channel(op.value("X"), scale, op.value("Bias"), op.layout("data_layout"))}


_UNFOLD: dict[str, tuple[str, Any]] = {
    "kernel_sizes": ("kernel_sizes", list),
    "strides": ("strides", list),
    "paddings": ("paddings", list),
    "dilations": ("dilations", list),
}
_PAD: dict[str, tuple[str, Any]] = {
    "paddings": ("paddings", list),
    "mode": ("mode", "constant"),
    "pad_value": ("pad_value", 0.0),
    "data_format": ("data_format", "NCHW"),
}

ROWS: dict[str, Rule] = {
    "affine_channel": _affine_channel,
    "affine_grid": OpRow(layers.affine_grid, {"theta": "Theta"}, {"out_shape": ("output_shape", [])}, out="Output"),
    "bilinear_interp": _resize("BILINEAR", 2),
    "conv2d": _conv(layers.conv2d, 2),
    "conv2d_transpose": _conv_transpose(layers.conv2d_transpose, 2),
    "conv3d": _conv(layers.conv3d, 3),
    "conv3d_transpose": _conv_transpose(layers.conv3d_transpose, 3),
    "depthwise_conv2d": _conv(layers.conv2d, 2),
    "depthwise_conv2d_transpose": _conv_transpose(layers.conv2d_transpose, 2),
    "grid_sampler": OpRow(layers.grid_sampler, {"x": "X", "grid": "Grid"}, out="Output"),
    "im2sequence": _im2sequence,
    "max_pool2d_with_index": _pool_with_index(layers.pool2d, layers.adaptive_pool2d, 2),
    "max_pool3d_with_index": _pool_with_index(layers.pool3d, layers.adaptive_pool3d, 3),
    "nearest_interp": _resize("NEAREST", 2),
    "pad2d": OpRow(layers.pad2d, {"input": "X"}, _PAD),
    "pixel_shuffle": unary(layers.pixel_shuffle, upscale_factor=("upscale_factor", 1)),
    "pool2d": _pool(layers.pool2d, layers.adaptive_pool2d, 2),
    "pool3d": _pool(layers.pool3d, layers.adaptive_pool3d, 3),
    "shuffle_channel": unary(layers.shuffle_channel, group=("group", 1)),
    "space_to_depth": unary(layers.space_to_depth, blocksize=("blocksize", 2)),
    "trilinear_interp": _resize("TRILINEAR", 3),
    "unfold": OpRow(layers.unfold, {"x": "X"}, _UNFOLD, out="Y"),
}


def _batch_norm(op: Op) -> Outputs:
    return {
        "Y": layers.batch_norm(
            op.value("X"),
            momentum=op.attr("momentum", 0.9),
            epsilon=op.attr("epsilon", 1e-5),
            param_attr=op.parameter("Scale"),
            bias_attr=op.parameter("Bias"),
            data_layout=op.layout("data_layout"),
            moving_mean_name=op.statistic("Mean"),
            moving_variance_name=op.statistic("Variance"),
            use_global_stats=op.attr("use_global_stats", False),
        )
    }


def _layer_norm(op: Op) -> Outputs:
    return {
        "Y": layers.layer_norm(
            op.value("X"),
            scale=op.given("Scale"),
            shift=op.given("Bias"),
            begin_norm_axis=op.attr("begin_norm_axis", 1),
            epsilon=op.attr("epsilon", 1e-5),
            param_attr=op.parameter_or_none("Scale"),
            bias_attr=op.parameter_or_none("Bias"),
        )
    }


def _group_norm(op: Op) -> Outputs:
    return {
        "Y": layers.group_norm(
            op.value("X"),
            groups=op.attr("groups", int),
            epsilon=op.attr("epsilon", 1e-5),
            param_attr=op.parameter_or_none("Scale"),
            bias_attr=op.parameter_or_none("Bias"),
            data_layout=op.layout("data_layout"),
        )
    }


def _instance_norm(op: Op) -> Outputs:
    return {
        "Y": layers.instance_norm(
            op.value("X"),
            epsilon=op.attr("epsilon", 1e-5),
            param_attr=op.parameter_or_none("Scale"),
            bias_attr=op.parameter_or_none("Bias"),
        )
    }


def _lrn(op: Op) -> Outputs:
    return {
        "Out": layers.lrn(
            op.value("X"),
            n=op.attr("n", 5),
            k=op.attr("k", 2.0),
            alpha=op.attr("alpha", 1e-4),
            beta=op.attr("beta", 0.75),
            data_format=op.layout("data_format"),
        )
    }


def _dropout(op: Op) -> Outputs:
    seed = op.attr("seed", 0)
    return {
        "Out": layers.dropout(
            op.value("X"),
            op.attr("dropout_prob", 0.5),
            seed=seed if op.attr("fix_seed", False) else None,
            dropout_implementation=op.attr("dropout_implementation", "downgrade_in_infer"),
        )
    }


ROWS |= {
    "batch_norm": _batch_norm,
    "dropout": _dropout,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "lrn": _lrn,
    "norm": OpRow(layers.l2_normalize, {"x": "X"}, {"axis": ("axis", int), "epsilon": ("epsilon", 1e-10)}),
    "sync_batch_norm": _batch_norm,
}
