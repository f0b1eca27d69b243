"""WeightedAverage: a weighted mean of values that are added one by one."""

from typing import Any

import numpy as np

from fluid import errors
from fluid.compat.lod_tensor import ScalarArray


class WeightedAverage:
    """A weighted mean of values that are added one by one, such as the losses of minibatches.

    `trainer.test` computes weighted means without such an object.

    Example:
      >>> import fluid
      >>> average = fluid.average.WeightedAverage()
      >>> average.add(value=2.0, weight=1)
      >>> average.add(value=4.0, weight=3)
      >>> float(average.eval())
      3.5
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Discard all added values and their weights, so that the next mean starts anew."""
        self._total: Any = None
        self._weight = 0.0

    def add(self, value: Any, weight: Any) -> None:
        """Add a value with its weight to the weighted mean.

        Args:
          value: a number or an array; all added values must have the same shape.
          weight: the weight of the value, a number, such as the number of rows of a minibatch.

        Raises:
          ArgumentTypeError: the value does not hold numbers, or the weight is not a number.
        """
        found = np.asarray(value)
        if found.dtype.kind not in "fiub" or np.size(weight) != 1 or np.asarray(weight).dtype.kind not in "fiu":
            raise errors.ArgumentTypeError(
                f"WeightedAverage.add(value={value!r}, weight={weight!r}): expected numbers, as in "
                f"add(value=loss, weight=32)"
            )
        share = float(np.reshape(weight, ()))
        part = found.astype("float64") * share
        self._total = part if self._total is None else self._total + part
        self._weight += share

    def eval(self) -> Any:
        """Return the weighted mean of all added values, as float64 in the shape of one value.

        Raises:
          ArgumentError: nothing was added, or the weights sum to 0.
        """
        if self._total is None or self._weight == 0:
            raise errors.ArgumentError(
                "WeightedAverage.eval(): there is nothing to average; call add(value=loss, weight=32) first"
            )
        mean = np.asarray(self._total / self._weight)
        return mean.view(ScalarArray) if mean.shape and mean.size == 1 else mean[()]
