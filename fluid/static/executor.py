"""Executor: a runner of recorded programs (lists of layer calls), with feeds of any shape, in one or several processes.

In PaddlePaddle Fluid the declared shape of a feed is only a hint: a run uses the shapes of the fed arrays. If the shape
or LoD level (nesting of sequences) of a fed value differs from the declaration, the program is traced and compiled
again. In multi-process training each process feeds its own rows, and all processes compute the whole minibatch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fluid import core, errors
from fluid._util.text import shape_text
from fluid.compat.lod_tensor import LoDTensor, ScalarArray
from fluid.core import FeedSpec
from fluid.distributed import group
from fluid.place import Place
from fluid.reader.buckets import MAX_COMPILATIONS, Buckets
from fluid.reader.columns import read_feed
from fluid.reader.converter import named
from fluid.reader.feed_checks import complaint, fit
from fluid.runtime import CompiledStep, Request, Session, bind, check_fetch
from fluid.runtime.fetch import as_array, split_names
from fluid.static.backward import Gradient
from fluid.static.scope import Scope, global_scope
from fluid.static.scope import scope_guard as scope_guard
from fluid.static.tape.program import Program, default_main_program
from fluid.static.tape.variable import SEQUENCES, Variable


def check_processes(what: str, count: int) -> None:
    """Check that exactly `count` processes are connected; `what` is the caller's name for the error message.

    Raises:
      DistributedError: more or fewer processes are connected.
    """
    if group().size != count:
        raise errors.DistributedError(
            f"{what} says that {count} processes train together, and this process has found {group().size}; start "
            f"all of them on this machine by python -m fluid launch --processes {count} train.py, or on several as "
            f"docs/distributed.md shows"
        )


def feeds_of_all(feed: Mapping[str, Any], divided: Collection[str]) -> list[dict[str, Any]]:
    """Exchange feeds between processes; return the list of the feeds of all processes, in process order.

    All processes must call this function for each run; they wait for each other.

    Raises:
      ArgumentTypeError: a feed is a list; DistributedError: the processes run different programs.
    """
    here = {name: _part(name, feed[name]) for name in sorted(divided)}
    exchanged = group().exchange(
        "the feeds of exe.run", {n: [str(data.dtype), data.shape, lengths] for n, (data, lengths) in here.items()}
    )
    if any(theirs.keys() != here.keys() for theirs in exchanged):
        raise errors.DistributedError(f"the processes feed different names: {[list(theirs) for theirs in exchanged]}")
    found: list[dict[str, Any]] = [{} for _ in exchanged]
    for name, (data, _) in here.items():
        kinds = [theirs[name] for theirs in exchanged]
        every = _bytes_of_all(data, [math.prod(shape) * np.dtype(dtype).itemsize for dtype, shape, _ in kinds])
        for part, content, (dtype, shape, lengths) in zip(found, every, kinds, strict=True):
            array = np.frombuffer(content, dtype).reshape(shape)
            part[name] = LoDTensor(array, lengths) if lengths else array
    return found


def _part(name: str, value: Any) -> tuple[np.ndarray, list[list[int]]]:
    """Return the array of a fed value, and its sequence lengths at each nesting level (none for an array)."""
    if isinstance(value, list | tuple):
        raise errors.ArgumentTypeError(
            f"the feed {name!r} is a list, and the rows of several processes are put together; feed an array or a "
            f"LoDTensor: fluid.create_lod_tensor(rows, [lengths], place)"
        )
    if isinstance(value, SEQUENCES):
        value = LoDTensor.of(jax.tree.map(np.asarray, value))
    lengths = value.recursive_sequence_lengths() if isinstance(value, LoDTensor) else []
    return np.ascontiguousarray(value), lengths


def _bytes_of_all(data: np.ndarray, sizes: list[int]) -> list[bytes]:
    """Gather the array `data` of each process as bytes; `sizes` has the number of bytes of each process.

    The processes exchange bytes, because a device would convert numbers to other dtypes.
    """
    from jax.experimental import multihost_utils  # Imported here, because only multi-process training needs it.

    flat = np.frombuffer(data.tobytes(), np.uint8)
    every = multihost_utils.process_allgather(np.pad(flat, (0, max(sizes) - flat.size)))
    return [row[:size].tobytes() for row, size in zip(np.reshape(every, (len(sizes), -1)), sizes, strict=True)]


def run_as_fed(
    session: Session, program: core.Program, feed: Mapping[str, Any], fetch: Sequence[str], mode: str
) -> Sequence[Any]:
    """Run a program as `Session.run` does, but accept feeds whose shapes differ from their declarations.

    For these feeds the program is traced and compiled again with the fed shapes.

    Raises:
      FeedError: a feed fits neither its declaration nor the layers of the program.
    """
    declared = {name: program.feeds[name] for name in feed if name in program.feeds}
    fed = {name: found for name, spec in declared.items() if (found := as_fed(spec, feed[name])) is not spec}
    if not fed:
        return session.run(program, feed=feed, fetch=fetch, mode=mode)
    _check_rows(declared, fed, feed)
    engine = session.engine
    given, replaced = split_names(program, feed)
    step = bind(engine, program, Request(mode, check_fetch(program, fetch, mode), given, replaced))
    specs = {**program.feeds, **fed}
    feeds = named(engine, specs, feed, given, Buckets(specs, max_compilations=None))
    overrides = engine.layout.take({name: as_array(feed[name]) for name in replaced})
    drawn = engine.draw(engine.seeds.of("Executor.run", program, None)) if mode == core.TEST else None
    try:
        results = step(feeds, overrides, drawn)[0].outputs
    except (errors.FluidError, TypeError, ValueError) as error:
        for name in fed:
            _refuse(declared[name], feed[name], error)
        raise
    for name, found in fed.items():
        _remark(declared[name], found, feeds[name], step)
    return results


def as_fed(spec: FeedSpec, value: Any) -> FeedSpec:
    """Return a feed declaration that a fed value fits: `spec`, or a copy with the shape and LoD level of the value.

    Example:
      >>> as_fed(FeedSpec("state", (None, 1), "float32"), np.zeros((2, 3, 10))).shape
      (None, 3, 10)
      >>> as_fed(FeedSpec("words", (None, 1), "int64", lod_level=2), LoDTensor(np.zeros((3, 1)), [[1, 2]])).lod_level
      1
    """
    if not isinstance(value, LoDTensor | np.ndarray | jax.Array):
        return spec
    lengths = value.recursive_sequence_lengths() if isinstance(value, LoDTensor) else []
    shape = tuple(value.shape() if isinstance(value, LoDTensor) else value.shape)
    # Ignore the sequence lengths of a LoDTensor that is fed to a feed without sequences.
    level = len(lengths) if spec.lod_level else 0
    if level:
        fits = level == spec.lod_level and fit(shape, (None, *spec.shape[1:])) is not None
    else:
        fits = _holds_sequences(spec, shape) if spec.lod_level else fit(shape, spec.shape) is not None
    if fits or not shape or 0 in shape:
        return spec
    return replace(spec, shape=(None, *shape[1:]), lod_level=level)


def check_single_steps(
    needed: Mapping[tuple[str, int], str], specs: Mapping[str, FeedSpec], feed: Mapping[str, Any]
) -> None:
    """Check the lengths of fed sequences that layers combine with dense arrays, which have one row for each example.

    Each sequence must have one time step, or the number of steps that a later `sequence_reshape` joins to one step.

    Args:
      needed: the requirements: a dict from `(name of a feed, expected number of steps)` to the reason for the error
        message.

    Raises:
      FeedError: a sequence has another number of steps.
    """
    for (name, steps), reason in needed.items():
        if name not in feed:
            continue
        lengths = np.asarray(getattr(read_feed(as_fed(specs[name], feed[name]), feed[name]), "lengths", ()))
        for sample in np.flatnonzero(lengths != steps)[:1].tolist():
            found, wanted = f"a row of {lengths[sample]} steps", "one step" if steps == 1 else f"{steps} steps"
            raise complaint(specs[name], "", sample, found, reason, f"{wanted} in each row, which meets dense rows")


def _holds_sequences(spec: FeedSpec, shape: tuple[int, ...]) -> bool:
    """Return whether `shape` is a padded shape `[batch, time, ...]` of sequences that the feed `spec` accepts."""
    whole = (*(None,) * (1 + spec.lod_level), *spec.shape[1:])
    padded = (*shape, 1) if len(shape) == 1 + spec.lod_level and spec.shape[1:] == (1,) else shape
    return len(shape) > spec.lod_level and fit(padded, whole) is not None


def _check_rows(declared: Mapping[str, FeedSpec], fed: Mapping[str, FeedSpec], feed: Mapping[str, Any]) -> None:
    """Raise a FeedError if one feed has one row and others have several: the user probably fed a column as a row."""
    rows = {n: len(feed[n]) for n, s in declared.items() if s.shape[:1] == (None,) and isinstance(feed[n], np.ndarray)}
    if set(rows.values()) == {1}:
        return
    for name in [name for name in fed if rows.get(name) == 1]:
        if feed[name].ndim == len(declared[name].shape):
            _refuse(declared[name], feed[name], None)


def _refuse(spec: FeedSpec, value: Any, cause: Exception | None) -> None:
    """Check that a fed value fits the declaration `spec`; else raise a FeedError with the cause `cause`."""
    try:
        read_feed(spec, value)
    except errors.FeedError as error:
        raise error from cause


def _remark(spec: FeedSpec, found: FeedSpec, value: Any, step: CompiledStep) -> None:
    """Warn once that the shape of a feed differs from its declaration, and once if many shapes were compiled."""
    core.warn_once(
        spec,
        "shape",
        lambda: (
            f"feed {spec.name!r}: declared as {_shown(spec)} at {spec.site}, and fed as {_shown(found)}, here "
            f"{list(value.shape)}; shapes are found again for what is fed, one compilation for each shape. Declare "
            f"what is fed: layers.data({spec.name!r}, shape={_sizes(spec, found)}, append_batch_size=False, "
            f"lod_level={found.lod_level})"
        ),
    )
    if step.compiled > MAX_COMPILATIONS:
        core.warn_once(
            spec,
            "shapes",
            lambda: (
                f"feed {spec.name!r}: {step.compiled} shapes were fed so far, and each took a compilation; pad the "
                f"arrays to a few sizes, such as multiples of 16"
            ),
        )


def _shown(spec: FeedSpec) -> str:
    return f"{shape_text(spec.dtype, spec.shape)}{f', lod_level={spec.lod_level}' if spec.lod_level else ''}"


def _sizes(declared: FeedSpec, fed: FeedSpec) -> list[int]:
    if len(declared.shape) != len(fed.shape):
        return [-1] * len(fed.shape)
    return [-1 if d is None or d != f else d for d, f in zip(declared.shape, fed.shape, strict=True)]


# The type of an item of `fetch_list`: a variable to fetch, or the name of the variable.
Fetched = Variable | str
# The type of `feed=`: arrays by name, or a list with one dict of arrays for each device.
Feed = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class Executor:
    """A runner of recorded programs (lists of layer calls), as in PaddlePaddle Fluid.

    Args:
      place: a device; None for JAX's default.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> main, startup = fluid.Program(), fluid.Program()
      >>> with fluid.program_guard(main, startup):
      ...     y = fluid.layers.scale(fluid.layers.data("x", shape=[2]), scale=2.0)
      >>> exe = fluid.Executor(fluid.CPUPlace())
      >>> exe.run(startup)
      []
      >>> exe.run(main, feed={"x": np.ones((1, 2), "float32")}, fetch_list=[y])
      [array([[2., 2.]], dtype=float32)]
    """

    def __init__(self, place: Place = None):
        self.place = place

    def run(
        self,
        program: Any = None,
        feed: Feed = None,
        fetch_list: Sequence[Fetched] | None = None,
        feed_var_name: str = "feed",
        fetch_var_name: str = "fetch",
        scope: Scope | None = None,
        return_numpy: bool = True,
        use_program_cache: bool = True,
        use_prune: bool = False,
    ) -> list[Any]:
        """Run a program once, and return the fetched values.

        A startup program initializes the parameters. Layers that were recorded into it run after that.

        Args:
          program: a Program or CompiledProgram; by default the default main program.
          feed: arrays by name. A feed that no result depends on may be left out.
          fetch_list: the variables to return, or their names.
          feed_var_name: accepted for programs written for Fluid, but has no effect: no variable holds feeds.
          fetch_var_name: accepted for programs written for Fluid, but has no effect: no variable holds fetches.
          scope: the scope that stores values between runs; by default the global scope.
          return_numpy: True returns NumPy arrays, False LoDTensors.
          use_program_cache: accepted for programs written for Fluid, but has no effect: programs are compiled once.
          use_prune: accepted for programs written for Fluid, but has no effect: only fetches and updates are computed.

        Returns:
          The fetched values, in the order of `fetch_list`.

        Raises:
          ProgramError: the parameters are not initialized yet.
          FeedError: a feed does not fit the program; UnknownNameError: the program has no variable of a fetched name.
          ArgumentError: a batch of sequences is fetched with `return_numpy=True`.
        """
        del feed_var_name, fetch_var_name, use_program_cache, use_prune
        found = plain_program(program)
        scope = scope or global_scope()
        if found.mains and found.feeds:
            raise errors.ProgramError(
                f"this startup program has the feed {min(found.feeds)!r}, and each run of it would initialize the "
                f"parameters again; record the layers into a program of their own: "
                f"with fluid.program_guard(fluid.Program(), startup): ..."
            )
        if found.mains:
            scope.initialise(found, self.place)
        if not found.version:
            return []
        scope = scope.running
        inner = scope.program(found, self.place)
        scope.check(inner)
        names = [name_of(item) for item in fetch_list or ()]
        kept = [v.name for v in found.outliving()]
        later = scope.later(found)
        given = _joined(feed)
        fed = {**given, **found.read(given)}
        check_single_steps(found.single_steps, inner.feeds, fed)
        if scope.collective:
            divided = [n for n in fed if n in inner.feeds and inner.feeds[n].shape[:1] == (None,)]
            fed |= _joined(feeds_of_all(fed, divided))
        mode = "test" if found.for_test else "train"
        fetched = {name: scope.value(name) for name in names if name in found.rates}
        wanted = dict.fromkeys([*names, *kept, *(later.read if later else [])])
        fetch = [name for name in wanted if name not in fetched]
        fetched |= dict(zip(fetch, run_as_fed(scope.session, inner, fed, fetch, mode), strict=True))
        for name in kept:
            scope.keep(name, fetched[name])
        if later is not None:
            changed = later(scope.session.scope, fetched)
            scope.load(changed)
            fetched |= changed
        return [_handed_out(name, fetched[name], return_numpy) for name in names]

    def close(self) -> None:
        """Do nothing: the values of variables stay in the scope."""


def plain_program(program: Any) -> Program:
    """Return a Program: `program` itself, the Program in a CompiledProgram, or for None the default main program.

    Raises:
      ArgumentTypeError: the argument is of another type.
    """
    found = getattr(program, "program", program)
    if found is None:
        return default_main_program()
    if not isinstance(found, Program):
        raise errors.ArgumentTypeError(
            f"found {type(program).__name__}, expected a Program: exe.run(fluid.default_main_program())"
        )
    return found


def fetch_var(name: Fetched, scope: Scope | None = None, return_numpy: bool = True) -> Any:
    """Return the value of a parameter, state, learning rate or other persistable variable in a scope.

    Raises:
      UnknownNameError: the scope has no value of this name.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.scope_guard(fluid.Scope()), fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     with fluid.unique_name.guard():
      ...         y = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      ...     started = fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
      ...     fluid.executor.fetch_var("fc_0.b_0")
      array([0.], dtype=float32)
    """
    found = (scope or global_scope()).find_var(name_of(name))
    if found is None:
        raise errors.UnknownNameError(
            f"the scope has no value of {name_of(name)!r}; run the startup program first, or set "
            f"persistable = True of a variable that layers compute, and run its program"
        )
    return _handed_out(name_of(name), np.array(found), return_numpy)


_fetch_var = fetch_var


def name_of(item: Fetched) -> str:
    """Return the name of `item`, which is a variable or already a name.

    Raises:
      ProgramError: the variable is the gradient of a loss that the program does not differentiate.
    """
    if isinstance(item, Gradient) and item.program.differentiated(item.of.name) is not item.loss:
        raise errors.ProgramError(
            f"{item.name!r} is the gradient of another loss than the program minimises, or differentiates last; use "
            f"fluid.gradients(loss, parameter), whose variables can be read and fetched for any number of losses"
        )
    return item.name if isinstance(item, Variable) else item


def _handed_out(name: str, value: Any, return_numpy: bool) -> Any:
    """Convert a result of a run to a NumPy array or LoDTensor, which the user receives."""
    if isinstance(value, SEQUENCES):
        if return_numpy:
            raise errors.ArgumentError(
                f"{name!r} is a batch of sequences, which is no array; fetch it with return_numpy=False, and "
                f"np.array(tensor), tensor.lod() are its steps and where each sequence begins"
            )
        return LoDTensor.of(jax.tree.map(np.asarray, value))
    array = np.asarray(value)
    if not return_numpy:
        return LoDTensor(array)
    return array.view(ScalarArray) if array.size == 1 else array


def _joined(feed: Feed) -> dict[str, Any]:
    if feed is None or isinstance(feed, Mapping):
        return dict(feed or {})
    return {name: _concatenated([part[name] for part in feed]) for name in feed[0]} if feed else {}


def _concatenated(parts: Sequence[Any]) -> Any:
    if not isinstance(parts[0], LoDTensor):
        return np.concatenate([np.asarray(p) for p in parts])
    lengths = [[n for part in parts for n in part.recursive_sequence_lengths()[i]] for i in range(_levels(parts[0]))]
    return LoDTensor(np.concatenate([np.asarray(p) for p in parts]), lengths)


def _levels(tensor: LoDTensor) -> int:
    return len(tensor.recursive_sequence_lengths())
