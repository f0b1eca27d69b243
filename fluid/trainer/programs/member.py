"""Member: one program of a Trainer, with the feeds of its steps and tests."""

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
      declared: the TrainingProgram of the user.
      program: the discovered Program.
      session: the session of the Trainer.

    Attributes:
      name: the name of the program.
      declared: the argument `declared`.
      program: the argument `program`.
      chain: computes the feeds that come from other programs; None if there are none.
      others: names of feeds of other programs, which minibatches may hold too.
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
        """The feeds in its minibatches: all that no other program computes, and the feeds that other programs need."""
        return self.program.feeds if self.chain is None else self.chain.reads

    @property
    def has_sequences(self) -> bool:
        """True if a feed holds sequences, whose rows have different lengths."""
        return any(spec.lod_level for spec in self.program.feeds.values())

    @property
    def is_shared(self) -> bool:
        """True if several processes compute its steps jointly."""
        mesh = self._session.engine.layout.mesh
        return mesh is not None and bool(mesh.is_multi_process)

    def divide(self, source: Minibatches) -> None:
        """Divide the rows of minibatches among processes, so that each process reads only the rows of its devices.

        With one device, minibatches keep their compact form. Sequences are padded to the longest sequence of a whole
        minibatch, so all processes read minibatches with sequences completely.
        """
        layout = self._session.engine.layout
        if self.has_sequences or any(spec.lod_level or spec.shape[:1] != (None,) for spec in self.reads.values()):
            return
        if isinstance(layout, OneDevice) and self.reads:
            source.compact()
        elif self.is_shared and not isinstance(layout, OneDevice):
            source.divide(layout.rows_here)

    def expected(self, source: Minibatches) -> dict[str, jax.ShapeDtypeStruct] | None:
        """Return the shapes of the feed of a step before a minibatch is read; None if they are not known exactly.

        Args:
          source: the source of the minibatches.
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
          draw: the random key of the other programs, as for `CompiledStep`.
        """
        return feed if self.chain is None else self.chain(feed, draw)

    def converter(
        self, order: FeedOrder, buckets: Buckets, only: Collection[str] | None = None, trains: bool = False
    ) -> Converter:
        """Return a Converter for minibatches that hold `reads`; columns of other programs are ignored.

        Args:
          order: see `Feeder`; None for the `feed_order` of the TrainingProgram.
          buckets: pads sequences.
          only: the names of the feeds to read; all by default.
          trains: True if the feeds are for training, see `Feeder`.
        """
        order = self.declared.feed_order if order is None else order
        # In a multi-process training, each process reads only its rows; placeholder rows stand for the other rows.
        trains = trains and not self.is_shared
        return Converter(self._session.engine, self.reads, order, buckets, only, self.others, trains)
