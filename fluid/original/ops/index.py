"""Gather, scatter, sort and search by index."""

from collections.abc import Callable
from typing import Any

from fluid import layers
from fluid.original.op import Op, Outputs, Row, Rule


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


ROWS: dict[str, Rule] = {
    "arg_max": _best(layers.argmax),
    "arg_min": _best(layers.argmin),
    "argsort": _argsort,
    "gather": Row(layers.gather, {"input": "X", "index": "Index"}, {"overwrite": ("overwrite", True)}),
    "gather_nd": Row(layers.gather_nd, {"input": "X", "index": "Index"}),
    "multiplex": _multiplex,
    "scatter": Row(
        layers.scatter, {"input": "X", "index": "Ids", "updates": "Updates"}, {"overwrite": ("overwrite", True)}
    ),
    "scatter_nd_add": Row(layers.scatter_nd_add, {"ref": "X", "index": "Index", "updates": "Updates"}),
    "top_k": Row(layers.topk, {"input": "X"}, {"k": ("k", 1)}, out=("Out", "Indices")),
    "where": Row(layers.where, {"condition": "Condition", "x": "X", "y": "Y"}),
}
