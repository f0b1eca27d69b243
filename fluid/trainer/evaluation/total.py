"""Total: the values of one program output for many minibatches, combined to one value; for tests and for trainings."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import Contribution, NestedSequenceBatch, Reduction, SequenceBatch

# A sum of scalars keeps at most this number of summands before it replaces them by a few numbers with an equal sum.
_SUMMANDS = 1000
# A test or a training warns if the rows that it collects in memory take more than this number of bytes.
MANY = 64 * 2**20


class Total:
    """An accumulator of one program output over minibatches of a data set, or over training steps.

    Sums and means are in float64. A minibatch of weight 0 adds nothing to a mean.

    Example:
      >>> total = Total(Reduction("mean"))
      >>> total.add(Contribution(np.float32(1), 3)); total.add(Contribution(np.float32(0), 1))
      >>> float(total.result())
      0.75

    Attributes:
      reduction: the rule.
      kept: the number of bytes of the rows that stay in memory until the end.
    """

    def __init__(self, reduction: Reduction, members: int | None = None):
        self.reduction = reduction
        self._members = members
        self._inner = [Total(rule, members) for rule in reduction.parts]
        self._sum = _Sum()
        self._weight = _Sum()
        self._values: list[Any] = []
        self.kept = 0

    @property
    def kind(self) -> str:
        """The kind of the rule that combines the minibatches, such as "mean" or "rows"."""
        return self.reduction.kind

    @property
    def size(self) -> int:
        """The number of bytes of all rows in memory, also of the values that the output is a function of."""
        return self.kept + sum(total.size for total in self._inner)

    def add(self, part: Contribution) -> None:
        """Add the value of one minibatch, after waiting until the device has computed it."""
        if self.kind == "function":
            for total, inner in zip(self._inner, part.value, strict=True):
                total.add(inner)
            return
        value = jax.device_get(part.value)
        weight = None if part.weight is None else np.asarray(part.weight)[None]
        self.add_steps(Contribution([value] if self.kind == "rows" else np.asarray(value)[None], weight))

    def add_steps(self, part: Contribution) -> None:
        """Add the values of several minibatches, in order.

        Args:
          part: NumPy arrays with the values and the weights, stacked along the first axis. For the rule "rows" the
            value is a list with an array or a sequence batch for each minibatch.
        """
        if self.kind == "function":
            for total, inner in zip(self._inner, part.value, strict=True):
                total.add_steps(inner)
        elif self.kind == "mean":
            values, weights = np.asarray(part.value, np.float64), np.asarray(part.weight, np.float64)
            factors = weights.reshape(weights.shape + (1,) * (values.ndim - weights.ndim))
            # the mean of nothing may be NaN
            self._sum.add(np.where(factors == 0, 0.0, values) * factors)
            self._weight.add(weights)
        elif self.kind == "sum":
            self._sum.add(_wide(part.value))
        elif self.kind == "rows":
            for value in part.value:
                self._keep(value)
        else:
            value = _OF_STEPS[self.kind](part.value)
            self._values = [_OF_STEPS[self.kind](np.stack([self._values[0], value])) if self._values else value]

    def result(self) -> Any:
        """Return the value of the output over all added minibatches.

        The result is a NumPy array, a scalar of float64 or int64, or, for rows of sequences, a SequenceBatch.
        """
        if self.kind == "function":
            found = [total.result() for total in self._inner]
            if self._members is None:
                return self._computed(found)
            return np.stack([self._computed([value[i] for value in found]) for i in range(self._members)])
        if self.kind == "mean":
            total, weight = self._sum.value(), np.asarray(self._weight.value())
            weight = weight.reshape(weight.shape + (1,) * (np.ndim(total) - weight.ndim))
            return _scalar(np.where(weight == 0, math.nan, total / np.where(weight == 0, 1.0, weight)))
        if self.kind == "sum":
            return _scalar(np.asarray(self._sum.value()))
        if self.kind != "rows":
            return _scalar(np.asarray(self._values[0]))
        if self._members is None:
            return _joined(self._values)
        each = [_joined([jax.tree.map(lambda a, i=i: a[i], v) for v in self._values]) for i in range(self._members)]
        return jax.tree.map(lambda *values: np.stack(values), *each)

    def state(self) -> dict[str, Any]:
        """Return everything that was added, as JSON; `restore` continues from it, with an equal result to the bit."""
        return {
            "kind": self.kind,
            "sum": self._sum.state(),
            "weight": self._weight.state(),
            "values": [_packed(value) for value in self._values],
            "parts": [total.state() for total in self._inner],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a result of `state`."""
        self._sum.restore(state["sum"])
        self._weight.restore(state["weight"])
        if self.kind == "rows":
            for packed in state["values"]:
                self._keep(_unpacked(packed))
        else:
            self._values = [_unpacked(packed) for packed in state["values"]]
        for total, part in zip(self._inner, state["parts"], strict=True):
            total.restore(part)

    def _keep(self, rows: Any) -> None:
        self._values.append(rows)
        self.kept += sum(leaf.nbytes for leaf in jax.tree.leaves(rows))

    def _computed(self, arguments: Sequence[Any]) -> Any:
        assert self.reduction.function is not None
        # enable 64 bits, because a user's function may call jax.numpy, which otherwise computes in float32
        with jax.enable_x64(True):
            return _scalar(np.asarray(self.reduction.function(*arguments)))


class _Sum:
    """A sum of arrays of one shape, or of scalars; a sum of float64 scalars is exact until it is read."""

    def __init__(self) -> None:
        self._scalars: list[float] = []
        self._array: Any = 0

    def add(self, values: np.ndarray) -> None:
        """Add the entries along the first axis, of float64 or int64, one after the other."""
        if values.ndim == 1 and values.dtype.kind == "f":
            self._scalars.extend(values.tolist())
            if len(self._scalars) > _SUMMANDS:
                self._scalars = _shortened(self._scalars)
            return
        with np.errstate(invalid="ignore"):  # inf - inf
            for value in values:
                self._array = self._array + value

    def value(self) -> Any:
        return _shortened(self._scalars)[0] if self._scalars else self._array

    def state(self) -> dict[str, Any]:
        scalars = _shortened(self._scalars) if self._scalars else []
        return {"scalars": scalars, "array": _packed(np.asarray(self._array))}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._scalars = list(state["scalars"])
        self._array = _unpacked(state["array"])


def _shortened(numbers: Sequence[float]) -> list[float]:
    """Replace many floats by a few floats with the same exact sum, so that a checkpoint can store the sum exactly.

    The first returned number is the sum rounded to a float; the others are the rounding errors.

    Example:
      >>> _shortened([1e16, 1.0, 0.25, -1e16]), _shortened([1.0, 1e-30])
      ([1.25], [1.0, 1e-30])
    """
    rounded = sum(numbers)
    if not math.isfinite(rounded):
        return [rounded]
    found: list[float] = []
    while rest := math.fsum((*numbers, *(-number for number in found))):
        found.append(rest)
    return found or [0.0]


_OF_STEPS: Mapping[str, Any] = {
    "max": lambda values: np.max(values, axis=0),
    "min": lambda values: np.min(values, axis=0),
    "last": lambda values: values[-1],
}


def _wide(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.int64 if array.dtype.kind in "biu" else np.float64)


def _scalar(array: np.ndarray) -> Any:
    return array if array.ndim or array.dtype.kind == "b" else _wide(array)[()]


def _joined(values: list[Any]) -> Any:
    """Concatenate the rows of several minibatches, which are arrays or sequence batches, in order."""
    kind = type(values[0])
    if kind in (SequenceBatch, NestedSequenceBatch):
        return kind.from_rows([row for value in values for row in value.rows()])
    return np.concatenate(values)


def _packed(array: Any) -> dict[str, Any]:
    """Return an array as JSON, from which `_unpacked` returns the array with equal bits."""
    array = np.asarray(array)
    # float64 holds all narrower floats, such as bfloat16, exactly
    numbers = array.astype(np.float64) if jnp.issubdtype(array.dtype, jnp.floating) else array
    return {"dtype": array.dtype.name, "shape": list(array.shape), "numbers": numbers.ravel().tolist()}


def _unpacked(packed: Mapping[str, Any]) -> np.ndarray:
    return np.array(packed["numbers"]).reshape(packed["shape"]).astype(jnp.dtype(packed["dtype"]))
