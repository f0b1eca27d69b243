"""The path of a minibatch from its reader to the end of its step: it passes few modules, and has few types."""

import sys

import numpy as np
import pytest

import fluid
from fluid.reader.adapters import JointMinibatch
from fluid.reader.on_device import RowFeed, RowNumbers
from fluid.reader.pipeline import Batch

MODULES = 14  # the maximum number of modules of fluid whose functions handle a minibatch in one step
X = np.ones((64, 4), "float32")
Y = np.ones((64, 1), "float32")


def program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))


def is_rows(value):
    """Return whether a value is a list of rows (x, y) of the data set."""
    return isinstance(value, list) and bool(value) and type(value[0]) is tuple and np.shape(value[0][0]) == (4,)


def kind_of(value):
    """Return the form of a minibatch in `value`: "minibatch" (from a reader), "Batch" or "arrays" (fed); else None."""
    if isinstance(value, Batch):
        return "Batch"
    if isinstance(value, JointMinibatch | RowNumbers) or is_rows(value):
        return "minibatch"
    if isinstance(value, RowFeed):
        return "arrays"
    if isinstance(value, tuple | dict) and len(value) == 2:
        columns = list(value.values()) if isinstance(value, dict) else value
        if all(getattr(column, "shape", ())[1:] in ((4,), (1,)) for column in columns):
            return "arrays" if isinstance(value, dict) else "minibatch"
    return None


class Watch(fluid.Handler):
    """A handler that records, from one step end to the next, the modules whose functions take or return a minibatch."""

    def __init__(self):
        self.kinds = {}  # for each module: the forms of minibatches in its calls, such as "arrays"

    def begin_step(self, event):
        assert kind_of(event.feed) == "arrays"

    def end_step(self, event):
        if event.step == 2:
            sys.setprofile(self._profile)
        if event.step == 3:
            sys.setprofile(None)

    def _profile(self, frame, what, value):
        module = frame.f_globals.get("__name__", "")
        if not module.startswith("fluid.") or what not in ("call", "return"):
            return
        for each in [value] if what == "return" else list(frame.f_locals.values()):
            if kind := kind_of(each):
                self.kinds.setdefault(module, set()).add(kind)


@pytest.mark.parametrize(
    "reader",
    [
        fluid.reader.arrays((X, Y), batch_size=8),
        fluid.reader.batch([(x, y) for x, y in zip(X, Y, strict=True)], 8),
        fluid.reader.arrays((X, Y), batch_size=8, on_device=True),
    ],
    ids=["arrays", "rows", "on_device"],
)
def test_minibatch_passes_few_modules_with_two_conversions(reader):
    watch = Watch()
    before = sys.getprofile()
    try:
        fluid.Trainer(program, fluid.optimizer.SGD(0.1)).train(reader, handlers=[watch], progress=False)
    finally:
        sys.setprofile(before)
    assert {"fluid.reader.pipeline", "fluid.trainer.loop", "fluid.trainer.events"} <= watch.kinds.keys()
    assert len(watch.kinds) <= MODULES, sorted(watch.kinds)
    assert set.union(*watch.kinds.values()) <= {"minibatch", "Batch", "arrays"}
    # Only modules of fluid.reader handle the minibatches that the reader yields; later modules get a Batch or arrays.
    after = [kinds for module, kinds in watch.kinds.items() if not module.startswith("fluid.reader.")]
    assert set.union(*after) == {"Batch", "arrays"}
