"""Group: the processes that train together, and what they tell each other.

What is said here are a few words between two steps: whether somebody has been told to stop, whether the data has ended.
It goes through the coordination service of JAX, from host to host, and waits for no device. Arrays never go this way;
XLA's collectives move them.
"""

import contextlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

import jax

from fluid import errors

# Answers of that many rounds are kept before the older ones are deleted, all at once.
_ROUNDS = 64


class Group:
    """The processes that train together. `fluid.distributed.group()` gives that of this process.

    All methods that talk are to be called by all processes, in the same order: whoever calls waits for the others.

    Args:
      index: which process this is, from 0.
      size: how many processes there are.
      client: that of JAX's coordination service; None in a group of one.
      timeout: seconds that a process waits for the others.
      channel: the name under which values are exchanged; groups with different ones do not hear each other.

    Attributes:
      index: the same.
      size: the same.
      timeout: the same.

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
        """Whether this is process 0, to which files, logs and progress belong."""
        return self.index == 0

    def exchange(self, what: str, value: Any) -> list[Any]:
        """Tell all processes a value, and hear theirs.

        Args:
          what: is exchanged, in words; the same in all processes.
          value: JSON.

        Returns:
          The values of all processes, in their order.

        Raises:
          DistributedError: not all of them have come in time, or another one exchanges something else.
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
        """The value of process 0; what the others give is not looked at. Arguments and errors as for `exchange`."""
        return self.exchange(what, value if self.is_first else None)[0]

    def meet(self, what: str) -> None:
        """Wait until all processes are here. Arguments and errors as for `exchange`."""
        self.exchange(what, None)

    def compare(self, what: str, described: Mapping[str, Any]) -> None:
        """Refuse to go on when the processes do not work on the same thing.

        Args:
          what: is compared, for the message.
          described: its parts by name, as JSON; in the order in which a difference is to be told.

        Raises:
          DistributedError: a part differs, or the processes compare different things.

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
        """A group of the same processes with a channel of its own.

        It is for a thread of each process, whose exchanges the main threads neither hear nor wait for. All processes
        must call this in the same order.

        Example:
          >>> Group().apart()
          process 0 of 1
        """
        channel = f"{self._channel}/{next(self._channels)}"
        return Group(self.index, self.size, self._client, self.timeout, channel)

    def told(self, key: str) -> str | None:
        """What a process has announced under a key; None as long as none has."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            return str(self._client.key_value_try_get(f"fluid/{key}"))
        return None

    def announce(self, key: str, text: str) -> None:
        """Tell the others something without waiting for them; the first who uses a key is heard."""
        with contextlib.suppress(jax.errors.JaxRuntimeError):
            self._client.key_value_set(f"fluid/{key}", text)

    def _problem(self, message: str) -> str:
        """What a message of the coordination service means."""
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
    """The group of this process: after `initialize` that of all processes, and before that itself alone.

    Example:
      >>> group()
      process 0 of 1
    """
    return _joined[-1] if _joined else _ALONE


def join(found: Group) -> Group:
    """Make a group that of this process."""
    _joined.append(found)
    return found


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
