"""A reader with separate minibatches for each member of a population."""

from collections.abc import Sequence

from fluid import errors
from fluid.reader.base import Reader, ReaderLike, Rows, as_readers, opened
from fluid.reader.converter import Separate

_END = object()


def separate(readers: Sequence[ReaderLike]) -> Reader:
    """Return a reader of one minibatch from each of several readers at a time; see `Population.separate`."""
    found = as_readers("Population.separate", readers)

    def iterate(epoch: int, start: int) -> Rows:
        with opened(found, epoch, start) as rows:
            while True:
                minibatches = tuple(next(its, _END) for its in rows)
                ended = [member for member, minibatch in enumerate(minibatches) if minibatch is _END]
                if len(ended) == len(minibatches):
                    return
                if ended:
                    raise errors.ReaderError(
                        f"the reader of member {ended[0]} has ended, and that of another one has not; expected readers "
                        f"of the same number of minibatches: Population.separate([reader_0, reader_1, ...])"
                    )
                yield Separate(minibatches)

    return Reader(iterate, {"separate": [reader.plan for reader in found]})
