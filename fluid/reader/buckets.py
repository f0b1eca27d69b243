"""Buckets: choose the sizes to which sequences are padded, so that few compilations and little padding are needed.

Compiled shapes are kept in a list, and a minibatch is padded to the shape in this list that adds the least padding. If
no shape is large enough, a larger shape is added. It holds rows 1.5 times as long as the longest row so far, so that
larger shapes are rarely needed. A finer shape is a smaller shape that would add less padding. It is added once it would
have saved as much as a compilation costs, within the maximum number of compilations. Data of similar lengths therefore
has one shape, and data grouped by length has one shape for each group. If the coming rows are known, the first shape
holds all of them.

`python benchmarks/padding.py` compares these sizes with the best of several lists that were chosen by hand.
"""

import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from fluid import errors
from fluid.core import FeedSpec, whole_number
from fluid.reader.base import increasing
from fluid.reader.feed_checks import complaint
from fluid.reader.ragged import Sizes, longest_rows, padded, sizes_of, steps_of

Places = Sequence[tuple[str, int]]
Ladders = Sequence[int] | tuple[Sequence[int], Sequence[int]] | Mapping[str, Any] | None
"""The type of `buckets=`, the sizes to which sequences are padded: a list of increasing sizes; a pair of lists, one for
each level of nested sequences; or a dict of lists or pairs by feed name. None chooses sizes from the data."""

MAX_COMPILATIONS = 8
_SHORTEST = 4
# A smaller padded shape is added to the compiled shapes once the padding that it would have saved costs as much as
# `_PRICE` minibatches of the largest shape. `python benchmarks/buckets.py` measures other values of `_PRICE` and
# `_SPARE`: a `_PRICE` of 8 raises the cost of padding and compilations by up to 7%.
_PRICE = 2.0
# If a row is longer than all padded shapes, a new shape is added. It has space for rows `_SPARE` times as long as the
# longest row so far.
_SPARE = 1.5
# The number of smaller shapes that Buckets considers for padding. For each of these shapes, Buckets records the padding
# that the shape would have saved.
_CANDIDATES = 256


def padded_time(longest: int) -> int:
    """Return the padded number of steps: the smallest power of two that is at least `longest` and at least 4.

    Example:
      >>> [padded_time(n) for n in (0, 3, 5, 8, 100)]
      [4, 4, 8, 8, 128]
    """
    return max(_SHORTEST, 1 << max(longest - 1, 0).bit_length())


class _Need(NamedTuple):
    """The minimum sizes to which the sequences of a minibatch must be padded.

    Attributes:
      key: all sizes of the minibatch that are fixed already, above all the batch size, as text.
      sizes: the minimum sizes: the number of steps in the longest row of each feed. For a feed of nested sequences, the
        maximum number of sequences in a row and the maximum number of steps in a sequence. Sizes for which the user
        gives `buckets` are left out.
      places: for each number in `sizes`, the pair `(feed name, level)`. The level is 0 for the only or outer level, and
        1 for the inner sequences of nested sequences.
      rows: the batch size.
    """

    key: str
    sizes: Sizes
    places: Places
    rows: int

    def fits(self, shape: Sizes) -> bool:
        return _holds(shape, self.sizes)

    def cost(self, shape: Sizes) -> int:
        """Return the cost of a row that is padded to `shape`: the number of steps with padding, summed over feeds.

        For a feed of nested sequences, the cost is the padded number of sequences times the padded number of steps.
        """
        steps: dict[str, int] = {}
        for (name, _), size in zip(self.places, shape, strict=False):
            steps[name] = steps.get(name, 1) * size
        return sum(steps.values())

    def cheapest(self, shapes: Iterable[Sizes]) -> Sizes | None:
        return min(shapes, key=self.cost, default=None)


@dataclass
class _Seen:
    """The record of earlier minibatches from which `Buckets` chooses shapes.

    Attributes:
      shapes: the shapes of padded minibatches so far, for each of which there is a compilation. Each one is a pair: the
        fixed sizes, such as the batch size, as text (`_Need.key`), and the chosen sizes.
      counts: the number of minibatches so far, by the text of the fixed sizes.
      longest: the size that the longest row of all minibatches so far needs, by the text of `(feed name, level)`.
      growths: the number of shapes that were added because no earlier shape held the minibatch.
      coming: the size that the longest row of the next minibatches needs, by the text of `(feed name, level)`; set by
        `expect`.
      together: the number of next minibatches to which `coming` applies.
      savings: for each finer (smaller) shape, the padding that it would have saved since a shape was last added. The
        unit is the cost of a minibatch of the largest shape.
      real: the number of steps of data since the last `take_steps`.
      fed: the number of steps of data and padding since the last `take_steps`.
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
    """A chooser of padded sizes, which pads the sequences of minibatches to few shapes.

    The sizes depend only on the minibatches padded before and on the rows announced by `expect`.

    Args:
      buckets: sizes to pad to: a list for all sequences, or a dict of lists by name. For nested sequences, a list is
        for the inner sequences, and a pair of lists for both levels. None chooses sizes from the data.
      max_compilations: the maximum number of chosen shapes, at least 1. If the rows become longer and longer, for
        example in sorted data, a few more shapes are added. None always rounds sizes up to powers of two.

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

      Sizes without `buckets=`, for the longest row of each minibatch: the first shape is rounded up slightly, and
      larger shapes hold rows 1.5 times as long. A finer shape is added once it would have saved the cost of two
      minibatches of the largest shape, here for the rows of 10 steps between rows of 100. With a price, it is added
      later.

      >>> def sizes(longest, **settings):
      ...     buckets = Buckets({"words": spec}, **settings)
      ...     return [buckets.pad({"words": read_feed(spec, [[1] * n])})["words"].shape[1] for n in longest]
      >>> sizes([9, 9, 20, 9, 40])
      [10, 10, 32, 10, 64]
      >>> sizes([100, 10, 10, 10, 10, 60, 10])
      [104, 104, 104, 10, 10, 104, 10]
      >>> sizes([100, 10, 10, 10, 10, 60, 10], price=2000)
      [104, 104, 104, 104, 104, 104, 104]
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
        """Return the values of a minibatch with padded sequences; sequences on a device stay unchanged.

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
        """Announce the longest row of the next minibatches, so that the next padded shape can hold all rows."""
        seen = self._seen
        needs = {name: sizes_of(value) for name, value in values.items() if name in self._specs}
        seen.coming = {str((n, i)): size for n, sizes in needs.items() for i, size in enumerate(sizes or ())}
        seen.together = together

    def take_steps(self) -> tuple[int, int]:
        """Return the number of sequence steps since the last call, first without padding, then with padding."""
        seen = self._seen
        steps = (seen.real, seen.fed)
        seen.real = 0
        seen.fed = 0
        return steps

    def state(self) -> dict[str, Any]:
        """Return the record of earlier minibatches as a dict for JSON; the next padded sizes depend on this record."""
        return asdict(self._seen) | {"savings": [[list(s), x] for s, x in self._seen.savings.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replace the record of earlier minibatches, which decides padded sizes, by `state`, a result of `state()`.

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
        """Return the padded sizes of each feed: from the user's `buckets`, or else chosen jointly for all feeds."""
        sizes: dict[str, list[Any]] = {
            n: [self._rung(n, i, values[n], need, where) for i, need in enumerate(needs[n])] for n in needs
        }
        places = [(n, i) for n in needs for i, size in enumerate(sizes[n]) if size is None]
        if places:
            # `given` holds the sizes of the minibatch that are fixed already, such as the batch size. As a text, these
            # sizes become the attribute `key` of a `_Need`.
            given = {n: [v.shape[0], *sizes[n]] if n in sizes else list(np.shape(v)) for n, v in values.items()}
            least = tuple(needs[n][i] for n, i in places)
            chosen = self._choose(_Need(repr(given), least, places, values[places[0][0]].shape[0]))
            for (name, level), size in zip(places, chosen, strict=True):
                sizes[name][level] = size
        return {n: tuple(found) for n, found in sizes.items()}

    def _rung(self, name: str, level: int, value: Any, need: int, where: str) -> int | None:
        """Return the smallest of the user's buckets (sizes) that is at least `need`; None without buckets."""
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
        """Return the sizes to which a minibatch is padded; record the minibatch, and add a shape if needed."""
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
            return self._grow(need, longest, usual)
        return self._refine(need, best, whole, price) if usual else best

    def _soon_needed(self, need: _Need) -> Sizes | None:
        """Return a padded shape that holds the current minibatch and the minibatches that `expect` has announced.

        A single shape saves compilations. The result is None in two cases:

        - The announced minibatches, all padded to this shape, cost more than one compilation.
        - The current minibatch has a longer row than the announced minibatches.
        """
        seen = self._seen
        coming = tuple(seen.coming.get(str(place), 0) for place in need.places)
        shape = _fine(coming)
        worth_it = seen.together * need.rows * need.cost(shape) <= self._price
        return shape if worth_it and need.fits(coming) else None

    def _grow(self, need: _Need, longest: Sizes, usual: bool) -> Sizes:
        """Add a padded shape that holds this minibatch, and return the shape.

        The choices for one feed and at most 8 compilations; the first row of the table that applies decides:

        | minibatch | new shape | example |
        |---|---|---|
        | with a rare batch size | a known shape that holds all rows so far | 3 rows of 5 steps, known 16: 16 |
        | first, longer rows are announced | holds the announced rows, rounded up | 9 steps, 20 announced: 20 |
        | first | rounded up | 9 steps: 10 |
        | second to fourth | holds rows 1.5 times as long as all so far | 20 steps: 32 |
        | fifth or later | holds rows twice as long as all so far | 20 steps: 40 |
        """
        seen = self._seen
        budget = self._budget or 0
        spare = _SPARE if seen.growths < budget // 2 else 2
        shape = _fine(tuple(math.ceil(n * spare) for n in longest))
        # A minibatch with a rare batch size, for example a short last minibatch, is padded to the sizes of an earlier
        # shape.
        if not usual:
            shape = need.cheapest(known for _, known in seen.shapes if _holds(known, longest)) or shape
        elif not seen.shapes and budget > 2:
            shape = self._soon_needed(need) or _fine(need.sizes)
        if usual:
            seen.growths += 1
            seen.savings = {}
        seen.shapes.append((need.key, shape))
        return shape

    def _refine(self, need: _Need, best: Sizes, whole: int, price: float) -> Sizes:
        """Choose the shape to which a minibatch is padded: a new, smaller shape if that saves enough time, else `best`.

        Each shape costs a compilation. So this method records how much padding each smaller shape would have saved in
        the minibatches so far. A smaller shape is added when this padding costs as much time as a compilation.
        """
        seen = self._seen
        budget = self._budget or 0
        # Minibatches are padded to a limited number of shapes, because each shape is compiled. Reserve one shape for
        # longer rows. Reserve another one for a short last minibatch, until a short minibatch has been read.
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
        # Sequences on a device are not padded, so minibatches may differ in the number of padded feeds. The shape
        # `finest` may come from a minibatch with another number of padded feeds, and then does not fit this minibatch.
        if len(finest) != len(need.sizes):
            return best
        seen.shapes.append((need.key, finest))
        return finest if need.fits(finest) and need.cost(finest) < cost else best


def _holds(sizes: Sizes, need: Sizes) -> bool:
    return len(sizes) == len(need) and all(map(operator.ge, sizes, need))


def _fine(need: Sizes) -> Sizes:
    """Round the padded sizes of a shape up to a grid of sizes, which is finer than powers of two.

    The grid divides the distance between two powers of two into four steps, or eight steps above 64. A shape of three
    sizes has half as many steps, a shape of four sizes a quarter, and so on, but at least one step.
    """
    return tuple(-(-n // step) * step for n, step in ((max(n, _SHORTEST), _step(n, len(need))) for n in need))


def _step(size: int, count: int) -> int:
    """Return the step of the grid of padded lengths near the length `size`, for a shape of `count` sizes."""
    parts = max((4 if size <= 64 else 8) >> max(count - 2, 0), 1)
    return max((padded_time(size) // 2) // parts, 1)


def padding_of(buckets: Iterable[Buckets]) -> float | None:
    """Return the fraction of padding among the steps fed since the last call; None if no sequences were padded."""
    steps = [each.take_steps() for each in buckets]
    fed = sum(count for _, count in steps)
    return 1 - sum(count for count, _ in steps) / fed if fed else None


def check_names(buckets: Ladders, names: Iterable[str]) -> None:
    """Refuse a dict `buckets` with a key that is not the name of a sequence.

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
    """Return the sizes that `buckets` allows for each nesting level of a feed; None for a level without sizes."""
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
