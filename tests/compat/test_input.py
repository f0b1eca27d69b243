"""`fluid.one_hot` and `fluid.embedding`, which append a dimension: results, and comparison with `layers.embedding`."""

import numpy as np
import pytest
from layers.layer_table import real, whole
from layers.run_program import check, feeds, run

import fluid
from fluid import errors, layers
from fluid.compat.input import embedding, one_hot

IDS = whole(5, 4, 3)
TABLE = real(5, 2)


def test_one_hot_appends_a_dimension():
    check(lambda ids: one_hot(ids, 5), np.eye(5)[IDS], ids=IDS)
    check(lambda ids: one_hot(ids, 5), np.eye(5)[IDS[..., None]], ids=IDS[..., None])
    check(lambda ids: one_hot(ids, 3, allow_out_of_range=True), np.eye(5)[IDS][..., :3], ids=IDS)
    assert fluid.Program(lambda: one_hot(*feeds(ids=IDS), 5)).feeds["ids"].limits == (0, 5, None)


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("padding", [None, -1])
def test_embedding_equals_rows_of_the_table(sparse, padding):
    def program():
        return embedding(*feeds(ids=IDS), [5, 2], is_sparse=sparse, padding_idx=padding)

    got = run(program, {"ids": IDS}, arrays={"embedding_0.w_0": TABLE}).outputs[0]
    want = TABLE[IDS] * (IDS != 4)[..., None] if padding else TABLE[IDS]
    np.testing.assert_allclose(got, want)


def test_embedding_of_steps_equals_the_layer_that_replaces():
    batch = fluid.SequenceBatch(whole(5, 3, 4), np.array([4, 1, 2], "int32"))
    columns = batch.with_data(batch.data[..., None])

    def trained(build, batch):
        def program():
            ids = layers.data("ids", list(batch.shape[2:]), "int64", lod_level=1)
            loss = layers.mean(build(ids, [5, 2], is_sparse=True, padding_idx=0))
            fluid.optimizer.SGD(0.5).minimize(loss)
            return loss

        session = fluid.Session(program)
        session.run(program, {"ids": batch})
        return np.asarray(session.scope["embedding_0.w_0"])

    np.testing.assert_array_equal(trained(embedding, batch), trained(layers.embedding, columns))


@pytest.mark.parametrize("build", [lambda x: one_hot(x, 5), lambda x: embedding(x, [5, 2])])
def test_floats_are_no_ids(build):
    with pytest.raises(errors.ArgumentTypeError, match="integers"):
        fluid.Program(lambda: build(*feeds(x=TABLE)))
