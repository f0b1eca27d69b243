"""MovingTest: means of the outputs of a program over the newest rows that it is tested on."""

import collections
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fluid.remote.rows import Columns
from fluid.trainer import BeginStepEvent, BeginTrainEvent, Handler
from fluid.trainer.evaluation.values import number, scalar_outputs


class MovingTest(Handler):
    """A handler that tests on the test rows of a stream, each before the rows after it are trained on.

    Args:
      rows: returns the test rows before a minibatch, or None.
      window: number of the newest test rows that the means are over.

    Attributes:
      tested: number of rows tested on.
    """

    def __init__(self, rows: Callable[[int], Columns | None], window: int):
        self.tested = 0
        self._rows = rows
        self._window = window
        self._tests: collections.deque[tuple[int, dict[str, float]]] = collections.deque()
        self._lock = threading.Lock()  # another thread reads the means

    def means(self) -> dict[str, float]:
        """Return the means of the scalar outputs by name; empty before the first test."""
        with self._lock:
            tests = list(self._tests)
        total = sum(rows for rows, _ in tests)
        names = tests[-1][1] if tests else {}
        return {name: sum(rows * values[name] for rows, values in tests) / total for name in names}

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Begin anew, unless a training continues from a checkpoint."""
        if not event.resumed:
            self.restore({"tested": 0, "tests": []})

    def begin_step(self, event: BeginStepEvent) -> None:
        """Test on the test rows before this step."""
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
            # The oldest test goes when the others have as many rows as the window.
            while sum(n for n, _ in self._tests) - self._tests[0][0] >= self._window:
                self._tests.popleft()

    def state(self) -> dict[str, Any]:
        """Return the tests that the means are over, as JSON."""
        return {"tested": self.tested, "tests": list(self._tests)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a value of `state`."""
        with self._lock:
            self.tested = state["tested"]
            self._tests = collections.deque((rows, values) for rows, values in state["tests"])
