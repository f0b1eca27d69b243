"""LoDTensor, PaddlePaddle Fluid's class for batches of sequences, and functions that create a LoDTensor."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import LoDTensor, numbers_of

__all__ = ["LoDTensor", "create_lod_tensor", "create_random_int_lodtensor"]


class ScalarArray(np.ndarray):
    """An array of one element that converts to a number in every NumPy version, as in `"%f" % loss`.

    Example:
      >>> "%.1f" % np.array([2.5]).view(ScalarArray)
      '2.5'
    """

    def __float__(self) -> float:
        return float(np.asarray(self).item())

    def __int__(self) -> int:
        return int(np.asarray(self).item())

    def __repr__(self) -> str:
        return repr(np.asarray(self))


def create_lod_tensor(data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: Any = None) -> LoDTensor:
    """Create a LoDTensor, which users may feed as sequences or as a dense array.

    Args:
      data: `[steps, ...]`, the concatenated steps of all rows; or nested lists of rows, whose steps are numbers or
        lists of numbers; or another LoDTensor, whose data is used.
      recursive_seq_lens: one list of lengths for each level, outermost first. `[[2, 3]]` are rows of 2 and 3 steps.
        `[[2, 1], [3, 1, 2]]` are a row of two sequences, of 3 and 1 steps, and a row of one sequence, of 2 steps.
      place: accepted and ignored; the Session that runs the program puts the arrays on its device.

    Returns:
      A LoDTensor; steps that are single numbers have the shape `[1]`.

    Raises:
      ShapeError: the lengths do not add up to the steps, or differ from the lengths of the lists.
      ArgumentError: `recursive_seq_lens` is not one or two lists of lengths.

    Example:
      >>> create_lod_tensor([[1, 2], [3, 4, 5]], [[2, 3]])
      LoDTensor(int64[5, 1], [[2, 3]])
    """
    del place
    steps = data
    if isinstance(data, list):
        steps = data
        found = []
        for _ in recursive_seq_lens:
            steps, lengths = _opened(steps)
            found.append(lengths)
        if found != [list(level) for level in recursive_seq_lens]:
            raise errors.ShapeError(
                f"recursive_seq_lens={recursive_seq_lens!r}: the lists have the lengths {found}: "
                f"create_lod_tensor(data, {found}, place)"
            )
    array = numbers_of(steps, what="create_lod_tensor")
    if isinstance(data, list) and array.ndim == 1:
        array = array[:, None]
    tensor = LoDTensor(array, recursive_seq_lens)
    tensor.check()
    return tensor


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]],
    base_shape: Sequence[int],
    place: Any = None,
    low: int = 0,
    high: int = 1,
    seed: int | None = None,
) -> LoDTensor:
    """Create a LoDTensor of random integers, to test a program without data.

    Args:
      recursive_seq_lens: as for `create_lod_tensor`.
      base_shape: the shape of one step.
      place: ignored.
      low: the smallest number.
      high: the largest number, inclusive.
      seed: equal seeds produce equal numbers; None produces different numbers each time.

    Returns:
      A LoDTensor, int64.

    Raises:
      ArgumentError: `high` is less than `low`, or `recursive_seq_lens` is empty.

    Example:
      >>> create_random_int_lodtensor([[2, 3]], base_shape=[1], low=0, high=9).shape()
      [5, 1]
    """
    del place
    if high < low or not recursive_seq_lens:
        raise errors.ArgumentError(
            f"found low={low}, high={high} and recursive_seq_lens={recursive_seq_lens!r}, expected low <= high and one "
            f"or two lists of lengths: create_random_int_lodtensor([[2, 3]], [1], place, low=0, high=9)"
        )
    shape = [sum(recursive_seq_lens[-1]), *base_shape]
    data = np.random.default_rng(seed).integers(low, high, shape, dtype="int64", endpoint=True)
    return create_lod_tensor(data, recursive_seq_lens)


def _opened(rows: Any) -> tuple[list[Any], list[int]]:
    """Flatten a list of lists by one level; return the list of all items, and the length of each inner list."""
    if not all(np.iterable(row) for row in rows):
        raise errors.ShapeError(
            f"found {next(row for row in rows if not np.iterable(row))!r} where a row was expected; a row is a list, "
            f"of lists for two levels of lengths: create_lod_tensor([[1, 2], [3, 4, 5]], [[2, 3]], place)"
        )
    return list(itertools.chain.from_iterable(rows)), [len(row) for row in rows]
