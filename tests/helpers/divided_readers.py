"""Division of the rows of minibatches among several processes, for readers that support it."""


def share(index, processes):
    """Return a function from a number of rows to the rows of one process: an even part, or all if indivisible."""

    def wanted(count):
        part = count // processes
        return range(count) if count % processes else range(index * part, (index + 1) * part)

    return wanted
