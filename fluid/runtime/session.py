"""Session: the class that runs programs on a device as compiled steps, and holds their arrays; and its repr."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fluid import errors
from fluid._util.known_names import KnownAttributes
from fluid._util.text import counted, described, html_table, scaled
from fluid.core import (
    TEST,
    TRAIN,
    Layout,
    Program,
    fitting,
    not_copied,
    warn_of_adversaries,
    warn_of_unused_layers,
)
from fluid.distributed.cluster import warn_if_alone
from fluid.param_attr import Shardings
from fluid.place import OneDevice, Parallel, Place, device_of, is_several, place_of, remark_on_other_devices
from fluid.reader.buckets import MAX_COMPILATIONS, Ladders
from fluid.reader.prefetch import Feed
from fluid.runtime.compilation_cache import keep_compilations
from fluid.runtime.compiled_step import bind
from fluid.runtime.custom_step import StepFunction, check_function
from fluid.runtime.engine import Engine
from fluid.runtime.fetch import Fetch, can_fetch, check_feed, check_fetch, split_names
from fluid.runtime.in_flight import InFlight
from fluid.runtime.lazy_values import ValuesOnDemand
from fluid.runtime.request import Request, checked_mode
from fluid.runtime.results import Results
from fluid.runtime.seeds import Draw
from fluid.runtime.state_io import SavesArrays


class Session(SavesArrays, ValuesOnDemand, KnownAttributes):
    """A set of named arrays on a device, and the programs that read and update them.

    Args:
      program_functions: program functions or Programs; they share parameters by name.
      place: a device, as for `fluid.place.device_of`; None is JAX's default device. With `parallel`, devices, as for
        `fluid.place.devices_of`; None is all devices. A list of several devices implies `parallel=True`.
      seed: seed of initial values, and of the random numbers of layers in training and in test mode.
      precision: "bfloat16" or "float16" for computation in that dtype, see Program.
      buckets: sizes to pad sequences to: a list for all feeds, or a dict of lists by feed; None derives them from the
        data.
      max_compilations: maximum number of compilations of a step for derived sizes.
      mode: default mode of `run`; None for "train" if the program minimises a loss, else "test". Trainers pass "test".
      step: a custom training step, a function of a `fluid.TrainingStep`; None for the usual step: gradients, then an
        update.
      parallel: None for one device, unless `place` is a list of several; True divides each batch among all devices;
        "fsdp" also divides parameters and optimizer state; or a `fluid.Mesh`. Results equal the results on one device,
        see `docs/parallel.md`.
      shardings: by name or glob of parameters, the mesh axis that divides each dimension, or None for no division:
        `{"*/fc_*.w_0": (None, "model")}`. A full name comes before globs, and a match before `ParamAttr(sharding=)`.
        Without `parallel`, the values are devices, as in `{"decoder/*": "gpu:1"}`: undivided arrays, with their layers,
        move to a device, see `fluid.device_guard`.
      initial: False uses zeros instead of initial values, which saves time if a file is loaded next.

    Attributes:
      programs: the Programs of the session, by name.
      scope: the parameters and states, by name.
      compilations: every compilation so far with its reason; the length is their number.
      engine: the Engine, for other modules of fluid: layout, update rules, learning rates, compiled steps.

    Raises:
      FluidError: the shapes of a program show an error.

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
        engine = Engine(
            _layout(place, parallel, shardings),
            seed,
            function=step,
            precision=precision,
            buckets=buckets,
            max_compilations=max_compilations,
        )
        self._open(engine, program_functions, None if mode is None else checked_mode(mode), initial)

    def _open(
        self,
        engine: Engine,
        functions: Sequence[Callable[[], Any] | Program],
        mode: str | None = None,
        initial: bool = True,
    ) -> None:
        """Initialize the session with an engine, the object that runs its programs, and add the first programs."""
        keep_compilations()
        self.engine = engine
        self.programs = engine.programs
        self.scope = engine.scope
        self.compilations = engine.compilations
        self._mode = mode
        self._closed = False
        self._in_flight: InFlight[Results] = InFlight()
        for function in functions:
            self.add(function, initial)
        if functions:
            engine.check()
        warn_of_unused_layers(self.programs.values())
        warn_of_adversaries(self.programs.values())

    @property
    def device(self) -> jax.Device:
        """The device of the arrays; with several devices, one of them."""
        return self.engine.device

    @property
    def place(self) -> str | list[str]:
        """The device, such as "cpu:0"; a list of devices with `parallel`.

        Before the first run, it can be set to any value that `place=` of a Session accepts. All arrays move to this
        device. A list of several devices divides the rows of each batch among them, as `parallel=True` does.

        Raises:
          DeviceError: this machine has no such device.
          ArgumentError: a program has already run, or the arrays are already divided among several devices.

        Example:
          >>> import fluid
          >>> session = fluid.Session(lambda: fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
          >>> session.place = "cpu"
          >>> session.place
          'cpu:0'
        """
        mesh = self.engine.layout.mesh
        return place_of(self.device) if mesh is None else [place_of(device) for device in mesh.devices.flat]

    @place.setter
    def place(self, place: Place) -> None:
        self._check_open()
        if place == self.place or place == self.device or str(place).lower() == self.place:
            return
        layout = self.engine.layout
        if not isinstance(layout, OneDevice):
            raise errors.ArgumentError(
                f"place = {place!r}: the arrays are divided among {len(self.place)} devices, which are given when a "
                f"Session or Trainer is made: fluid.Trainer(program, optimizer, place=..., parallel=...)"
            )
        if len(self.compilations) or self._fed is not None:
            raise errors.ArgumentError(
                f"place = {place!r}: a program has run on {self.place}, and the place is fixed from then on; make "
                f"another one that starts from these parameters: "
                f"fluid.Trainer(program, optimizer, place={place!r}, params=trainer.params), or "
                f"session = fluid.Session(program, place={place!r}) and session.load_params(other.params())"
            )
        several = is_several(place) and self.engine.members is None
        self.engine.move(_layout(place, True, None) if several else layout.on(device_of(place)))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._closed:
            return "Session(closed)"
        specs = self.scope.specs.values()
        size = sum(math.prod(spec.shape) * jnp.dtype(spec.dtype).itemsize for spec in specs)
        parts = [counted(len(self.programs), "program"), counted(len(specs), "array"), scaled(size, "B")]
        return f"Session({', '.join(parts)}, on {self.device.platform})"

    def _repr_html_(self) -> str:
        programs = [
            (name, ", ".join(p.feeds), ", ".join(map(str, p.outputs)), f"{p.parameter_count:,}")
            for name, p in self.programs.items()
        ]
        return repr(self) + html_table(programs, ("program", "feeds", "outputs", "parameters"), right=[3])

    def add(self, function: Callable[[], Any] | Program, initial: bool = True) -> Program:
        """Add a program to the session: trace it, and create its parameters and optimizer states if they are new.

        Args:
          function: a program function, or a Program.
          initial: False creates parameters with zeros instead of initial values.

        Returns:
          The Program; its name is the name of the function, with a number if that name is taken.
        """
        program = self.engine.add(function, initial)
        if program.table is not None and program.table.to_json() != self.table:
            raise errors.ProgramError(
                f"the programs of this Session have different tables of raw rows, and {program.name} has another one "
                f"than those before it; make them with one table: train_reader.table"
            )
        if program.minimizes:
            warn_if_alone()
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

        Values inside loops and branches have the names of their layers. When fetched, a value in a loop has
        a leading dimension of iterations. A value in a branch that is not taken is NaN, or 0 if it is an integer. An
        array in `feed` for a value in a loop replaces the value in every iteration.

        A program that draws random numbers in test mode draws new ones in each run. Their sequence depends only on the
        seed of the session, and differs from the random numbers of training steps.

        Args:
          program: the name of a program, its function or a Program; optional if there is one program, or only one
            that has all of `fetch`.
          feed: arrays by name, for feeds and for any other named values, which they replace; a scalar replaces a whole
            array. Feeds that the results do not need may be left out.
          fetch: names of values to return: outputs of a dict, named values, feeds, parameters (after the run), or
            `NAME@GRAD`, the gradient of the minimised loss (of the first output if nothing is minimised). A training
            step also has `learning_rate_0`, `grad_norm_0` and `update_ratio_0`, one for each `minimize` call.
          mode: "train" updates parameters and states, "test" changes nothing; None for the mode of the session.
          seed: seed of the random numbers of this run in test mode, from 0 to 2**64 - 1; equal seeds give equal
            results. None for the next seed of the session's sequence.

        Returns:
          Results: the program's outputs, or the values of `fetch` in order; on the device.

        Raises:
          FeedError: the data does not match the feeds. The Scope does not change.
          UnknownNameError: no program, feed or value has a requested name. The Scope does not change.
          ArgumentError: a seed is given for a training step, or is not a whole number from 0 to 2**64 - 1.
        """
        self._check_open()
        found = self.engine.find(program, lambda one: fetch is not None and can_fetch(one, fetch))
        mode = checked_mode(mode or self._mode or (TRAIN if found.minimizes else TEST))
        feed = {} if feed is None else check_feed(found, feed)
        given, replaced = split_names(found, feed)
        names = None if fetch is None else check_fetch(found, fetch, mode)
        step = bind(self.engine, found, Request(mode, names, given, replaced))
        # A Feed, which `fluid.reader.prefetch` creates, already holds checked arrays on the device.
        if isinstance(feed, Feed) and feed.program is found:
            taken: tuple[Mapping[str, Any], Mapping[str, Any]] = (feed.arrays, {})
        else:
            taken = self.engine.take(found, feed, given, replaced, step.buckets)
        results = step(*taken, self._drawn(found, mode, seed))[0].outputs
        if isinstance(feed, Feed):  # read the next minibatch while the device computes
            feed.advance()
        return results

    def step(
        self,
        feed: Mapping[str, Any] | None = None,
        program: str | Callable[[], Any] | Program | None = None,
        fetch: Fetch | None = None,
    ) -> Results:
        """Run one training step of a program that minimises a loss, in a custom training loop.

        The loop need not read the results: the number of steps that wait for the device is limited, as in a Trainer.
        If `feed` comes from `fluid.reader.prefetch`, the next minibatch is read while the device works.

        Args:
          feed: arrays by name, as for `Session.run`.
          program: the name of a program, its function or a Program; optional if only one program minimises a loss.
          fetch: names of values to return, as for `Session.run`.

        Returns:
          Results: the program's outputs, or the values of `fetch` in order; on the device.

        Raises:
          ArgumentError: the program minimises nothing.
          FeedError: the data does not match the feeds.
          UnknownNameError: no program, feed or value has a requested name.

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
        found = self.engine.find(program, lambda one: bool(one.minimizes))
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

    def _drawn(self, program: Program, mode: str, seed: int | None, call: str = "session.run") -> Draw | None:
        """Return the random key of a test-mode run; None in training, or if the program draws no random numbers."""
        if mode == TRAIN and seed is not None:
            raise errors.ArgumentError(
                f"{call}(mode='train', seed={seed!r}): a training step draws from the seed of the session and the "
                f"number of the step, expected seed= with mode='test' alone; fluid.Session(program, seed=7) is another "
                f"sequence of training steps"
            )
        if mode == TRAIN:
            return None
        return self.engine.draw(self.engine.seeds.of(call, program, seed))

    def learning_rates(self, program: str | Callable[[], Any] | Program | None = None) -> tuple[float, ...]:
        """Return the learning rates of the next training step of a program, one for each `minimize` call.

        If a learning rate is a schedule, this method waits for the steps in flight; a number is known without waiting.

        Args:
          program: the name of a program, its function or a Program; optional if there is one program.

        Raises:
          UnknownNameError: there is no such program, or the learning rate of an optimizer is unknown.
        """
        name = self.engine.find(program).name
        return self.engine.rates.read(name, self.scope.slots[name])

    def set_learning_rates(
        self, rates: float | Sequence[float | None] | None, program: str | Callable[[], Any] | Program | None = None
    ) -> None:
        """Set the learning rates of a program from the next training step on, without another compilation.

        Args:
          rates: a number for each `minimize` call, or a single number if there is one `minimize` call. A number
            replaces the learning rate or schedule of the optimizer until a later call sets None. The number is saved
            and restored with the session.
          program: the name of a program, its function or a Program; optional if there is one program.

        Raises:
          ArgumentError: a rate is not a finite number of at least 0, or the number of rates differs from the number of
            `minimize` calls.
          UnknownNameError: there is no such program, or the learning rate of an optimizer is unknown.
        """
        values = list(rates) if isinstance(rates, Sequence) and not isinstance(rates, str) else [rates]
        self.engine.rates.set(self.engine.find(program).name, values)

    def close(self) -> None:
        """Release all arrays and compiled steps. A closed session cannot run programs."""
        self._closed = True
        self._fed = None
        self._in_flight.rest()  # release the results of the last steps, which may be large
        self.engine.close()


def _layout(place: Place, parallel: Parallel, shardings: Shardings | None) -> Layout:
    """Return the Layout (one device, or several) for the arguments `place`, `parallel`, `shardings` of a Session."""
    if parallel is None and is_several(place):
        parallel = True
    if parallel in (None, False) and not shardings:
        if place is None and parallel is None:
            remark_on_other_devices()
        return OneDevice(device_of(place))
    from fluid.parallel import layout_of  # deferred import of a package that only several devices need

    return layout_of(place, parallel, shardings)


class ShowsProgram:
    """A base class with a one-line repr and a small HTML table for notebooks, which never wait for the device.

    Attributes:
      program: the program, if there is exactly one.
      session: the Session that runs the program.
    """

    program: Program
    session: Session

    def __repr__(self) -> str:
        programs = self._shown_programs()
        minimizes = [minimize for program in programs for minimize in program.minimizes]
        parts = [] if self.session.engine.members is None else [counted(self.session.engine.members, "member")]
        parts += [counted(parameter_count(programs), "parameter"), *(described(m.optimizer, 0) for m in minimizes)]
        if minimizes:
            step = self.session.scope.known_step()
            parts.append("in a step" if step is None else f"step {step:,}")
        parts.append(f"on {self.session.device.platform}")
        return f"{type(self).__name__}({', '.join(p.name for p in programs)}: {', '.join(parts)})"

    def _repr_html_(self) -> str:
        return html.escape(repr(self)) + "".join(program._repr_html_() for program in self._shown_programs())

    def _shown_programs(self) -> Sequence[Program]:
        return [self.program]


def parameter_count(programs: Iterable[Program]) -> int:
    """Return the total number of elements of the parameters of programs; a shared parameter counts once."""
    shapes = {name: spec.shape for program in programs for name, spec in program.parameters.items()}
    return sum(map(math.prod, shapes.values()))
