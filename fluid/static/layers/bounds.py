"""Bounds on the iterations of loops whose block adds a constant to a counter and compares it with a constant."""

from collections.abc import Sequence
from typing import NamedTuple

from fluid import layers
from fluid.static.tape.calls import Block, Call
from fluid.static.tape.variable import Variable

# A counter and a limit: a condition can be true only while the counter is less than the limit.
Comparison = tuple[Variable, Variable]


class Entered(NamedTuple):
    """The facts that are known about a loop at the start of its block.

    Attributes:
      cond: the condition of the loop.
      before: the block around the loop.
      constants: the number of each variable whose elements all equal one number.
      compared: the counter and the limit that the condition compares, if known.
    """

    cond: Variable
    before: Block
    constants: dict[Variable, float]
    compared: Comparison | None

    def constant(self, variable: Variable) -> float | None:
        """Return the number of a variable at the start of the loop, or None if it may change."""
        changing = any(variable in block.assigned() for block in self.before.open_blocks() if block.outer is not None)
        return None if changing else self.constants.get(variable)


def enter(cond: Variable, before: Block, constants: dict[Variable, float]) -> Entered:
    """Return the known facts about a loop whose block is recorded next; arguments as for `Entered`."""
    written = [call for block in reversed(before.open_blocks()) for call in block.calls]
    return Entered(cond, before, constants, _comparison(written, cond))


class Write(NamedTuple):
    """A call that writes into an array.

    Attributes:
      place: the variable of the index.
      constant: the number that the index has at this call, or None.
      block: the block of the call.
    """

    place: Variable
    constant: float | None
    block: Block

    def last(self) -> int | None:
        """Return the largest written index, or None if constants do not determine it."""
        for block in self.block.open_blocks():
            if block.loop is not None and self.place in block.assigned():
                return _last_index(self.place, block)
        return None if self.constant is None else int(self.constant)


def most_turns(block: Block) -> int | None:
    """Return the maximum number of iterations of a loop, or None if constants do not determine it."""
    compared = _bound(block)
    if compared is None:
        return None
    counter, limit = compared
    start, step, end = block.loop.constant(counter), _step(block, counter), block.loop.constant(limit)
    if start is None or step is None or end is None:
        return None
    return max(1, -int(-(end - start) // step))


def _last_index(index: Variable, block: Block) -> int | None:
    """Return the largest number of an index in the block of a loop that runs while the index is less than a limit."""
    compared = _bound(block)
    if compared is None or compared[0] is not index:
        return None
    end = block.loop.constant(compared[1])
    return None if end is None else int(end)


def _bound(block: Block) -> Comparison | None:
    """Return the counter and the limit that a loop compares before its start and in each iteration; None if unknown."""
    compared: Comparison | None = block.loop.compared
    if compared is None or compared[1] in block.assigned():
        return None
    return compared if _keeps(block.calls, block.loop.cond, compared) else None


def _keeps(calls: Sequence[Call], cond: Variable, compared: Comparison) -> bool:
    """Return whether all calls leave the condition false or equal to a given comparison."""
    place = _last_place(calls, cond)
    if place is None:
        return True
    call, before = calls[place], calls[:place]
    if call.blocks:  # at most one of the blocks runs
        return all(_keeps([*before, *inner], cond, compared) for inner in ([], *(b.calls for b in call.blocks)))
    is_false = call.function is layers.fill_constant and not call.args[2]
    return is_false or _comparison(calls, cond) == compared


def _comparison(calls: Sequence[Call], cond: Variable) -> Comparison | None:
    """Return the counter and the limit that a condition compares after some calls, alone or in an "and"; or None."""
    place = _last_place(calls, cond)
    if place is None:
        return None
    read = calls[place].variables()
    if calls[place].function is layers.less_than and len(read) == 2:
        return read[0], read[1]
    if calls[place].function is layers.logical_and:
        inner = (_comparison(calls[:place], variable) for variable in read)
        return next((found for found in inner if found is not None), None)
    return None


def _last_place(calls: Sequence[Call], variable: Variable) -> int | None:
    """Return the position of the last call that assigns a variable, or None."""
    return next((i for i in reversed(range(len(calls))) if variable in calls[i].outputs), None)


def _step(block: Block, counter: Variable) -> float | None:
    """Return the number that one iteration of a block adds to a counter, or None."""
    changes = [call for call in block.calls if counter in call.outputs]
    if not changes or any(call.function is not layers.increment for call in changes):
        return None
    steps = [float(call.kwargs.get("value", 1.0)) for call in changes]
    return sum(steps) if all(step > 0 for step in steps) else None
