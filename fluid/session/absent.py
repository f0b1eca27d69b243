"""Absent feeds: what stands in for feeds that were not given, where the results do not depend on them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from fluid.core import FeedSpec, NestedSequenceBatch, SequenceBatch, data_of, stand_in
from fluid.core.equations import independent


def stand_ins(
    specs: Mapping[str, FeedSpec], absent: Sequence[str], given: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield zeros for the absent feeds, by name, in several sizes: the likeliest first.

    A loss compares the sizes of a label with those of the net's result, although none of its numbers may be requested.
    So a stand-in has the open sizes of a given feed, such as the steps of its sequences: those of the feed that is
    declared nearest to it, and then, for whoever finds that these do not fit, those of each other one.

    Args:
      specs: the declarations of all feeds, in order.
      absent: names of the feeds to stand in for.
      given: the other feeds.
      overrides: what takes the place of other values.
    """
    order = list(specs)
    batch = _batch_of(specs, given, overrides)
    known = {name: _open_sizes(specs[name], value) for name, value in given.items()}
    known = {name: sizes for name, sizes in known.items() if sizes}
    others = [_sizes_of(value) for value in overrides.values()]
    nearest = {
        name: known[min(known, key=lambda other: (abs(order.index(other) - order.index(name)), order.index(other)))]
        if known
        else next(filter(None, others), ())
        for name in absent
    }
    tried: list[dict[str, Any]] = [nearest]
    for sizes in (*known.values(), *others):
        tried += [dict.fromkeys(absent, sizes), dict.fromkeys(absent, sizes[:1])]
    tried.append(dict.fromkeys(absent, ()))
    for i, chosen in enumerate(tried):
        if chosen not in tried[:i]:
            yield {name: _stand_in(specs[name], batch, chosen[name]) for name in absent}


def without(function: Callable[[Any], Any], absent: Iterator[Any]) -> Any:
    """Return the result of a function of stand-ins, without the work that depends on them.

    That work may have effects, such as a line that `layers.Print` shows of a loss: they do not happen.

    Args:
      function: called with stand-ins, traced.
      absent: stand-ins in several sizes, from `stand_ins`; the first ones that the function takes are used.
    """
    closed, shapes, zeros = traced(function, absent)
    # Evaluated equation by equation inside the trace that is going on.
    results = jax.core.eval_jaxpr(independent(closed.jaxpr), closed.consts, *jax.tree.leaves(zeros))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def traced(function: Callable[..., Any], absent: Iterator[Any], *rest: Any) -> tuple[Any, Any, Any]:
    """Trace a function with the first stand-ins that it takes; raise what it raises for the likeliest ones.

    Args:
      function: called with stand-ins and the rest.
      absent: stand-ins in several sizes, from `stand_ins`.
      rest: further arguments.

    Returns:
      The equations, the shapes of the results, and the stand-ins.
    """
    likeliest: Exception | None = None
    for zeros in absent:
        try:
            return *jax.make_jaxpr(function, return_shape=True)(zeros, *rest), zeros
        except Exception as error:
            likeliest = likeliest or error
    assert likeliest is not None
    raise likeliest


def _stand_in(spec: FeedSpec, batch: int, sizes: Sequence[Any]) -> Any:
    """Zeros for a feed; `sizes` are those of its open dimensions behind the batch, aligned at the last one."""
    if spec.lod_level:
        return stand_in(spec, batch, (*(1, 1), *sizes)[-2:])
    axes = _open_axes(spec)
    chosen = dict(zip(reversed(axes), reversed(sizes), strict=False))
    return stand_in(replace(spec, shape=tuple(chosen.get(i, d) for i, d in enumerate(spec.shape))), batch, (1, 1))


def _open_axes(spec: FeedSpec) -> list[int]:
    """The dimensions of dense data, behind the first, whose sizes are not declared."""
    return [i for i, size in enumerate(spec.shape) if i and size is None]


def _open_sizes(spec: FeedSpec, value: Any) -> tuple[Any, ...]:
    """The sizes of a feed, behind that of the batch, which its declaration leaves open."""
    if spec.lod_level:
        return _sizes_of(value)
    shape = tuple(value.shape)
    return tuple(shape[i] for i in _open_axes(spec)) if len(shape) == len(spec.shape) else ()


def _sizes_of(value: Any) -> tuple[Any, ...]:
    """The padded steps of a sequence batch, those of the outer level first; nothing of other values."""
    levels = 2 if isinstance(value, NestedSequenceBatch) else int(isinstance(value, SequenceBatch))
    return tuple(data_of(value).shape[1 : 1 + levels])


def _batch_of(specs: Mapping[str, FeedSpec], given: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """The number of examples of what is given; 1 where nothing says it."""
    following = [value for name, value in given.items() if specs[name].shape[:1] == (None,)]
    return next((v.shape[0] for v in (*following, *given.values(), *overrides.values()) if v.shape), 1)
