"""Learning rate finder: the function `find_learning_rate`, which suggests a learning rate before training."""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from fluid import errors
from fluid._util.paths import PathLike, local_path
from fluid.core import TRAIN, whole_number
from fluid.optimizer.base import OptimizerLike
from fluid.reader.adapters import minibatches
from fluid.reader.base import ReaderLike
from fluid.reader.converter import Converter
from fluid.reader.feeder import FeedOrder
from fluid.reader.pipeline import InputPipeline
from fluid.runtime import Request
from fluid.runtime.compiled_step import bind
from fluid.trainer import Trainer
from fluid.trainer.dry_run import unchanged

# `_KEPT`: the decay of the moving mean of losses. `find_learning_rate` ends early if this mean grows too much.
_KEPT = 0.9


@dataclass(frozen=True, eq=False)
class RateSweep:
    """The learning rates and losses that `find_learning_rate` returns.

    Attributes:
      rates: the learning rates of the completed steps, ascending, float64 `[steps]`.
      losses: the losses of the completed steps, each computed before the update of its step, float64 `[steps]`; the
        last loss may be infinite or NaN.
      suggestion: the learning rate at which the smoothed loss falls fastest; None if the smoothed loss never falls.

    Example:
      >>> import numpy as np
      >>> rates = np.geomspace(1e-4, 1.0, 41)
      >>> sweep = RateSweep(rates, 1 / (1 + (rates / 0.01) ** 2) + rates**2)
      >>> round(sweep.suggestion, 3)
      0.01
    """

    rates: np.ndarray
    losses: np.ndarray

    @property
    def suggestion(self) -> float | None:
        """The learning rate at the steepest fall of the smoothed loss; None if the smoothed loss never falls.

        The slope is computed with respect to the logarithm of the learning rate.
        """
        smoothed = self.smoothed
        end = int(np.argmin(smoothed)) + 1 if len(smoothed) else 0
        if end < 2:
            return None
        slopes = np.gradient(smoothed[:end], np.log(self.rates[:end]))
        steepest = int(np.argmin(slopes))
        return float(self.rates[steepest]) if slopes[steepest] < 0 else None

    @property
    def smoothed(self) -> np.ndarray:
        """The smoothed losses, `[n]` for n finite losses: the mean of the finite losses in a window around each loss.

        A window contains about a tenth of all steps.
        """
        finite = self.losses[np.isfinite(self.losses)]
        width = len(self.losses) // 20
        return np.array([finite[max(i - width, 0) : i + width + 1].mean() for i in range(len(finite))])

    def plot(self, path: PathLike | None = None) -> Any:
        """Plot the losses over the learning rates, with a vertical line at the suggested learning rate.

        Raises:
          ArgumentError: the package matplotlib is not installed.
        """
        try:
            from matplotlib.figure import Figure  # `pyplot` is avoided: it may open a window
        except ImportError as error:
            raise errors.ArgumentError(
                "the plot of a sweep needs the package matplotlib, which is not installed: pip install matplotlib"
            ) from error
        figure = Figure(figsize=(6, 4), layout="constrained")
        axes = figure.add_subplot()
        finite = np.isfinite(self.losses)
        axes.plot(self.rates[finite], self.losses[finite], alpha=0.3)
        axes.plot(self.rates[finite], self.smoothed, linewidth=1.5)
        if self.suggestion is not None:
            axes.axvline(self.suggestion, linestyle="--", color="gray", label=f"{self.suggestion:.2g}")
            axes.legend(frameon=False)
        axes.set(xscale="log", xlabel="learning rate", ylabel="loss")
        axes.grid(alpha=0.3)
        if path is not None:
            figure.savefig(local_path(path))
        return figure


def find_learning_rate(
    target: Trainer | Callable[[], Any],
    reader: ReaderLike,
    optimizer: OptimizerLike | None = None,
    *,
    start: float = 1e-7,
    end: float = 10.0,
    steps: int = 100,
    diverged: float = 4.0,
    which: int = 0,
    feed_order: FeedOrder = None,
) -> RateSweep:
    """Train for a few steps with a growing learning rate, record the losses, and suggest a learning rate.

    The method is from Smith (2017), section 3.3, with learning rates that grow exponentially. At the end, the function
    restores all values: parameters, states, optimizer state, counters, random numbers, the learning rate, and the
    position of a reader of fluid. A later training reuses the compiled step.

    Args:
      target: a Trainer, which is restored at the end; or a program function.
      reader: as in `Trainer.train`; restarted if it ends before the last step. If it is an iterator that can be read
        only once, the minibatches that this function reads are lost.
      optimizer: the optimizer of a program function that does not call `minimize`, as for Trainer.
      start: the learning rate of the first step, above 0.
      end: the learning rate of the last step, above `start`.
      steps: the number of steps, at least 2.
      diverged: a factor; training ends early when the moving mean of the loss exceeds its minimum by this factor.
      which: if the program calls `minimize` several times, the index of the call whose learning rate grows. The other
        calls keep their learning rates.
      feed_order: as in `Trainer.train`.

    Returns:
      A RateSweep: `sweep.suggestion`, `sweep.rates`, `sweep.losses`, `sweep.plot()`.

    Raises:
      ArgumentError: not 0 < `start` < `end`, `diverged` is not above 1, `steps` is below 2, `which` is no index of a
        `minimize` call, or the Trainer has several programs.
      UnknownNameError: the optimizer is an optax transformation, whose learning rate is unknown.

    Example:
      >>> import fluid, numpy as np
      >>> def program():
      ...     x, y = fluid.layers.data("x", shape=[2]), fluid.layers.data("y", shape=[1])
      ...     return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))
      >>> x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
      >>> data = fluid.reader.arrays((x, x.sum(1, keepdims=True)), batch_size=16)
      >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
      >>> sweep = fluid.find_learning_rate(trainer, data)
      >>> trainer.learning_rate = sweep.suggestion
      >>> 0.001 < sweep.suggestion < 1
      True
    """
    whole_number("find_learning_rate", "steps", steps, least=2)
    if not 0 < start < end < math.inf or not diverged > 1:
        raise errors.ArgumentError(
            f"find_learning_rate(start={start!r}, end={end!r}, diverged={diverged!r}): expected rates that ascend from "
            f"above 0, and a factor above 1: start=1e-7, end=10.0, diverged=4.0"
        )
    trainer = target if isinstance(target, Trainer) else Trainer(target, optimizer)
    if len(trainer.programs) > 1:
        raise errors.ArgumentError(
            f"find_learning_rate trains one program, and the Trainer has {', '.join(trainer.programs)}; give it one of "
            f"their functions: fluid.find_learning_rate({next(iter(trainer.programs))}, reader, optimizer)"
        )
    session = trainer.session
    declared = session.engine.rates.given(trainer.program.name)
    whole_number("find_learning_rate", "which", which, least=0, most=len(declared) - 1)
    rates = np.geomspace(start, end, steps)
    losses: list[float] = []
    mean = 0.0
    best = math.inf
    with (
        unchanged(trainer.session, reader),
        contextlib.closing(_losses(trainer, reader, feed_order)) as losses_of_steps,
    ):
        for done, rate in enumerate(rates):
            session.set_learning_rates([*declared[:which], float(rate), *declared[which + 1 :]], trainer.program)
            losses.append(next(losses_of_steps))
            mean = _KEPT * mean + (1 - _KEPT) * losses[-1]
            corrected = mean / (1 - _KEPT ** (done + 1))
            if not corrected <= diverged * abs(best) and math.isfinite(best):
                break
            best = min(best, corrected)
    return RateSweep(rates[: len(losses)], np.array(losses))


def _losses(trainer: Trainer, reader: ReaderLike, feed_order: FeedOrder) -> Generator[float, None, None]:
    """Yield the losses of training steps, over infinitely many epochs; each `next` runs one step."""
    session = trainer.session
    program = trainer.program
    step = bind(session.engine, program, Request(TRAIN, None, tuple(program.feeds)))
    # Use new Buckets (padded sizes of sequences), so that this function does not change the padding of later training.
    convert = Converter(session.engine, program.feeds, feed_order, session.engine.buckets(program))
    pipeline = InputPipeline(minibatches(reader), [convert])
    for _ in itertools.count():
        with contextlib.closing(pipeline.start()) as batches:
            for batch in batches:
                yield float(np.reshape(step(batch.feed).values[0], ()))
