"""Monitors: the base class of handlers that follow one value; SaveBest; and the direction in which a value improves."""

import contextlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.paths import PathLike, local_path
from fluid.core import fitting, warn, warn_once
from fluid.runtime.finite import Health
from fluid.trainer.evaluation.means import Averaging, as_json, by_name, from_json, known_values, number, on_host
from fluid.trainer.evaluation.measurements import Measurements
from fluid.trainer.events import BeginTrainEvent, EndEpochEvent, EndTrainEvent, MeasuredEvent

AUTO = "auto"

# Words in names of values: `_LARGER` for values of which larger ones are better, and `_SMALLER` for values of which
# smaller ones are better. Before the comparison, a name is split into words: at characters other than letters and
# digits, between letters and digits, and in camel case.
_LARGER = re.compile(
    r"\b(acc|accs|accuracy|accuracies|auc|aucs|auroc|auprc|aupr|ap|map|precision|recall|sensitivity|specificity|"
    r"f \d+|f beta|fscore|r \d+|rsquared|iou|io u|miou|dice|jaccard|bleu|rouge|meteor|chrf|cider|dcg|ndcg|mrr|mcc|"
    r"kappa|top \d+|hits \d+|psnr|ssim|reward|rewards|correlation|pearson|spearman|win rate|exact match)\b"
)
_SMALLER = re.compile(
    r"\b(loss|losses|logloss|error|errors|err|cost|costs|mae|mse|rmse|mape|smape|msle|rmsle|perplexity|ppl|nll|bce|"
    r"cross entropy|crossentropy|xent|kl|kld|divergence|deviance|regret|brier|wer|cer|ter|eer|fid|kid|lpips)\b"
)
# For a name with one of these words, it is unknown whether larger or smaller values are better. Examples are "neg_mse",
# "loss_scale", "accuracy_std" and "map_size".
_OTHER = re.compile(
    r"\b(neg|negative|minus|inv|inverse|not|no|without|std|stddev|var|variance|count|number|num|size|shape|delta|diff|"
    r"difference|gap|change|drop|ratio|scale|weight|weights|coefficient|factor|threshold|target|norm|grad|gradient|time|"
    r"ms|seconds|step|steps|epoch|epochs|rank|id)\b"
)


def direction(name: str, mode: str, call: Callable[[str], str]) -> str:
    """Return "min" if smaller values are better, else "max": the argument `mode`, or for "auto" derived from the name.

    Larger is better for "test_acc", "val/AUC" and "map50", smaller for "loss" and "valRMSE". A name that ends in a word
    for a loss or an error has the direction of a loss: "dice_loss", "top5_error".

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
    # the part of the name before a slash is the name of a program: ignore it
    if said := _said(value.rpartition("/")[2]) or _said(value):
        return said
    raise errors.ArgumentError(
        f"{call(mode)}: the name {name!r} does not say whether larger or smaller is better, expected mode='max' or "
        f"'min': {call('max')} if the largest is best, or else {call('min')}"
    )


def _said(name: str) -> str | None:
    """Return "min" or "max", the direction that the words of a name imply; None if they are unknown or ambiguous."""
    words = " ".join(re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)).lower()
    larger = [match.end() for match in _LARGER.finditer(words)]
    smaller = [match.end() for match in _SMALLER.finditer(words)]
    if not larger + smaller or _OTHER.search(words) or re.search(r"\b1\s*-", name):
        return None
    if not smaller:
        return "max"
    return "min" if max(smaller) > max(larger, default=-1) else None


# If a word in the name of a value begins like this, the value ranges from 0 to 1, or from 0 to 100 percent. For a range
# from 0 to 1, a `min_delta` of 1 or more is a mistake: the user probably means percent.
_FRACTION = re.compile(r"(^|[_/])(acc|accuracy|auc|precision|recall|f1|map|iou)", re.IGNORECASE)


class Monitor(Averaging):
    """A base class of handlers that follow one scalar.

    The scalar is an output of the program, as its mean over each epoch, or a value that another handler reports.

    Args:
      monitor: the name of the scalar, such as "loss" or "test_loss".
      mode: "min" or "max", the direction of improvement; "auto" derives the direction from the name.
      min_delta: the least difference to the best value that counts as an improvement.

    Attributes:
      monitor: the argument `monitor`.
      best: the best value so far; None before the first finite value. For a Population (several trainings at once), a
        float64 array `[members]` if the handler has `for_members`.
    """

    monitor: str
    best: Any
    for_members = False
    # The beginning of error messages: a call of the user, such as "train(restore_best=...)"; None for the class name.
    asked_by: str | None = None

    def __init__(self, monitor: str, mode: str = AUTO, min_delta: float = 0.0):
        super().__init__()
        kind = type(self).__name__
        if not min_delta >= 0:
            raise errors.ArgumentError(f"{kind}(min_delta={min_delta!r}): expected a number from 0 on")
        self.monitor = monitor
        self.best = None
        self._measurements = Measurements()
        self._mode = direction(monitor, mode, lambda mode: f"{kind}({monitor!r}, mode={mode!r})")
        self._sign = 1 if self._mode == "min" else -1
        self._min_delta = min_delta

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Raise UnknownNameError if no output of the program, and no reported value, has the name `monitor`."""
        super().begin_train(event)
        self._measurements.begin(self.done, known=self.best is not None)
        known = known_values(self)
        if self.monitor not in known:
            # Keras and Lightning use the prefix "val_" for results of tests: suggest "test_" instead
            meant = self.monitor.replace("val_", "test_", 1)
            raise errors.UnknownNameError(
                f"{self.asked_by or type(self).__name__} monitors {self.monitor!r}, which nothing here measures. "
                f"{errors.nearest(meant, known)} Results of tests come from train(..., test_reader=test_reader), or "
                f"handlers=[..., fluid.handlers.TestEvery(test_reader)]"
            )

    def end_epoch(self, event: EndEpochEvent) -> None:
        """Act on the mean of the monitored output over a completed epoch, as a subclass defines."""
        if self._names and event.completed:
            for value in self._take().read().values():
                self._measurements.add(value)
                self._judge(value)

    def measured(self, event: MeasuredEvent) -> None:
        """Act on the monitored value, as a subclass defines, if the event reports this value."""
        announced = by_name(event.metrics)
        if self.monitor in announced:
            value = number(announced[self.monitor])
            self._measurements.add(value)
            self._judge(value)

    def end_train(self, event: EndTrainEvent) -> None:
        """Warn if the monitored value was never measured, or never finite."""
        self._measurements.check(
            event,
            self.done,
            f"{self.asked_by or type(self).__name__} follows {self.monitor!r}, which",
            'test more often, as in train(..., test_reader=test_reader, test_every="epoch")',
        )

    def state(self) -> dict[str, Any]:
        """Return the best value so far, and the mean of the monitored output over the current epoch, as JSON."""
        return {"best": as_json(self.best), "mean": super().state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the best value, and the mean of the monitored value over the current epoch, from a checkpoint."""
        super().restore(state["mean"])
        self.best = from_json(state["best"])

    def _forget(self) -> None:
        self.best = None

    def _chosen(self, places: dict[str, int]) -> dict[str, int]:
        return {name: place for name, place in places.items() if name == self.monitor}

    def _better(self, value: Any) -> Any:
        """Return whether a finite value is better than the best value so far by more than `min_delta`.

        In a population (several trainings at once), return a boolean array `[members]`. The first finite value of a
        training is always better.
        """
        if self.best is None:
            if self._min_delta >= 1 and _FRACTION.search(self.monitor) and np.all((value >= 0) & (value <= 1)):
                warn_once(self, "min_delta", lambda: self._of_percent(value))
            return np.isfinite(value)
        known = np.isfinite(self.best)  # True for each member (training) with an earlier finite value
        return np.isfinite(value) & (~known | (self._sign * (np.subtract(self.best, value)) > self._min_delta))

    def _of_percent(self, value: Any) -> str:
        return (
            f"{type(self).__name__}({self.monitor!r}, min_delta={self._min_delta:g}): the first value is "
            f"{np.max(value):.4g}, a share of 1, which no other exceeds by {self._min_delta:g}, so that no later "
            f"one counts as better; {self._min_delta:g} percent is min_delta={self._min_delta / 100:g}"
        )

    def _judge(self, value: Any) -> None:
        """Act on a new measurement of the monitored value, for example stop training if it did not improve.

        The value is a float; in a population (several trainings at once), it is an array `[members]`.
        """
        raise NotImplementedError


@fitting("fluid.handlers.SaveBest")
class SaveBest(Monitor):
    """A handler that saves the parameters whenever a value is the best so far and all parameters are finite.

    If a test has used an average of the parameters, the handler saves the average.

    Args:
      path: as in `Trainer.save_params`; None keeps the parameters in memory, for `restore`.
      monitor: the name of the value, as for EarlyStopping. A test measures the saved parameters; the mean of an output
        over an epoch is measured with the changing parameters of all its steps.
      mode: as for EarlyStopping.
      restore: True restores the best parameters after training; the optimizer state does not change. After an error or
        an interruption, nothing is restored.

    Attributes:
      best: the best value so far, which belongs to the saved parameters; None before the first save.

    Raises:
      ArgumentError: an argument is invalid; or, when a resumed training begins, the best parameters were in the memory
        of another process.
      UnknownNameError: nothing measures this value; raised when training begins.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> saving = fluid.handlers.SaveBest("best.params", "test_loss")
      >>> handlers = [saving, fluid.handlers.TestEvery(reader)]
      >>> trainer = fluid.train(program, reader, num_epochs=3, handlers=handlers)
      >>> best = fluid.Trainer(program, fluid.optimizer.Adam(), param_path="best.params")
      >>> float(best.test(reader)[0]) == saving.best
      True
    """

    def __init__(self, path: PathLike | None, monitor: str, mode: str = AUTO, restore: bool = False):
        mode = direction(monitor, mode, lambda mode: f"SaveBest({path!r}, {monitor!r}, mode={mode!r})")
        super().__init__(monitor, mode)
        if path is None and not restore:
            raise errors.ArgumentError(
                'SaveBest(None, ...) would save nowhere; give it a file, SaveBest("best.params", ...), or restore=True'
            )
        self._path = None if path is None else local_path(path)
        self._file_of = self._path
        self._restore = restore
        self._kept: dict[str, Any] | None = None  # the best parameters, if they are stored in memory and not in a file
        self._health = Health()

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Record which arrays are non-finite when training begins; these arrays do not prevent a save.

        Raises:
          ArgumentError: the training is resumed, and the best parameters were in the memory of another process.
        """
        super().begin_train(event)
        if self.best is not None and self._path is None and self._kept is None:
            raise errors.ArgumentError(
                f"the parameters with the best {self.monitor}, {self.best:.6g}, were kept in the memory of a process "
                f'that has ended; give them a file: SaveBest("best.params", ...)'
            )
        self._health = Health.at_start(self.trainer.session.scope.arrays)

    def end_train(self, event: EndTrainEvent) -> None:
        """Restore the best parameters if `restore` is set, unless training ended by an exception."""
        super().end_train(event)
        if self._restore and self.best is not None and event.error is None:
            self.trainer.session.load_params(self._path if self._kept is None else self._kept)

    def _forget(self) -> None:
        super()._forget()
        self._kept = None

    def _judge(self, value: float) -> None:
        if not self._better(value):
            return
        with contextlib.ExitStack() as tested:
            for average in self.trainer._evaluator.averages_of(value):
                tested.enter_context(average.apply(self.trainer))
            if complaint := self._health.complaint(self.trainer.session.scope.arrays):
                warn(f"{self.monitor} is the best so far, {value:.6g}, but {complaint}; nothing was saved")
                return
            self._keep()
        self.best = value

    def _keep(self) -> None:
        """Save the current parameters to the file `path`, or keep them in memory."""
        if self._path is not None:
            self.trainer.save_params(self._path)
            return
        arrays = self.trainer.session.scope.arrays
        self._kept = dict(zip(arrays, on_host(list(arrays.values())), strict=True))
