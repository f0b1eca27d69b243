"""Group: the processes that train together, and the values that they exchange.

The values are short messages between two steps: a request to stop, or the end of the data. They go from host to host
through the coordination service of JAX, and wait for no device. Arrays are moved by XLA's collectives instead.
"""

import contextlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from fluid import errors

# The values of old exchanges are deleted in blocks of this many exchanges, one call per block. The block before the
# current one is kept.
_ROUNDS = 64


class Group:
    """The processes that train together. `fluid.distributed.group()` returns the group of this process.

    All processes must call the methods that exchange values in the same order; each call waits for the others.

    Args:
      index: index of this process, from 0.
      size: number of processes.
      client: client of JAX's coordination service; None in a group of one.
      timeout: seconds for which a process waits for the others.
      channel: name under which values are exchanged; groups with different channels are independent.

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
        """Send a value to all processes, and return the values of all.

        Args:
          what: description of the value; equal in all processes.
          value: a JSON value.

        Returns:
          The values of all processes, in the order of their indices.

        Raises:
          DistributedError: a process does not arrive in time, or exchanges another value.
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
        """Return the value of process 0, and ignore other values. Arguments and errors as for `exchange`."""
        return self.exchange(what, value if self.is_first else None)[0]

    def meet(self, what: str) -> None:
        """Wait until all processes have called this method. Arguments and errors as for `exchange`."""
        self.exchange(what, None)

    def compare(self, what: str, described: Mapping[str, Any]) -> None:
        """Check that all processes work on equal values.

        Args:
          what: description of the values, for the message.
          described: JSON values by name; the message reports the first difference in this order.

        Raises:
          DistributedError: a value differs, or the processes compare different things.

        Example:
          >>> Group().compare("the seeds", {"seed": 3})
        """
        told = self.exchange(what, dict(described))
        for other, theirs in enumerate(told):
            for name in {**told[0], **theirs}:
                if theirs.get(name) != told[0].get(name):
                    raise errors.DistributedError(
                        f"the processes differ in {what}: {name} is {_short(told[0].get(name))} in process 0, and "
                        f"{_short(theirs.get(name))} in process {other}. Run the same program everywhere, with the "
                        f"same arguments, files and versions"
                    )

    def apart(self) -> "Group":
        """Return a group of these processes with a separate channel.

        The new group is for a thread of each process: its exchanges are independent of the main threads. All processes
        must call this method in the same order.

        Example:
          >>> Group().apart()
          process 0 of 1
        """
        channel = f"{self._channel}/{next(self._channels)}"
        return Group(self.index, self.size, self._client, self.timeout, channel)

    def told(self, key: str) -> str | None:
        """Return the text that a process has announced under a key; None if there is no such text yet."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            return str(self._client.key_value_try_get(f"fluid/{key}"))
        return None

    def announce(self, key: str, text: str) -> None:
        """Announce a text to the others without waiting; only the first announcement under a key counts."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"fluid/{key}", text)

    def _problem(self, message: str) -> str:
        """Convert an error message of JAX's coordination service to text about the cause."""
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
    """Return the group of this process: all processes after `initialize`, and only this process before.

    Example:
      >>> group()
      process 0 of 1
    """
    return _joined[-1] if _joined else _ALONE


def join(found: Group) -> Group:
    """Make `found` the group of this process."""
    _joined.append(found)
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def is_here(array: Any) -> bool:
    """Return True if this process can read the whole array without the other processes.

    Example:
      >>> is_here(np.ones(2)), is_here(jax.numpy.ones(2))
      (True, True)
    """
    return not isinstance(array, jax.Array) or array.is_fully_addressable or array.is_fully_replicated


def whole(tree: Any) -> Any:
    """Return a tree in which each array that is divided among processes becomes a whole NumPy array.

    All processes must call this function if an array is divided; they wait for each other.

    Args:
      tree: a tree of arrays.

    Example:
      >>> whole({"x": np.ones(2)})
      {'x': array([1., 1.])}
    """
    return jax.tree.map(lambda array: array if is_here(array) else _gathered(array), tree)


def _gathered(array: jax.Array) -> np.ndarray:
    from jax.experimental import multihost_utils  # loaded on use: a single process never needs it

    return np.asarray(multihost_utils.process_allgather(array, tiled=True))
