"""Layers for the inputs of a program: `data` declares a feed, and readers feed minibatches."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fluid import core, layers
from fluid.static import unique_name
from fluid.static.readers import PyReader
from fluid.static.tape.program import recorded
from fluid.static.tape.variable import Variable


def data(
    name: str,
    shape: Sequence[int | None],
    *given: Any,
    append_batch_size: bool = True,
    dtype: str = "float32",
    lod_level: int = 0,
    type: Any = None,
    stop_gradient: bool = True,
    column: int | None = None,
) -> Any:
    """Declare a feed, which is an input of the program; see `fluid.layers.data`.

    Args:
      shape: the shape of one example; with `append_batch_size=False`, or with a size of -1, the shape of a batch. A
        first size of -16 means that each example has 16 rows.
      given: positional arguments: `append_batch_size, dtype, lod_level` in PaddlePaddle's order, or `dtype, lod_level,
        append_batch_size` in the order of `fluid.layers.data`.
      lod_level: 0 for examples of one shape, 1 for sequences, 2 for sequences of sequences. Exception: integer
        ids with level 2 and the full shape `[-1, length, 1]` are fed as an array.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
      Variable(words: int32[-1, 1])
    """
    del type, stop_gradient
    order = ("append_batch_size", "dtype", "lod_level")
    if given and not isinstance(given[0], bool):
        order = ("dtype", "lod_level", "append_batch_size")
    options = {"append_batch_size": append_batch_size, "dtype": dtype, "lod_level": lod_level}
    options |= dict(zip(order, given, strict=False))
    sizes = list(shape)
    if options["lod_level"] == 2 and not options["append_batch_size"] and _are_ids(sizes, str(options["dtype"])):
        # PaddlePaddle's Transformer programs of 2018 declare word ids with lod_level=2, but feed arrays.
        options["lod_level"] = 0
    if sizes and isinstance(sizes[0], int) and sizes[0] < -1 and not options["lod_level"]:
        return recorded(_data_of_rows)(name, sizes, column=column, **options)
    return recorded(layers.data)(name, sizes, column=column, **options)


def _are_ids(sizes: Sequence[int | None], dtype: str) -> bool:
    """Return whether a shape and a dtype describe an array of integer ids: `[-1, length, 1]`."""
    return "int" in dtype and len(sizes) == 3 and (sizes[1] or 0) > 1 and sizes[2] == 1


@functools.wraps(layers.data)
def _data_of_rows(name: str, shape: Sequence[int], **options: Any) -> Any:
    """Declare a feed with several rows for each example: the shape `[-16, 1]` declares 16 rows for each example."""
    frame = core.current_frame("layers.data")
    if frame.discovering and name not in frame.given.feeds:
        rows = -shape[0] * (frame.placeholder_batch or 1)
        frame.given.feeds[name] = jnp.zeros([rows, *map(abs, shape[1:])])
    return layers.data(name, shape, **options)


def whole_data(name: str, shape: Sequence[int | None], dtype: str = "float32", lod_level: int = 0) -> Any:
    """Declare a feed by its full shape, including the batch size; users call it as `fluid.data`.

    Args:
      name: the name of the feed.
      shape: the shape of a batch, with None or -1 for the batch size.
      dtype: "float32", "int64" and so on.
      lod_level: 0 for examples of one shape, 1 for sequences, 2 for sequences of sequences.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     fluid.data("x", shape=[None, 4])
      Variable(x: float32[-1, 4])
    """
    return data(name, shape, append_batch_size=False, dtype=dtype, lod_level=lod_level)


def reshape(
    x: Variable,
    shape: Sequence[int],
    actual_shape: Any = None,
    act: Any = None,
    inplace: bool = False,
    name: str | None = None,
) -> Any:
    """Change the shape of a value; see `fluid.layers.reshape`.

    Users may feed an array of any shape to a feed of `shape=[1]`, so the result may have fewer or more rows than the
    batch. If the number of elements is unknown before a run, the result shows the batch size in place of the -1 in
    `shape`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     state = fluid.layers.data("state", shape=[1])
      ...     fluid.layers.reshape(state, shape=[2, -1, 10]).shape
      (2, -1, 10)
    """
    options = {"actual_shape": actual_shape, "act": act, "inplace": inplace, "name": name}
    if isinstance(x, Variable) and x.structs and not x.lod_level:
        if _is_open(x) or (x.follows_batch and list(shape).count(-1) == 1):
            # `batch` is the batch size of the first feed; None if the feed declares no fixed batch size.
            batch = next(iter(x.program.feeds.values())).shape[0]
            return recorded(_reshape_any)(x, list(shape), **options, batch=batch)
    return recorded(layers.reshape)(x, shape, **options)


def _is_open(x: Any) -> bool:
    feeds = x.program.feeds if isinstance(x, Variable) else {}
    return x.name in feeds and feeds[x.name].shape == (None, 1) and not x.lod_level


def _reshape_any(
    x: Any,
    shape: list[int],
    actual_shape: Any = None,
    act: Any = None,
    inplace: bool = False,
    name: str | None = None,
    batch: int | None = None,
) -> Any:
    """Reshape a value whose size is unknown before a run.

    While shapes are evaluated without data, the placeholder size of `x` may not fit `shape`. Then resize `x` first."""
    frame = core.current_frame("layers.reshape")
    if frame.discovering and 0 not in shape and shape.count(-1) < 2:
        rest = math.prod(size for size in shape if size != -1)
        if (x.size % rest) if -1 in shape else (x.size != rest):
            x = jnp.resize(x, tuple((batch or frame.placeholder_batch) if size == -1 else size for size in shape))
    return layers.reshape(x, shape, actual_shape, act, inplace, name)


_reshape_any.__name__ = "reshape"  # Error messages show `__name__` as the name of the layer.


@functools.wraps(layers.softmax_with_cross_entropy)
def softmax_with_cross_entropy(logits: Any, label: Any, soft_label: bool = False, *others: Any, **options: Any) -> Any:
    """Compute the cross entropy of the softmax of logits; see `fluid.layers.softmax_with_cross_entropy`.

    If the label is a feed of `shape=[1]`, users may feed more rows than the batch has. If the label is declared as
    float32, users may feed integers.
    """
    if not soft_label and _is_open(label) and isinstance(logits, Variable) and not logits.lod_level:
        same_rows = all(a.shape[:1] == b.shape[:1] for a, b in zip(logits.structs, label.structs, strict=True))
        if not same_rows or label.dtype == "float32":
            label = recorded(_fed_classes)(logits, label)
    return recorded(layers.softmax_with_cross_entropy)(logits, label, soft_label, *others, **options)


def _fed_classes(logits: Any, label: Any) -> Any:
    if core.current_frame("layers.softmax_with_cross_entropy").discovering:
        label = jnp.resize(label, (logits.shape[0], 1))
    return jnp.where(label == jnp.floor(label), label, -1).astype(jnp.int32)


def py_reader(
    capacity: int,
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[str],
    lod_levels: Sequence[int] | None = None,
    name: str | None = None,
    use_double_buffer: bool = True,
) -> PyReader:
    """Return a reader that feeds the program after `reader.start()`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     reader = fluid.layers.py_reader(4, shapes=[(-1, 2), (-1, 1)], dtypes=["float32", "int64"])
      ...     fluid.layers.read_file(reader)
      [Variable(py_reader_0_0: float32[-1, 2]), Variable(py_reader_0_1: int32[-1, 1])]
    """
    stem = name or unique_name.generate("py_reader")
    levels = lod_levels or [0] * len(shapes)
    fields = zip(shapes, dtypes, levels, strict=True)
    made = [data(f"{stem}_{i}", shape, False, dtype, level) for i, (shape, dtype, level) in enumerate(fields)]
    return PyReader(made, capacity, use_double_buffer, iterable=False)


def create_py_reader_by_data(
    capacity: int, feed_list: Sequence[Variable], name: str | None = None, use_double_buffer: bool = True
) -> PyReader:
    """Return a reader that feeds the variables in `feed_list`; see `py_reader`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[2])
      ...     fluid.layers.read_file(fluid.layers.create_py_reader_by_data(4, [x])) is x
      True
    """
    del name
    return PyReader(feed_list, capacity, use_double_buffer, iterable=False)


def read_file(reader: PyReader) -> Any:
    """Return the variables that a reader feeds: one variable, or a list if the reader feeds several.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.read_file.__name__  # see py_reader
      'read_file'
    """
    return reader.variables[0] if len(reader.variables) == 1 else list(reader.variables)


def double_buffer(reader: PyReader, place: Any = None, name: str | None = None) -> PyReader:
    """Return the reader itself, because readers always load batches while the device works.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.double_buffer.__name__  # see py_reader
      'double_buffer'
    """
    del place, name
    return reader
