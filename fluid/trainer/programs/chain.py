"""Chain: the feeds of a program that are values of other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fluid.core import FeedSpec
from fluid.runtime import CompiledStep
from fluid.runtime.seeds import Draw


class Link(NamedTuple):
    """The values that another program computes for this program.

    Attributes:
      step: the compiled step of the other program, in test mode.
      feeds: names of the feeds of this program, in the order of the results of `step`.
      chain: computes some of the feeds of `step`; None if the minibatch holds all.
    """

    step: CompiledStep
    feeds: tuple[str, ...]
    chain: Chain | None


class Chain:
    """A function that computes the feeds of a program from values of other programs, with the current parameters.

    The other programs run in test mode: nothing is kept between steps, and no state changes.

    Args:
      own: names of the feeds of the program.
      links: the other programs that compute some of these feeds.
      reads: the feeds in the minibatches.

    Attributes:
      reads: the argument `reads`.
    """

    def __init__(self, own: Sequence[str], links: Sequence[Link], reads: dict[str, FeedSpec]):
        self.reads = reads
        self._own = own
        self._links = links

    def __call__(self, feed: Mapping[str, Any], draw: Draw | None = None) -> dict[str, Any]:
        """Return the feed of the program for a minibatch of `reads`; `draw` as for `CompiledStep`."""
        computed: dict[str, Any] = {}
        for link in self._links:
            needed = feed if link.chain is None else {**feed, **link.chain(feed, draw)}
            values = link.step({name: needed[name] for name in link.step.request.feeds}, draw=draw).values
            computed.update(zip(link.feeds, values, strict=True))
        both = {**feed, **computed}
        return {name: both[name] for name in self._own if name in both}
