"""Evaluation of programs over a data set: outputs and metrics, in one pass."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from fluid import errors
from fluid.core import TEST, Program, warn
from fluid.distributed import group
from fluid.formatting import scaled
from fluid.metrics import Metrics, names_of
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.runtime import CompiledStep, Request, Results, Session, check_fetch
from fluid.runtime.compiled_step import bind
from fluid.runtime.fetch import Fetch
from fluid.runtime.in_flight import InFlight
from fluid.runtime.prediction import Constant, constant
from fluid.trainer.evaluation.returning import returning
from fluid.trainer.evaluation.totals import Total
from fluid.trainer.evaluation.values import output_names, scalar_outputs
from fluid.trainer.programs import Member
from fluid.trainer.signals import Signals

# Bytes of rows in the result of a test from which on a warning asks if they should be kept.
_MANY = 64 * 2**20


class _Last(NamedTuple):
    """What the last test was of.

    Attributes:
      step: the step counter of the scope, the very array: each training step makes a new one.
      averages: those that took the place of parameters.
      values: the numbers that it gave.
    """

    step: Any
    averages: tuple[Any, ...]
    values: frozenset[float]


class Gathered:
    """The outputs of a program, and metrics, over the minibatches so far.

    Args:
      program: the program.
      metrics: by name; copies of them are fed, so that they stay as they are.
      rows: whether outputs that are no scalars are gathered; None stands for them otherwise.
    """

    def __init__(self, program: Program, metrics: Metrics, rows: bool):
        scalars = scalar_outputs(program).values()
        self._totals = [Total(rule) if rows or i in scalars else None for i, rule in enumerate(program.reductions)]
        self._metrics = [metric.of(**metric.inputs) for metric in metrics.values()]

    @property
    def kept(self) -> dict[int, int]:
        """Bytes of the rows that are kept, by the index of the output."""
        return {i: total.kept for i, total in enumerate(self._totals) if total is not None and total.kept}

    def add(self, found: Any, names: Sequence[str]) -> None:
        """Count one more minibatch; this waits for it.

        Args:
          found: what the step of a test returned.
          names: of the values that it has fetched for the metrics.
        """
        parts, fetched = found
        for total, part in zip(self._totals, parts, strict=True):
            if total is not None:
                total.add(part)
        values = dict(zip(names, fetched, strict=True)) if self._metrics else {}
        for metric in self._metrics:
            metric.update(**{argument: jax.device_get(values[name]) for argument, name in metric.inputs.items()})

    def values(self) -> list[Any]:
        """One NumPy value for each output, then the result of each metric."""
        totals = [None if total is None else total.result() for total in self._totals]
        return [*totals, *(metric.eval() for metric in self._metrics)]


class Evaluator:
    """Tests the programs of a Trainer.

    Args:
      session: which holds the arrays.
    """

    def __init__(self, session: Session):
        self._session = session
        self._warned: set[str] = set()  # names of programs; and of those whose rows were warned of, with " rows"
        self._fetched: dict[tuple[str, ...], Program] = {}
        self._last = _Last(None, (), frozenset())

    def averages_of(self, value: float) -> tuple[Any, ...]:
        """The averages that took the place of parameters when the last test gave a number.

        They are those whose parameters belong to a result that is announced after the test; none, where the number is
        not from the last test, training has gone on since, or the averages are in place still.
        """
        last = self._last
        known = value in last.values and last.step is self._session.scope.step
        return last.averages if known and not self._session.engine.replaced else ()

    def test(
        self,
        member: Member,
        reader: ReaderLike,
        feed_order: FeedOrder,
        metrics: Metrics,
        rows: bool = True,
        interrupts: Signals | None = None,
        fetch: Fetch | None = None,
        feed: Mapping[str, Any] | None = None,
    ) -> Results:
        """Run one pass of a reader, see `Trainer.test`.

        Warns, in the first test of a program, of outputs whose value over a data set is a guess.

        Args:
          member: which program is tested.
          reader: as in `Trainer.test`.
          feed_order: as in `Trainer.test`.
          metrics: as in `Trainer.test`.
          rows: whether outputs that are no scalars are gathered; None stands for them otherwise.
          interrupts: the signals that end the test between two minibatches.
          fetch: as in `Trainer.test`.
          feed: as in `Trainer.test`.
        """
        trained = member.program
        program = trained if fetch is None else self._returning(trained, check_fetch(trained, fetch))
        has_rows = rows and len(scalar_outputs(program)) < len(program.outputs)
        source = minibatches(reader, in_order_for="test" if has_rows else "means")
        member.divide(source)
        if member.is_shared:
            group().meet(f"a test of {member.name}")
        fixed = constant(self._session, program, feed)
        request = replace(request_of(program, metrics), overrides=tuple(fixed.overrides))
        if member.name not in self._warned and fetch is None:
            self._warned.add(member.name)
            for doubt in doubts(program):
                warn(doubt)
        # New ones for each pass, so that a result does not depend on what was tested before.
        only = None if not fixed.feeds else member.reads.keys() - fixed.feeds.keys()
        convert = member.converter(feed_order, self._session.engine.buckets(program), only)
        check = None if interrupts is None else interrupts.check
        batches = InputPipeline(source, [convert], check).start()
        feeds = (member.fed({**batch.feed, **fixed.feeds}) for batch in batches)
        step = bind(self._session.engine, program, request)
        gathered = self._gathered(program, metrics, rows)
        expected = fetch is not None or f"{program.name} rows" in self._warned
        try:
            for _ in evaluate(step, request, feeds, gathered, fixed):
                if not expected and sum(gathered.kept.values()) > _MANY:
                    expected = True
                    self._warned.add(f"{program.name} rows")
                    warn(_many_rows(program, gathered))
        finally:
            batches.close()
        names = [*output_names(program), *metrics] if metrics or program.output_names else None
        results = Results(gathered.values(), names)
        self._last = _Last(self._session.scope.step, tuple(self._session.engine.replaced), frozenset(_numbers(results)))
        return results

    def _gathered(self, program: Program, metrics: Metrics, rows: bool) -> Gathered:
        """What is gathered in a test; arguments as for Gathered."""
        return Gathered(program, metrics, rows)

    def _returning(self, program: Program, names: tuple[str, ...]) -> Program:
        """The program with named values as its outputs."""
        key = (program.name, *names)
        if key not in self._fetched:
            self._fetched[key] = returning(program, names)
        return self._fetched[key]


def request_of(program: Program, metrics: Metrics) -> Request:
    """What the step of a test shall do: give what the outputs contribute, and what the metrics read.

    Raises:
      ArgumentTypeError: something is no metric, or was not told what to read.
      UnknownNameError: a metric reads what the program does not have.
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
    step: CompiledStep,
    request: Request,
    feeds: Iterable[Mapping[str, Any]],
    gathered: Gathered,
    fixed: Constant = Constant({}, {}),  # noqa: B008
) -> Iterator[None]:
    """Gather what a program computes over all minibatches; yield after each of them.

    Args:
      step: the compiled step of the request.
      request: from `request_of`.
      feeds: of the minibatches.
      gathered: what the outputs contribute to, and the metrics.
      fixed: what is fed beside every minibatch.
    """
    names = request.fetch or ()
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
    """Return the warning for a test that keeps many rows in memory, with the fetch that avoids it."""
    names = output_names(program)
    found = ", ".join(f"{names[i]!r} ({scaled(size, 'B')})" for i, size in gathered.kept.items())
    scalars = list(scalar_outputs(program)) if program.output_names else ["name_of_a_scalar"]
    return (
        f"test() keeps the rows of {found} so far, to return them; for the other values alone: "
        f"trainer.test(reader, fetch={scalars}), and for rows as they come: trainer.predict(reader)"
    )


def doubts(program: Program) -> list[str]:
    """What to say of each output whose value over a data set is a guess."""
    named = zip(output_names(program), program.reductions, strict=True)
    return [
        f"{doubt}: how the values of {name!r} for several minibatches become one is not known, so that a test takes "
        f"{_GUESSES[rule.kind]}, and its result depends on the batch size. Say it in the program: "
        f'layers.metric(value, reduce="mean"), "sum", "max", "min" or "last"; or, for a function of values that are '
        f"known, layers.metric(mean, reduce=jnp.sqrt)"
        for name, rule in named
        for doubt in _doubts_of(rule)
    ]


_GUESSES = {"mean": "their mean, weighted by examples", "rows": "all of them, one behind the other"} | {
    "function": "the mean of what it is a function of"
}


def _numbers(results: Results) -> list[float]:
    """The numbers of a test, those of metrics that give several included."""
    arrays = [np.asarray(leaf) for leaf in jax.tree.leaves(list(results))]
    return [float(array.reshape(())) for array in arrays if array.size == 1 and array.dtype.kind in "biuf"]


def _doubts_of(rule: Any) -> list[str]:
    return [*([rule.doubt] if rule.doubt else []), *(doubt for part in rule.parts for doubt in _doubts_of(part))]
