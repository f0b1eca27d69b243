"""What is known in advance of a loop whose block adds a constant to a counter and compares it with a constant."""

from typing import NamedTuple

from fluid import layers
from fluid.static.tape.calls import Block, Call
from fluid.static.tape.variable import Variable


class Entered(NamedTuple):
    """What is known of a loop where its block begins.

    Attributes:
      cond: its condition.
      before: the block that the loop stands in.
      constants: for variables all of whose elements are one number, that number.
    """

    cond: Variable
    before: Block
    constants: dict[Variable, float]

    def constant(self, variable: Variable) -> float | None:
        """The number of a variable whenever the loop begins, or None."""
        changing = any(variable in block.assigned() for block in self.before.open_blocks() if block.outer is not None)
        return None if changing else self.constants.get(variable)


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
    entered = block.loop
    again = _compared(block, entered.cond)
    if again is None or again != _compared(entered.before, entered.cond):
        return None
    counter, limit = again
    start, step, end = entered.constant(counter), _step(block, counter), entered.constant(limit)
    if start is None or step is None or end is None or limit in block.assigned():
        return None
    return max(1, -int(-(end - start) // step))


def _last_index(index: Variable, block: Block) -> int | None:
    """The largest number that an index has in the block of a loop that goes on while it is less than another."""
    entered = block.loop
    compared = _compared(entered.before, entered.cond)
    if compared is None or compared[0] is not index or compared[1] in block.assigned():
        return None
    end = entered.constant(compared[1])
    return None if end is None else int(end)


def _compared(block: Block, cond: Variable) -> tuple[Variable, Variable] | None:
    """The counter and the limit of the comparison that a condition needs, as the block assigns it last."""
    made = [call for call in block.calls if cond in call.outputs and not call.blocks]
    return _comparison(block, made[-1]) if made else None


def _comparison(block: Block, call: Call) -> tuple[Variable, Variable] | None:
    found = call.variables()
    if call.function is layers.less_than and len(found) == 2:
        return found[0], found[1]
    if call.function is layers.logical_and:
        inner = [_comparison(block, c) for v in found for c in block.calls if c is not call and v in c.outputs]
        return next((pair for pair in inner if pair is not None), None)
    return None


def _step(block: Block, counter: Variable) -> float | None:
    """What the block adds to a counter each time."""
    changes = [call for call in block.calls if counter in call.outputs]
    if not changes or any(call.function is not layers.increment for call in changes):
        return None
    steps = [float(call.kwargs.get("value", 1.0)) for call in changes]
    return sum(steps) if all(step > 0 for step in steps) else None
