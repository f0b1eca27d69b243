"""`layers.remat` changes what is kept for the gradient, and nothing else."""

import numpy as np
import pytest

import fluid
from fluid import errors, layers
from fluid.session import Request

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
    """A net of which `call` computes the parts: rows of a table, states, masks, and logits behind softmax."""

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
        fluid.optimizer.Adagrad(0.1).minimize(loss)
        return {"loss": loss}

    return program


def directly(function, *args, **kwargs):
    return function(*args, **kwargs)


def test_names_values_states_and_masks_are_those_of_the_call():
    sessions = [fluid.Session(program_of(call), seed=5) for call in (directly, layers.remat)]
    programs = [session.find() for session in sessions]
    first, second = ((list(p.parameters), list(p.states), p.values, p.lookups) for p in programs)
    assert first == second
    results = [session.run(feed=FEED, fetch=FETCH) for session in sessions]
    for name, expected, found in zip(FETCH, *results, strict=True):  # XLA puts other operations together, and rounds
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-7, err_msg=name)
    for name in programs[0].states:
        np.testing.assert_allclose(*(session.scope[name] for session in sessions), rtol=1e-6, err_msg=name)
    first, second = (np.asarray(result[FETCH.index("inner/dropout_0.tmp_0")]) == 0 for result in results)
    np.testing.assert_array_equal(first, second)
    assert 0 < first.mean() < 1
    given = np.linspace(-1, 1, 30, dtype="float32").reshape(6, 5)
    (mean,) = sessions[1].run(feed={**FEED, "fc_0.tmp_1": given}, fetch=["batch_norm_0.tmp_0"], mode="train")
    np.testing.assert_allclose(mean, np.tanh(given).mean(axis=0), atol=1e-6)


def test_a_step_keeps_less():
    """In a loop what is kept for the gradient is one array for all rounds, which the compiler cannot take apart."""

    def block(h):
        return layers.fc(layers.fc(h, size=256, act="tanh"), size=4)

    def memory(call):
        def program():
            x = layers.data("x", shape=[4])
            loss = layers.mean(layers.repeat(lambda h: call(block, h), 8, x))
            fluid.optimizer.SGD(0.1).minimize(loss)
            return loss

        session = fluid.Session(program)
        found = session.find()
        step = session.bind(found, Request("train", None, ("x",)))
        return step.lowered({"x": np.zeros((64, 4), "float32")}).compile().memory_analysis().temp_size_in_bytes

    one = 64 * 256 * 4  # bytes of what a block computes
    assert memory(directly) >= 8 * one
    assert memory(layers.remat) <= 4 * one


def test_outside_of_a_program():
    with pytest.raises(errors.OutsideProgramError, match=r"layers\.remat"):
        layers.remat(layers.fc, np.zeros((2, 3)), size=1)
