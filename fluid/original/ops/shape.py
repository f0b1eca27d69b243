"""Shape, dtype and order of elements."""

from collections.abc import Callable
from typing import Any

from fluid import layers
from fluid.original.op import Op, Outputs, Row, Rule, unary


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
_SQUEEZE = Row(layers.squeeze, {"input": "X"}, {"axes": ("axes", [])})
_TRANSPOSE = unary(layers.transpose, perm=("axis", list))
_UNSQUEEZE = Row(layers.unsqueeze, {"input": "X"}, {"axes": ("axes", [])})

ROWS: dict[str, Rule] = {
    "assign": Row(layers.assign, {"input": "X"}),
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
    "pad_constant_like": Row(layers.pad_constant_like, {"x": "X", "y": "Y"}, {"pad_value": ("pad_value", 0.0)}),
    "reshape": _RESHAPE,
    "reshape2": _RESHAPE,
    "reverse": unary(layers.reverse, axis=("axis", list)),
    "shape": Row(layers.shape, {"input": "Input"}),
    "size": Row(layers.size, {"input": "Input"}),
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
    "unstack": Row(layers.unstack, {"x": "X"}, {"axis": ("axis", 0), "num": ("num", int)}, out="Y"),
}
