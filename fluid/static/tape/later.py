"""Calls that assign parameters after an optimizer has updated them, such as a weight decay written as layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from fluid import core
from fluid.core.frame import Declared
from fluid.static.tape.calls import Call, run_calls
from fluid.static.tape.snapshot import minimized
from fluid.static.tape.variable import Persistent, Variable


def assignments_after_updates(calls: Sequence[Call]) -> list[Call]:
    """Return the calls after the last minimisation that assign parameters."""
    last = max((i for i, call in enumerate(calls) if call.function is minimized), default=len(calls))
    return [call for call in calls[last + 1 :] if call.assigns and any(map(_is_parameter, call.outputs))]


class Later:
    """The calls that run after a training step, because they read or assign updated parameters.

    Args:
      calls: the calls of a program.

    Attributes:
      read: names of the values that the step computes for these calls.
    """

    def __init__(self, calls: Sequence[Call]):
        last = max(i for i, call in enumerate(calls) if call.function is minimized)
        assigning = assignments_after_updates(calls)
        updated: set[Variable] = set()
        self._calls: list[Call] = []
        for call in calls[last + 1 :]:
            given = _read(call)
            if call in assigning or any(_is_parameter(v) or v in updated for v in given):
                self._calls.append(call)
                updated |= set(call.outputs)
        made = {v for call in self._calls for v in call.outputs}
        given = [v for call in self._calls for v in _read(call)]
        self._parameters = {v.name: v for v in (*given, *made) if isinstance(v, Persistent)}
        self._values = {v.name: v for v in given if not isinstance(v, Persistent) and v not in made}
        self._written = {v.name: v for call in assigning for v in call.outputs}
        self.read = list(self._values)
        self._run = jax.jit(self._traced)

    def __call__(self, arrays: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        """Return the assigned values by name.

        Args:
          arrays: parameters and states after the step, by name.
          found: values by name; `read` lists the names that are needed.
        """
        read = {name: found[name] for name in self._values}
        assigned: dict[str, Any] = self._run({name: arrays[name] for name in self._parameters}, read)
        return assigned

    def _traced(self, arrays: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
        specs = {name: variable.spec for name, variable in self._parameters.items()}
        frame = core.Frame(declared=Declared(arrays=specs))
        held: dict[Any, Any] = {self._parameters[name]: value for name, value in arrays.items()}
        held |= {self._values[name]: value for name, value in found.items()}
        with core.running(frame):
            environment = run_calls(self._calls, held)
        return {name: environment[variable] for name, variable in self._written.items()}


def _is_parameter(variable: Variable) -> bool:
    return isinstance(variable, Persistent) and variable.is_parameter


def _read(call: Call) -> list[Variable]:
    """Return the variables of the global block that a call reads, also inside of its blocks."""
    inner = [v for block in call.blocks for c in block.calls for v in _read(c)]
    found = [*call.variables(), *getattr(call.function, "captures", ()), *inner]
    return [v for v in found if isinstance(v, Persistent) or v.is_global]
