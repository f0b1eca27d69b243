"""Scopes: a Scope stores the values of persistable variables between runs, in a Session."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np

from fluid import core, errors
from fluid.place import Place, device_of
from fluid.runtime import Session
from fluid.static.tape.calls import Later
from fluid.static.tape.program import Program


class Tensor:
    """A handle that reads and sets the value of one variable in a Scope.

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

    def __init__(self, scope: Scope, name: str):
        self._scope = scope
        self._name = name

    def get_tensor(self) -> Tensor:
        """Return the Tensor itself: in PaddlePaddle, `find_var(name).get_tensor()` returns the tensor of a variable."""
        return self

    def set(self, array: Any, place: Any = None) -> None:
        """Set the value of the variable to an array of the same shape; `place` is ignored."""
        del place
        self._scope.put(self._name, np.asarray(array))

    def shape(self) -> list[int]:
        """Return the shape of the variable's value as a list."""
        return list(np.asarray(self).shape)

    def lod(self) -> list[list[int]]:
        """Return an empty list: a value in a scope is an array, without the lengths of sequences."""
        return []

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._scope.value(self._name), dtype)


class Scope:
    """A store of the values that persist between runs, by name: parameters, moving averages, counters.

    Args:
      outer: the outer scope. The new scope shows the values of `outer` until a startup program runs in the new scope.

    Attributes:
      kept: a dict from names to the values that the Session does not store, such as persistable results of layers.
      collective: True if the values are on the devices of all training processes.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.Scope().find_var("fc_0.w_0") is None
      True
    """

    def __init__(self, outer: Scope | None = None):
        self._outer = outer
        self._session: Session | None = None
        self._programs: dict[int, tuple[Program, Hashable, core.Program]] = {}
        self._later: dict[int, tuple[Hashable, Later | None]] = {}
        self._initialised: set[str] = set()
        self.kept: dict[str, Any] = {}
        self.collective = False

    @property
    def session(self) -> Session:
        """Return the Session (the store of the values) of the scope; the first run of a program creates the Session.

        Raises:
          ProgramError: no program has run in the scope yet.
        """
        if self._session is None:
            raise errors.ProgramError("nothing was run in this scope; first exe.run(fluid.default_startup_program())")
        return self._session

    def find_var(self, name: str) -> Tensor | None:
        """Return a Tensor for the variable `name` in this or an outer scope; None if the variable has no value."""
        known = self._session is not None and name in self._session.scope and name in self._initialised
        if known or name in self.kept or self._minimisations(name):
            return Tensor(self, name)
        return None if self._outer is None else self._outer.find_var(name)

    var = find_var

    def new_scope(self) -> Scope:
        """Return a new inner scope, which shows this scope's values until a startup program runs in the new scope."""
        return Scope(self)

    @property
    def running(self) -> Scope:
        """Return the nearest scope with a Session (this or an outer scope); without a Session, the outermost scope."""
        return self if self._session is not None or self._outer is None else self._outer.running

    def value(self, name: str) -> Any:
        """Return the value of the variable `name` as an array; a learning rate is float32 `[1]`, as in PaddlePaddle."""
        if found := self._minimisations(name):
            program, position = found[-1]
            return np.array([self.session.learning_rates(program)[position]], "float32")
        return self.kept[name] if name in self.kept else self.session.scope[name]

    def put(self, name: str, array: np.ndarray) -> None:
        """Set the value of the variable `name`; a learning rate changes in all programs that use it."""
        if name in self.kept:
            self.kept[name] = array
        for program, position in self._minimisations(name):
            rates = self.session.engine.rates
            given = rates.given(program.name)
            given[position] = array.item()
            rates.set(program.name, given)
        held = self.session.scope
        if name in held:
            held[name] = array.astype(held.specs[name].dtype)

    def rates_set(self, program: Program) -> dict[str, np.ndarray]:
        """Return a dict of the learning rates that the user has set in a program, by name."""
        given = self.session.engine.rates.given
        return {
            name: self.value(name)
            for name in program.rates
            if any(given(added.name)[position] is not None for added, position in self._minimisations(name))
        }

    def _minimisations(self, name: str) -> list[tuple[core.Program, int]]:
        trained = [(written, added) for written, _, added in self._programs.values() if added.minimizes]
        return [(added, position) for written, added in trained for position in written.rates.get(name, ())]

    def on(self, place: Place, seed: int = 0, collective: bool = False) -> Session:
        """Return the Session (the store of the values) of this scope; create a Session if the scope has none.

        Args:
          place: the device of the Session; None for the default device, or for the device of the existing Session.
          seed: the seed of a new Session.
          collective: True creates the Session on the devices of all processes, whatever `place` is.

        Raises:
          ArgumentError: the Session is on another device.
          ProgramError: the Session is on one device, and `collective` requests the devices of all processes.
        """
        if self._session is None:
            self.collective = collective
            device = None if collective or place is None else device_of(place)
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
        """Return the `core.Program` that the Session runs for a recorded Program; create one if the Program changed."""
        session = self.on(place, program.random_seed, program.collective)
        known = self._programs.get(id(program))
        content = program.content
        if known is not None and known[1] == content:
            return known[2]
        added = session.add(program.discovered())
        if known is not None:
            _take_over(session, known[2].name, added.name)
        self._programs[id(program)] = (program, content, added)
        return added

    def later(self, program: Program) -> Later | None:
        """Return the layer calls that run after each training step of a program; None if there are none."""
        content = self._programs[id(program)][1]
        if self._later.get(id(program), (None, None))[0] != content:
            self._later[id(program)] = (content, None if program.for_test else program.later())
        return self._later[id(program)][1]

    def initialise(self, startup: Program, place: Place) -> None:
        """Initialize the parameters and states of all main programs that belong to the startup program `startup`."""
        collective = any(main.collective for main in startup.mains)
        for main in startup.mains:
            seed = startup.random_seed or main.random_seed
            self.on(place, seed, collective)
            self._drop_other_shapes(main, place)
            session = self.session
            program = self.program(main, place)
            first = program.init(jax.random.key(seed))
            session.scope.arrays |= session.engine.place(first)
            session.scope.slots[program.name] = [
                session.engine.layout.slots(rule, {n: session.scope.arrays[n] for n in rule.parameters})
                for rule in session.engine.rules[program.name]
            ]
            session.engine.rates.put(program.name, [None] * len(session.engine.rules[program.name]))
            self._initialised |= set(first)

    def _drop_other_shapes(self, main: Program, place: Place) -> None:
        """Remove programs that declare a parameter or state of the program `main` in another shape from the Session.

        A Session holds one array for each name, so these programs cannot run beside `main`.
        """
        old = self.session
        known = {n: old.scope.specs[n] for n in main.arrays if n in old.scope.specs}
        changed = {n for n, s in known.items() if (s.shape, s.dtype) != (main.arrays[n].shape, main.arrays[n].dtype)}
        if not changed:
            return
        self._session = None
        new = self.on(place, main.random_seed, self.collective)
        programs, self._programs = self._programs, {}
        for key, (written, content, added) in programs.items():
            if changed.isdisjoint([*added.parameters, *added.states]):
                name = added.name
                again = new.add(added, initial=False)
                new.scope.slots[again.name] = old.scope.slots[name]
                new.engine.rates.put(again.name, old.engine.rates.given(name))
                self._programs[key] = (written, content, again)
        new.scope.arrays |= {n: old.scope.arrays[n] for n in new.scope.arrays}
        new.scope.step, new.scope.root = old.scope.step, old.scope.root
        self._initialised &= set(new.scope.arrays)

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Set parameters and states of the programs in the Session to `arrays`, a dict of values by name."""
        for name, array in arrays.items():
            self.session.scope[name] = array
        self._initialised |= set(arrays)

    def keep(self, name: str, value: Any) -> None:
        """Store the value of the variable `name` for later runs."""
        if name in self.session.scope:
            self.load({name: value})
        else:
            self.kept[name] = value

    def check(self, program: core.Program) -> None:
        """Check that all parameters and states of a program are initialized.

        Raises:
          ProgramError: a parameter or state is not initialized.
        """
        missing = [n for n in (*program.parameters, *program.states) if n not in self._initialised]
        if missing:
            raise errors.ProgramError(
                f"{', '.join(missing[:5])}{', ...' if len(missing) > 5 else ''} have no values yet; run the startup "
                f"program first: exe.run(fluid.default_startup_program()), or load them: fluid.io.load_params(...)"
            )


def _take_over(session: Session, old: str, new: str) -> None:
    """Copy optimizer state and learning rates from the program `old` to its version `new`.

    If the shapes differ, for example since `precision = "float16"` adds a loss scale, the state begins anew.
    """
    slots = session.scope.slots
    before, after = (jax.tree.map(np.shape, slots[name]) for name in (old, new))
    if jax.tree.flatten(before) == jax.tree.flatten(after):
        slots[new] = slots[old]
        session.engine.rates.put(new, session.engine.rates.given(old))
    elif jax.tree.leaves(before):
        core.warn(
            "the program has changed since its last run, and its optimizers have other state than before, which begins "
            "anew: moments and the numbers of updates are 0. Change the program before the first exe.run"
        )


_global = Scope()
_scope: ContextVar[Scope] = ContextVar("fluid_static_scope", default=_global)  # noqa: B039


def global_scope() -> Scope:
    """Return the current scope, in which the Executor runs programs by default.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.scope_guard(fluid.Scope()):
      ...     fluid.global_scope().find_var("fc_0.w_0") is None
      True
    """
    return _scope.get()


@contextlib.contextmanager
def scope_guard(scope: Scope) -> Iterator[None]:
    """Make a scope the global scope within a `with` block.

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
