"""Evaluation of a population: tests of all members, outputs of an ensemble, and readers with data for each member."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core import NestedSequenceBatch, Program, SequenceBatch
from fluid.metrics import Metrics
from fluid.reader.base import Reader, ReaderLike, Rows, as_readers, opened
from fluid.reader.converter import Separate
from fluid.reader.feeder import FeedOrder
from fluid.runtime import Results
from fluid.sweeps.session import PopulationSession
from fluid.trainer.evaluation.evaluate import Evaluator, Gathered
from fluid.trainer.evaluation.monitor import AUTO, direction
from fluid.trainer.evaluation.validation import RestoreBest, Tests, Validation
from fluid.trainer.evaluation.values import output_names
from fluid.trainer.events import EventHandler
from fluid.trainer.handlers import Handler
from fluid.trainer.programs import Member


class GatheredOfMembers(Gathered):
    """The collected outputs and metrics of each member over a data set; `values` stacks them over the members.

    Args:
      program: the program.
      metrics: as for Gathered.
      rows: as for Gathered.
      size: the number of members.
    """

    def __init__(self, program: Program, metrics: Metrics, rows: bool, size: int):
        self._each = [Gathered(program, metrics, rows) for _ in range(size)]

    def add(self, found: Any, names: Sequence[str]) -> None:
        """Add the results of one minibatch, with a leading axis of members, after waiting for the device."""
        here = jax.device_get(found)
        for member, gathered in enumerate(self._each):
            gathered.add(jax.tree.map(lambda array, i=member: array[i], here), names)

    @property
    def kept(self) -> dict[int, int]:
        """The number of bytes of the rows that are kept for all members, by the index of the output."""
        each = [gathered.kept for gathered in self._each]
        return {index: sum(kept[index] for kept in each) for index in each[0]}

    def values(self) -> list[Any]:
        """Return one value for each output, then one for each metric, with a leading axis of members."""
        columns = zip(*(gathered.values() for gathered in self._each), strict=True)
        return [jax.tree.map(lambda *values: np.stack(values), *column) for column in columns]


class MembersEvaluator(Evaluator):
    """An evaluator that tests all members of a population and keeps the results of the last test.

    Args:
      session: the session of the population.
      size: the number of members.
    """

    def __init__(self, session: Any, size: int):
        super().__init__(session)
        self._size = size
        self._results: Results | None = None

    def test(
        self, member: Member, reader: ReaderLike, feed_order: FeedOrder, metrics: Metrics, *rest: Any, **more: Any
    ) -> Results:
        """Test all members over one pass of a reader, as `Evaluator.test`; each result has a leading axis of members.

        The results are kept for `best`, except in a test with `fetch`.
        """
        results = super().test(member, reader, feed_order, metrics, *rest, **more)
        if more.get("fetch") is None:
            self._results = Results(list(results), [*output_names(member.program), *metrics])
        return results

    def best(self, name: str | None, mode: str) -> int:
        """Return the index of the member with the best value of the last test; see `Population.best`."""
        if self._results is None:
            raise errors.ArgumentError(
                "best() compares the results of the last test, and there is none; population.test(reader) makes one"
            )
        found = self._results[self._results.keys()[0] if name is None else name]
        if name is not None or mode != AUTO:
            mode = direction(name or "", mode, lambda mode: f"population.best({name!r}, mode={mode!r})")
        values = np.asarray(found, np.float64)
        if found is None or values.size != self._size:
            raise errors.ArgumentError(
                f"best({name!r}): found values of shape {list(values.shape[1:])} for each member, expected one number; "
                f"name a scalar of the program or a metric of the test"
            )
        known = np.where(np.isfinite(values.reshape(-1)), values.reshape(-1), np.nan)
        if np.isnan(known).all():
            raise errors.ArgumentError(f"best({name!r}): the value of every member is infinite or NaN")
        return int(np.nanargmax(known) if mode == "max" else np.nanargmin(known))

    def _gathered(self, program: Program, metrics: Metrics, rows: bool) -> Gathered:
        return GatheredOfMembers(program, metrics, rows, self._size)


class MembersValidation(Validation):
    """The Validation of a population, which refuses handlers that expect the numbers of a single training."""

    def around(
        self, handlers: Sequence[Handler | EventHandler], tests: Tests, best: RestoreBest
    ) -> Sequence[Handler | EventHandler]:
        """Return the handlers of a call of `train` with the added handlers; arguments as for Validation.

        Raises:
          ArgumentError: a handler, or `restore_best`, expects one number but gets an array with one number per member.
        """
        for handler in handlers:
            if isinstance(handler, Handler) and not handler.for_members:
                raise errors.ArgumentError(
                    f"{type(handler).__name__} follows the numbers of one training, and in a Population each is an "
                    f"array of one for each member; expected TestEvery, EarlyStopping, or a handler that reads such "
                    f"arrays and says so: for_members = True in its class"
                )
        if best:
            raise errors.ArgumentError(
                f"train(restore_best={best!r}): which moment was best differs among the members; let "
                f"fluid.handlers.EarlyStopping stop each of them, or keep population[i] in a handler of your own"
            )
        return super().around(handlers, tests, best)


def mean_of_members(results: Any) -> Any:
    """Return each result of a test-mode run, `[members, ...]`, as its mean over the members, `[...]`.

    Raises:
      ArgumentError: a result is a sequence, or is not floating-point.
    """
    return jax.tree.map(_mean, results, is_leaf=_is_sequence)


def each_member(results: Any) -> Any:
    """Return each result of a test-mode run, `[members, batch, ...]`, as `[batch, members, ...]`.

    Raises:
      ArgumentError: a result is a sequence.
    """
    return jax.tree.map(_behind_rows, results, is_leaf=_is_sequence)


class Separately:
    """A value for `Inferencer(params=)` with which it returns the outputs of each member; see `Population.each`.

    Args:
      make: a function that returns the session of the Inferencer for a program function, a place and a precision.
    """

    def __init__(self, make: Callable[..., PopulationSession]):
        self.inference_session = make


def _mean(value: Any) -> Any:
    if _is_sequence(value):
        raise errors.ArgumentError(
            "an ensemble gives the mean of what its members compute, found a sequence, expected an array; ask for what "
            "each member computes: fluid.Inferencer(program, params=population[i])"
        )
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        raise errors.ArgumentError(
            f"an ensemble gives the mean of what its members compute, found {value.dtype}{list(value.shape[1:])}, "
            f"expected floating-point numbers, such as probabilities; fetch those, or ask for what each member "
            f"computes: fluid.Inferencer(program, params=population.each)"
        )
    return value.mean(axis=0)


def _behind_rows(value: Any) -> Any:
    if _is_sequence(value):
        raise errors.ArgumentError(
            "the members of an ensemble give arrays, found a sequence; ask one of them: "
            "fluid.Inferencer(program, params=population[i])"
        )
    return jnp.moveaxis(value, 0, min(1, value.ndim - 1))


def _is_sequence(value: Any) -> bool:
    return isinstance(value, SequenceBatch | NestedSequenceBatch)


_END = object()


def separate(readers: Sequence[ReaderLike]) -> Reader:
    """Return a reader whose items hold one minibatch of each reader, for one member each; see `Population.separate`."""
    found = as_readers("Population.separate", readers)

    def iterate(epoch: int, start: int) -> Rows:
        with opened(found, epoch, start) as rows:
            while True:
                minibatches = tuple(next(its, _END) for its in rows)
                ended = [member for member, minibatch in enumerate(minibatches) if minibatch is _END]
                if len(ended) == len(minibatches):
                    return
                if ended:
                    raise errors.ReaderError(
                        f"the reader of member {ended[0]} has ended, and that of another one has not; expected readers "
                        f"of the same number of minibatches: Population.separate([reader_0, reader_1, ...])"
                    )
                yield Separate(minibatches)

    return Reader(iterate, {"separate": [reader.plan for reader in found]})
