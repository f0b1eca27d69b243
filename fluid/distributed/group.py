"""Group: the processes of one training, and methods with which they exchange values.

The values are short messages between two steps, such as a request to stop, or the end of the data. JAX's coordination
service sends them from host to host, without waiting for a device. Arrays are sent by XLA's collectives instead.
"""

import contextlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors

# Number of exchanges between the processes that form a block. The exchanged values of a block are deleted together,
# with one call of JAX's coordination service. The latest complete block is kept, because a slow process may still read
# it.
_ROUNDS = 64


class Group:
    """The processes of one training, as seen from one of them. `fluid.distributed.group()` returns the Group.

    All processes must call the methods that exchange values in the same order; each call waits for all processes.

    Args:
      timeout: seconds for which a process waits for the others.

    Attributes:
      index: index of this process, from 0.
      size: number of processes.
      timeout: seconds for which a process waits for the others.

    Example:
      >>> alone = Group()
      >>> alone.size, alone.is_first, alone.exchange("what I have read", 7)
      (1, True, [7])
    """

    def __init__(self, index: int = 0, size: int = 1, client: Any = None, timeout: float = 600, channel: str = "fluid"):
        self.index = index
        self.size = size
        self.timeout = timeout
        self._client = client
        self._channel = channel
        self._rounds = itertools.count()
        self._channels = itertools.count()

    def __repr__(self) -> str:
        return f"process {self.index} of {self.size}"

    @property
    def is_first(self) -> bool:
        """True in process 0, which writes files, logs and progress."""
        return self.index == 0

    def exchange(self, what: str, value: Any) -> list[Any]:
        """Send a value to all processes, and return the values of all processes.

        Raises:
          DistributedError: a process does not call this method in time, or calls it with another description.
        """
        if self.size == 1:
            return [value]
        number = next(self._rounds)
        here = f"{self._channel}/exchange/{number // _ROUNDS}/{number}/"
        self._client.key_value_set(f"{here}{self.index}", json.dumps([what, value]))
        try:
            self._client.wait_at_barrier(self._channel, int(1000 * self.timeout))
            found = self._client.key_value_dir_get(here)
        except jax.errors.JaxRuntimeError as error:
            raise errors.DistributedError(
                f"{self!r} could not exchange {what} with the others: {self._problem(str(error))}"
            ) from error
        answers = {int(key.rpartition("/")[2]): json.loads(text) for key, text in found}
        if self.is_first and number % _ROUNDS == 0 and number >= 2 * _ROUNDS:
            self._client.key_value_delete(f"{self._channel}/exchange/{number // _ROUNDS - 2}/")
        for other, (theirs, _) in sorted(answers.items()):
            if theirs != what:
                raise errors.DistributedError(
                    f"the processes are not at the same place of the program: {self!r} is about to exchange {what}, "
                    f"process {other} {theirs}. Whatever trains, tests or saves must be called in all processes, "
                    f"and not only where fluid.distributed.group().index == 0"
                )
        return [answers[i][1] for i in range(self.size)]

    def of_first(self, what: str, value: Any = None) -> Any:
        """Send the value of process 0 to all processes, and return it. The values of other processes are ignored.

        Raises:
          DistributedError: a process does not call this method in time, or calls it with another description.
        """
        return self.exchange(what, value if self.is_first else None)[0]

    def meet(self, what: str) -> None:
        """Wait until all processes have called this method.

        Raises:
          DistributedError: a process does not call this method in time, or calls it with another description.
        """
        self.exchange(what, None)

    def compare(self, what: str, described: Mapping[str, Any]) -> None:
        """Check that the values of all processes are equal.

        Raises:
          DistributedError: a value differs, or a process calls this method with another description.

        Example:
          >>> Group().compare("the seeds", {"seed": 3})
        """
        received = self.exchange(what, dict(described))
        for other, theirs in enumerate(received):
            for name in {**received[0], **theirs}:
                if theirs.get(name) != received[0].get(name):
                    raise errors.DistributedError(
                        f"the processes differ in {what}: {name} is {_short(received[0].get(name))} in process 0, and "
                        f"{_short(theirs.get(name))} in process {other}. Run the same program everywhere, with the "
                        f"same arguments, files and versions"
                    )

    def apart(self) -> "Group":
        """Return a Group of the same processes whose exchanges are independent of the exchanges of this Group.

        A thread of each process can use the new Group while the main threads use this one. All processes must call this
        method in the same order.

        Example:
          >>> Group().apart()
          process 0 of 1
        """
        channel = f"{self._channel}/{next(self._channels)}"
        return Group(self.index, self.size, self._client, self.timeout, channel)

    def announced(self, key: str) -> str | None:
        """Return the text that a process has published under a key by `announce`; None if no process has done so."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            return str(self._client.key_value_try_get(f"fluid/{key}"))
        return None

    def announce(self, key: str, text: str) -> None:
        """Publish a text to all processes under a key, without waiting; later texts under this key are ignored."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"fluid/{key}", text)

    def _problem(self, message: str) -> str:
        """Convert an error message of JAX's coordination service to a readable text about the cause."""
        _, timed_out, rest = message.partition("Some timed out task names:")
        if not timed_out:
            first = message.partition("\n")[0]
            return f"one of them has ended, or cannot be reached ({first})"
        tasks = [name.rpartition(":")[2] for name in rest.partition("RPC:")[0].split()]
        return (
            f"process {', '.join(tasks)} did not come within {self.timeout:g} seconds; "
            f"fluid.distributed.initialize(timeout=...) sets how long to wait"
        )


_ALONE = Group()
_joined: list[Group] = []


def group() -> Group:
    """Return the Group of this process: all processes after `initialize`, and before it only this process.

    Example:
      >>> group()
      process 0 of 1
    """
    return _joined[-1] if _joined else _ALONE


def join(found: Group) -> Group:
    """Register and return a Group (the processes of one training), which `group()` returns from now on."""
    _joined.append(found)
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_here(array: Any) -> bool:
    """Return True if this process can read all elements of an array without the other processes.

    Example:
      >>> is_here(np.ones(2)), is_here(jax.numpy.ones(2))
      (True, True)
    """
    return not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated


def whole(tree: Any) -> Any:
    """Return a tree in which full NumPy arrays replace the arrays that are divided among processes.

    If an array is divided, all processes must call this function, and they wait for each other.

    Example:
      >>> whole({"x": np.ones(2)})
      {'x': array([1., 1.])}
    """
    return jax.tree.map(lambda array: array if is_here(array) else _gathered(array), tree)


def _gathered(array: jax.Array) -> np.ndarray:
    from jax.experimental import multihost_utils  # imported on use, because only several processes need this module

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
