"""Chain: computes the feeds of a program that are values of other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fluid.core import FeedSpec
from fluid.runtime import CompiledStep
from fluid.runtime.seeds import Draw


class Link(NamedTuple):
    """The values that one other program computes as feeds of a program.

    Attributes:
      step: the compiled step of the other program, in test mode.
      feeds: names of the feeds that the results of `step` become, in the order of these results.
      chain: computes feeds of the other program from a third one; None if the minibatch holds all feeds of `step`.
    """

    step: CompiledStep
    feeds: tuple[str, ...]
    chain: Chain | None


class Chain:
    """A function that computes the feeds of a program from values of other programs, with the current parameters.

    The other programs run in test mode: nothing is kept between steps, and no state changes.

    Args:
      own: names of the feeds of the program.
      links: the other programs, each of which computes some of these feeds.
      reads: the feeds that the minibatches must hold.

    Attributes:
      reads: the argument `reads`.
    """

    def __init__(self, own: Sequence[str], links: Sequence[Link], reads: dict[str, FeedSpec]):
        self.reads = reads
        self._own = own
        self._links = links

    def __call__(self, feed: Mapping[str, Any], draw: Draw | None = None) -> dict[str, Any]:
        """Return the feed of the program: the arrays of a minibatch, and the values that other programs compute.

        Feeds that the minibatch lacks, and that no other program computes, are left out.

        Args:
          feed: the minibatch, with arrays for the names in `reads`.
          draw: the random key for the other programs, as for `CompiledStep`.
        """
        computed: dict[str, Any] = {}
        for link in self._links:
            needed = feed if link.chain is None else {**feed, **link.chain(feed, draw)}
            values = link.step({name: needed[name] for name in link.step.request.feeds}, draw=draw).values
            computed.update(zip(link.feeds, values, strict=True))
        both = {**feed, **computed}
        return {name: both[name] for name in self._own if name in both}
