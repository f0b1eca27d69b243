"""Tests that need eight devices; `test_eight_devices.py` runs them, in a process that has as many."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import fluid
from fluid import errors, layers
from fluid.parallel import layout
from fluid.session.step import Request

MESHES = {
    "data": {"parallel": True},
    "fsdp": {"parallel": "fsdp"},
    "4x2": {"parallel": fluid.Mesh(data=4, model=2), "shardings": {"fc_2.*": (), "fc_*.w_0": (None, "model")}},
    "2x2x2": {"parallel": fluid.Mesh(data=2, fsdp=2, model=2), "shardings": {"fc_1.w_0": ("fsdp", "model")}},
}
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(61, 12)).astype("float32")
Y = X.sum(1, keepdims=True)


@pytest.fixture(autouse=True)
def eight():
    assert jax.device_count() == 8


def net(optimizer=None):
    """A net whose numbers mix the rows of a batch, and that draws random numbers for them."""
    x = layers.data("x", shape=[12])
    y = layers.data("y", shape=[1])
    hidden = layers.dropout(layers.batch_norm(layers.fc(x, 64, act="relu")), 0.3, name="dropped")
    loss = layers.mean(layers.square_error_cost(layers.fc(layers.fc(hidden, 128, act="tanh"), 1), y))
    (optimizer or fluid.optimizer.Momentum(0.05, 0.9)).minimize(loss)
    return loss


def trained(program, feeds, steps=20, **settings):
    """Losses and arrays after some steps."""
    session = fluid.Session(program, **settings)
    losses = [float(session.step(feeds[i % len(feeds)])[0]) for i in range(steps)]
    return losses, {n: np.asarray(v) for n, v in session.scope.items()}, session


def assert_equal(found, wanted, tolerance=1e-5):
    """Compare losses and arrays, up to the order of sums."""
    np.testing.assert_allclose(found[0], wanted[0], rtol=tolerance)
    for name, array in wanted[1].items():
        scale = np.abs(array).max() + 1e-2
        np.testing.assert_allclose(found[1][name] / scale, array / scale, atol=tolerance, err_msg=name)


@pytest.fixture(scope="module")
def one_device():
    return {rows: trained(net, [{"x": X[:rows], "y": Y[:rows]}]) for rows in (61, 56)}


@pytest.mark.parametrize("rows", [61, 56])
@pytest.mark.parametrize("mesh", MESHES)
def test_twenty_steps_are_those_of_one_device(mesh, rows, one_device):
    found = trained(net, [{"x": X[:rows], "y": Y[:rows]}], **MESHES[mesh])
    assert_equal(found, one_device[rows])
    before = {n: v.sharding for n, v in found[2].scope.arrays.items()}
    found[2].step({"x": X[:rows], "y": Y[:rows]})
    assert {n: v.sharding for n, v in found[2].scope.arrays.items()} == before


@pytest.mark.parametrize("mesh", MESHES)
def test_dropout_masks_are_bit_equal(mesh):
    def program():
        x = layers.data("x", shape=[12])
        return layers.dropout(x, 0.4), layers.fc(layers.dropout(layers.fc(x, 128, name="fc_1"), 0.5), 1, name="fc_2")

    feed = {"x": X}
    settings = MESHES[mesh] if mesh == "data" else {"parallel": MESHES[mesh]["parallel"]}
    masks = [fluid.Session(program, **s).run(feed=feed, mode="train")[0] for s in ({}, settings)]
    assert np.asarray(masks[0]).tobytes() == np.asarray(masks[1]).tobytes()
    assert 0.2 < np.mean(np.asarray(masks[0]) == 0) < 0.6


def compiled(session, feed):
    """The training step as XLA has compiled it."""
    program = next(iter(session.programs.values()))
    step = session.bind(program, Request("train", None, tuple(feed)))
    return step._train.lower(step._carry(), step._not_carried(), session.take(feed), {}).compile()


def collectives(executable):
    """How many of each operation in which devices talk to each other."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
    text = executable.as_text()
    return {kind: len(re.findall(rf" {kind}(?:-start)?\(", text)) for kind in kinds}


def deep():
    hidden = layers.data("x", shape=[96])
    for _ in range(4):
        hidden = layers.fc(hidden, 96, act="tanh")
    loss = layers.mean(hidden)
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


WIDE = {"x": RANDOM.normal(size=(64, 96)).astype("float32")}


def by_hand(mesh):
    """The step of `deep` by `jax.shard_map`: each device has its rows, and gradients are added up."""

    def loss(parameters, x):
        for weight, bias in parameters:
            x = jnp.tanh(x @ weight + bias)
        return x.mean()

    def step(parameters, x):
        value, gradients = jax.value_and_grad(loss)(parameters, x)
        gradients, value = jax.lax.pmean((gradients, value), "data")
        return jax.tree.map(lambda p, g: p - 0.1 * g, parameters, gradients), value

    split = PartitionSpec("data")
    whole = PartitionSpec()
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole, split), out_specs=(whole, whole), check_vma=False)
    parameters = [(jnp.zeros((96, 96)), jnp.zeros(96)) for _ in range(4)]
    return jax.jit(mapped).lower(parameters, jnp.zeros((64, 96))).compile()


def test_collectives_of_data_parallelism_are_those_of_a_step_by_hand():
    session = fluid.Session(deep, parallel=True)
    found = collectives(compiled(session, WIDE))
    assert found == collectives(by_hand(session.layout.mesh))
    assert found["all-reduce"] == 1 and sum(found.values()) == 1


def test_fsdp_holds_an_eighth_and_gathers_each_layer_twice():
    def program():
        return layers.mean(deep_hidden())

    def deep_hidden():
        hidden = layers.data("x", shape=[96])
        for _ in range(4):
            hidden = layers.fc(hidden, 96, act="tanh", bias_attr=False)
        return hidden

    def training():
        loss = program()
        fluid.optimizer.Adam(0.01).minimize(loss)
        return loss

    session = fluid.Session(training, parallel="fsdp")
    executable = compiled(session, WIDE)
    memory = executable.memory_analysis()
    state = 3 * sum(v.nbytes for v in session.scope.arrays.values())  # parameters, and two slots of Adam
    feeds_and_counters = 64 * 96 * 4 // 8 + 64
    assert memory.argument_size_in_bytes <= state // 8 + feeds_and_counters
    assert memory.output_size_in_bytes <= state // 8 + feeds_and_counters
    # Once on the way there; on the way back all but the first, whose input needs no gradient.
    assert collectives(executable)["all-gather"] == 4 + 3


def table():
    ids = layers.data("ids", shape=[1], dtype="int64")
    y = layers.data("y", shape=[1])
    rows = layers.embedding(ids, [8000, 16], is_sparse=True)
    loss = layers.mean(layers.square_error_cost(layers.fc(rows, 1), y))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss


IDS = {"ids": (np.arange(64)[:, None] * 137) % 8000, "y": np.ones((64, 1), "float32")}


@pytest.mark.parametrize(
    "settings",
    [
        {"parallel": "fsdp"},
        {"parallel": fluid.Mesh(data=4, model=2), "shardings": {"embedding_*": (("data", "model"),)}},
    ],
    ids=["fsdp", "both axes"],
)
def test_no_device_has_more_of_a_table_than_its_part(settings, monkeypatch):
    wanted = trained(table, [IDS], steps=3)
    monkeypatch.setattr(layout, "LARGE", 8000)  # made where it lies
    session = fluid.Session(table, **settings)
    text = compiled(session, IDS).as_text()
    sizes = [np.prod([int(d) for d in found.split(",")]) for found in re.findall(r"\w+\[([\d,]+)\]", text)]
    assert max(sizes) == 8000 * 16 // 8
    assert_equal(trained(table, [IDS], steps=3, **settings), wanted)


def test_checkpoints_fit_other_meshes(tmp_path):
    feed = {"x": X, "y": Y}
    session = fluid.Session(net, parallel="fsdp")
    for _ in range(3):
        session.step(feed)
    session.save(tmp_path / "state")
    session.save_params(tmp_path / "params")
    before = {n: np.asarray(v) for n, v in session.state().items()}
    after = [float(session.step(feed)[0]) for _ in range(3)]
    for settings in ({}, MESHES["4x2"]):
        other = fluid.Session(net, seed=1, **settings)
        where = {n: v.sharding for n, v in other.state().items()}
        other.load(tmp_path / "state")
        assert {n: v.sharding for n, v in other.state().items()} == where
        assert all(np.asarray(v).tobytes() == before[n].tobytes() for n, v in other.state().items())
        np.testing.assert_allclose([float(other.step(feed)[0]) for _ in range(3)], after, rtol=1e-5)
        other.load_params(tmp_path / "params")
        assert all(np.asarray(v).tobytes() == before[n].tobytes() for n, v in other.scope.items())


def test_what_is_wrong():
    def refused(words, kind=errors.ArgumentError, **settings):
        with pytest.raises(kind, match=words):
            fluid.Session(net, **settings)

    mesh = fluid.Mesh(data=4, model=2)
    refused(r"Mesh\(data=3\) has 3 devices, and there are 8", parallel=fluid.Mesh(data=3))
    refused("'fcc_0.*' matches no name. Did you mean 'fc_0", errors.UnknownNameError, parallel=mesh,
            shardings={"fcc_0.*": ()})  # fmt: skip
    refused("Did you mean 'model'", parallel=mesh, shardings={"fc_0.w_0": (None, "modle")})
    refused("its dimension 0, of 12, cannot be divided over 'model', of 8", parallel=fluid.Mesh(model=8),
            shardings={"fc_0.w_0": ("model",)})  # fmt: skip
    refused("is for 2 dimensions, and fc_0.b_0 is", parallel=mesh, shardings={"fc_0.*": (None, "model")})
    refused("uses an axis twice", parallel=mesh, shardings={"fc_0.w_0": ("model", "model")})
    refused("expected for each dimension", parallel=mesh, shardings={"fc_0.w_0": "model"})
    refused("each once", parallel=True, place=["cpu:1", "cpu:1"])
    refused("need parallel=", place=["cpu:0", "cpu:1"])


def test_places_say_which_devices():
    session = fluid.Session(net, parallel=True, place=["cpu:3", "cpu:5"])
    assert sorted(d.id for d in session.layout.mesh.devices.flat) == [3, 5]
    assert fluid.Session(net, parallel=True, place="cpu:2").layout.mesh is None
    assert fluid.Session(net, parallel="fsdp", place="cpu").layout.mesh.shape == {"fsdp": 8}
