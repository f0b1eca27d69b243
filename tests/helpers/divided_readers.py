"""Division of minibatches among processes: for readers that can read only the rows of one process."""


def share(index, processes):
    """Return a function that maps a number of rows to the range of rows of the process `index`.

    The range is an equal part of the rows, or all rows if the number is not divisible by `processes`.
    """

    def wanted(count):
        part = count // processes
        return range(count) if count % processes else range(index * part, (index + 1) * part)

    return wanted
