"""Prediction over a data set: the results of minibatches, one after the other, however many there are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fluid.core import TEST, NestedSequenceBatch, Program, SequenceBatch
from fluid.reader.adapters import Minibatches
from fluid.reader.prefetch import Prefetcher
from fluid.session.names import check_feed, split_names
from fluid.session.results import Results
from fluid.session.session import Session
from fluid.session.step import Request

_SEQUENCES = (SequenceBatch, NestedSequenceBatch)


class Constant(NamedTuple):
    """What is fed beside every minibatch of a data set, on the device.

    Attributes:
      feeds: arrays by name.
      overrides: what takes the place of other values, by name.
    """

    feeds: dict[str, Any]
    overrides: dict[str, Any]

    @property
    def has_rows(self) -> bool:
        """Whether there is more than scalars in the place of values, so that minibatches cannot be padded."""
        return bool(self.feeds) or any(value.shape for value in self.overrides.values())


def constant(session: Session, program: Program, feed: Mapping[str, Any] | None) -> Constant:
    """What a user feeds beside every minibatch.

    Args:
      session: which runs the program.
      program: the program.
      feed: by name, as for `Session.run`; None for nothing.

    Raises:
      FeedError: data does not fit; UnknownNameError: the program has no such name.
    """
    checked = check_feed(program, {} if feed is None else feed)
    given, replaced = split_names(program, checked)
    return Constant(*session.taken(program, checked, given, replaced, session.buckets(program)))


def needed_feeds(session: Session, program: Program, names: tuple[str, ...] | None, fixed: Constant) -> tuple[str, ...]:
    """The feeds that values of a program depend on, in test mode, beside those that are fed already.

    Args:
      session: which runs the program.
      program: the program.
      names: of the values; None for the outputs.
      fixed: what is fed beside every minibatch.
    """
    step = session.bind(program, Request(TEST, names, tuple(fixed.feeds), tuple(fixed.overrides)))
    needed = step.needed_feeds(fixed.feeds, fixed.overrides)
    return tuple(name for name in program.feeds if name in needed)


def stream(
    source: Minibatches,
    convert: Callable[[Any, int], Any],
    begin: Callable[[Any], Callable[[], Results]],
) -> Iterator[Results]:
    """The results of minibatches, in their order. One minibatch is read ahead, while the device works.

    Args:
      source: its next pass is read.
      convert: makes a feed of a minibatch and its number.
      begin: starts a feed, without waiting for it, and returns a function that waits for its results.
    """
    batches = Prefetcher(source(), convert)
    try:
        for batch in batches:
            results = begin(batch.feed)
            batches.advance()
            yield results()
    finally:
        batches.close()


def on_host(values: Sequence[Any]) -> list[Any]:
    """Values as NumPy arrays, and sequence batches of NumPy arrays; waits for them."""
    return [jax.tree.map(np.asarray, v) if isinstance(v, _SEQUENCES) else np.asarray(v) for v in values]
