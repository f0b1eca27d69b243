"""Evaluators: metrics that a program accumulates over all minibatches, from `reset` to `eval`."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from fluid import core, errors, metrics
from fluid.layers import py_func
from fluid.static import layers, unique_name
from fluid.static.scope import global_scope
from fluid.static.tape.program import default_main_program
from fluid.static.tape.variable import Persistent, Variable

__all__ = ["Accuracy", "ChunkEvaluator", "DetectionMAP", "EditDistance"]


class Evaluator:
    """The base class of evaluators, which accumulate a metric in counters; runs in test mode change the counters too.

    Attributes:
      metrics: the variables with the metrics of the current minibatch.
      states: the variables of the counters.
    """

    def __init__(self, kind: str):
        if default_main_program().inside_block:
            raise errors.ProgramError(f"evaluator.{type(self).__name__} counts minibatches; call it outside of blocks")
        self.metrics: list[Variable] = []
        self.states: list[Persistent] = []
        self._name = unique_name.generate(kind)

    def reset(self, executor: Any, reset_program: Any = None) -> None:
        """Set all counters to zero; the arguments have no effect."""
        del executor, reset_program
        for state in self.states:
            found = global_scope().find_var(state.name)
            if found is not None:
                found.set(np.zeros(state.shape))

    def _count(self, suffix: str, value: Any, dtype: str = "int64") -> None:
        """Create a counter, to which each run of the program adds the one-element variable `value`.

        The name of the counter is the name of the evaluator, an underscore and `suffix`."""
        name = f"{self._name}_{suffix}"
        state = layers.create_global_var([1], 0, dtype, persistable=True, name=name)
        state.counts = True
        layers.sums([state, layers.reshape(layers.cast(value, dtype), [1])], out=state)
        self.states.append(state)

    def _counts(self) -> list[float]:
        """Return the current values of all counters as a list of numbers."""
        found = [global_scope().find_var(state.name) for state in self.states]
        if None in found:
            raise errors.ProgramError(
                f"evaluator.{type(self).__name__}.eval: {self.states[0].name} has no value yet; run the startup "
                f"program first: exe.run(fluid.default_startup_program())"
            )
        return [np.asarray(value).item() for value in found]


class Accuracy(Evaluator):
    """The fraction of rows whose label is among the classes with the `k` largest scores, over all minibatches.

    Args:
      input: the scores, `[batch, classes]`.
      label: integers `[batch, 1]`.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
      ...     scores, label = fluid.layers.data("scores", [2]), fluid.layers.data("label", [1], dtype="int64")
      ...     accuracy = fluid.evaluator.Accuracy(input=scores, label=label)
      ...     exe = fluid.Executor(fluid.CPUPlace())
      ...     _ = exe.run(fluid.default_startup_program())
      ...     feed = {"scores": np.float32([[0.2, 0.8], [0.7, 0.3]]), "label": np.int64([[1], [1]])}
      ...     _ = [exe.run(feed=feed, fetch_list=accuracy.metrics) for _ in range(3)]
      ...     accuracy.eval(exe).tolist()
      [0.5]
    """

    def __init__(self, input: Variable, label: Variable, k: int = 1, **kwargs: Any):
        del kwargs
        super().__init__("accuracy")
        correct, total = layers.create_tensor("int64"), layers.create_tensor("int64")
        self.metrics.append(layers.accuracy(input, label, k=k, correct=correct, total=total))
        self._count("total", total)
        self._count("correct", correct)

    def eval(self, executor: Any, eval_program: Any = None) -> np.ndarray:
        """Return the fraction of correct rows since the last reset, float32 `[1]`; 0 before the first minibatch."""
        del executor, eval_program
        total, correct = self._counts()
        return np.array([correct / total if total else 0.0], "float32")


class ChunkEvaluator(Evaluator):
    """Precision, recall and F1 of chunks in sequences of tags, over all minibatches; see `fluid.layers.chunk_eval`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
      ...     found = fluid.layers.data("found", [1], dtype="int64", lod_level=1)
      ...     right = fluid.layers.data("right", [1], dtype="int64", lod_level=1)
      ...     chunks = fluid.evaluator.ChunkEvaluator(found, right, chunk_scheme="IOB", num_chunk_types=2)
      ...     exe = fluid.Executor(fluid.CPUPlace())
      ...     _ = exe.run(fluid.default_startup_program())
      ...     _ = exe.run(feed={"found": [[0, 1, 4, 2]], "right": [[0, 1, 4, 0]]}, fetch_list=chunks.metrics)
      ...     [float(value[0]) for value in chunks.eval(exe)]
      [0.5, 0.5, 0.5]
    """

    def __init__(
        self,
        input: Variable,
        label: Variable,
        chunk_scheme: str,
        num_chunk_types: int,
        excluded_chunk_types: Sequence[int] | None = None,
    ):
        super().__init__("chunk_eval")
        found = layers.chunk_eval(input, label, chunk_scheme, num_chunk_types, excluded_chunk_types)
        self.metrics.extend(found[:3])
        for which, count in zip(("infer", "label", "correct"), found[3:], strict=True):
            self._count(f"num_{which}_chunks", count)

    def eval(self, executor: Any, eval_program: Any = None) -> tuple[np.ndarray, ...]:
        """Return precision, recall and F1 since the last reset, each float32 `[1]`."""
        del executor, eval_program
        metric = metrics.ChunkEvaluator()
        metric.update(*self._counts())
        return tuple(np.array([value], "float32") for value in metric.eval())


class EditDistance(Evaluator):
    """The mean edit distance, and the fraction of sequences with an error, over all minibatches.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.scope_guard(fluid.Scope()):
      ...     guess = fluid.layers.data("guess", [1], dtype="int64", lod_level=1)
      ...     truth = fluid.layers.data("truth", [1], dtype="int64", lod_level=1)
      ...     distance = fluid.evaluator.EditDistance(input=guess, label=truth)
      ...     exe = fluid.Executor(fluid.CPUPlace())
      ...     _ = exe.run(fluid.default_startup_program())
      ...     _ = exe.run(feed={"guess": [[1, 2, 3], [5]], "truth": [[1, 3], [5]]}, fetch_list=distance.metrics)
      ...     [float(value[0]) for value in distance.eval(exe)]
      [0.25, 0.5]
    """

    def __init__(self, input: Variable, label: Variable, ignored_tokens: Sequence[int] | None = None, **kwargs: Any):
        del kwargs
        super().__init__("edit_distance")
        distances, rows = layers.edit_distance(input, label, ignored_tokens=ignored_tokens)
        total = layers.reduce_sum(distances)
        wrong = layers.reduce_sum(layers.cast(distances > 0.0, "int64"))
        self.metrics += [total, wrong]
        self._count("total_distance", total, "float32")
        self._count("seq_num", rows)
        self._count("instance_error", wrong)

    def eval(self, executor: Any, eval_program: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean edit distance, and the fraction of sequences with errors, each float32 `[1]`.

        Both numbers are over all minibatches since the last reset.

        Raises:
          ProgramError: the program has not run since the start or the last `reset`.
        """
        del executor, eval_program
        total, rows, wrong = self._counts()
        if not rows:
            raise errors.ProgramError(
                "evaluator.EditDistance.eval: nothing was measured since the start or the last reset; run the program "
                "first: exe.run(program, feed=..., fetch_list=distance.metrics)"
            )
        return np.array([total / rows], "float32"), np.array([wrong / rows], "float32")


class DetectionMAP(Evaluator):
    """Mean average precision of detected boxes, for one minibatch and for all; see `fluid.metrics.DetectionMAP`.

    The metric is computed on the host, which stores the scores of all detections. Every run must fetch the accumulated
    value, the second variable of `get_map_var()`.

    Args:
      gt_label: classes of the objects, a sequence of `[1]` for each image.
      gt_box: boxes of the objects, a sequence of `[4]` for each image.
      gt_difficult: 1 for difficult objects, else 0, a sequence of `[1]` for each image.

    Raises:
      ArgumentTypeError: a variable is not a batch of sequences, one for each image.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.evaluator.DetectionMAP.__name__  # cur_map, accum_map = evaluator.get_map_var()
      'DetectionMAP'
    """

    def __init__(
        self,
        input: Variable,
        gt_label: Variable,
        gt_box: Variable,
        gt_difficult: Variable | None = None,
        class_num: int | None = None,
        background_label: int = 0,
        overlap_threshold: float = 0.5,
        evaluate_difficult: bool = True,
        ap_version: str = "integral",
    ):
        super().__init__("map_eval")
        settings = (class_num, background_label, overlap_threshold, evaluate_difficult, ap_version)
        self._batch, self._all = metrics.DetectionMAP(None, *settings), metrics.DetectionMAP(None, *settings)
        self._seen = 0
        self._latest = (0.0, 0.0)
        self._count("runs", layers.fill_constant([1], "int64", 1))
        given = [v for v in (input, gt_label, gt_box, gt_difficult) if v is not None]
        for variable in given:
            if variable.lod_level != 1:
                raise errors.ArgumentTypeError(
                    f"evaluator.DetectionMAP: {variable!r} has the same number of rows for each image, expected rows "
                    f"by image: fluid.layers.data(name, shape=[4], lod_level=1)"
                )
        program = default_main_program()
        self.metrics += program.apply(_Measured(self._measure), (self.states[0], given))

    def get_map_var(self) -> tuple[Variable, Variable]:
        """Return two variables `[1]`: the mean average precision of one minibatch, and since the last `reset`."""
        return self.metrics[0], self.metrics[1]

    def reset(self, executor: Any, reset_program: Any = None) -> None:
        """Delete the results of all minibatches; the argument `reset_program` has no effect."""
        super().reset(executor, reset_program)
        self._all.reset()
        self._seen = 0

    def _measure(self, run: int, images: Sequence[core.SequenceBatch]) -> tuple[float, float]:
        """Return the mean average precision of a new minibatch, and of all minibatches since the last `reset`."""
        # A startup program also resets the counter of runs, so `run` is 1 in the next run of the main program.
        if run == 1:
            self._all.reset()
        elif run not in (self._seen, self._seen + 1):
            raise errors.ProgramError(
                f"evaluator.DetectionMAP: this is run {run} since the last reset, and {self._seen} of them fetched the "
                f"accumulated value; fetch get_map_var()[1] in each run, and call reset(exe) before the first one"
            )
        # JAX may call this function on the host twice in one run, so add a minibatch to the metrics only once.
        elif run == self._seen:
            return self._latest
        self._seen = run
        self._batch.reset()
        for metric in (self._batch, self._all):
            metric.update(*images)
        self._latest = (self._batch.eval(), self._all.eval())
        return self._latest


class _Measured:
    """A function that a program runs: it passes detections and true objects to a Python function on the host."""

    def __init__(self, measure: Any):
        self.__name__ = "detection_map"
        self._measure = measure

    def __call__(self, run: Any, given: Sequence[core.SequenceBatch]) -> list[Any]:
        """Return the mean average precision of the current minibatch, and of all minibatches since the last reset."""

        def host(run: np.ndarray, *arrays: np.ndarray) -> list[np.ndarray]:
            pairs = zip(arrays[::2], arrays[1::2], strict=True)
            found = self._measure(run.item(), [core.SequenceBatch(data, lengths) for data, lengths in pairs])
            return [np.array([value], "float32") for value in found]

        arrays = [array for batch in given for array in (batch.data, batch.lengths)]
        return py_func(host, [run, *arrays], [jax.ShapeDtypeStruct((1,), "float32")] * 2)
