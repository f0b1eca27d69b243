"""Shapes: to which sizes requests are padded, so that all that is ever run was compiled before."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from fluid import errors
from fluid.core import FeedSpec, NestedSequenceBatch, Program, SequenceBatch
from fluid.reader.ragged import Sizes, padded, sizes_of
from fluid.serving.settings import Settings

Rung = Mapping[str, Sizes]


class Shapes:
    """The sizes of one model: numbers of rows, and numbers of steps for its sequences, which all take one step up
    together.

    Args:
      program: the model; an exported one may have been exported for certain sizes only.
      settings: the sizes for all others.
    """

    def __init__(self, program: Program, settings: Settings):
        self._specs = {name: spec for name, spec in program.feeds.items() if spec.lod_level}
        self.rows = _exported_rows(program, settings) or settings.sizes()
        self.rungs = _rungs(self._specs, program.buckets or {}, settings)
        self._open = [n for n, s in program.feeds.items() if None in s.shape[1:] or s.shape[:1] != (None,)]

    def rung(self, values: Mapping[str, Any]) -> int:
        """The smallest rung that holds all sequences.

        Raises:
          FeedError: none does.
        """
        needs = {name: found for name in self._specs if (found := sizes_of(values[name])) is not None}
        for index, rung in enumerate(self.rungs):
            if all(need <= room for name in needs for need, room in zip(needs[name], rung[name], strict=True)):
                return index
        last = self.rungs[-1]
        name = next(n for n in needs if any(need > room for need, room in zip(needs[n], last[n], strict=True)))
        raise errors.FeedError(
            f"feed {name!r}: found a row of {' x '.join(map(str, needs[name]))} steps, expected at most "
            f"{' x '.join(map(str, last[name]))}; cut longer ones, or serve the model with larger buckets: --buckets"
        )

    def key(self, rung: int, values: Mapping[str, Any]) -> Hashable:
        """What requests have in common that may run together."""
        return (rung, *(values[name].shape[1:] for name in self._open))

    def room(self, rows: int) -> int:
        """To how many rows so many are padded."""
        return next((size for size in self.rows if size >= rows), rows)

    def padded(self, rung: int, values: Mapping[str, Any]) -> dict[str, Any]:
        """Values with their sequences padded to a rung."""
        return {n: padded(v, self.rungs[rung][n]) if n in self._specs else v for n, v in values.items()}


def joined(parts: Sequence[Mapping[str, Any]], room: int) -> dict[str, Any]:
    """Several feeds as one, padded with copies of the last row: no layer gets values that it would not have got."""
    return {name: _joined([part[name] for part in parts], room) for name in parts[0]}


def cut(value: Any, start: int, end: int) -> Any:
    """Some rows of a result, on the host."""
    if isinstance(value, SequenceBatch):
        return SequenceBatch(value.data[start:end], value.lengths[start:end])
    if isinstance(value, NestedSequenceBatch):
        return NestedSequenceBatch(value.data[start:end], value.lengths[start:end], value.inner_lengths[start:end])
    return value[start:end]


def made_up(specs: Mapping[str, FeedSpec], rows: int, rung: Rung, random: np.random.Generator) -> dict[str, Any]:
    """Data that fits the declarations; sizes that are not fixed become 1, and sequences are as long as they may be."""
    return {name: _made_up(spec, rows, rung.get(name, ()), random) for name, spec in specs.items()}


def _made_up(spec: FeedSpec, rows: int, steps: Sizes, random: np.random.Generator) -> Any:
    sizes = [1 if size is None else size for size in spec.shape]
    shape = (rows, *steps, *sizes[1:]) if spec.shape[:1] == (None,) else tuple(sizes)
    if spec.held.kind in "iub":
        low, high, _ = spec.limits or (0, 2, None)
        data = random.integers(low, high, shape).astype(spec.held)
    else:
        data = random.normal(size=shape).astype(spec.held)
    if not steps:
        return data
    lengths = np.full(rows, steps[0], np.int32)
    if len(steps) == 1:
        return SequenceBatch(data, lengths)
    return NestedSequenceBatch(data, lengths, np.full((rows, steps[0]), steps[1], np.int32))


def _joined(values: Sequence[Any], room: int) -> Any:
    first = values[0]
    if isinstance(first, SequenceBatch):
        return SequenceBatch(_joined([v.data for v in values], room), _joined([v.lengths for v in values], room))
    if isinstance(first, NestedSequenceBatch):
        parts = ([v.data for v in values], [v.lengths for v in values], [v.inner_lengths for v in values])
        return NestedSequenceBatch(*(_joined(part, room) for part in parts))
    missing = room - sum(len(value) for value in values)
    if missing:
        values = [*values, np.repeat(values[-1][-1:], missing, axis=0)]
    return values[0] if len(values) == 1 else np.concatenate(values)


def _exported_rows(program: Program, settings: Settings) -> tuple[int, ...]:
    """The sizes that a model was exported for, within those that are served; none when it takes any."""
    found = program.batch_sizes or ()
    return tuple(size for size in found if size <= settings.sizes()[-1]) or tuple(found[:1])


def _rungs(specs: Mapping[str, FeedSpec], exported: Mapping[str, Any], settings: Settings) -> list[Rung]:
    if not specs:
        return [{}]
    ladders = {name: list(_ladder(spec, exported.get(name), settings)) for name, spec in specs.items()}
    count = max(map(len, ladders.values()))
    return [{name: ladder[min(i, len(ladder) - 1)] for name, ladder in ladders.items()} for i in range(count)]


def _ladder(spec: FeedSpec, exported: Any, settings: Settings) -> Iterator[Sizes]:
    if spec.lod_level == 1:
        yield from ((size,) for size in exported or settings.buckets)
        return
    outer, inner = exported or (settings.outer(), settings.buckets)
    for i in range(max(len(outer), len(inner))):
        yield outer[min(i, len(outer) - 1)], inner[min(i, len(inner) - 1)]
