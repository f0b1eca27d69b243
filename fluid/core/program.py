"""Program: a program function, discovered once, and the two pure functions that it is: `init` and `apply`."""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core.arguments import check_takes_nothing, fitting, name_of
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
    warn_of_random_constants,
)
from fluid.core.equations import count, digest, has_arrays, last_values, uses
from fluid.core.explain import in_own_words
from fluid.core.frame import (
    TEST,
    Array,
    Complete,
    Declared,
    FeedSpec,
    Frame,
    Given,
    ParameterSpec,
    SharedFunction,
    running,
    warn,
)
from fluid.core.nested import NestedSequenceBatch, data_of, stand_in
from fluid.core.printing import explained_prints
from fluid.core.reduction import Part, Reduction, find_reductions, guess, part_of
from fluid.core.sequence import SequenceBatch
from fluid.core.variables import fold_name
from fluid.formatting import counted, described, html_table
from fluid.name_hints import KnownAttributes

T = TypeVar("T")

# Two different stand-ins for the batch size: dimensions that differ between the two runs follow the batch.
_BATCHES = (37, 41)


class Minimize(NamedTuple):
    """One `optimizer.minimize` of a program: which optimizer changes which parameters."""

    optimizer: Any
    parameters: tuple[str, ...]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Applied:
    """What one application of a program computed.

    Attributes:
      outputs: in the order in which the function returned them.
      states: every state, with the values that layers gave them.
      values: feeds, parameters and every named value, by name.
      losses: one scalar for each `minimize`.
      parts: what each output contributes to its value over several minibatches, if that was asked for.
      lookups: for each table of which rows were taken, the ids of each time.
      rates: for each `minimize` its learning rate, where the program computes it, or None.
    """

    outputs: list[Any]
    states: dict[str, Any]
    values: dict[str, Any]
    losses: list[Any]
    parts: list[Part]
    lookups: dict[str, list[Any]]
    rates: list[Any] = field(default_factory=list)


class Program(KnownAttributes):
    """A program function, discovered: its feeds, parameters, states, outputs and named values.

    Args:
      function: a function without arguments (also a method, a lambda, a `functools.partial`) that calls layers and
        returns a value, or a list, tuple or dict of values.
      name: how Sessions call it; the function's own name by default.
      sample_feed: arrays by feed name, for programs whose feeds have batch sizes that depend on each other.
      precision: "bfloat16" or "float16" to compute in it: feeds and parameters are converted where they are used.
        Parameters and optimizer slots stay float32, and so do the statistics of normalisations, losses and means. Under
        "float16" losses are scaled while training, so that small gradients do not vanish.

    Attributes:
      feeds: FeedSpec by name, in order of declaration.
      parameters: ParameterSpec by name, in order of creation.
      states: ParameterSpec by name, for moving averages and the like.
      outputs: shape and dtype of each output; None stands for the batch.
      output_names: the keys when the function returned a dict, else None.
      loss_output: the position of the output that is minimised; or else of the one named "loss", or else 0.
      values: shape and dtype of every named value, in the order in which they are made.
      sites: the user's line that made each of them.
      kinds: the kind of layer that made each of them, such as "fc".
      sample_shapes: shapes of the feeds of `sample_feed`, by name.
      aliases: other names of named values: the name of a layer for its last result, such as "fc_0" for "fc_0.tmp_2",
        and the key of an output for the value that is returned under it.
      lookups: parameters of which rows are looked up.
      digest: a checksum of what its losses are computed from; empty where nothing is minimised.
      equations: how many equations the function is, those inside of loops and branches counted once.
      convolves: whether one of them is a convolution.
      shared: the shared functions that it calls, by name.
      random: whether a layer draws random numbers, in training or in test mode.
      dense_uses: parameters that are used as a whole.
      minimizes: what `optimizer.minimize` recorded.
      unused: trained parameters that nothing depends on: no output, no loss, nothing that the user named.
      exported: whether it was read from a file, and holds nothing but what was exported.
      batch_sizes: those that it can be run with; None for any.
      buckets: to which sizes its sequences must be padded, by feed; None for any.

    Raises:
      ProgramError: the function returns nothing, or something that is no array.
      FluidError: whatever mistake the shapes show, with the layer's name and the line that called it.

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
    batch_sizes: Sequence[int] | None = None
    buckets: Mapping[str, Any] | None = None
    _draws: bool | None = None

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
        found = self._discover(_BATCHES[0])
        frame = found.frame
        self.output_names = found.output_names
        self.loss_output = found.loss_output
        self.feeds: dict[str, FeedSpec] = frame.declared.feeds
        self.parameters = {n: s for n, s in frame.declared.arrays.items() if s.trainable is not None}
        self.states = {n: s for n, s in frame.declared.arrays.items() if s.trainable is None}
        self.minimizes = [
            Minimize(m.optimizer, self._trainable(m.parameter_list, m.no_grad_set)) for m in frame.made.minimizations
        ]
        trained = dict.fromkeys(name for m in self.minimizes for name in m.parameters)
        self.unused = unused_parameters(found, tuple(trained))
        self._note_equations(found)
        self.digest = digest(found.jaxpr, found.losses) if found.losses else ""
        self.shared = frame.declared.shared
        self.random = frame.declared.uses_randomness
        self._bodies = frame.declared.bodies
        self.lookups = tuple(frame.made.lookups)
        self.dense_uses = frozenset(frame.declared.used_whole)
        self._shapes = shapes_of(found)
        self._marked: Shapes | None = None
        self.sites = frame.declared.sites
        self.kinds = frame.declared.kinds
        self.aliases = found.aliases
        self.sloped = check_losses(self.name, found, [m.parameters for m in self.minimizes])
        warn_of_likely_mistakes(self.name, found, _BATCHES[0])
        self._said = [r or _rows_of(v) for r, v in zip(found.reductions, found.outputs, strict=True)]
        if has_arrays(found.constants) and (other := self._other_run()) is not None:
            self._marked = self._shapes.marked(shapes_of(other))
            warn_of_random_constants(self.name, found, other, lambda: self._discover(_BATCHES[0]))

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
        """Feeds and outputs as text."""
        names = self.output_names
        outputs = [str(v) for v in self.outputs] if names is None else map("{}: {}".format, names, self.outputs)
        return [f"{name}: {Array(s.shape, s.dtype)}" for name, s in self.feeds.items()], list(outputs)

    @property
    def parameter_count(self) -> int:
        """How many numbers all parameters hold together."""
        return sum(math.prod(spec.shape) for spec in self.parameters.values())

    @property
    def outputs(self) -> list[Array]:
        """Shape and dtype of each output; None stands for the batch."""
        # Scalars follow no batch. Those of a loss and its metrics are known without the time of another run.
        are_scalars = all(array.shape in ((), (1,)) for array in self._shapes.outputs)
        return (self._shapes if are_scalars else self._known_shapes()).outputs

    @property
    def values(self) -> dict[str, Array]:
        """Shape and dtype of every named value, in the order in which they are made; None stands for the batch."""
        return self._known_shapes().values

    @property
    def draws(self) -> bool:
        """Return whether a run in test mode draws random numbers. `random` is also true where only training draws.

        The first read traces the function once more, and only where `random` is true.
        """
        if self._draws is None:
            self._draws = self.random and self._in_test(lambda frame, _: frame.declared.uses_randomness, True)
        return self._draws

    def _known_shapes(self) -> Shapes:
        """Shapes with None for what follows the batch, as another run of the function shows the first who asks."""
        # A cached property would hold a lock of all programs while the function runs, up to Python 3.11.
        if self._marked is None:
            other = self._other_run()
            self._marked = self._shapes if other is None else self._shapes.marked(shapes_of(other))
        return self._marked

    @functools.cached_property
    def reductions(self) -> list[Reduction]:
        """For each output, how its values for the minibatches of a data set become its value for the data set.

        What layers have not noted is found in the equations of two more runs of the function.
        """
        rows = Reduction("rows")
        noted = [
            rule or (rows if array.shape[:1] == (None,) else None)
            for rule, array in zip(self._said, self.outputs, strict=True)
        ]
        if None not in noted:
            return [rule for rule in noted if rule is not None]
        run = functools.partial(self._run_in_test, jax.random.key(0))
        try:
            return find_reductions(
                run, self._empty_arrays(), {batch: self.stand_ins(batch) for batch in _BATCHES}, noted
            )
        except Exception:  # what is wrong with the function in test mode, whoever runs it there will see
            return [rule or guess(output.shape) for rule, output in zip(noted, self.outputs, strict=True)]

    @functools.cached_property
    def lines(self) -> dict[str, Array]:
        """Shape and dtype of the last value that each line of the program makes, by `file:line`."""
        first, second = (last_values(self._discover(batch).jaxpr) for batch in _BATCHES)
        return {line: marked(array_of(v.aval), array_of(second.get(line, v).aval)) for line, v in first.items()}

    def init(self, key: jax.Array | None, names: Collection[str] | None = None) -> dict[str, Any]:
        """Initial values of all parameters and states, by name.

        Args:
          key: random root; each array depends on it and on its own name only, or that of the module it belongs to.
            None for zeros instead, which take no memory.
          names: of some of them, and no others.
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
        parts: bool = False,
        frozen: frozenset[str] = frozenset(),
        gather: Callable[[str, Any], Any] | None = None,
        until: frozenset[str] | None = None,
    ) -> Applied:
        """Run the function on arrays: pure, so that it can be jitted and differentiated.

        Args:
          arrays: parameters and states by name.
          feeds: one array per feed.
          key: random root of this step.
          mode: "train" or "test".
          overrides: values that replace named values.
          perturbations: values added to named values; the gradient with respect to one is that of the named value.
          row_perturbations: values added to the rows of each look-up in a table, by name of the table.
          labelling: whether named values inside loops and branches carry their names in the equations.
          parts: whether to return what the outputs contribute to their values over several minibatches.
          frozen: names of parameters and states that a training step leaves as they are.
          gather: brings one array of a stack together, by the name of the stack; None where it is whole.
          until: names of the values after which the function ends; there are no outputs then. None for all of it.
        """
        given = Given(
            parameters={n: arrays[n] for n in self.parameters},
            states={n: arrays[n] for n in self.states},
            feeds=dict(feeds),
            overrides={self.aliases.get(n, n): v for n, v in (overrides or {}).items()},
            perturbations={self.aliases.get(n, n): v for n, v in (perturbations or {}).items()},
            row_perturbations=dict(row_perturbations or {}),
            key=key,
            gather=gather,
        )
        frame, outputs = self._run(given, mode, labelling, frozen, until)
        batch = _batch_size(self.feeds, given.feeds)
        return Applied(
            outputs=outputs,
            states=frame.states,
            values={**given.feeds, **given.parameters, **frame.made.values},
            losses=[m.loss for m in frame.made.minimizations],
            rates=[m.rate for m in frame.made.minimizations],
            parts=[part_of(frame, v, r, batch) for v, r in zip(outputs, self.reductions, strict=True)] if parts else [],
            lookups=frame.made.lookups,
        )

    @functools.cached_property
    def returned(self) -> dict[str, str]:
        """The names of the values that the function returns in test mode, by the keys of the outputs.

        Outputs without a name of their own, such as those of operators, are left out. `aliases` holds the names of
        train mode, in which the function may return another value under the same key.
        """

        def names(frame: Frame, outputs: list[Any]) -> dict[str, str]:
            recorded = {id(value): name for name, value in frame.made.values.items()}
            pairs = zip(self.output_names or (), outputs, strict=False)
            return {key: recorded[id(value)] for key, value in pairs if id(value) in recorded}

        return self._in_test(names, {})

    def _in_test(self, read: Callable[[Frame, list[Any]], T], otherwise: T) -> T:
        """Trace a run in test mode, and return what `read` finds in its frame and outputs.

        Args:
          read: called with the frame and the outputs.
          otherwise: the result where the function raises in test mode; a run of the program reports that error.
        """
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
        """Run the function once more, in test mode, on parameters and states, and feeds by name."""
        parameters, states = ({n: arrays[n] for n in part} for part in (self.parameters, self.states))
        with explained_prints(_BATCHES[0], again=True):
            return self._run(Given(parameters=parameters, states=states, feeds=dict(feeds), key=key), TEST)

    def _empty_arrays(self) -> dict[str, Any]:
        """Return the shape and dtype of each parameter and state, by name."""
        specs = (self.parameters | self.states).items()
        return {name: jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype)) for name, spec in specs}

    def _run(
        self,
        given: Given,
        mode: str,
        labelling: bool = False,
        frozen: frozenset[str] = frozenset(),
        until: frozenset[str] | None = None,
    ) -> tuple[Frame, list[Any]]:
        """Run the function; returns what the run read and wrote, and the outputs."""
        declared = Declared(bodies=dict(self._bodies), optimizers=tuple(m.optimizer for m in self.minimizes))
        frame = Frame(mode, self.precision, labelling=labelling, frozen=frozen, given=given, declared=declared)
        frame.known = self.parameters
        if until is not None:
            if not until:
                return frame, []
            frame.awaited = set(until)
        try:
            with running(frame):
                outputs, _ = flatten_outputs(self.name, self.function())
        except Complete:
            return frame, []
        except Exception as error:
            explained = in_own_words(error, self.name, _BATCHES[0], running=True)
            if explained is None:
                raise
            explained.__notes__ = list(getattr(error, "__notes__", ()))
            raise explained from None
        return frame, outputs

    def _discover(self, batch: int) -> Discovery:
        with explained_prints(batch, again=batch != _BATCHES[0]):
            return discover(self.function, self.name, self.precision, batch, self.sample_shapes)

    def stand_ins(self, batch: int = _BATCHES[0]) -> dict[str, Any]:
        """Return zeros for all feeds, in sizes that the function was discovered with."""
        made = {name: stand_in(spec, batch, steps=(3, 5)) for name, spec in self.feeds.items()}
        return {n: jnp.zeros(self.sample_shapes[n], v.dtype) if n in self.sample_shapes else v for n, v in made.items()}

    def _note_equations(self, found: Discovery) -> None:
        self.equations = count(found.jaxpr)
        self.convolves = uses(found.jaxpr, "conv_general_dilated")

    def _other_run(self) -> Discovery | None:
        """A run with another batch size; None where there is none, or where the function works for one size only."""
        if self.sample_shapes or all(None not in spec.shape for spec in self.feeds.values()):
            return None
        try:
            return self._discover(_BATCHES[1])
        except Exception:  # which is legal; dimensions stay as they are
            return None

    def _trainable(self, names: Sequence[str] | None, excluded: Sequence[str]) -> tuple[str, ...]:
        wanted = self.parameters if names is None else names
        return tuple(n for n in wanted if self.parameters[n].trainable and n not in excluded)


def warn_of_adversaries(programs: Collection[Program]) -> None:
    """Warn of two programs that both train a generator and a discriminator, as they do without a parameter_list."""
    sides = ("discriminator", "generator")
    # Programs may rightly train a common trunk, so only the names of the parameters show the mistake.
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
    """Warn of layers that are trained in one program although no program uses their parameters."""
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
    # Arrays that are made together, in one run of the initialisation of a module, share their key.
    return getattr(spec.initializer, "key_name", spec.name)


def _batch_size(specs: Mapping[str, FeedSpec], feeds: Mapping[str, Any]) -> int:
    """The first size of the feeds that follow the batch; of all feeds where none does."""
    sizes = {name: jnp.shape(data_of(value))[0] for name, value in feeds.items() if jnp.ndim(data_of(value))}
    following = [size for name, size in sizes.items() if name in specs and specs[name].shape[:1] == (None,)]
    return max(set(following or sizes.values()), default=1)


def _rows_of(value: Any) -> Reduction | None:
    """How sequences of several minibatches become one, which have a row for each example; None for other values."""
    return Reduction("rows") if isinstance(value, SequenceBatch | NestedSequenceBatch) else None
