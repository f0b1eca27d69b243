"""Metrics that store their counts in variables."""

from fluid import layers
from fluid.static.tape.recording import assigned, in_a_function, recorded
from fluid.static.tape.variable import Variable

_accuracy = recorded(layers.accuracy)
_cast = recorded(layers.cast)
_ones_like = recorded(layers.ones_like)
_reduce_sum = recorded(layers.reduce_sum)
_round = recorded(layers.round)


def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Variable | None = None,
    total: Variable | None = None,
    name: str | None = None,
) -> Variable:
    """Compute the fraction of rows whose class is among the `k` most probable classes, see `fluid.layers.accuracy`.

    Args:
      input: probabilities or scores `[-1, classes]`.
      label: classes `[-1, 1]` of an integer dtype.
      k: the number of classes that count as predicted.
      correct: a variable that receives the number of these rows, for example from `create_tensor`.
      total: a variable that receives the number of all rows.
      name: name of the layer; by default `accuracy_N`.

    Returns:
      The variable of the fraction, float32.

    Example:
      >>> import numpy as np
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     scores, label = fluid.layers.data("scores", shape=[2]), fluid.layers.data("label", [1], dtype="int64")
      ...     rows = fluid.layers.create_tensor("int64")
      ...     right = fluid.layers.accuracy(scores, label, total=rows)
      >>> feed = {"scores": np.float32([[0, 1], [1, 0], [1, 0], [0, 1]]), "label": np.int64([[1], [1], [0], [1]])}
      >>> [float(found) for found in fluid.Executor().run(main, feed, [right, rows])]
      [0.75, 4.0]
    """
    if in_a_function():
        return _accuracy(input, label, k, correct, total, name)
    fraction = _accuracy(input, label, k, name=name)
    if correct is not None or total is not None:
        rows = _reduce_sum(_ones_like(_cast(label, "float32")))
        if total is not None:
            assigned(total, layers.cast, rows, "int64")
        if correct is not None:
            assigned(correct, layers.cast, _round(fraction * rows), "int64")
    return fraction
