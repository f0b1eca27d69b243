"""`layers.remat`: the gradient keeps fewer arrays, and all results are unchanged."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.layer_table import ROWS
from layers.sequence_table import SEQUENCE_ROWS

import fluid
from fluid import errors, layers
from fluid.runtime import Request
from fluid.runtime.compiled_step import bind

RNG = np.random.default_rng(0)
FEED = {
    "x": RNG.normal(size=(6, 4)).astype("float32"),
    "ids": RNG.integers(0, 9, (6, 1)),
    "label": RNG.integers(0, 3, (6, 1)),
}
FETCH = [
    "loss",
    "batch_norm_0.tmp_0",
    "inner/dropout_0.tmp_0",
    "embedding_0.w_0",
    "fc_0.w_0",
    "fc_0.w_0@GRAD",
    "fc_0.tmp_1@GRAD",
    "x@GRAD",
]


def program_of(call):
    """Return a program function that calls its layers through `call`, which is `directly` or `layers.remat`.

    The layers are an embedding, a block with batch norm and dropout, and a softmax classifier.
    """

    def body(x, rows):
        h = layers.batch_norm(layers.fc(x + rows, size=5, act="tanh"))
        with fluid.name_scope("inner"):
            h = layers.dropout(h, 0.5)
        return {"h": h, "none": None}

    def program():
        x = layers.data("x", shape=[4])
        ids = layers.data("ids", shape=[1], dtype="int64")
        label = layers.data("label", shape=[1], dtype="int64")
        rows = call(layers.embedding, ids, size=[9, 4], is_sparse=True)
        h = call(body, x, rows)["h"]
        prediction = call(layers.fc, h, size=3, act="softmax")
        loss = layers.mean(layers.cross_entropy(prediction, label))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return {"loss": loss}

    return program


def directly(function, *args, **kwargs):
    return function(*args, **kwargs)


def test_remat_keeps_names_values_states_and_masks():
    sessions = [fluid.Session(program_of(call), seed=5) for call in (directly, layers.remat)]
    programs = [session.engine.find() for session in sessions]
    first, second = ((list(p.parameters), list(p.states), p.values, p.lookups) for p in programs)
    assert first == second
    results = [session.run(feed=FEED, fetch=FETCH) for session in sessions]
    # XLA fuses the operations of the two programs differently, so the results differ by rounding.
    for name, expected, found in zip(FETCH, *results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7, err_msg=name)
    for name in programs[0].states:
        np.testing.assert_allclose(*(session.scope[name] for session in sessions), rtol=1e-6, err_msg=name)
    first, second = (np.asarray(result[FETCH.index("inner/dropout_0.tmp_0")]) == 0 for result in results)
    np.testing.assert_array_equal(first, second)
    assert 0 < first.mean() < 1


def test_a_value_inside_may_be_replaced():
    def program():
        loss = layers.mean(layers.remat(layers.fc, layers.data("x", shape=[4]), size=2, name="inner") * 3.0)
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    given = np.arange(12, dtype="float32").reshape(6, 2)
    (loss,) = fluid.Session(program).run(feed={"x": FEED["x"], "inner.tmp_1": given}, mode="train")
    assert float(loss) == 3.0 * given.mean()


def test_a_step_keeps_less():
    """Check that `remat` lowers the memory of a step.

    The blocks run in a loop, which keeps the values of all blocks as a single array that the compiler cannot split.
    """

    def block(h):
        return layers.fc(layers.fc(h, size=256, act="tanh"), size=4)

    def memory(call):
        def program():
            x = layers.data("x", shape=[4])
            loss = layers.mean(layers.repeat(lambda h: call(block, h), 8, x))
            fluid.optimizer.SGD(0.1).minimize(loss)
            return loss

        session = fluid.Session(program)
        found = session.engine.find()
        step = bind(session.engine, found, Request("train", None, ("x",)))
        return step.lowered({"x": np.zeros((64, 4), "float32")}).compile().memory_analysis().temp_size_in_bytes

    # The output of the first layer of a block has 64 x 256 numbers of 4 bytes.
    one = 64 * 256 * 4
    assert memory(directly) >= 8 * one
    assert memory(layers.remat) <= 4 * one


ALL_ROWS = [*ROWS, *SEQUENCE_ROWS]


@pytest.mark.parametrize(
    "row", [pytest.param(row, id=row.id, marks=[pytest.mark.soak] * (i % 60 > 0)) for i, row in enumerate(ALL_ROWS)]
)
def test_each_layer_is_unchanged_by_remat(row):
    """Check that `remat` keeps names, shapes and dtypes of a layer's results in train mode, and has gradients."""
    function = row.program()
    programs = [fluid.Program(function), fluid.Program(lambda: layers.remat(function))]
    arrays = programs[0].init(jax.random.key(2))
    real = {name: value for name, value in arrays.items() if jnp.issubdtype(value.dtype, jnp.inexact)}
    found = []
    for program in programs:

        def run(moved, program=program):
            applied = program.apply(arrays | moved, row.feed, key=jax.random.key(3), mode="train")
            return applied.outputs, applied.states, applied.values, applied.lookups

        traced = jax.eval_shape(run, real)
        names = [list(names) for names in (program.values, program.parameters, program.states)]
        found.append((names, jax.tree.structure(traced), jax.tree.leaves(traced)))
    assert found[0] == found[1]

    def total(moved):
        results = jax.tree.leaves(run(moved)[0])
        return sum((jnp.sum(v) for v in results if jnp.issubdtype(v.dtype, jnp.inexact)), start=jnp.zeros(()))

    if getattr(row, "gradient", True):
        jax.eval_shape(jax.grad(total), real)


def test_remat_of_a_result_is_refused():
    with pytest.raises(errors.ArgumentTypeError, match=r"layers\.remat\(layers\.fc, x, size=10\)"):
        fluid.Program(lambda: layers.remat(layers.fc(layers.data("x", shape=[4]), size=10)))


def test_outside_of_a_program():
    with pytest.raises(errors.OutsideProgramError, match=r"layers\.remat"):
        layers.remat(layers.fc, np.zeros((2, 3)), size=1)
