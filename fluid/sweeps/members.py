"""Members: the strategy of an Engine that runs the step of one training over the stacked arrays of many trainings.

Arguments of the program function that differ among members are named values, which each step overrides. Numbers of the
optimizer are replaced in its update rule while the step is traced. When a member has stopped, the step selects for each
member between its old and its new arrays.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import TRAIN, ParameterSpec, Program, stand_in
from fluid.core.equations import unneeded
from fluid.runtime import Request
from fluid.runtime.engine import Engine
from fluid.runtime.fetch import RATE
from fluid.runtime.seeds import Draw, root_of, seed_of
from fluid.runtime.step import Constants, Step, TrainingState
from fluid.runtime.strategies import Single
from fluid.runtime.update_rules import Rates, Rule
from fluid.sweeps.vary import Varied

# The axis of the members in each argument of a step; None for the step counter and the learning rates, which all
# members share.
_STATE: Any = TrainingState(arrays=0, slots=0, step=None)  # type: ignore[arg-type]
_CONSTANTS: Any = Constants(arrays=0, root=0, rates=None, members=0)  # type: ignore[arg-type]


class Members(Single):
    """A strategy that computes the steps of all members of a population at once, by `jax.vmap` of one training's step.

    All members share a feed, unless the feed has one axis more than its declaration: then it has an entry for each
    member, along the axis after the axis of the batch. A stopped member still computes the step, but its arrays do not
    change. The step is compiled again when the first member stops, because a step that may keep old arrays has to copy
    them.

    Args:
      varied: the values that differ among the members.
      seeds: seeds of the initial values and random layers of each member.
      combine: a function that is applied to the stacked results of a test-mode run, such as their mean over members;
        None returns the stacked results.

    Attributes:
      size: the number of members.
      varied: the values that differ among the members.
      seeds: seeds of the initial values and random layers of each member.
      arguments: arrays `[size]` on the device, by name of an argument of the program function.
      numbers: arrays `[size]` on the device, by name of a number of the optimizer.
      active: bool `[size]` on the host, True for members that are trained.
      flags: `active` on the device; None while all members are active.
    """

    size: int

    def __init__(self, varied: Varied, seeds: tuple[int, ...], combine: Callable[[Any], Any] | None = None):
        self.size = varied.size
        self.varied = varied
        self.seeds = seeds
        self.arguments: dict[str, Any] = varied.arguments
        self.numbers: dict[str, Any] = varied.numbers
        self.active = np.ones(self.size, bool)
        self.flags: Any = None
        self._combine = combine
        self._place: Callable[[Any], Any] = lambda value: value

    @property
    def variant(self) -> str:  # type: ignore[override]
        """The reason why a step needs a separate compilation, "members have stopped"; "" while all are active."""
        return "" if self.flags is None else "members have stopped"

    def move(self, place: Callable[[Any], Any]) -> None:
        """Copy the values that differ among the members, and the flags of active members, to a device with `place`."""
        self._place = place
        self.arguments = place(self.varied.arguments)
        self.numbers = place(self.varied.numbers)
        self.activate(self.active)

    def activate(self, active: np.ndarray) -> None:
        """Set which members are trained from the next step on: bool `[size]`, False for a stopped member."""
        self.active = np.array(active, bool)
        self.flags = None if active.all() else self._place(self.active)

    def specs(self, specs: Mapping[str, ParameterSpec]) -> Mapping[str, ParameterSpec]:
        """Return the specs of parameters and states with a leading axis of members in each shape."""
        return {n: replace(spec, shape=(self.size, *spec.shape)) for n, spec in specs.items()}

    def draw(self, seed: int) -> Draw:
        """Return the random root of each member, `[size, ...]`, and step number 0, for a test-mode run with `seed`."""
        return np.stack([root_of(seed_of(seed, i)) for i in range(self.size)]), np.int32(0)

    def constants(self) -> Any:
        """Return the value of `Constants.members`: the flags of active members, and the values that differ."""
        return {"active": self.flags, "arguments": self.arguments, "numbers": self.numbers}

    def functions(self, step: Step) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return two functions: the training step and the test-mode step of all members at once."""

        def train(state: TrainingState, constants: Constants, feeds: Any, overrides: Any) -> Any:
            def one(state: TrainingState, constants: Constants, feeds: Any) -> Any:
                return self._train_one(step, state, constants, feeds, overrides)

            axes = (_STATE, _CONSTANTS, _feed_axes(step.program, feeds))
            return jax.vmap(one, axes, (_STATE, 0), axis_size=self.size)(state, constants, feeds)

        def test(
            arrays: Any, feeds: Any, overrides: Any = None, root: Any = None, count: Any = 0, arguments: Any = None
        ) -> Any:
            def one(arrays: Any, root: Any, arguments: Any, feeds: Any) -> Any:
                return step.test(arrays, feeds, {**(arguments or {}), **(overrides or {})}, root, count)

            axes = (0, 0, 0, _feed_axes(step.program, feeds))
            results = jax.vmap(one, axes, axis_size=self.size)(arrays, root, arguments, feeds)
            return results if self._combine is None else self._combine(results)

        return train, test

    def learning_rates(self, rates: Rates, program: str, rules: Sequence[Rule], slots: Any) -> list[jax.Array]:
        """Return the learning rates of the next training step for each `minimize`, as arrays `[size]` on the device."""
        if self.varied.replaces_rate(rules):
            return [self.numbers[RATE]]
        given = rates.of(program)

        def one(slots: Any, numbers: Mapping[str, Any]) -> list[Any]:
            own = zip(self.varied.rules(rules, numbers), given, slots, strict=True)
            return [rule.rate(rate, state) for rule, rate, state in own]

        return jax.vmap(one, axis_size=self.size)(slots, self.numbers)

    def unused(self, engine: Engine, program: Program) -> set[str]:
        """Return the names in `vary` whose values have no effect on a training step."""
        step = Step(program, engine.rules[program.name], Request(TRAIN, None, tuple(program.feeds)), engine.function)
        state, constants = engine.arguments(step)
        one = jax.tree.map(_of_one, (state, constants._replace(members=None)))

        def trained(candidates: Mapping[str, Any], state: TrainingState, constants: Constants, feeds: Any) -> Any:
            arguments, numbers = ({n: candidates[n] for n in part} for part in (self.arguments, self.numbers))
            members = {"active": None, "arguments": arguments, "numbers": numbers}
            return self._train_one(step, state, constants._replace(members=members), feeds, {})

        candidates = {n: values[0] for n, values in self.varied.values.items()}
        feeds = {name: stand_in(spec, 2, steps=(1, 1)) for name, spec in program.feeds.items()}
        return unneeded(trained, candidates, *one, feeds)

    def _train_one(
        self, step: Step, state: TrainingState, constants: Constants, feeds: Any, overrides: Any
    ) -> tuple[TrainingState, Any]:
        """Run one training step of one member, inside `jax.vmap`; arguments and results as for `Step.train`.

        A member that is not active keeps its arrays and its optimizer state.
        """
        active, arguments, numbers = (constants.members[name] for name in ("active", "arguments", "numbers"))
        own = copy.copy(step)
        own.rules = self.varied.rules(step.rules, numbers)
        if step.rules and self.varied.replaces_rate(step.rules):
            constants = constants._replace(rates=[numbers[RATE]])
        after, results = own.train(state, constants._replace(members=None), feeds, {**arguments, **overrides})

        def changed(new: Any, old: Any) -> Any:
            new = new.astype(old.dtype)  # unlike Python numbers, traced numbers promote the dtype
            return new if active is None else jnp.where(active, new, old)

        arrays = jax.tree.map(changed, after.arrays, dict(state.arrays))
        return TrainingState(arrays, jax.tree.map(changed, after.slots, state.slots), after.step), results


def _feed_axes(program: Program, feeds: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the axis of the members in each feed; None for a feed that all members share."""
    axes: dict[str, int | None] = {}
    for name, value in feeds.items():
        declared = len(program.feeds[name].shape)
        stacked = isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct) and value.ndim > declared
        axes[name] = min(1, declared) if stacked else None
    return axes


def _of_one(array: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of one member's part of a stacked array: without the leading axis."""
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
