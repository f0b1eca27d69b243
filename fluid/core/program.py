"""Program: a program function, converted to two pure functions: `init` for arrays and `apply` for computations.

The constructor traces the function on dummy data, without a device. If necessary, it traces the function again with
another batch size: a dimension that differs between the two traces depends on the batch size.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import re
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.xla_metadata import set_xla_metadata

from fluid import errors
from fluid._util.known_names import KnownAttributes
from fluid._util.text import counted, described, html_table
from fluid.core.argument_checks import check_takes_nothing, fitting, name_of
from fluid.core.closures import with_fixed_closure
from fluid.core.discovery import (
    Discovery,
    Shapes,
    array_of,
    check_losses,
    discover,
    flatten_outputs,
    marked,
    shapes_of,
    unused_parameters,
    warn_of_likely_mistakes,
)
from fluid.core.equation_values import with_equation_values
from fluid.core.equations import arrays_differ, checksums, count, digest, has_arrays, user_line, uses
from fluid.core.explain import explained_error, explained_prints
from fluid.core.frame import (
    TEST,
    TRAIN,
    Array,
    Complete,
    Declared,
    FeedSpec,
    Frame,
    Given,
    ParameterSpec,
    SharedFunction,
    begins_path,
    running,
    warn,
)
from fluid.core.outside_values import OutsideValues, random_states, reads_clock
from fluid.core.reduction import (
    FollowedProgram,
    Reduction,
    Untraceable,
    guess,
    is_of_output,
    over_steps,
    part_of,
    rest_of,
    weighs_examples,
)
from fluid.core.rows import BATCHES, OTHER_STEPS, STEPS, Pair, batches_beside
from fluid.core.sequence import data_of, stand_in
from fluid.core.variables import fold_name

T = TypeVar("T")

_TRACES = itertools.count()


class Minimize(NamedTuple):
    """One `optimizer.minimize` call of a program: the optimizer and the names of the parameters that it changes."""

    optimizer: Any
    parameters: tuple[str, ...]


class EquationValue(NamedTuple):
    """The name, shape and dtype of a named value inside a loop or branch."""

    name: str
    array: Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Applied:
    """The results of one call of `Program.apply`.

    Attributes:
      outputs: the outputs, in the order in which the function returned them.
      states: every state by name, with its value after the run.
      values: feeds, parameters and every named value, by name.
      losses: one scalar for each `minimize` call.
      parts: for each output, the contribution of this minibatch to its value over several minibatches, or in train mode
        the result of `rest_of`; empty unless requested.
      lookups: for each embedding table, the row ids of each look-up.
      rates: for each `minimize` call, the learning rate if the program computes it, else None.
    """

    outputs: list[Any]
    states: dict[str, Any]
    values: dict[str, Any]
    losses: list[Any]
    parts: list[Any]
    lookups: dict[str, list[Any]]
    rates: list[Any] = field(default_factory=list)


class Program(KnownAttributes):
    """A program, created from a function that calls layers: its feeds, parameters, states, outputs and named values.

    Args:
      function: a function without arguments that calls layers and returns a value, or a list, tuple or dict of values.
        It may also be a method, a lambda or a `functools.partial`.
      name: the program's name in a Session; by default the function's name.
      sample_feed: sample arrays by feed name, for programs whose feeds have batch sizes that depend on each other.
      precision: the dtype of the computation, "bfloat16" or "float16"; layers convert feeds and parameters when they
        read them. By default float32. Parameters, optimizer state, statistics of normalisations, losses and means stay
        float32. With "float16", training scales the losses, so that small gradients do not vanish.

    Attributes:
      function: the argument `function`.
      traced_function: the function that is traced: `function`, with the variables of enclosing functions fixed.
      feeds: FeedSpecs by name, in order of declaration.
      parameters: ParameterSpecs by name, in order of creation.
      states: ParameterSpecs by name, for arrays such as moving averages.
      outputs: shape and dtype of each output; None stands for the batch size.
      output_names: the keys of the outputs if the function returned a dict, else None.
      loss_output: the index of the output that is minimised; else the index of the output named "loss"; else 0.
      values: shape and dtype of every named value, in order of creation.
      sites: the user's source line that computes each named value.
      kinds: the kind of layer that computes each named value, such as "fc".
      sample_shapes: shapes of the feeds of `sample_feed`, by name.
      aliases: additional names of named values. The name of a layer is an alias of its last result: "fc_0" means
        "fc_0.tmp_2". The dict key of an output is an alias of the returned value.
      lookups: names of the parameters with row look-ups (embeddings).
      digest: a checksum of the equations that the losses are computed from; empty if nothing is minimised.
      equations: the number of equations; an equation inside a loop or branch counts once.
      convolves: True if one of the equations is a convolution.
      shared: the shared functions that the program calls, by name.
      devices: the devices of `with fluid.device_guard(...)`.
      random: True if a layer draws random numbers, in training or in test mode.
      dense_uses: names of the parameters that are read as a whole, and not only by row look-ups.
      minimizes: one Minimize for each `optimizer.minimize` call.
      unused: names of trained parameters that affect no output, no loss and no value named by the user.
      exported: True if the program was read from a file of an exported model, and so has only the exported parts.
      batch_sizes: the batch sizes that the program accepts; None for any.
      buckets: the sizes to which sequences must be padded, by feed; None for any.
      table: the `fluid.reader.Table` that encodes raw rows as feeds; None if the program has no table.
      dummy_batches: the two batch sizes of traced runs on dummy data; the program has no size that equals one of them.

    Raises:
      ProgramError: the function returns nothing, or a value that is not an array.
      FluidError: the shapes show a mistake; the message has the name of the layer and the source line of its call.

    Example:
      >>> import fluid
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     return fluid.layers.fc(x, size=2, act="relu")
      >>> p = fluid.Program(program)
      >>> print(p.outputs[0], list(p.parameters), list(p.values))
      float32[batch, 2] ['fc_0.w_0', 'fc_0.b_0'] ['fc_0.tmp_0', 'fc_0.tmp_1', 'fc_0.tmp_2']
    """

    digest = ""
    equations = 0
    convolves = False
    shared: Mapping[str, SharedFunction] = {}
    unused: Sequence[str] = ()
    exported = False
    devices: Collection[str] = frozenset()
    batch_sizes: Sequence[int] | None = None
    buckets: Mapping[str, Any] | None = None
    table: Any = None
    _draws: bool | None = None
    _outside: OutsideValues | None = None
    _asks_mode = False
    _weighs_examples = True
    dummy_batches: Pair = BATCHES

    @fitting("fluid.Program")
    def __init__(
        self,
        function: Callable[[], Any],
        name: str | None = None,
        sample_feed: Mapping[str, Any] | None = None,
        precision: str | None = None,
    ):
        if not callable(function):
            raise errors.ArgumentTypeError(
                f"a program is a function that calls layers and returns a value, found {type(function).__name__}; "
                f"hand over the function itself, not its result: fluid.Session(program), with def program(): ..."
            )
        check_takes_nothing(function)
        if precision not in (None, "float32", "bfloat16", "float16"):
            raise errors.ArgumentError(f'precision={precision!r}: expected None, "float32", "bfloat16" or "float16"')
        self.function = function
        self.precision = None if precision == "float32" else precision
        self.name = name or name_of(function)
        self.sample_shapes = {key: jnp.shape(data_of(value)) for key, value in (sample_feed or {}).items()}
        self.traced_function = with_fixed_closure(function)
        self._outside = OutsideValues(self.traced_function)
        generators = random_states()
        found = self._discover(self.dummy_batches[0])
        # If the program has a size that equals a dummy batch size, such as a layer of 37 units, take other ones.
        if (batches := batches_beside(_sizes_of(found))) != self.dummy_batches:
            self.dummy_batches = batches
            self._outside, generators = OutsideValues(self.traced_function), random_states()
            found = self._discover(batches[0])
        frame = found.frame
        self.output_names = found.output_names
        self.loss_output = found.loss_output
        self.feeds: dict[str, FeedSpec] = frame.declared.feeds
        # A limit may be a size of the program, such as the length of an array, or depend on the batch size.
        if any(s.limits and not (s.limits[1] or 0) % self.dummy_batches[0] for s in self.feeds.values()):
            other = self._other_run()
            self.feeds = frame.declared.feeds if other is None else _with_steady_limits(frame, other.frame)
        self.parameters = {n: s for n, s in frame.declared.arrays.items() if s.trainable is not None}
        self.states = {n: s for n, s in frame.declared.arrays.items() if s.trainable is None}
        self.minimizes = [
            Minimize(m.optimizer, self._trainable(m.parameter_list, m.no_grad_set)) for m in frame.made.minimizations
        ]
        trained = dict.fromkeys(name for m in self.minimizes for name in m.parameters)
        self.unused = unused_parameters(found, tuple(trained))
        self._note_equations(found)
        self.digest = digest(found.jaxpr, found.losses) if found.losses else ""
        self._weighs_examples = weighs_examples(frame, self.dummy_batches[0])
        self.shared = frame.declared.shared
        self.table = frame.declared.table
        self.random = frame.declared.uses_randomness
        self.devices = frozenset(frame.declared.devices)
        self._bodies = frame.declared.bodies
        self.lookups = tuple(frame.made.lookups)
        self.dense_uses = frozenset(frame.declared.used_whole)
        self._shapes = shapes_of(found)
        self._marked: Shapes | None = None
        self.sites = frame.declared.sites
        self.kinds = frame.declared.kinds
        self.aliases = found.aliases
        self.sloped = check_losses(self.name, found, [m.parameters for m in self.minimizes])
        first, second = self.dummy_batches
        warn_of_likely_mistakes(self.name, found, first, lambda: (self._other_run(), second))
        self._asks_mode = frame.declared.asks_mode
        self._checksums = {TRAIN: checksums(found.jaxpr, found.constants)[0]}
        # A counter that the function increments, a random number and a clock differ in each trace.
        counts = self._outside.leave_out_changed()
        unsteady = counts or random_states() != generators or reads_clock(self.traced_function)
        if has_arrays(found.constants) and (other := self._other_run()) is not None:
            self._marked = self._shapes.marked(shapes_of(other))
            unsteady |= arrays_differ(found.constants, other.constants)
        if unsteady:
            self._warn_of_unsteady_numbers()

    def __repr__(self) -> str:
        feeds, outputs = self._shown()
        parameters = counted(self.parameter_count, "parameter")
        return f"Program({self.name}({', '.join(feeds)}) -> {', '.join(outputs)}; {parameters})"

    def _repr_html_(self) -> str:
        feeds, outputs = self._shown()
        return html_table(
            [
                ("program", self.name),
                ("feeds", "\n".join(feeds)),
                ("outputs", "\n".join(outputs)),
                ("parameters", f"{self.parameter_count:,} in {counted(len(self.parameters), 'array')}"),
                ("states", counted(len(self.states), "array")),
                ("minimised by", "\n".join(described(m.optimizer, depth=0) for m in self.minimizes) or "nothing"),
            ]
        )

    def _shown(self) -> tuple[list[str], list[str]]:
        names = self.output_names
        outputs = [str(v) for v in self.outputs] if names is None else map("{}: {}".format, names, self.outputs)
        return [f"{name}: {Array(s.shape, s.dtype)}" for name, s in self.feeds.items()], list(outputs)

    @property
    def parameter_count(self) -> int:
        """The total number of elements of all parameters."""
        return sum(math.prod(spec.shape) for spec in self.parameters.values())

    @property
    def outputs(self) -> list[Array]:
        """The shape and dtype of each output; None stands for the batch size."""
        # A second traced run, with another batch size, finds the dimensions that depend on the batch size. Scalars have
        # no dimensions, so programs with only losses and metrics need no second run.
        are_scalars = all(array.shape in ((), (1,)) for array in self._shapes.outputs)
        return (self._shapes if are_scalars else self._known_shapes()).outputs

    @property
    def values(self) -> dict[str, Array]:
        """The shape and dtype of every named value, in order of creation; None stands for the batch size."""
        return self._known_shapes().values

    @property
    def draws(self) -> bool:
        """True if a run in test mode draws random numbers; `random` is also True if only training draws them.

        If `random` is True, the first read of this property traces the function once more.
        """
        if self._draws is None:
            self._draws = self.random and self._in_test(lambda frame, _: frame.declared.uses_randomness, True)
        return self._draws

    def _known_shapes(self) -> Shapes:
        """Return the shapes of outputs and named values, with None for dimensions that depend on the batch size.

        The first call traces the program function once more, with another batch size.
        """
        # Do not use `cached_property` here. In Python 3.11 and before, all programs would share the lock of the
        # property, and would wait for each other while a program function runs.
        if self._marked is None:
            other = self._other_run()
            self._marked = self._shapes if other is None else self._shapes.marked(shapes_of(other))
        return self._marked

    @functools.cached_property
    def reductions(self) -> list[Reduction]:
        """For each output, the rule that combines its values for several minibatches into one value for the data set.

        The rules are found from the equations of two traced runs of the function in test mode, and from the rules that
        layers have recorded.
        """
        followed = self._followed
        if followed is None:  # an error in test mode: a test raises it again; means of training steps need no doubt
            return [guess(output.shape, None) for output in self.outputs]
        return followed.reductions()

    @property
    def reductions_of_steps(self) -> list[Reduction]:
        """For each output, the rule that combines its values for successive training steps, such as an epoch."""
        return [over_steps(rule) for rule in self.reductions]

    @functools.cached_property
    def has_rests(self) -> bool:
        """True if steps must return more than their outputs, such as weights, to combine scalars over an epoch."""
        if self._weighs_examples:
            return False
        pairs = zip(self.outputs, self.reductions_of_steps, strict=True)
        return any(output.shape in ((), (1,)) and not is_of_output(rule) for output, rule in pairs)

    def mixing(self, names: Sequence[str] | None = None, overrides: Sequence[str] = ()) -> str | None:
        """Return the user's source line where results for one row begin to depend on other rows of the minibatch.

        The equations of the program in test mode show it; nothing is computed. An equation that cannot be followed
        counts as a dependence.

        Args:
          names: the names of the results; None for the outputs.
          overrides: the names of values that the caller replaces, with a row for each example.

        Returns:
          The line; None if each row of the results is computed from one row of the feeds and overrides.

        Example:
          >>> import fluid
          >>> def program():
          ...     x = fluid.layers.data("x", shape=[4])
          ...     return {"double": 2 * x, "centred": x - fluid.layers.reduce_mean(x, dim=0)}
          >>> found = fluid.Program(program)
          >>> found.mixing(["double"]) is None, found.mixing(["centred"]) is None
          (True, False)
        """
        outputs = {name: index for index, name in enumerate(self.output_names or ())}
        wanted = None if names is None else [outputs.get(n, self.aliases.get(n, n)) for n in names]
        replaced = [self.aliases.get(n, n) for n in overrides]
        return "its program" if self._followed is None else self._followed.mixing(wanted, replaced)

    @functools.cached_property
    def _followed(self) -> FollowedProgram | None:
        """The rows of the program in test mode, followed through the equations; None if the program raises an error."""

        def run(arrays: Mapping[str, Any], feeds: Mapping[str, Any]) -> Any:
            return self._run_in_test(jax.random.key(0), arrays, feeds)

        first, second = self.dummy_batches
        # Shapes are enough; JAX would compile a program for each array of zeros.
        others = [(second, jax.eval_shape(lambda: self._stand_ins(second, OTHER_STEPS, first)))]
        others.append((second, jax.eval_shape(lambda: self.stand_ins(second))))
        if self.sample_shapes or all(None not in spec.shape for spec in self.feeds.values()):
            others = []
        try:
            return FollowedProgram(run, self._empty_arrays(), (first, jax.eval_shape(self.stand_ins)), others)
        except Untraceable:
            return None

    @functools.cached_property
    def equation_values(self) -> dict[str, EquationValue]:
        """The named values inside loops and branches: their shapes and dtypes.

        The name of a layer in a loop is an alias of the last result of the layer. The first read of this property
        traces the program function again.
        """
        first = self._equation_shapes(self.dummy_batches[0])
        try:
            second = self._equation_shapes(self.dummy_batches[1])
        except Exception:
            # Some programs work for one batch size only. No dimension is then marked as dependent on the batch size.
            second = first
        found = {n: EquationValue(n, marked(array, second.get(n, array))) for n, array in first.items()}
        return {name.rpartition(".tmp_")[0]: value for name, value in found.items() if ".tmp_" in name} | found

    def _equation_shapes(self, batch: int) -> dict[str, Array]:
        """Trace the program in train mode, and return shape and dtype of the values in loops and branches."""

        def values(arrays: Mapping[str, Any], feeds: Mapping[str, Any]) -> dict[str, Any]:
            def apply(_: Any) -> Applied:
                return self.apply(arrays, feeds, key=jax.random.key(0), mode=TRAIN, labelling=True)

            return with_equation_values(apply, ())[1]

        with explained_prints(batch, again=True):
            shapes = jax.eval_shape(values, self._empty_arrays(), self.stand_ins(batch))
        return {name: array_of(shape) for name, shape in shapes.items()}

    def init(self, key: jax.Array | None, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the initial values of parameters and states, by name.

        Args:
          key: a random key; the value of an array depends only on `key` and on the name of the array or of its module.
            With None, all arrays are zeros that take no memory.
          names: the arrays to initialise; all by default.
        """
        every = self.parameters | self.states
        specs = {name: spec for name, spec in every.items() if names is None or name in names}
        if key is None:
            return {n: np.broadcast_to(np.zeros((), jnp.dtype(s.dtype)), s.shape) for n, s in specs.items()}
        return {
            name: spec.initializer(fold_name(key, _key_name(spec)), spec.shape, jnp.dtype(spec.dtype))
            for name, spec in specs.items()
        }

    def apply(
        self,
        arrays: Mapping[str, Any],
        feeds: Mapping[str, Any],
        *,
        key: jax.Array,
        mode: str = TEST,
        overrides: Mapping[str, Any] | None = None,
        perturbations: Mapping[str, Any] | None = None,
        row_perturbations: Mapping[str, list[Any]] | None = None,
        labelling: bool = False,
        plain: bool = False,
        parts: bool = False,
        frozen: frozenset[str] = frozenset(),
        gather: Callable[[str, Any], Any] | None = None,
        until: frozenset[str] | None = None,
    ) -> Applied:
        """Run the program function on arrays. The method is pure, so JAX can jit and differentiate it.

        Args:
          arrays: parameters and states by name.
          feeds: one array for each feed, by name.
          key: the random key of this step.
          mode: "train" or "test".
          overrides: values that replace computed values, by name.
          perturbations: values added to named values; the gradient with respect to a perturbation is the gradient with
            respect to the named value.
          row_perturbations: values added to the rows of each embedding look-up, by name of the table.
          labelling: write the names of values inside loops and branches into the traced equations.
          plain: make layers use their simplest computation, and no platform-specific one.
          parts: return the contribution of the minibatch to the value of each output over several minibatches; in train
            mode, return only what the outputs and the number of examples leave open.
          frozen: names of parameters and states that a training step leaves unchanged.
          gather: a function of the name of a stacked parameter (of repeated blocks) and of the slice for one block. It
            returns the slice with all its elements on each device. None if the parameters are not sharded.
          until: names of values; stop as soon as they are computed, and return no outputs. None to run the whole
            function.
        """
        self.check_unchanged(mode)
        given = Given(
            parameters={n: arrays[n] for n in self.parameters},
            states={n: arrays[n] for n in self.states},
            feeds=dict(feeds),
            overrides=self._recorded(overrides or {}),
            perturbations={self.aliases.get(n, n): v for n, v in (perturbations or {}).items()},
            row_perturbations=dict(row_perturbations or {}),
            key=key,
            gather=gather,
        )
        frame, outputs = self._run(given, mode, labelling, plain, frozen, until)
        return Applied(
            outputs=outputs,
            states=frame.states,
            values={**given.feeds, **given.parameters, **frame.made.values},
            losses=[m.loss for m in frame.made.minimizations],
            rates=[m.rate for m in frame.made.minimizations],
            parts=self._parts(frame, outputs) if parts else [],
            lookups=frame.made.lookups,
        )

    def _parts(self, frame: Frame, outputs: Sequence[Any]) -> list[Any]:
        """Return the contributions of a run to the values of the outputs over several minibatches, see `Applied`."""
        examples = _batch_size(self.feeds, frame.given.feeds)
        if frame.mode == TEST:
            return [part_of(frame, v, rule, examples) for v, rule in zip(outputs, self.reductions, strict=True)]
        return [rest_of(frame, v, rule, examples) for v, rule in zip(outputs, self.reductions_of_steps, strict=True)]

    def check_unchanged(self, mode: str = TRAIN) -> None:
        """Check that a trace of the function gives the program that the first trace gave; see `core.outside_values`.

        Args:
          mode: "train" or "test".

        Raises:
          ProgramError: the equations are other ones, because Python values that the function reads have changed.
        """
        if self._outside is not None and (changes := self._outside.changes(mode)):
            line = self._first_difference(mode if mode in self._checksums else TRAIN)
            if line:
                names = dict.fromkeys(re.findall(r"[^\W\d]\w*", change.name)[-1] for change in changes[:3])
                found = "; ".join(dict.fromkeys(map(str, changes[:3])))
                raise errors.ProgramError(
                    f"{line}: the program {self.name} is traced again, for other sizes, a test or an export, and would "
                    f"be another one: {found}. Make the program in a function of its own, def make({', '.join(names)}):"
                    f" def program(): ...; return program, or make a new Trainer or Session"
                )
            if line == "":
                self._outside.accept(mode)
        # In test mode only code under `if layers.is_training():` differs from train mode.
        if mode == TEST and self._asks_mode and TEST not in self._checksums:
            with contextlib.suppress(Exception):  # the run that follows raises the error again
                self._checksums[TEST] = self._traced_checksums(TEST)[0]

    def _traced_checksums(self, mode: str) -> tuple[list[int], list[Any]]:
        """Trace the function with dummy data; return checksums of its equations, and the equations."""
        with warnings.catch_warnings():
            # Ignore warnings: the first trace has already given them.
            warnings.simplefilter("ignore", errors.FluidWarning)
            if mode == TRAIN:
                found = self._discover(self.dummy_batches[0], again=True)
                return checksums(found.jaxpr, found.constants)
            key = jax.random.key(0)
            run = lambda arrays, feeds: self._run_in_test(key, arrays, feeds)[1]  # noqa: E731
            closed = jax.make_jaxpr(run)(self._empty_arrays(), self.stand_ins())
        return checksums(closed.jaxpr, closed.consts)

    def _first_difference(self, mode: str) -> str | None:
        """Trace the function again, and return the user's line of the first equation that differs from the first trace.

        Return "" if all equations are equal, and None if the function raises an error; the run that follows raises it
        again.
        """
        # JAX caches the equations of a function in `jax.jit` by sizes and by metadata. New metadata make it trace anew.
        with set_xla_metadata(fluid_trace=next(_TRACES)), contextlib.suppress(Exception):
            now, equations = self._traced_checksums(mode)
            return _first_difference(self._checksums[mode], now, equations)
        return None

    def _warn_of_unsteady_numbers(self) -> None:
        """Warn if a second trace has other equations than the first, because a number of Python changes each time."""
        if line := self._first_difference(TRAIN):
            warn(
                f"{line}: a number or an array made by Python or NumPy, such as a random number, the time or a "
                f"counter, is another one each time the program {self.name} is traced. It is fixed when a step is "
                f"compiled and is then the same in every step; random numbers of each step come from "
                f"layers.gaussian_random, layers.uniform_random, layers.dropout or "
                f'jax.random.normal(layers.random_key("noise"), shape), a counter of steps is layers.create_state([1])'
            )

    def _recorded(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return `overrides` with each alias replaced by the recorded name of the value."""
        names: dict[str, str] = {}
        for name in overrides:
            if (other := names.setdefault(self.aliases.get(name, name), name)) != name:
                raise errors.ArgumentError(
                    f"{other!r} and {name!r} are one value, which takes one override; feed={{{other!r}: array}}"
                )
        return {recorded: overrides[name] for recorded, name in names.items()}

    @functools.cached_property
    def returned(self) -> dict[str, str]:
        """The names of the values that the function returns in test mode, by the dict keys of the outputs.

        Outputs without a recorded name, such as results of operators, are left out. `aliases` has the names for train
        mode, in which the function may return another value for a key.
        """

        def names(frame: Frame, outputs: list[Any]) -> dict[str, str]:
            recorded = {id(value): name for name, value in frame.made.values.items()}
            pairs = zip(self.output_names or (), outputs, strict=False)
            return {key: recorded[id(value)] for key, value in pairs if id(value) in recorded}

        return self._in_test(names, {})

    def _in_test(self, read: Callable[[Frame, list[Any]], T], otherwise: T) -> T:
        """Trace the program function in test mode on dummy data, and return the result of `read`."""
        found = []
        key = jax.random.key(0)

        def run(arrays: Mapping[str, Any], feeds: Mapping[str, Any]) -> None:
            found.append(read(*self._run_in_test(key, arrays, feeds)))

        try:
            jax.eval_shape(run, self._empty_arrays(), self.stand_ins())
        except Exception:
            return otherwise
        return found[-1]

    def _run_in_test(
        self, key: jax.Array, arrays: Mapping[str, Any], feeds: Mapping[str, Any]
    ) -> tuple[Frame, list[Any]]:
        """Run the program function in test mode; return the Frame (the state of the run) and the outputs."""
        parameters, states = ({n: arrays[n] for n in part} for part in (self.parameters, self.states))
        with explained_prints(self.dummy_batches[0], again=True):
            return self._run(Given(parameters=parameters, states=states, feeds=dict(feeds), key=key), TEST)

    def _empty_arrays(self) -> dict[str, Any]:
        specs = (self.parameters | self.states).items()
        return {name: jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype)) for name, spec in specs}

    @begins_path
    def _run(
        self,
        given: Given,
        mode: str,
        labelling: bool = False,
        plain: bool = False,
        frozen: frozenset[str] = frozenset(),
        until: frozenset[str] | None = None,
    ) -> tuple[Frame, list[Any]]:
        """Run the program function on the inputs `given`; return the Frame (the state of the run) and the outputs.

        For the other arguments, see `apply`.
        """
        declared = Declared(bodies=dict(self._bodies), optimizers=tuple(m.optimizer for m in self.minimizes))
        frame = Frame(mode, self.precision, labelling=labelling, plain=plain, given=given, declared=declared)
        frame.frozen, frame.known = frozen, self.parameters | self.states
        if until is not None:
            if not until:
                return frame, []
            frame.awaited = set(until)
        try:
            with running(frame):
                outputs, _ = flatten_outputs(self.name, self.traced_function())
        except Complete:
            return frame, []
        except Exception as error:
            explained = explained_error(error, self.name, self.dummy_batches[0], running=True)
            if explained is None:
                raise
            explained.__notes__ = list(getattr(error, "__notes__", ()))
            raise explained from None
        return frame, outputs

    def _discover(self, batch: int, again: bool = False) -> Discovery:
        with explained_prints(batch, again=again or batch != self.dummy_batches[0]):
            return discover(self.traced_function, self.name, self.precision, batch, self.sample_shapes)

    def stand_ins(self, batch: int | None = None) -> dict[str, Any]:
        """Return dummy feeds (zeros) by name, with `batch` examples, or with the shapes of `sample_feed`."""
        return self._stand_ins(self.dummy_batches[0] if batch is None else batch, STEPS)

    def _stand_ins(self, batch: int, steps: Pair, size: int | None = None) -> dict[str, Any]:
        made = {name: stand_in(spec, batch, steps, size) for name, spec in self.feeds.items()}
        return {n: jnp.zeros(self.sample_shapes[n], v.dtype) if n in self.sample_shapes else v for n, v in made.items()}

    def _note_equations(self, found: Discovery) -> None:
        self.equations = count(found.jaxpr)
        self.convolves = uses(found.jaxpr, "conv_general_dilated")

    def _other_run(self) -> Discovery | None:
        """Trace the function with another batch size, and return the results of the trace.

        Return None if all sizes of the feeds are fixed, or if the trace raises an error.
        """
        if self.sample_shapes or all(None not in spec.shape for spec in self.feeds.values()):
            return None
        try:
            return self._discover(self.dummy_batches[1])
        except Exception:
            # Some programs work for one batch size only. No dimension is then marked as dependent on the batch size.
            return None

    def _trainable(self, names: Sequence[str] | None, excluded: Sequence[str]) -> tuple[str, ...]:
        wanted = self.parameters if names is None else names
        return tuple(n for n in wanted if self.parameters[n].trainable and n not in excluded)


def _first_difference(before: Sequence[int], now: Sequence[int], equations: Sequence[Any]) -> str:
    """Return the user's line of the first equation whose checksum differs; "" if all checksums are equal."""
    if now == before:
        return ""
    pairs = zip(before, now, equations, strict=False)
    differing = next((equation for old, new, equation in pairs if old != new), equations[-1] if equations else None)
    return "unknown line" if differing is None else user_line(differing)


def warn_of_adversaries(programs: Collection[Program]) -> None:
    """Warn if two programs of a GAN each train both nets, the generator and the discriminator, not only one of them.

    The argument `parameter_list` of `minimize` selects one net. The check finds a mistake only if the names of the
    parameters include "generator" and "discriminator".
    """
    sides = ("discriminator", "generator")
    # Check the names of parameters. Two programs may train common parameters on purpose, so common parameters alone do
    # not show the mistake.
    names = {p.name: {s for m in p.minimizes for n in m.parameters for s in sides if s in n} for p in programs}
    both = [name for name, found in names.items() if len(found) == len(sides)]
    if len(both) > 1:
        warn(
            f"the programs {' and '.join(both)} each train the parameters of the generator and of the discriminator, "
            f"so that each undoes what the other does; say what each trains: "
            f'optimizer.minimize(loss, parameter_list=["discriminator/*"]), or '
            f'fluid.TrainingProgram(program, optimizer, parameter_list=["discriminator/*"])'
        )


def warn_of_unused_layers(programs: Collection[Program]) -> None:
    """Warn of layers whose parameters a program trains, although they affect no output or loss of any program."""
    used = {name for p in programs for name in p.parameters if name not in p.unused}
    for program in programs:
        layers: dict[str, list[str]] = {}
        for name in program.unused:
            if name not in used:
                layers.setdefault(program.parameters[name].layer, []).append(name)
        for layer, names in layers.items():
            warn(
                f"{program.parameters[names[0]].site}: nothing uses the result of {layer or 'this parameter'}, neither "
                f"an output nor a loss of the program {program.name}, so that {' and '.join(names)} are never trained; "
                f'use the result, leave the layer out, or name a result that is to be fetched: name="..."'
            )


def _key_name(spec: ParameterSpec) -> str:
    # The initialisation of one module, such as a Flax module, computes all arrays of the module from one random key.
    return getattr(spec.initializer, "key_name", spec.name)


def _batch_size(specs: Mapping[str, FeedSpec], feeds: Mapping[str, Any]) -> int:
    sizes = {name: jnp.shape(data_of(value))[0] for name, value in feeds.items() if jnp.ndim(data_of(value))}
    following = [size for name, size in sizes.items() if name in specs and specs[name].shape[:1] == (None,)]
    return max(set(following or sizes.values()), default=1)


def _with_steady_limits(first: Frame, second: Frame) -> dict[str, FeedSpec]:
    """Return the feeds of a trace, without limits that differ in a second trace of another batch size."""
    pairs = [(spec, second.declared.feeds[name]) for name, spec in first.declared.feeds.items()]
    return {
        spec.name: spec
        if spec.limits == other.limits
        else replace(spec, limits=other.limits if spec.indexes_rows else None)
        for spec, other in pairs
    }


def _sizes_of(found: Discovery) -> set[int]:
    declared = found.frame.declared
    shapes = [*(feed.shape for feed in declared.feeds.values()), *(array.shape for array in declared.arrays.values())]
    return {size for shape in shapes for size in shape if size is not None}
