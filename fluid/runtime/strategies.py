"""Strategies: run the pure step of a program for one or several minibatches, and for one or many trainings."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import ParameterSpec
from fluid.reader.stacked import Fed, Picks
from fluid.runtime.seeds import Draw, root_of
from fluid.runtime.step import Constants, Step, TrainingState
from fluid.runtime.update_rules import Rates, Rule


class Single:
    """The strategy of one training: the unchanged pure step. `fluid.sweeps.Members` is the strategy of many.

    Attributes:
      size: number of trainings whose arrays are stacked along a first axis; None for one training without this axis.
      arguments: values of each training for the named values of the program, by name.
      variant: the reason for another compilation of the step, for messages; empty for the first one.
    """

    size: int | None = None
    arguments: Mapping[str, Any] = {}
    variant: str = ""

    def functions(self, step: Step) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the training step and the test-mode step as pure functions."""
        return step.train, step.test

    def constants(self) -> Any:
        """Return `Constants.members`: the values that differ among the members; None for one training."""
        return None

    def specs(self, specs: Mapping[str, ParameterSpec]) -> Mapping[str, ParameterSpec]:
        """Return the specs of the arrays in the Scope, from the specs that a program declares."""
        return specs

    def draw(self, seed: int) -> Draw:
        """Return the random root and the step number of a test-mode run, on the host."""
        return root_of(seed), np.int32(0)

    def learning_rates(self, rates: Rates, program: str, rules: Sequence[Rule], slots: Any) -> list[jax.Array]:
        """Return the learning rates of the next training step, on the device.

        Args:
          rates: the learning rates of all programs.
          program: the name of the program.
          rules: update rules of the program.
          slots: optimizer states of the program.
        """
        return rates.current(program, slots)

    def move(self, place: Callable[[Any], Any]) -> None:
        """Move the arrays that the strategy holds to another device with `place`; one training holds none."""


def scanned(train: Callable[..., tuple[Any, Any]]) -> Callable[[TrainingState, Constants, Fed], tuple[Any, Any]]:
    """Return a function that runs several training steps, one after the other, for `jax.jit`.

    The number of steps is a value that the compiled loop reads, and not part of a shape. So one compilation serves any
    number of steps up to the capacity.

    Args:
      train: the function of one training step, see `Step.train`.

    Returns:
      A function of state, constants and feeds. It returns the state after the last step, and the results of all steps,
      stacked: each leaf is `[capacity, ...]`; the first `count` are valid.
    """

    def several(state: TrainingState, constants: Constants, fed: Fed) -> tuple[Any, Any]:
        capacity = jax.tree.leaves(fed.rows if isinstance(fed, Picks) else fed.feeds)[0].shape[0]
        shapes = jax.eval_shape(lambda: train(state, constants, fed.feed(0), {})[1])
        empty = jax.tree.map(lambda shape: jnp.zeros((capacity, *shape.shape), shape.dtype), shapes)

        def step(number: Any, so_far: tuple[Any, Any]) -> tuple[Any, Any]:
            before, stacked = so_far
            after, results = train(before, constants, fed.feed(number), {})
            write = lambda every, one: jax.lax.dynamic_update_index_in_dim(every, one, number, 0)  # noqa: E731
            return after, jax.tree.map(write, stacked, results)

        done: tuple[Any, Any] = jax.lax.fori_loop(0, fed.count, step, (state, empty))
        return done

    return several
