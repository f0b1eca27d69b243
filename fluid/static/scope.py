"""Scopes: the values that outlive a run, over one Session."""

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from fluid import core, errors
from fluid.place import Place, device_of
from fluid.runtime import Session
from fluid.static.tape.program import Program


class Tensor:
    """One value of a Scope.

    Args:
      scope: the Scope.
      name: of the value.

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
        """The value itself."""
        return self

    def set(self, array: Any, place: Any = None) -> None:
        """Give it other numbers, of the same shape; `place` is accepted and ignored."""
        del place
        held = self._scope.session.scope
        held[self._name] = np.asarray(array).astype(held.specs[self._name].dtype)

    def shape(self) -> list[int]:
        """Its sizes."""
        return list(np.asarray(self).shape)

    def lod(self) -> list[list[int]]:
        """No lengths: what outlives a run is an array."""
        return []

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._scope.value(self._name), dtype)


class Scope:
    """The values that outlive a run, by name: parameters, moving averages, counters. It stands on a Session.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.Scope().find_var("fc_0.w_0") is None
      True
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._programs: dict[int, tuple[Program, int, core.Program]] = {}
        self._initialised: set[str] = set()
        self.kept: dict[str, Any] = {}

    @property
    def session(self) -> Session:
        """The Session, which is made by the first program that runs here.

        Raises:
          ProgramError: there was none.
        """
        if self._session is None:
            raise errors.ProgramError("nothing was run in this scope; first exe.run(fluid.default_startup_program())")
        return self._session

    def find_var(self, name: str) -> Tensor | None:
        """The value of a name, or None."""
        known = self._session is not None and name in self._session.scope and name in self._initialised
        return Tensor(self, name) if known or name in self.kept else None

    var = find_var

    def value(self, name: str) -> Any:
        """The array of a name."""
        return self.kept[name] if name in self.kept else self.session.scope[name]

    def on(self, place: Place, seed: int = 0) -> Session:
        """The Session of this scope, made on a place if there is none yet.

        Raises:
          ArgumentError: it is on another device.
        """
        if self._session is None:
            self._session = Session(place=place, seed=seed)
        elif place is not None and device_of(place) != self._session.device:
            raise errors.ArgumentError(
                f"the values of this scope are on {self._session.device}, and the executor is on {device_of(place)}; "
                f"use another scope: with fluid.scope_guard(fluid.Scope())"
            )
        return self._session

    def program(self, program: Program, place: Place) -> core.Program:
        """The program in the Session of this scope; what was written down since the last run is in it."""
        session = self.on(place, program.random_seed)
        known = self._programs.get(id(program))
        if known is not None and known[1] == program.version:
            return known[2]
        added = session.add(program.discovered())
        if known is not None:
            _take_over(session, known[2].name, added.name)
        self._programs[id(program)] = (program, program.version, added)
        return added

    def initialise(self, startup: Program, place: Place) -> None:
        """Give all that a startup program is for its initial values."""
        for main in startup.mains:
            seed = startup.random_seed or main.random_seed
            session = self.on(place, seed)
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
        """Give values that a program here has already other numbers."""
        for name, array in arrays.items():
            self.session.scope[name] = array
        self._initialised |= set(arrays)

    def keep(self, name: str, value: Any) -> None:
        """Take what a run left behind."""
        if name in self.session.scope:
            self.load({name: value})
        else:
            self.kept[name] = value

    def check(self, program: core.Program) -> None:
        """Refuse to run a program some of whose values have no initial numbers.

        Raises:
          ProgramError: there are such.
        """
        missing = [n for n in (*program.parameters, *program.states) if n not in self._initialised]
        if missing:
            raise errors.ProgramError(
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''} have no values yet; run the startup "
                f"program first: exe.run(fluid.default_startup_program()), or load them: fluid.io.load_params(...)"
            )


def _take_over(session: Session, old: str, new: str) -> None:
    """Give a program the optimizer slots of what it was before more was written down, where they are alike."""
    slots = session.scope.slots
    before, after = (jax.tree.map(np.shape, slots[name]) for name in (old, new))
    if jax.tree.flatten(before) == jax.tree.flatten(after):
        slots[new] = slots[old]


_global = Scope()
_scope: ContextVar[Scope] = ContextVar("fluid_static_scope", default=_global)  # noqa: B039


def global_scope() -> Scope:
    """The scope that programs run in.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.scope_guard(fluid.Scope()):
      ...     fluid.global_scope().find_var("fc_0.w_0") is None
      True
    """
    return _scope.get()


@contextlib.contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Run programs in a scope within a `with`.

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
