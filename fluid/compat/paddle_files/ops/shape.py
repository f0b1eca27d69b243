"""Functions that compute PaddlePaddle ops with layers: creation of arrays, shapes, and access by index."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fluid import layers
from fluid.compat.paddle_files.op import Op, OpRow, Outputs, Rule, unary


def _cast(op: Op) -> Outputs:
    return {"Out": layers.cast(op.value("X"), op.dtype("out_dtype", int))}


def _concat(op: Op) -> Outputs:
    return {"Out": layers.concat(op.values("X"), axis=op.attr("axis", 0))}


def _stack(op: Op) -> Outputs:
    return {"Y": layers.stack(op.values("X"), axis=op.attr("axis", 0))}


def _split(op: Op) -> Outputs:
    parts = op.attr("sections", []) or op.attr("num", 0)
    return {"Out": layers.split(op.value("X"), num_or_sections=parts, dim=op.attr("axis", 0))}


def _expand_as(op: Op) -> Outputs:
    x = op.value("X")
    target = op.value("target_tensor")
    if len(x.shape) != len(target.shape) or any(size % own for size, own in zip(target.shape, x.shape, strict=True)):
        raise op.refuse(f"sizes {list(x.shape)} do not divide {list(target.shape)}")
    return {"Out": layers.expand(x, [size // own for size, own in zip(target.shape, x.shape, strict=True)])}


def _slice(layer: Callable[..., Any]) -> Rule:
    def run(op: Op) -> Outputs:
        where = {name: op.attr(name, []) for name in ("starts", "ends")}
        if layer is layers.strided_slice:
            where["strides"] = op.attr("strides", [])
        result = layer(op.value("Input"), op.attr("axes", list), **where)
        gone = op.attr("decrease_axis", [])
        return {"Out": layers.squeeze(result, gone) if gone else result}

    return run


def _crop(op: Op) -> Outputs:
    shape = op.value("Y") if op.given("Y") else op.attr("shape", [])
    return {"Out": layers.crop(op.value("X"), shape, op.attr("offsets", []) or None)}


_FLATTEN = unary(layers.flatten, axis=("axis", 1))
_PAD: dict[str, tuple[str, Any]] = {"paddings": ("paddings", list), "pad_value": ("pad_value", 0.0)}
_RESHAPE = unary(layers.reshape, shape=("shape", []))
_SQUEEZE = OpRow(layers.squeeze, {"input": "X"}, {"axes": ("axes", [])})
_TRANSPOSE = unary(layers.transpose, perm=("axis", list))
_UNSQUEEZE = OpRow(layers.unsqueeze, {"input": "X"}, {"axes": ("axes", [])})

ROWS: dict[str, Rule] = {
    "assign": OpRow(layers.assign, {"input": "X"}),
    "cast": _cast,
    "concat": _concat,
    "crop": _crop,
    "crop_tensor": _crop,
    "expand": unary(layers.expand, expand_times=("expand_times", [])),
    "expand_as": _expand_as,
    "flatten": _FLATTEN,
    "flatten2": _FLATTEN,
    "flip": unary(layers.reverse, axis=("dims", list)),
    "pad": unary(layers.pad, **_PAD),
    "pad_constant_like": OpRow(layers.pad_constant_like, {"x": "X", "y": "Y"}, {"pad_value": ("pad_value", 0.0)}),
    "reshape": _RESHAPE,
    "reshape2": _RESHAPE,
    "reverse": unary(layers.reverse, axis=("axis", list)),
    "shape": OpRow(layers.shape, {"input": "Input"}),
    "size": OpRow(layers.size, {"input": "Input"}),
    "slice": _slice(layers.slice),
    "split": _split,
    "squeeze": _SQUEEZE,
    "squeeze2": _SQUEEZE,
    "stack": _stack,
    "strided_slice": _slice(layers.strided_slice),
    "transpose": _TRANSPOSE,
    "transpose2": _TRANSPOSE,
    "unsqueeze": _UNSQUEEZE,
    "unsqueeze2": _UNSQUEEZE,
    "unstack": OpRow(layers.unstack, {"x": "X"}, {"axis": ("axis", 0), "num": ("num", int)}, out="Y"),
}


# A dict from the dtype to the name of the attribute in which the op `assign_value` stores the elements.
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
    """Return the number with which an op fills an array: the attribute `str_value`, if set, else `value`."""
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
    return {"dtype": op.dtype(), "seed": op.attr("seed", 0)}


def _like(op: Op) -> dict[str, Any]:
    """Return the layer arguments of a `*_batch_size_like` op, which copies one size of its result from an array."""
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


ROWS |= {
    "assign_value": _assign_value,
    "diag": OpRow(layers.diag, {"diagonal": "Diagonal"}),
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


def _best(layer: Callable[..., Any]) -> Rule:
    def run(op: Op) -> Outputs:
        axis = op.attr("axis", int)
        found = layer(op.value("X"), axis)
        found = layers.unsqueeze(found, [axis]) if op.attr("keepdims", False) else found
        dtype = op.dtype_or_none()
        return {"Out": found if dtype is None else layers.cast(found, dtype)}

    return run


def _argsort(op: Op) -> Outputs:
    x = op.value("X")
    down = op.attr("descending", False)
    values, places = layers.argsort(-x if down else x, axis=op.attr("axis", -1))
    return {"Out": -values if down else values, "Indices": places}


def _multiplex(op: Op) -> Outputs:
    return {"Out": layers.multiplex(op.values("X"), op.value("Ids"))}


ROWS |= {
    "arg_max": _best(layers.argmax),
    "arg_min": _best(layers.argmin),
    "argsort": _argsort,
    "gather": OpRow(layers.gather, {"input": "X", "index": "Index"}, {"overwrite": ("overwrite", True)}),
    "gather_nd": OpRow(layers.gather_nd, {"input": "X", "index": "Index"}),
    "multiplex": _multiplex,
    "scatter": OpRow(
        layers.scatter, {"input": "X", "index": "Ids", "updates": "Updates"}, {"overwrite": ("overwrite", True)}
    ),
    "scatter_nd_add": OpRow(layers.scatter_nd_add, {"ref": "X", "index": "Index", "updates": "Updates"}),
    "top_k": OpRow(layers.topk, {"input": "X"}, {"k": ("k", 1)}, out=("Out", "Indices")),
    "where": OpRow(layers.where, {"condition": "Condition", "x": "X", "y": "Y"}),
}
