"""Functions that compute PaddlePaddle ops with layers: arithmetic, comparisons and activations."""

import functools
from collections.abc import Callable
from typing import Any

from fluid import layers
from fluid.compat.paddle_files.op import Op, OpRow, Outputs, Rule, unary


def _elementwise(layer: Callable[..., Any]) -> OpRow:
    return OpRow(layer, {"x": "X", "y": "Y"}, {"axis": ("axis", -1)})


def _compare(layer: Callable[..., Any]) -> OpRow:
    return OpRow(layer, {"x": "X", "y": "Y"})


def _reduce(layer: Callable[..., Any]) -> Rule:
    def run(op: Op) -> Outputs:
        dim = op.attr("dim", [0])
        whole = op.attr("reduce_all", False)
        dtype = op.dtype_or_none("out_dtype")
        x = op.value("X") if dtype is None else layers.cast(op.value("X"), dtype)
        return {"Out": layer(x, dim=None if whole else dim, keep_dim=op.attr("keep_dim", False))}

    return run


def _scale(op: Op) -> Outputs:
    x = op.value("X")
    factor = op.attr("scale", 1.0)
    bias = op.attr("bias", 0.0)
    after = op.attr("bias_after_scale", True)
    if op.given("ScaleTensor"):
        factor = op.value("ScaleTensor")
    elif (factor, bias) == (1.0, 0.0):
        # `layers.scale` would lose facts that fluid records about `x`, for example that `x` holds logits.
        return {"Out": x}
    return {"Out": layers.scale(x, factor, bias, after)}


def _sum(op: Op) -> Outputs:
    return {"Out": layers.sums(op.values("X"))}


def _bilinear(op: Op) -> Outputs:
    return {
        "Out": layers.bilinear_tensor_product(
            op.value("X"),
            op.value("Y"),
            size=op.desc_of("Weight").shape[0],
            param_attr=op.parameter("Weight"),
            bias_attr=op.parameter_or_none("Bias"),
        )
    }


_CUMSUM: dict[str, tuple[str, Any]] = {
    "axis": ("axis", -1),
    "exclusive": ("exclusive", False),
    "reverse": ("reverse", False),
}
_MATMUL: dict[str, tuple[str, Any]] = {
    "transpose_x": ("transpose_X", False),
    "transpose_y": ("transpose_Y", False),
    "alpha": ("alpha", 1.0),
}
_MUL: dict[str, tuple[str, Any]] = {
    "x_num_col_dims": ("x_num_col_dims", 1),
    "y_num_col_dims": ("y_num_col_dims", 1),
}

ROWS: dict[str, Rule] = {
    "bilinear_tensor_product": _bilinear,
    "bmm": OpRow(layers.matmul, {"x": "X", "y": "Y"}),
    "clip": unary(layers.clip, min=("min", float), max=("max", float)),
    "clip_by_norm": unary(layers.clip_by_norm, max_norm=("max_norm", float)),
    "cos_sim": OpRow(layers.cos_sim, {"X": "X", "Y": "Y"}),
    "cumsum": unary(layers.cumsum, **_CUMSUM),
    "elementwise_add": _elementwise(layers.elementwise_add),
    "elementwise_div": _elementwise(layers.elementwise_div),
    "elementwise_floordiv": _elementwise(layers.elementwise_floordiv),
    "elementwise_max": _elementwise(layers.elementwise_max),
    "elementwise_min": _elementwise(layers.elementwise_min),
    "elementwise_mod": _elementwise(layers.elementwise_mod),
    "elementwise_mul": _elementwise(layers.elementwise_mul),
    "elementwise_pow": _elementwise(layers.elementwise_pow),
    "elementwise_sub": _elementwise(layers.elementwise_sub),
    "equal": _compare(layers.equal),
    "greater_equal": _compare(layers.greater_equal),
    "greater_than": _compare(layers.greater_than),
    "increment": unary(functools.partial(layers.increment, in_place=False), value=("step", 1.0)),
    "isfinite": unary(layers.isfinite),
    "isinf": unary(layers.has_inf),
    "isnan": unary(layers.has_nan),
    "less_equal": _compare(layers.less_equal),
    "less_than": _compare(layers.less_than),
    "logical_and": _compare(layers.logical_and),
    "logical_not": unary(layers.logical_not),
    "logical_or": _compare(layers.logical_or),
    "logical_xor": _compare(layers.logical_xor),
    "matmul": OpRow(layers.matmul, {"x": "X", "y": "Y"}, _MATMUL),
    "mean": unary(layers.mean),
    "mul": OpRow(layers.mul, {"x": "X", "y": "Y"}, _MUL),
    "not_equal": _compare(layers.not_equal),
    "reduce_all": _reduce(layers.reduce_all),
    "reduce_any": _reduce(layers.reduce_any),
    "reduce_max": _reduce(layers.reduce_max),
    "reduce_mean": _reduce(layers.reduce_mean),
    "reduce_min": _reduce(layers.reduce_min),
    "reduce_prod": _reduce(layers.reduce_prod),
    "reduce_sum": _reduce(layers.reduce_sum),
    "scale": _scale,
    "sum": _sum,
}


def _pow(op: Op) -> Outputs:
    factor = op.attr("factor", 1.0)
    return {"Out": layers.pow(op.value("X"), op.value("FactorTensor") if op.given("FactorTensor") else factor)}


def _mish(op: Op) -> Outputs:
    # `layers.mish` needs no threshold: above it, PaddlePaddle only skips a logarithm that does not change the result.
    op.attr("threshold", 20.0)
    return {"Out": layers.mish(op.value("X"))}


def _prelu(op: Op) -> Outputs:
    return {"Out": layers.prelu(op.value("X"), op.attr("mode", "all"), op.parameter("Alpha"))}


ROWS |= {
    "abs": unary(layers.abs),
    "acos": unary(layers.acos),
    "asin": unary(layers.asin),
    "atan": unary(layers.atan),
    "brelu": unary(layers.brelu, t_min=("t_min", 0.0), t_max=("t_max", 24.0)),
    "ceil": unary(layers.ceil),
    "cos": unary(layers.cos),
    "elu": unary(layers.elu, alpha=("alpha", 1.0)),
    "exp": unary(layers.exp),
    "floor": unary(layers.floor),
    "gelu": unary(layers.gelu, approximate=("approximate", False)),
    "hard_shrink": unary(layers.hard_shrink, threshold=("threshold", 0.5)),
    "hard_sigmoid": unary(layers.hard_sigmoid, slope=("slope", 0.2), offset=("offset", 0.5)),
    "hard_swish": unary(layers.hard_swish, threshold=("threshold", 6.0), scale=("scale", 6.0), offset=("offset", 3.0)),
    "leaky_relu": unary(layers.leaky_relu, alpha=("alpha", 0.02)),
    "log": unary(layers.log),
    "log_softmax": OpRow(layers.log_softmax, {"input": "X"}, {"axis": ("axis", -1)}),
    "logsigmoid": unary(layers.logsigmoid),
    "maxout": unary(layers.maxout, groups=("groups", int), axis=("axis", 1)),
    "mish": _mish,
    "pow": _pow,
    "prelu": _prelu,
    "reciprocal": unary(layers.reciprocal),
    "relu": unary(layers.relu),
    "relu6": unary(layers.relu6, threshold=("threshold", 6.0)),
    "round": unary(layers.round),
    "rsqrt": unary(layers.rsqrt),
    "selu": unary(layers.selu, scale=("scale", 1.0507009873554805), alpha=("alpha", 1.6732632423543772)),
    "sigmoid": unary(layers.sigmoid),
    "sign": unary(layers.sign),
    "silu": unary(layers.silu),
    "sin": unary(layers.sin),
    "soft_relu": unary(layers.soft_relu, threshold=("threshold", 40.0)),
    "softmax": OpRow(layers.softmax, {"input": "X"}, {"axis": ("axis", -1)}),
    "softplus": unary(layers.softplus),
    "softshrink": unary(layers.softshrink, alpha=("lambda", 0.5)),
    "softsign": unary(layers.softsign),
    "sqrt": unary(layers.sqrt),
    "square": unary(layers.square),
    "stanh": unary(layers.stanh, scale_a=("scale_a", 0.67), scale_b=("scale_b", 1.7159)),
    "swish": unary(layers.swish, beta=("beta", 1.0)),
    "tanh": unary(layers.tanh),
    "tanh_shrink": unary(layers.tanh_shrink),
    "thresholded_relu": unary(layers.thresholded_relu, threshold=("threshold", 1.0)),
}
