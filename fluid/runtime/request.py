"""Request: the mode, the results and the feeds of one compiled step."""

from dataclasses import dataclass

from fluid import errors
from fluid.core import TEST, TRAIN


@dataclass(frozen=True)
class Request:
    """The mode, the results and the feeds of one compiled step; equal requests share a compilation.

    Attributes:
      mode: "train" or "test".
      fetch: names of the values to return, or None for the outputs of the program.
      feeds: names of the feeds that are given.
      overrides: names of the values that are replaced.
      parts: True returns the contribution of each output to its value over several minibatches as well, see `Found`.
      also: names of further values to return, separate from `fetch`.
      updates: False for a train-mode run that changes no arrays.
    """

    mode: str
    fetch: tuple[str, ...] | None
    feeds: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    parts: bool = False
    also: tuple[str, ...] = ()
    updates: bool = True

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all values to return."""
        return (*(self.fetch or ()), *self.also)

    @property
    def trains(self) -> bool:
        """True if the step changes parameters and states."""
        return self.mode == TRAIN and self.updates


def checked_mode(mode: str) -> str:
    """Return `mode` unchanged, after a check of its value.

    Raises:
      ArgumentError: `mode` is neither "train" nor "test".
    """
    if mode not in (TRAIN, TEST):
        raise errors.ArgumentError(f'mode={mode!r}: expected "train" or "test"')
    return mode
