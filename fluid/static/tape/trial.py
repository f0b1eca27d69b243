"""Trials: evaluate the shapes of a call's results without data.

`jax.eval_shape` runs each call when it is recorded, at two batch sizes, so shapes and errors are known at once.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from fluid import core
from fluid.core.frame import Declared, Naming
from fluid.static import unique_name
from fluid.static.tape import values
from fluid.static.tape.calls import Call, Environment, as_array, inside
from fluid.static.tape.variable import Variable

# Two trial batch sizes: a size that differs between both trials follows the batch size.
BATCHES = (37, 41)


class Trial:
    """The shapes of a call's results, evaluated without data.

    Args:
      call: the call.
      given: the variables that the call may read.
      arrays: the program's declarations of parameters and states, by name.
      shared: the shared functions that the program has called, by name; the call adds its own.
      batch: the trial batch size.

    Attributes:
      structs: the shape and dtype of each result.
      names: the name that the call gives each result, or None.
      tree: the structure of the results.
      lengths: for each result, the variable of `given` whose sequences have the same lengths, or None.
      naming: the counters of automatic names after the call.
      feeds: the feeds that the call declares.
      arrays: the declarations of parameters and states by the program and the call.
    """

    def __init__(
        self,
        call: Call,
        given: Sequence[Variable],
        arrays: Mapping[str, core.ParameterSpec],
        shared: dict[str, core.SharedFunction],
        batch: int,
    ):
        frame = core.Frame(
            placeholder_batch=batch,
            as_fluid=True,
            plain=True,  # without kernels for one platform, layers have the same shapes and fewer equations
            declared=Declared(arrays=dict(arrays), shared=shared),
            naming=Naming(counters=dict(unique_name.counters()), prefix=unique_name.prefix()),
        )
        self.feeds = frame.declared.feeds
        self.arrays = frame.declared.arrays
        self.names: list[str | None] = []
        self.tree: Any = None
        self.lengths: list[Variable | None] = []
        number = BATCHES.index(batch)

        def trace(held: list[Any]) -> list[Any]:
            frame.given.key = jax.random.key(0)
            environment = Environment()
            for variable, value in zip(given, held, strict=True):
                environment[variable] = value
            with core.running(frame), inside(environment):
                result = call.function(*environment.read(call.args), **environment.read(call.kwargs))
                found = values.leaves(result)
                self.tree = jax.tree.structure(result, is_leaf=values.is_leaf)
                self.names = [_name_of(frame, value) for value in found]
                self.lengths = [_same_lengths(value, given, held) for value in found]
                return [as_array(value) for value in found]

        self.structs = jax.eval_shape(trace, [variable.structs[number] for variable in given])
        self.naming = frame.naming


def _name_of(frame: core.Frame, value: Any) -> str | None:
    """Return the name that a call gave one of its results, or None."""
    found = [name for name, recorded in frame.made.values.items() if recorded is value]
    return found[-1] if found else frame.fact(value, "feed") or frame.fact(value, "parameter")


def _same_lengths(value: Any, given: Sequence[Variable], held: Sequence[Any]) -> Variable | None:
    """Return the variable, among `given`, whose value in `held` has the lengths of a sequence batch, or None."""
    if not isinstance(value, core.SequenceBatch):
        return None
    pairs = zip(given, held, strict=True)
    return next((v for v, h in pairs if isinstance(h, core.SequenceBatch) and h.lengths is value.lengths), None)
