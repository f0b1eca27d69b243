"""Helpers for tests of checkpoints: small programs to train in several calls, and a comparison bit for bit."""

import numpy as np

import fluid

RNG = np.random.default_rng(0)
X = RNG.normal(size=(44, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]] + 0.7).astype("float32")
ROWS = list(zip(X, Y, strict=True))


def program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    hidden = fluid.layers.dropout(fluid.layers.batch_norm(fluid.layers.fc(x, size=3, act="tanh")), 0.3)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))
    return {"loss": loss, "copy": fluid.layers.scale(loss, 2.0)}


def small():
    """Build a linear layer of one unit and its loss, so that a training step is fast."""
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))}


def arrays():
    return fluid.reader.arrays((X, Y), batch_size=8)


def trainer(folder=None, function=small, optimizer=None, config=None, **options):
    """Return a Trainer; with a `folder`, it writes checkpoints there. `config` has arguments of CheckpointConfig."""
    if folder is not None:
        options["checkpoint_config"] = fluid.CheckpointConfig(folder, **(config or {}))
    return fluid.Trainer(function, optimizer or fluid.optimizer.Adam(0.1), seed=3, **options)


def state(of):
    """Return copies of all arrays in the session of a Trainer, by name."""
    return {name: np.array(value) for name, value in of.session.state().items()}


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert value.dtype == found[name].dtype and value.tobytes() == found[name].tobytes(), name


class Killed(BaseException):
    """An exception that simulates a kill of the process: after it, no handler runs and nothing is saved."""


def seen_by(into, stop_after=None, then=None):
    """Return an event handler that appends each minibatch to `into`, and calls `then()` after `stop_after` steps."""

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            into.append((event.epoch, event.step, {n: np.array(v) for n, v in event.feed.items()}))
        if isinstance(event, fluid.EndStepEvent) and len(into) == stop_after:
            then()

    return on_event
