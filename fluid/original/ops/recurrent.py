"""Recurrent layers."""

from typing import Any

from fluid import layers
from fluid.original.op import Op, Outputs, Rule

# Ops of a single step store an activation as an index into this tuple.
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
    """Return the arguments that both LSTMs share."""
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


ROWS: dict[str, Rule] = {
    "gru": _gru,
    "gru_unit": _gru_unit,
    "lstm": _lstm,
    "lstm_unit": _lstm_unit,
    "lstmp": _lstmp,
}
