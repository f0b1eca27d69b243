"""HasParameters: methods of a Trainer that read, save, load, freeze and export parameters, or set learning rates."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fluid import errors
from fluid.checkpoint import LoadReport, Parameters, PathLike, Rename
from fluid.core import Program
from fluid.place import Place
from fluid.runtime import Session
from fluid.runtime.fetch import Fetch
from fluid.runtime.state_io import ReadOnlyArrays
from fluid.trainer.programs import ProgramFunction, ProgramInput

log = logging.getLogger("fluid")

LearningRate = float | tuple[float, ...]
"""The type of the learning rate of a program; a tuple if the program calls `minimize` several times."""

RateToSet = float | Sequence[float | None] | None
"""The type of a learning rate to set: one number, or one for each call of `minimize`.

None restores the learning rate of the optimizer.
"""


class HasParameters:
    """A base class of Trainer with methods that read, save, load, freeze and export parameters, or set learning rates.

    Attributes:
      session: the session of the Trainer.
      program: the program of the Trainer, if there is only one.
      programs: the programs of the Trainer by name.
    """

    session: Session
    program: Program
    programs: dict[str, Program]
    _input: Callable[..., ProgramInput]
    _inference: Program | None
    _reported: str | None = None  # the message of the last export; an equal message is not logged again

    @property
    def place(self) -> str | list[str]:
        """The device, such as "cpu:0"; with `parallel`, a list of devices. It can be set only before the first step.

        See `Session.place`.

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
        """Copies of the current parameters and states by name, for example for `fluid.Inferencer(params=...)`.

        The dict is read-only. `trainer.session.scope["fc_0.w_0"] = array` sets one parameter, `load_params` sets many.
        """
        return self.session.params()

    @property
    def learning_rate(self) -> LearningRate | dict[str, LearningRate]:
        """The learning rate of the next step; a tuple if the program calls `minimize` several times.

        Assigning a number replaces the learning rate or the schedule of the optimizer; assigning None restores it.
        Nothing is recompiled. With several programs, the value is a dict by program name. An assigned dict may name
        some of the programs; the others keep their learning rates.
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
                self.session.set_learning_rates(its, self._input(name, "learning_rate").program)
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
          path: the path of the file; for an existing directory, `params.fluid` in it. The ending ".safetensors" selects
            the format safetensors, which has no checksum: damaged numbers are read without an error.
          names: names and globs, such as `["backbone/*"]`; all by default.

        Raises:
          ArgumentError: `names` is empty.
          UnknownNameError: an entry of `names` matches no parameter or state.
          ParameterFileError: the file cannot be written.
        """
        self.session.save_params(path, names)

    def _start_from(
        self,
        sources: Sequence[Parameters],
        strict: bool = True,
        rename: Rename = None,
        skip: str | Sequence[str] = (),
        names: str | Sequence[str] | None = None,
    ) -> None:
        """Load the initial parameters of a Trainer from the one source in `sources`; load nothing if there is none.

        The other arguments are as for `load_params`.
        """
        if len(sources) > 1 or (not sources and (rename or skip or not strict or names is not None)):
            raise errors.ArgumentTypeError(
                "a Trainer starts from one source of parameters, and strict=, rename= and skip= say what it takes: "
                'fluid.Trainer(program, optimizer, param_path="old.params", skip=["head/*"]) or params=other.params'
            )
        for source in sources:
            self.load_params(source, strict, rename, skip, names)

    def load_params(
        self,
        source: Parameters,
        strict: bool = True,
        rename: Rename = None,
        skip: str | Sequence[str] = (),
        names: str | Sequence[str] | None = None,
    ) -> LoadReport:
        """Load parameters and moving statistics from a file or a dict of arrays. The optimizer state does not change.

        Args:
          source: a file of `save_params`, a file that ends in ".safetensors", or arrays by name.
          strict: False accepts arrays that the source lacks, which keep their values, and surplus arrays in the source;
            both are logged.
          rename: names in the source to names in this Trainer, with globs: `{"old/*": "new/*"}`.
          skip: names and globs of arrays that are not loaded, such as `["head/*"]`; their shapes may differ.
          names: names and globs of the arrays to load, such as `["backbone/*"]`; other arrays keep their values. None
            loads all.

        Returns:
          A LoadReport of the loaded, the unused and the missing arrays.

        Raises:
          ArgumentError: `names` is empty.
          ParameterFileError: the file does not exist, or is no parameter file.
          ParameterError: names, shapes or dtypes differ, or nothing would be loaded; then nothing is changed.
          UnknownNameError: a name in `skip` or `names` is neither in the source nor in this Trainer.

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
        return self.session.load_params(source, strict, rename, skip, names)

    def copy_params(self, names: Mapping[str, str], rate: float = 1.0) -> list[str]:
        """Copy parameters and states of one net to another net, or move the target towards the source by `rate`.

        With several steps per device call (`steps_per_dispatch`), a handler copies only after the last of them.

        Args:
          names: source names to target names, with globs: `{"online/*": "target/*"}`.
          rate: in `(0, 1]`; the new value is `old + rate * (source - old)`.

        Returns:
          The names of the arrays that were set.

        Raises:
          ArgumentError, UnknownNameError, ParameterError: as `Session.copy_params`; then nothing is changed.

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
        """The names of the frozen parameters and moving statistics."""
        return [name for name in self.session.scope.specs if name in self.session.engine.freezing.names]

    def freeze(self, patterns: str | Sequence[str]) -> list[str]:
        """Freeze parameters, and their moving statistics, from the next step on.

        The optimizer state of frozen parameters stays in memory for a later `unfreeze`. The step is recompiled once for
        each set of names. A handler may call this method during training. Checkpoints record the frozen names.

        Args:
          patterns: names and globs, such as `"backbone/*"` or `["emb.w_0", "encoder/*"]`. The moving statistics of a
            layer are frozen if a pattern matches them, or if all parameters of the layer are frozen; batch_norm then
            normalizes with its moving statistics.

        Returns:
          The names that are frozen now and were not frozen before.

        Raises:
          UnknownNameError: a pattern matches no name.
          ArgumentError: nothing would be left to train, or an optimizer cannot exclude parameters.

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
        """Unfreeze parameters that `freeze` has frozen. Parameters that the program itself freezes stay frozen.

        Args:
          patterns: names and globs; all frozen names by default.

        Returns:
          The names that are no longer frozen.

        Raises:
          UnknownNameError: a pattern matches no frozen name.
          ArgumentError: a pattern names statistics that are frozen with the parameters of their layer.
        """
        return self.session.unfreeze(patterns)

    def save_inference_model(
        self,
        path: PathLike,
        fetch: Fetch | None = None,
        program: str | ProgramFunction | None = None,
        **options: Any,
    ) -> None:
        """Export a program in test mode, with its parameters, to one file that runs without the program function.

        If the Trainer has an `infer_func`, its program is exported. Otherwise, without `fetch`, the export has the
        outputs of the trained program that do not depend on labels. Labels are feeds that only the loss needs. If a
        program returns only losses and metrics, the last value before them is exported, and the log says so.

        Args:
          path: the path of the file; for an existing directory, `model.fluid` in it.
          fetch: names of the values that the exported model returns, such as the prediction. Feeds and parameters on
            which these values do not depend, such as the label, are neither fed nor saved.
          program: the name or the function of the program; by default `infer_func`, or else the only trained program.
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
        results = self._export(path, fetch, program, **options)
        if results is not None:
            self._report(f"exported: {results}; fetch=[...] or Trainer(infer_func=) chooses others")

    def _export(
        self, path: PathLike, fetch: Fetch | None, program: str | ProgramFunction | None, **options: Any
    ) -> object | None:
        """Export a program; return the results to export if fluid has chosen them, and None if the user has.

        The user chooses the results by `fetch`, by the option `feed`, or by the `infer_func` of the Trainer.
        """
        from fluid import export  # imported only when needed, because few trainings export

        inference = self._inference
        if inference is not None and program in (None, inference.name, inference.function, inference):
            found = inference
        else:
            found = self._input(program, "save_inference_model").program
            if fetch is None and options.get("feed") is None:
                results = export.unlabelled(found)
                export.save(path, found, self.session.params(), fetch=results.fetch, **options)
                return results
        export.save(path, found, self.session.params(), fetch=fetch, **options)
        return None

    def save_training_step(self, path: PathLike, program: str | ProgramFunction | None = None, **options: Any) -> None:
        """Export a training step, with all arrays that it starts from, to one file that runs without fluid.

        The file holds StableHLO and the reader `standalone.py`, which needs jax and numpy. The update is
        a function of arrays by name: parameters, moving statistics, optimizer state, step counter, random key and
        learning rates, which may be set. A step computes the same bits as this Trainer if feeds have equal shapes.

        Args:
          path: the path of the file; for an existing directory, `model.fluid` in it.
          program: the name or the function of the program; optional if there is one program.
          options: `platforms=["cuda"]`, by default the platform of this Trainer. `batch_sizes=[64]` and
            `buckets=[16, 32]`: export for exactly these batch sizes and padded lengths of sequences. By default the
            file accepts all sizes, which is not possible for a program with embeddings.

        Raises:
          ArtifactError: the step cannot be exported, or the file cannot be written.
          ArgumentError: the Trainer has several devices, or several members (trainings at once).

        Example:
          >>> import fluid, numpy as np
          >>> from fluid.export import standalone  # a copy of which is in the file
          >>> def program():
          ...     x = fluid.layers.data("x", shape=[2])
          ...     return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(x, size=1)))
          >>> fluid.Trainer(program, fluid.optimizer.SGD(0.1)).save_training_step("line.step")
          >>> step = standalone.load("line.step")
          >>> list(step.arrays)
          ['fc_0.w_0', 'fc_0.b_0', '@step', '@learning_rate/program/0']
          >>> losses = [float(step({"x": np.ones((4, 2))})[0]) for _ in range(20)]
          >>> losses[-1] < 0.1 * losses[0]
          True
        """
        from fluid import export  # imported only when needed, because few trainings export

        export.save_step(path, self.session, self._input(program, "save_training_step").program, **options)

    def _report(self, exported: str) -> None:
        if exported != self._reported:
            log.warning(exported)
            self._reported = exported
