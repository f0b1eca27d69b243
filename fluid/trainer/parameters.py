"""What a Trainer does with its parameters between steps: read, save, load, freeze, export, and set their rate."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluid import errors
from fluid.core import Program
from fluid.place import Place
from fluid.runtime import Session
from fluid.runtime.fetch import Fetch
from fluid.runtime.read_only import ReadOnlyArrays
from fluid.storage import LoadReport, Parameters, PathLike, Rename
from fluid.trainer.programs import Member, ProgramFunction

log = logging.getLogger("fluid")

LearningRate = float | tuple[float, ...]
"""The learning rate of a program; of one that calls `minimize` several times, of each."""

RateToSet = float | Sequence[float | None] | None
"""A learning rate to set; None for the declared one."""


class HasParameters:
    """The parameters of a Trainer.

    Attributes:
      session: that of the Trainer.
      program: its program, if there is one.
      programs: its programs by name.
    """

    session: Session
    program: Program
    programs: dict[str, Program]
    _member: Callable[..., Member]
    _inference: Program | None
    _reported: str | None = None  # the last export that was logged

    @property
    def place(self) -> str | list[str]:
        """The device, such as "cpu:0"; a list with `parallel`. Can be set before the first step, see `Session.place`.

        Example:
          >>> import fluid
          >>> def program():
          ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
          >>> trainer.place = "cpu"
          >>> trainer.place
          'cpu:0'
        """
        return self.session.place

    @place.setter
    def place(self, place: Place) -> None:
        self.session.place = place

    @property
    def params(self) -> ReadOnlyArrays:
        """Parameters and states by name, as they are now: copies, for `fluid.Inferencer(params=trainer.params)`.

        The dict is read-only. `trainer.session.scope["fc_0.w_0"] = array` sets a parameter, `load_params` several.
        """
        return self.session.params()

    @property
    def learning_rate(self) -> LearningRate | dict[str, LearningRate]:
        """The learning rate of the next step; a tuple where the program calls `minimize` several times.

        Set, it takes the place of the declared number or schedule; None puts that back. Nothing is compiled anew. Of
        several programs it is a dict by their names, and so is what is set, for those that it names.
        """
        found: dict[str, LearningRate] = {}
        for name in self.programs:
            rates = self.session.learning_rates(name)
            found[name] = rates[0] if len(rates) == 1 else rates
        return found if len(found) > 1 else next(iter(found.values()))

    @learning_rate.setter
    def learning_rate(self, rate: RateToSet | Mapping[str, RateToSet]) -> None:
        if isinstance(rate, Mapping):
            for name, its in rate.items():
                self.session.set_learning_rates(its, self._member(name, "learning_rate").program)
        elif len(self.programs) > 1:
            first = next(iter(self.programs))
            raise errors.ArgumentError(
                f"learning_rate = {rate!r}: there are several programs; say whose it is: "
                f"trainer.learning_rate = {{{first!r}: {rate!r}}}"
            )
        else:
            self.session.set_learning_rates(rate, self.program)

    def save_params(self, path: PathLike, names: str | Sequence[str] | None = None) -> None:
        """Write parameters and moving statistics to one file, atomically.

        Args:
          path: of the file; in a directory that exists, `params.fluid` is written. A file that ends in ".safetensors"
            has that format, which has no checksum: numbers that the disk changes are read without an error.
          names: names and globs, such as `["backbone/*"]`; all by default.

        Raises:
          ArgumentError: `names` is empty.
          UnknownNameError: something in it is no name here.
          ParameterFileError: the file cannot be written.
        """
        self.session.save_params(path, names)

    def _start_from(
        self,
        sources: Sequence[Parameters],
        strict: bool = True,
        rename: Rename = None,
        skip: str | Sequence[str] = (),
    ) -> None:
        """Load what a Trainer is given to start from; arguments as for `load_params`.

        Raises:
          ArgumentTypeError: there are several sources; or none, and it is said what shall be taken.
        """
        if len(sources) > 1 or (not sources and (rename or skip or not strict)):
            raise errors.ArgumentTypeError(
                "a Trainer starts from one source of parameters, and strict=, rename= and skip= say what it takes: "
                'fluid.Trainer(program, optimizer, param_path="old.params", skip=["head/*"]) or params=other.params'
            )
        for source in sources:
            self.load_params(source, strict, rename, skip)

    def load_params(
        self, source: Parameters, strict: bool = True, rename: Rename = None, skip: str | Sequence[str] = ()
    ) -> LoadReport:
        """Set parameters and moving statistics from a file, or from arrays by name. Optimizer slots stay as they are.

        Args:
          source: a file of `save_params`, one that ends in ".safetensors", or arrays by name.
          strict: False accepts what is missing there, which keeps its value, and what there is more; both are logged.
          rename: names there to names here, with globs: `{"old/*": "new/*"}`.
          skip: names and globs of what is not taken, whatever its shape is: `["head/*"]`.

        Returns:
          A LoadReport: what was taken, what was left, and what is missing.

        Raises:
          ParameterFileError: there is no such file, or it holds something else.
          ParameterError: names, shapes, dtypes or origins differ, or nothing would be taken; nothing is changed then.
          UnknownNameError: something to skip is neither there nor here.

        Example:
          >>> import fluid, numpy as np
          >>> def program():
          ...     hidden = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=3, name="body")
          ...     return fluid.layers.mean(fluid.layers.fc(hidden, size=1, name="head"))
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
          >>> trainer.load_params({"old.w_0": np.ones((2, 3), "float32")}, strict=False, rename={"old.*": "body.*"})
          1 array taken from the given parameters
            3 arrays keep their values: body.b_0 float32[3], head.w_0 float32[3, 1], head.b_0 float32[1]
        """
        return self.session.load_params(source, strict, rename, skip)

    def copy_params(self, names: Mapping[str, str], rate: float = 1.0) -> list[str]:
        """Copy parameters and states of one net to another, or move the other a part of the way; see `Session`.

        With several steps in one call, see `steps_per_dispatch`, a handler runs after the last of them.

        Args:
          names: from names to names, with globs: `{"online/*": "target/*"}`.
          rate: in `(0, 1]`; the new value is `old + rate * (source - old)`.

        Returns:
          The names of the arrays that were set.

        Raises:
          ArgumentError, UnknownNameError, ParameterError: see `Session.copy_params`; nothing is changed then.

        Example:
          >>> import fluid
          >>> q = lambda x: fluid.layers.fc(x, size=1)
          >>> online, target = fluid.shared(q, name="online"), fluid.shared(q, name="target")
          >>> def program():
          ...     x = fluid.layers.data("x", shape=[3])
          ...     with fluid.frozen():
          ...         goal = target(x)
          ...     return fluid.layers.mean(fluid.layers.square(online(x) - goal))
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
          >>> trainer.copy_params({"online/*": "target/*"}, rate=0.01)
          ['target/fc_0.w_0', 'target/fc_0.b_0']
        """
        return self.session.copy_params(names, rate)

    @property
    def frozen(self) -> list[str]:
        """The names of the parameters and moving statistics that `freeze` keeps as they are."""
        return [name for name in self.session.scope.specs if name in self.session.engine.freezing.names]

    def freeze(self, patterns: str | Sequence[str]) -> list[str]:
        """Keep parameters, and moving statistics with them, as they are from the next step on.

        The Trainer stays, and so do the slots of the optimizer: those of what is frozen are there again when it is
        unfrozen. The step is compiled anew once for each set of names. A handler may call this while training goes on,
        and checkpoints record it.

        Args:
          patterns: names and globs, such as `"backbone/*"` or `["emb.w_0", "encoder/*"]`. A layer's moving statistics
            stand still when they are named, or when all parameters of the layer are frozen; batch_norm then normalises
            with them.

        Returns:
          The names that stand still now and did not before.

        Raises:
          UnknownNameError: a pattern matches no name.
          ArgumentError: nothing would be left to train, or an optimizer cannot leave parameters out.

        Example:
          >>> import fluid
          >>> def program():
          ...     hidden = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=3, name="body")
          ...     return fluid.layers.mean(fluid.layers.fc(hidden, size=1, name="head"))
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
          >>> trainer.freeze("body.*")
          ['body.w_0', 'body.b_0']
          >>> trainer.unfreeze("body.b_*")
          ['body.b_0']
          >>> trainer.frozen
          ['body.w_0']
        """
        return self.session.freeze(patterns)

    def unfreeze(self, patterns: str | Sequence[str] | None = None) -> list[str]:
        """Train again what `freeze` has frozen. What the program itself freezes stays so.

        Args:
          patterns: names and globs; all that is frozen by default.

        Returns:
          The names that do not stand still any more.

        Raises:
          UnknownNameError: a pattern matches nothing that is frozen.
          ArgumentError: it names statistics that stand still with the parameters of their layer.
        """
        return self.session.unfreeze(patterns)

    def save_inference_model(
        self,
        path: PathLike,
        fetch: Fetch | None = None,
        program: str | ProgramFunction | None = None,
        **options: Any,
    ) -> None:
        """Write a program, as it is in test mode, and its parameters to one file that runs without its function.

        With `infer_func`, that program is exported. Else, without `fetch`, the outputs of the trained program that do
        not depend on labels are exported. Labels are feeds that the loss needs and the net before the loss does not
        need. A program that returns only losses and metrics exports the last value before them. The log says so.

        Args:
          path: of the file; in a directory that exists, `model.fluid` is written.
          fetch: names of what it returns, such as the prediction. What these do not depend on, such as the label, is
            neither fed nor saved.
          program: its name or its function; by default `infer_func`, or the trained program where there is one.
          options: as for `fluid.io.save_inference_model`. With `feed`, all outputs are exported by default.

        Raises:
          ArtifactError: the program cannot be exported, or the file cannot be written.
          ArgumentError: without `fetch`, every output depends on labels.

        Example:
          >>> import fluid
          >>> def net():
          ...     return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="guess")
          >>> def program():
          ...     y = fluid.layers.data("y", shape=[1])
          ...     return fluid.layers.mean(fluid.layers.square_error_cost(net(), y))
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
          >>> trainer.save_inference_model("line.fluid")
          >>> fluid.Inferencer(param_path="line.fluid").infer({"x": [[1, 2]]})["guess"].shape
          (1, 1)
          >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), infer_func=net)
          >>> trainer.save_inference_model("line.fluid")
          >>> fluid.Inferencer(param_path="line.fluid").infer({"x": [[1, 2]]})[0].shape
          (1, 1)
        """
        from fluid import artifact  # not everybody needs it

        inference = self._inference
        if inference is not None and program in (None, inference.name, inference.function, inference):
            found = inference
        else:
            found = self._member(program, "save_inference_model").program
            if fetch is None and options.get("feed") is None:
                results = artifact.unlabelled(found)
                artifact.save(path, found, self.session.params(), fetch=results.fetch, **options)
                self._report(f"exported: {results}; fetch=[...] or Trainer(infer_func=) chooses others")
                return
        artifact.save(path, found, self.session.params(), fetch=fetch, **options)

    def _report(self, exported: str) -> None:
        """Log what was exported, unless the export before was equal, as of an OnlineTrainer that publishes."""
        if exported != self._reported:
            log.warning(exported)
            self._reported = exported
