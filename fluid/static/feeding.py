"""Feeding: run a program with feeds whose shapes or levels differ from their declarations.

In Fluid the declared shape of a feed is only a remark: a run takes the shapes of the fed arrays.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from fluid import core, errors
from fluid._util.text import shape_text
from fluid.compat.lod_tensor import LoDTensor
from fluid.core import FeedSpec
from fluid.reader.buckets import MAX_COMPILATIONS, Buckets
from fluid.reader.columns import read_feed
from fluid.reader.converter import named
from fluid.reader.values import complaint, fit
from fluid.runtime import CompiledStep, Request, Session, bind, check_fetch
from fluid.runtime.fetch import as_array, split_names


def run_as_fed(
    session: Session, program: core.Program, feed: Mapping[str, Any], fetch: Sequence[str], mode: str
) -> Sequence[Any]:
    """Run a program as `Session.run` does, but accept feeds whose shapes differ from their declarations.

    For these feeds the program is traced and compiled again with the fed shapes.

    Args:
      session: the Session of the program.
      program: the program.
      feed: arrays by name.
      fetch: names of the values to return.
      mode: "train" or "test".

    Returns:
      The values of `fetch`, in order.

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
    """Return a declaration with the shape and level of a fed value; the declaration itself if the value fits.

    Args:
      spec: the declaration.
      value: an array or a LoDTensor; other values, such as lists of rows, must fit the declaration.

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
    level = len(lengths) if spec.lod_level else 0  # a feed that is declared as dense ignores lengths
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
    """Check the lengths of fed sequences that layers combine with dense rows, which have one row for each sample.

    Each sequence must have one step, or the number of steps that `sequence_reshape` joins to one step.

    Args:
      needed: by name of the feed and expected number of steps, the reason for the message.
      specs: the declarations by name.
      feed: arrays by name.

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
    """Return whether an array of this shape holds sequences of equal lengths: `[batch, time, ...]`."""
    whole = (*(None,) * (1 + spec.lod_level), *spec.shape[1:])
    padded = (*shape, 1) if len(shape) == 1 + spec.lod_level and spec.shape[1:] == (1,) else shape
    return len(shape) > spec.lod_level and fit(padded, whole) is not None


def _check_rows(declared: Mapping[str, FeedSpec], fed: Mapping[str, FeedSpec], feed: Mapping[str, Any]) -> None:
    """Refuse an array of one row beside feeds of several rows: most likely a column that was given as a row."""
    rows = {n: len(feed[n]) for n, s in declared.items() if s.shape[:1] == (None,) and isinstance(feed[n], np.ndarray)}
    if set(rows.values()) == {1}:
        return
    for name in [name for name in fed if rows.get(name) == 1]:
        if feed[name].ndim == len(declared[name].shape):
            _refuse(declared[name], feed[name], None)


def _refuse(spec: FeedSpec, value: Any, cause: Exception | None) -> None:
    """Raise a FeedError if a value does not fit its declaration; `cause` becomes the cause of the error."""
    try:
        read_feed(spec, value)
    except errors.FeedError as error:
        raise error from cause


def _remark(spec: FeedSpec, found: FeedSpec, value: Any, step: CompiledStep) -> None:
    """Warn once for each feed that its shape differs from its declaration, and once if many shapes were compiled."""
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
    """Return the shape to declare, with -1 for the sizes that vary."""
    if len(declared.shape) != len(fed.shape):
        return [-1] * len(fed.shape)
    return [-1 if d is None or d != f else d for d, f in zip(declared.shape, fed.shape, strict=True)]
