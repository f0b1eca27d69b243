"""Results: the values that a run, a training step or a test returns. StepResults: the values of one compiled call."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, overload

import numpy as np

from fluid import errors
from fluid._util.text import html_table


class Results(Sequence[Any]):
    """The values of a run, by index in the order of the program's outputs (or of `fetch`), and by name.

    Results are a sequence and unpack like a tuple. With names they also read like a dict: `r["loss"]`, `r.loss`,
    `"loss" in r`, `dict(r)`, `f(**r)`. Values stay on the device until they are read; scalars are 0-d, so
    `float(r[0])`, `"%f" % r[0]` and `r[0] < 0.1` work. With exactly one value, `float(r)`, `r < 0.1` and `f"{r:.3f}"`
    use this value; with several they raise an error that asks for an index or a name.

    Args:
      values: arrays.
      names: one for each value, or None.

    Example:
      >>> r = Results([0.5, 0.9], ["loss", "accuracy"])
      >>> r[0], r["accuracy"], r.accuracy, len(r), r
      (0.5, 0.9, 0.9, 2, {loss: 0.5, accuracy: 0.9})
      >>> "loss" in r, dict(r)
      (True, {'loss': 0.5, 'accuracy': 0.9})
      >>> loss, accuracy = r
    """

    __slots__ = ("_values", "names")

    def __init__(self, values: Sequence[Any], names: Sequence[str] | None = None):
        self._values = values
        self.names = names

    @overload
    def __getitem__(self, index: int | str) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...

    def __getitem__(self, index: int | str | slice) -> Any:
        if not isinstance(index, str):
            return self._values[index]
        names = self.names or ()
        if index not in names:
            hint = errors.nearest(index, names) if names else 'Return a dict to name outputs: return {"loss": loss}.'
            raise errors.UnknownNameError(f"no result is called {index!r}. {hint}")
        return self._values[list(names).index(index)]

    def __getattr__(self, name: str) -> Any:
        names = (
            () if name == "names" or name.startswith("_") else self.names or ()
        )  # `copy.copy` reads attributes before `names` is set, so `self.names` would recurse
        if name not in names:
            hint = errors.nearest(name, names)
            raise AttributeError(f"results have no attribute {name!r}, and none of them is called so. {hint}")
        return self[name]

    def __contains__(self, item: object) -> bool:
        if isinstance(item, str):
            return item in (self.names or ())
        return any(item is value for value in self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def __float__(self) -> float:
        if len(self._values) != 1:
            key = repr(next(iter(self.names or ()), 0))
            raise errors.ArgumentTypeError(
                f"there are {len(self._values)} results, {self!r}, where one number is expected; say which one: "
                f"float(results[{key}])"
            )
        return float(self._values[0])

    def __lt__(self, other: Any) -> Any:
        return float(self) < other

    def __le__(self, other: Any) -> Any:
        return float(self) <= other

    def __gt__(self, other: Any) -> Any:
        return float(self) > other

    def __ge__(self, other: Any) -> Any:
        return float(self) >= other

    def __round__(self, digits: int | None = None) -> Any:
        return round(float(self), digits)

    def __format__(self, spec: str) -> str:
        return format(float(self), spec) if spec else str(self)

    def keys(self) -> list[str]:
        """Return the names of the values, in order.

        Raises:
          UnknownNameError: the results have no names.
        """
        if self.names is None:
            raise errors.UnknownNameError(
                'these results have no names; return a dict from the program to name its outputs: return {"loss": loss}'
            )
        return list(self.names)

    def values(self) -> list[Any]:
        """Return a list of all values of these results, in order, without their names."""
        return list(self._values)

    def items(self) -> list[tuple[str, Any]]:
        """Return a list of pairs `(name, value)`, in the order in which the values were requested.

        Raises:
          UnknownNameError: the results have no names.
        """
        return list(zip(self.keys(), self._values, strict=True))

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value called `name`, or `default` if no value has this name."""
        return self[name] if name in self else default

    def __repr__(self) -> str:
        shown = [_shown(v) for v in self._values]
        if self.names is None:
            return f"[{', '.join(shown)}]"
        return "{" + ", ".join(f"{n}: {v}" for n, v in zip(self.names, shown, strict=True)) + "}"

    def _repr_html_(self) -> str:
        names = self.names or [str(i) for i in range(len(self._values))]
        return html_table([(name, _shown(value)) for name, value in zip(names, self._values, strict=True)], right=[1])


def _shown(value: Any) -> str:
    if np.ndim(value) == 0 and hasattr(value, "__float__"):
        return f"{float(value):.6g}"
    return f"{value.dtype}{list(value.shape)}"


class StepResult(NamedTuple):
    """The results of a compiled step for one minibatch.

    Attributes:
      outputs: the outputs of the program, or the values that `Request.fetch` names.
      beside: the values that `Request.also` names.
      parts: with `Request.parts`, the contribution of the minibatch to the value of each output over several
        minibatches; else empty.
    """

    outputs: Results
    beside: Results
    parts: Sequence[Any]


_NOTHING = Results([], [])


class StepResults(list[StepResult]):
    """The results of one call of a compiled step: a list of one StepResult for each minibatch, on the device.

    Args:
      each: for each minibatch, a triple: the values that `Request.fetch` names, the values that `Request.also` names,
        and with `Request.parts` the contribution of the minibatch to the value of each output.

    Example:
      >>> results = StepResults([((0.5,), (), ()), ((0.25,), (), ())], ["loss"])
      >>> results[1].outputs, len(results), results.values
      ({loss: 0.25}, 2, [0.5])
    """

    __slots__ = ()

    def __init__(self, each: Sequence[Any], names: Sequence[str] | None = None, also: Sequence[str] = ()):
        super().__init__(
            [
                StepResult(Results(v, names), Results(beside, also) if also else _NOTHING, parts)
                for v, beside, parts in each
            ]
        )

    @property
    def values(self) -> list[Any]:
        """The values that `Request.fetch` names, of the first minibatch, as a list without names."""
        return self[0].outputs.values()

    @property
    def parts(self) -> Sequence[Any]:
        """The contribution of the first minibatch to the mean of each output; empty without `Request.parts`."""
        return self[0].parts
