"""ExportedProgram: a Program that calls exported functions, which a Session or an Inferencer runs."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

import jax

from fluid import errors
from fluid.core import TEST, Applied, ParameterSpec, Program, Shapes
from fluid.export.signature import BATCH, Entry, leaves_of, value_of

Functions = list[tuple[Mapping[str, int], Callable[..., Any]]]


class ExportedProgram(Program):
    """An entry point of an exported model, which a Session or an Inferencer runs like any other program.

    The program runs in test mode only. Only exported values can be fetched.

    Args:
      name: the name of the entry point.
      entry: the signature of the entry point.
      arrays: the parameters and states of the entry point, by name.
      states: the names of the states.
      functions: the exported functions, each with its fixed sizes by name; the first that fits the feeds runs.
      where: the name of the file, for error messages.
    """

    exported = True

    def __init__(
        self,
        name: str,
        entry: Entry,
        arrays: Mapping[str, jax.Array],
        states: set[str],
        functions: Functions,
        where: str,
    ):
        site = f"the entry point {name!r} of {where}"
        self.name = name
        self.function = self._no_function
        self.precision = None
        self.feeds = {feed.name: replace(feed, site=site) for feed in entry.feeds}
        specs = {n: _spec(n, array, None if n in states else True, site) for n, array in arrays.items()}
        self.parameters = {n: spec for n, spec in specs.items() if n not in states}
        self.states = {n: spec for n, spec in specs.items() if n in states}
        names = [output.name for output in entry.outputs]
        self.output_names = None if None in names else tuple(map(str, names))
        values = {o.value: o.array for o in entry.outputs if o.value is not None}
        self._shapes = self._marked = Shapes([output.array for output in entry.outputs], values)
        self.sites = dict.fromkeys(values, site)
        self.kinds = dict.fromkeys(values, "exported")
        self.sample_shapes = {}
        self.aliases = {o.name: o.value for o in entry.outputs if o.name is not None and o.value is not None}
        self.lines = {}
        self.equation_values = {}
        self.returned = {}
        self.minimizes = []
        self.random = self._draws = entry.random
        self.lookups = ()
        self.dense_uses = frozenset()
        self.batch_sizes = _ladder(entry, BATCH)
        self.buckets = _buckets(entry)
        self.table = entry.table
        self._entry, self._arrays, self._functions = entry, arrays, functions

    def init(self, key: jax.Array | None, names: Collection[str] | None = None) -> dict[str, Any]:
        """Return the parameters and states of the file, by name: all of them, or those in `names`."""
        del key
        return {name: value for name, value in self._arrays.items() if names is None or name in names}

    def apply(
        self,
        arrays: Mapping[str, Any],
        feeds: Mapping[str, Any],
        *,
        key: jax.Array,
        mode: str = TEST,
        overrides: Mapping[str, Any] | None = None,
        perturbations: Mapping[str, Any] | None = None,
        row_perturbations: Mapping[str, list[Any]] | None = None,
        labelling: bool = False,
        plain: bool = False,
        parts: bool = False,
        frozen: frozenset[str] = frozenset(),
        gather: Any = None,
        until: frozenset[str] | None = None,
    ) -> Applied:
        """Run the exported function that fits the sizes of the feeds; see `Program.apply`.

        Raises:
          ArgumentError: the mode is not "test", or `parts` is True.
          FeedError: the program was not exported for the sizes of the feeds.
        """
        if mode != TEST:
            raise errors.ArgumentError(f"the program {self.name} was exported for inference; run it with mode='test'")
        if parts:
            raise errors.ArgumentError(
                f"the program {self.name} was exported for inference, so how its outputs combine over a data set is "
                f"not known; test it by the Trainer that has its function"
            )
        function = self._fitting(feeds)
        given = {name: leaves_of(value) for name, value in feeds.items()}
        named = {n: arrays[n] for n in self._arrays}
        data = jax.random.key_data(key) if self.random else None
        try:
            outputs = [value_of(leaves) for leaves in function(named, given, data)]
            values = {o.value: v for o, v in zip(self._entry.outputs, outputs, strict=True) if o.value is not None}
        except (TypeError, ValueError) as error:
            raise errors.ArtifactError(
                f"the manifest of the program {self.name} says something else than its function takes and returns: "
                f"{error}; expected a file that trainer.save_inference_model wrote"
            ) from error
        states = {n: arrays[n] for n in self.states}
        return Applied(outputs, states, {**feeds, **named, **values}, [], [], {})

    def _no_function(self) -> Any:
        raise errors.ProgramError(f"the program {self.name} was exported, and its function is not here")

    def _fitting(self, feeds: Mapping[str, Any]) -> Callable[..., Any]:
        sizes = self._sizes(feeds)
        for fixed, function in self._functions:
            if fixed.items() <= sizes.items():
                return function
        known = sorted({tuple(fixed.items()) for fixed, _ in self._functions})
        raise errors.FeedError(
            f"the program {self.name} was exported for the sizes {'; '.join(_shown(dict(k)) for k in known)}, found "
            f"{_shown(sizes)}; export it for these as well: save_inference_model(..., batch_sizes=[1, 8], "
            f"buckets=[16, 64])"
        )

    def _sizes(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """Return the open sizes of the feeds, by name.

        Raises:
          FeedError: two feeds have different sizes of one name, or sequences are padded to too few steps.
        """
        found: dict[str, tuple[int, str]] = {}
        for feed in self._entry.feeds:
            for symbol, size in feed.sizes(feeds[feed.name].shape).items():
                other, where = found.setdefault(symbol, (size, feed.name))
                if size != other:
                    what = "rows" if symbol == BATCH else "steps"
                    raise errors.FeedError(
                        f"{where!r} has {other} {what}, and {feed.name!r} has {size}; give as many of each"
                    )
                if symbol != BATCH and size < self._entry.least:
                    raise errors.FeedError(
                        f"{feed.name!r} is padded to {size} steps, expected at least {self._entry.least}"
                    )
        return {symbol: size for symbol, (size, _) in found.items()}


def _spec(name: str, array: jax.Array, trainable: bool | None, site: str) -> ParameterSpec:
    shape, dtype = tuple(array.shape), str(array.dtype)
    return ParameterSpec(name, shape, dtype, lambda key, shape, dtype: array, trainable, site=site)


def _ladder(entry: Entry, symbol: str) -> tuple[int, ...] | None:
    """Return the sizes, ascending, that the functions fix for the dimension named `symbol`; None if it is open."""
    sizes = [function.sizes.get(symbol) for function in entry.functions]
    return None if None in sizes else tuple(sorted({size for size in sizes if size is not None}))


def _buckets(entry: Entry) -> dict[str, Any] | None:
    """Return the fixed numbers of steps that sequences are padded to, by name of the feed; None if all are open."""
    found: dict[str, Any] = {}
    for feed in entry.feeds:
        ladders = [_ladder(entry, str(d)) for d in feed.dims[1 : 1 + feed.lod_level]]
        if ladders and ladders[-1] is not None:
            found[feed.name] = ladders[0] if len(ladders) == 1 else tuple(ladders)
    return found or None


def _shown(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())
