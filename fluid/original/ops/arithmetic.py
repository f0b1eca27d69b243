"""Arithmetic, matrix products, reductions and comparisons."""

import functools
from collections.abc import Callable
from typing import Any

from fluid import layers
from fluid.original.op import Op, Outputs, Row, Rule, unary


def _elementwise(layer: Callable[..., Any]) -> Row:
    return Row(layer, {"x": "X", "y": "Y"}, {"axis": ("axis", -1)})


def _compare(layer: Callable[..., Any]) -> Row:
    return Row(layer, {"x": "X", "y": "Y"})


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
        return {"Out": x}  # keeps information about the value, for example that it holds the logits of a softmax
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
    "bmm": Row(layers.matmul, {"x": "X", "y": "Y"}),
    "clip": unary(layers.clip, min=("min", float), max=("max", float)),
    "clip_by_norm": unary(layers.clip_by_norm, max_norm=("max_norm", float)),
    "cos_sim": Row(layers.cos_sim, {"X": "X", "Y": "Y"}),
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
    "matmul": Row(layers.matmul, {"x": "X", "y": "Y"}, _MATMUL),
    "mean": unary(layers.mean),
    "mul": Row(layers.mul, {"x": "X", "y": "Y"}, _MUL),
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
