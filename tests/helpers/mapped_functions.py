"""Functions that worker processes import by name; `python mapped_functions.py` maps one of them in two processes."""

import os
import sys
import time

import numpy as np


def double(row):
    return row * 2


def noisy(row, rng):
    return row + rng.integers(0, 1000)


def environment(row):
    return os.getpid(), sorted({"jax", "fluid"} & set(sys.modules)), os.environ.get("JAX_PLATFORMS")


def stacked(row):
    """Return a nested object that holds a large array, a small array, a text and a number."""
    return {"large": np.full((300, row), row, "float32"), "small": [np.arange(row), "text"], "row": row}


def failing(row):
    if row == 3:
        raise KeyError("row 3")
    return row


def ending(row):
    raise StopIteration


class Unsendable(Exception):
    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


def unsendable(row):
    raise Unsendable("no way home", 5)


def generator(row):
    return (i for i in range(row))


def dying(row):
    if row == 3:
        os._exit(7)
    return row


def hanging(row):
    if row == 1:
        time.sleep(600)
    return row


if __name__ == "__main__":
    from fluid import reader

    try:
        for value in reader.xmap(hanging if "hang" in sys.argv else double, range(10**9), processes=2):
            print(value, flush=True)
            if "end" in sys.argv:
                break
    except KeyboardInterrupt:
        print("interrupted", flush=True)
