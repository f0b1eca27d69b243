"""Members: the strategy that runs the step of one training over the stacked arrays of many."""

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import TRAIN, ParameterSpec, Program, stand_in
from fluid.core.equations import unneeded
from fluid.population.vary import Varied
from fluid.runtime import Request
from fluid.runtime.engine import Engine
from fluid.runtime.fetch import RATE
from fluid.runtime.learning_rates import Rates
from fluid.runtime.seeds import Draw, root_of, seed_of
from fluid.runtime.step import Step
from fluid.runtime.strategies import Single
from fluid.runtime.update_rules import Rule

# The axis of the members in each part of the training state; all members share one counter of steps.
_CARRY = {"arrays": 0, "slots": 0, "step": None}


class Members(Single):
    """The members of a population, as their compiled steps see them: `jax.vmap` of the step of one training.

    Feeds are the feeds of all members; a feed that has one axis more than its declaration has an entry for each member,
    after the axis of the batch. A member that is not active goes through the step, and nothing of it changes; the step
    is compiled anew when the first member stops, since a step that may have to keep arrays copies them.

    Args:
      varied: the values that differ among the members.
      seeds: of their initial values and random layers.
      combine: converts the stacked results of a run in test mode; None for the results themselves.

    Attributes:
      size: number of members.
      varied: the values that differ among the members.
      seeds: of their initial values and random layers.
      arguments: arrays `[size]` on the device, by name of an argument of the program function.
      numbers: arrays `[size]` on the device, by name of a number of the optimizer.
      active: the members that are trained: bool `[size]`, on the host.
      flags: `active` on the device; None while all are active, and a step need not look.
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
        """Why the step is compiled in another form than before."""
        return "" if self.flags is None else "members have stopped"

    def move(self, place: Callable[[Any], Any]) -> None:
        """Move the values that differ among the members to a device."""
        self._place = place
        self.arguments = place(self.varied.arguments)
        self.numbers = place(self.varied.numbers)
        self.activate(self.active)

    def activate(self, active: np.ndarray) -> None:
        """Set which members are trained from the next step on: bool `[size]`."""
        self.active = np.array(active, bool)
        self.flags = None if active.all() else self._place(self.active)

    def specs(self, specs: Mapping[str, ParameterSpec]) -> Mapping[str, ParameterSpec]:
        """Return the specs with an axis of members in front."""
        return {n: replace(spec, shape=(self.size, *spec.shape)) for n, spec in specs.items()}

    def draw(self, seed: int) -> Draw:
        """Return the random root of each member for a run in test mode."""
        return np.stack([root_of(seed_of(seed, i)) for i in range(self.size)]), np.int32(0)

    def constants(self) -> Mapping[str, Any]:
        """Return what a training step reads beside arrays, random root and learning rates, by name."""
        return {"active": self.flags, "arguments": self.arguments, "numbers": self.numbers}

    def functions(self, step: Step) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the training step and the step in test mode, over all members at once."""

        def train(carry: Any, kept: Any, feeds: Any, overrides: Any) -> Any:
            def one(carry: Any, kept: Any, feeds: Any) -> Any:
                return self._train_one(step, carry, kept, feeds, overrides)

            axes = (_CARRY, {**dict.fromkeys(kept, 0), "rates": None}, _feed_axes(step.program, feeds))
            return jax.vmap(one, axes, (_CARRY, 0), axis_size=self.size)(carry, kept, feeds)

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
        """Return the learning rates of the next training step, one for each `minimize`: `[size]` on the device."""
        if self.varied.replaces_rate(rules):
            return [self.numbers[RATE]]
        given = rates.of(program)

        def one(slots: Any, numbers: Mapping[str, Any]) -> list[Any]:
            own = zip(self.varied.rules(rules, numbers), given, slots, strict=True)
            return [rule.rate(rate, state) for rule, rate, state in own]

        return jax.vmap(one, axis_size=self.size)(slots, self.numbers)

    def unused(self, engine: Engine, program: Program) -> set[str]:
        """Return the names of values that differ among the members and that a training step does not depend on."""
        step = Step(program, engine.rules[program.name], Request(TRAIN, None, tuple(program.feeds)), engine.function)
        scope = engine.scope
        carry = {
            "arrays": {n: scope.arrays[n] for n in step.carried},
            "slots": scope.slots[program.name],
            "step": scope.step,
        }
        kept = {
            "arrays": {n: scope.arrays[n] for n in step.kept},
            "root": scope.root if step.draws else None,
            "rates": engine.rates.of(program.name),
            "active": self.flags,
        }

        def trained(candidates: Mapping[str, Any], carry: Any, kept: Any, feeds: Any) -> Any:
            arguments, numbers = ({n: candidates[n] for n in part} for part in (self.arguments, self.numbers))
            return self._train_one(step, carry, {**kept, "arguments": arguments, "numbers": numbers}, feeds, {})

        one = jax.tree.map(_of_one, {"carry": carry, "kept": kept})
        candidates = {n: values[0] for n, values in self.varied.values.items()}
        feeds = {name: stand_in(spec, 2, steps=(1, 1)) for name, spec in program.feeds.items()}
        return unneeded(trained, candidates, one["carry"], one["kept"], feeds)

    def _train_one(self, step: Step, carry: Any, kept: Any, feeds: Any, overrides: Any) -> Any:
        """Run one step of one member; arguments and results as for `Step.train`, and `kept` has what differs."""
        own = copy.copy(step)
        own.rules = self.varied.rules(step.rules, kept["numbers"])
        rates = [kept["numbers"][RATE]] if step.rules and self.varied.replaces_rate(step.rules) else kept["rates"]
        after, results = own.train(carry, {**kept, "rates": rates}, feeds, {**kept["arguments"], **overrides})
        active = kept["active"]

        def changed(new: Any, old: Any) -> Any:
            new = new.astype(old.dtype)  # a number of the optimizer that is traced has a dtype, as Python's have none
            return new if active is None else jnp.where(active, new, old)

        chosen = {part: jax.tree.map(changed, after[part], carry[part]) for part in ("arrays", "slots")}
        return {**chosen, "step": after["step"]}, results


def _feed_axes(program: Program, feeds: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the axis of the members in each feed; None for a feed that all members share."""
    axes: dict[str, int | None] = {}
    for name, value in feeds.items():
        declared = len(program.feeds[name].shape)
        stacked = isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct) and value.ndim > declared
        axes[name] = min(1, declared) if stacked else None
    return axes


def _of_one(array: Any) -> jax.ShapeDtypeStruct:
    """Return the shape and dtype of one member in a stacked array."""
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
