"""Request: what one compiled step does."""

from dataclasses import dataclass

from fluid import errors
from fluid.core import TEST, TRAIN


@dataclass(frozen=True)
class Request:
    """What one compiled step does; equal requests share a compilation.

    Attributes:
      mode: "train" or "test".
      fetch: names of the values to return, or None for the outputs of the program.
      feeds: names of the feeds that are given.
      overrides: names of the values that are replaced.
      parts: True to return what each output contributes to its value over several minibatches as well, see `Found`.
      also: names of further values to return, apart from those of `fetch`.
      updates: False for a run in train mode that changes nothing, to see what layers do there.
      settled: whether the arrays are the same in most runs, in test mode, see `Settled`.
    """

    mode: str
    fetch: tuple[str, ...] | None
    feeds: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    parts: bool = False
    also: tuple[str, ...] = ()
    updates: bool = True
    settled: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all values to return."""
        return (*(self.fetch or ()), *self.also)

    @property
    def trains(self) -> bool:
        """True if the step changes parameters and states."""
        return self.mode == TRAIN and self.updates


def checked_mode(mode: str) -> str:
    """Return a mode that was checked.

    Raises:
      ArgumentError: there is no such mode.
    """
    if mode not in (TRAIN, TEST):
        raise errors.ArgumentError(f'mode={mode!r}: expected "train" or "test"')
    return mode
