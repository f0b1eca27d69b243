"""What is known in advance of a loop whose block adds a constant to a counter and compares it with a constant."""

from collections.abc import Sequence
from typing import NamedTuple

from fluid import layers
from fluid.static.tape.calls import Block, Call
from fluid.static.tape.variable import Variable

# A counter and a limit: a condition can be true only while the one is less than the other.
Comparison = tuple[Variable, Variable]


class Entered(NamedTuple):
    """What is known of a loop where its block begins.

    Attributes:
      cond: its condition.
      before: the block that the loop stands in.
      constants: for variables all of whose elements are one number, that number.
      compared: what the condition compares, if it is known.
    """

    cond: Variable
    before: Block
    constants: dict[Variable, float]
    compared: Comparison | None

    def constant(self, variable: Variable) -> float | None:
        """The number of a variable whenever the loop begins, or None."""
        changing = any(variable in block.assigned() for block in self.before.open_blocks() if block.outer is not None)
        return None if changing else self.constants.get(variable)


def enter(cond: Variable, before: Block, constants: dict[Variable, float]) -> Entered:
    """Note what is known of a loop whose block is about to be written; arguments as for `Entered`."""
    written = [call for block in reversed(before.open_blocks()) for call in block.calls]
    return Entered(cond, before, constants, _comparison(written, cond))


class Write(NamedTuple):
    """One call that writes into an array.

    Attributes:
      place: the variable of its index.
      constant: the number that this is there, or None.
      block: where the call stands.
    """

    place: Variable
    constant: float | None
    block: Block

    def last(self) -> int | None:
        """The largest index that is written, or None where constants do not tell."""
        for block in self.block.open_blocks():
            if block.loop is not None and self.place in block.assigned():
                return _last_index(self.place, block)
        return None if self.constant is None else int(self.constant)


def most_turns(block: Block) -> int | None:
    """How often the block of a loop runs at most, or None where constants do not tell."""
    compared = _bound(block)
    if compared is None:
        return None
    counter, limit = compared
    start, step, end = block.loop.constant(counter), _step(block, counter), block.loop.constant(limit)
    if start is None or step is None or end is None:
        return None
    return max(1, -int(-(end - start) // step))


def _last_index(index: Variable, block: Block) -> int | None:
    """The largest number that an index has in the block of a loop that goes on while it is less than another."""
    compared = _bound(block)
    if compared is None or compared[0] is not index:
        return None
    end = block.loop.constant(compared[1])
    return None if end is None else int(end)


def _bound(block: Block) -> Comparison | None:
    """What the condition of a loop compares, if that is the same where it begins and in each turn of its block."""
    compared: Comparison | None = block.loop.compared
    if compared is None or compared[1] in block.assigned():
        return None
    return compared if _keeps(block.calls, block.loop.cond, compared) else None


def _keeps(calls: Sequence[Call], cond: Variable, compared: Comparison) -> bool:
    """Whether all that calls may leave in a condition is a given comparison, or false."""
    place = _last_place(calls, cond)
    if place is None:
        return True
    call, before = calls[place], calls[:place]
    if call.blocks:  # each of them may be the one that runs, or none
        return all(_keeps([*before, *inner], cond, compared) for inner in ([], *(b.calls for b in call.blocks)))
    is_false = call.function is layers.fill_constant and not call.args[2]
    return is_false or _comparison(calls, cond) == compared


def _comparison(calls: Sequence[Call], cond: Variable) -> Comparison | None:
    """The comparison that a condition is or needs, behind some calls."""
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
    """Where the last of some calls stands that gives a variable its value."""
    return next((i for i in reversed(range(len(calls))) if variable in calls[i].outputs), None)


def _step(block: Block, counter: Variable) -> float | None:
    """What the block adds to a counter each time."""
    changes = [call for call in block.calls if counter in call.outputs]
    if not changes or any(call.function is not layers.increment for call in changes):
        return None
    steps = [float(call.kwargs.get("value", 1.0)) for call in changes]
    return sum(steps) if all(step > 0 for step in steps) else None
