"""The step of a population: that of one training, over the stacked arrays of all of them."""

import copy
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import Program, stand_in
from fluid.core.equations import unneeded
from fluid.population.vary import Varied
from fluid.runtime import CompiledStep
from fluid.runtime.fetch import RATE
from fluid.runtime.seeds import Draw
from fluid.runtime.step import Step

# What a training step carries from one to the next: one of each member, and one counter of steps for all.
_CARRY = {"arrays": 0, "slots": 0, "step": None}


class Members:
    """The members of a population, as its compiled steps see them.

    Args:
      varied: what differs among them.
      seeds: of their initial values and random layers.

    Attributes:
      size: how many there are.
      varied: the same.
      seeds: the same.
      arguments: arrays `[size]` on the device, by name of an argument of the program function.
      numbers: the same by name of a number of the optimizer.
      active: which members are trained: bool `[size]`, on the host.
      flags: the same on the device; None while all of them are, and a step need not look.
    """

    def __init__(self, varied: Varied, seeds: tuple[int, ...]):
        self.size = varied.size
        self.varied = varied
        self.seeds = seeds
        self.arguments: dict[str, Any] = varied.arguments
        self.numbers: dict[str, Any] = varied.numbers
        self.active = np.ones(self.size, bool)
        self.flags: Any = None

    def lie(self, place: Callable[[Any], Any]) -> None:
        """Bring what the steps take to a device."""
        self.arguments = place(self.varied.arguments)
        self.numbers = place(self.varied.numbers)


class MembersStep(CompiledStep):
    """A CompiledStep whose arrays have an axis of members in front: one call is a step of each.

    Feeds are those of all members; one that has one axis more than it is declared with has an entry for each member,
    behind the axis of the batch. A member that is not active goes through the step, and nothing of it changes; the step
    is compiled anew when the first one stops, since one that may have to leave arrays as they are copies them.

    Args:
      members: of the population.
      arguments: as CompiledStep takes them.
    """

    def __init__(self, program: Program, *arguments: Any, members: Members, **named: Any):
        self._members = members
        self._left = False  # whether it was compiled for members that have stopped
        super().__init__(program, *arguments, **named)

    def unused(self) -> set[str]:
        """The names of what differs among the members that a training step does not depend on."""
        members = self._members
        feeds = {name: stand_in(spec, 2, steps=(1, 1)) for name, spec in self._program.feeds.items()}

        def trained(candidates: Mapping[str, Any], carry: Any, kept: Any, feeds: Any) -> Any:
            arguments, numbers = ({n: candidates[n] for n in part} for part in (members.arguments, members.numbers))
            return self._train_one(self._step, carry, {**kept, "arguments": arguments, "numbers": numbers}, feeds, {})

        kept = {name: value for name, value in self._not_carried().items() if name not in ("arguments", "numbers")}
        one = jax.tree.map(_of_one, {"carry": self._carry(), "kept": kept})
        candidates = {n: values[0] for n, values in members.varied.values.items()}
        return unneeded(trained, candidates, one["carry"], one["kept"], feeds)

    def _functions(self, step: Step) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """The step of one training, over all members at once."""

        def train(carry: Any, kept: Any, feeds: Any, overrides: Any) -> Any:
            def one(carry: Any, kept: Any, feeds: Any) -> Any:
                return self._train_one(step, carry, kept, feeds, overrides)

            axes = (_CARRY, {**dict.fromkeys(kept, 0), "rates": None}, self._feed_axes(feeds))
            return jax.vmap(one, axes, (_CARRY, 0), axis_size=self._members.size)(carry, kept, feeds)

        def test(
            arrays: Any, feeds: Any, overrides: Any = None, root: Any = None, count: Any = 0, arguments: Any = None
        ) -> Any:
            def one(arrays: Any, root: Any, arguments: Any, feeds: Any) -> Any:
                return step.test(arrays, feeds, {**(arguments or {}), **(overrides or {})}, root, count)

            axes = (0, 0, 0, self._feed_axes(feeds))
            return self._of_test(jax.vmap(one, axes, axis_size=self._members.size)(arrays, root, arguments, feeds))

        return train, test

    def _of_test(self, results: Any) -> Any:
        """What a step that changes nothing returns, of what the members have computed."""
        return results

    def _train_one(self, step: Step, carry: Any, kept: Any, feeds: Any, overrides: Any) -> Any:
        """One step of one member; arguments and results as for `Step.train`, and `kept` has what differs."""
        varied = self._members.varied
        own = copy.copy(step)
        own.rules = varied.rules(step.rules, kept["numbers"])
        rates = [kept["numbers"][RATE]] if step.rules and varied.replaces_rate(step.rules) else kept["rates"]
        after, results = own.train(carry, {**kept, "rates": rates}, feeds, {**kept["arguments"], **overrides})
        active = kept["active"]

        def changed(new: Any, old: Any) -> Any:
            new = new.astype(old.dtype)  # a number of the optimizer that is traced has a dtype, as Python's have none
            return new if active is None else jnp.where(active, new, old)

        chosen = {part: jax.tree.map(changed, after[part], carry[part]) for part in ("arrays", "slots")}
        return {**chosen, "step": after["step"]}, results

    def _feed_axes(self, feeds: Mapping[str, Any]) -> dict[str, int | None]:
        """For each feed where its axis of members is; None where all members have the same."""
        return {name: self._feed_axis(name, value) for name, value in feeds.items()}

    def _feed_axis(self, name: str, value: Any) -> int | None:
        declared = len(self._program.feeds[name].shape)
        own = isinstance(value, jax.Array | np.ndarray | jax.ShapeDtypeStruct) and value.ndim > declared
        return min(1, declared) if own else None

    def _not_carried(self) -> dict[str, Any]:
        members = self._members
        own = {"active": members.flags, "arguments": members.arguments, "numbers": members.numbers}
        return {**super()._not_carried(), **own}

    def _reason(self, name: str, mode: str, shapes: str) -> str:
        left = self._members.flags is not None
        first = left and not self._left and self._step.training
        self._left |= left
        return "members have stopped" if first and self.compiled else super()._reason(name, mode, shapes)

    def _rest(self, overrides: Mapping[str, Any], draw: Draw | None = None) -> tuple[Any, ...]:
        if not self._members.arguments and not self._program.random:
            return super()._rest(overrides)
        return (overrides, *(draw or (self._scope.root, self._scope.step)), self._members.arguments)


def _of_one(array: Any) -> jax.ShapeDtypeStruct:
    """The shape of what one member has of a stacked array."""
    return jax.ShapeDtypeStruct(array.shape[1:], array.dtype)
