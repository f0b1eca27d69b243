"""What pads the sequences of all programs of a training, as one thing whose state a checkpoint keeps."""

from collections.abc import Mapping, Sequence
from typing import Any

from fluid import errors
from fluid.reader.buckets import Buckets


class PaddingOfAll:
    """The Buckets of several programs; of one program its own.

    Args:
      buckets: of each program.
    """

    def __init__(self, buckets: Sequence[Buckets]):
        self._buckets = buckets

    def state(self) -> Any:
        """What the choices of all depend on, as JSON."""
        states = [each.state() for each in self._buckets]
        return states[0] if len(states) == 1 else states

    def restore(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue as after the minibatches before a state.

        Raises:
          ArgumentError: it is nothing that `state` returned.
        """
        states = [state] if isinstance(state, Mapping) else state
        if len(states) != len(self._buckets):
            raise errors.ArgumentError(
                f"restore needs the sizes of {len(self._buckets)} programs, found those of {len(states)}"
            )
        for each, its in zip(self._buckets, states, strict=True):
            each.restore(its)
