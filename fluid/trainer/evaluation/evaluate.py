"""Evaluation and prediction: `Trainer.test` and `predict` over a data set, and `run` for one minibatch."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import numpy as np

from fluid import errors
from fluid._util.known_names import KnownAttributes
from fluid._util.text import scaled
from fluid.core import (
    TEST,
    Program,
    current_frame,
    fitting,
    named_array,
    warn_once,
)
from fluid.distributed import group
from fluid.metrics import Metrics, names_of
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.data_frame import check_reader
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.runtime import CompiledStep, Request, Results, Session, check_fetch
from fluid.runtime.compiled_step import bind
from fluid.runtime.fetch import GRAD, Fetch, is_inner
from fluid.runtime.in_flight import InFlight
from fluid.runtime.prediction import ConstantFeeds, constant, needed_feeds, on_host, order_of_results, stream
from fluid.runtime.seeds import Seeds
from fluid.runtime.session import ShowsProgram
from fluid.trainer.evaluation.means import output_names, scalar_outputs, warn_of_guess
from fluid.trainer.evaluation.total import MANY, Total
from fluid.trainer.programs import ProgramFunction, ProgramInput, check_data
from fluid.trainer.signals import Signals


class _Last(NamedTuple):
    """A record of the last test: the training step before it, the parameter averages in use, and the results.

    Attributes:
      step: the array of the step counter. Each training step creates a new array. So if the array is identical
        (`is`) to the current one, no step has run since the test.
      averages: the parameter averages, such as an ExponentialMovingAverage, that replaced parameters during the test.
      values: all numbers in the results of the test.
    """

    step: Any
    averages: tuple[Any, ...]
    values: frozenset[float]


class Gathered:
    """A collector of the outputs of a program, and of metrics, over all minibatches of a test."""

    def __init__(self, program: Program, metrics: Metrics, rows: bool, members: int | None = None):
        scalars = scalar_outputs(program).values()
        rules = enumerate(program.reductions)
        self._totals = [Total(rule, members) if rows or i in scalars else None for i, rule in rules]
        self._members = members
        copies = 1 if members is None else members
        self._metrics = [[metric.of(**metric.inputs) for _ in range(copies)] for metric in metrics.values()]

    @property
    def kept(self) -> dict[int, int]:
        """The number of bytes of the output rows that are collected in memory, by the index of the output."""
        return {i: total.kept for i, total in enumerate(self._totals) if total is not None and total.kept}

    def add(self, found: Any, names: Sequence[str]) -> None:
        """Add the results of one minibatch, after waiting until the device has computed them."""
        parts, fetched = found
        for total, part in zip(self._totals, parts, strict=True):
            if total is not None:
                total.add(part)
        values = dict(zip(names, jax.device_get(fetched), strict=True)) if self._metrics else {}
        for copies in self._metrics:
            inputs = {argument: values[name] for argument, name in copies[0].inputs.items()}
            for member, metric in enumerate(copies):
                metric.update(**(inputs if self._members is None else jax.tree.map(lambda a, i=member: a[i], inputs)))

    def values(self) -> list[Any]:
        """Return one NumPy value for each output, then the result of each metric."""
        totals = [None if total is None else total.result() for total in self._totals]
        return [*totals, *(self._measured(copies) for copies in self._metrics)]

    def _measured(self, copies: Sequence[Any]) -> Any:
        if self._members is None:
            return copies[0].eval()
        return jax.tree.map(lambda *values: np.stack(values), *(metric.eval() for metric in copies))


class DatasetEvaluator:
    """An evaluator of the programs of a Trainer over data sets."""

    def __init__(self, session: Session):
        self._session = session
        self._fetched: dict[tuple[str, ...], Program] = {}
        self._last = _Last(None, (), frozenset())

    def averages_of(self, value: float) -> tuple[Any, ...]:
        """Return the parameter averages that the last test has used, if `value` is a result of this test.

        During a test, averages such as an ExponentialMovingAverage may replace parameters. The returned tuple is empty
        if they did not. It is also empty in three cases: `value` is no result of the last test, training has continued
        since the test, or averages still replace the parameters.
        """
        last = self._last
        known = value in last.values and last.step is self._session.scope.step
        return last.averages if known and not self._session.engine.replaced else ()

    def test(
        self,
        input: ProgramInput,
        reader: ReaderLike,
        feed_order: FeedOrder,
        metrics: Metrics,
        rows: bool = True,
        interrupts: Signals | None = None,
        fetch: Fetch | None = None,
        feed: Mapping[str, Any] | None = None,
    ) -> Results:
        """Test a program over one pass of a reader, see `Trainer.test`.

        The first test of a program warns of outputs for which fluid guesses how to combine minibatches.
        """
        trained = input.program
        program = trained if fetch is None else self._returning(trained, check_fetch(trained, fetch))
        has_rows = rows and len(scalar_outputs(program)) < len(program.outputs)
        source = minibatches(reader, in_order_for="test" if has_rows else "means")
        input.divide(source)
        if input.is_shared:
            group().meet(f"a test of {input.name}")
        fixed = constant(self._session, program, feed)
        request = replace(request_of(program, metrics), overrides=tuple(fixed.overrides))
        # Each test has new buckets (padding sizes), so that its result does not depend on earlier tests.
        only = None if not fixed.feeds else input.reads.keys() - fixed.feeds.keys()
        convert = input.converter(feed_order, self._session.engine.buckets(program), only)
        check = None if interrupts is None else interrupts.check
        batches = InputPipeline(source, [convert], check).start()
        feeds = (input.fed({**batch.feed, **fixed.feeds}) for batch in batches)
        step = bind(self._session.engine, program, request)
        gathered = Gathered(program, metrics, rows, self._session.engine.members)
        try:
            for _ in evaluate(step, feeds, gathered, fixed):
                if fetch is None and sum(gathered.kept.values()) > MANY:
                    warn_once(program, "rows of a test", lambda: _many_rows(program, gathered))
        finally:
            batches.close()
        # The doubts are about results, so an error of the program comes first.
        for name, rule in zip(output_names(program), program.reductions, strict=True):
            warn_of_guess(trained, name, rule)
        names = [*output_names(program), *metrics] if metrics or program.output_names else None
        results = Results(gathered.values(), names)
        self._last = _Last(self._session.scope.step, tuple(self._session.engine.replaced), frozenset(_numbers(results)))
        return results

    def _returning(self, program: Program, names: tuple[str, ...]) -> Program:
        """Return a version of `program` that returns the values in `names`; each set of names is traced only once."""
        key = (program.name, *names)
        if key not in self._fetched:
            self._fetched[key] = returning(program, names)
        return self._fetched[key]


def request_of(program: Program, metrics: Metrics) -> Request:
    """Return a Request: the description of the compiled step of a test.

    The step returns a Contribution (value and weight) to each output, and the inputs of the metrics.

    Raises:
      ArgumentTypeError: an entry is not a metric, or has no inputs.
      UnknownNameError: a metric reads a value that the program does not have.
      ArgumentError: a metric has the name of an output.
    """
    outputs = output_names(program)
    if twice := [name for name in metrics if name in outputs]:
        raise errors.ArgumentError(
            f"the metric {twice[0]!r} has the name of an output of the program {program.name}; give it another one: "
            f"metrics={{'exact_{twice[0]}': ...}}"
        )
    names = check_fetch(program, names_of(metrics)) if metrics else None
    return Request(TEST, names, tuple(program.feeds), parts=True)


def evaluate(
    step: CompiledStep, feeds: Iterable[Mapping[str, Any]], gathered: Gathered, fixed: ConstantFeeds
) -> Iterator[None]:
    """Collect the results of a program over all minibatches; yield None after each minibatch."""
    names = step.request.fetch or ()
    in_flight: InFlight[Any] = InFlight()
    for feed in feeds:
        results = step({**feed, **fixed.feeds}, fixed.overrides)
        in_flight.add((results.parts, results.values))
        for found in in_flight.due():
            gathered.add(found, names)
            yield
    for found in in_flight.rest():
        gathered.add(found, names)
        yield


def _many_rows(program: Program, gathered: Gathered) -> str:
    """Return the warning for a test that collects many rows in memory; the warning names calls that avoid this."""
    names = output_names(program)
    found = ", ".join(f"{names[i]!r} ({scaled(size, 'B')})" for i, size in gathered.kept.items())
    scalars = list(scalar_outputs(program)) if program.output_names else ["name_of_a_scalar"]
    return (
        f"test() keeps the rows of {found} so far, to return them; for the other values alone: "
        f"trainer.test(reader, fetch={scalars}), and for rows as they come: trainer.predict(reader)"
    )


def _numbers(results: Results) -> list[float]:
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(list(results))]
    return [float(array.reshape(())) for array in arrays if array.size == 1 and array.dtype.kind in "biuf"]


def returning(program: Program, names: Sequence[str]) -> Program:
    """Return a copy of a program that returns other values, and minimizes no loss.

    Raises:
      UnknownNameError: a name has no value over a data set, such as a gradient.

    Example:
      >>> import fluid
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> print(*returning(fluid.Program(program), ["fc_0", "fc_0.w_0"]).outputs)
      float32[batch, 1] float32[2, 1]
    """
    for name in names:
        if name.endswith(GRAD) or is_inner(program, name):
            kind = "gradient" if name.endswith(GRAD) else "value of a loop or branch"
            raise errors.UnknownNameError(
                f"test(fetch={name!r}): found a {kind}, expected values with "
                f"a name, of which it is known how those of several minibatches become one; for each minibatch by "
                f"itself: trainer.predict(reader, fetch=[{name!r}])"
            )

    def values() -> dict[str, Any]:
        result = program.traced_function()
        frame = current_frame("layers.identity")
        frame.made.minimizations.clear()
        known = {**frame.given.feeds, **frame.made.values, **(result if isinstance(result, Mapping) else {})}
        canonical = {name: name if name in known else program.aliases.get(name, name) for name in names}
        return {name: known[n] if n in known else named_array(n) for name, n in canonical.items()}

    program.check_unchanged()
    with warnings.catch_warnings():
        # Ignore warnings: tracing `program` before has already given them.
        warnings.simplefilter("ignore", errors.FluidWarning)
        samples = {name: np.zeros(shape) for name, shape in program.sample_shapes.items()}
        return Program(values, f"{program.name}[{', '.join(names)}]", samples, program.precision)


class Predicting(ShowsProgram, KnownAttributes):
    """A base class of Trainer with `predict`, `run`, and error messages for method names of other libraries."""

    programs: dict[str, Program]
    _training: bool
    _signals: Signals
    _evaluator: DatasetEvaluator
    _input: Callable[..., ProgramInput]
    _set_by: ClassVar = {
        "history": "it is what trainer.train returns",
        "params": "write trainer.load_params({name: array}, strict=False), or trainer.session.scope[name] = array",
        "frozen": 'write trainer.freeze("fc_0.*"), or trainer.unfreeze()',
    }

    def _shown_programs(self) -> Sequence[Program]:
        return list(self.programs.values())

    @fitting("trainer.predict")
    def predict(
        self,
        reader: ReaderLike,
        fetch: Fetch | None = None,
        feed_order: FeedOrder = None,
        program: str | ProgramFunction | None = None,
        *,
        feed: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> Iterator[Results]:
        """Run a program in test mode over one pass (all minibatches) of a reader; return an iterator over the results.

        Results follow the order of the reader and are not kept, so memory is bounded for data of any size: the iterator
        reads one minibatch ahead. During training, each minibatch uses the current parameters.

        Args:
          reader: as in `train`. Feeds on which the results do not depend, such as labels, are optional.
          fetch: names of values and globs, such as the name of the prediction; the outputs of the program by default.
          feed_order: as in `train`.
          program: the name or the function of the program; optional if there is one program.
          feed: values beside every minibatch, as for `Session.run`: for a feed that the reader does not provide, or for
            a named value or a parameter, which is replaced. A scalar fills the whole array.
          seed: the seed of the random numbers of this pass, from 0 to 2**64 - 1; a pass with an equal seed is repeated
            exactly. None draws new random numbers in each pass and for each minibatch, from the seed of the Trainer.

        Returns:
          An iterator of Results: NumPy arrays `[batch, ...]`, and SequenceBatches of NumPy arrays for sequences. The
          results have names with `fetch`, or if the program returns a dict. Reading starts with the first result.

        Raises:
          UnknownNameError: the program has no value of this name.
          ReaderError: raised by the iterator: the reader has no minibatches.
          FeedError: raised by the iterator: data does not match the feeds.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     y = fluid.layers.data("y", shape=[1])
          ...     guess = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="guess")
          ...     return fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
          >>> data = fluid.reader.arrays({"x": np.ones((10, 2))}, batch_size=4)
          >>> [results["guess"].shape for results in trainer.predict(data, fetch="guess")]
          [(4, 1), (4, 1), (2, 1)]
        """
        session = self.session
        input = self._input(program, "predict")
        found = input.program
        names = None if fetch is None else check_fetch(found, fetch)
        check_reader("predict", reader, found.table)
        source = minibatches(check_data("predict", input.reads, reader), order_of_results(found, names))
        fixed = constant(session, found, feed)
        needed = needed_feeds(session, found, names, fixed)
        step = bind(session.engine, found, Request(TEST, names, (*needed, *fixed.feeds), tuple(fixed.overrides)))
        shown = found.output_names if names is None else names
        # If other programs compute feeds of this program, the minibatches must also hold the feeds that those programs
        # read.
        only = needed if input.chain is None else input.reads.keys() - fixed.feeds.keys()
        check = self._signals.check if self._training else None
        seeds = session.engine.seeds if seed is None else Seeds("predict", seed)
        draws = input.chain is not None or found.draws
        if seed is not None and not draws:
            session.engine.seeds.unused("predict", found.name, seed)

        def begin(minibatch: Any) -> Callable[[], Results]:
            draw = session.engine.draw(seeds.next()) if draws else None
            fed = {**input.fed({**minibatch, **fixed.feeds}, draw), **fixed.feeds}
            values = step({name: fed[name] for name in (*needed, *fixed.feeds)}, fixed.overrides, draw).values
            return lambda: Results(on_host(values), shown)

        convert = input.converter(feed_order, session.engine.buckets(found), only)
        return stream(InputPipeline(source, [convert], check), begin, found.table)

    @fitting("trainer.run")
    def run(
        self,
        feed: Mapping[str, Any] | None = None,
        fetch: Fetch | None = None,
        mode: str = TEST,
        program: str | ProgramFunction | None = None,
        *,
        seed: int | None = None,
    ) -> Results:
        """Run a program once and return its values; nothing is trained unless `mode` is "train".

        Args:
          feed: as for `Session.run`.
          fetch: as for `Session.run`.
          mode: "test"; or "train" for one training step, which does not notify handlers.
          program: the name or the function of the program; optional if there is one program.
          seed: as for `Session.run`.

        Returns:
          Results: the outputs of the program, or the values of `fetch` in order; on the device.

        Raises:
          FeedError: data does not match the feeds.
          UnknownNameError: the program has no feed or value of this name.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="out"))
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
          >>> trainer.run({"x": np.ones((3, 2))}, fetch=["out", "out.w_0@GRAD"])
          {out: float32[3, 1], out.w_0@GRAD: float32[2, 1]}
        """
        return self.session.run(self._input(program, "run").program, feed, fetch, mode, seed=seed)
