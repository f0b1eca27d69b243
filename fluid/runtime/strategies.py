"""Strategies: how the pure step of a program runs, for one minibatch or several, for one training or many."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import ParameterSpec
from fluid.reader.stacked import Fed, Picks
from fluid.runtime.learning_rates import Rates
from fluid.runtime.seeds import Draw, root_of
from fluid.runtime.step import Step
from fluid.runtime.update_rules import Rule


class Single:
    """The strategy of one training: the pure step as it is. `fluid.population.Members` is the strategy of many.

    Attributes:
      size: number of trainings whose arrays are stacked along a first axis; None for one training without this axis.
      arguments: values of each training for the named values of the program, by name.
      variant: why the step is compiled in another form than before, for messages; empty for the first form.
    """

    size: int | None = None
    arguments: Mapping[str, Any] = {}
    variant: str = ""

    def functions(self, step: Step) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the training step, and the step in test mode, as pure functions."""
        return step.train, step.test

    def constants(self) -> Mapping[str, Any]:
        """Return what a training step reads beside arrays, random root and learning rates, by name."""
        return {}

    def specs(self, specs: Mapping[str, ParameterSpec]) -> Mapping[str, ParameterSpec]:
        """Return the specs of the arrays in the Scope, from the specs that a program declares."""
        return specs

    def draw(self, seed: int) -> Draw:
        """Return the random root of a run in test mode, on the host."""
        return root_of(seed), np.int32(0)

    def learning_rates(self, rates: Rates, program: str, rules: Sequence[Rule], slots: Any) -> list[jax.Array]:
        """Return the learning rates of the next training step, on the device.

        Args:
          rates: the learning rates of all programs.
          program: the name of the program.
          rules: its update rules.
          slots: its optimizer states.
        """
        return rates.current(program, slots)

    def move(self, place: Callable[[Any], Any]) -> None:
        """Move what the strategy itself holds to another device."""


def scanned(train: Callable[..., tuple[Any, Any]]) -> Callable[[Any, Any, Fed], tuple[Any, Any]]:
    """Return a function of several training steps, one after the other, for `jax.jit`.

    The number of steps is an input of the loop and not part of its shape, so one compilation serves any number of
    steps up to the capacity.

    Args:
      train: one step: from what changes, what does not, feeds and overrides to what has changed, and results.

    Returns:
      A function of what changes, what does not, and the feeds. It returns what has changed after the last step, and the
      results of all steps, stacked: each leaf is `[capacity, ...]`; the first `count` are valid.
    """

    def several(carry: Any, kept: Any, fed: Fed) -> tuple[Any, Any]:
        capacity = jax.tree.leaves(fed.rows if isinstance(fed, Picks) else fed.feeds)[0].shape[0]
        shapes = jax.eval_shape(lambda: train(carry, kept, fed.feed(0), {})[1])
        empty = jax.tree.map(lambda shape: jnp.zeros((capacity, *shape.shape), shape.dtype), shapes)

        def step(number: Any, so_far: tuple[Any, Any]) -> tuple[Any, Any]:
            before, stacked = so_far
            after, results = train(before, kept, fed.feed(number), {})
            write = lambda every, one: jax.lax.dynamic_update_index_in_dim(every, one, number, 0)  # noqa: E731
            return after, jax.tree.map(write, stacked, results)

        done: tuple[Any, Any] = jax.lax.fori_loop(0, fed.count, step, (carry, empty))
        return done

    return several
