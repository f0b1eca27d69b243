"""Division of minibatches among processes: for readers that can read only the rows of one process."""


def share(index, processes):
    """Return a function that maps the size of a minibatch to the range of its rows that the process `index` reads.

    Each process reads an equal part of the rows. If `processes` does not divide the size, each process reads all rows.
    """

    def wanted(count):
        part = count // processes
        return range(count) if count % processes else range(index * part, (index + 1) * part)

    return wanted
