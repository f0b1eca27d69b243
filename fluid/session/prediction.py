"""Prediction over a data set: the results of minibatches, one after the other, however many there are."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from fluid import errors
from fluid.core import TEST, NestedSequenceBatch, Program, SequenceBatch
from fluid.place import Place
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


class Ensemble(Protocol):
    """Several models with the parameters of one program each, which predict together; a `fluid.Population` is one."""

    def inference_session(self, function: Any, place: Place, precision: str | None) -> Session:
        """The Session that runs a program function for all of them.

        Args:
          function: what an Inferencer is given.
          place: a device.
          precision: as for `fluid.Program`.
        """


def ensemble_session(
    ensemble: Any, function: Any, place: Place, precision: str | None, refused: Sequence[Any]
) -> Session | None:
    """The Session of an ensemble; None for anything else.

    Args:
      ensemble: what was given as parameters.
      function: as for Ensemble, and so are `place` and `precision`.
      place: a device.
      precision: see there.
      refused: arguments that an ensemble does not take.

    Raises:
      ArgumentTypeError: there is one of these.
    """
    make = getattr(ensemble, "inference_session", None)
    if make is None:
        return None
    if any(given not in (None, False) for given in refused):
        raise errors.ArgumentTypeError(
            "an ensemble lies on one device, with the names that it was trained with, found rename=, parallel= or "
            "shardings=, expected fluid.Inferencer(program, params=population)"
        )
    session: Session = make(function, place, precision)
    return session


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
