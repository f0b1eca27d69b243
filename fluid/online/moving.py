"""MovingTest: the outputs of a program on the rows of the stream that it never trains on, over the newest of them."""

import collections
import threading
from collections.abc import Callable, Mapping
from typing import Any

from fluid.remote.rows import Columns
from fluid.trainer import BeginStepEvent, BeginTrainEvent, Handler
from fluid.trainer.evaluation.values import number, scalar_outputs


class MovingTest(Handler):
    """Tests on the rows that a stream keeps for that, each with the parameters that all rows before it have made.

    Args:
      rows: gives the rows to test on before a minibatch, or None.
      window: over how many of the newest of them the test goes.

    Attributes:
      tested: how many rows were tested on.
    """

    def __init__(self, rows: Callable[[int], Columns | None], window: int):
        self.tested = 0
        self._rows = rows
        self._window = window
        self._tests: collections.deque[tuple[int, dict[str, float]]] = collections.deque()
        self._lock = threading.Lock()  # whoever asks for the status is in another thread

    def means(self) -> dict[str, float]:
        """The scalars that the program returns, over the newest rows; empty as long as none was tested on."""
        with self._lock:
            tests = list(self._tests)
        total = sum(rows for rows, _ in tests)
        names = tests[-1][1] if tests else {}
        return {name: sum(rows * values[name] for rows, values in tests) / total for name in names}

    def begin_train(self, event: BeginTrainEvent) -> None:
        """Begin anew, unless a training that was interrupted goes on."""
        if not event.resumed:
            self.restore({"tested": 0, "tests": []})

    def begin_step(self, event: BeginStepEvent) -> None:
        """Test on the rows that come before those of this step."""
        columns = self._rows(event.step)
        if columns is None:
            return
        results = self.trainer.test([columns])
        values = {name: number(results[place]) for name, place in scalar_outputs(self.trainer.program).items()}
        rows = len(next(iter(columns.values())))
        with self._lock:
            self.tested += rows
            self._tests.append((rows, values))
            # The oldest test goes when the others are as many rows as are wanted.
            while sum(n for n, _ in self._tests) - self._tests[0][0] >= self._window:
                self._tests.popleft()

    def state(self) -> dict[str, Any]:
        """The tests that the means are over, as JSON."""
        return {"tested": self.tested, "tests": list(self._tests)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from what `state` returned."""
        with self._lock:
            self.tested = state["tested"]
            self._tests = collections.deque((rows, values) for rows, values in state["tests"])
