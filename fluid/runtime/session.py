"""Session: one Scope, any number of Programs, a device, and the compiled steps."""

import functools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import (
    TEST,
    TRAIN,
    Program,
    Scope,
    check_same_nets,
    fitting,
    not_copied,
    warn_of_adversaries,
    warn_of_unused_layers,
)
from fluid.distributed.cluster import warn_if_alone
from fluid.formatting import counted, html_table, scaled
from fluid.name_hints import KnownAttributes
from fluid.param_attr import Shardings
from fluid.place import OneDevice, Parallel, Place, device_of
from fluid.reader.buckets import MAX_COMPILATIONS, Buckets, Ladders, check_names
from fluid.reader.converter import named
from fluid.reader.prefetch import Feed
from fluid.reader.values import NaNs
from fluid.runtime.compilation_cache import keep_compilations
from fluid.runtime.compile_cost import price_of
from fluid.runtime.compiled_step import Compilations, CompiledStep
from fluid.runtime.custom_step import StepFunction, check_function, check_tables
from fluid.runtime.fetch import Fetch, as_array, check_feed, check_fetch, no_program, split_names
from fluid.runtime.freezing import Freezing
from fluid.runtime.in_flight import InFlight
from fluid.runtime.interrupts import InterruptGuard
from fluid.runtime.lazy_values import ValuesOnDemand
from fluid.runtime.learning_rates import Rates
from fluid.runtime.results import Results
from fluid.runtime.seeds import Draw, Seeds, root_of
from fluid.runtime.state_io import SavesArrays
from fluid.runtime.step import Request, checked_mode
from fluid.runtime.update_rules import Rule, rules_of

if TYPE_CHECKING:
    from fluid.parallel import OnMesh


class Session(SavesArrays, ValuesOnDemand, KnownAttributes):
    """Runs programs over one set of named arrays.

    Args:
      program_functions: program functions or Programs; they share parameters by name.
      place: a device, see `fluid.place.device_of`, None for JAX's default; or with `parallel` the devices, see
        `fluid.place.devices_of`, None for all.
      seed: of initial values, and of random layers in training and in test mode.
      precision: "bfloat16" or "float16" to compute in it, see Program.
      buckets: sizes to pad sequences to: a list for all, or a dict of lists by feed; None chooses by what is fed.
      max_compilations: how many compilations of a step that choice may lead to.
      mode: of runs that do not name one; None for "train" when the program minimises, else "test". "test" in Trainers.
      step: a function of a `fluid.TrainingStep` that computes a training step, instead of one gradient and one update.
      parallel: None for one device; True to divide each batch among all devices; "fsdp" to divide parameters and slots
        among them as well; or a `fluid.Mesh`. The numbers stay those of one device, see `docs/parallel.md`.
      shardings: by names and globs of parameters, the axis of the mesh that divides each of their dimensions, or None:
        `{"*/fc_*.w_0": (None, "model")}`. The first that matches counts, before `ParamAttr(sharding=)`.
      initial: False leaves zeros in the place of initial values, for who sets every array next, as `load_params` does.

    Attributes:
      programs: Program by name.
      rules: how each `minimize` of a program updates its parameters, by the program's name.
      scope: the arrays by name, filled with initial values.
      layout: where they lie.
      seeds: of runs in test mode; training steps, checkpoints and tests do not use them.
      rates: the learning rates of all programs, see `learning_rates`.
      freezing: what training leaves as it is, see `freeze`.
      step_function: what was given as `step`.
      replaced: parameters in whose place their average stands now, by that average; a step must not change them.
      compilations: every compilation so far and its reason; its length counts them.
      guard: keeps Ctrl-C out of the middle of a step.
      nans: warns of NaN in what is fed.

    Raises:
      FluidError: whatever mistake the programs' shapes show.

    Example:
      >>> import fluid, numpy as np
      >>> def double():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     return fluid.layers.scale(x, 2.0)
      >>> with fluid.Session(double) as session:
      ...     result, = session.run("double", feed={"x": np.ones((1, 2))})
      >>> np.asarray(result).tolist()
      [[2.0, 2.0]]
    """

    __reduce_ex__ = not_copied(
        "Session", 'write session.save_params("net.params"), and session.load_params("net.params") in another Session'
    )
    _step_type: Callable[..., CompiledStep] = CompiledStep

    @fitting("fluid.Session")
    def __init__(
        self,
        *program_functions: Callable[[], Any] | Program,
        place: Place = None,
        seed: int = 0,
        precision: str | None = None,
        buckets: Ladders = None,
        max_compilations: int = MAX_COMPILATIONS,
        mode: str | None = None,
        step: StepFunction | None = None,
        parallel: Parallel = None,
        shardings: Shardings | None = None,
        initial: bool = True,
    ):
        check_function(step)
        keep_compilations()
        self._mode = None if mode is None else checked_mode(mode)
        self.layout = self._laid_out(place, parallel, shardings)
        self.precision = precision
        self.programs: dict[str, Program] = {}
        self.rules: dict[str, list[Rule]] = {}
        self.compilations = Compilations()
        self.scope = Scope(seed, self._on_device)
        self.seeds = Seeds("Session", int(seed) % 2**64)
        self.rates = Rates(self._on_device)
        self.freezing = Freezing(self.scope, self.rules, self._on_device, self.members)
        self.step_function = step
        self.replaced: dict[Hashable, dict[str, jax.Array]] = {}
        self._steps: dict[tuple[str, Request], CompiledStep] = {}
        self.guard = InterruptGuard()
        self.nans = NaNs()
        self._closed = False
        self._in_flight: InFlight[Results] = InFlight()
        self._ladders = buckets
        self._max_compilations = max_compilations
        for function in program_functions:
            self.add(function, initial)
        if program_functions:
            check_names(buckets, (n for p in self.programs.values() for n, spec in p.feeds.items() if spec.lod_level))
            self.layout.check(self.scope.specs)
        warn_of_unused_layers(self.programs.values())
        warn_of_adversaries(self.programs.values())
        for program in self.programs.values():
            self.buckets(program)
        if any(program.minimizes for program in self.programs.values()):
            warn_if_alone()

    @property
    def device(self) -> jax.Device:
        """The device, or one of them."""
        return self.layout.device

    @property
    def place(self) -> str | list[str]:
        """The device, such as "cpu:0"; a list of devices with `parallel`.

        It can be set before the first run, to any value that `place=` of a Session takes. All arrays move there.

        Raises:
          DeviceError: this machine has no such device.
          ArgumentError: a program has run already, or there are several devices.

        Example:
          >>> import fluid
          >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
          >>> session.place = "cpu"
          >>> session.place
          'cpu:0'
        """
        if self.layout.mesh is None:
            return _device_name(self.device)
        return [_device_name(device) for device in self.layout.mesh.devices.flat]

    @place.setter
    def place(self, place: Place) -> None:
        self._check_open()
        if self.layout.mesh is not None:
            raise errors.ArgumentError(
                f"place = {place!r}: the arrays are divided among {len(self.place)} devices, which are given when a "
                f"Session or Trainer is made: fluid.Trainer(program, optimizer, place=..., parallel=...)"
            )
        if place == self.place:
            return
        if len(self.compilations) or self._fed is not None:
            raise errors.ArgumentError(
                f"place = {place!r}: a program has run on {self.place}, and the place is fixed from then on; make "
                f"another one that starts from these parameters: "
                f"fluid.Trainer(program, optimizer, place={place!r}, params=trainer.params), or "
                f"session = fluid.Session(program, place={place!r}) and session.load_params(other.params())"
            )
        self._move(self._laid_out(place, None, None))

    def _move(self, layout: "OneDevice | OnMesh") -> None:
        """Put all arrays on another device, before the first run."""
        self.layout = layout
        self._steps.clear()
        self.scope.move(self._on_device)
        for name in self.rules:
            self.rates.put(name, self.rates.given(name))

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "Session(closed)"
        specs = self.scope.specs.values()
        size = sum(math.prod(spec.shape) * jnp.dtype(spec.dtype).itemsize for spec in specs)
        told = [counted(len(self.programs), "program"), counted(len(specs), "array"), scaled(size, "B")]
        return f"Session({', '.join(told)}, on {self.device.platform})"

    def _repr_html_(self) -> str:
        programs = [
            (name, ", ".join(p.feeds), ", ".join(map(str, p.outputs)), f"{p.parameter_count:,}")
            for name, p in self.programs.items()
        ]
        return repr(self) + html_table(programs, ("program", "feeds", "outputs", "parameters"), right=[3])

    def add(self, function: Callable[[], Any] | Program, initial: bool = True) -> Program:
        """Add a program: discover it, create the parameters and slots that are not there yet; `initial` as for Session.

        Returns:
          The Program; its name is the function's, numbered when that is taken.
        """
        program = function if isinstance(function, Program) else Program(function, precision=self.precision)
        name = program.name
        count = 0
        while program.name in self.programs:
            count += 1
            program.name = f"{name}_{count}"
        # Everything that can fail comes before anything changes.
        for other in self.programs.values():
            check_same_nets(program.name, program.shared, other.shared)
        rules = rules_of(program)
        if self.step_function is not None:
            check_tables(rules)
        self.layout.add(program)
        root = jax.random.wrap_key_data(self.scope.root) if initial else None
        self.scope.declare(program.parameters | program.states, functools.partial(self.layout.initial, program, root))
        self.scope.slots[program.name] = [
            self.layout.slots(rule, {n: self.scope.arrays[n] for n in rule.parameters}) for rule in rules
        ]
        self.rates.add(program.name, rules)
        self.programs[program.name] = program
        self.rules[program.name] = rules
        return program

    def run(
        self,
        program: str | Callable[[], Any] | Program | None = None,
        feed: Mapping[str, Any] | None = None,
        fetch: Fetch | None = None,
        mode: str | None = None,
        *,
        seed: int | None = None,
    ) -> Results:
        """Run a program once.

        A program that draws random numbers in test mode draws other ones in each run. Their sequence depends on the
        seed of the session only, and differs from the numbers of training steps.

        Args:
          program: its name, its function or itself; may be left out when there is one.
          feed: arrays by name: of feeds, and of any other named value, which is replaced by them; a scalar stands there
            for an array of it. Feeds that the result does not depend on need not be given.
          fetch: names of values to return: outputs of a dict, named values, feeds, parameters (as they are after the
            run), or `NAME@GRAD`, the gradient of the minimised loss (of the first output when nothing is minimised). A
              training step also has `learning_rate_0`, `grad_norm_0` and `update_ratio_0`, one for each `minimize`.
          mode: "train" updates parameters and states, "test" changes nothing; None for that of the session.
          seed: of the random numbers of this run, in test mode: a number from 0 to 2**64 - 1 repeats one answer. None
            for the next of the sequence.

        Returns:
          Results: the program's outputs, or the values of `fetch` in order; on the device.

        Raises:
          FeedError: data does not fit; UnknownNameError: no such program, feed or value. The Scope stays as it was.
          ArgumentError: a seed for a training step, or no whole number from 0 to 2**64 - 1.
        """
        self._check_open()
        found = self.find(program)
        mode = checked_mode(mode or self._mode or (TRAIN if found.minimizes else TEST))
        feed = {} if feed is None else check_feed(found, feed)
        given, replaced = split_names(found, feed)
        names = None if fetch is None else check_fetch(found, fetch, mode)
        step = self.bind(found, Request(mode, names, given, replaced))
        if isinstance(feed, Feed) and feed.program is found:  # converted already
            taken: tuple[Mapping[str, Any], Mapping[str, Any]] = (feed.arrays, {})
        else:
            taken = self.taken(found, feed, given, replaced, step.buckets)
        results = step(*taken, self._drawn(found, mode, seed))[0].outputs
        if isinstance(feed, Feed):  # while the device works
            feed.advance()
        return results

    def step(
        self,
        feed: Mapping[str, Any] | None = None,
        program: str | Callable[[], Any] | Program | None = None,
        fetch: Fetch | None = None,
    ) -> Results:
        """Train one step of a program that minimises something: `run` in train mode, for a loop of your own.

        A loop may call it as often as it likes without reading a result: so many steps at most are under way on the
        device, as in a Trainer. Of a minibatch of `fluid.reader.prefetch`, the next one is read while the device works.

        Args:
          feed: as for `run`.
          program: as for `run`.
          fetch: as for `run`.

        Returns:
          Results, as of `run`, on the device.

        Raises:
          ArgumentError: the program minimises nothing. FeedError, UnknownNameError: as from `run`.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     guess = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
          ...     loss = fluid.layers.mean(fluid.layers.square(guess))
          ...     fluid.optimizer.SGD(0.1).minimize(loss)
          ...     return {"loss": loss}
          >>> session = fluid.Session(program)
          >>> losses = [session.step({"x": np.ones((4, 2))}).loss for _ in range(20)]
          >>> bool(losses[-1] < 0.1 * losses[0])
          True
        """
        self._check_open()
        found = self.find(program)
        if not found.minimizes:
            raise errors.ArgumentError(
                f"session.step: the program {found.name} minimises nothing, expected optimizer.minimize(loss) in it; "
                f"session.run({found.name!r}, feed) computes its outputs"
            )
        results = self.run(found, feed, fetch, TRAIN)
        self._in_flight.add(results)
        if due := self._in_flight.due():
            jax.block_until_ready(due[-1].values())
        return results

    def taken(
        self, program: Program, feed: Mapping[str, Any], given: Sequence[str], replaced: Sequence[str], buckets: Buckets
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Feeds and overrides as a step takes them: checked, padded and on the device.

        Args:
          program: whose they are.
          feed: arrays by name.
          given: names of feeds.
          replaced: names of other values.
          buckets: to which sizes sequences are padded.

        Raises:
          FeedError: data does not fit.
        """
        feeds = named(self, program.feeds, feed, given, buckets)
        return feeds, self.layout.take({n: as_array(feed[n]) for n in replaced})

    def _drawn(self, program: Program, mode: str, seed: int | None, call: str = "session.run") -> Draw | None:
        """Return the random key of a run in test mode, see `Seeds.of`; None in training, or if nothing is drawn."""
        if mode == TRAIN and seed is not None:
            raise errors.ArgumentError(
                f"{call}(mode='train', seed={seed!r}): a training step draws from the seed of the session and the "
                f"number of the step, expected seed= with mode='test' alone; fluid.Session(program, seed=7) is another "
                f"sequence of training steps"
            )
        if mode == TRAIN:
            return None
        return self.draw(self.seeds.of(call, program, seed))

    def draw(self, seed: int | None) -> Draw | None:
        """Return the random key of a run in test mode. `seed=7` draws the same numbers as step 0 of `Session(seed=7)`.

        Args:
          seed: of the run, see `Seeds.of`; None where nothing is drawn.
        """
        return None if seed is None else self.layout.place((root_of(seed), np.int32(0)))

    def bind(self, program: Program, request: Request) -> CompiledStep:
        """The compiled step for a request; the same one for equal requests."""
        known = self._steps.get((program.name, request))
        if known is None:
            known = self._steps[program.name, request] = self._step_type(
                program,
                self.rules.get(program.name, ()),
                request,
                self.scope,
                self.rates,
                self.guard,
                self.compilations,
                self.buckets(program),
                layout=self.layout,
                replaced=self.replaced,
                freezing=self.freezing,
                function=self.step_function,
            )
        return known

    def learning_rates(self, program: str | Callable[[], Any] | Program | None = None) -> tuple[float, ...]:
        """The learning rates of the next training step of a program, one for each `minimize`.

        Reading that of a schedule waits for the steps that are under way; numbers are known without.

        Args:
          program: its name, its function or itself; may be left out when there is one.

        Raises:
          UnknownNameError: there is no such program, or an optimizer does not tell its rate.
        """
        name = self.find(program).name
        return self.rates.read(name, self.scope.slots[name])

    def set_learning_rates(
        self, rates: float | Sequence[float | None] | None, program: str | Callable[[], Any] | Program | None = None
    ) -> None:
        """Set the learning rates of a program from the next training step on. Nothing is compiled anew.

        Args:
          rates: a number for each `minimize`, or the number itself where there is one. It takes the place of the number
            or schedule of the optimizer until it is set to None. It is saved and restored with the session.
          program: as for `learning_rates`.

        Raises:
          ArgumentError: a rate is no number from 0 on, or there are more or fewer than `minimize` calls.
          UnknownNameError: there is no such program, or an optimizer does not tell its rate.
        """
        values = list(rates) if isinstance(rates, Sequence) and not isinstance(rates, str) else [rates]
        self.rates.set(self.find(program).name, values)

    def rate_arrays(self, program: Program) -> list[jax.Array]:
        """The learning rates of the next training step of a program, as scalars on the device."""
        return self.rates.current(program.name, self.scope.slots[program.name])

    def buckets(self, program: Program, request: Request | None = None) -> Buckets:
        """What pads the sequences of a program: for a request that of its step, else new ones."""
        if request is not None:
            return self.bind(program, request).buckets
        ladders = self._ladders
        if isinstance(ladders, Mapping):  # other programs may have other feeds
            ladders = {n: sizes for n, sizes in ladders.items() if n in program.feeds}
        return Buckets(program.feeds, ladders, self._max_compilations, price_of(program, self.device.platform))

    def _on_device(self, value: Any) -> Any:
        """Put a tree of arrays on the device of this session, or on each of its devices."""
        return self.layout.place(value)

    def close(self) -> None:
        """Let go of all arrays and compiled steps. A closed session cannot be run."""
        self._closed = True
        self._steps.clear()
        self._fed = None
        self.scope.arrays.clear()
        self.scope.slots.clear()
        self.replaced.clear()

    def find(self, program: str | Callable[[], Any] | Program | None = None) -> Program:
        """A program of this session by its name, its function or itself; the only one by None.

        Raises:
          UnknownNameError: there is no such program; ArgumentTypeError: there are several, and none is named.
        """
        if program is None and len(self.programs) == 1:
            return next(iter(self.programs.values()))
        for name, known in self.programs.items():
            original = getattr(known.function, "__wrapped__", known.function)
            if program is known or program == name or (callable(program) and program in (known.function, original)):
                return known
        raise no_program(program, self.programs)

    def _laid_out(self, place: Place, parallel: Parallel, shardings: Shardings | None) -> "OneDevice | OnMesh":
        """Where the arrays of this session lie."""
        if parallel in (None, False) and shardings is None:
            return OneDevice(device_of(place))
        from fluid.parallel import layout_of  # not everybody needs it

        return layout_of(place, parallel, shardings)


def _device_name(device: jax.Device) -> str:
    """Return the name of a device, as `place=` takes it."""
    return f"{device.platform}:{device.id}"
