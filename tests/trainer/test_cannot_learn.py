"""Nets that can learn: fluid warns of none of them; `tests/mistakes/nets.py` has nets that cannot learn."""

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
def test_single_column_accuracy_uses_threshold_0_5(dtype):
    def program():
        p = layers.data("p", shape=[1])
        label = layers.cast(layers.data("label", shape=[1], dtype=dtype), "int64")
        return layers.accuracy(p, label)

    feed = {"p": np.array([[0.9], [0.5], [0.4], [0.1]], "float32"), "label": np.array([[1], [1], [1], [0]], dtype)}
    with fluid.Session(program) as session:
        assert float(session.run(feed=feed)[0]) == 0.75


def test_single_column_sequence_accuracy_counts_steps():
    def program():
        p = layers.data("p", shape=[1], lod_level=1)
        return layers.accuracy(p, layers.data("label", shape=[1], dtype="int64", lod_level=1))

    feed = {"p": [[[0.9], [0.2]], [[0.8]]], "label": [[[1], [1]], [[0]]]}
    with fluid.Session(program) as session:
        assert float(session.run(feed=feed)[0]) == pytest.approx(1 / 3)


@pytest.mark.parametrize("labels", [[0, 1], [0.05, 0.95], [-100, 1], [True, False], [1.0000001, -1e-7]])
def test_labels_from_0_to_1_or_ignored_train(labels):
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


def test_computed_sigmoid_target_is_not_checked_as_label():
    def program():
        target = layers.sigmoid(layers.data("label", shape=[1]))
        return layers.mean(layers.sigmoid_cross_entropy_with_logits(logit(), target))

    trainer(program).train([{"x": np.ones((2, 4)), "label": np.array([[0.0], [-5.0]])}], num_epochs=1)


def test_observable_layers_are_not_warned_as_unused():
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


def test_layer_trained_by_another_program_is_not_unused():
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


def test_summed_and_shown_losses_are_not_warned_of():
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


def test_single_row_with_moving_averages_is_accepted():
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
def test_gradient_beside_step_function_is_not_warned_of(hidden):
    trainer(lambda: regression(hidden(layers.fc(layers.data("x", shape=[4]), size=3))))


def test_explicit_stop_gradient_is_not_warned_of():
    trainer(lambda: regression(jax.lax.stop_gradient(layers.fc(layers.data("x", shape=[4]), size=3))))


def words():
    return layers.data("words", shape=[8], lod_level=1)


def tags():
    return layers.data("tags", shape=[1], dtype="int64", lod_level=1)


@pytest.mark.parametrize(
    "loss",
    [
        lambda x, y: layers.cross_entropy(layers.softmax(layers.log_softmax(x)), y),
        lambda x, y: layers.softmax_with_cross_entropy(layers.log_softmax(x), y),
        lambda x, y: layers.bpr_loss(layers.log_softmax(x), y),
        lambda x, y: layers.cross_entropy(layers.softmax(x), layers.softmax(layers.data("z", shape=[3])), True),
        lambda x, y: layers.kldiv_loss(layers.log_softmax(x), layers.exp(layers.log_softmax(layers.data("z", [3])))),
        lambda x, y: layers.margin_rank_loss(layers.data("z", shape=[3]), layers.sigmoid(x), layers.tanh(x)),
    ],
)
def test_valid_logarithms_and_margins_are_not_warned_of(loss):
    trainer(lambda: layers.mean(loss(layers.fc(layers.data("x", shape=[4]), size=3), layers.data("y", [1], "int64"))))


def test_a_dropout_of_attention_is_no_mistake():
    def program():
        x = layers.data("x", shape=[5, 4])
        weights = layers.dropout(layers.softmax(layers.matmul(x, x, transpose_y=True)), dropout_prob=0.1)
        return regression(layers.reduce_sum(layers.matmul(weights, x), dim=1))

    trainer(program)


def test_dropout_seed_without_training_is_not_warned_of():
    fluid.Session(lambda: layers.dropout(layers.data("x", shape=[4]), 0.5, seed=7)).close()


def test_negative_generator_cost_is_not_warned_of():
    def negative():
        x = layers.fc(layers.data("x", shape=[4]), size=4, name="generator")
        loss = -layers.mean(layers.cross_entropy(layers.fc(x, 3, act="softmax"), layers.data("y", [1], "int64")))
        SGD.minimize(loss, parameter_list=["generator.*"])
        return loss

    fluid.Trainer(negative)


@pytest.mark.parametrize(
    "turned",
    [lambda c: 0.0 - 2 * c, lambda c: layers.scale(c, -1.0), lambda c: c / -2 + 1],
    ids=["sub", "scale", "div"],
)
def test_negative_cost_is_found_in_any_spelling(turned):
    with pytest.warns(errors.FluidWarning, match="negative of layers.square_error_cost"):
        trainer(lambda: turned(regression(layers.data("x", shape=[4]))))


@pytest.mark.parametrize(
    "turned", [lambda c: 2 * c, lambda c: 0 - (0 - c), lambda c: 0.1 * c + 1, lambda c: -layers.exp(-c)]
)
def test_a_cost_that_grows_is_not_called_negative(turned):
    trainer(lambda: turned(regression(layers.data("x", shape=[4]))))


def test_subtracted_entropy_is_not_warned_of():
    def program():
        p = layers.fc(layers.data("x", shape=[4]), size=3, act="softmax")
        entropy = layers.mean(layers.cross_entropy(p, p, soft_label=True))
        return layers.mean(layers.cross_entropy(p, layers.data("y", [1], "int64"))) - 0.1 * entropy

    trainer(program)


@pytest.mark.parametrize("index", [0, 3, -1, -4])
def test_an_index_that_exists_is_no_mistake(index):
    fluid.Session(lambda: layers.data("x", shape=[4])[:, index]).close()


def test_batch_and_step_indices_are_not_warned_of():
    fluid.Session(lambda: (layers.data("x", shape=[4])[50], words().data[:, 7])).close()


def test_index_out_of_range_in_scan_is_found():
    def step(carry, row):
        return carry + row[9], carry

    with pytest.warns(errors.FluidWarning, match="index 9 does not exist in a dimension of size 4"):
        fluid.Session(lambda: jax.lax.scan(step, 0.0, layers.data("x", [6, 4], append_batch_size=False))[0]).close()


def test_soft_labels_of_any_sum_are_accepted():
    def program():
        p = layers.fc(layers.data("x", shape=[4]), size=3, act="softmax")
        return layers.mean(layers.cross_entropy(p, layers.data("label", shape=[3]), soft_label=True))

    for label in ([[1, 0, 0], [0, 0, 0]], [[0.5, 0.5, 0], [0, 0.9, 0.1]], [[3.0, 0, 0], [0, 1, 0]]):
        trainer(program).train([{"x": np.ones((2, 4)), "label": np.array(label, "float32")}], num_epochs=1)


def test_signs_are_no_mistake_in_a_margin():
    def program():
        left, right = logit(), layers.data("right", shape=[1])
        return layers.mean(layers.margin_rank_loss(layers.data("label", shape=[1]), left, right))

    for label in ([[1.0], [-1.0]], [[1.0], [1.0]], [[0.0], [-1.0]]):
        rows = {"x": np.ones((2, 4)), "right": np.ones((2, 1)), "label": np.array(label)}
        trainer(program).train([rows], num_epochs=1)


def test_heads_with_separate_blanks_and_transitions_are_accepted():
    def program():
        phones, letters = layers.fc(words(), size=6), layers.fc(words(), size=5)
        costs = [layers.warpctc(phones, tags(), blank=5), layers.warpctc(letters, tags(), blank=0)]
        costs += [
            layers.linear_chain_crf(scores, tags(), param_attr=fluid.ParamAttr(name=name))
            for scores, name in ((phones, "phones"), (letters, "letters"))
        ]
        best = [layers.crf_decoding(scores, name) for scores, name in ((phones, "phones"), (letters, "letters"))]
        return layers.mean(layers.sums(costs)), layers.ctc_greedy_decoder(letters, blank=0), *best

    trainer(program)


def test_array_labels_padded_with_blank_are_accepted():
    def program():
        x = layers.dense(layers.data("x", shape=[6, 4]), size=5)
        text = layers.data("text", shape=[3], dtype="int64")
        lengths = [layers.data(name, shape=[1], dtype="int64") for name in ("steps", "letters")]
        return layers.mean(layers.warpctc(layers.transpose(x, [1, 0, 2]), text, 0, False, *lengths))

    rows = {
        "x": np.ones((1, 6, 4)),
        "text": np.array([[2, 1, 0]]),
        "steps": np.array([[6]]),
        "letters": np.array([[2]]),
    }
    trainer(program).train([rows], num_epochs=1)


@pytest.mark.parametrize("axis", [1, -1])
def test_l2_normalising_rows_or_table_columns_is_accepted(axis):
    def program():
        table = layers.l2_normalize(layers.create_parameter([4, 3], "float32"), axis=0)
        return layers.matmul(layers.l2_normalize(layers.data("x", shape=[4]), axis=axis), table)

    fluid.Session(program).close()


def test_mixtures_and_copies_of_probabilities_are_no_mistake():
    def program():
        x = layers.data("x", shape=[4])
        gate = layers.fc(x, size=2, act="softmax")
        experts = layers.softmax(layers.reshape(layers.fc(x, size=6), [-1, 2, 3]))
        mixed = layers.squeeze(layers.matmul(layers.unsqueeze(gate, [1]), experts), [1])
        places = layers.one_hot(layers.data("places", shape=[2, 1], dtype="int64"), 3)
        copied = layers.squeeze(layers.matmul(layers.unsqueeze(gate, [1]), places), [1])
        y = layers.data("y", shape=[1], dtype="int64")
        return layers.mean(layers.cross_entropy(mixed, y) + layers.cross_entropy(copied, y))

    trainer(program)


def test_final_recurrent_states_are_accepted():
    def program():
        x = layers.fc(words(), size=12)
        forwards, backwards = (layers.dynamic_gru(x, size=4, is_reverse=reverse) for reverse in (False, True))
        lstm = layers.dynamic_lstm(layers.fc(words(), size=16), size=16)[0]
        ends = [layers.sequence_last_step(forwards), layers.sequence_first_step(backwards)]
        ends += [layers.sequence_last_step(lstm), layers.sequence_pool(backwards, "max")]
        return regression(layers.concat(ends, axis=1))

    trainer(program)


def test_fed_prediction_with_fed_label_is_accepted():
    def program():
        p, label = layers.data("p", shape=[1]), layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.log_loss(p, layers.cast(label, "float32")))

    fluid.Session(program).close()
