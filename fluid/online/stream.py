"""Which rows of the stream are trained on, in which minibatch, and which are kept to test on: all by position."""

from collections.abc import Iterator

from fluid.core import whole_number


class Split:
    """Divides the positions of a stream, 0, 1, 2, ..., into minibatches and rows to test on.

    Of `test_every` rows the last one is tested on and never trained on; the others make minibatches in order. A
    minibatch lies in a span of positions, from the end of the one before to its own last row; the rows to test on in
    that span are tested before it is trained on. Nothing but positions decides, so a stream is always divided alike.

    Args:
      batch_size: rows of a minibatch.
      test_every: which rows are tested on; None for none.

    Example:
      >>> split = Split(batch_size=2, test_every=3)
      >>> [split.span(number) for number in range(3)]
      [range(0, 2), range(2, 5), range(5, 8)]
      >>> [split.is_test(position) for position in range(6)]
      [False, False, True, False, False, True]
    """

    def __init__(self, batch_size: int, test_every: int | None):
        self.batch_size = whole_number("OnlineTrainer", "batch_size", batch_size)
        self.test_every = None if test_every is None else whole_number("OnlineTrainer", "test_every", test_every, 2)

    def is_test(self, position: int) -> bool:
        """Whether a row is tested on."""
        return self.test_every is not None and position % self.test_every == self.test_every - 1

    def start(self, number: int) -> int:
        """The position at which the span of a minibatch begins."""
        trained = number * self.batch_size
        if self.test_every is None or number == 0:
            return trained
        last = trained - 1
        return last + last // (self.test_every - 1) + 1

    def span(self, number: int) -> range:
        """The positions of a minibatch, and of the rows that are tested on before it."""
        return range(self.start(number), self.start(number + 1))

    def trained(self, number: int) -> Iterator[int]:
        """The positions of the rows of a minibatch."""
        return (position for position in self.span(number) if not self.is_test(position))

    def tested(self, number: int) -> Iterator[int]:
        """The positions of the rows that are tested on before a minibatch."""
        return (position for position in self.span(number) if self.is_test(position))
