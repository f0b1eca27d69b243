"""Totals: the value of an output over a data set, gathered on the host from what its minibatches contribute."""

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from fluid.core import NestedSequenceBatch, Part, Reduction, SequenceBatch


class Total:
    """The value of one output over the minibatches so far. Sums and means are computed in float64.

    Args:
      reduction: how the values of minibatches become one.

    Example:
      >>> total = Total(Reduction("mean"))
      >>> total.add(Part(np.float32(1), 3)); total.add(Part(np.float32(0), 1))
      >>> float(total.result())
      0.75

    Attributes:
      kept: bytes of the rows that are kept until the end.
    """

    def __init__(self, reduction: Reduction):
        self._reduction = reduction
        self._inner = [Total(rule) for rule in reduction.parts]
        self._sum = _Sum()
        self._weight = _Sum()
        self._values: list[Any] = []
        self.kept = 0

    def add(self, part: Part) -> None:
        """Count one more minibatch; waits for its values.

        Args:
          part: on the device, or on the host.
        """
        kind = self._reduction.kind
        if kind == "function":
            for total, inner in zip(self._inner, part.value, strict=True):
                total.add(inner)
        elif kind == "mean":
            weight = np.asarray(part.weight, np.float64)
            self._sum.add(np.asarray(part.value, np.float64) * weight)
            self._weight.add(weight)
        elif kind == "sum":
            self._sum.add(_wide(part.value))
        elif kind == "rows":
            self._values.append(jax.device_get(part.value))
            self.kept += sum(leaf.nbytes for leaf in jax.tree.leaves(self._values[-1]))
        else:
            value = np.asarray(part.value)
            self._values = [_OF_TWO[kind](self._values[0], value) if self._values else value]

    def result(self) -> Any:
        """The value: a NumPy array, or a sequence batch; scalars as float64 or int64."""
        kind = self._reduction.kind
        if kind == "function":
            assert self._reduction.function is not None
            with jax.enable_x64(True):  # a function of jax.numpy would compute in float32 otherwise
                return _scalar(np.asarray(self._reduction.function(*(total.result() for total in self._inner))))
        if kind == "mean":
            weight = self._weight.value()
            return _scalar(np.asarray(self._sum.value() / weight if weight else np.full(self._sum.shape, math.nan)))
        if kind == "sum":
            return _scalar(np.asarray(self._sum.value()))
        return _joined(self._values) if kind == "rows" else _scalar(self._values[0])


class _Sum:
    """A sum of scalars, rounded once, or of arrays of one shape."""

    def __init__(self) -> None:
        self.shape: tuple[int, ...] = ()
        self._scalars: list[float] = []
        self._array: Any = 0

    def add(self, value: np.ndarray) -> None:
        """Add a scalar or an array, of float64 or int64."""
        self.shape = value.shape
        if value.shape == () and value.dtype.kind == "f":
            self._scalars.append(float(value))
        else:
            self._array = self._array + value

    def value(self) -> Any:
        """The sum so far."""
        return math.fsum(self._scalars) if self._scalars else self._array


_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "max": np.maximum,
    "min": np.minimum,
    "last": lambda before, value: value,
}


def _wide(value: Any) -> np.ndarray:
    """The same numbers as float64 or int64, in which sums are exact, or nearly so."""
    array = np.asarray(value)
    return array.astype(np.int64 if array.dtype.kind in "biu" else np.float64)


def _scalar(array: np.ndarray) -> Any:
    """Arrays as they are; scalars as float64 or int64, and truth values as they are."""
    return array if array.ndim or array.dtype.kind == "b" else _wide(array)[()]


def _joined(values: list[Any]) -> Any:
    """The rows of all values."""
    kind = type(values[0])
    if kind in (SequenceBatch, NestedSequenceBatch):
        return kind.from_rows([row for value in values for row in value.rows()])
    return np.concatenate(values)
