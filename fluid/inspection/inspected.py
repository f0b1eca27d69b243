"""Inspection of the programs of a Trainer, Session or function: their layers, shapes, and cost of training steps.

In a shape, "batch" and "time" stand for dimensions that depend on the size of the data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import TRAIN, Program, data_of
from fluid.core.equations import live_equations
from fluid.inspection.partition import STEPS, Cost, Counter, Part, Partition, Sizes, partition, stand_ins, trace
from fluid.runtime import Request, Session
from fluid.runtime.parameter_updates import Rule, rules_of
from fluid.runtime.step import Constants, Step, TrainingState

Dimension = int | str


class Shape(NamedTuple):
    """The dtype and shape of the final result of one part of a program, such as a layer.

    Attributes:
      dtype: the dtype of the result; empty if there is no result.
      sizes: the shape of the result. A dimension that depends on the size of the data is text, such as "batch" or
        "2*time".
      steps: the number of steps, if the part is a loop; None for other parts, or if the data decides the number.
    """

    dtype: str
    sizes: tuple[Dimension, ...]
    steps: Dimension | None


def shapes_of(program: Program, parts: Sequence[Part]) -> list[Shape]:
    """Return the shape of each part (such as a layer) of a program, and of the parts inside loops.

    The program is traced with data of several sizes. A dimension that grows with the number of examples is shown as
    "batch", a dimension that grows with the number of steps as "time". Some programs work only for data of one size;
    their dimensions are numbers.
    """
    known = _measured(parts)
    if not program.feeds or program.sample_shapes:
        return known
    base = Sizes(*[STEPS] * len(Sizes._fields))
    try:
        first = _traced(program, base)
        grown = {name: _traced(program, base._replace(**{size: 2 * STEPS})) for size, name in _free(program).items()}
    except Exception:
        return known
    others = list(grown.values())
    if any(len(o) != len(known) for o in (first, *others)):
        return known
    return [_compared(known[i], first[i], {n: grown[n][i] for n in grown}) for i in range(len(known))]


def _free(program: Program) -> dict[str, str]:
    """Return the words that stand for sizes of the data in printed shapes, by field name of `Sizes`.

    An example is the shape `[batch, time, 8]`.

    The result has no word for a size on which no feed of the program depends.
    """
    level = max(spec.lod_level for spec in program.feeds.values())
    steps: tuple[dict[str, str], ...] = ({}, {"inner": "time"}, {"outer": "outer", "inner": "inner"})
    return {"batch": "batch", **steps[level]}


def _traced(program: Program, sizes: Sizes) -> list[Shape]:
    return _measured(partition(program, trace(program, sizes)).parts)


def _measured(parts: Sequence[Part]) -> list[Shape]:
    every = [part for top in parts for part, _ in top.walk()]
    found = []
    for part in every:
        value = None if part.variable is None else part.variable.aval
        dtype, sizes = ("", ()) if value is None else (str(value.dtype), tuple(value.shape))
        found.append(Shape(dtype, sizes, part.steps))
    return found


def _compared(known: Shape, first: Shape, grown: Mapping[str, Shape]) -> Shape:
    if any(len(other.sizes) != len(first.sizes) for other in grown.values()):
        return known
    sizes = tuple(_dimension(d, {n: s.sizes[i] for n, s in grown.items()}) for i, d in enumerate(first.sizes))
    steps = None if first.steps is None else _dimension(first.steps, {n: s.steps for n, s in grown.items()})
    return Shape(first.dtype, sizes, steps)


def _dimension(first: Dimension, grown: Mapping[str, Dimension | None]) -> Dimension:
    """Return a dimension as text, such as "2*time", or as a number if it does not depend on the size of the data."""
    assert isinstance(first, int)
    moved = {name: size - first for name, size in grown.items() if isinstance(size, int) and size != first}
    if not moved:
        return first
    if len(moved) > 1:
        return "*".join(moved) if first == STEPS ** len(moved) else "?"
    ((name, change),) = moved.items()
    if change % STEPS == 0:
        factor = change // STEPS
        text = name if factor == 1 else f"{factor}*{name}"
    elif change > 0 and STEPS % change == 0:
        text = f"{name}/{STEPS // change}"
    else:
        return "?"
    rest = first - change
    return f"{text}{rest:+d}" if rest else text


@dataclass(frozen=True)
class Inspected:
    """A program with its parts (such as layers), variables and shapes.

    Attributes:
      program: the program.
      rules: the update rules of its parameters; empty if the program minimises no loss.
      partition: the parts of the program.
      outputs: the variable of each output in the traced equations.
      losses: the variable of each loss that an optimizer minimises.
      shapes: the shape of each part, in the order of `Part.walk`.
    """

    program: Program
    rules: Sequence[Rule]
    partition: Partition
    outputs: Sequence[Any]
    losses: Sequence[Any]
    shapes: Sequence[Shape]


def inspect(target: Any, sizes: Sizes) -> list[Inspected]:
    """Trace the programs of a target, such as a Trainer, and divide each program into parts, such as layers.

    Raises:
      ArgumentTypeError: the target has another type.
    """
    found = []
    for program, rules in _programs_of(target):
        traced = trace(program, sizes)
        parts = partition(program, traced)
        outputs = [data_of(v) for v in traced.applied.outputs]
        shapes = shapes_of(program, parts.parts)
        found.append(Inspected(program, rules, parts, outputs, traced.applied.losses, shapes))
    return found


def step_cost(inspected: Inspected, sizes: Sizes, counter: Counter) -> Cost | None:
    """Return the cost (FLOPs and bytes) of one training step; None for a program that minimises no loss."""
    program = inspected.program
    rules = inspected.rules
    if not rules:
        return None
    step = Step(program, rules, Request(TRAIN, None, tuple(program.feeds)))
    specs = program.parameters | program.states
    arrays = {n: jax.ShapeDtypeStruct(s.shape, s.dtype) for n, s in specs.items()}
    slots = [jax.eval_shape(rule.init, {n: arrays[n] for n in rule.parameters}) for rule in rules]
    root = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    state = TrainingState({n: arrays[n] for n in step.carried}, slots, jax.ShapeDtypeStruct((), jnp.int32))
    kept = {n: arrays[n] for n in step.kept}
    constants = Constants(kept, root if program.random else None, [jnp.float32(0.0)] * len(rules))
    closed = jax.make_jaxpr(step.train)(state, constants, stand_ins(program, sizes), {})
    return counter.cost(live_equations(closed.jaxpr))


def _programs_of(target: Any) -> list[tuple[Program, Sequence[Rule]]]:
    session = getattr(target, "session", target)
    if isinstance(session, Session):
        return [(program, session.engine.rules[name]) for name, program in session.programs.items()]
    if isinstance(target, Program):
        return [(target, rules_of(target))]
    if isinstance(target, Callable) and not isinstance(target, type):  # type: ignore[arg-type]
        program = Program(target)
        return [(program, rules_of(program))]
    raise errors.ArgumentTypeError(
        f"expected a program function, Program, Trainer, Session or Inferencer, found {type(target).__name__}; "
        f"hand over the function itself, not its result: fluid.summary(program)"
    )
