"""Events: what the training loop tells its handlers, in this order.

    BeginTrainEvent
      BeginEpochEvent            once per epoch
        BeginStepEvent           once per minibatch
        EndStepEvent
      EndEpochEvent
    EndTrainEvent                on every way out

After `trainer.stop()` the current step ends, then its epoch, then the training. An exception (in a handler, in the
reader, or Ctrl-C) leaves out the ends of the step and the epoch, which did not end; EndTrainEvent carries it, and it is
raised.
"""

from dataclasses import dataclass, field

from fluid.session import Results


@dataclass(frozen=True, slots=True)
class BeginTrainEvent:
    """Training begins.

    Attributes:
      num_epochs: how many epochs it is asked for.

    Example:
      >>> BeginTrainEvent(num_epochs=2)
      BeginTrainEvent(num_epochs=2)
    """

    num_epochs: int


@dataclass(frozen=True, slots=True)
class BeginEpochEvent:
    """One pass over the reader begins.

    Attributes:
      epoch: from 0, within this call of `train`.

    Example:
      >>> BeginEpochEvent(epoch=0)
      BeginEpochEvent(epoch=0)
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class BeginStepEvent:
    """A minibatch is ready and its step about to run.

    Attributes:
      epoch: from 0.
      step: from 0, within the epoch.

    Example:
      >>> BeginStepEvent(epoch=0, step=5).step
      5
    """

    epoch: int
    step: int


@dataclass(frozen=True, slots=True)
class EndStepEvent:
    """A step is on its way: its metrics can be read, and reading one waits for it.

    Attributes:
      epoch: from 0.
      step: from 0, within the epoch.
      metrics: the program's outputs for this minibatch, in order and by name.

    Example:
      >>> EndStepEvent(epoch=0, step=5, metrics=Results([0.5])).metrics[0]
      0.5
    """

    epoch: int
    step: int
    metrics: Results = field(repr=False)


@dataclass(frozen=True, slots=True)
class EndEpochEvent:
    """One pass over the reader ended.

    Attributes:
      epoch: from 0.
      steps: how many steps it had.
      completed: False when `stop()` ended it before the reader did.

    Example:
      >>> EndEpochEvent(epoch=0, steps=10).completed
      True
    """

    epoch: int
    steps: int
    completed: bool = True


@dataclass(frozen=True, slots=True)
class EndTrainEvent:
    """Training ended, in whatever way.

    Attributes:
      epochs: how many epochs were completed.
      stopped: whether `stop()` ended it.
      error: the exception that ended it and will be raised, or None.

    Example:
      >>> EndTrainEvent(epochs=10).error is None
      True
    """

    epochs: int
    stopped: bool = False
    error: BaseException | None = None


Event = BeginTrainEvent | BeginEpochEvent | BeginStepEvent | EndStepEvent | EndEpochEvent | EndTrainEvent
"""Any of the six."""
