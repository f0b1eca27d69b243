"""The programs of a Trainer, Session or function, divided into layers, and the cost of their training steps."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import TRAIN, Program, data_of
from fluid.core.equations import live_equations
from fluid.inspection.cost import Cost, Counter
from fluid.inspection.dimensions import Shape, shapes_of
from fluid.inspection.parts import Partition, partition
from fluid.inspection.trace import Sizes, stand_ins, trace
from fluid.runtime import Request, Session
from fluid.runtime.parameter_updates import Rule, rules_of
from fluid.runtime.step import Constants, Step, TrainingState


@dataclass(frozen=True)
class Inspected:
    """A program with its parts, variables and shapes.

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
    """Trace the programs of a target, and divide them into parts.

    Args:
      target: a program function, a Program, a Session, or an object with the attribute `session`, such as a Trainer.
      sizes: the sizes of the stand-in data for the trace.

    Raises:
      ArgumentTypeError: the target is none of these.
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
    """Return the cost of one training step of a program, or None for a program that minimises no loss."""
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
