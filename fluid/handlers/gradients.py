"""A handler that announces how large gradients and updates are."""

import math

from fluid.core import fitting
from fluid.runtime import step_names
from fluid.trainer import EndStepEvent, Handler
from fluid.trainer.evaluation.values import Every, Interval, value_name

_GRADIENT = "grad_norm"
_RATE = "learning_rate"


@fitting("fluid.handlers.GradientMonitor")
class GradientMonitor(Handler):
    """Announces the sizes of gradients and updates, for CSVLogger, TensorBoard, LivePlot and the progress bar.

    `grad_norm_0` is the L2 norm of all gradients of the first `minimize`, before any clip; `update_ratio_0` the norm of
    its update divided by that of its parameters: much more than 1e-3 means a learning rate that is rather large, much
    less one that is small. With precision="float16" `loss_scale_0` joins them; there a norm that is infinite belongs
    to an update that was left out. Further calls of `minimize` have the numbers 1, 2 ...

    They are computed inside the training step, which has the gradients anyway. A Trainer with a `step=` of its own has
    no gradient norm, since such a step may compute several gradients.

    Args:
      every: a number of steps.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> reader = fluid.reader.arrays((np.zeros((8, 2), "float32"),), batch_size=4)
      >>> handlers = [fluid.handlers.CSVLogger("log.csv"), fluid.handlers.GradientMonitor()]
      >>> trainer = fluid.train(program, reader, num_epochs=2, handlers=handlers)
      >>> import pathlib
      >>> [row.split(",")[3] for row in pathlib.Path("log.csv").read_text().split()]
      ['grad_norm_0', '1', '1']
    """

    def __init__(self, every: Interval = 1):
        self._every = Every(every, "GradientMonitor")

    def measures(self) -> list[str]:
        """The names of the values, those of one kind together."""
        programs = self.trainer.programs
        return [value_name(programs, program, name) for program in programs for name in self._names(program)]

    def fetches(self) -> list[str]:
        """The same values: the training step computes them."""
        return list(dict.fromkeys(name for program in self.trainer.programs for name in self._names(program)))

    def steps_ahead(self) -> float:
        """Any number, unless a handler acts on the values."""
        return self._every.steps_left(self.done) if self._dispatcher.acting else math.inf

    def end_step(self, event: EndStepEvent) -> None:
        """Announce the values of this step, if they are due."""
        if self._every.at_step(self.done):
            programs = self.trainer.programs
            names = self._names(event.program)
            values = {value_name(programs, event.program, name): event.fetched[name] for name in names}
            self.announce(event.epoch, event.step, values)

    def _names(self, program: str) -> list[str]:
        """What the step of a program calls them."""
        names = [name for name in step_names(self.trainer.programs[program]) if not name.startswith(_RATE)]
        own = self.trainer.session.engine.function is not None
        return [name for name in names if not (own and name.startswith(_GRADIENT))]
