"""Readers: convert rows to minibatches, and minibatches to feeds."""

from fluid._util.known_names import getattr_of
from fluid.reader.adapters import arrays
from fluid.reader.base import Reader
from fluid.reader.data_frame import Table, frame
from fluid.reader.decorators import (
    batch,
    bucket_by_length,
    buffered,
    cache,
    chain,
    compose,
    firstn,
    shard,
    shuffle,
)
from fluid.reader.feeder import DataFeeder
from fluid.reader.files import files
from fluid.reader.mapping import map, map_readers, xmap, xmap_readers
from fluid.reader.prefetch import prefetch

__all__ = [
    "DataFeeder",
    "Reader",
    "Table",
    "arrays",
    "batch",
    "bucket_by_length",
    "buffered",
    "cache",
    "chain",
    "compose",
    "files",
    "firstn",
    "frame",
    "map",
    "map_readers",
    "prefetch",
    "shard",
    "shuffle",
    "xmap",
    "xmap_readers",
]

__getattr__ = getattr_of(__name__)
