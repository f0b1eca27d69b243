"""Sequences of variable length."""

from fluid import layers
from fluid.original.op import Op, Outputs, Row, Rule


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
    "add_position_encoding": Row(
        layers.add_position_encoding, {"input": "X"}, {"alpha": ("alpha", 1.0), "beta": ("beta", 1.0)}
    ),
    "lod_reset": _lod_reset,
    "row_conv": _row_conv,
    "sequence_concat": _concat,
    "sequence_conv": _conv,
    "sequence_enumerate": Row(
        layers.sequence_enumerate, {"input": "X"}, {"win_size": ("win_size", int), "pad_value": ("pad_value", 0)}
    ),
    "sequence_erase": Row(layers.sequence_erase, {"x": "X"}, {"tokens": ("tokens", list)}),
    "sequence_expand": Row(layers.sequence_expand, {"x": "X", "y": "Y"}, {"ref_level": ("ref_level", -1)}),
    "sequence_expand_as": Row(layers.sequence_expand_as, {"x": "X", "y": "Y"}),
    "sequence_mask": _mask,
    "sequence_pad": _pad,
    "sequence_pool": _pool,
    "sequence_reshape": Row(layers.sequence_reshape, {"input": "X"}, {"new_dim": ("new_dim", int)}),
    "sequence_reverse": Row(layers.sequence_reverse, {"x": "X"}, out="Y"),
    "sequence_scatter": Row(layers.sequence_scatter, {"input": "X", "index": "Ids", "updates": "Updates"}),
    "sequence_slice": Row(layers.sequence_slice, {"input": "X", "offset": "Offset", "length": "Length"}),
    "sequence_softmax": Row(layers.sequence_softmax, {"input": "X"}),
    "sequence_unpad": Row(layers.sequence_unpad, {"x": "X", "length": "Length"}),
}
