"""Embeddings, one-hot rows, and fully connected layers as one op."""

from collections.abc import Callable
from typing import Any

from fluid import input, layers
from fluid.original.op import Op, Outputs, Rule

_NO_PADDING = -1


def _lookup(embedding: Callable[..., Any]) -> Rule:
    def look_up(op: Op) -> Outputs:
        table = op.desc_of("W")
        padding = op.attr("padding_idx", _NO_PADDING)
        return {
            "Out": embedding(
                op.value("Ids"),
                size=list(table.shape),
                is_sparse=op.attr("is_sparse", False),
                padding_idx=None if padding == _NO_PADDING else padding,
                param_attr=op.parameter("W"),
                dtype=table.dtype,
            )
        }

    return look_up


def _fc(op: Op) -> Outputs:
    return {
        "Out": layers.fc(
            op.value("Input"),
            size=op.desc_of("W").shape[1],
            num_flatten_dims=op.attr("in_num_col_dims", 1),
            param_attr=op.parameter("W"),
            bias_attr=op.parameter_or_none("Bias"),
            act=op.attr("activation_type", "") or None,
        )
    }


def _one_hot(layer: Callable[..., Any]) -> Rule:
    def run(op: Op) -> Outputs:
        rows = layer(op.value("X"), op.attr("depth", -1), op.attr("allow_out_of_range", False))
        return {"Out": rows if op.dtype() == "float32" else layers.cast(rows, op.dtype())}

    return run


ROWS: dict[str, Rule] = {
    "fc": _fc,
    "lookup_table": _lookup(layers.embedding),
    "lookup_table_v2": _lookup(input.embedding),
    "one_hot": _one_hot(layers.one_hot),
    "one_hot_v2": _one_hot(input.one_hot),
}
