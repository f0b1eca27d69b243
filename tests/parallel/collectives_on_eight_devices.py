"""Arrays and collectives of a compiled step; `test_eight_devices.py` runs this file on eight devices."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec
from on_eight_devices import assert_equal, trained

import fluid
from fluid import layers
from fluid.parallel import layout
from fluid.runtime.compiled_step import bind
from fluid.runtime.request import Request


def compiled(session, feed):
    """Return the compiled training step of a Session for the shapes of a feed."""
    program = next(iter(session.programs.values()))
    step = bind(session.engine, program, Request("train", None, tuple(feed)))
    return step.lowered(session.engine.layout.take(feed)).compile()


def collectives(executable):
    """Return the number of collective operations of each kind in a compiled step."""
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


WIDE = {"x": np.random.default_rng(0).normal(size=(64, 96)).astype("float32")}


def by_hand(mesh):
    """Return a compiled training step of the net `deep`, written by hand: devices divide rows and average gradients."""

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


def test_data_parallel_collectives_match_shard_map():
    session = fluid.Session(deep, parallel=True)
    found = collectives(compiled(session, WIDE))
    assert found == collectives(by_hand(session.engine.layout.mesh))
    assert found["all-reduce"] == 1 and sum(found.values()) == 1


def deep_in_parts(optimizer):
    hidden = layers.data("x", shape=[96])
    for _ in range(4):
        hidden = layers.fc(hidden, 96, act="tanh", bias_attr=False)
    loss = layers.mean(hidden)
    optimizer.minimize(loss)
    return loss


def in_parts_by_hand(mesh):
    """Return a training step of a net of four layers in plain JAX; each device holds 1/8 of each weight.

    The step trains the net of `deep_in_parts` with SGD, and uses `jax.shard_map`. A weight is gathered for each use,
    forward and backward, and then freed. One call averages all gradients.
    """

    def step(parts, x):
        hidden = [x]
        for part in parts:
            hidden.append(jnp.tanh(hidden[-1] @ jax.lax.all_gather(part, "fsdp", axis=0, tiled=True)))
        back = jnp.full_like(hidden[-1], 1 / hidden[-1].size)
        gradients = []
        for layer in reversed(range(len(parts))):
            back *= 1 - hidden[layer + 1] ** 2
            gradients.insert(0, hidden[layer].T @ back)
            if layer:
                back @= jax.lax.all_gather(parts[layer].T, "fsdp", axis=1, tiled=True)
        gradients, loss = jax.lax.pmean((gradients, hidden[-1].mean()), "fsdp")
        first = jax.lax.axis_index("fsdp") * len(parts[0])
        own = [jax.lax.dynamic_slice_in_dim(gradient, first, len(parts[0])) for gradient in gradients]
        return [part - 0.1 * gradient for part, gradient in zip(parts, own, strict=True)], loss

    split = PartitionSpec("fsdp")
    specs = [split] * 4
    mapped = jax.shard_map(
        step, mesh=mesh, in_specs=(specs, split), out_specs=(specs, PartitionSpec()), check_vma=False
    )
    return jax.jit(mapped)


def test_fsdp_holds_an_eighth():
    session = fluid.Session(lambda: deep_in_parts(fluid.optimizer.Adam(0.01)), parallel="fsdp")
    memory = compiled(session, WIDE).memory_analysis()
    state = 3 * sum(v.nbytes for v in session.scope.arrays.values())  # parameters and two Adam arrays of the same size
    feeds_and_counters = 64 * 96 * 4 // 8 + 64
    assert memory.argument_size_in_bytes <= state // 8 + feeds_and_counters
    assert memory.output_size_in_bytes <= state // 8 + feeds_and_counters


def test_fsdp_collectives_match_shard_map():
    session = fluid.Session(lambda: deep_in_parts(fluid.optimizer.SGD(0.1)), parallel="fsdp")
    by_hand = in_parts_by_hand(session.engine.layout.mesh)
    arguments = (list(session.scope.arrays.values()), WIDE["x"])
    found = collectives(compiled(session, WIDE))
    assert found == collectives(by_hand.lower(*arguments).compile())
    # Each device holds a part of each weight. The forward pass gathers the parts of all four weights. The backward pass
    # gathers only three weights, because the gradient of the first layer's input is not needed.
    assert found["all-gather"] == 4 + 3
    weights, loss = by_hand(*arguments)
    np.testing.assert_allclose(session.step(WIDE)[0], loss, rtol=1e-5)
    for array, wanted in zip(session.scope.arrays.values(), weights, strict=True):
        np.testing.assert_allclose(array, wanted, atol=1e-6)


def table():
    ids = layers.data("ids", shape=[1], dtype="int64")
    y = layers.data("y", shape=[1])
    rows = layers.embedding(ids, [8000, 16], is_sparse=True)
    loss = layers.mean(layers.square_error_cost(layers.fc(rows, 1), y))
    fluid.optimizer.Adagrad(0.1).minimize(loss)
    return loss


def sizes_in(text):
    """Return the number of elements of each array in the text of a compiled step."""
    return [np.prod([int(d) for d in found.split(",")]) for found in re.findall(r"\w+\[([\d,]+)\]", text)]


IDS = {"ids": (np.arange(64)[:, None] * 137) % 8000, "y": np.ones((64, 1), "float32")}


@pytest.mark.parametrize(
    "settings",
    [
        {"parallel": "fsdp"},
        {"parallel": fluid.Mesh(data=4, model=2), "shardings": {"embedding_*": (("data", "model"),)}},
    ],
    ids=["fsdp", "both axes"],
)
def test_each_device_holds_only_its_table_part(settings, monkeypatch):
    wanted = trained(table, [IDS], steps=3)
    # The table has more elements than this limit, so its parts are created on the devices, not on the host.
    monkeypatch.setattr(layout, "LARGE", 8000)
    session = fluid.Session(table, **settings)
    text = compiled(session, IDS).as_text()
    assert max(sizes_in(text)) == 8000 * 16 // 8
    # Devices exchange the rows of the table that they look up, the gradients of these rows, and little more.
    sums = [line.partition(" all-reduce(")[0] for line in text.splitlines() if " all-reduce(" in line]
    assert 2 * 64 * 16 <= sum(map(sum, map(sizes_in, sums))) < 2 * 64 * 16 + 100
    assert_equal(trained(table, [IDS], steps=3, **settings), wanted)
