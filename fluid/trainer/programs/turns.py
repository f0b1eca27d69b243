"""Turns: the minibatches of several programs in the order of a schedule, as one pass with one position.

A Batch says to which program it belongs. The schedule depends on the number of the step alone, and one position holds
the positions of all readers. The pipeline, `Progress`, checkpoints and the loop therefore do not depend on the number
of programs.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fluid import errors
from fluid.reader.adapters import Minibatches
from fluid.reader.base import Rows
from fluid.trainer.programs.schedule import Schedule

# The sentinel for the end of a pass.
_NONE = object()


class Turns:
    """Passes over the minibatches of several programs: each item is the index of a program and its next minibatch.

    A pass ends with the pass of one reader, the leading reader, which starts again in each pass. The other readers
    continue over the ends of passes, and start again when they end.

    Args:
      sources: the minibatches of each program; one object for programs that share minibatches, None for a program that
        reads nothing.
      schedule: chooses the program of each item.
      leading: the index of the program whose reader ends a pass; a schedule by epoch uses the program of the epoch.
      first: the number of training steps done before the first item.

    Example:
      >>> from fluid.reader.adapters import minibatches
      >>> from fluid.trainer.programs.schedule import Pattern
      >>> turns = Turns([minibatches([[1], [2]]), minibatches([[3], [4], [5]])], Pattern([1, 1]), leading=0)
      >>> list(turns())
      [(0, [1]), (1, [3]), (0, [2]), (1, [4])]
      >>> list(turns())
      [(0, [1]), (1, [5]), (0, [2]), (1, [3])]
    """

    def __init__(self, sources: Sequence[Minibatches | None], schedule: Schedule, leading: int, first: int = 0):
        self._sources = list({id(source): source for source in sources if source is not None}.values())
        self._places = [None if source is None else self._sources.index(source) for source in sources]
        self._schedule = schedule
        self._leading = leading
        self._epoch = 0
        self._given = 0
        self._step = first
        self._counts = [0] * len(sources)
        self._open: dict[int, Rows] = {}
        self._plan = {"schedule": schedule.plan, "sources": self._places, "leading": leading}

    @property
    def reads_once(self) -> bool:
        """True if one of the readers is an iterator of the user, which cannot restart."""
        return any(source.reads_once for source in self._sources)

    @property
    def ready(self) -> bool:
        """True if the next minibatch of every program can be read now."""
        return all(source.ready for source in self._sources)

    @property
    def counts(self) -> list[int]:
        """The number of items of each program so far, including items before a resume."""
        return list(self._counts)

    def __call__(self) -> Iterator[tuple[int, Any]]:
        """Start the next pass, or continue the pass that `restore` has set."""
        place = self._places[self._schedule.at(self._step, self._epoch) if self._schedule.by_epoch else self._leading]
        assert place is not None
        if place not in self._open:  # now, so that `state()` already includes its position
            self._open[place] = self._sources[place]()
        return self._pass(place)

    def state(self) -> dict[str, Any]:
        """Return the position after the last item as a dict of JSON values, for `restore`."""
        position = {"epoch": self._epoch, "given": self._given, "step": self._step, "counts": list(self._counts)}
        return {**position, "reader": self._plan, "readers": [source.state() for source in self._sources]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Make the next pass continue exactly after a position.

        Raises:
          ArgumentError: the position belongs to other readers, or to another schedule.
        """
        readers = state.get("readers", ())
        if len(readers) != len(self._sources) or state.get("reader", self._plan) != self._plan:
            raise errors.ArgumentError(
                f"this position was taken with other programs, readers or another schedule: found "
                f"{state.get('reader')} and {len(readers)} readers, expected {self._plan} and {len(self._sources)}. "
                f"Give the Trainer the same schedule, and train() the same readers, as when it was saved"
            )
        for source, position in zip(self._sources, readers, strict=True):
            source.restore(position)
        self._open = {}
        self._epoch = state["epoch"]
        self._given = state["given"]
        self._step = state["step"]
        self._counts = list(state["counts"])

    def close(self) -> None:
        """End the passes of all readers, so that all readers start again."""
        self._end_all()
        for source in self._sources:
            position = source.state()
            if position["given"]:
                source.restore({"epoch": position["epoch"] + 1, "given": 0})

    def _pass(self, leading: int) -> Iterator[tuple[int, Any]]:
        """Yield the items of a pass that ends with the source at the index `leading`."""
        ended = False
        try:
            while True:
                number = self._schedule.at(self._step, self._epoch)
                place = self._places[number]
                minibatch = () if place is None else next(self._open_at(place), _NONE)
                if minibatch is _NONE and place == leading:
                    ended = True
                    self._epoch += 1
                    self._given = 0
                    return
                if minibatch is _NONE:
                    assert place is not None
                    del self._open[place]
                    minibatch = next(self._open_at(place))  # a reader without any minibatch raises an error here
                self._step += 1
                self._given += 1
                self._counts[number] += 1
                yield number, minibatch
        finally:
            if ended:
                self._open.pop(leading).close()
            else:
                self._end_all()

    def _open_at(self, place: int) -> Rows:
        if place not in self._open:
            self._open[place] = self._sources[place]()
        return self._open[place]

    def _end_all(self) -> None:
        for rows in self._open.values():
            rows.close()
        self._open = {}
