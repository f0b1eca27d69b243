"""The cost of JAX equations, in operations and bytes, as XLA counts them."""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax

from fluid.core.equations import inner_jaxprs, is_literal, labelled, live_equations

# Addresses of functions in memory are removed from the text of equations: they do not change the cost.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Cost(NamedTuple):
    """The cost of running equations once.

    Attributes:
      flops: the number of floating-point and integer operations; a multiplication and an addition are two. Functions
        such as `exp` and `tanh` are not counted.
      bytes: the number of bytes that all operations read and write, each operation by itself. XLA fuses operations, so
        this is an upper bound of the bytes that the device moves.
      partial: whether the equations contain a loop whose number of steps the data decides. One step of this loop is
        counted.

    Example:
      >>> Cost(96, 184) + Cost(4, 16).times(3)
      Cost(flops=108, bytes=232, partial=False)
    """

    flops: float = 0
    bytes: float = 0
    partial: bool = False

    def __add__(self, other: Any) -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes, self.partial or other.partial)

    def times(self, count: int) -> "Cost":
        """Return the cost of `count` runs."""
        return Cost(self.flops * count, self.bytes * count, self.partial)


class Counter:
    """A counter of costs, with a cache: XLA analyses equal equations once."""

    def __init__(self) -> None:
        self._known: dict[str, Cost] = {}
        self._empty = jax.make_jaxpr(lambda: ())().jaxpr

    def cost(self, equations: Iterable[Any]) -> Cost:
        """Return the cost of some equations of one function.

        XLA counts one step of each loop. So the cost of a loop is computed here: the number of its steps times the cost
        that XLA counts for the body.
        """
        total = Cost()
        plain = []
        for equation in equations:
            if _has_loop(equation):
                total += self._nested(equation)
            elif labelled(equation) is None and not equation.effects:
                plain.append(equation)
        return total + self._counted(plain) if plain else total

    def _nested(self, equation: Any) -> Cost:
        inner = [self.cost(live_equations(jaxpr)) for jaxpr in inner_jaxprs(equation)]
        kind = equation.primitive.name
        if kind == "scan":
            return inner[0].times(equation.params["length"])
        if kind == "cond":
            return max(inner)
        total = sum(inner, Cost())
        return total._replace(partial=True) if kind == "while" else total

    def _counted(self, equations: Sequence[Any]) -> Cost:
        """Return the cost that XLA counts for equations without loops."""
        made = {variable for equation in equations for variable in equation.outvars}
        read = {v: None for e in equations for v in e.invars if not is_literal(v)}
        inputs = [v for v in read if v not in made]
        results = [v for e in equations for v in e.outvars if v not in read]
        jaxpr = self._empty.replace(invars=inputs, outvars=results, eqns=list(equations))
        key = _ADDRESS.sub("", str(jaxpr))
        if key not in self._known:
            shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in inputs]
            lowered = jax.jit(functools.partial(jax.core.eval_jaxpr, jaxpr, ())).lower(*shapes)
            try:
                found = lowered.cost_analysis() or {}
            except jax.errors.JaxRuntimeError:  # only a compiled program knows the sizes in an exported function
                found = lowered.compile().cost_analysis() or {}
            self._known[key] = Cost(found.get("flops", 0), found.get("bytes accessed", 0))
        return self._known[key]


def _has_loop(equation: Any) -> bool:
    if equation.primitive.name in ("scan", "while"):
        return True
    return any(_has_loop(e) for jaxpr in inner_jaxprs(equation) for e in jaxpr.eqns)
