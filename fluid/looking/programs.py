"""The programs of whatever somebody wants to look at, and their layers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import TRAIN, Program, data_of
from fluid.core.equations import live_equations
from fluid.looking.cost import Cost, Counter
from fluid.looking.dimensions import Shape, shapes_of
from fluid.looking.parts import Partition, partition
from fluid.looking.trace import Sizes, stand_ins, trace
from fluid.runtime import Request, Session
from fluid.runtime.step import Step
from fluid.runtime.update_rules import Rule, rules_of


@dataclass(frozen=True)
class Looked:
    """A program, taken apart.

    Attributes:
      program: the program.
      rules: how it updates parameters.
      partition: its parts.
      outputs: the variable of each output.
      losses: that of each loss that is minimised.
      shapes: that of each part, in the order in which `Part.walk` meets them.
    """

    program: Program
    rules: Sequence[Rule]
    partition: Partition
    outputs: Sequence[Any]
    losses: Sequence[Any]
    shapes: Sequence[Shape]


def look(target: Any, sizes: Sizes) -> list[Looked]:
    """Take the programs of a target apart.

    Args:
      target: a program function, Program, Session, or what has a Session, as Trainer and Inferencer do.
      sizes: of the data to trace them with.

    Raises:
      ArgumentTypeError: it is none of those.
    """
    found = []
    for program, rules in _programs_of(target):
        traced = trace(program, sizes)
        parts = partition(program, traced)
        outputs = [data_of(v) for v in traced.applied.outputs]
        shapes = shapes_of(program, parts.parts)
        found.append(Looked(program, rules, parts, outputs, traced.applied.losses, shapes))
    return found


def step_cost(looked: Looked, sizes: Sizes, counter: Counter) -> Cost | None:
    """What one training step of a program costs; None when it minimises nothing."""
    program = looked.program
    rules = looked.rules
    if not rules:
        return None
    step = Step(program, rules, Request(TRAIN, None, tuple(program.feeds)))
    specs = program.parameters | program.states
    arrays = {n: jax.ShapeDtypeStruct(s.shape, s.dtype) for n, s in specs.items()}
    slots = [jax.eval_shape(rule.init, {n: arrays[n] for n in rule.parameters}) for rule in rules]
    root = jax.eval_shape(lambda: jax.random.key_data(jax.random.key(0)))
    carry = {
        "arrays": {n: arrays[n] for n in step.carried},
        "slots": slots,
        "step": jax.ShapeDtypeStruct((), jnp.int32),
    }
    kept = {
        "arrays": {n: arrays[n] for n in step.kept},
        "root": root if program.random else None,
        "rates": [jnp.float32(0.0)] * len(rules),
    }
    closed = jax.make_jaxpr(step.train)(carry, kept, stand_ins(program, sizes), {})
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
