"""PopulationSession: a Session whose arrays are the stacked arrays of many trainings of one program."""

from collections.abc import Collection, Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid._util.host_random import root_key
from fluid.checkpoint import LoadReport
from fluid.checkpoint.source import Source
from fluid.core import Program
from fluid.place import OneDevice, Place, device_of
from fluid.runtime import Session
from fluid.runtime.engine import Engine
from fluid.runtime.fetch import RATE
from fluid.sweeps.members import Members

_ACTIVE = "@active"
_VARIED = "@vary/"


class StackedOnDevice(OneDevice):
    """A layout that places the arrays of a population on one device, each with a leading axis of members.

    Args:
      device: the device.
      size: the number of members.
    """

    def __init__(self, device: jax.Device, size: int):
        super().__init__(device)
        self._size = size

    def on(self, device: jax.Device) -> "StackedOnDevice":
        """Return this layout on another device."""
        return StackedOnDevice(device, self._size)

    def initial(self, program: Any, root: jax.Array | None) -> dict[str, Any]:
        """Return the stacked initial values of all parameters and states, by name.

        Args:
          program: the program.
          root: an array with a random key for each member; None for zeros.
        """
        keys: list[Any] = [None] * self._size
        if root is not None:
            keys = [jax.random.wrap_key_data(one) for one in np.asarray(jax.random.key_data(root))]
        each = [program.init(key) for key in keys]
        stacked: dict[str, Any] = self.place({n: np.stack([np.asarray(found[n]) for found in each]) for n in each[0]})
        return stacked

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the stacked initial optimizer state of all members."""
        return self.place(rule.first_slots(parameters, members=self._size))


class PopulationSession(Session):
    """A Session with many trainings of one program, the members of a population.

    The arrays and optimizer states in the scope, and the random roots, have a leading axis of members. All members
    share one step counter.

    Args:
      program: the program.
      members: the members of the population.
      place: a device; None for JAX's default.
      mode: the mode of calls of `run` that do not name a mode, see Session.
      options: further arguments of Engine.
    """

    def __init__(
        self, program: Program, members: Members, place: Place = None, mode: str | None = None, **options: Any
    ):
        layout = StackedOnDevice(device_of(place), members.size)
        engine = Engine(layout, members.seeds[0], strategy=members, **options)
        members.move(engine.place)
        engine.scope.root = layout.place(np.stack([jax.random.key_data(root_key(seed)) for seed in members.seeds]))
        self._members = members
        self._open(engine, [program], mode)

    def _take_params(self, source: Source, program: Program | None = None, *rest: Any, **allowed: Any) -> LoadReport:
        """Set parameters and states of all members from stacked arrays, or from the arrays of one training.

        Args:
          source: the arrays by name, each `[members, ...]`, or without the axis of members to set all members equally.
          program: ignored, because there is only one program; callers of a Session pass this argument.
          rest: as for `Session._take_params`.
          allowed: as for `Session._take_params`.
        """
        specs = self.scope.specs
        shared = {n: a for n, a in source.arrays.items() if n in specs and a.shape == specs[n].shape[1:]}
        stacked = {name: np.broadcast_to(array, specs[name].shape) for name, array in shared.items()}
        return super()._take_params(source._replace(arrays={**source.arrays, **stacked}), None, *rest, **allowed)

    def learning_rates(self, program: Any = None) -> tuple[Any, ...]:
        """Return the learning rates of the next step, one for each `minimize`: float32 `[members]`."""
        return tuple(np.asarray(rate) for rate in self.engine.current_rates(self.engine.find(program)))

    def set_learning_rates(self, rates: Any, program: Any = None) -> None:
        """Set learning rates that all members share; arguments as for Session.

        Raises:
          ArgumentError: `vary` sets a learning rate for each member.
        """
        if RATE in self._members.numbers:
            raise errors.ArgumentError(
                f"learning_rate = {rates!r}: vary gives each member a learning rate, expected that it stays; leave "
                f'vary={{"learning_rate": ...}} out to set one for all of them'
            )
        super().set_learning_rates(rates, program)

    def state(self) -> dict[str, Any]:
        """Return all arrays that a later session needs to continue, by name.

        Beside the arrays of a Session, these are the flags of active members, `@active`, and the varied values,
        `@vary/NAME`.
        """
        differing = {f"{_VARIED}{n}": v for n, v in {**self._members.arguments, **self._members.numbers}.items()}
        return {**super().state(), **differing, _ACTIVE: self.engine.place(self._members.active)}

    def restore(self, state: Mapping[str, Any], own: Collection[str] = ()) -> None:
        """Restore the result of `state` from a session of an equal program; arguments as for `Session.restore`.

        Raises:
          ParameterError: the varied values differ from the saved ones; then nothing is changed.
        """
        for name, values in self._members.varied.values.items():
            before = np.asarray(state[f"{_VARIED}{name}"])
            if not np.array_equal(before, values):
                raise errors.ParameterError(
                    f"vary={{{name!r}: {values.tolist()}}}, found {before.tolist()} in what was saved, expected the "
                    f"same: the members would go on with other values than they began with. Give vary as it was, or "
                    f"use another checkpoint_dir"
                )
        super().restore(state, own)
        self._members.activate(np.asarray(state[_ACTIVE]))
