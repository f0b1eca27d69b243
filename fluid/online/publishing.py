"""Publishing: exported models as versions in a folder, from which a running server loads the newest version."""

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
    """A writer of versions: `FOLDER/120/model.fluid` is the model after 120 training steps.

    A version is written under another name and then renamed, so that readers find a whole version or none.

    Args:
      folder: the folder of the versions; created with the first version.
      options: options of `Trainer.save_inference_model`, such as `fetch`.

    Attributes:
      folder: the folder of the versions.
    """

    def __init__(self, folder: Any, options: Mapping[str, Any]):
        self.folder = local_path(folder)
        self._options = dict(options)

    @property
    def newest(self) -> int | None:
        """Number of the newest complete version in the folder, or None if there is none."""
        return max(version_numbers(self.folder), default=None) if self.folder.is_dir() else None

    def publish(self, trainer: Trainer, steps: int) -> None:
        """Write the model as a version; if this version exists already, do nothing.

        Args:
          trainer: the Trainer of the model.
          steps: number of training steps done, which becomes the number of the version.

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
        except errors.FluidError:  # first, because some FluidErrors are OSErrors too
            raise
        except OSError as error:
            raise errors.ArtifactError(f"cannot publish to {str(self.folder)!r}: {error.strerror}") from error

    def _write(self, trainer: Trainer, steps: int) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.iterdir():  # remove the unfinished versions of killed processes
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
      rows: called with the number of a minibatch; returns the test rows in its span, or None.
      window: number of the newest test rows over which the means are taken.

    Attributes:
      tested: number of rows tested on so far.
    """

    def __init__(self, rows: Callable[[int], Columns | None], window: int):
        self.tested = 0
        self._rows = rows
        self._window = window
        self._tests: collections.deque[tuple[int, dict[str, float]]] = collections.deque()
        self._lock = threading.Lock()  # the training thread writes the tests, and others read their means

    def means(self) -> dict[str, float]:
        """Return the means of the scalar outputs over the newest test rows, by name; empty before the first test."""
        with self._lock:
            tests = list(self._tests)
        total = sum(rows for rows, _ in tests)
        names = tests[-1][1] if tests else {}
        return {name: sum(rows * values[name] for rows, values in tests) / total for name in names}

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Remove all tests, unless the training continues from a checkpoint."""
        if not event.resumed:
            self.restore({"tested": 0, "tests": []})

    def begin_step(self, event: BeginStepEvent) -> None:
        """Test on the test rows in the span of the minibatch of this step."""
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
            # The oldest test is removed when the newer tests have at least as many rows as the window.
            while sum(n for n, _ in self._tests) - self._tests[0][0] >= self._window:
                self._tests.popleft()

    def state(self) -> dict[str, Any]:
        """Return the tests that the means are computed from, as JSON for a checkpoint."""
        return {"tested": self.tested, "tests": list(self._tests)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the tests from a value that `state` returned."""
        with self._lock:
            self.tested = state["tested"]
            self._tests = collections.deque((rows, values) for rows, values in state["tests"])
