"""Tracing of one forward pass over stand-in data of chosen sizes.

A layer owns the equations behind its named value that no earlier value needed, except for equations of the user's own
lines. Values inside loops are no results of the trace, so `core.equations.label` writes their names into its equations.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fluid.core import TEST, Applied, FeedSpec, Program, stand_in
from fluid.core.printing import explained_prints

# The default number of steps of sequences; strides and windows divide it evenly.
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
      applied: what `Program.apply` returned, with variables in the place of arrays.
      arrays: the variables of parameters and states, by name.
      names: of the named values, in the order in which the program makes them.
    """

    jaxpr: Any
    applied: Applied
    arrays: dict[str, Any]
    names: list[str]


def trace(program: Program, sizes: Sizes) -> Traced:
    """Return the equations of a program in test mode; nothing is computed.

    Args:
      program: the program.
      sizes: of the data.
    """
    arrays = {n: jax.ShapeDtypeStruct(s.shape, s.dtype) for n, s in (program.parameters | program.states).items()}
    arguments = (arrays, stand_ins(program, sizes), jax.eval_shape(lambda: jax.random.key(0)))
    names: list[str] = []

    def forward(arrays: Mapping[str, Any], feeds: Mapping[str, Any], key: jax.Array) -> Applied:
        applied = program.apply(arrays, feeds, key=key, mode=TEST, labelling=True)
        # JAX sorts dicts by name. Feeds come first, then the values of the program in their order.
        names.extend(n for n in dict.fromkeys((*program.feeds, *applied.values)) if n not in arrays)
        return applied

    with explained_prints(sizes.batch, again=True):
        closed, shapes = jax.make_jaxpr(forward, return_shape=True)(*arguments)
    applied = jax.tree.unflatten(jax.tree.structure(shapes), closed.jaxpr.outvars)
    variables, *_ = jax.tree.unflatten(jax.tree.structure(arguments), closed.jaxpr.invars)
    return Traced(closed.jaxpr, applied, variables, names)


def stand_ins(program: Program, sizes: Sizes) -> dict[str, Any]:
    """Return the shapes and dtypes of the data, by feed."""
    return {name: _stand_in(spec, program.sample_shapes.get(name), sizes) for name, spec in program.feeds.items()}


def _stand_in(spec: FeedSpec, sample: Sequence[int] | None, sizes: Sizes) -> Any:
    batch, *steps = sizes
    if sample is None:
        return jax.eval_shape(lambda: stand_in(spec, batch, steps))
    if not spec.lod_level:
        return jax.ShapeDtypeStruct(tuple(sample), spec.held)
    steps = [*steps, *sample[1 : 1 + spec.lod_level]][-2:]
    return jax.eval_shape(lambda: stand_in(spec, sample[0], steps))
