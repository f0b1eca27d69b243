"""Rows of the requirements of 2017 that need several devices: a script for a process with four devices.

The script prints a JSON object with the name of each function, and its traceback, or "" if the function succeeds.
"""

import gc
import json
import traceback

import jax
import numpy as np
from line_by_numpy import assert_params, data, descend, minibatches, train_program

import fluid
from fluid import layers

COLUMNS = data()
FOUR = [f"cpu:{number}" for number in range(4)]


def wide():
    x = layers.data("x", shape=[3])
    hidden = layers.fc(x, size=8, act="tanh", name="hidden")
    hidden = layers.shard(hidden, (None, "model"))
    return layers.mean(layers.square(layers.fc(hidden, size=4, name="out")))


def deep():
    stack = layers.repeat(
        lambda h: h + layers.dense(h, size=3, act="tanh"), 4, layers.data("x", shape=[3]), pipeline="stage"
    )
    loss = layers.mean(layers.square(stack))
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def row_14():
    alone = fluid.Session(deep)
    blocks = fluid.Session(deep, parallel=fluid.Mesh(stage=4))
    losses = [float(session.step({"x": COLUMNS["x"]})[0]) for _ in range(3) for session in (alone, blocks)]
    np.testing.assert_allclose(losses[::2], losses[1::2], rtol=1e-5)
    stack = blocks.scope.arrays["repeat_0/dense_0.w_0"]
    assert [(shard.device.id, shard.data.shape) for shard in stack.addressable_shards] == [
        (number, (1, 3, 3)) for number in range(4)
    ]
    shardings = {"hidden.w_0": (None, "model"), "hidden.b_0": ("model",), "out.w_0": ("model", None)}
    divided = fluid.Session(wide, parallel=fluid.Mesh(model=4), shardings=shardings)
    (one,), (four,) = (session.run(feed={"x": COLUMNS["x"]}) for session in (fluid.Session(wide), divided))
    np.testing.assert_allclose(one, four, rtol=1e-5)
    assert divided.scope.arrays["out.w_0"].addressable_shards[3].data.shape == (2, 4)


def trained(batches, **options):
    """Train a linear model; return its parameters before and after the training."""
    trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1), **options)
    before = dict(trainer.params)
    trainer.train(batches, 2, progress=False)
    return before, trainer.params


def row_15():
    batches = minibatches(COLUMNS, 7)  # four devices cannot share seven rows equally
    expected = None
    for options in (
        {"parallel": True},
        {"parallel": "fsdp"},
        {"parallel": fluid.Mesh(data=4)},
        {"parallel": fluid.Mesh(data=2, model=2), "shardings": {"guess.w_0": (None, None)}},
    ):
        before, after = trained(batches, **options)
        expected = expected or descend(before, batches, 0.1, epochs=2)[0]
        assert_params(after, expected)


def row_27():
    shares = []

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            shares.append([(s.device.id, s.data.shape) for s in event.feed["x"].addressable_shards])

    trainer = fluid.Trainer(train_program, fluid.optimizer.SGD(0.1), place="cpu", parallel=True)
    trainer.train(minibatches(COLUMNS), event_handler=on_event, progress=False)
    assert shares == [[(number, (2, 3)) for number in range(4)]] * 3


def row_31():
    """Run on the default device, on one named device, and on all four; check that the results are equal."""
    answers = []
    for options in ({}, {"place": "cpu:3"}, {"place": FOUR, "parallel": True}, {"parallel": True}):
        session = fluid.Session(train_program, seed=4, **options)
        (guess,) = session.run(train_program, COLUMNS, fetch=["guess"])
        (again,) = fluid.Inferencer(train_program, params=session.params(), **options).infer(COLUMNS, fetch=["guess"])
        answers += [np.asarray(guess), np.asarray(again)]
    assert all(np.allclose(answers[0], answer, rtol=1e-6) for answer in answers)


def row_32():
    devices = jax.devices()
    one = fluid.Session(train_program, place="cpu:2")
    same = fluid.Session(train_program, place="cpu:2")  # two Sessions may use one device
    some = fluid.Session(train_program, place=["cpu:1", "cpu:3"], parallel=True)
    every = fluid.Session(train_program, parallel=True)
    for session, expected in ((one, {2}), (same, {2}), (some, {1, 3}), (every, {0, 1, 2, 3})):
        session.run(feed=COLUMNS)
        assert session.scope.arrays["guess.w_0"].devices() == {devices[number] for number in expected}
    for wrong in ("cpu:4", "gpu:0", "fpga", ["cpu:1", "cpu:1"]):
        try:
            fluid.Session(train_program, place=wrong, parallel=True)
        except fluid.errors.FluidError as error:
            assert "cpu" in str(error), error
        else:
            raise AssertionError(wrong)


def allocated():
    """Return the bytes of all buffers on the first device; a buffer that several arrays share counts once."""
    gc.collect()
    shards = [shard for array in jax.live_arrays() for shard in array.addressable_shards if shard.device.id == 0]
    return sum({shard.data.unsafe_buffer_pointer(): shard.data.nbytes for shard in shards}.values())


def beyond_16():
    """Check that `fluid.plan` predicts the bytes of parameters and optimizer state on the first device."""
    optimizer = fluid.optimizer.Adam(1e-2)

    def program():
        return layers.mean(layers.square(layers.fc(layers.data("x", shape=[64]), size=128)))

    for axes, parallel in (({"data": 1}, None), ({"fsdp": 4}, "fsdp"), ({"data": 4}, True)):
        (plan,) = fluid.plan(program, optimizer, batch_size=32, meshes=[fluid.Mesh(**axes)]).candidates
        before = allocated()
        trainer = fluid.Trainer(program, optimizer, parallel=parallel)
        trainer.train([{"x": np.ones((32, 64), "float32")}], progress=False)
        expected = plan.parameters + plan.slots
        assert abs(allocated() - before - expected) < 64 + 0.01 * expected, (axes, allocated() - before, expected)
        del trainer


if __name__ == "__main__":
    found = {}
    for function in (row_14, row_15, row_27, row_31, row_32, beyond_16):
        try:
            function()
            found[function.__name__] = ""
        except Exception:
            found[function.__name__] = traceback.format_exc()
    print(json.dumps(found))
