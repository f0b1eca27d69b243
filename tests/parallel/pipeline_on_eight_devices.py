"""Pipelines over a mesh of eight devices; `test_eight_devices.py` runs this file in a process with eight devices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from collectives_on_eight_devices import collectives, compiled
from jax.sharding import NamedSharding, PartitionSpec

import fluid
from fluid import layers

WIDTH = 8
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(48, WIDTH)).astype("float32")
RAGGED = [RANDOM.normal(size=(n, WIDTH)).astype("float32") for n in (3, 5, 1, 4, 2, 5, 3, 1, 2, 4, 5)]
MESH = fluid.Mesh(data=2, stage=4)
LONG = fluid.Mesh(data=2, stage=4, steps=1)


def residual(h):
    """Apply a residual block; its parameter `bias` is shared by all blocks."""
    inner = layers.fc(layers.layer_norm(h), 2 * WIDTH, act="tanh", bias_attr="bias")
    return h + layers.fc(inner, WIDTH)


def net(block=residual, n=8, x=None, **settings):
    """Return a program: a first layer, a pipeline of `n` blocks over devices, and a last layer."""

    def program():
        fed = layers.data("x", shape=[WIDTH]) if x is None else x()
        h = layers.repeat(block, n, layers.fc(fed, WIDTH), pipeline="stage", **settings)
        h = layers.sequence_pool(h, "average") if x is not None else h
        loss = layers.mean(layers.square(layers.fc(h, 1) - 1.0))
        fluid.optimizer.Momentum(0.01, 0.9).minimize(loss)
        return loss

    return program


def measured(program, feed, steps, parallel):
    """Train; return a list of the loss and gradients of each step and the final parameters, and the Session."""
    session = fluid.Session(program, parallel=parallel)
    names = ["mean_0.tmp_0", *(f"{name}@GRAD" for name in session.params())]
    found = [dict(zip(names, session.step(feed, fetch=names), strict=True)) for _ in range(steps)]
    return [*found, session.params()], session


def both(program, feed, mesh=MESH, steps=4):
    """Check that each step on a mesh agrees with the step on a single device; return the Session of the mesh."""
    one, _ = measured(program, feed, steps, None)
    many, session = measured(program, feed, steps, mesh)
    for found, wanted in zip(many, one, strict=True):
        for name, value in wanted.items():
            array = np.asarray(value)
            scale = 1e-5 * (1e-2 + np.abs(array).max())
            np.testing.assert_allclose(np.asarray(found[name]), array, rtol=1e-5, atol=scale, err_msg=name)
    return session


def test_a_divided_pipeline_matches_a_single_device():
    scope = both(net(microbatches=6), {"x": X}).scope
    stack = {name: v for name, v in scope.arrays.items() if name.startswith("repeat_0/")}
    slots = [v for path, v in jax.tree.leaves_with_path(scope.slots) if "repeat_0/" in jax.tree_util.keystr(path)]
    assert len(stack) == 5 and len(slots) == len(stack)
    for array in (*stack.values(), *slots):
        assert {shard.data.nbytes * 4 for shard in array.addressable_shards} == {array.nbytes}


@pytest.mark.parametrize(
    ("rows", "mesh"),
    [
        pytest.param(24, MESH, id="even", marks=pytest.mark.full),
        pytest.param(21, fluid.Mesh(data=2, fsdp=2, stage=2), id="uneven"),
    ],
)
def test_microbatches_draw_different_reproducible_numbers(rows, mesh):
    def block(value):
        """Run one stage of a pipeline: add 1 to the counter of each row, and append new random bits to `masks`."""
        count, masks = value
        kept = layers.dropout(jnp.ones_like(masks, "float32"), 0.5) > 0
        # The rows are the last axis of the random bits; `.T` makes them the first axis.
        drawn = jax.random.bits(layers.random_key(), (3, count.shape[0]), "uint8").T
        return count + 1, masks * 16 + kept * 8 + drawn % 8

    def program():
        x = layers.data("x", shape=[3])
        begin = jnp.zeros(x.shape[:1], "int32"), jnp.zeros(x.shape, "int32")
        return layers.repeat(block, 4, begin, pipeline="stage", microbatches=3)

    feed = {"x": X[:rows, :3]}
    (count, masks), (_, again), (_, other) = (
        fluid.Session(program, parallel=mesh, seed=seed).run(feed=feed, mode="train") for seed in (0, 0, 1)
    )
    masks, again, other = map(np.asarray, (masks, again, other))
    assert masks.tobytes() == again.tobytes() != other.tobytes()
    assert np.asarray(count).tolist() == [4] * rows
    assert len(np.unique(masks)) == masks.size  # all rows and microbatches have different random bits
    assert 0.35 < np.mean([masks >> shift & 1 for shift in (3, 7, 11, 15)]) < 0.65


def straight(stages, microbatches):
    def program():
        x = layers.data("x", shape=[WIDTH])
        h = layers.repeat(
            lambda h: layers.fc(h, WIDTH, act="tanh", bias_attr=False),
            8,
            x,
            pipeline="stage",
            microbatches=microbatches,
        )
        loss = layers.mean(h)
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    return program


def by_hand(mesh, stages, microbatches):
    """Return a compiled training step of the net `straight`, written by hand: `jax.shard_map` and a GPipe schedule."""

    def forward(weights, x):
        stage = jax.lax.axis_index("stage")
        queue = x.reshape(microbatches, -1, WIDTH)

        def turn(before, time):
            arrived = jax.lax.ppermute(before, "stage", [(i, i + 1) for i in range(stages - 1)])
            h = jnp.where(stage == 0, queue[jnp.minimum(time, microbatches - 1)], arrived)
            for weight in weights:
                h = jnp.tanh(h @ weight)
            return h, h

        _, done = jax.lax.scan(turn, queue[0], jnp.arange(microbatches + stages - 1))
        last = jax.lax.psum(jnp.where(stage == stages - 1, done[stages - 1 :], 0), "stage")
        return last.reshape(x.shape)

    weights = PartitionSpec("stage")
    rows = PartitionSpec("data")
    mapped = jax.shard_map(forward, mesh=mesh, in_specs=(weights, rows), out_specs=rows, check_vma=False)

    def step(parameters, x):
        loss, gradients = jax.value_and_grad(lambda p: mapped(p, x).mean())(parameters)
        return parameters - 0.1 * gradients, loss

    places = [NamedSharding(mesh, spec) for spec in (weights, rows)]
    given = [
        jax.ShapeDtypeStruct(s, "float32", sharding=p)
        for s, p in zip([(8, WIDTH, WIDTH), X.shape], places, strict=True)
    ]
    return jax.jit(step, out_shardings=(places[0], None)).lower(*given).compile()


@pytest.mark.parametrize(
    ("stages", "microbatches"),
    [pytest.param(4, 4, marks=pytest.mark.full), pytest.param(2, 6), pytest.param(8, 3, marks=pytest.mark.full)],
)
def test_pipeline_idle_time_and_traffic_match_the_schedule(stages, microbatches):
    """Check that with S stages and M microbatches, each stage is idle in (S - 1) / (M + S - 1) of all ticks."""
    program = straight(stages, microbatches)
    mesh = fluid.Mesh(data=8 // stages, stage=stages)
    one, many = fluid.plan(program, None, len(X), [fluid.Mesh(data=1), mesh]).candidates
    ticks = microbatches + stages - 1
    # A single device computes each block once for a row. In a pipeline, idle devices compute, too, without a use.
    assert 1 - one.work.flops / (8 * many.work.flops) == pytest.approx((stages - 1) / ticks, abs=1e-12)
    assert many.work.collectives["collective-permute"] == 2 * ticks  # forward pass and backward pass
    assert many.parameters * stages == one.parameters

    session = fluid.Session(program, parallel=mesh)
    assert collectives(compiled(session, {"x": X})) == collectives(
        by_hand(session.engine.layout.mesh, stages, microbatches)
    )


def sequences():
    return layers.data("x", shape=[WIDTH], lod_level=1)


def attentive(h):
    seen = layers.layer_norm(h)
    h = h + layers.multi_head_attention(seen, num_heads=2, bias_attr=False, causal=True, ring="steps")
    return 0.9 * h  # without the factor 0.9, numbers and rounding errors would grow from block to block


def recurrent(h):
    return h + layers.dynamic_gru(layers.fc(h, 3 * WIDTH), size=WIDTH)


def wide(h):
    columns, rows = fluid.ParamAttr(sharding=(None, "model")), fluid.ParamAttr(sharding=("model", None))
    inner = layers.shard(layers.fc(h, 64, act="tanh", param_attr=columns), ("data", "model"))
    return h + layers.fc(inner, WIDTH, param_attr=rows)


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "feed", "mesh"),
    [
        pytest.param(net(attentive, x=sequences), RAGGED, fluid.Mesh(data=2, stage=2, steps=2), id="ring"),
        pytest.param(net(attentive, x=sequences, remat=True), RAGGED, LONG, id="sequences, remat"),
        pytest.param(net(recurrent, x=sequences), RAGGED, fluid.Mesh(stage=8), id="recurrence"),
        pytest.param(net(wide), X, fluid.Mesh(data=2, stage=2, model=2), id="model"),
        pytest.param(
            net(wide, microbatches=3, remat=True), X[:19], fluid.Mesh(data=1, fsdp=2, stage=2, model=2), id="fsdp"
        ),
        pytest.param(net(residual), X[:1], MESH, id="one row"),
    ],
)
def test_pipelines_of_all_kinds(program, feed, mesh):
    both(program, {"x": feed}, mesh)


@pytest.mark.full
def test_a_trainer_with_a_pipeline(tmp_path):
    """Check a Trainer with a pipeline: a last batch of one row, a test, saving, and predictions on other meshes."""
    data = fluid.reader.arrays({"x": X[:41]}, batch_size=20)

    def program():
        h = layers.repeat(residual, 4, layers.data("x", shape=[WIDTH]), pipeline="stage", microbatches=3)
        guess = layers.fc(h, 1)
        return {"loss": layers.mean(layers.square(guess - 1.0)), "guess": guess}

    one, many = (fluid.Trainer(program, fluid.optimizer.SGD(0.01), parallel=mesh) for mesh in (None, MESH))
    for trainer in (one, many):
        trainer.train(data, num_epochs=3, progress=False)
    np.testing.assert_allclose(many.test(data).loss, one.test(data).loss, rtol=1e-5)
    many.save_params(tmp_path / "params")
    for mesh in (None, fluid.Mesh(data=4, stage=2), fluid.Mesh(fsdp=8)):
        inferencer = fluid.Inferencer(program, param_path=tmp_path / "params", parallel=mesh)
        for rows in (1, 3, 41):
            wanted = many.session.run(feed={"x": X[:rows]}, fetch=["guess"], mode="test")[0]
            found = inferencer.infer({"x": X[:rows]}, fetch=["guess"])[0]
            np.testing.assert_allclose(found, np.asarray(wanted), rtol=1e-5, atol=1e-6)
