"""Prediction with a Trainer: `predict` over a data set, and `run` for the values of one feed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from fluid.compat.name_hints import KnownAttributes
from fluid.core import TEST, Program, fitting
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.reader.table import check_reader
from fluid.runtime import Request, Results, check_fetch
from fluid.runtime.compiled_step import bind
from fluid.runtime.fetch import Fetch
from fluid.runtime.prediction import constant, needed_feeds, on_host, order_of_results, stream
from fluid.runtime.repr import ShowsProgram
from fluid.runtime.seeds import Seeds
from fluid.trainer.evaluation.evaluate import Evaluator
from fluid.trainer.programs import Member, ProgramFunction, check_data
from fluid.trainer.signals import Signals


class Predicting(ShowsProgram, KnownAttributes):
    """A base class of Trainer: `predict`, `run`, and error messages with hints for attributes of other libraries."""

    programs: dict[str, Program]
    _training: bool
    _signals: Signals
    _evaluator: Evaluator
    _member: Callable[..., Member]
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
        """Run a program over one pass of a reader, in test mode, and return an iterator over the results.

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
        member = self._member(program, "predict")
        found = member.program
        names = None if fetch is None else check_fetch(found, fetch)
        check_reader("predict", reader, found.table)
        source = minibatches(check_data("predict", member.reads, reader), order_of_results(found, names))
        fixed = constant(session, found, feed)
        needed = needed_feeds(session, found, names, fixed)
        step = bind(session.engine, found, Request(TEST, names, (*needed, *fixed.feeds), tuple(fixed.overrides)))
        shown = found.output_names if names is None else names
        # If other programs compute feeds of this program, the minibatches must hold the feeds of those programs too.
        only = needed if member.chain is None else member.reads.keys() - fixed.feeds.keys()
        check = self._signals.check if self._training else None
        seeds = session.engine.seeds if seed is None else Seeds("predict", seed)
        draws = member.chain is not None or found.draws
        if seed is not None and not draws:
            session.engine.seeds.unused("predict", found.name, seed)

        def begin(minibatch: Any) -> Callable[[], Results]:
            draw = session.engine.draw(seeds.next()) if draws else None
            fed = {**member.fed({**minibatch, **fixed.feeds}, draw), **fixed.feeds}
            values = step({name: fed[name] for name in (*needed, *fixed.feeds)}, fixed.overrides, draw).values
            return lambda: Results(on_host(values), shown)

        convert = member.converter(feed_order, session.engine.buckets(found), only)
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
        return self.session.run(self._member(program, "run").program, feed, fetch, mode, seed=seed)
