"""Structured prediction: labels of sequences by CRF and CTC."""

from typing import Any

from fluid import layers
from fluid.original.op import Op, Outputs, Row, Rule


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

ROWS: dict[str, Rule] = {
    "chunk_eval": Row(
        layers.chunk_eval,
        {"input": "Inference", "label": "Label"},
        _CHUNKS,
        {"seq_length": "SeqLength"},
        ("Precision", "Recall", "F1-Score", "NumInferChunks", "NumLabelChunks", "NumCorrectChunks"),
    ),
    "crf_decoding": _crf_decoding,
    "ctc_align": _ctc_align,
    "edit_distance": Row(
        layers.edit_distance,
        {"input": "Hyps", "label": "Refs"},
        {"normalized": ("normalized", False)},
        _LENGTHS,
        ("Out", "SequenceNum"),
    ),
    "linear_chain_crf": _linear_chain_crf,
    "warpctc": Row(
        layers.warpctc,
        {"input": "Logits", "label": "Label"},
        {"blank": ("blank", 0), "norm_by_times": ("norm_by_times", False)},
        {"input_length": "LogitsLength", "label_length": "LabelLength"},
        "Loss",
    ),
}
