"""The class Trainer, which trains, tests and saves program functions with optimizers; and the function `train`."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from fluid import errors
from fluid import optimizer as optimizers
from fluid._util.known_names import not_called
from fluid.checkpoint import PathLike, Rename
from fluid.core import TEST, fitting, not_copied, one_of, warn_once, whole_number
from fluid.distributed import group
from fluid.metrics import Metrics
from fluid.optimizer.base import OptimizerLike
from fluid.param_attr import Shardings
from fluid.place import Parallel, Place
from fluid.reader.base import ReaderLike
from fluid.reader.buckets import MAX_COMPILATIONS, Ladders
from fluid.reader.data_frame import check_reader
from fluid.reader.feeder import FeedOrder
from fluid.runtime import Results, Session, StepFunction
from fluid.runtime.fetch import Fetch
from fluid.runtime.finite import became_non_finite, holding
from fluid.trainer import loop
from fluid.trainer.agreement import Agreement, compare
from fluid.trainer.checkpoint import CheckpointConfig, Checkpoints
from fluid.trainer.checkpoint.train_calls import Calls, HasCheckpoints, Readers
from fluid.trainer.device_calls import checked_steps
from fluid.trainer.dry_run import Check, DryRun
from fluid.trainer.evaluation.evaluate import DatasetEvaluator, Predicting
from fluid.trainer.evaluation.history import History
from fluid.trainer.evaluation.validation import RestoreBest, Tests, Validation
from fluid.trainer.events import EventHandler
from fluid.trainer.every import Interval
from fluid.trainer.handlers import Dispatcher, Handlers, listed
from fluid.trainer.losses import Losses
from fluid.trainer.parameters import HasParameters
from fluid.trainer.programs import (
    InferenceFunction,
    ProgramFunction,
    ProgramInput,
    ProgramsLike,
    ReadersLike,
    ScheduleLike,
    TrainingProgram,
    check_data,
    declared_programs,
    discovered,
    inference_program,
    minimizing,
    pipeline_of,
    plan_of,
    program_input_called,
    program_inputs_of,
    readers_of,
    source_of,
    warn_of_idle,
)
from fluid.trainer.progress import ProgressBar
from fluid.trainer.signals import Signals

not_called("fluid.trainer", "fluid.Trainer(...)")


class Trainer(HasParameters, HasCheckpoints, Predicting):
    """A trainer of one program function, or of several in turn with shared parameters, see `docs/programs.md`.

    Args:
      program_func: a function that calls layers and returns the loss, or a list, tuple or dict of values, the loss
        first. For several programs: a list of pairs `(program_func, optimizer)` and of TrainingPrograms.
      optimizer: a fluid optimizer, an optax transformation, or a function that returns one. None if the program calls
        `optimizer.minimize` itself. With several programs, the optimizer of each program without one.
      param_path: a file of `save_params` to start from, or a file that ends in ".safetensors".
      place: a device, or with `parallel` the devices, see `fluid.Session`; None for JAX's default.
      train_func: another name of the argument program_func.
      optimizer_func: another name of the argument optimizer.
      seed: the seed of initial values and of random layers.
      precision: "bfloat16" or "float16" for the computation, see `fluid.Program`; parameters and optimizer state stay
        float32.
      buckets: sizes to pad sequences to: a list such as `[16, 64, 400]` for all sequences, or a dict of lists by feed.
        None chooses sizes from the data.
      max_compilations: the maximum number of padded shapes that are chosen from the data, 8 by default; each shape
        needs a compilation.
      checkpoint_config: a CheckpointConfig: save during training, and continue from the newest existing checkpoint.
      step: a function that computes a training step, see `fluid.TrainingStep`; the default computes one gradient and
        makes one update.
      params: arrays by name to start from, instead of a file, such as `other_trainer.params`.
      strict: as for `load_params`, for the initial parameters. An existing checkpoint has priority over them.
      rename: as for `load_params`.
      skip: as for `load_params`.
      names: as for `load_params`.
      parallel: True to divide each batch among all devices, "fsdp" or a `fluid.Mesh`, see `fluid.Session`.
      shardings: the axes that divide parameters, by names and globs, see `fluid.Session`.
      schedule: the program of each step, with several programs. "alternate" is the default. "3:1" repeats three steps
        of the first program and one step of the second. "epoch" trains each program for an epoch in turn. Weights by
        name, `{"a": 0.7, "b": 0.3}`, draw the program of each step from the seed and the step number. A function maps
        the number of training steps done to a program name.
      epoch_of: the name of the program whose reader ends an epoch; by default, the first program that has a reader. The
        other readers continue across epochs, and restart when they end.
      steps_per_dispatch: the maximum number of steps per device call. The results do not change, but handlers receive
        the events of all steps after the call: see `docs/speed.md`.
      infer_func: the program function that `save_inference_model` exports, such as the net without its loss. It shares
        parameters with the trained program by name; None exports the outputs that do not depend on labels.

    Attributes:
      session: the Session of this Trainer: `session.scope`, `session.compilations`, `session.run(...)`.
      programs: the traced Programs, by name.
      program: the Program, if there is only one.

    Raises:
      FluidError: tracing the program fails, for example because shapes do not match; raised before the first step.
      CheckpointError: the folder of checkpoints cannot be used, or all its checkpoints are damaged.
      ParameterError: the checkpoint belongs to another program or optimizer; or `infer_func` has a parameter that the
        trained program lacks.

    Example:
      >>> import fluid, numpy as np
      >>> def train_program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     y = fluid.layers.data("y", shape=[1])
      ...     return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))
      >>> x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
      >>> data = fluid.reader.arrays((x, x.sum(1, keepdims=True)), batch_size=16)
      >>> trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1))
      >>> history = trainer.train(data, num_epochs=20)
      >>> bool(trainer.test(data)[0] < 1e-4)
      True
    """

    __reduce_ex__ = not_copied(
        "Trainer",
        'write trainer.save_params("net.params"), and fluid.Trainer(program, optimizer, param_path="net.params") for '
        "another one; fluid.CheckpointConfig saves the optimizer's slots too",
    )

    @fitting("fluid.Trainer")
    def __init__(
        self,
        program_func: ProgramFunction | ProgramsLike | None = None,
        optimizer: OptimizerLike | None = None,
        param_path: PathLike | None = None,
        place: Place = None,
        *,
        train_func: ProgramFunction | ProgramsLike | None = None,
        optimizer_func: OptimizerLike | None = None,
        seed: int = 0,
        precision: str | None = None,
        buckets: Ladders = None,
        max_compilations: int = MAX_COMPILATIONS,
        checkpoint_config: CheckpointConfig | None = None,
        step: StepFunction | None = None,
        params: Mapping[str, Any] | None = None,
        strict: bool = True,
        rename: Rename = None,
        skip: str | Sequence[str] = (),
        names: str | Sequence[str] | None = None,
        parallel: Parallel = None,
        shardings: Shardings | None = None,
        schedule: ScheduleLike = None,
        epoch_of: str | None = None,
        steps_per_dispatch: int = 1,
        infer_func: InferenceFunction | None = None,
    ):
        function = one_of("program_func", program_func, "train_func", train_func)
        optimizer = one_of("optimizer", optimizer, "optimizer_func", optimizer_func)
        declared = declared_programs(function, optimizer)
        programs = discovered(declared, precision)
        self._plan = plan_of(programs, schedule, epoch_of, seed)
        session = Session(
            *programs,
            place=place,
            seed=seed,
            buckets=buckets,
            max_compilations=max_compilations,
            mode=TEST,
            step=step,
            parallel=parallel,
            shardings=shardings,
        )
        self._inference = inference_program(infer_func, programs, session, precision)
        self._set_up(declared, session, DatasetEvaluator(session), steps_per_dispatch)
        sources = [source for source in (param_path, params) if source is not None]
        self._start_from(sources, strict, rename, skip, names)
        compare(group(), session, programs, seed=seed, precision=precision)
        self._keep_checkpoints(checkpoint_config)

    def _set_up(
        self,
        declared: Sequence[TrainingProgram],
        session: Session,
        evaluator: DatasetEvaluator,
        steps_per_dispatch: int = 1,
    ) -> None:
        """Set the attributes of this Trainer that depend on its session and programs."""
        programs = list(session.programs.values())
        self.session = session
        self.programs = dict(session.programs)
        if len(programs) == 1:
            self.program = programs[0]
        self._inputs = program_inputs_of(declared, programs, session)
        self._steps_per_dispatch = checked_steps(steps_per_dispatch, self._inputs, session)
        self._evaluator = evaluator
        self._signals = Signals()
        self._stopping = False
        self._pausing = False
        self._training = False

    def _keep_checkpoints(self, config: CheckpointConfig | None, validation: type[Validation] = Validation) -> None:
        """Open the folder of checkpoints if `config` is not None; create the object that runs tests in training."""
        programs = list(self.programs.values())
        self._checkpoints = None if config is None else Checkpoints(config, self.session, programs)
        self._calls = Calls(self._checkpoints)
        self._validation = validation(self, self._checkpoints)

    @property
    def history(self) -> History:
        """The measurements of the last call of `train` so far, also of an interrupted call."""
        return self._validation.history

    @fitting("trainer.train")
    def train(
        self,
        reader: ReadersLike = None,
        num_epochs: int = 1,
        event_handler: EventHandler | None = None,
        feed_order: FeedOrder = None,
        handlers: Handlers = (),
        progress: bool | None = None,
        resume: bool | None = None,
        *,
        test_reader: ReaderLike | Mapping[str, ReaderLike] | None = None,
        test_every: Interval = "epoch",
        metrics: Metrics | None = None,
        restore_best: RestoreBest = False,
    ) -> History:
        """Train for `num_epochs` passes over a reader. Another call continues from the current parameters.

        Ctrl-C and `pause` take effect between two steps. The next call with the same reader continues at the next
        minibatch; its `num_epochs` includes the epochs that are done.

        With a `checkpoint_config`, every next call continues, and so does the script when it is run again. Each call
        of `train` then corresponds to one call of the first run, and trains only the remaining steps. SIGTERM acts like
        Ctrl-C; the exit status is 143, or 130 after Ctrl-C. Continued and skipped calls are logged.

        Args:
          reader: minibatches: a callable that returns an iterable of minibatches, or an iterable. A minibatch is a list
            of rows, a tuple of columns, or a dict of columns. With several programs, each step reads one minibatch;
            programs without a reader share this one, or a dict sets one for each: `{"a": reader_a, "b": reader_b}`.
          num_epochs: the number of passes over the reader, including passes before an interruption; at least 0.
          event_handler: a function that is called with every event, see `fluid.trainer.events`.
          feed_order: the feed of each field of a row: a list of names, or a dict of name to position; None for the
            order in which the program declares its data.
          handlers: one Handler, or several, the outermost first; functions of one event are accepted too.
          progress: True shows a progress bar, False does not, None shows it on a terminal and in a notebook.
          resume: False begins with epoch 0 from the current parameters, and ignores an interrupted or saved training.
            True continues with this reader, and raises an error if there is nothing to continue. None continues an
            interrupted or saved training if there is one.
          test_reader: test data for tests during training, as by `fluid.handlers.TestEvery`; with several programs, a
            dict by program name.
          test_every: the interval of the tests: a number of steps, or "epoch", "2 epochs" ...
          metrics: metrics for the tests during training, as in `test`.
          restore_best: True restores the parameters with the best test loss after training. A name, such as
            "test_accuracy", selects another value; a pair adds the direction if the name does not show it:
            `("test_score", "max")`.

        Returns:
          The History: for each epoch the scalars of the program, and the measured values.

        Raises:
          ArgumentError: there is nothing to resume, or a call that was finished before a checkpoint had another
            `num_epochs`.
          ReaderError: the reader has no minibatches, or fewer than were trained on before an interruption.
          FeedError: data does not match the feeds; the message names field, sample and batch.
          CheckpointError: another trainer uses the folder, or the folder does not exist any more; or the last save has
            failed: the parameters are trained, and an identical call of `train` saves them.
          Exception: any exception of the reader or of a handler, unchanged. After any error, the parameters are the
            result of the last completed step.
        """
        readers = readers_of(self._inputs, reader, num_epochs)
        num_epochs = whole_number("train", "num_epochs", num_epochs, least=0)
        if self._training:
            raise errors.ArgumentError(
                "train() was called by a handler of train(); call trainer.stop() and train again"
            )
        notified = [*listed(handlers), *([] if event_handler is None else [event_handler])]
        if not any(isinstance(handler, ProgressBar) for handler in notified):
            notified.insert(0, ProgressBar(show=progress if group().is_first else False))
        tests = Tests(test_reader, test_every, metrics, feed_order)
        dispatcher = Dispatcher(self._validation.around(notified, tests, restore_best), self)
        with contextlib.ExitStack() as shown:
            for bar in (handler for handler in notified if isinstance(handler, ProgressBar)):
                shown.enter_context(bar.listening())
            self._call(readers, num_epochs, feed_order, dispatcher, resume)
        return self.history

    def _call(
        self,
        readers: Readers,
        num_epochs: int,
        feed_order: FeedOrder,
        dispatcher: Dispatcher,
        resume: bool | None,
    ) -> None:
        """Run the training loop of `train`, or continue it after an interruption; `train` has checked the arguments."""
        source = source_of(self._inputs, readers, self._plan, int(self.session.scope.step))
        position, checkpoints = self._calls.begin(readers, source, num_epochs, resume)
        self._freeze_as_before(position)
        programs = loop.trained_programs(self._inputs, self.session, dispatcher)
        buckets = [program.step.buckets for program in programs]
        position.begin(pipeline_of(self._inputs, source, feed_order, buckets), dispatcher)
        signals = Signals(terminate=self._checkpoints is not None, together=group().size > 1)
        requested = lambda: (self._stopping, self._pausing)  # noqa: E731
        agreement = Agreement(group(), signals, position, requested, self.stop, self.pause)
        run = loop.Training(
            programs=programs,
            progress=position,
            handlers=dispatcher,
            stopping=lambda: self._stopping,
            pausing=lambda: self._pausing,
            losses=Losses(dispatcher.waits),
            agreement=agreement,
            checkpoints=checkpoints,
            signals=signals,
            steps_per_dispatch=self._steps_per_dispatch,
            epoch_metrics=self._validation.keeper.epoch_metrics,
        )
        self._train(run, num_epochs, readers)
        if not self._stopping:
            warn_of_idle(self._inputs, source)

    def _train(self, run: loop.Training, num_epochs: int, readers: Readers) -> None:
        self._training = True
        self._stopping = False
        self._pausing = False
        self._signals = run.signals
        try:
            with self.session.engine.guard.watching(), run.signals:
                finite = loop.train(run, num_epochs)
        except (KeyboardInterrupt, SystemExit):
            self._calls.leave_open(readers, "interrupted")
            raise
        finally:
            self._training = False
        if self._pausing:
            self._calls.leave_open(readers, "paused")
        else:
            if self._checkpoints is not None:
                self._checkpoints.check_saved()
            self._calls.end(run.progress, num_epochs)
            if finite:
                self._warn_of_spoilt()

    def _warn_of_spoilt(self) -> None:
        """Warn of parameters and other arrays that are non-finite, although every loss of the training was finite."""
        scope = self.session.scope
        if names := became_non_finite(scope.specs, scope.arrays, self.session.engine.members):
            warn_once(
                self,
                "not finite",
                lambda: (
                    f"{holding(names)} after this training, "
                    f"although every loss was finite. handlers=[fluid.handlers.TerminateOnNaN(report=True)] ends it at "
                    f"the step that made the first one, and says which layer, line and rows it came from. A gradient "
                    f"is NaN also through the branch of layers.where that is not taken: "
                    f"layers.sqrt(layers.where(z > 0, z, 1.0)) has one for every z"
                ),
            )

    @fitting("trainer.test")
    def test(
        self,
        reader: ReaderLike | None = None,
        feed_order: FeedOrder = None,
        metrics: Metrics | None = None,
        program: str | ProgramFunction | None = None,
        *,
        fetch: Fetch | None = None,
        feed: Mapping[str, Any] | None = None,
    ) -> Results:
        """Evaluate a program over one pass of a reader, in test mode.

        The result does not depend on the batch size. Means over minibatches are weighted by the number of examples (or
        valid time steps). Sums, minima and maxima are over all minibatches, `layers.auc` is over all predictions, and
        rows are concatenated in order. `layers.metric` declares the rule for other values; a FluidWarning reports
        values without a rule.

        Args:
          reader: as in `train`.
          feed_order: as in `train`.
          metrics: metrics of `fluid.metrics` by name, with their inputs: `{"auc": Auc().of(preds=..., labels=...)}`.
          program: the name or the function of the program; optional if there is one program.
          fetch: names of values and globs, to return instead of the outputs; each value combines like an output.
          feed: values that are added to every minibatch, as in `predict`.

        Returns:
          Results: one NumPy value for each output of the program, then one for each metric. The results have names if
          the program returns a dict, or with metrics; outputs without names are then `loss`, `output_1` and so on.

        Raises:
          ReaderError: the reader has no minibatches.
          FeedError: data does not match the feeds.
          UnknownNameError: a metric reads a value that the program does not have.
          ArgumentError: a metric has the name of an output.
        """
        reader = check_data("test", self._input(program, "test").reads, reader, feed_order)
        return self._evaluate(reader, feed_order, metrics or {}, program, fetch=fetch, feed=feed)

    def _evaluate(
        self,
        reader: ReaderLike,
        order: FeedOrder,
        metrics: Metrics,
        program: str | ProgramFunction | None = None,
        rows: bool = True,
        **looked_at: Any,
    ) -> Results:
        check_reader("test", reader, self._input(program, "test").program.table)
        # A handler may run a long test: then Ctrl-C ends the test between two minibatches.
        signals = self._signals if self._training else None
        return self._evaluator.test(self._input(program, "test"), reader, order, metrics, rows, signals, **looked_at)

    @fitting("trainer.check")
    def check(self, reader: ReadersLike = None, feed_order: FeedOrder = None) -> Check:
        """Run one minibatch through train, test, save and export, and report what works and what fails.

        Afterwards the Trainer is unchanged, bit for bit: parameters, optimizer state, counters, random numbers, history
        and checkpoints. Files are written to a temporary folder. A later training uses the step that was compiled.

        - "read" converts the first minibatch of the reader to a feed.
        - "train" runs a training step, and counts the parameters that it changes; it fails for a loss that is not
          finite.
        - "test" runs `test` on the minibatch.
        - "save" writes and reads the parameters, and the whole state.
        - "export" runs `save_inference_model` for all its platforms, and runs the exported model on this machine.

        Args:
          reader: as in `train`. The position of a reader of fluid is restored; an iterator that can be read only once
            loses a minibatch.
          feed_order: as in `train`.

        Returns:
          A Check, which prints as a table: `check.ok`, `check["train"].error`.

        Raises:
          ArgumentError: training is running, or there are several processes.
          ArgumentTypeError: the program has feeds and no reader, or `reader` is not a reader.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     guess = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="guess")
          ...     y = fluid.layers.data("y", shape=[1])
          ...     return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(guess, y)), "guess": guess}
          >>> reader = fluid.reader.arrays({"x": np.ones((4, 2)), "y": np.ones((4, 1))}, batch_size=4)
          >>> fluid.Trainer(program, fluid.optimizer.SGD(0.1)).check(reader).ok
          True
        """
        if self._training or group().size > 1:
            raise errors.ArgumentError(
                f"check() was called {'while training runs' if self._training else 'in several processes'}, expected "
                f"before the training, in one process: trainer.check(reader), then trainer.train(reader)"
            )
        readers = readers_of(self._inputs, reader)

        def export(path: str, program: str) -> object:
            return self._export(path, None, program if self._inference is None else None)

        run = DryRun(self.session, copy.copy(self._evaluator), export)
        return run.run(self._inputs, readers, feed_order)

    def pause(self) -> None:
        """Pause training after the current step; the next `train` with the same reader continues after that step.

        The pass over the reader stays open, with the minibatches that were read ahead.
        """
        if self._training:
            self._pausing = True
        self._stopping = True

    def stop(self) -> None:
        """End training after the current step. `train` may be called again.

        With a `checkpoint_config`, the script continues after this step when it is run again.
        """
        self._stopping = True

    def _input(self, program: str | ProgramFunction | None, method: str) -> ProgramInput:
        """Return the ProgramInput for the name or function of a program; None selects the only program.

        Error messages name the calling method, `method`.
        """
        return program_input_called(program, self._inputs, method)


def train(
    program_func: ProgramFunction | ProgramsLike,
    reader: ReadersLike = None,
    num_epochs: int = 1,
    optimizer: OptimizerLike | None = None,
    event_handler: EventHandler | None = None,
    **options: Any,
) -> Trainer:
    """Train a program function, or several programs, in one call.

    Args:
      program_func: as for Trainer.
      reader: as for `Trainer.train`.
      num_epochs: as for `Trainer.train`.
      optimizer: as for Trainer; Adam with its defaults if the program does not call `minimize`.
      event_handler: as for `Trainer.train`.
      options: further arguments of `Trainer.train`, such as `handlers` and `test_reader`, and of Trainer.

    Returns:
      The Trainer, to test, save or continue training.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x = fluid.layers.data("x", shape=[2])
      ...     return fluid.layers.mean(fluid.layers.fc(x, size=1))
      >>> reader = fluid.reader.arrays((np.ones((8, 2), "float32"),), batch_size=4)
      >>> fluid.train(program, reader, num_epochs=1, optimizer=fluid.optimizer.SGD(0.1)).program.name
      'program'
    """
    call = {name: options.pop(name) for name in inspect.signature(Trainer.train).parameters if name in options}
    given = optimizer is not None or "optimizer_func" in options
    if not given and callable(program_func):
        program_func = minimizing(program_func, optimizers.Adam(), is_default=True)
    trainer = Trainer(program_func, optimizer, **options)
    trainer.train(reader, num_epochs, event_handler, **call)
    return trainer
