"""Absent feeds: stand-ins for feeds that the user leaves out, because the requested results do not depend on them.

A run in test mode with `fetch=` ends after the last requested value. If the whole program function must run, stand-ins
of fitting sizes are fed, and the work that depends on them is removed from the trace.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax

from fluid import errors
from fluid.core import FeedSpec, NestedSequenceBatch, Program, SequenceBatch, data_of, stand_in
from fluid.core.equations import independent, unneeded, unread
from fluid.runtime.fetch import is_inner


class AbsentFeeds:
    """The feeds of a program that a request does not give, because the requested results may not depend on them.

    Args:
      program: the program.
      given: names of the feeds that are given.

    Attributes:
      names: names of the absent feeds.
    """

    def __init__(self, program: Program, given: Sequence[str]):
        self.names = [name for name in program.feeds if name not in given]
        self._program = program

    def stand_ins(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield zeros for the absent feeds in several sizes, the likeliest first; see the function `stand_ins`."""
        known = self._program.parameters.keys() | self._program.states.keys()
        with_rows = {name: value for name, value in overrides.items() if name not in known}
        return stand_ins(self._program.feeds, self.names, feeds, with_rows)

    def needed(
        self, results: Callable[[Any, Any, Any], Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> set[str]:
        """Return the names of the absent feeds that the results of a function depend on.

        Args:
          results: a pure function of the absent feeds, the given feeds and the overrides; it is traced, never run.
          feeds: the given feeds.
          overrides: values that replace named values.
        """
        overrides = {n: v for n, v in overrides.items() if not self._takes_its_size(n, v)}
        closed, _, zeros = traced(results, self.stand_ins(feeds, overrides), dict(feeds), overrides)
        return set(zeros) - unread(closed.jaxpr, zeros)

    def check(
        self, results: Callable[[Any, Any, Any], Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> None:
        """Check that the results of a function do not depend on an absent feed; arguments as for `needed`.

        Raises:
          FeedError: the results depend on an absent feed.
        """
        try:
            needed = sorted(self.needed(results, feeds, overrides))
        except errors.FeedError:
            raise
        except Exception as error:
            needed = [] if overrides else sorted(self._needed_in_discovery(results))
            if not needed:
                names = ", ".join(map(repr, self.names))
                error.add_note(f"not given: {names}, for which zeros stood in, as far as they are needed for shapes")
                raise
        if needed:
            spec = self._program.feeds[needed[0]]
            raise errors.FeedError(
                f"the program {self._program.name} needs the feed{'s' if len(needed) > 1 else ''} "
                f"{', '.join(map(repr, needed))}, which nobody gave; {needed[0]!r} is declared at {spec.site}: "
                f"feed={{{needed[0]!r}: array of {spec.dtype}, ...}}"
            )

    def _takes_its_size(self, name: str, value: Any) -> bool:
        """Return True if `value` is a scalar override of a value whose shape depends on the feeds."""
        program = self._program
        inner = program.equation_values[name].array if is_inner(program, name) else None
        known = inner or program.values.get(program.aliases.get(name, name))
        return not value.shape and known is not None and None in known.shape

    def _needed_in_discovery(self, results: Callable[[Any, Any, Any], Any]) -> set[str]:
        """Return the names of the absent feeds that the results depend on, traced with the feed sizes of discovery.

        The set is empty if this trace raises an error.
        """
        every = self._program.stand_ins()
        zeros = {name: every[name] for name in self.names}
        rest = {name: value for name, value in every.items() if name not in zeros}
        try:
            return set(zeros) - unneeded(results, zeros, rest, {})
        except Exception:
            return set()


def stand_ins(
    specs: Mapping[str, FeedSpec], absent: Sequence[str], given: Mapping[str, Any], overrides: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield zeros for the absent feeds, by name, in several sizes: the likeliest sizes first.

    A loss that is not requested still raises an error if the sizes of a label do not fit the result of the net. So a
    stand-in takes its open sizes, such as the steps of sequences, from a given feed: first from the feed that is
    declared nearest to the absent one, then from each other feed. The caller uses the first stand-in that fits.

    Args:
      specs: the declarations of all feeds, in order.
      absent: names of the feeds to stand in for.
      given: the other feeds.
      overrides: values that replace named values.
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
    """Return the result of a function of stand-ins, and skip all work that depends on the stand-ins.

    Effects of the skipped work do not happen: `layers.Print` of a loss that needs an absent label prints nothing.

    Args:
      function: called with stand-ins, traced.
      absent: stand-ins in several sizes, from `stand_ins`; the first ones that `function` accepts are used.
    """
    closed, shapes, zeros = traced(function, absent)
    # The equations are added one by one to the trace in which this call happens.
    results = jax.core.eval_jaxpr(independent(closed.jaxpr), closed.consts, *jax.tree.leaves(zeros))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def traced(function: Callable[..., Any], absent: Iterator[Any], *rest: Any) -> tuple[Any, Any, Any]:
    """Trace a function with the first stand-ins that fit. If none fits, raise the error of the first ones.

    Args:
      function: called with stand-ins, then the arguments in `rest`.
      absent: stand-ins in several sizes, the likeliest first, from `stand_ins`.
      rest: further arguments of `function`.

    Returns:
      The closed jaxpr, the shapes of the results, and the stand-ins that fit.
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
    """Return zeros for a feed.

    Args:
      spec: the declaration of the feed.
      batch: the batch size.
      sizes: sizes of the open dimensions after the batch; the last size belongs to the last open dimension.
    """
    if spec.lod_level:
        return stand_in(spec, batch, (*(1, 1), *sizes)[-2:])
    axes = _open_axes(spec)
    chosen = dict(zip(reversed(axes), reversed(sizes), strict=False))
    return stand_in(replace(spec, shape=tuple(chosen.get(i, d) for i, d in enumerate(spec.shape))), batch, (1, 1))


def _open_axes(spec: FeedSpec) -> list[int]:
    """Return the dimensions of dense data, after the first one, that have no declared size."""
    return [i for i, size in enumerate(spec.shape) if i and size is None]


def _open_sizes(spec: FeedSpec, value: Any) -> tuple[Any, ...]:
    """Return the sizes of a feed, without the batch size, that its declaration leaves open."""
    if spec.lod_level:
        return _sizes_of(value)
    shape = tuple(value.shape)
    return tuple(shape[i] for i in _open_axes(spec)) if len(shape) == len(spec.shape) else ()


def _sizes_of(value: Any) -> tuple[Any, ...]:
    """Return the padded number of steps of each level of a sequence batch, outer level first; empty for an array."""
    levels = 2 if isinstance(value, NestedSequenceBatch) else int(isinstance(value, SequenceBatch))
    return tuple(data_of(value).shape[1 : 1 + levels])


def _batch_of(specs: Mapping[str, FeedSpec], given: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    """Return the batch size of the feeds and overrides; 1 if there are none."""
    following = [value for name, value in given.items() if specs[name].shape[:1] == (None,)]
    return next((v.shape[0] for v in (*following, *given.values(), *overrides.values()) if v.shape), 1)
