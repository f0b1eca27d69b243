"""Stages: code that runs inline, once, recorded as a pure function of arguments that it asks for on its way."""

from collections.abc import Sequence
from typing import Any

import jax


class Stages:
    """Makes a function of the code that runs between two points of a function, such as the body of a `with`.

    JAX traces functions; what stands in a `with` is none. So `argument` starts to trace a function in a greenlet, which
    hands its argument out and waits: what follows is traced as its body. `close` gives it the results to return. Each
    argument begins a function inside the one before, a stage, which returns what the next stage takes from it.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> vector = jax.ShapeDtypeStruct((2,), "float32")
      >>> stages = Stages()
      >>> x = stages.argument(vector)
      >>> doubled = 2 * x
      >>> h = stages.argument(vector)
      >>> function = stages.close([doubled + h])
      >>> function([jnp.ones(2), jnp.zeros(2)])[0].tolist()
      [2.0, 2.0]
    """

    def __init__(self) -> None:
        self._open: list[_Stage] = []

    def argument(self, example: Any) -> Any:
        """A value to work with, in the place of the next argument.

        Args:
          example: pytree of arrays or `jax.ShapeDtypeStruct`s; nothing but their shapes and dtypes matters.
        """
        stage = _Stage()
        value = stage.start(example)
        self._open.append(stage)
        return value

    def close(self, results: Sequence[Any], probes: Sequence[Any] = ()) -> "Staged":
        """End the function; values from inside can no longer be used.

        Args:
          results: the arrays that it returns.
          probes: arrays of which `Staged.inside` shall say where they come from.
        """
        jaxprs: list[Any] = []
        values = [*results, *probes]
        places: list[int | None] = list(range(len(values)))
        while self._open:
            closed = self._open.pop().finish(values)
            # What comes from outside a stage is one of its constants, which it hands through.
            constants = {id(v): i for i, v in enumerate(closed.jaxpr.constvars)}
            places = [None if p is None else constants.get(id(closed.jaxpr.outvars[p])) for p in places]
            values = list(closed.consts)
            jaxprs.insert(0, closed.jaxpr)
        return Staged(jaxprs, values, len(results), [p is None for p in places[len(results) :]])

    def abandon(self) -> None:
        """End it without a result, as after an exception."""
        while self._open:
            self._open.pop().abandon()


class Staged:
    """The function that `Stages.close` made: takes a list of arguments, returns the list of results.

    Attributes:
      inside: for each probe, whether it was computed by the function, rather than before it.
    """

    def __init__(self, jaxprs: Sequence[Any], values: Sequence[Any], count: int, inside: list[bool]):
        self._jaxprs = jaxprs
        self._values = values
        self._count = count
        self.inside = inside

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run it on one pytree for each argument."""
        values = list(self._values)
        for jaxpr, argument in zip(self._jaxprs, arguments, strict=True):
            values = jax.core.eval_jaxpr(jaxpr, values, *jax.tree.leaves(argument))
        return values[: self._count]


class _Stage:
    """One function that is being traced, in a greenlet of its own."""

    def start(self, example: Any) -> Any:
        from greenlet import getcurrent, greenlet

        def function(argument: Any) -> Any:
            return getcurrent().parent.switch(argument)

        # Contexts and JAX's trace belong to the thread, which all greenlets share: the code outside goes on inside it.
        self._greenlet = greenlet(lambda: jax.make_jaxpr(function)(example))
        return self._greenlet.switch()

    def finish(self, results: Sequence[Any]) -> Any:
        return self._greenlet.switch(list(results))

    def abandon(self) -> None:
        self._greenlet.throw()
