"""Stages: inline code, recorded as a pure function of arguments that the code requests while it runs.

JAX traces functions, so `Stages` starts `jax.make_jaxpr` in a greenlet each time a block requests a step input or a
memory. The traced function passes its argument out and waits; the following lines of the block are traced as its body.
At the end of the block, the nested functions return, the innermost first.
"""

from collections.abc import Sequence
from typing import Any

import jax


class Stages:
    """A recorder that converts the code between two points of a function, such as the body of a `with`, to a function.

    JAX traces functions, and the body of a `with` is not a function. So `argument` starts to trace a function in a
    greenlet. This function passes its argument out and waits, and the code that follows is traced as its body. `close`
    passes in the results, which the function returns. Each further argument begins a nested function, a stage.

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
        """Return a traced value that stands for the next argument.

        Args:
          example: pytree of arrays or `jax.ShapeDtypeStruct`s; only their shapes and dtypes matter.
        """
        stage = _Stage()
        value = stage.start(example)
        self._open.append(stage)
        return value

    def close(self, results: Sequence[Any], probes: Sequence[Any] = ()) -> "Staged":
        """End the function, and return it. Values from inside can no longer be used.

        Args:
          results: the arrays that the function returns.
          probes: arrays for which `Staged.inside` reports whether the function computed them.
        """
        jaxprs: list[Any] = []
        values = [*results, *probes]
        places: list[int | None] = list(range(len(values)))
        while self._open:
            closed = self._open.pop().finish(values)
            # A result that was computed outside a stage is a constant of the stage: follow it to the next outer stage.
            constants = {id(v): i for i, v in enumerate(closed.jaxpr.constvars)}
            places = [None if p is None else constants.get(id(closed.jaxpr.outvars[p])) for p in places]
            values = list(closed.consts)
            jaxprs.insert(0, closed.jaxpr)
        return Staged(jaxprs, values, len(results), [p is None for p in places[len(results) :]])

    def abandon(self) -> None:
        """End the function without a result, as after an exception."""
        while self._open:
            self._open.pop().abandon()


class Staged:
    """A function that `Stages.close` returned. It takes a list of arguments and returns the list of results.

    Attributes:
      inside: for each probe, whether the function computed it; False if it was computed before the function.
    """

    def __init__(self, jaxprs: Sequence[Any], values: Sequence[Any], count: int, inside: list[bool]):
        self._jaxprs = jaxprs
        self._values = values
        self._count = count
        self.inside = inside

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Run the function on one pytree for each argument."""
        values = list(self._values)
        for jaxpr, argument in zip(self._jaxprs, arguments, strict=True):
            values = jax.core.eval_jaxpr(jaxpr, values, *jax.tree.leaves(argument))
        return values[: self._count]


class _Stage:
    """One function that is being traced in a separate greenlet."""

    def start(self, example: Any) -> Any:
        from greenlet import getcurrent, greenlet

        def function(argument: Any) -> Any:
            return getcurrent().parent.switch(argument)

        # The current trace of JAX belongs to the thread, which greenlets share: so the code that runs after `start` is
        # traced. Context variables belong to a greenlet (3.3.2): so that code keeps its Frame.
        self._greenlet = greenlet(lambda: jax.make_jaxpr(function)(example))
        return self._greenlet.switch()

    def finish(self, results: Sequence[Any]) -> Any:
        return self._greenlet.switch(list(results))

    def abandon(self) -> None:
        self._greenlet.throw()
