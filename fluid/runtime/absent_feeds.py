"""Absent feeds: zeros in place of input arrays ("feeds") that a user omits, because no requested result needs them.

Tracing a program needs an array for each feed that the program function reads. So an omitted feed is replaced by an
array of zeros ("stand-in") with sizes that fit. Operations that depend on the zeros are removed from the trace. A
test-mode run with `fetch=` stops the program function after the last requested value, and so needs fewer feeds.
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
    """The input arrays ("feeds") that a call of a program omits; the requested results must not depend on them.

    Attributes:
      names: names of the absent feeds.
    """

    def __init__(self, program: Program, given: Sequence[str]):
        self.names = [name for name in program.feeds if name not in given]
        self._program = program

    def stand_ins(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield dicts of zeros for the absent feeds, one dict for each guess of their sizes, best guess first."""
        known = self._program.parameters.keys() | self._program.states.keys()
        with_rows = {name: value for name, value in overrides.items() if name not in known}
        return stand_ins(self._program.feeds, self.names, feeds, with_rows)

    def needed(
        self, results: Callable[[Any, Any, Any], Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> set[str]:
        """Return the names of the absent feeds (which the user left out) that the results of a function depend on."""
        overrides = {n: v for n, v in overrides.items() if not self._takes_its_size(n, v)}
        closed, _, zeros = traced(results, self.stand_ins(feeds, overrides), dict(feeds), overrides)
        return set(zeros) - unread(closed.jaxpr, zeros)

    def check(
        self, results: Callable[[Any, Any, Any], Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> None:
        """Check that the results of a function do not depend on an absent feed (a feed that the user left out).

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
        """Return True if `value` is a scalar from the user that replaces an array whose shape depends on the feeds."""
        program = self._program
        inner = program.equation_values[name].array if is_inner(program, name) else None
        known = inner or program.values.get(program.aliases.get(name, name))
        return not value.shape and known is not None and None in known.shape

    def _needed_in_discovery(self, results: Callable[[Any, Any, Any], Any]) -> set[str]:
        """Return the names of the absent feeds on which the results depend, from a trace with placeholder feeds.

        The placeholders have the sizes with which the Program was first traced. If the trace raises an error, the
        result is empty.
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
    """Yield dicts of zeros for the absent feeds, one dict for each guess of their sizes, best guess first.

    Even a loss that nobody requests raises an error if the sizes of its label do not fit the output of the net. So
    each undeclared size, such as a number of sequence steps, is copied from a given feed: first from the feed declared
    nearest to the absent one, then from every other feed. The caller uses the first dict that traces without an error.
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
    """Call a function with zeros for the absent feeds, and remove the operations that depend on these zeros.

    Removed operations have no effects: `layers.Print` of a loss that needs an absent label prints nothing.
    """
    closed, shapes, zeros = traced(function, absent)
    # JAX traces the code that calls this function. So `eval_jaxpr` computes nothing here: it adds the equations that do
    # not depend on the zeros to the trace of the caller.
    results = jax.core.eval_jaxpr(independent(closed.jaxpr), closed.consts, *jax.tree.leaves(zeros))
    return jax.tree.unflatten(jax.tree.structure(shapes), results)


def traced(function: Callable[..., Any], absent: Iterator[Any], *rest: Any) -> tuple[Any, Any, Any]:
    """Trace a function with the first dict of zeros that it accepts; if it accepts none, raise the first error."""
    likeliest: Exception | None = None
    for zeros in absent:
        try:
            return *jax.make_jaxpr(function, return_shape=True)(zeros, *rest), zeros
        except Exception as error:
            likeliest = likeliest or error
    assert likeliest is not None
    raise likeliest


def _stand_in(spec: FeedSpec, batch: int, sizes: Sequence[Any]) -> Any:
    """Return an array, or a sequence batch, of zeros that fits the declaration of a feed."""
    if spec.lod_level:
        return stand_in(spec, batch, (*(1, 1), *sizes)[-2:])
    axes = _open_axes(spec)
    chosen = dict(zip(reversed(axes), reversed(sizes), strict=False))
    return stand_in(replace(spec, shape=tuple(chosen.get(i, d) for i, d in enumerate(spec.shape))), batch, (1, 1))


def _open_axes(spec: FeedSpec) -> list[int]:
    return [i for i, size in enumerate(spec.shape) if i and size is None]


def _open_sizes(spec: FeedSpec, value: Any) -> tuple[Any, ...]:
    """Return the sizes of `value` in the dimensions, after the batch dimension, for which its feed declares no size."""
    if spec.lod_level:
        return _sizes_of(value)
    shape = tuple(value.shape)
    return tuple(shape[i] for i in _open_axes(spec)) if len(shape) == len(spec.shape) else ()


def _sizes_of(value: Any) -> tuple[Any, ...]:
    levels = 2 if isinstance(value, NestedSequenceBatch) else int(isinstance(value, SequenceBatch))
    return tuple(data_of(value).shape[1 : 1 + levels])


def _batch_of(specs: Mapping[str, FeedSpec], given: Mapping[str, Any], overrides: Mapping[str, Any]) -> Any:
    following = [value for name, value in given.items() if specs[name].shape[:1] == (None,)]
    return next((v.shape[0] for v in (*following, *given.values(), *overrides.values()) if v.shape), 1)
