"""InferenceFunction: a program in test mode as a pure function of arrays, feeds and a random key."""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import partial_eval

from fluid import errors
from fluid.core import TEST, FeedSpec, Program, stand_in
from fluid.core.equations import live_equations
from fluid.core.rows import STEPS
from fluid.export.signature import Output, leaves_of, level_of, value_of
from fluid.runtime import Request, absent_feeds, check_fetch
from fluid.runtime.fetch import GRAD, Fetch, is_inner, split_names
from fluid.runtime.step import Step


class InferenceFunction:
    """A program in test mode as a pure function, which JAX can trace.

    The constructor only traces the program, and computes nothing.

    Args:
      feed: names of feeds, and of named values that are fed instead of computed; None for the feeds on which the
        results depend.

    Attributes:
      feeds: declarations, by name, of the feeds and of the named values that are fed.
      arrays: the ParameterSpec of each parameter and state on which the results depend, by name.
      states: names of the arrays that are not parameters.
      outputs: descriptions of the results.
      random: True if the results depend on a random key.
      table: the Table of the program, if `feeds` has a feed of the Table; else None.
      by_row: True if each row of the results is computed from one row of the feeds, as the equations show.

    Raises:
      UnknownNameError: the program has no such feed or value.
      FeedError: the results depend on feeds that are not in `feed`.
    """

    def __init__(self, program: Program, feed: Sequence[str] | None = None, fetch: Fetch | None = None):
        self._program = program
        self._names = None if fetch is None else _without_gradients(check_fetch(program, fetch))
        given, self._replaced = split_names(program, program.feeds if feed is None else feed)
        if inner := next((n for n in self._replaced if is_inner(program, n)), None):
            raise errors.ArgumentError(
                f"feed={inner!r}: found a value inside a loop or branch, expected a feed or "
                f'a value with a name of its own: fluid.layers.identity(x, name="h")'
            )
        # This Step declares no feeds, so that the program may stop as soon as the requested values are computed. A
        # trace of the Step then shows the feeds that the results need.
        self._step = Step(program, [], Request(TEST, self._names, (), self._replaced))
        self._arrays = {**program.parameters, **program.states}
        stand_ins = self._stand_ins(self._program.dummy_batches[0])
        needed = self._needed(stand_ins)
        needed["feeds"] |= self._needed_for_sizes(needed["feeds"], stand_ins)
        missing = sorted(needed["feeds"] - set(given))
        if missing:
            raise errors.FeedError(
                f"the results of {program.name} depend on the feed{'s' if len(missing) > 1 else ''} "
                f"{', '.join(map(repr, missing))}, and feed={list(feed or ())} does not name "
                f"{'them' if len(missing) > 1 else 'it'}; add {missing[0]!r}, or fetch less: fetch=['fc_0.tmp_0']"
            )
        wanted = needed["feeds"] if feed is None else set(given)
        self.feeds = {n: spec for n, spec in program.feeds.items() if n in wanted}
        self.feeds |= {n: self._declared(n, value) for n, value in stand_ins["overrides"].items()}
        self.arrays = {n: spec for n, spec in self._arrays.items() if n in needed["arrays"]}
        self.states: Collection[str] = {n for n, spec in self.arrays.items() if spec.trainable is None}
        self.random = bool(needed["key"])
        self.table = program.table if {"numbers", "categories"} & self.feeds.keys() else None
        self.outputs = self._described(stand_ins)
        self.by_row: bool | None = program.mixing(self._names, self._replaced) is None

    def __call__(self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], key: Any) -> list[Any]:
        """Compute the results as a list; each is an array, or a tuple of padded data and lengths."""
        given = {name: value_of(leaves) for name, leaves in feeds.items()}
        overrides = {n: given.pop(n) for n in self._replaced}
        # Feeds and arrays on which the results do not depend are no arguments of this function; zeros replace them.
        rest = [n for n in self._program.feeds if n not in given]
        zeros = {n: jnp.zeros(spec.shape, spec.dtype) for n, spec in self._arrays.items() if n not in arrays}
        root = jax.random.wrap_key_data(key_data() if key is None else key) if self._program.random else None

        def results(stand_ins: Mapping[str, Any]) -> list[Any]:
            values, _, _ = self._step.evaluate({**zeros, **arrays}, {**given, **stand_ins}, overrides, root)
            return [leaves_of(v) for v in values]

        if not rest:
            return results({})
        with_rows = {n: v for n, v in overrides.items() if self.feeds[n].shape[:1] == (None,)}
        stand_ins = absent_feeds.stand_ins(self._program.feeds, rest, given, with_rows)
        made: list[Any] = absent_feeds.without(results, stand_ins)
        return made

    def _stand_ins(self, batch: int, longer: str = "") -> dict[str, Any]:
        """Return example arguments for tracing: arrays, feeds, random key and overrides, each by name."""
        program = self._program
        feeds = {
            n: stand_in(spec, batch, [n + 2 for n in STEPS] if n == longer else STEPS)
            for n, spec in program.feeds.items()
        }
        arrays = {n: jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype)) for n, spec in self._arrays.items()}
        given = {"arrays": arrays, "feeds": feeds, "key": {"data": key_data()}}
        values = jax.eval_shape(lambda given: self._applied(given).values, given) if self._replaced else {}
        known = {**arrays, **values}
        return {**given, "overrides": {n: known[program.aliases.get(n, n)] for n in self._replaced}}

    def _applied(self, given: Mapping[str, Any]) -> Any:
        key = jax.random.wrap_key_data(given["key"]["data"])
        return self._program.apply(given["arrays"], given["feeds"], key=key)

    def _results(self, given: Mapping[str, Any]) -> Any:
        key = jax.random.wrap_key_data(given["key"]["data"])
        return self._step.evaluate(given["arrays"], given["feeds"], given["overrides"], key)[0]

    def _needed(self, stand_ins: Mapping[str, Any]) -> dict[str, set[str]]:
        """Return the names of the arguments whose values affect the results of the exported program.

        The names are grouped as in `stand_ins`, the example arguments of the trace; a group is, for example, "feeds".
        """
        _, used = self._live(stand_ins)
        leaves = jax.tree_util.tree_leaves_with_path(stand_ins)
        found = {(path[0].key, path[1].key) for (path, _), is_used in zip(leaves, used, strict=True) if is_used}
        return {group: {name for g, name in found if g == group} for group in stand_ins}

    def _needed_for_sizes(self, needed: set[str], stand_ins: Mapping[str, Any]) -> set[str]:
        """Return the names of feeds whose sizes the results depend on, but whose values are not used."""
        feeds = self._program.feeds
        equations = self._equations(stand_ins)
        sequences = [name for name, spec in feeds.items() if spec.lod_level and name not in needed]
        found = {n for n in sequences if self._equations_of_longer(n) not in (None, equations)}
        following = [name for name, spec in feeds.items() if spec.shape[:1] == (None,)]
        known = any(n in needed | found for n in following) or any(
            value.shape[:1] == self._program.dummy_batches[:1] for value in stand_ins["overrides"].values()
        )
        if following and not known and self._equations(self._stand_ins(self._program.dummy_batches[1])) != equations:
            found.add(following[0])
        return found

    def _equations_of_longer(self, name: str) -> str | None:
        """Trace the program with longer sequences in the feed `name`, and return the equations; None after an error."""
        try:
            return self._equations(self._stand_ins(self._program.dummy_batches[0], longer=name))
        except errors.FluidError:
            return None

    def _equations(self, stand_ins: Mapping[str, Any]) -> str:
        return re.sub("0x[0-9a-f]+", "", str(self._live(stand_ins)[0]))

    def _live(self, stand_ins: Mapping[str, Any]) -> tuple[Any, list[bool]]:
        """Trace the results; return the jaxpr, and for each example argument True if the results depend on it.

        Equations on which no result depends are removed from the jaxpr.
        """
        jaxpr = jax.make_jaxpr(self._results)(stand_ins).jaxpr
        # Equations that only have effects and compute no result, such as layers.Print of a loss, are not exported.
        pure = jaxpr.replace(eqns=live_equations(jaxpr), effects=frozenset())
        live, used = partial_eval.dce_jaxpr(pure, [True] * len(jaxpr.outvars))
        return live, list(used)

    def _declared(self, name: str, value: Any) -> FeedSpec:
        level, shape = level_of(value), tuple(value.shape)
        batch = None if shape[:1] == (self._program.dummy_batches[0],) else shape[0]
        return FeedSpec(name, (batch, *shape[1 + level :]), str(value.dtype), level)

    def _described(self, stand_ins: Mapping[str, Any]) -> tuple[Output, ...]:
        results = jax.eval_shape(self._results, stand_ins)
        try:
            others = jax.eval_shape(self._results, self._stand_ins(self._program.dummy_batches[1]))
        except Exception:  # a program that allows only the first batch size has results of fixed sizes
            others = results
        names = self._program.output_names if self._names is None else self._names
        values = self._values(stand_ins, names)
        return tuple(
            Output(name, value, _open_shape(first, second), str(first.dtype), level_of(first))
            for name, value, first, second in zip(names or [None] * len(results), values, results, others, strict=True)
        )

    def _values(self, stand_ins: Mapping[str, Any], names: Sequence[str] | None) -> list[str | None]:
        """Return the value name of each result, such as "fc_0.tmp_2"; None for a result that is no named value."""
        program = self._program
        if names is not None:
            found = [program.aliases.get(name, name) for name in names]
            return [name if name in program.values else None for name in found]
        unnamed: list[str | None] = []

        def look(given: Mapping[str, Any]) -> Any:
            applied = self._applied(given)
            known = {id(value): name for name, value in applied.values.items()}
            unnamed.extend(known.get(id(value)) for value in applied.outputs)
            return applied.outputs

        jax.eval_shape(look, {group: stand_ins[group] for group in ("arrays", "feeds", "key")})
        return unnamed


def key_data(seed: int = 0, step: int = 0) -> Any:
    """Return the data of the random key that a Session with seed `seed` uses at step number `step`."""
    return jax.random.key_data(jax.random.fold_in(jax.random.key(seed), step))


def _without_gradients(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if name.endswith(GRAD):
            raise errors.ArgumentError(
                f"fetch={name!r}: an exported model has no gradients; fetch values, as in fetch=['fc_0.tmp_0']"
            )
    return names


def _open_shape(first: Any, second: Any) -> tuple[int | None, ...]:
    """Return the shape of a result, with None for the batch dimension and for the numbers of sequence steps."""
    level = level_of(first)
    sizes = [a if a == b else None for a, b in zip(first.shape, second.shape, strict=True)]
    return (*sizes[:1], *[None] * level, *sizes[1 + level :])
