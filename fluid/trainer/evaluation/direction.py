"""Directions: "max" if a larger value is better, "min" if a smaller one is, by default from the name of the value."""

import re
from collections.abc import Callable

from fluid import errors

AUTO = "auto"

# Phrases of a name, whose words are split at non-letters, at digits, and at the words of camel case.
_LARGER = re.compile(
    r"\b(acc|accs|accuracy|accuracies|auc|aucs|auroc|auprc|aupr|ap|map|precision|recall|sensitivity|specificity|"
    r"f \d+|f beta|fscore|r \d+|rsquared|iou|io u|miou|dice|jaccard|bleu|rouge|meteor|chrf|cider|dcg|ndcg|mrr|mcc|"
    r"kappa|top \d+|hits \d+|psnr|ssim|reward|rewards|correlation|pearson|spearman|win rate|exact match)\b"
)
_SMALLER = re.compile(
    r"\b(loss|losses|logloss|error|errors|err|cost|costs|mae|mse|rmse|mape|smape|msle|rmsle|perplexity|ppl|nll|bce|"
    r"cross entropy|crossentropy|xent|kl|kld|divergence|deviance|regret|brier|wer|cer|ter|eer|fid|kid|lpips)\b"
)
# Words that change the meaning of a name: "neg_mse", "loss_scale", "accuracy_std", "map_size".
_OTHER = re.compile(
    r"\b(neg|negative|minus|inv|inverse|not|no|without|std|stddev|var|variance|count|number|num|size|shape|delta|diff|"
    r"difference|gap|change|drop|ratio|scale|weight|weights|coefficient|factor|threshold|target|norm|grad|gradient|time|"
    r"ms|seconds|step|steps|epoch|epochs|rank|id)\b"
)


def direction(name: str, mode: str, call: Callable[[str], str]) -> str:
    """Return `mode`, "min" or "max"; with "auto", read the direction from the words of the name.

    Larger is better for "test_acc", "val/AUC" and "map50", smaller for "loss" and "valRMSE". A loss or error of another
    quantity is a loss: "dice_loss", "top5_error".

    Args:
      name: the name of a value.
      mode: "min", "max" or "auto".
      call: returns the user's call with a given mode, as text for messages.

    Raises:
      ArgumentError: the mode is another word; or the mode is "auto", and the name is unknown or ambiguous.

    Example:
      >>> direction("val_accuracy_5", "auto", "EarlyStopping('val_accuracy_5', mode={!r})".format)
      'max'
    """
    if mode in ("min", "max"):
        return mode
    if mode != AUTO:
        raise errors.ArgumentError(f'{call(mode)}: expected "min", "max", or "auto" to read it from the name')
    value = str(name)
    if said := _said(value.rpartition("/")[2]) or _said(value):  # before a slash is the name of a program
        return said
    raise errors.ArgumentError(
        f"{call(mode)}: the name {name!r} does not say whether larger or smaller is better, expected mode='max' or "
        f"'min': {call('max')} if the largest is best, or else {call('min')}"
    )


def _said(name: str) -> str | None:
    """Return the direction of a name, "min" or "max"; None if its words are unknown or ambiguous."""
    words = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()
    larger = [match.end() for match in _LARGER.finditer(words)]
    smaller = [match.end() for match in _SMALLER.finditer(words)]
    if not larger + smaller or _OTHER.search(words) or re.search(r"\b1\s*-", name):
        return None
    if not smaller:
        return "max"
    return "min" if max(smaller) > max(larger, default=-1) else None
