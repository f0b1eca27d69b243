"""Nets that cannot learn are warned of, and no others; `tests/mistakes/nets.py` has those that are warned of."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers

SGD = fluid.optimizer.SGD(0.1)


def trainer(program):
    return fluid.Trainer(program, SGD)


def logit():
    return layers.fc(layers.data("x", shape=[4]), size=1)


def regression(hidden):
    return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1), layers.data("y", shape=[1])))


@pytest.mark.parametrize("dtype", ["int64", "float32"])
def test_accuracy_of_one_column_is_computed_at_a_half(dtype):
    def program():
        p = layers.data("p", shape=[1])
        label = layers.cast(layers.data("label", shape=[1], dtype=dtype), "int64")
        return layers.accuracy(p, label)

    feed = {"p": np.array([[0.9], [0.5], [0.4], [0.1]], "float32"), "label": np.array([[1], [1], [1], [0]], dtype)}
    with fluid.Session(program) as session:
        assert float(session.run(feed=feed)[0]) == 0.75


def test_accuracy_of_one_column_of_a_sequence_counts_its_steps():
    def program():
        p = layers.data("p", shape=[1], lod_level=1)
        return layers.accuracy(p, layers.data("label", shape=[1], dtype="int64", lod_level=1))

    feed = {"p": [[[0.9], [0.2]], [[0.8]]], "label": [[[1], [1]], [[0]]]}
    with fluid.Session(program) as session:
        assert float(session.run(feed=feed)[0]) == pytest.approx(1 / 3)


@pytest.mark.parametrize("labels", [[0, 1], [0.05, 0.95], [-100, 1], [True, False], [1.0000001, -1e-7]])
def test_labels_between_0_and_1_and_the_ignored_one_are_trained_on(labels):
    def program():
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit(), layers.data("label", shape=[1])))

    reader = fluid.reader.arrays({"x": np.ones((2, 4), "float32"), "label": np.array(labels)}, batch_size=2)
    assert np.isfinite(trainer(program).train(reader, num_epochs=1)["loss"][-1])


@pytest.mark.parametrize("loss", [layers.sigmoid_cross_entropy_with_logits, layers.log_loss])
@pytest.mark.parametrize("label", [-1.0, 255.0])
def test_other_labels_are_refused_with_the_sample(loss, label):
    def program():
        x = layers.sigmoid(logit()) if loss is layers.log_loss else logit()
        return layers.mean(loss(x, layers.data("label", shape=[1])))

    with pytest.raises(errors.FeedError, match="sample 1.*0 <= value <= 1"):
        trainer(program).train([{"x": np.ones((2, 4)), "label": np.array([[0.0], [label]])}], num_epochs=1)


def test_no_label_is_needed_for_a_loss_over_what_a_sigmoid_of_the_program_returns():
    def program():
        target = layers.sigmoid(layers.data("label", shape=[1]))
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit(), target))

    trainer(program).train([{"x": np.ones((2, 4)), "label": np.array([[0.0], [-5.0]])}], num_epochs=1)


def test_layers_that_can_be_read_are_not_called_unused():
    def named():
        x = layers.data("x", shape=[4])
        layers.identity(layers.fc(x, size=2), name="features")
        layers.fc(x, size=2, name="other")
        return regression(x)

    def printed():
        x = layers.data("x", shape=[4])
        layers.Print(layers.fc(x, size=2))
        return regression(x)

    def kept():
        x = layers.data("x", shape=[4])
        layers.create_state([2]).update(layers.reduce_mean(layers.fc(x, size=2), dim=0))
        return regression(x)

    def returned():
        x = layers.data("x", shape=[4])
        return regression(x), layers.fc(x, size=2)

    def frozen():
        x = layers.data("x", shape=[4])
        layers.fc(x, size=2, param_attr=fluid.ParamAttr(trainable=False), bias_attr=False)
        return regression(x)

    for program in (named, printed, kept, returned, frozen):
        trainer(program)


def test_a_layer_that_another_program_trains_is_not_called_unused():
    def net():
        x = layers.data("x", shape=[4])
        return layers.fc(x, size=1), layers.fc(x, size=1)

    def left():
        loss = layers.mean(layers.square(net()[0] - 1))
        SGD.minimize(loss)
        return loss

    def right():
        loss = layers.mean(layers.square(net()[1] - 1))
        SGD.minimize(loss)
        return loss

    fluid.Session(left, right).close()
    with pytest.warns(errors.FluidWarning, match="nothing uses the result of fc_1"):
        fluid.Session(left).close()


def test_a_sum_of_losses_and_losses_that_a_dict_only_shows_are_no_mistake():
    def total():
        x = layers.data("x", shape=[4])
        a, b = regression(x), layers.mean(layers.square(layers.fc(x, size=1)))
        return {"total": a + b, "loss_a": a, "loss_b": b}

    def named():
        x = layers.data("x", shape=[4])
        return {"loss": regression(x), "other_loss": layers.mean(layers.square(layers.fc(x, size=1)))}

    def own():
        x = layers.data("x", shape=[4])
        loss = regression(x)
        SGD.minimize(loss)
        return {"d_loss": loss, "g_loss": layers.mean(layers.square(layers.fc(x, size=1)))}

    trainer(total)
    trainer(named)
    fluid.Trainer(own)


def test_attention_and_contrastive_softmaxes_are_no_mistake():
    def program():
        x = layers.data("x", shape=[5, 4])
        scores = layers.fc(x, size=1, num_flatten_dims=2)
        context = layers.reduce_sum(layers.softmax(scores, axis=1) * x, dim=1)
        pairs = layers.matmul(context, context, transpose_y=True)
        return layers.mean(layers.softmax(pairs, axis=0)), layers.mean(layers.softmax(layers.tanh(scores), axis=1))

    fluid.Session(program).close()


def test_entropies_and_comparisons_with_itself_are_no_mistake():
    def program():
        p = layers.fc(layers.data("x", shape=[4]), size=3, act="softmax")
        return layers.mean(layers.cross_entropy(p, p, soft_label=True)), layers.equal(p, p)

    fluid.Session(program).close()


def test_one_row_is_no_mistake_where_the_moving_averages_are_used():
    def program():
        return regression(layers.batch_norm(layers.data("x", shape=[4]), is_test=True))

    row = {"x": np.ones((1, 4)), "y": np.ones((1, 1))}
    trainer(program).train([row], num_epochs=1)
    with fluid.Session(lambda: regression(layers.batch_norm(layers.data("x", shape=[4])))) as session:
        session.run(feed=row, mode="test")


@pytest.mark.parametrize(
    "hidden",
    [
        lambda h: h + jax.lax.stop_gradient(layers.sign(h) - h),
        lambda h: h * layers.sign(h),
        lambda h: jnp.where(h > 0, h, 0.1 * h),
    ],
    ids=["straight through", "beside a slope", "a comparison chooses"],
)
def test_a_gradient_beside_a_step_is_not_warned_of(hidden):
    trainer(lambda: regression(hidden(layers.fc(layers.data("x", shape=[4]), size=3))))


def test_a_net_that_only_stop_gradient_cuts_off_is_not_warned_of():
    trainer(lambda: regression(jax.lax.stop_gradient(layers.fc(layers.data("x", shape=[4]), size=3))))
