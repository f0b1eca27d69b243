"""Mixed precision: bfloat16 computation over float32 parameters."""

import jax
import numpy as np
import pytest

import fluid
from fluid import errors


def inference_program():
    image = fluid.layers.data("image", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(image, 16, 3, 2, 2, act="relu")
    hidden = fluid.layers.batch_norm(hidden)
    return fluid.layers.fc(hidden, size=10, act="softmax")


def train_program():
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    prediction = inference_program()
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": fluid.layers.accuracy(prediction, label)}


def test_layers_compute_in_bfloat16_over_float32_parameters():
    program = fluid.Program(train_program, precision="bfloat16")
    dtypes = {name: array.dtype for name, array in program.values.items()}
    assert dtypes["conv2d_0.tmp_0"] == dtypes["batch_norm_0.tmp_2"] == dtypes["fc_0.tmp_0"] == "bfloat16"
    assert program.outputs[0].dtype == "float32"
    assert {s.dtype for s in (program.parameters | program.states).values()} == {"float32"}


def test_bfloat16_training_keeps_float32_parameters_and_learns(digits):
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(3e-3), precision="bfloat16")
    train = {"image": digits.train_images, "label": digits.train_labels}
    test = {"image": digits.test_images, "label": digits.test_labels}
    trainer.train(fluid.reader.arrays(train, batch_size=64, shuffle=True), num_epochs=5)
    assert trainer.test(fluid.reader.arrays(test, batch_size=120))["accuracy"] > 0.95
    floats = [v for v in jax.tree.leaves((trainer.params, trainer.session.scope.slots)) if v.dtype.kind != "i"]
    assert {str(v.dtype) for v in floats} == {"float32"}


def test_bfloat16_loss_is_close_to_float32(digits):
    feed = {"image": digits.test_images[:32], "label": digits.test_labels[:32]}
    losses = [
        float(fluid.Session(train_program, precision=p).run(feed=feed, mode="train")["loss"])
        for p in ("float32", "bfloat16")
    ]
    assert losses[0] != losses[1] and losses[1] == pytest.approx(losses[0], rel=0.03)


def test_a_sparse_table_updates_only_looked_up_rows():
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        loss = fluid.layers.mean(fluid.layers.embedding(ids, size=[1000, 4], is_sparse=True))
        fluid.optimizer.SGD(1.0).minimize(loss)
        return loss

    session = fluid.Session(program, precision="bfloat16")
    before = np.asarray(session.scope["embedding_0.w_0"])
    session.run(program, {"ids": [[3], [3]]})
    after = np.asarray(session.scope["embedding_0.w_0"])
    np.testing.assert_allclose(after[3], before[3] - 0.25, rtol=1e-2)
    assert np.array_equal(np.delete(after, 3, 0), np.delete(before, 3, 0))


def test_inference_in_bfloat16(digits):
    params = fluid.Session(inference_program).params()
    images = {"image": digits.test_images[:8]}
    exact, near = (
        fluid.Inferencer(inference_program, params=params, precision=p).infer(images)[0] for p in (None, "bfloat16")
    )
    np.testing.assert_allclose(np.asarray(near, "float32"), exact, atol=0.05)


def test_an_unknown_precision_is_refused():
    with pytest.raises(errors.ArgumentError, match="bfloat16"):
        fluid.Session(train_program, precision="half")
