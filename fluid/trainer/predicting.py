"""What a Trainer does with data beside training: predictions of its programs, and a look at their values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from fluid.core import TEST, Program, fitting
from fluid.missing import SpelledElsewhere
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.runtime import Request, Results, check_fetch
from fluid.runtime.compiled_step import bind
from fluid.runtime.fetch import Fetch
from fluid.runtime.prediction import constant, needed_feeds, on_host, order_of_results, stream
from fluid.runtime.repr import ShowsProgram
from fluid.runtime.seeds import Seeds
from fluid.trainer.evaluation.evaluate import Evaluator
from fluid.trainer.programs import Member, ProgramFunction, check_data
from fluid.trainer.signals import Signals

_TEST = "trainer.test(reader)"
_PARAMS = "trainer.params, a dict of arrays by name"
_LOAD = "trainer.load_params(source), of a file or of arrays by name"
_RUN = "trainer.run(feed)"
_HANDLERS = "trainer.train(reader, handlers=[...])"
_HISTORY = 'trainer.history["loss"], after trainer.train'
_PLACE = 'trainer.place = "gpu:0" before the first step'
_AT_ONCE = "fluid.Trainer(program, optimizer, "


class Predicting(ShowsProgram, SpelledElsewhere):
    """What Trainer inherits: `predict`, `run`, and the spellings of those who come from other libraries."""

    programs: dict[str, Program]
    _training: bool
    _signals: Signals
    _evaluator: Evaluator
    _member: Callable[..., Member]
    _spelled: ClassVar = {
        "add_callback": _HANDLERS,
        "add_handler": _HANDLERS,
        "callback_metrics": _HISTORY,
        "callbacks": _HANDLERS,
        "checkpoint_config": _AT_ONCE + "checkpoint_config=fluid.CheckpointConfig(folder))",
        "compile": "fluid.Trainer(train_program, optimizer), which compiles by itself",
        "cpu": _PLACE,
        "cuda": _PLACE,
        "current_epoch": "event.epoch in a handler, of a fluid.EndEpochEvent",
        "device": "trainer.place",
        "epoch": "event.epoch in a handler, of a fluid.EndEpochEvent",
        "eval": _TEST,
        "evaluate": _TEST,
        "fit": "trainer.train(reader, num_epochs=10); fluid.reader.arrays((x, y), batch_size=32) is a reader of arrays",
        "forward": _RUN,
        "get_weights": _PARAMS,
        "global_step": "int(trainer.session.scope.step)",
        "handlers": _HANDLERS,
        "infer": "trainer.predict(reader, fetch=[...]) for a data set, or trainer.run(feed, fetch=[...])",
        "layers": "trainer.program.values, or fluid.summary(trainer)",
        "load": _LOAD,
        "load_checkpoint": _AT_ONCE + "checkpoint_config=fluid.CheckpointConfig(folder)), which continues by itself",
        "load_state_dict": _LOAD,
        "load_weights": _LOAD,
        "logged_metrics": _HISTORY,
        "loss": _HISTORY,
        "lr": "trainer.learning_rate",
        "metrics": _HISTORY,
        "model": "trainer.program",
        "named_parameters": _PARAMS,
        "optimizer": _AT_ONCE + "params=trainer.params) for another optimizer; trainer.learning_rate for its rate",
        "optimizers": _AT_ONCE + "params=trainer.params) for another optimizer; trainer.learning_rate for its rate",
        "parameters": _PARAMS,
        "predict_on_batch": _RUN,
        "program": "trainer.programs[name], since there are several",
        "save": "trainer.save_params(path), or trainer.save_inference_model(path) with the program",
        "save_model": "trainer.save_inference_model(path), or trainer.save_params(path)",
        "save_weights": "trainer.save_params(path)",
        "scope": "trainer.session.scope",
        "score": _TEST,
        "set_weights": _LOAD,
        "state_dict": _PARAMS,
        "step": "trainer.session.step(feed) for a step of a loop of your own, or int(trainer.session.scope.step)",
        "summary": "fluid.summary(trainer)",
        "test_on_batch": _RUN,
        "to": _PLACE,
        "train_on_batch": "trainer.session.step(feed), for a loop of your own",
        "train_step": "trainer.session.step(feed), for a loop of your own",
        "trainable": 'trainer.freeze("fc_0.*")',
        "trainable_variables": _PARAMS,
        "trainable_weights": _PARAMS,
        "validate": _TEST,
        "variables": _PARAMS,
        "weights": _PARAMS,
    }
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
        """Run a program over one pass of a reader, in test mode, and give the results of each minibatch.

        Results come in the order of the reader and are not kept, so that memory is bounded however much data there is:
        when those of a minibatch are given, one more has been read. While training goes on, each minibatch is run with
        the parameters of that moment.

        Args:
          reader: as in `train`. Feeds that the results do not depend on, such as labels, may be there or not.
          fetch: names of values and globs, such as that of the prediction; the outputs of the program by default.
          feed_order: as in `train`.
          program: its name or its function; may be left out when there is one.
          feed: what is fed beside every minibatch, as for `Session.run`: of a named value or a parameter, which it
            replaces, such as a scalar for all of its numbers; or of a feed that the reader does not give.
          seed: of the random numbers of this pass: a number from 0 to 2**64 - 1 repeats it. None draws other ones in
            each pass and for each minibatch, in a sequence that follows from the seed of the Trainer.

        Returns:
          An iterator of Results: NumPy arrays `[batch, ...]`, for sequences SequenceBatches of NumPy arrays; by name
          with `fetch`, or when the program returns a dict. Nothing is read before the first one is asked for.

        Raises:
          UnknownNameError: the program has no such value.
          ReaderError: raised while reading: the reader gives nothing.
          FeedError: raised while reading: data does not fit.

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
        source = minibatches(check_data("predict", member.reads, reader), order_of_results(found, names))
        fixed = constant(session, found, feed)
        needed = needed_feeds(session, found, names, fixed)
        step = bind(session.engine, found, Request(TEST, names, (*needed, *fixed.feeds), tuple(fixed.overrides)))
        shown = found.output_names if names is None else names
        # What is fed from other programs reads all that those need.
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
        return stream(InputPipeline(source, [convert], check), begin)

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
        """Run a program once, to look at it: nothing is trained unless `mode` says so.

        Args:
          feed: as for `Session.run`.
          fetch: as for `Session.run`.
          mode: "test"; or "train" for one training step, of which no handler is told.
          program: its name or its function; may be left out when there is one.
          seed: as for `Session.run`.

        Returns:
          Results: the program's outputs, or the values of `fetch` in order; on the device.

        Raises:
          FeedError: data does not fit.
          UnknownNameError: no such feed or value.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="out"))
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
          >>> trainer.run({"x": np.ones((3, 2))}, fetch=["out", "out.w_0@GRAD"])
          {out: float32[3, 1], out.w_0@GRAD: float32[2, 1]}
        """
        return self.session.run(self._member(program, "run").program, feed, fetch, mode, seed=seed)
