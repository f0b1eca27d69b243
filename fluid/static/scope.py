"""Scopes: the values that are kept between runs, over one Session."""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from fluid import core, errors
from fluid.place import Place, device_of
from fluid.runtime import Session
from fluid.static.tape.later import Later
from fluid.static.tape.program import Program


class Tensor:
    """A value of a Scope.

    Args:
      scope: the Scope.
      name: the name of the value.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     with fluid.unique_name.guard():
      ...         y = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      ...     fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
      ...     tensor = fluid.global_scope().find_var("fc_0.b_0").get_tensor()
      ...     tensor.set([2.5], fluid.CPUPlace())
      ...     np.array(tensor).tolist(), tensor.shape()
      []
      ([2.5], [1])
    """

    def __init__(self, scope: "Scope", name: str):
        self._scope = scope
        self._name = name

    def get_tensor(self) -> "Tensor":
        """Return the value itself."""
        return self

    def set(self, array: Any, place: Any = None) -> None:
        """Set new numbers of the current shape; `place` is accepted and ignored."""
        del place
        held = self._scope.session.scope
        held[self._name] = np.asarray(array).astype(held.specs[self._name].dtype)

    def shape(self) -> list[int]:
        """Return the sizes of the value."""
        return list(np.asarray(self).shape)

    def lod(self) -> list[list[int]]:
        """Return no lengths: a value in a scope is an array."""
        return []

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._scope.value(self._name), dtype)


class Scope:
    """The values that are kept between runs, by name: parameters, moving averages, counters; stored in a Session.

    Attributes:
      kept: values of other variables that are kept between runs, by name.
      collective: True if the values are on the devices of all processes of a launch.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.Scope().find_var("fc_0.w_0") is None
      True
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._programs: dict[int, tuple[Program, int, core.Program]] = {}
        self._later: dict[int, tuple[int, Later | None]] = {}
        self._initialised: set[str] = set()
        self.kept: dict[str, Any] = {}
        self.collective = False

    @property
    def session(self) -> Session:
        """The Session of this scope, created by the first program that runs in the scope.

        Raises:
          ProgramError: no program was run yet.
        """
        if self._session is None:
            raise errors.ProgramError("nothing was run in this scope; first exe.run(fluid.default_startup_program())")
        return self._session

    def find_var(self, name: str) -> Tensor | None:
        """Return the value of a name, or None."""
        known = self._session is not None and name in self._session.scope and name in self._initialised
        return Tensor(self, name) if known or name in self.kept else None

    var = find_var

    def value(self, name: str) -> Any:
        """Return the array of a name."""
        return self.kept[name] if name in self.kept else self.session.scope[name]

    def on(self, place: Place, seed: int = 0, collective: bool = False) -> Session:
        """Return the Session of this scope, created if none exists yet.

        Args:
          place: its device.
          seed: its seed.
          collective: True creates the Session on the devices of all processes, whatever `place` is.

        Raises:
          ArgumentError: the Session is on another device.
          ProgramError: the Session is on one device, and not on those of all processes.
        """
        if self._session is None:
            self.collective = collective
            device = None if collective else place
            self._session = Session(place=device, seed=seed, parallel=collective or None)
        elif collective and not self.collective:
            raise errors.ProgramError(
                "this scope was used before DistributeTranspiler.transpile, on one device; call transpile before the "
                "first exe.run, also of the startup program"
            )
        elif self.collective:
            return self._session
        elif place is not None and device_of(place) != self._session.device:
            raise errors.ArgumentError(
                f"the values of this scope are on {self._session.device}, and the executor is on {device_of(place)}; "
                f"use another scope: with fluid.scope_guard(fluid.Scope())"
            )
        return self._session

    def program(self, program: Program, place: Place) -> core.Program:
        """Return the program in the Session of this scope, with all layers recorded since the last run."""
        session = self.on(place, program.random_seed, program.collective)
        known = self._programs.get(id(program))
        if known is not None and known[1] == program.version:
            return known[2]
        added = session.add(program.discovered())
        if known is not None:
            _take_over(session, known[2].name, added.name)
        self._programs[id(program)] = (program, program.version, added)
        return added

    def later(self, program: Program) -> Later | None:
        """Return the calls that run after a training step of a program that runs in this scope; None without any."""
        version = self._programs[id(program)][1]
        if self._later.get(id(program), (None, None))[0] != version:
            self._later[id(program)] = (version, None if program.for_test else program.later())
        return self._later[id(program)][1]

    def initialise(self, startup: Program, place: Place) -> None:
        """Initialize the parameters and states of all programs of a startup program."""
        collective = any(main.collective for main in startup.mains)
        for main in startup.mains:
            seed = startup.random_seed or main.random_seed
            session = self.on(place, seed, collective)
            program = self.program(main, place)
            first = program.init(jax.random.key(seed))
            session.scope.arrays |= session.engine.place(first)
            slots = [
                rule.init({n: session.scope.arrays[n] for n in rule.parameters})
                for rule in session.engine.rules[program.name]
            ]
            session.scope.slots[program.name] = session.engine.place(slots)
            self._initialised |= set(first)

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Set values of programs that are in this scope already."""
        for name, array in arrays.items():
            self.session.scope[name] = array
        self._initialised |= set(arrays)

    def keep(self, name: str, value: Any) -> None:
        """Store a value that a run leaves for later runs."""
        if name in self.session.scope:
            self.load({name: value})
        else:
            self.kept[name] = value

    def check(self, program: core.Program) -> None:
        """Refuse to run a program with uninitialized values.

        Raises:
          ProgramError: a value is uninitialized.
        """
        missing = [n for n in (*program.parameters, *program.states) if n not in self._initialised]
        if missing:
            raise errors.ProgramError(
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''} have no values yet; run the startup "
                f"program first: exe.run(fluid.default_startup_program()), or load them: fluid.io.load_params(...)"
            )


def _take_over(session: Session, old: str, new: str) -> None:
    """Copy the optimizer state of the previous version of a program to its new version, if their shapes agree."""
    slots = session.scope.slots
    before, after = (jax.tree.map(np.shape, slots[name]) for name in (old, new))
    if jax.tree.flatten(before) == jax.tree.flatten(after):
        slots[new] = slots[old]


_global = Scope()
_scope: ContextVar[Scope] = ContextVar("fluid_static_scope", default=_global)  # noqa: B039


def global_scope() -> Scope:
    """Return the scope in which programs run.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.scope_guard(fluid.Scope()):
      ...     fluid.global_scope().find_var("fc_0.w_0") is None
      True
    """
    return _scope.get()


@contextlib.contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Run programs in a scope within a `with` block.

    Args:
      scope: the scope.

    Example:
      >>> import fluid.static as fluid
      >>> scope = fluid.Scope()
      >>> with fluid.scope_guard(scope):
      ...     fluid.global_scope() is scope
      True
    """
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)
