"""Chain: the feeds of a program that are values of other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fluid.core import FeedSpec
from fluid.runtime import CompiledStep
from fluid.runtime.seeds import Draw


class Link(NamedTuple):
    """What another program computes for this one.

    Attributes:
      step: computes it, in test mode.
      feeds: which feeds of this program it gives, in the order of its results.
      needs: the feeds of the other program that it depends on.
      chain: what computes some of those.
    """

    step: CompiledStep
    feeds: tuple[str, ...]
    needs: tuple[str, ...]
    chain: Chain | None


class Chain:
    """Computes the feeds of a program that are values of others, from the parameters as they are at that moment.

    Nothing is kept from one step to the next, and nothing changes: the other programs run in test mode.

    Args:
      own: the feeds of the program.
      links: the programs that it is fed from.
      reads: what the minibatches hold.

    Attributes:
      reads: the same.
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
            values = link.step({name: needed[name] for name in link.needs}, draw=draw).values
            computed.update(zip(link.feeds, values, strict=True))
        both = {**feed, **computed}
        return {name: both[name] for name in self._own if name in both}
