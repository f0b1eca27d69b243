"""The rows of minibatches that several processes divide among themselves, for readers that are told so."""


def share(index, processes):
    """The rows of one process: an even part of what can be divided so, and else all."""

    def wanted(count):
        part = count // processes
        return range(count) if count % processes else range(index * part, (index + 1) * part)

    return wanted
