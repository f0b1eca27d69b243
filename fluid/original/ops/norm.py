"""Normalisations and dropout."""

from fluid import layers
from fluid.original.op import Op, Outputs, Row, Rule


def _batch_norm(op: Op) -> Outputs:
    return {
        "Y": layers.batch_norm(
            op.value("X"),
            momentum=op.attr("momentum", 0.9),
            epsilon=op.attr("epsilon", 1e-5),
            param_attr=op.parameter("Scale"),
            bias_attr=op.parameter("Bias"),
            data_layout=op.layout("data_layout"),
            moving_mean_name=op.statistic("Mean"),
            moving_variance_name=op.statistic("Variance"),
            use_global_stats=op.attr("use_global_stats", False),
        )
    }


def _layer_norm(op: Op) -> Outputs:
    return {
        "Y": layers.layer_norm(
            op.value("X"),
            scale=op.given("Scale"),
            shift=op.given("Bias"),
            begin_norm_axis=op.attr("begin_norm_axis", 1),
            epsilon=op.attr("epsilon", 1e-5),
            param_attr=op.parameter_or_none("Scale"),
            bias_attr=op.parameter_or_none("Bias"),
        )
    }


def _group_norm(op: Op) -> Outputs:
    return {
        "Y": layers.group_norm(
            op.value("X"),
            groups=op.attr("groups", int),
            epsilon=op.attr("epsilon", 1e-5),
            param_attr=op.parameter_or_none("Scale"),
            bias_attr=op.parameter_or_none("Bias"),
            data_layout=op.layout("data_layout"),
        )
    }


def _instance_norm(op: Op) -> Outputs:
    return {
        "Y": layers.instance_norm(
            op.value("X"),
            epsilon=op.attr("epsilon", 1e-5),
            param_attr=op.parameter_or_none("Scale"),
            bias_attr=op.parameter_or_none("Bias"),
        )
    }


def _lrn(op: Op) -> Outputs:
    return {
        "Out": layers.lrn(
            op.value("X"),
            n=op.attr("n", 5),
            k=op.attr("k", 2.0),
            alpha=op.attr("alpha", 1e-4),
            beta=op.attr("beta", 0.75),
            data_format=op.layout("data_format"),
        )
    }


def _dropout(op: Op) -> Outputs:
    seed = op.attr("seed", 0)
    return {
        "Out": layers.dropout(
            op.value("X"),
            op.attr("dropout_prob", 0.5),
            seed=seed if op.attr("fix_seed", False) else None,
            dropout_implementation=op.attr("dropout_implementation", "downgrade_in_infer"),
        )
    }


ROWS: dict[str, Rule] = {
    "batch_norm": _batch_norm,
    "dropout": _dropout,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "layer_norm": _layer_norm,
    "lrn": _lrn,
    "norm": Row(layers.l2_normalize, {"x": "X"}, {"axis": ("axis", int), "epsilon": ("epsilon", 1e-10)}),
    "sync_batch_norm": _batch_norm,
}
