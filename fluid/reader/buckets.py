"""Buckets: choose the sizes to which sequences are padded, so that few compilations and little padding are needed.

Compiled shapes are kept in a list, and a minibatch is padded to the cheapest shape that holds it. If no shape is large
enough, a larger shape is added that holds all data so far; its sizes are powers of two, so that growth is rare. A finer
shape is added once it would have saved as much padding as a compilation costs, within the budget of compilations. Data
of similar lengths therefore has one shape, and data grouped by length has one shape for each group. If a compilation
costs as much as many minibatches, shapes leave space for longer rows, and finer shapes are rare. If the coming rows are
known, the first shape holds all of them.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fluid import errors
from fluid.core import FeedSpec, whole_number
from fluid.reader.base import increasing
from fluid.reader.ragged import Sizes, longest_rows, padded, sizes_of, steps_of
from fluid.reader.values import complaint

Places = Sequence[tuple[str, int]]
Ladders = Sequence[int] | tuple[Sequence[int], Sequence[int]] | Mapping[str, Any] | None
"""The type of `buckets=`: increasing sizes, a pair of these lists for both levels, or a dict of them by feed."""

MAX_COMPILATIONS = 8
_SHORTEST = 4
# `python benchmarks/buckets.py` shows the cost of other constants. The least price of a finer shape: it is added once
# it would have saved this number of minibatches of the largest shape. A price of 8 costs up to 7% more.
_PRICE = 2.0
# From this price on, shapes leave space for rows that are longer than all rows so far. 8 costs up to 4% more, 128 up to
# 17%.
_DEAR = 32
# The maximum number of candidates for a finer shape.
_CANDIDATES = 256


def padded_time(longest: int) -> int:
    """Return the padded number of steps without a history: a power of two, at least 4.

    Args:
      longest: the length of the longest row.

    Example:
      >>> [padded_time(n) for n in (0, 3, 5, 8, 100)]
      [4, 4, 8, 8, 128]
    """
    return max(_SHORTEST, 1 << max(longest - 1, 0).bit_length())


class _Need(NamedTuple):
    """The sizes that a minibatch needs, where `Buckets` chooses them.

    Attributes:
      key: the sizes that are not chosen, as text, above all the batch size.
      sizes: the minimum sizes.
      places: feed and level of each of these sizes.
      rows: the batch size.
    """

    key: str
    sizes: Sizes
    places: Places
    rows: int

    def fits(self, shape: Sizes) -> bool:
        """Return whether a shape holds the minibatch."""
        return _holds(shape, self.sizes)

    def cost(self, shape: Sizes) -> int:
        """Return the padded steps of a row in a shape, summed over feeds; nested feeds count sequences times steps."""
        steps: dict[str, int] = {}
        for (name, _), size in zip(self.places, shape, strict=False):
            steps[name] = steps.get(name, 1) * size
        return sum(steps.values())

    def cheapest(self, shapes: Iterable[Sizes]) -> Sizes | None:
        """Return the shape of the least cost; None without shapes."""
        return min(shapes, key=self.cost, default=None)


@dataclass
class _Seen:
    """The state on which choices depend.

    Attributes:
      shapes: the compiled shapes: the fixed sizes as text, for example the batch size, and the chosen sizes.
      counts: the number of minibatches, by fixed sizes.
      longest: the largest need of all minibatches, by feed and level.
      growths: the number of shapes that were added because no shape held the minibatch.
      coming: the sizes that coming rows need, by feed and level.
      together: the number of coming minibatches.
      savings: the savings of finer shapes since the last choice, in minibatches of the largest shape.
      real: steps of data since the last `padding_of`.
      fed: steps of data and padding since the last `padding_of`.
    """

    shapes: list[tuple[str, Sizes]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)
    growths: int = 0
    coming: dict[str, int] = field(default_factory=dict)
    together: int = 0
    savings: dict[Sizes, float] = field(default_factory=dict)
    real: int = 0
    fed: int = 0


class Buckets:
    """Padding of the sequences of minibatches to few shapes.

    The choices depend only on the minibatches before and on `expect`.

    Args:
      specs: the declarations by name.
      buckets: sizes to pad to: a list for all sequences, or a dict of lists by name. For nested sequences, a list is
        for the inner sequences, and a pair of lists for both levels. None chooses sizes from the data.
      max_compilations: the maximum number of chosen shapes, at least 1. Minibatches whose lengths keep growing, for
        example of sorted data, may take some more. None keeps no history: sizes are powers of two.
      price: the cost of a compilation, in computed steps of one row.

    Raises:
      ArgumentError: the buckets are not increasing sizes, or `max_compilations` is below 1.
      UnknownNameError: no sequence has this name.

    Example:
      >>> from fluid.core import FeedSpec, whole_number
      >>> from fluid.reader.columns import read_feed
      >>> spec = FeedSpec("words", (None, 1), "int64", lod_level=1)
      >>> buckets = Buckets({"words": spec}, buckets=[16, 64])
      >>> buckets.pad({"words": read_feed(spec, [[1, 2, 3], [4]])})["words"].shape
      (2, 16, 1)

      Choices without `buckets=`, by the longest row of each minibatch: the first shape is rounded up finely, and larger
      ones to powers of two. A finer shape comes once it would have saved two minibatches of the largest shape, here for
      the rows of 10 steps between rows of 100. If a compilation costs as much as many minibatches, the first shape has
      room for longer rows.

      >>> def sizes(longest, **settings):
      ...     buckets = Buckets({"words": spec}, **settings)
      ...     return [buckets.pad({"words": read_feed(spec, [[1] * n])})["words"].shape[1] for n in longest]
      >>> sizes([9, 9, 20, 9, 40])
      [10, 10, 32, 10, 64]
      >>> sizes([100, 10, 10, 10, 10, 60, 10])
      [112, 112, 112, 10, 10, 112, 10]
      >>> sizes([9, 12, 20], price=1e9)
      [16, 16, 64]
    """

    def __init__(
        self,
        specs: Mapping[str, FeedSpec],
        buckets: Ladders = None,
        max_compilations: int | None = MAX_COMPILATIONS,
        price: float = 0.0,
    ):
        self._specs = {name: spec for name, spec in specs.items() if spec.lod_level}
        self._ladders = {name: _ladders(spec, buckets) for name, spec in self._specs.items()}
        check_names(buckets, self._specs)
        limit = max_compilations
        self._budget = None if limit is None else whole_number("Buckets", "max_compilations", limit)
        self._price = price
        self._seen = _Seen()

    def pad(self, values: Mapping[str, Any], where: str = "") -> dict[str, Any]:
        """Pad the sequences that `read_feed` returned; sequences on a device stay unchanged.

        Args:
          values: the values of one minibatch, by name.
          where: the position for messages, "batch 7", or empty.

        Raises:
          FeedError: a row is longer than the largest bucket.
        """
        needs: dict[str, Sizes] = {}
        for name in self._specs:
            if name in values and (need := sizes_of(values[name])) is not None:
                needs[name] = need
        if not needs:
            return dict(values)
        sizes = self._sizes(needs, values, where)
        filled = {n: padded(v, sizes[n]) if n in sizes else v for n, v in values.items()}
        for name in needs:
            real, fed = steps_of(filled[name])
            self._seen.real += real
            self._seen.fed += fed
        return filled

    def expect(self, values: Mapping[str, Any], together: int) -> None:
        """Announce coming rows, so that the first shape can hold them.

        Args:
          values: the longest coming row, as `read_feed` returned it, by name.
          together: the number of coming minibatches without a longer row.
        """
        seen = self._seen
        needs = {name: sizes_of(value) for name, value in values.items() if name in self._specs}
        seen.coming = {str((n, i)): size for n, sizes in needs.items() for i, size in enumerate(sizes or ())}
        seen.together = together

    def take_steps(self) -> tuple[int, int]:
        """Return the steps of data, and the steps of data and padding, since the last call."""
        seen = self._seen
        steps = (seen.real, seen.fed)
        seen.real = 0
        seen.fed = 0
        return steps

    def state(self) -> dict[str, Any]:
        """Return the state on which choices depend, as JSON."""
        return asdict(self._seen) | {"savings": [[list(s), x] for s, x in self._seen.savings.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue after the minibatches before a state.

        Raises:
          ArgumentError: `state` is not a result of `state()`.
        """
        try:
            shapes = [(str(key), tuple(sizes)) for key, sizes in state["shapes"]]
            savings = {tuple(sizes): float(x) for sizes, x in state["savings"]}
            seen = _Seen(shapes, savings=savings)
            given = {"coming": {}, "together": 0, **state}
            for kind, names in ((dict, ("counts", "longest", "coming")), (int, ("growths", "together", "real", "fed"))):
                for name in names:
                    setattr(seen, name, kind(given[name]))
        except (TypeError, KeyError, ValueError) as error:
            raise errors.ArgumentError(f"restore needs what buckets.state() returned, found {state!r}") from error
        self._seen = seen

    def _sizes(self, needs: Mapping[str, Sizes], values: Mapping[str, Any], where: str) -> dict[str, Sizes]:
        """Return sizes by name: from the given buckets where they exist; all other sizes are chosen jointly."""
        sizes: dict[str, list[Any]] = {
            n: [self._rung(n, i, values[n], need, where) for i, need in enumerate(needs[n])] for n in needs
        }
        places = [(n, i) for n in needs for i, size in enumerate(sizes[n]) if size is None]
        if places:
            # The sizes that are not chosen here.
            given = {n: [v.shape[0], *sizes[n]] if n in sizes else list(np.shape(v)) for n, v in values.items()}
            least = tuple(needs[n][i] for n, i in places)
            chosen = self._choose(_Need(repr(given), least, places, values[places[0][0]].shape[0]))
            for (name, level), size in zip(places, chosen, strict=True):
                sizes[name][level] = size
        return {n: tuple(found) for n, found in sizes.items()}

    def _rung(self, name: str, level: int, value: Any, need: int, where: str) -> int | None:
        """Return the smallest given bucket for the need of a value at a level; None without buckets."""
        ladder = self._ladders[name][level]
        if ladder is None:
            return None
        for size in ladder:
            if size >= need:
                return size
        what = "steps" if level == len(self._ladders[name]) - 1 else "sequences"
        found = f"a row of {need} {what}"
        expected = f"at most {ladder[-1]}, the largest bucket"
        fix = f"Give larger buckets: buckets=[..., {need}]; or cut rows that are longer: row[:{ladder[-1]}]"
        raise complaint(self._specs[name], where, longest_rows(value)[level], found, fix, expected)

    def _choose(self, need: _Need) -> Sizes:
        """Return a shape that holds a minibatch."""
        if self._budget is None:
            return tuple(map(padded_time, need.sizes))
        seen = self._seen
        seen.counts[need.key] = seen.counts.get(need.key, 0) + 1
        for place, size in zip(map(str, need.places), need.sizes, strict=True):
            seen.longest[place] = max(seen.longest.get(place, 0), size)
        longest = tuple(seen.longest[str(place)] for place in need.places)
        usual = need.key == max(seen.counts, key=lambda k: seen.counts[k])
        whole = need.cost(tuple(map(padded_time, longest)))
        price = max(self._price / max(need.rows * whole, 1), _PRICE)
        best = need.cheapest(shape for key, shape in seen.shapes if key == need.key and need.fits(shape))
        if best is None:
            return self._grow(need, longest, usual, price >= _DEAR)
        return self._refine(need, best, whole, price) if usual else best

    def _soon_needed(self, need: _Need) -> Sizes | None:
        """Return a shape for the coming rows, if padding them costs less than one more compilation; else None."""
        seen = self._seen
        coming = tuple(seen.coming.get(str(place), 0) for place in need.places)
        shape = _fine(coming)
        worth_it = seen.together * need.rows * need.cost(shape) <= self._price
        return shape if worth_it and need.fits(coming) else None

    def _grow(self, need: _Need, longest: Sizes, usual: bool, dear: bool) -> Sizes:
        """Add a shape that holds all data so far; also longer rows if compilations are expensive.

        Args:
          need: the sizes that the minibatch needs.
          longest: the largest need of all minibatches so far.
          usual: True if most minibatches have the same fixed sizes.
          dear: True if a compilation costs as much as many minibatches.
        """
        seen = self._seen
        budget = self._budget or 0
        shape = tuple(map(padded_time, longest))
        if not usual:  # for example a short last minibatch, which gets one shape only
            shape = need.cheapest(known for _, known in seen.shapes if _holds(known, longest)) or shape
        elif not seen.shapes and budget > 2:
            room = tuple(padded_time(n + n // 2) for n in need.sizes) if dear else _fine(need.sizes)
            shape = self._soon_needed(need) or room
        elif seen.growths >= (1 if dear else budget // 2):
            shape = tuple(padded_time(2 * n) for n in longest)
        if usual:
            seen.growths += 1
            seen.savings = {}
        seen.shapes.append((need.key, shape))
        return shape

    def _refine(self, need: _Need, best: Sizes, whole: int, price: float) -> Sizes:
        """Record the savings of finer shapes; add the shape with the largest savings once it is worth a compilation.

        Args:
          need: the sizes that the minibatch needs.
          best: the cheapest shape that holds the minibatch.
          whole: the cost of the largest shape.
          price: the cost of a compilation, in minibatches of the largest shape.
        """
        seen = self._seen
        budget = self._budget or 0
        # Reserved: one shape for longer rows, and one for a short last minibatch until there was one.
        reserve = 1 + (len({known for known, _ in seen.shapes}) == 1)
        if len(seen.shapes) >= budget - reserve:
            return best
        cost = need.cost(best)
        if len(seen.savings) < _CANDIDATES:
            seen.savings.setdefault(_fine(need.sizes), 0.0)
        for shape in seen.savings:
            if need.fits(shape):
                seen.savings[shape] += max(cost - need.cost(shape), 0) / whole
        finest = max(seen.savings, key=lambda shape: seen.savings[shape])
        if seen.savings[finest] < price:
            return best
        seen.savings = {}
        if len(finest) != len(need.sizes):  # recorded with another number of feeds on the host
            return best
        seen.shapes.append((need.key, finest))
        return finest if need.fits(finest) and need.cost(finest) < cost else best


def _holds(sizes: Sizes, need: Sizes) -> bool:
    return len(sizes) == len(need) and all(map(operator.ge, sizes, need))


def _fine(need: Sizes) -> Sizes:
    """Round sizes up to a finer grid: four sizes per power of two, fewer if a shape has more than two sizes."""
    parts = max(4 >> max(len(need) - 2, 0), 1)
    return tuple(-(-n // step) * step for n, step in ((max(n, _SHORTEST), _step(n, parts)) for n in need))


def _step(need: int, parts: int) -> int:
    return max((padded_time(need) // 2) // parts, 1)


def padding_of(buckets: Iterable[Buckets]) -> float | None:
    """Return the fraction of padding among all steps since the last call; None without steps."""
    steps = [each.take_steps() for each in buckets]
    fed = sum(count for _, count in steps)
    return 1 - sum(count for count, _ in steps) / fed if fed else None


def check_names(buckets: Ladders, names: Iterable[str]) -> None:
    """Refuse buckets for unknown sequences.

    Raises:
      UnknownNameError: no sequence has this name.
    """
    names = list(names)
    for name in buckets if isinstance(buckets, Mapping) else ():
        if name not in names:
            raise errors.UnknownNameError(
                f"buckets names {name!r}, expected feeds with lod_level=1 or 2. {errors.nearest(str(name), names)}"
            )


def _ladders(spec: FeedSpec, buckets: Ladders) -> list[list[int] | None]:
    """Return the given sizes of each level of a feed; None for a level without sizes."""
    mine = buckets.get(spec.name) if isinstance(buckets, Mapping) else buckets
    nothing: list[list[int] | None] = [None] * (spec.lod_level - 1)
    if mine is None:
        return [*nothing, None]
    if not isinstance(mine, Sequence) or isinstance(mine, str) or not mine:
        raise _no_ladder(spec, buckets)
    if all(isinstance(sizes, Sequence) for sizes in mine):
        if len(mine) != spec.lod_level:
            raise _no_ladder(spec, buckets)
        return [_increasing(spec, sizes, buckets) for sizes in mine]
    return [*nothing, _increasing(spec, mine, buckets)]


def _increasing(spec: FeedSpec, sizes: Any, buckets: Ladders) -> list[int]:
    found = increasing(sizes)
    if not found or found[0] < 1:
        raise _no_ladder(spec, buckets)
    return found


def _no_ladder(spec: FeedSpec, buckets: Ladders) -> errors.ArgumentError:
    pair = "" if spec.lod_level == 1 else f", or a list for each level: {{{spec.name!r}: ([4, 8], [16, 64])}}"
    return errors.ArgumentError(
        f"buckets={buckets!r}: expected increasing sizes from 1 on for {spec.name!r}, as in buckets=[16, 64, 400] or "
        f"buckets={{{spec.name!r}: [16, 64, 400]}}{pair}"
    )
