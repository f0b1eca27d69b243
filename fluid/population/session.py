"""PopulationSession: a Session whose arrays are those of many trainings, stacked."""

import functools
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.host_random import root_key
from fluid.place import OneDevice, Place, device_of
from fluid.population.step import Members, MembersStep
from fluid.runtime import Request, Session
from fluid.runtime.seeds import Draw, root_of, seed_of
from fluid.storage import LoadReport
from fluid.storage.source import Source

_ACTIVE = "@active"
_VARIED = "@vary/"


class StackedOnDevice(OneDevice):
    """Where the arrays of a population lie: on one device, each with an axis of members in front.

    Args:
      device: that device.
      size: how many members there are.
    """

    def __init__(self, device: jax.Device, size: int):
        super().__init__(device)
        self._size = size

    def initial(self, program: Any, root: jax.Array | None) -> dict[str, Any]:
        """The initial values of each member, stacked, by name; `root` has a key for each. Zeros for None."""
        keys: list[Any] = [None] * self._size
        if root is not None:
            keys = [jax.random.wrap_key_data(one) for one in np.asarray(jax.random.key_data(root))]
        each = [program.init(key) for key in keys]
        stacked: dict[str, Any] = self.place({n: np.stack([np.asarray(found[n]) for found in each]) for n in each[0]})
        return stacked

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """What a rule keeps for each member before its first update, stacked."""
        return self.place(rule.first_slots(parameters, members=self._size))


class PopulationSession(Session):
    """A Session of one program and many trainings of it.

    The arrays and slots of its scope, and the random roots, have an axis of members in front. The counter of steps is
    one for all: a member that is not active any more has its own part in none of them.

    Args:
      program: the program.
      members: of the population.
      place: a device.
      options: as for Session.

    Attributes:
      members: how many there are.
      population: what is known of them.
    """

    members: int
    _kind: type[MembersStep] = MembersStep

    def __init__(self, program: Program, members: Members, place: Place = None, **options: Any):
        self.population = members
        self.members = members.size
        self._step_type = functools.partial(self._kind, members=members)
        super().__init__(place=place, seed=members.seeds[0], **options)
        members.lie(self._on_device)
        self.scope.root = self.layout.place(np.stack([jax.random.key_data(root_key(seed)) for seed in members.seeds]))
        self.add(program)

    def add(self, function: Any, initial: bool = True) -> Program:
        """Add the program; what is known of its arrays counts the members too."""
        program = super().add(function, initial)
        stacked = {n: replace(spec, shape=(self.members, *spec.shape)) for n, spec in self.scope.specs.items()}
        self.scope.specs |= stacked
        return program

    def _move(self, layout: Any) -> None:
        super()._move(layout)
        self.population.lie(self._on_device)
        self.activate(self.population.active)

    def _take_params(self, source: Source, program: Program | None = None, *rest: Any, **allowed: Any) -> LoadReport:
        """Set parameters and states from arrays of all members, or from those of one training, which each member gets.

        Args:
          source: the arrays.
          program: accepted for what calls it of a Session; there is only one.
          rest: as for Session, and so is `allowed`.
        """
        specs = self.scope.specs
        shared = {n: a for n, a in source.arrays.items() if n in specs and a.shape == specs[n].shape[1:]}
        stacked = {name: np.broadcast_to(array, specs[name].shape) for name, array in shared.items()}
        return super()._take_params(source._replace(arrays={**source.arrays, **stacked}), None, *rest, **allowed)

    def draw(self, seed: int | None) -> Draw | None:
        """Return a random key for each member for a run in test mode, see `Session.draw`; None for `seed=None`."""
        if seed is None:
            return None
        return self.layout.place((np.stack([root_of(seed_of(seed, i)) for i in range(self.members)]), np.int32(0)))

    def unused(self, program: Program) -> set[str]:
        """The names of what differs among the members that a training step does not depend on."""
        step = self.bind(program, Request(TRAIN, None, tuple(program.feeds)))
        assert isinstance(step, MembersStep)
        return step.unused()

    def activate(self, active: np.ndarray) -> None:
        """Say which members are trained from the next step on: bool `[members]`."""
        self.population.active = np.array(active, bool)
        self.population.flags = None if active.all() else self.layout.place(self.population.active)

    def learning_rates(self, program: Any = None) -> tuple[Any, ...]:
        """The learning rates of the next step, one for each `minimize`: float32 `[members]`."""
        return tuple(np.asarray(rate) for rate in self.rate_arrays(self.find(program)))

    def rate_arrays(self, program: Program) -> list[jax.Array]:
        """The same on the device."""
        varied = self.population.varied
        rules = self.rules[program.name]
        if varied.replaces_rate(rules):
            return [self.population.numbers["learning_rate"]]
        given = self.rates.of(program.name)

        def one(slots: Any, numbers: Mapping[str, Any]) -> list[Any]:
            return [
                rule.rate(rate, its) for rule, rate, its in zip(varied.rules(rules, numbers), given, slots, strict=True)
            ]

        return jax.vmap(one, axis_size=self.members)(self.scope.slots[program.name], self.population.numbers)

    def set_learning_rates(self, rates: Any, program: Any = None) -> None:
        """Set the learning rates of all members.

        Raises:
          ArgumentError: they are among what differs.
        """
        if "learning_rate" in self.population.numbers:
            raise errors.ArgumentError(
                f"learning_rate = {rates!r}: vary gives each member a learning rate, expected that it stays; leave "
                f'vary={{"learning_rate": ...}} out to set one for all of them'
            )
        super().set_learning_rates(rates, program)

    def state(self) -> dict[str, Any]:
        """All that a later run needs, by name; with `@active`, and what differs among the members as `@vary/...`."""
        differing = {f"{_VARIED}{n}": v for n, v in {**self.population.arguments, **self.population.numbers}.items()}
        return {**super().state(), **differing, _ACTIVE: self.layout.place(self.population.active)}

    def restore(self, state: Mapping[str, Any], own: Collection[str] = ()) -> None:
        """Take over what `state` returned in a session of the same program.

        Raises:
          ParameterError: something else differs among the members here; nothing is changed then.
        """
        for name, values in self.population.varied.values.items():
            before = np.asarray(state[f"{_VARIED}{name}"])
            if not np.array_equal(before, values):
                raise errors.ParameterError(
                    f"vary={{{name!r}: {values.tolist()}}}, found {before.tolist()} in what was saved, expected the "
                    f"same: the members would go on with other values than they began with. Give vary as it was, or "
                    f"use another checkpoint_dir"
                )
        super().restore(state, own)
        self.activate(np.asarray(state[_ACTIVE]))

    def _laid_out(self, place: Any, parallel: Any, shardings: Any) -> StackedOnDevice:
        return StackedOnDevice(device_of(place), self.members)
