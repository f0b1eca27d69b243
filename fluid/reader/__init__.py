"""Readers: rows to minibatches to feeds."""

from fluid.reader.adapters import Minibatches, arrays, minibatches, nonempty
from fluid.reader.base import Pass, Reader
from fluid.reader.columns import check_feed, padded_time
from fluid.reader.decorators import (
    batch,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    map,
    map_readers,
    shard,
    shuffle,
    xmap,
    xmap_readers,
)
from fluid.reader.feeder import DataFeeder, Feeder
from fluid.reader.prefetch import Prefetched, Prefetcher

__all__ = [
    "DataFeeder",
    "Feeder",
    "Minibatches",
    "Pass",
    "Prefetched",
    "Prefetcher",
    "Reader",
    "arrays",
    "batch",
    "buffered",
    "cache",
    "chain",
    "check_feed",
    "compose",
    "firstn",
    "map",
    "map_readers",
    "minibatches",
    "nonempty",
    "padded_time",
    "shard",
    "shuffle",
    "xmap",
    "xmap_readers",
]
