"""Publishing: write exported models as versions to a folder, from which a running server loads the newest one."""

import collections
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fluid import errors
from fluid._util.paths import local_path
from fluid.checkpoint.atomic import sync
from fluid.online.rows import Columns
from fluid.serving.models import FILE, NUMBER, version_numbers
from fluid.trainer import BeginStepEvent, BeginTrainEvent, Handler, Trainer
from fluid.trainer.evaluation.means import number, scalar_outputs

_TEMPORARY = re.compile(rf"\.{NUMBER.pattern}\.writing", re.ASCII)


class Publisher:
    """A writer of model versions to a folder: `FOLDER/120/model.fluid` is the model after 120 training steps.

    A version is written under a temporary name and then renamed, so that servers never find an incomplete version.

    Attributes:
      folder: the folder of the versions.
    """

    def __init__(self, folder: Any, options: Mapping[str, Any]):
        self.folder = local_path(folder)
        self._options = dict(options)

    @property
    def newest(self) -> int | None:
        """The number of the newest complete version in the folder, or None if there is no version."""
        return max(version_numbers(self.folder), default=None) if self.folder.is_dir() else None

    def publish(self, trainer: Trainer, steps: int) -> None:
        """Write the model of a Trainer as a new version; do nothing if this version exists already.

        Raises:
          OnlineError: nothing was trained yet, or the folder has a newer version.
          ArtifactError: the program cannot be exported, or the file cannot be written.
        """
        newest = self.newest or 0
        if steps == 0 or newest > steps:
            found = "nothing was trained yet" if steps == 0 else f"{str(self.folder)!r} has the version {newest}"
            raise errors.OnlineError(
                f"{found}, and versions count training steps, of which {steps} are done; servers take over newer ones "
                f"only. Train first, or publish to another folder"
            )
        if newest == steps:
            return
        try:
            self._write(trainer, steps)
        except errors.FluidError:  # FluidError must be caught before OSError, because some FluidErrors are OSErrors too
            raise
        except OSError as error:
            raise errors.ArtifactError(f"cannot publish to {str(self.folder)!r}: {error.strerror}") from error

    def _write(self, trainer: Trainer, steps: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.iterdir():  # delete incomplete model versions, which killed processes have left
            if _TEMPORARY.fullmatch(left.name):
                shutil.rmtree(left)
        temporary = self.folder / f".{steps}.writing"
        temporary.mkdir()
        try:
            trainer.save_inference_model(temporary / FILE, **self._options)
            sync(temporary)
            os.rename(temporary, self.folder / str(steps))
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(self.folder)


class MovingTest(Handler):
    """A handler that tests the program on each test row of a stream before it is trained on the rows that follow.

    Args:
      rows: a function that returns, for the index of a minibatch, the test rows to test on before the training on this
        minibatch; None if there are no such rows.

    Attributes:
      tested: the number of rows tested on so far.
    """

    def __init__(self, rows: Callable[[int], Columns | None], window: int):
        self.tested = 0
        self._rows = rows
        self._window = window
        self._tests: collections.deque[tuple[int, dict[str, float]]] = collections.deque()
        # a lock, because the training thread adds tests while other threads compute their means
        self._lock = threading.Lock()

    def means(self) -> dict[str, float]:
        """Return the means of the scalar outputs over the newest test rows, by name; empty before the first test."""
        with self._lock:
            tests = list(self._tests)
        total = sum(rows for rows, _ in tests)
        names = tests[-1][1] if tests else {}
        return {name: sum(rows * values[name] for rows, values in tests) / total for name in names}

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Discard all test results, unless the training continues from a checkpoint."""
        if not event.resumed:
            self.restore({"tested": 0, "tests": []})

    def begin_step(self, event: BeginStepEvent) -> None:
        """Test the program on the test rows that belong to the minibatch of this step."""
        columns = self._rows(event.step)
        if columns is None:
            return
        results = self.trainer.test([columns])
        positions = scalar_outputs(self.trainer.program)
        values = {name: number(results[position]) for name, position in positions.items()}
        rows = len(next(iter(columns.values())))
        with self._lock:
            self.tested += rows
            self._tests.append((rows, values))
            # Remove the oldest test while the newer tests together have at least `window` rows.
            while sum(n for n, _ in self._tests) - self._tests[0][0] >= self._window:
                self._tests.popleft()

    def state(self) -> dict[str, Any]:
        """Return the test results over which the means are computed, as JSON for a checkpoint."""
        return {"tested": self.tested, "tests": list(self._tests)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the test results from a value that `state` has returned."""
        with self._lock:
            self.tested = state["tested"]
            self._tests = collections.deque((rows, values) for rows, values in state["tests"])
