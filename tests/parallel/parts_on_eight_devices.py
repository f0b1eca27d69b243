"""Parts of a net on different devices; `test_eight_devices.py` runs these tests."""

import jax
import numpy as np
import pytest

import fluid
from fluid import errors, layers

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(12, 6)).astype("float32")
FEED = {"x": X, "y": X[:, :1], "ids": np.arange(12).reshape(12, 1) % 5}
PLACES = {"decoder.w_0": 3, "decoder.b_0": 3, "loop.w_0": 3, "loop.b_0": 3, "emb.w_0": 5}


def net(decoder=None, table=None):
    """Return a program with a table and a decoder on the given devices, with dropout and batch normalisation."""

    def program():
        x, y = layers.data("x", shape=[6]), layers.data("y", shape=[1])
        ids = layers.data("ids", shape=[1], dtype="int64")
        with fluid.device_guard(table):
            rows = layers.embedding(ids, size=[5, 4], is_sparse=True, param_attr="emb.w_0")
        hidden = layers.batch_norm(layers.fc(layers.concat([x, rows], axis=1), 16, act="relu", name="encoder"))
        with fluid.device_guard(decoder):
            hidden = layers.dropout(layers.fc(hidden, 8, act="tanh", name="decoder"), 0.3)
            hidden = layers.scan(lambda h, _: (layers.fc(h, 8, name="loop"), None), hidden, length=3)[0]
            hidden = layers.identity(hidden * 0.5, name="half")
        out = layers.fc(hidden, 1, name="out")
        return {"loss": layers.mean(layers.square_error_cost(out, y)), "out": out}

    return program


def trained(program, steps=3, **settings):
    trainer = fluid.Trainer(program, fluid.optimizer.Adagrad(0.05), **settings)
    losses = [float(trainer.session.step(FEED).loss) for _ in range(steps)]
    return losses, trainer


def where(array):
    return [device.id for device in array.devices()]


@pytest.fixture(scope="module")
def one_device():
    losses, trainer = trained(net())
    return losses, dict(trainer.params)


def test_losses_and_arrays_match_a_single_device(one_device):
    guarded = net("cpu:1", jax.devices()[5])
    # `shardings` overrides the devices of `device_guard`.
    losses, trainer = trained(guarded, shardings={"[dl]*": "cpu:3"})
    np.testing.assert_allclose(losses, one_device[0], rtol=1e-5)
    for name, array in trainer.session.scope.arrays.items():
        assert where(array) == [PLACES.get(name, 0)], name
        np.testing.assert_allclose(array, one_device[1][name], rtol=1e-4, atol=1e-6)
    states = jax.tree_util.tree_leaves_with_path(trainer.session.scope.slots)
    placed = {path[-1].key: where(leaf) for path, leaf in states if isinstance(path[-1], jax.tree_util.DictKey)}
    assert {name: [PLACES.get(name, 0)] for name in placed} == placed


def test_each_part_is_computed_on_its_device():
    _, trainer = trained(net("cpu:3", "cpu:5"), steps=1)
    session = trainer.session
    names = ["embedding_0", "encoder", "decoder", "half", "out", "loss"]
    found = session.run(feed=FEED, fetch=names, mode="test")
    assert [where(value) for value in found] == [[5], [0], [3], [3], [0], [0]]


def test_a_guard_inside_a_guard_counts():
    def program():
        x = layers.data("x", shape=[6])
        with fluid.device_guard("cpu:1"):
            first = layers.scale(x, 2.0)
            with fluid.device_guard():
                second = layers.scale(first, 2.0)
            with fluid.device_guard("cpu:2"):
                third = layers.fc(second, 3)
            return first, second, third, layers.scale(third, 2.0)

    assert [where(value) for value in fluid.Session(program).run(feed={"x": X})] == [[1], [0], [2], [1]]
    assert "fc_0" in str(fluid.summary(program))


def test_training_testing_and_files_go_on(tmp_path):
    rows = [[(x, x[:1], [i % 5]) for i, x in enumerate(X)]]
    programs = net(), net("cpu:3", "cpu:5")
    trainers = [fluid.Trainer(program, fluid.optimizer.Adagrad(0.05)) for program in programs]
    histories = [trainer.train(rows * 2, 1, progress=False, feed_order=["x", "y", "ids"]) for trainer in trainers]
    np.testing.assert_allclose(histories[1]["loss"], histories[0]["loss"], rtol=1e-5)
    tests = [trainer.test(rows, feed_order=["x", "y", "ids"]).loss for trainer in trainers]
    np.testing.assert_allclose(*tests, rtol=1e-5)
    trainers[0].save_params(tmp_path / "params")
    other = fluid.Session(programs[1])
    other.load_params(tmp_path / "params")
    assert where(other.scope.arrays["decoder.w_0"]) == [3]
    inferencer = fluid.Inferencer(programs[1], params=trainers[1].params)
    wanted = trainers[0].session.run(feed=FEED, fetch="out", mode="test")[0]
    for found in (inferencer.infer(FEED, fetch="out")[0], other.run(feed=FEED, fetch="out", mode="test")[0]):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    trainers[1].save_inference_model(tmp_path / "net.fluid", fetch="out")
    exported = fluid.Inferencer(param_path=tmp_path / "net.fluid").infer({"x": X, "ids": FEED["ids"]})[0]
    np.testing.assert_allclose(exported, wanted, rtol=1e-4, atol=1e-6)


def test_a_session_moves_the_rest_to_another_device():
    session = fluid.Session(net("cpu:3"))
    session.place = "cpu:2"
    assert where(session.scope.arrays["decoder.w_0"]) == [3]
    assert where(session.scope.arrays["encoder.w_0"]) == [2]
    assert where(session.run(feed=FEED, fetch="out", mode="test")[0]) == [2]


def in_a_loop():
    def step(carry, _):
        with fluid.device_guard("cpu:1"):
            return layers.fc(carry, 6), None

    return layers.scan(step, layers.data("x", shape=[6]), length=2)[0]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fluid.Session(net("cpu:3"), parallel=True), "has device_guard"),
        (lambda: fluid.Population(net("cpu:3"), fluid.optimizer.SGD(0.1), size=2), "found a Population"),
        (lambda: fluid.Session(net("cpu:8")), "asks for a device that is not here"),
        (lambda: fluid.Session(net("decoder")), "a place is None"),
        (lambda: fluid.Session(net(), shardings={"decodr.*": "cpu:1"}), "Did you mean 'decoder"),
        (lambda: fluid.Session(net(), shardings={"decoder.w_0": "model"}), "a place is None"),
        (
            lambda: fluid.Session(net(), shardings={"decoder.w_0": "cpu:1"}, parallel=True),
            "expected for each dimension",
        ),
        (lambda: fluid.Session(in_a_loop), "inside a loop or branch, expected around it"),
    ],
)
def test_wrong_placements_are_refused(make, words):
    with pytest.raises(errors.FluidError, match=words):
        make()
