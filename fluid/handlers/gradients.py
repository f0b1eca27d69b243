"""GradientMonitor: a handler that reports the norms of gradients and updates."""

import math

from fluid.core import fitting
from fluid.runtime import step_names
from fluid.trainer import EndStepEvent, Handler
from fluid.trainer.evaluation.values import Every, Interval, value_name

_GRADIENT = "grad_norm"
_RATE = "learning_rate"


@fitting("fluid.handlers.GradientMonitor")
class GradientMonitor(Handler):
    """A handler that reports the norms of gradients and updates to CSVLogger, TensorBoard, LivePlot and ProgressBar.

    `grad_norm_0` is the L2 norm of all gradients of the first `minimize`, before any clip. `update_ratio_0` is the norm
    of the update divided by the norm of the parameters: much more than 1e-3 means a rather large learning rate, much
    less a small one. precision="float16" adds `loss_scale_0`; an infinite norm then belongs to a skipped update.
    Further calls of `minimize` have the numbers 1, 2 ...

    The training step computes these values from its gradients. A Trainer with a custom `step=` reports no gradient
    norm, because a custom step may compute several gradients.

    Args:
      every: the number of steps between two reports, 1 by default.

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
        """Return the names of the reported values, program by program."""
        programs = self.trainer.programs
        return [value_name(programs, program, name) for program in programs for name in self._names(program)]

    def fetches(self) -> list[str]:
        """Return the names of the values to fetch from the training step."""
        return list(dict.fromkeys(name for program in self.trainer.programs for name in self._names(program)))

    def steps_ahead(self) -> float:
        """Return infinity; if a handler acts on the values, return the number of steps to the next report."""
        return self._every.steps_left(self.done) if self._dispatcher.acting else math.inf

    def end_step(self, event: EndStepEvent) -> None:
        """Report the values of this step, if they are due."""
        if self._every.at_step(self.done):
            programs = self.trainer.programs
            names = self._names(event.program)
            values = {value_name(programs, event.program, name): event.fetched[name] for name in names}
            self.announce(event.epoch, event.step, values)

    def _names(self, program: str) -> list[str]:
        """Return the names of the values in the step of a program."""
        names = [name for name in step_names(self.trainer.programs[program]) if not name.startswith(_RATE)]
        own = self.trainer.session.engine.function is not None
        return [name for name in names if not (own and name.startswith(_GRADIENT))]
