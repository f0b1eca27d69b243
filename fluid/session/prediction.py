"""Prediction over a data set: the results of minibatches, one after the other, however many there are."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from fluid.core import TEST, NestedSequenceBatch, Program, SequenceBatch
from fluid.reader.adapters import Minibatches
from fluid.reader.prefetch import Prefetcher
from fluid.session.results import Results
from fluid.session.session import Session
from fluid.session.step import Request

_SEQUENCES = (SequenceBatch, NestedSequenceBatch)


def needed_feeds(session: Session, program: Program, names: tuple[str, ...] | None) -> tuple[str, ...]:
    """The feeds that values of a program depend on, in test mode.

    Args:
      session: which runs the program.
      program: the program.
      names: of the values; None for the outputs.
    """
    needed = session.bind(program, Request(TEST, names, ())).needed_feeds()
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
