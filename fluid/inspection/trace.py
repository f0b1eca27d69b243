"""Tracing of one forward pass over stand-in data of chosen sizes.

The trace consists of JAX equations, in which `inspection.parts` finds the layers by the names of values. Values in
loops are no results of the trace. So `core.equations.label` writes the names of these values into the equations.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fluid.core import TEST, Applied, FeedSpec, Program, stand_in
from fluid.core.printing import explained_prints

# The default number of steps of sequences. The usual strides and window sizes divide 16 without a remainder.
STEPS = 16


class Sizes(NamedTuple):
    """The sizes of the stand-in data.

    Attributes:
      batch: number of examples.
      outer: in programs with nested sequences, number of sequences in each example.
      inner: number of steps in each sequence.
    """

    batch: int
    outer: int
    inner: int


class Traced(NamedTuple):
    """The equations of one forward pass.

    Attributes:
      jaxpr: the equations.
      applied: the result of `Program.apply`, with the variables of the equations instead of arrays.
      arrays: the variables of parameters and states, by name.
      names: the names of feeds and named values, in the order of the program.
    """

    jaxpr: Any
    applied: Applied
    arrays: dict[str, Any]
    names: list[str]


def trace(program: Program, sizes: Sizes) -> Traced:
    """Trace one forward pass of a program in test mode, and return its equations; nothing is computed.

    Args:
      program: the program.
      sizes: the sizes of the stand-in data.
    """
    arrays = {n: jax.ShapeDtypeStruct(s.shape, s.dtype) for n, s in (program.parameters | program.states).items()}
    arguments = (arrays, stand_ins(program, sizes), jax.eval_shape(lambda: jax.random.key(0)))
    names: list[str] = []

    def forward(arrays: Mapping[str, Any], feeds: Mapping[str, Any], key: jax.Array) -> Applied:
        applied = program.apply(arrays, feeds, key=key, mode=TEST, labelling=True, plain=True)
        # The order is recorded here, because JAX sorts dicts by name. Feeds come first, then the values of the program.
        names.extend(n for n in dict.fromkeys((*program.feeds, *applied.values)) if n not in arrays)
        return applied

    with explained_prints(sizes.batch, again=True):
        closed, shapes = jax.make_jaxpr(forward, return_shape=True)(*arguments)
    applied = jax.tree.unflatten(jax.tree.structure(shapes), closed.jaxpr.outvars)
    variables, *_ = jax.tree.unflatten(jax.tree.structure(arguments), closed.jaxpr.invars)
    return Traced(closed.jaxpr, applied, variables, names)


def stand_ins(program: Program, sizes: Sizes) -> dict[str, Any]:
    """Return the shapes and dtypes of the stand-in data, by the names of the feeds."""
    return {name: _stand_in(spec, program.sample_shapes.get(name), sizes) for name, spec in program.feeds.items()}


def _stand_in(spec: FeedSpec, sample: Sequence[int] | None, sizes: Sizes) -> Any:
    batch, *steps = sizes
    if sample is None:
        return jax.eval_shape(lambda: stand_in(spec, batch, steps))
    if not spec.lod_level:
        return jax.ShapeDtypeStruct(tuple(sample), spec.held)
    steps = [*steps, *sample[1 : 1 + spec.lod_level]][-2:]
    return jax.eval_shape(lambda: stand_in(spec, sample[0], steps))
