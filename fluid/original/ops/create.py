"""Creation: constants, ranges and random numbers."""

from typing import Any

import numpy as np

from fluid import layers
from fluid.original.op import Op, Outputs, Row, Rule, unary

# The attribute of `assign_value` that holds the elements, by dtype.
_ELEMENTS = {"bool": "bool_values", "float32": "fp32_values", "int32": "int32_values", "int64": "int64_values"}


def _fill_constant(op: Op) -> Outputs:
    return {"Out": layers.fill_constant(op.attr("shape", []), op.dtype(), _constant(op))}


def _fill_constant_like(op: Op) -> Outputs:
    return {
        "Out": layers.fill_constant_batch_size_like(
            op.value("Input"),
            shape=op.attr("shape", list),
            dtype=op.dtype(),
            value=_constant(op),
            input_dim_idx=op.attr("input_dim_idx", 0),
            output_dim_idx=op.attr("output_dim_idx", 0),
        )
    }


def _constant(op: Op) -> Any:
    """Return the value to fill with; later versions also write it as text, which is exact."""
    text = op.attr("str_value", "")
    value = op.attr("value", 0.0)
    try:
        value = float(text) if text else value
    except ValueError as error:
        raise op.refuse(f"str_value={text!r} is no number") from error
    return int(value) if op.dtype().startswith(("int", "uint")) and np.isfinite(value) else value


def _fill_any_like(op: Op) -> Outputs:
    zeros = layers.zeros_like(op.value("X"))
    dtype = op.dtype_or_none()
    zeros = zeros if dtype is None else layers.cast(zeros, dtype)
    return {"Out": layers.increment(zeros, op.attr("value", 0.0), in_place=False)}


def _assign_value(op: Op) -> Outputs:
    dtype = op.dtype(default=int)
    if dtype not in _ELEMENTS:
        raise op.refuse(f"values of dtype {dtype}; expected one of {', '.join(_ELEMENTS)}")
    elements = np.asarray(op.attr(_ELEMENTS[dtype], []), dtype)
    shape = op.attr("shape", list)
    if elements.size != np.prod(shape):
        raise op.refuse(f"{elements.size} values for the shape {shape}")
    return {"Out": layers.assign(elements.reshape(shape))}


def _range(op: Op) -> Outputs:
    makers = [op.maker(slot, "fill_constant") for slot in ("Start", "End", "Step")]
    start, end, step = map(_constant, makers)
    return {"Out": layers.range(start, end, step, makers[0].dtype())}


def _linspace(op: Op) -> Outputs:
    makers = [op.maker(slot, "fill_constant") for slot in ("Start", "Stop", "Num")]
    start, stop, number = map(_constant, makers)
    return {"Out": layers.linspace(start, stop, number, makers[0].dtype())}


def _eye(op: Op) -> Outputs:
    columns = op.attr("num_columns", -1)
    return {"Out": layers.eye(op.attr("num_rows", int), None if columns == -1 else columns, dtype=op.dtype())}


def _random(op: Op) -> dict[str, Any]:
    """Return the arguments that all random ops share."""
    return {"dtype": op.dtype(), "seed": op.attr("seed", 0)}


def _like(op: Op) -> dict[str, Any]:
    """Return the arguments of ops that copy one size from another value."""
    return {
        "input": op.value("Input"),
        "shape": op.attr("shape", list),
        "input_dim_idx": op.attr("input_dim_idx", 0),
        "output_dim_idx": op.attr("output_dim_idx", 0),
    }


def _bounds(op: Op) -> dict[str, Any]:
    return {"min": op.attr("min", -1.0), "max": op.attr("max", 1.0)}


def _moments(op: Op) -> dict[str, Any]:
    return {"mean": op.attr("mean", 0.0), "std": op.attr("std", 1.0)}


def _uniform(op: Op) -> Outputs:
    return {"Out": layers.uniform_random(op.attr("shape", []), **_random(op), **_bounds(op))}


def _uniform_like(op: Op) -> Outputs:
    return {"Out": layers.uniform_random_batch_size_like(**_like(op), **_random(op), **_bounds(op))}


def _gaussian(op: Op) -> Outputs:
    return {"Out": layers.gaussian_random(op.attr("shape", []), **_random(op), **_moments(op))}


def _gaussian_like(op: Op) -> Outputs:
    return {"Out": layers.gaussian_random_batch_size_like(**_like(op), **_random(op), **_moments(op))}


def _sampling_id(op: Op) -> Outputs:
    if (op.attr("min", 0.0), op.attr("max", 1.0)) != (0.0, 1.0):
        raise op.refuse("bounds of the draw other than 0 and 1 are not possible")
    drawn = layers.sampling_id(op.value("X"), seed=op.attr("seed", 0))
    return {"Out": layers.cast(drawn, "int64")}


ROWS: dict[str, Rule] = {
    "assign_value": _assign_value,
    "diag": Row(layers.diag, {"diagonal": "Diagonal"}),
    "eye": _eye,
    "fill_any_like": _fill_any_like,
    "fill_constant": _fill_constant,
    "fill_constant_batch_size_like": _fill_constant_like,
    "fill_zeros_like": unary(layers.zeros_like),
    "gaussian_random": _gaussian,
    "gaussian_random_batch_size_like": _gaussian_like,
    "linspace": _linspace,
    "range": _range,
    "sampling_id": _sampling_id,
    "uniform_random": _uniform,
    "uniform_random_batch_size_like": _uniform_like,
}
