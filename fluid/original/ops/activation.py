"""Activations: ops from X to Out."""

from fluid import layers
from fluid.original.op import Op, Outputs, Row, Rule, unary


def _pow(op: Op) -> Outputs:
    factor = op.attr("factor", 1.0)
    return {"Out": layers.pow(op.value("X"), op.value("FactorTensor") if op.given("FactorTensor") else factor)}


def _mish(op: Op) -> Outputs:
    op.attr("threshold", 20.0)  # beyond the threshold, PaddlePaddle skips a logarithm that rounds to nothing
    return {"Out": layers.mish(op.value("X"))}


def _prelu(op: Op) -> Outputs:
    return {"Out": layers.prelu(op.value("X"), op.attr("mode", "all"), op.parameter("Alpha"))}


ROWS: dict[str, Rule] = {
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
    "log_softmax": Row(layers.log_softmax, {"input": "X"}, {"axis": ("axis", -1)}),
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
    "softmax": Row(layers.softmax, {"input": "X"}, {"axis": ("axis", -1)}),
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
