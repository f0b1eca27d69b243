"""Row-sparse updates of embeddings: touched rows and untouched rows equal the rows of dense embeddings."""

import jax
import numpy as np
import optax
import pytest

import fluid
from fluid import errors
from fluid.runtime.sparse_update import keeps_other_rows

ROWS, WIDTH, BATCH = 11, 3, 6


def program_of(optimizer, is_sparse, ragged=False, padding_idx=None):
    def program():
        level = {"lod_level": 1} if ragged else {}
        first = fluid.layers.data("first", shape=[1], dtype="int64", **level)
        second = fluid.layers.data("second", shape=[1], dtype="int64")
        options = {"size": [ROWS, WIDTH], "param_attr": "table", "is_sparse": is_sparse, "padding_idx": padding_idx}
        target = fluid.layers.data("target", shape=[1])
        one, two = fluid.layers.embedding(first, **options), fluid.layers.embedding(second, **options)
        one = fluid.layers.reduce_sum(one, dim=-1, keep_dim=True)
        loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(two, size=1), target))
        loss = loss + fluid.layers.mean(one if not ragged else fluid.layers.square(one))
        optimizer.minimize(loss)
        return loss

    return program


def batches(count=20, ragged=False):
    rng = np.random.default_rng(0)
    for _ in range(count):
        first = rng.integers(0, ROWS - 3, size=(BATCH, 1))  # repeated ids, none for the table's last 3 rows
        if ragged:
            first = [rng.integers(0, ROWS - 3, size=(n, 1)) for n in rng.integers(1, 5, size=BATCH)]
        yield {
            "first": first,
            "second": rng.integers(0, ROWS - 3, size=(BATCH, 1)),
            "target": rng.normal(size=(BATCH, 1)).astype("float32"),
        }


def trained(optimizer, is_sparse, **options):
    program = program_of(optimizer, is_sparse, **options)
    session = fluid.Session(program)
    for feed in batches(ragged=options.get("ragged", False)):
        session.run(program, feed)
    return session


EXACT = {
    "sgd": fluid.optimizer.SGD(0.1),
    "adagrad": fluid.optimizer.Adagrad(0.1),
    "scheduled": fluid.optimizer.SGD(lambda count: 0.1 / (1 + count)),
    "clipped": fluid.optimizer.Adagrad(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.5)),
    "optax adagrad": fluid.optimizer.Optax(optax.adagrad(0.1)),
    "optax sign": fluid.optimizer.Optax(optax.sign_sgd(0.01)),
}


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("options", [{}, {"ragged": True}, {"padding_idx": 2}], ids=["dense", "ragged", "padding"])
def test_exact_rules_give_the_dense_numbers(name, options):
    sparse, dense = (trained(EXACT[name], s, **options) for s in (True, False))
    assert sparse.engine.rules["program"][0].tables == ("table",) and dense.engine.rules["program"][0].tables == ()
    for key in dense.scope:
        np.testing.assert_allclose(sparse.scope[key], dense.scope[key], rtol=1e-6, atol=1e-6)
    for a, b in zip(jax.tree.leaves(sparse.scope.slots), jax.tree.leaves(dense.scope.slots), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_untouched_rows_stay_to_the_bit():
    program = program_of(fluid.optimizer.Adagrad(0.1), True)
    session = fluid.Session(program)
    before = np.asarray(session.scope["table"])
    for feed in batches():
        session.run(program, feed)
    after = np.asarray(session.scope["table"])
    assert np.array_equal(after[ROWS - 3 :], before[ROWS - 3 :])
    assert (after[: ROWS - 3] != before[: ROWS - 3]).any(axis=1).all()


@pytest.mark.parametrize(
    "transformation, exact",
    [
        (optax.sgd(0.1), True),
        (optax.adagrad(0.1), True),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1)), True),
        (optax.sgd(0.1, momentum=0.9), False),
        (optax.adam(0.1), False),
        (optax.rmsprop(0.1), False),
        (optax.adamw(0.1), False),
        (optax.lion(0.1), False),
        (optax.lamb(0.1), False),
        (optax.adafactor(0.1), False),
    ],
)
def test_rules_that_keep_other_rows_are_detected(transformation, exact):
    assert keeps_other_rows(transformation) is exact


def test_rules_that_decay_state_are_dense_and_warn():
    momentum = fluid.optimizer.Momentum(0.1, 0.9)
    with pytest.warns(errors.FluidWarning, match="lazy_mode=True"):
        sparse = trained(momentum, True)
    dense = trained(momentum, False)
    assert sparse.engine.rules["program"][0].tables == ()
    assert np.array_equal(sparse.scope["table"], dense.scope["table"])


def test_a_table_used_whole_is_dense_with_warning():
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        rows = fluid.layers.embedding(ids, size=[ROWS, WIDTH], param_attr="table", is_sparse=True)
        table = fluid.layers.create_parameter([ROWS, WIDTH], "float32", attr="table")
        loss = fluid.layers.mean(rows @ table.T)
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    with pytest.warns(errors.FluidWarning, match="used as a whole"):
        session = fluid.Session(program)
    before = np.asarray(session.scope["table"])
    session.run(program, {"ids": [[0]]})
    assert (np.asarray(session.scope["table"]) != before).all()


def test_decay_works_on_touched_rows():
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        attr = fluid.ParamAttr(name="table", regularizer=fluid.regularizer.L2Decay(0.5))
        rows = fluid.layers.embedding(ids, size=[4, 2], param_attr=attr, is_sparse=True)
        loss = fluid.layers.reduce_sum(rows)
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    session = fluid.Session(program)
    want = np.asarray(session.scope["table"], "float64")
    session.run(program, {"ids": [[1], [1], [3]]})
    for row, count in ((1, 2), (3, 1)):
        want[row] -= 0.1 * (count + 0.5 * want[row])
    np.testing.assert_allclose(session.scope["table"], want, rtol=1e-6)


def test_a_fetched_sparse_gradient_matches_the_dense_gradient():
    sparse, dense = (program_of(fluid.optimizer.SGD(0.1), s) for s in (True, False))
    feed = next(iter(batches()))
    found = [fluid.Session(p).run(p, feed, fetch=["table@GRAD"])[0] for p in (sparse, dense)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6, atol=1e-7)


def test_testing_and_overriding_a_sparse_table():
    program = program_of(fluid.optimizer.SGD(0.1), True)
    session = fluid.Session(program)
    feed = next(iter(batches()))
    plain = float(session.run(program, feed, mode="test")[0])
    over = {**feed, "table": np.asarray(session.scope["table"]) * 2}
    assert float(session.run(program, over, mode="test")[0]) != plain
    before = np.asarray(session.scope["table"])
    session.run(program, over)
    assert np.array_equal(session.scope["table"], before)  # an overridden table has no gradient, so it is not updated


def test_minimize_with_a_parameter_list():
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        a = fluid.layers.embedding(ids, size=[4, 2], param_attr="a", is_sparse=True)
        b = fluid.layers.embedding(ids, size=[4, 2], param_attr="b", is_sparse=True)
        loss = fluid.layers.reduce_sum(a * b)
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["a"])
        return loss

    session = fluid.Session(program)
    a, b = np.asarray(session.scope["a"]), np.asarray(session.scope["b"])
    session.run(program, {"ids": [[2], [2]]})
    want = a.copy()
    want[2] -= 0.1 * 2 * b[2]
    np.testing.assert_allclose(session.scope["a"], want, rtol=1e-6)
    assert np.array_equal(session.scope["b"], b)


def test_in_a_trainer_and_saved(tmp_path):
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        return fluid.layers.mean(
            fluid.layers.square_error_cost(
                fluid.layers.embedding(ids, size=[ROWS, 1], is_sparse=True), fluid.layers.data("y", shape=[1])
            )
        )

    ids = np.arange(ROWS).repeat(3)
    trainer = fluid.Trainer(program, fluid.optimizer.Adagrad(0.5))
    reader = fluid.reader.arrays((ids, (ids % 4).astype("float32")), batch_size=8, shuffle=True)
    trainer.train(reader, num_epochs=60)
    np.testing.assert_allclose(trainer.params["embedding_0.w_0"][:, 0], np.arange(ROWS) % 4, atol=0.05)
    trainer.save_params(tmp_path / "table")
    assert trainer.test(reader)[0] < 1e-2
    # Training and test each compile two sizes, because the last minibatch is smaller.
    assert len(trainer.session.compilations) == 4


def lazy_momentum(m, g, t):
    m["v"] = 0.9 * m["v"] + g
    return -0.1 * m["v"]


def lazy_adam(m, g, t):
    m["m"] = 0.9 * m["m"] + 0.1 * g
    m["v"] = 0.999 * m["v"] + 0.001 * g * g
    return -0.1 * np.sqrt(1 - 0.999**t) / (1 - 0.9**t) * m["m"] / (np.sqrt(m["v"]) + 1e-8)


def lazy_rmsprop(m, g, t):
    m["s"] = 0.95 * m["s"] + 0.05 * g * g
    return -0.1 * g / np.sqrt(m["s"] + 1e-6)


@pytest.mark.parametrize(
    "optimizer, rule",
    [
        (fluid.optimizer.Momentum(0.1, 0.9, lazy_mode=True), lazy_momentum),
        (fluid.optimizer.Adam(0.1, lazy_mode=True), lazy_adam),
        (fluid.optimizer.RMSProp(0.1, rho=0.95, lazy_mode=True), lazy_rmsprop),
        (fluid.optimizer.Optax(optax.sgd(0.1, momentum=0.9), lazy_mode=True), lazy_momentum),
    ],
    ids=["momentum", "adam", "rmsprop", "optax"],
)
def test_lazy_rules_match_manual_updates_of_touched_rows(optimizer, rule):
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        weights = fluid.layers.data("weights", shape=[WIDTH])
        rows = fluid.layers.embedding(ids, size=[ROWS, WIDTH], param_attr="table", is_sparse=True)
        loss = fluid.layers.reduce_sum(rows * weights)
        optimizer.minimize(loss)
        return loss

    rng = np.random.default_rng(5)
    session = fluid.Session(program)
    assert session.engine.rules["program"][0].tables == ("table",)
    want = np.asarray(session.scope["table"], "float64")
    memory = [{"m": 0.0, "v": 0.0, "s": 0.0} for _ in range(ROWS)]
    for t in range(1, 21):
        ids, weights = rng.integers(0, ROWS - 3, size=(BATCH, 1)), rng.normal(size=(BATCH, WIDTH)).astype("float32")
        session.run(program, {"ids": ids, "weights": weights})
        # The gradient of a row of the table is the sum of the weights of all look-ups of this row.
        for row in set(ids[:, 0]):
            want[row] += rule(memory[row], weights[ids[:, 0] == row].sum(0).astype("float64"), t)
    np.testing.assert_allclose(session.scope["table"], want, rtol=2e-4, atol=2e-5)
