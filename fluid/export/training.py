"""Export of a training step: one file holds the step as StableHLO, and the arrays that the training starts from."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid import errors
from fluid.checkpoint import PathLike
from fluid.core import TRAIN, FeedSpec, Program
from fluid.export import standalone
from fluid.export.load import platform_of
from fluid.export.save import checked_platforms, write_model
from fluid.export.signature import Output, leaves_of, level_of, value_of
from fluid.export.stablehlo import checked_sizes, export, sized_forms
from fluid.runtime import Request, Session
from fluid.runtime.state_io import slot_name
from fluid.runtime.step import Constants, Step, TrainingState
from fluid.runtime.update_rules import PREFIX

_ENTRY = "train"
_STEP, _ROOT = "@step", "@root"


class TrainingFunction:
    """A training step of a program as a pure function of arrays by name, which can be exported.

    Args:
      session: the session that holds the arrays, on one device.
      program: a program of the session.

    Attributes:
      arrays: the arrays that a step reads, by their names in `Session.state`; learning rates are
        `@learning_rate/PROGRAM/INDEX`, and -1 there stands for the declared schedule.
      feeds: declarations of the feeds by name.
      outputs: descriptions of the results of a step.
      states: names of the arrays that are not parameters.
      random: False, because the key is computed from the arrays `@root` and `@step`.
      table: the Table of the program, or None.

    Raises:
      ArgumentError: the program minimises no loss, or the session has several devices, or a population of members.
    """

    random = False

    def __init__(self, session: Session, program: Program):
        engine = session.engine
        if not program.minimizes:
            raise errors.ArgumentError(
                f"save_training_step: the program {program.name} minimises nothing, expected optimizer.minimize(loss) "
                f"in it; save_inference_model exports a program without updates"
            )
        if engine.layout.mesh is not None or engine.members is not None:
            raise errors.ArgumentError(
                f"save_training_step exports a step of one training on one device, found "
                f"{'a population' if engine.layout.mesh is None else f'{len(session.place)} devices'}; export the step "
                f"of a Trainer without parallel=: fluid.Trainer(program, optimizer, params=trainer.params)"
            )
        request = Request(TRAIN, None, tuple(program.feeds))
        rules = engine.rules[program.name]
        self._step = Step(program, rules, request, engine.function, engine.freezing.names)
        self._program = program
        state, constants = engine.arguments(self._step)
        slots, self._slots = jax.tree_util.tree_flatten_with_path({program.name: state.slots})
        self._slot_names = [slot_name(path) for path, _ in slots]
        self._rates = [f"{PREFIX}{program.name}/{i}" for i in range(len(rules))]
        self.arrays: dict[str, Any] = {**state.arrays, **constants.arrays, _STEP: state.step}
        self.arrays |= dict(zip(self._slot_names, (value for _, value in slots), strict=True))
        self.arrays |= dict(zip(self._rates, constants.rates, strict=True))
        if constants.root is not None:
            self.arrays[_ROOT] = constants.root
        self.feeds: dict[str, FeedSpec] = dict(program.feeds)
        self.table = program.table
        self.states: Collection[str] = self.arrays.keys() - program.parameters.keys()
        self.outputs = self._described()

    def __call__(
        self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], key: Any
    ) -> tuple[dict[str, Any], list[Any]]:
        """Run a training step.

        Args:
          arrays: the values of the attribute `arrays`, by name.
          feeds: values by name, each an array or a tuple of padded data and lengths.
          key: unused; None.

        Returns:
          The arrays that the step has changed, by name; and the results.
        """
        del key
        slots = jax.tree.unflatten(self._slots, [arrays[n] for n in self._slot_names])[self._program.name]
        state = TrainingState({n: arrays[n] for n in self._step.carried}, slots, arrays[_STEP])
        rates = [arrays[n] for n in self._rates]
        constants = Constants({n: arrays[n] for n in self._step.kept}, arrays.get(_ROOT), rates)
        given = {name: value_of(leaves) for name, leaves in feeds.items()}
        after, found = self._step.train(state, constants, given, {})
        changed = dict(zip(self._slot_names, jax.tree.leaves(after.slots), strict=True))
        return {**after.arrays, **changed, _STEP: after.step}, [leaves_of(value) for value in found.fetched]

    def _described(self) -> tuple[Output, ...]:
        feeds = {name: leaves_of(value) for name, value in self._program.stand_ins().items()}
        _, results = jax.eval_shape(lambda arrays, feeds: self(arrays, feeds, None), self.arrays, feeds)
        names = self._program.output_names or [None] * len(results)
        return tuple(
            Output(name, None, declared.shape, declared.dtype, level_of(value_of(leaves)))
            for name, declared, leaves in zip(names, self._program.outputs, results, strict=True)
        )


def save_step(
    path: PathLike,
    session: Session,
    program: Program,
    *,
    platforms: Sequence[str] | None = None,
    batch_sizes: Sequence[int] | None = None,
    buckets: Any = None,
) -> None:
    """Export a training step with its arrays; see `Trainer.save_training_step`."""
    function = TrainingFunction(session, program)
    chosen = checked_platforms(platform_of(session.device) if platforms is None else platforms)
    sizes = None if batch_sizes is None else checked_sizes("batch_sizes", batch_sizes)
    exported = export(function, function.arrays, chosen, sized_forms(function.feeds, sizes, buckets))
    arrays = {name: np.asarray(array) for name, array in function.arrays.items()}
    write_model(path, standalone.STEP, {_ENTRY: function}, {_ENTRY: exported}, arrays, chosen)
