"""Tensor arrays of the static API: create_array, array_write, array_read and array_length.

Loops write an array one element at a time. XLA needs the capacity of the array before the loop runs. This module
computes the capacity from constants of the program: the number of iterations is known if the block of the loop adds a
constant to a counter, and compares the counter with a constant.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import core, errors, layers
from fluid.core.rows import BATCHES
from fluid.layers.control.tensor_array import TensorArray
from fluid.static import unique_name
from fluid.static.tape.calls import Block, Call, outer_environment
from fluid.static.tape.program import default_main_program
from fluid.static.tape.variable import Variable, at_batch, dense_of

# A pair of variables, a counter and a limit, for the loop condition `counter < limit`.
Comparison = tuple[Variable, Variable]


class Entered(NamedTuple):
    """Facts about a loop, collected before its body is recorded.

    Attributes:
      cond: the condition of the loop.
      before: the block that contains the loop.
      constants: the variables whose elements all equal one known number: a dict from the variable to the number.
      compared: the variables `(counter, limit)` of the condition `counter < limit`; None for other conditions.
    """

    cond: Variable
    before: Block
    constants: dict[Variable, float]
    compared: Comparison | None

    def constant(self, variable: Variable) -> float | None:
        """Return the value of a variable before the loop if it is a known constant; None if outer loops change it."""
        changing = any(variable in block.assigned() for block in self.before.open_blocks() if block.outer is not None)
        return None if changing else self.constants.get(variable)


def enter(cond: Variable, before: Block, constants: dict[Variable, float]) -> Entered:
    """Collect the known facts about a loop before its body is recorded; for the arguments see the class `Entered`."""
    written = [call for block in reversed(before.open_blocks()) for call in block.calls]
    return Entered(cond, before, constants, _comparison(written, cond))


class Write(NamedTuple):
    """A recorded call of `array_write`, which writes one element of a tensor array.

    Attributes:
      place: the variable that holds the index.
      constant: the value of the index at this call; None if unknown.
      block: the block in which the call is recorded.
    """

    place: Variable
    constant: float | None
    block: Block

    def last(self) -> int | None:
        """Return an upper bound of the indices at which this call writes to its TensorArray.

        Return None if the constants in the program do not determine a bound.
        """
        for block in self.block.open_blocks():
            if block.loop is not None and self.place in block.assigned():
                return _last_index(self.place, block)
        return None if self.constant is None else int(self.constant)


def most_turns(block: Block) -> int | None:
    """Return the maximum number of iterations of a loop; None if constants do not determine the number."""
    compared = _bound(block)
    if compared is None:
        return None
    counter, limit = compared
    start, step, end = block.loop.constant(counter), _step(block, counter), block.loop.constant(limit)
    if start is None or step is None or end is None:
        return None
    return max(1, -int(-(end - start) // step))


def _last_index(index: Variable, block: Block) -> int | None:
    """Return the constant limit of a While loop that runs while `index < limit`; None if the limit is unknown."""
    compared = _bound(block)
    if compared is None or compared[0] is not index:
        return None
    end = block.loop.constant(compared[1])
    return None if end is None else int(end)


def _bound(block: Block) -> Comparison | None:
    """Return the variables `(counter, limit)` if a loop certainly runs only while `counter < limit`; else None."""
    compared: Comparison | None = block.loop.compared
    if compared is None or compared[1] in block.assigned():
        return None
    return compared if _keeps(block.calls, block.loop.cond, compared) else None


def _keeps(calls: Sequence[Call], cond: Variable, compared: Comparison) -> bool:
    """Return whether the condition of a loop stays `counter < limit` while `calls` of the loop body run.

    The condition stays if the calls do not assign `cond`, or set it to false or again to `counter < limit`."""
    place = _last_place(calls, cond)
    if place is None:
        return True
    call, before = calls[place], calls[:place]
    # A recorded call with blocks is a branch: it runs one of the blocks, or none.
    if call.blocks:
        return all(_keeps([*before, *inner], cond, compared) for inner in ([], *(b.calls for b in call.blocks)))
    is_false = call.function is layers.fill_constant and not call.args[2]
    return is_false or _comparison(calls, cond) == compared


def _comparison(calls: Sequence[Call], cond: Variable) -> Comparison | None:
    """Return `(counter, limit)` if a condition is `counter < limit`, alone or in a logical "and"; else None."""
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
    return next((i for i in reversed(range(len(calls))) if variable in calls[i].outputs), None)


def _step(block: Block, counter: Variable) -> float | None:
    """Return the number that one iteration of a loop block adds to the loop counter; None if unknown."""
    changes = [call for call in block.calls if counter in call.outputs]
    if not changes or any(call.function is not layers.increment for call in changes):
        return None
    steps = [float(call.kwargs.get("value", 1.0)) for call in changes]
    return sum(steps) if all(step > 0 for step in steps) else None


class ArrayVariable(Variable):
    """A variable that holds a TensorArray (a list of arrays that a loop writes).

    Attributes:
      least: the capacity that the user requests; 0 without a request.
      writes: the recorded calls that write into the array.
      element: the shape of an element, evaluated at two trial batch sizes; empty before the first write.
      first: the value of `element` after the first write; in a beam search, later elements have more rows.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     array = fluid.layers.array_write(fluid.layers.ones([2], "float32"), fluid.layers.zeros([1], "int64"))
      >>> array.capacity, array.element[0].shape
      (1, (2,))
    """

    least = 0
    writes: tuple[Write, ...] = ()
    element: tuple[Any, ...] = ()
    first: tuple[Any, ...] = ()

    @property
    def capacity(self) -> int:
        """Return the number of arrays that a TensorArray can hold: as requested, or more if known writes need more."""
        found = [write.last() for write in self.writes]
        return max([self.least, *(last + 1 for last in found if last is not None)])

    @property
    def structs(self) -> tuple[Any, ...]:
        """Return two TensorArrays of shapes, one for each of two trial batch sizes.

        The differences of the shapes show the dimensions that depend on the batch size.
        """
        return tuple(_stand_in(max(self.capacity, 1), e) for e in self.element)

    @structs.setter
    def structs(self, both: tuple[Any, ...]) -> None:
        self.element = tuple(jax.ShapeDtypeStruct(array.data.shape[1:], array.data.dtype) for array in both)
        self.first = self.first or self.element

    @property
    def follows_batch(self) -> bool:
        """Return whether the arrays in the TensorArray have a first dimension that grows with the batch size."""
        return len({element.shape[:1] for element in self.element}) == 2

    def empty(self) -> TensorArray:
        """Return the value of this variable at the start of a run: an empty TensorArray."""
        struct = at_present_batch(self.first)
        return TensorArray(jnp.zeros((self.capacity, *struct.shape), struct.dtype), jnp.int32(0))

    def check(self) -> None:
        """Check that the capacity (the maximum number of elements) of this tensor array is known.

        Raises:
          ProgramError: the capacity is unknown.
        """
        if not self.least and any(write.last() is None for write in self.writes):
            raise errors.ProgramError(
                f"how many arrays {self.name!r} must hold is not known: no constant counts them, and no "
                f"loop that ends at one; say so: layers.create_array(dtype, max_length=50)"
            )


def create_array(dtype: Any, max_length: int = 0) -> ArrayVariable:
    """Return an empty tensor array, which `array_write` fills.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.layers.create_array("float32", max_length=5).capacity
      5
    """
    del dtype
    program = default_main_program()
    array = ArrayVariable(program, unique_name.generate("array"), (), program.present_block)
    program.variables[array.name] = array
    array.least = max_length
    return array


def array_write(x: Variable, i: Variable, array: ArrayVariable | None = None) -> ArrayVariable:
    """Write a variable into a tensor array, as the element with the index `i`.

    Args:
      i: the index, an integer `[1]`.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     i = fluid.layers.zeros([1], "int64")
      ...     array = fluid.layers.array_write(fluid.layers.ones([2], "float32"), i)
      ...     read = fluid.layers.array_read(array, i)
      >>> fluid.Executor().run(main, fetch_list=[read])[0].tolist()
      [1.0, 1.0]
    """
    if array is None:
        array = create_array(x.dtype)
    program = array.program.guarded()
    program.apply(_Written(array), (x, i), into=[array])
    array.writes = (*array.writes, Write(i, i.constant, program.present_block))
    for block in program.present_block.open_blocks():
        if block.beam is not None and x in block.beam.kept:
            block.beam.written(array, i)
    return array


def array_read(array: ArrayVariable, i: Variable) -> Variable:
    """Return the element of a tensor array with the index `i`.

    Args:
      i: the index, an integer `[1]`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.array_read.__name__  # see array_write
      'array_read'
    """
    return array.program.guarded().apply(layers.array_read, (array, i))


def array_length(array: ArrayVariable) -> Variable:
    """Return the number of elements in a tensor array, int32 `[1]`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.array_length.__name__  # see array_write
      'array_length'
    """
    return array.program.guarded().apply(layers.array_length, (array,))


class _Written:
    """A function that writes an element into a tensor array while a program runs."""

    def __init__(self, array: ArrayVariable):
        self.array = array
        self.captures = (array,)

    def __call__(self, x: Any, i: Any) -> TensorArray:
        """Write `x` at the index `i` of the array, and return the new TensorArray."""
        content = outer_environment("layers.array_write").find(self.array)
        # The first element in a beam search is a batch of nested sequences: for each source sentence, one sequence of
        # one step. Store this step as the row of the source sentence.
        if isinstance(x, core.NestedSequenceBatch):
            x = x.data[:, 0, 0]
        if content is None:
            content = TensorArray(jnp.zeros((max(self.array.capacity, 1), *x.shape), x.dtype), jnp.int32(0))
        return layers.array_write(x, i, content)


def at_present_batch(both: tuple[Any, ...]) -> Any:
    """Return the shape of a value at the batch size of the current run."""
    return at_batch(both[0], both[1], BATCHES, present_batch())


def present_batch() -> Any:
    """Return the batch size of the current run."""
    frame = core.current_frame("static")
    if frame.placeholder_batch is not None:
        return frame.placeholder_batch
    feeds = [frame.given.feeds[n] for n, s in frame.declared.feeds.items() if s.shape[:1] == (None,)]
    return dense_of(feeds[0]).shape[0] if feeds else BATCHES[0]


def _stand_in(capacity: int, element: Any) -> Any:
    data: Any = jax.ShapeDtypeStruct((capacity, *element.shape), element.dtype)
    length: Any = jax.ShapeDtypeStruct((), "int32")
    return TensorArray(data, length)
