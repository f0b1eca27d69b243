"""Member: one program of a Trainer, with what its steps and tests are fed with."""

from collections.abc import Collection, Mapping
from typing import Any

import jax

from fluid.core import FeedSpec, Program
from fluid.distributed import group
from fluid.place import OneDevice
from fluid.reader.adapters import Minibatches
from fluid.reader.buckets import Buckets
from fluid.reader.converter import Converter
from fluid.reader.feeder import FeedOrder
from fluid.runtime import Session
from fluid.runtime.seeds import Draw
from fluid.trainer.programs.chain import Chain
from fluid.trainer.programs.training_program import TrainingProgram


class Member:
    """One program of a Trainer.

    Args:
      declared: what the user said of it.
      program: discovered.
      session: that of the Trainer.

    Attributes:
      name: of the program.
      declared: the same.
      program: the same.
      chain: computes the feeds that come from other programs; None where there are none.
      others: feeds of the other programs, which minibatches may have beside those of this one.
    """

    def __init__(self, declared: TrainingProgram, program: Program, session: Session):
        self.name = program.name
        self.declared = declared
        self.program = program
        self.chain: Chain | None = None
        self.others: frozenset[str] = frozenset()
        self._session = session

    @property
    def reads(self) -> dict[str, FeedSpec]:
        """What its minibatches hold: its feeds that come from no other program, and what those programs need."""
        return self.program.feeds if self.chain is None else self.chain.reads

    @property
    def has_sequences(self) -> bool:
        """Whether a feed has rows of any length."""
        return any(spec.lod_level for spec in self.program.feeds.values())

    @property
    def is_shared(self) -> bool:
        """Whether several processes compute its steps together."""
        mesh = self._session.engine.layout.mesh
        return mesh is not None and bool(mesh.is_multi_process)

    def divide(self, source: Minibatches) -> None:
        """Where several processes share the minibatches, spare each of them work on rows that others put on devices.

        One device is fed from minibatches in their compact form. Sequences are padded to the longest of a whole
        minibatch, so theirs are read as a whole by all.
        """
        layout = self._session.engine.layout
        if self.has_sequences or any(spec.lod_level or spec.shape[:1] != (None,) for spec in self.reads.values()):
            return
        if isinstance(layout, OneDevice) and self.reads:
            source.compact()
        elif self.is_shared and not isinstance(layout, OneDevice):
            source.divide(layout.rows_here)

    def expected(self, source: Minibatches) -> dict[str, jax.ShapeDtypeStruct] | None:
        """What a step will be fed with, found out before a minibatch is read; None where that is not known exactly.

        Args:
          source: what is going to be read.
        """
        rows = source.batch_size
        sizes = [size for spec in self.reads.values() for size in spec.shape[1:]]
        if rows is None or None in sizes or self.has_sequences or self.chain is not None or group().size > 1:
            return None
        layout = self._session.engine.layout
        expected = {}
        for name, spec in self.reads.items():
            shape = tuple(rows if size is None else size for size in spec.shape)
            lies = source.lies(layout.device) or layout.feed_sharding(name, shape)
            expected[name] = jax.ShapeDtypeStruct(shape, spec.held, sharding=lies)
        return expected

    def fed(self, feed: Mapping[str, Any], draw: Draw | None = None) -> Mapping[str, Any]:
        """Return the feed of a step: the minibatch, and values that other programs compute with the current parameters.

        Args:
          feed: the minibatch.
          draw: the random key of those programs, as for `CompiledStep`.
        """
        return feed if self.chain is None else self.chain(feed, draw)

    def converter(
        self, order: FeedOrder, buckets: Buckets, only: Collection[str] | None = None, trains: bool = False
    ) -> Converter:
        """Return a Converter for minibatches that hold `reads`; columns of other programs are ignored.

        Args:
          order: see `Feeder`; None for that of the TrainingProgram.
          buckets: pads sequences.
          only: the names of the feeds that are read; all by default.
          trains: whether the feeds are for training, see `Feeder`.
        """
        order = self.declared.feed_order if order is None else order
        # Of several processes, each reads its own rows only, and any rows stand for the others.
        trains = trains and not self.is_shared
        return Converter(self._session.engine, self.reads, order, buckets, only, self.others, trains)
