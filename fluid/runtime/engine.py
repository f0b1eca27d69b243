"""Engine: the internal state of a Session, which all its compiled steps share."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from fluid import errors
from fluid.checkpoint import Origin, other_origins
from fluid.core import TRAIN, Layout, ParameterSpec, Program, Scope, check_same_nets, shown_path
from fluid.reader.buckets import MAX_COMPILATIONS, Buckets, Ladders, check_names
from fluid.reader.converter import named
from fluid.reader.feed_checks import NaNs
from fluid.runtime.compilation_cache import compilation_cost
from fluid.runtime.custom_step import StepFunction, check_tables
from fluid.runtime.fetch import as_array, no_program
from fluid.runtime.freezing import Freezing
from fluid.runtime.interrupts import InterruptGuard
from fluid.runtime.parameter_updates import Rates, Rule, rules_of
from fluid.runtime.seeds import Draw, Seeds
from fluid.runtime.step import Constants, OneTraining, Step, TrainingState


class Compilation(NamedTuple):
    """A record of one compilation: the name of the program, the mode ("train" or "test"), and the reason."""

    program: str
    mode: str
    reason: str


class Compilations(list[Compilation]):
    """A list of the compilations of a session, oldest first.

    Attributes:
      watchers: functions that are called with a Compilation when it begins, and with None when it has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[Callable[[Compilation | None], None]] = []

    @property
    def of_training(self) -> int:
        """Number of compilations in train mode so far."""
        return sum(compilation.mode == TRAIN for compilation in self)

    def begin(self, compilation: Compilation) -> None:
        """Append a Compilation that begins now, and call each watcher (a callback) with the Compilation."""
        self.append(compilation)
        for watcher in self.watchers:
            watcher(compilation)

    def end(self) -> None:
        """Call each watcher (a callback) with None, which means that the last compilation has ended."""
        for watcher in self.watchers:
            watcher(None)


class Engine:
    """The internal state of a Session: programs, arrays, devices, compiled steps, and everything that steps share.

    A user calls the Session. Trainer, Inferencer, server and loops use its engine, and `bind(engine, program, request)`
    of `fluid.runtime` returns the compiled step for a request.

    Attributes:
      layout: the device, or the mesh of devices.
      strategy: an object that runs the pure step, for one model or for all models of a population.
      function: a custom training step, or None.
      programs: the Programs of the session, by name.
      rules: the update rule of each `minimize` call of a program, by the program's name.
      scope: the arrays by name, with optimizer states, step counter and random root.
      rates: the learning rates of all programs.
      freezing: the frozen parameters, which training does not change.
      replaced: for each moving average that now stands in place of parameters, the original and the averaged array of
        these parameters, by name; no training step may change these parameters.
      seeds: seeds of the runs in test mode; training steps and checkpoints do not use these seeds.
      compilations: all compilations so far.
      constants: True if test-mode steps compile the arrays as constants, see `prediction.are_constants`; False again
        from the first time that an array was replaced on.
      guard: delays Ctrl-C until a step has ended.
      nans: warns of NaN in feeds.
      steps: the compiled steps, by program and request.
    """

    def __init__(
        self,
        layout: Layout,
        seed: int = 0,
        *,
        strategy: OneTraining | None = None,
        function: StepFunction | None = None,
        precision: str | None = None,
        buckets: Ladders = None,
        max_compilations: int = MAX_COMPILATIONS,
    ):
        self.layout = layout
        self.strategy = strategy or OneTraining()
        self.function = function
        self.programs: dict[str, Program] = {}
        self._given: dict[str, Program] = {}  # as the caller knows each program, by its name here
        self.rules: dict[str, list[Rule]] = {}
        self.scope = Scope(seed, self.place)
        self.rates = Rates(self.place)
        self.freezing = Freezing(self.scope, self.rules, self.place, self.members)
        self.replaced: dict[Hashable, dict[str, tuple[jax.Array, jax.Array]]] = {}
        self.seeds = Seeds("Session", int(seed) % 2**64)
        self.compilations = Compilations()
        self.constants = False
        self.guard = InterruptGuard()
        self.nans = NaNs()
        self.steps: dict[Hashable, Any] = {}
        self._precision = precision
        self._ladders = buckets
        self._max_compilations = max_compilations

    @property
    def members(self) -> int | None:
        """Number of models in a population, whose arrays are stacked; None for a single model."""
        return self.strategy.size

    @property
    def device(self) -> jax.Device:
        """The device of the session's arrays; one of the devices, if the session has several."""
        return self.layout.device

    def add(self, function: Callable[[], Any] | Program, initial: bool = True) -> Program:
        """Add a program: trace it, and create those parameters and optimizer states that do not exist yet."""
        program = given = function if isinstance(function, Program) else Program(function, precision=self._precision)
        names = (f"{given.name}_{count}" if count else given.name for count in itertools.count())
        if (name := next(n for n in names if n not in self.programs)) != given.name:
            program = copy.copy(given)
            program.name = name
        # All code that can raise an error runs first, so that an error leaves the session unchanged.
        for other in self.programs.values():
            check_same_nets(program.name, program.shared, other.shared)
        rules = rules_of(program)
        if self.function is not None:
            check_tables(rules)
        if program.devices and not self.layout.in_parts:
            self._move_parts(program)
        self.layout.add(program)
        root = jax.random.wrap_key_data(self.scope.root) if initial else None
        specs = self.strategy.specs(program.parameters | program.states)
        self.check_paths(program, specs)
        self.scope.declare(specs, functools.partial(self.layout.initial, program, root))
        self.scope.slots[program.name] = [
            self.layout.slots(rule, {n: self.scope.arrays[n] for n in rule.parameters}) for rule in rules
        ]
        self.rates.add(program.name, rules)
        self.programs[program.name] = program
        self._given[program.name] = given
        self.rules[program.name] = rules
        return program

    def check_paths(self, program: Program, specs: Mapping[str, ParameterSpec]) -> None:
        """Check that the program shares by automatic names what the same calls created.

        Raises:
          ParameterError: for an array, the calls that create it have created another array of the session.
        """
        here, there = (
            {n: Origin.of(n, s.shape, s.dtype, s.path) for n, s in each.items() if s.path}
            for each in (specs, self.scope.specs)
        )
        for found, holder in ((other_origins(here, there), self.scope.specs), (other_origins(there, here), specs)):
            for name, other in found.items():
                raise errors.ParameterError(
                    f"the programs of this Session share {name!r} by its automatic name: {program.name} creates it at "
                    f"{shown_path(specs[name].path)}, and the Session has it from "
                    f"{shown_path(self.scope.specs[name].path)}, which are other layers; {other!r} comes from "
                    f"{shown_path(holder[other].path)}. Automatic names count the layers of each program; share the "
                    f"function that calls the layers: fluid.shared(function), or give names: name="
                )

    def _move_parts(self, program: Program) -> None:
        """Run the layers of each `device_guard` block on the device of the block.

        For this, `OnDevices` replaces the layout, the object that puts arrays on devices and compiles steps.
        """
        if self.layout.mesh is not None or self.members is not None:
            raise errors.ArgumentError(
                f"the program {program.name} has device_guard({min(program.devices)!r}), found "
                f"{'parallel=' if self.members is None else 'a Population'}, expected one training without parallel=: "
                f"leave one of the two out"
            )
        from fluid.parallel import OnDevices  # deferred import of a package that only device_guard needs

        self.move(OnDevices(self.device))

    def check(self) -> None:
        """Check that the feeds named in `buckets=` and the parameters named in `shardings=` exist.

        Call this method after the last `add`, when all programs are known.

        Raises:
          UnknownNameError: a name matches no feed or parameter.
        """
        named = (n for p in self.programs.values() for n, spec in p.feeds.items() if spec.lod_level)
        check_names(self._ladders, named)
        self.layout.check(self.scope.specs)
        for program in self.programs.values():
            self.buckets(program)

    def find(
        self,
        program: str | Callable[[], Any] | Program | None = None,
        fits: Callable[[Program], bool] = lambda program: False,
    ) -> Program:
        """Find a program of the session by its name or its function.

        Args:
          fits: a function that returns True if a program can run the request; called if `program` is None and the
            session has several programs.

        Raises:
          UnknownNameError: there is no such program.
          ArgumentTypeError: there are several programs, and none is named.
        """
        if program is None:
            fitting = [one for one in self.programs.values() if len(self.programs) == 1 or fits(one)]
            if len(fitting) == 1:
                return fitting[0]
        for name, known in self.programs.items():
            original = getattr(known.function, "__wrapped__", known.function)
            if program in (known, self._given[name], name) or (
                callable(program) and program in (known.function, original)
            ):
                return known
        raise no_program(program, self.programs)

    def buckets(self, program: Program) -> Buckets:
        """Return new Buckets, which choose the lengths to which the sequences of a program are padded."""
        ladders = self._ladders
        if isinstance(ladders, Mapping):  # leave out sizes for feeds of other programs
            ladders = {n: sizes for n, sizes in ladders.items() if n in program.feeds}
        return Buckets(program.feeds, ladders, self._max_compilations, compilation_cost(program, self.device.platform))

    def take(
        self, program: Program, feed: Mapping[str, Any], given: Sequence[str], replaced: Sequence[str], buckets: Buckets
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return feeds and overrides for a step: checked, padded and on the device.

        Raises:
          FeedError: the data does not match the feeds.
        """
        feeds = named(self, program.feeds, feed, given, buckets)
        return feeds, self.layout.take({n: as_array(feed[n]) for n in replaced})

    def draw(self, seed: int | None) -> Draw | None:
        """Return the random key of a test-mode run. `seed=7` draws the numbers of step 0 of `Session(seed=7)`."""
        return None if seed is None else self.place(self.strategy.draw(seed))

    def current_rates(self, program: Program) -> list[jax.Array]:
        """Return the learning rates of a program's next training step, on the device: one for each `minimize` call.

        Raises:
          UnknownNameError: the learning rate of an optimizer is unknown.
        """
        name = program.name
        return self.strategy.learning_rates(self.rates, name, self.rules[name], self.scope.slots[name])

    def arguments(self, step: Step) -> tuple[TrainingState, Constants]:
        """Return the arguments of a training step: arrays to update (TrainingState), and to read only (Constants)."""
        scope, name = self.scope, step.program.name
        state = TrainingState({n: scope.arrays[n] for n in step.carried}, scope.slots[name], scope.step)
        root = scope.root if step.draws else None
        kept = {n: scope.arrays[n] for n in step.kept}
        return state, Constants(kept, root, self.rates.of(name), self.strategy.constants())

    def place(self, value: Any) -> Any:
        """Put a tree of arrays on the device; with several devices, a full copy on each one."""
        return self.layout.place(value)

    def move(self, layout: Layout) -> None:
        """Move all arrays to the devices of a new layout; possible only before the first run.

        A layout determines the devices of the arrays. With several devices, each device gets a copy of all arrays.
        """
        self.layout = layout
        for program in self.programs.values():
            layout.add(program)
        self.steps.clear()
        self.scope.move(self.place)
        self.strategy.move(self.place)
        for name in self.rules:
            self.rates.put(name, self.rates.given(name))

    def close(self) -> None:
        """Release all arrays and compiled steps."""
        self.steps.clear()
        self.scope.close()
        self.replaced.clear()
