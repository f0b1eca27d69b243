"""MovingTest: the test of a program on a stream, with the means of its outputs over the newest test rows."""

import collections
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fluid.online.rows import Columns
from fluid.trainer import BeginStepEvent, BeginTrainEvent, Handler
from fluid.trainer.evaluation.values import number, scalar_outputs


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
