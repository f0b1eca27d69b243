"""Functions that compute PaddlePaddle ops with layers: losses, metrics, CRF and CTC."""

from typing import Any

from fluid import layers
from fluid.compat.paddle_files.op import Op, OpRow, Outputs, Rule

_IGNORED = {"ignore_index": ("ignore_index", -100)}


def _softmax_with_cross_entropy(op: Op) -> Outputs:
    loss, probabilities = layers.softmax_with_cross_entropy(
        op.value("Logits"),
        op.value("Label"),
        soft_label=op.attr("soft_label", False),
        ignore_index=op.attr("ignore_index", -100),
        return_softmax=True,
        axis=op.attr("axis", -1),
    )
    return {"Loss": loss, "Softmax": probabilities}


def _hierarchical_sigmoid(op: Op) -> Outputs:
    return {
        "Out": layers.hsigmoid(
            op.value("X"),
            op.value("Label"),
            num_classes=op.attr("num_classes", 2),
            param_attr=op.parameter("W"),
            bias_attr=op.parameter_or_none("Bias"),
            path_table=op.maybe("PathTable"),
            path_code=op.maybe("PathCode"),
            is_custom=op.given("PathTable"),
            is_sparse=op.attr("is_sparse", False),
        )
    }


def _accuracy(op: Op) -> Outputs:
    # An input slot that is never read is an error. So mark the slot "Out", the scores of the best classes, as read:
    # the accuracy does not depend on these scores.
    op.names("Out")
    hits = layers.reduce_max(layers.cast(_same(op.value("Indices"), op.value("Label")), "float32"), dim=-1)
    count = layers.cast(layers.reduce_sum(hits), "int32")
    total = layers.cast(layers.reduce_sum(layers.ones_like(hits)), "int32")
    return {"Accuracy": layers.mean(hits), "Correct": count, "Total": total}


def _same(best: Any, label: Any) -> Any:
    """Compare the best classes, `[batch, k]`, with the correct class, `[batch, 1]`; return booleans `[batch, k]`."""
    return layers.equal(best, layers.expand(layers.cast(label, best.dtype), [1, best.shape[-1]]))


def _mean_iou(op: Op) -> Outputs:
    mean, wrong, correct = layers.mean_iou(op.value("Predictions"), op.value("Labels"), op.attr("num_classes", int))
    return {"OutMeanIou": mean, "OutWrong": wrong, "OutCorrect": correct}


_SOFT: dict[str, tuple[str, Any]] = {"soft_label": ("soft_label", False), **_IGNORED}
_FOCAL: dict[str, tuple[str, Any]] = {"gamma": ("gamma", 2.0), "alpha": ("alpha", 0.25)}
_BOUNDS: dict[str, tuple[str, Any]] = {
    "soft_max_up_bound": ("soft_max_up_bound", 15.0),
    "soft_max_lower_bound": ("soft_max_lower_bound", -15.0),
}
_SIGMOID: dict[str, tuple[str, Any]] = {**_IGNORED, "normalize": ("normalize", False)}
_LABELLED = {"input": "X", "label": "Label"}

ROWS: dict[str, Rule] = {
    "accuracy": _accuracy,
    "bpr_loss": OpRow(layers.bpr_loss, _LABELLED, out="Y"),
    "cross_entropy": OpRow(layers.cross_entropy, _LABELLED, _SOFT, out="Y"),
    "cross_entropy2": OpRow(layers.cross_entropy, _LABELLED, _IGNORED, out="Y"),
    "hierarchical_sigmoid": _hierarchical_sigmoid,
    "huber_loss": OpRow(layers.huber_loss, {"input": "X", "label": "Y"}, {"delta": ("delta", float)}),
    "kldiv_loss": OpRow(
        layers.kldiv_loss, {"x": "X", "target": "Target"}, {"reduction": ("reduction", "mean")}, out="Loss"
    ),
    "label_smooth": OpRow(
        layers.label_smooth, {"label": "X"}, {"epsilon": ("epsilon", 0.0)}, {"prior_dist": "PriorDist"}
    ),
    "log_loss": OpRow(
        layers.log_loss, {"input": "Predicted", "label": "Labels"}, {"epsilon": ("epsilon", float)}, out="Loss"
    ),
    "margin_rank_loss": OpRow(
        layers.margin_rank_loss, {"label": "Label", "left": "X1", "right": "X2"}, {"margin": ("margin", 0.0)}
    ),
    "mean_iou": _mean_iou,
    "rank_loss": OpRow(layers.rank_loss, {"label": "Label", "left": "Left", "right": "Right"}),
    "sigmoid_cross_entropy_with_logits": OpRow(
        layers.sigmoid_cross_entropy_with_logits, {"x": "X", "label": "Label"}, _SIGMOID
    ),
    "sigmoid_focal_loss": OpRow(layers.sigmoid_focal_loss, {"x": "X", "label": "Label", "fg_num": "FgNum"}, _FOCAL),
    "smooth_l1_loss": OpRow(
        layers.smooth_l1,
        {"x": "X", "y": "Y"},
        {"sigma": ("sigma", 1.0)},
        {"inside_weight": "InsideWeight", "outside_weight": "OutsideWeight"},
    ),
    "softmax_with_cross_entropy": _softmax_with_cross_entropy,
    "teacher_student_sigmoid_loss": OpRow(layers.teacher_student_sigmoid_loss, _LABELLED, _BOUNDS, out="Y"),
}


def _linear_chain_crf(op: Op) -> Outputs:
    cost = layers.linear_chain_crf(
        op.value("Emission"), op.value("Label"), param_attr=op.parameter("Transition"), length=op.maybe("Length")
    )
    return {"LogLikelihood": cost}


def _crf_decoding(op: Op) -> Outputs:
    best = layers.crf_decoding(
        op.value("Emission"), op.parameter("Transition"), label=op.maybe("Label"), length=op.maybe("Length")
    )
    return {"ViterbiPath": best}


def _ctc_align(op: Op) -> Outputs:
    if not op.attr("merge_repeated", True):
        raise op.refuse("merge_repeated=False is not possible; repetitions are merged")
    scores = op.maker("Input", "top_k").value("X")
    blank = op.attr("blank", 0)
    if not op.given("InputLength"):
        return {"Output": layers.ctc_greedy_decoder(scores, blank)}
    classes, lengths = layers.ctc_greedy_decoder(scores, blank, op.value("InputLength"), op.attr("padding_value", 0))
    return {"Output": classes, "OutputLength": lengths}


_LENGTHS = {"input_length": "HypsLength", "label_length": "RefsLength"}
_CHUNKS: dict[str, tuple[str, Any]] = {
    "num_chunk_types": ("num_chunk_types", int),
    "chunk_scheme": ("chunk_scheme", "IOB"),
    "excluded_chunk_types": ("excluded_chunk_types", []),
}

ROWS |= {
    "chunk_eval": OpRow(
        layers.chunk_eval,
        {"input": "Inference", "label": "Label"},
        _CHUNKS,
        {"seq_length": "SeqLength"},
        ("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks"),
    ),
    "crf_decoding": _crf_decoding,
    "ctc_align": _ctc_align,
    "edit_distance": OpRow(
        layers.edit_distance,
        {"input": "Hyps", "label": "Refs"},
        {"normalized": ("normalized", False)},
        _LENGTHS,
        ("Out", "SequenceNum"),
    ),
    "linear_chain_crf": _linear_chain_crf,
    "warpctc": OpRow(
        layers.warpctc,
        {"input": "Logits", "label": "Label"},
        {"blank": ("blank", 0), "norm_by_times": ("norm_by_times", False)},
        {"input_length": "LogitsLength", "label_length": "LabelLength"},
        "Loss",
    ),
}
