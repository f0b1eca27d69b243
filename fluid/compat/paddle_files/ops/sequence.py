"""Functions that compute PaddlePaddle ops with layers: sequences, embeddings, recurrent layers, and the op `fc`."""

from collections.abc import Callable
from typing import Any

from fluid import layers
from fluid.compat import input
from fluid.compat.paddle_files.op import Op, OpRow, Outputs, Rule


def _pool(op: Op) -> Outputs:
    return {
        "Out": layers.sequence_pool(
            op.value("X"), op.attr("pooltype", "AVERAGE").lower(), pad_value=op.attr("pad_value", 0.0)
        )
    }


def _conv(op: Op) -> Outputs:
    if op.attr("paddingTrainable", False):
        raise op.refuse("the steps beyond the ends are trained; here they are zeros")
    size = op.attr("contextLength", int)
    return {
        "Out": layers.sequence_conv(
            op.value("X"),
            num_filters=op.desc_of("Filter").shape[1],
            filter_size=size,
            filter_stride=op.attr("contextStride", 1),
            padding_start=op.attr("contextStart", 0),
            bias_attr=False,
            param_attr=op.parameter("Filter"),
        )
    }


def _row_conv(op: Op) -> Outputs:
    ahead = op.desc_of("Filter").shape[0] - 1
    return {"Out": layers.row_conv(op.value("X"), ahead, op.parameter("Filter"))}


def _concat(op: Op) -> Outputs:
    return {"Out": layers.sequence_concat(op.values("X"))}


def _pad(op: Op) -> Outputs:
    size = op.attr("padded_length", -1)
    padded, lengths = layers.sequence_pad(op.value("X"), op.value("PadValue"), maxlen=None if size < 0 else size)
    return {"Out": padded, "Length": lengths}


def _mask(op: Op) -> Outputs:
    size = op.attr("maxlen", -1)
    dtype = op.dtype("out_dtype", int)
    return {"Y": layers.sequence_mask(op.value("X"), maxlen=None if size < 0 else size, dtype=dtype)}


def _lod_reset(op: Op) -> Outputs:
    target = op.value("Y") if op.given("Y") else op.attr("target_lod", [])
    if op.attr("append", False):
        return {"Out": layers.lod_append(op.value("X"), target)}
    argument = "y" if op.given("Y") else "target_lod"
    return {"Out": layers.lod_reset(op.value("X"), **{argument: target})}


ROWS: dict[str, Rule] = {
    "add_position_encoding": OpRow(
        layers.add_position_encoding, {"input": "X"}, {"alpha": ("alpha", 1.0), "beta": ("beta", 1.0)}
    ),
    "lod_reset": _lod_reset,
    "row_conv": _row_conv,
    "sequence_concat": _concat,
    "sequence_conv": _conv,
    "sequence_enumerate": OpRow(
        layers.sequence_enumerate, {"input": "X"}, {"win_size": ("win_size", int), "pad_value": ("pad_value", 0)}
    ),
    "sequence_erase": OpRow(layers.sequence_erase, {"x": "X"}, {"tokens": ("tokens", list)}),
    "sequence_expand": OpRow(layers.sequence_expand, {"x": "X", "y": "Y"}, {"ref_level": ("ref_level", -1)}),
    "sequence_expand_as": OpRow(layers.sequence_expand_as, {"x": "X", "y": "Y"}),
    "sequence_mask": _mask,
    "sequence_pad": _pad,
    "sequence_pool": _pool,
    "sequence_reshape": OpRow(layers.sequence_reshape, {"input": "X"}, {"new_dim": ("new_dim", int)}),
    "sequence_reverse": OpRow(layers.sequence_reverse, {"x": "X"}, out="Y"),
    "sequence_scatter": OpRow(layers.sequence_scatter, {"input": "X", "index": "Ids", "updates": "Updates"}),
    "sequence_slice": OpRow(layers.sequence_slice, {"input": "X", "offset": "Offset", "length": "Length"}),
    "sequence_softmax": OpRow(layers.sequence_softmax, {"input": "X"}),
    "sequence_unpad": OpRow(layers.sequence_unpad, {"x": "X", "length": "Length"}),
}


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


ROWS |= {
    "fc": _fc,
    "lookup_table": _lookup(layers.embedding),
    "lookup_table_v2": _lookup(input.embedding),
    "one_hot": _one_hot(layers.one_hot),
    "one_hot_v2": _one_hot(input.one_hot),
}


# The activations of ops that compute one time step, such as `gru_unit`. The ops store an index into this tuple.
_ACTIVATIONS = ("identity", "sigmoid", "tanh", "relu")


def _lstm(op: Op) -> Outputs:
    hidden, cell = layers.dynamic_lstm(
        op.value("Input"),
        size=op.desc_of("Weight").shape[1],
        **_settings(op),
        param_attr=op.parameter("Weight"),
    )
    return {"Hidden": hidden, "Cell": cell}


def _lstmp(op: Op) -> Outputs:
    projection, cell = layers.dynamic_lstmp(
        op.value("Input"),
        size=op.desc_of("Weight").shape[1],
        proj_size=op.desc_of("Weight").shape[0],
        param_attr=[op.parameter("Weight"), op.parameter("ProjWeight")],
        proj_activation=op.attr("proj_activation", "tanh"),
        cell_clip=op.attr("cell_clip", 0.0) or None,
        proj_clip=op.attr("proj_clip", 0.0) or None,
        **_settings(op),
    )
    return {"Projection": projection, "Cell": cell}


def _settings(op: Op) -> dict[str, Any]:
    """Return, for an LSTM op, the arguments that the layers `dynamic_lstm` and `dynamic_lstmp` share."""
    return {
        "h_0": op.maybe("H0"),
        "c_0": op.maybe("C0"),
        "bias_attr": op.parameter_or_none("Bias"),
        "use_peepholes": op.attr("use_peepholes", True),
        "is_reverse": op.attr("is_reverse", False),
        "gate_activation": op.attr("gate_activation", "sigmoid"),
        "cell_activation": op.attr("cell_activation", "tanh"),
        "candidate_activation": op.attr("candidate_activation", "tanh"),
    }


def _lstm_unit(op: Op) -> Outputs:
    into, forget, out, candidate = layers.split(op.value("X"), num_or_sections=4, dim=1)
    kept = layers.sigmoid(layers.scale(forget, bias=op.attr("forget_bias", 0.0)))
    cell = kept * op.value("C_prev") + layers.sigmoid(into) * layers.tanh(candidate)
    return {"C": cell, "H": layers.sigmoid(out) * layers.tanh(cell)}


def _gru(op: Op) -> Outputs:
    return {
        "Hidden": layers.dynamic_gru(
            op.value("Input"),
            size=op.desc_of("Weight").shape[0],
            param_attr=op.parameter("Weight"),
            bias_attr=op.parameter_or_none("Bias"),
            is_reverse=op.attr("is_reverse", False),
            gate_activation=op.attr("gate_activation", "sigmoid"),
            candidate_activation=op.attr("activation", "tanh"),
            h_0=op.maybe("H0"),
            origin_mode=op.attr("origin_mode", False),
        )
    }


def _gru_unit(op: Op) -> Outputs:
    hidden, reset, gates = layers.gru_unit(
        op.value("Input"),
        op.value("HiddenPrev"),
        size=op.desc_of("Weight").shape[1],
        param_attr=op.parameter("Weight"),
        bias_attr=op.parameter_or_none("Bias"),
        activation=_activation(op, "activation", 2),
        gate_activation=_activation(op, "gate_activation", 1),
        origin_mode=op.attr("origin_mode", False),
    )
    return {"Hidden": hidden, "ResetHiddenPrev": reset, "Gate": gates}


def _activation(op: Op, name: str, default: int) -> str:
    number = op.attr(name, default)
    if not 0 <= number < len(_ACTIVATIONS):
        raise op.refuse(f"{name}={number}; expected 0 to {len(_ACTIVATIONS) - 1}: {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[number]


ROWS |= {
    "gru": _gru,
    "gru_unit": _gru_unit,
    "lstm": _lstm,
    "lstm_unit": _lstm_unit,
    "lstmp": _lstmp,
}
