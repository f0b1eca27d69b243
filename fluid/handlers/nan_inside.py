"""Search for non-finite values in loops and branches: the first such named value, and the loop step of this value."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core.equations import inner_jaxprs, is_literal, labelled, live_equations, scan_counts


class Inside(NamedTuple):
    """A named value inside a loop or a branch.

    Attributes:
      name: the name of the value.
      times: the index of the loop step that computed the value, from 0; one index for each nested loop, the outermost
        first. For `layers.rnn` and similar layers, the index is the position in the sequence.
      value: the array.
    """

    name: str
    times: tuple[int, ...]
    value: Any


def first_inside(closed: Any, arguments: Sequence[Any], target: Any, rows: np.ndarray | None) -> Inside | None:
    """Return the first non-finite named value inside the loops and branches on which a target depends.

    Loops run step by step. For each step that makes a value non-finite, the named values of the step are checked.

    Args:
      closed: the closed jaxpr of a program, in which values inside loops carry labels with their names.
      arguments: the arguments of the jaxpr, as a flat list of arrays.
      target: the jaxpr variable of a named value that is non-finite; only what it depends on is searched.
      rows: bool `[batch]`: the rows of the minibatch to check; None for all.

    Returns:
      The value, with its name and loop step; None if no non-finite named value is found inside.
    """
    looking = _Looking(rows)
    level = looking.level(closed.jaxpr, closed.consts, [target])
    return looking.search(level, level.run(arguments)[1])


class _Level:
    """The compiled equations of one function: the program, the body of a loop, or a branch.

    Args:
      jaxpr: the jaxpr of the function.
      consts: the values of the constants of the jaxpr.
      targets: only the loops and branches on which these variables depend are searched; None for all.

    Attributes:
      events: the equations to inspect, in program order: labels, which name a value, and equations that contain labels,
        such as loops.
    """

    def __init__(self, jaxpr: Any, consts: Sequence[Any], targets: Sequence[Any] | None = None):
        behind = None if targets is None else {id(e) for e in live_equations(jaxpr, targets)}
        self.events = [
            e
            for e in jaxpr.eqns
            if labelled(e) is not None or (_holds_labels(e) and (behind is None or id(e) in behind))
        ]
        self._read = list(dict.fromkeys(v for e in self.events for v in e.invars if not is_literal(v)))
        self._outputs = len(jaxpr.outvars)
        longer = jaxpr.replace(outvars=[*jaxpr.outvars, *self._read])
        self._compiled = jax.jit(functools.partial(jax.core.eval_jaxpr, longer, consts))

    def run(self, arguments: Sequence[Any]) -> tuple[list[Any], Callable[[Any], Any]]:
        """Run the equations on `arguments`.

        Return the outputs of the function, and a function that returns the value of an input variable of an event.
        """
        found = self._compiled(*arguments)
        values = dict(zip(self._read, found[self._outputs :], strict=True))
        return found[: self._outputs], lambda v: v.val if is_literal(v) else values[v]


class _Looking:
    """A search for a non-finite named value: first in the outermost function, then inside its loops and branches.

    Args:
      rows: bool `[batch]`: the rows to check; None for all.
    """

    def __init__(self, rows: np.ndarray | None):
        self._rows = rows
        self._levels: dict[int, tuple[Any, _Level]] = {}

    def level(self, jaxpr: Any, consts: Sequence[Any], targets: Sequence[Any] | None = None) -> _Level:
        """Return the compiled equations of a function, from a cache, so that the body of a loop is compiled once."""
        if id(jaxpr) not in self._levels:
            self._levels[id(jaxpr)] = (jaxpr, _Level(jaxpr, consts, targets))
        return self._levels[id(jaxpr)][1]

    def search(self, level: _Level, read: Callable[[Any], Any]) -> Inside | None:
        """Return the first non-finite named value in a function, or None; `read` returns the value of a variable."""
        for event in level.events:
            name = labelled(event)
            values = [read(v) for v in event.invars]
            if name is None:
                found = self._inside(event, values)
            else:
                found = Inside(name, (), values[0]) if self._bad(values[0]).any() else None
            if found is not None:
                return found
        return None

    def _inside(self, equation: Any, values: list[Any]) -> Inside | None:
        kind = equation.primitive.name
        params = equation.params
        if kind == "scan":
            return self._loop(params["jaxpr"], *_steps_of_scan(equation, values), scan_counts(equation)[1])
        if kind == "while":
            return self._while(params, values)
        if kind == "cond":
            branch = params["branches"][int(np.clip(values[0], 0, len(params["branches"]) - 1))]
            return self._call(branch, values[1:])
        inner = [e for e in inner_jaxprs(equation) if len(e.invars) == len(values)]
        return self._call(inner[0], values) if inner else None

    def _call(self, function: Any, values: list[Any]) -> Inside | None:
        level = self.level(*_opened(function))
        return self.search(level, level.run(values)[1])

    def _loop(
        self, body: Any, consts: list[Any], carry: list[Any], steps: Iterator[tuple[int, list[Any]]], carried: int
    ) -> Inside | None:
        """Run a loop up to the first step in which a named value is non-finite; return this value, or None.

        Args:
          body: the jaxpr of one loop step, with arguments `[*consts, *carry, *slices]`.
          consts: the values that are equal in all steps.
          carry: the values that one step passes to the next, before the first step.
          steps: the index of each step, and its slices of the scanned inputs.
          carried: the number of values in the carry, which are the first outputs of `body`.
        """
        level = self.level(*_opened(body))
        for number, slices in steps:
            outputs, read = level.run([*consts, *carry, *slices])
            if self._spoils(carry, outputs):
                found = self.search(level, read)
                if found is not None:
                    return found._replace(times=(number, *found.times))
            carry = outputs[:carried]
        return None

    def _while(self, params: Any, values: list[Any]) -> Inside | None:
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]
        condition = self.level(*_opened(params["cond_jaxpr"]))
        level = self.level(*_opened(params["body_jaxpr"]))
        carry = values[second:]
        number = 0
        while bool(condition.run([*values[:first], *carry])[0][0]):
            outputs, read = level.run([*values[first:second], *carry])
            if self._spoils(carry, outputs):
                found = self.search(level, read)
                if found is not None:
                    return found._replace(times=(number, *found.times))
            carry = outputs
            number += 1
        return None

    def _spoils(self, before: list[Any], after: list[Any]) -> bool:
        """Return whether a loop step turns a finite element of its carry non-finite, or has another non-finite output.

        Args:
          before: the carry before the step.
          after: the outputs of the step: the carry after the step, then other outputs.
        """
        kept = zip(before, after[: len(before)], strict=True)
        if any((self._bad(new) & ~self._bad(old)).any() for old, new in kept):
            return True
        return any(self._bad(value).any() for value in after[len(before) :])

    def _bad(self, value: Any) -> np.ndarray:
        """Return a bool mask of the non-finite elements of a value; with the batch on axis 0, of the selected rows."""
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return np.zeros((), bool)
        bad = ~np.asarray(jnp.isfinite(value))  # np.isfinite does not support bfloat16
        return bad[self._rows] if self._rows is not None and bad.shape[:1] == self._rows.shape else bad


def _steps_of_scan(equation: Any, values: list[Any]) -> tuple[list[Any], list[Any], Iterator[tuple[int, list[Any]]]]:
    """Return the constants of a scan, its initial carry, and for each step in order its index and slices of inputs."""
    consts, carried = scan_counts(equation)
    carried += consts
    numbers = range(equation.params["length"])
    order = reversed(numbers) if equation.params["reverse"] else numbers
    return values[:consts], values[consts:carried], ((i, [v[i] for v in values[carried:]]) for i in order)


def _opened(function: Any) -> tuple[Any, Sequence[Any]]:
    """Return the jaxpr and the constants of a function in the parameters of an equation; no constants if it is open."""
    return getattr(function, "jaxpr", function), getattr(function, "consts", ())


def _holds_labels(equation: Any) -> bool:
    """Return whether a function inside an equation labels named values, also in nested loops and branches."""
    inside = (e for jaxpr in inner_jaxprs(equation) for e in jaxpr.eqns)
    return any(labelled(e) is not None or _holds_labels(e) for e in inside)
