"""Declared shapes of feeds: a hint only, as in Fluid; the shapes of a run are the shapes of the fed values."""

import warnings

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid
import fluid.static as static
from fluid.static import layers


def numbers(*shape):
    return np.random.default_rng(sum(shape)).normal(size=shape).astype("float32")


def tensor(steps, *lengths):
    return static.create_lod_tensor(steps, [list(level) for level in lengths], static.CPUPlace())


def started(startup):
    exe = static.Executor(static.CPUPlace())
    exe.run(startup)
    return exe


def trained(max_length, fed):
    """Train a net of sequences, declared with `max_length` steps, on the feeds `fed`; return losses and a weight."""
    with fresh() as (main, startup):
        words = layers.data("words", shape=[max_length, 1], dtype="int64")
        bias = layers.data("bias", shape=[max_length], dtype="float32")
        hidden = layers.fc(layers.embedding(words, size=[9, 4]), size=3, num_flatten_dims=2, act="tanh")
        loss = layers.mean(layers.reduce_sum(hidden, dim=[1, 2]) + layers.reduce_mean(bias, dim=1))
        static.optimizer.Momentum(0.1, momentum=0.9).minimize(loss)
        exe = started(startup)
        losses = [float(exe.run(main, feed=feed, fetch_list=[loss])[0]) for feed in fed]
        return losses, scope_value("fc_0.w_0")


def test_shorter_rows_than_declared_train_as_declared():
    fed = [{"words": np.full((2, 5, 1), i, "int64"), "bias": numbers(2, 5)} for i in range(3)]
    with pytest.warns(fluid.errors.FluidWarning) as caught:
        losses, weight = trained(16, fed)
    texts = [str(warning.message) for warning in caught]
    assert [text.partition(":")[0] for text in texts] == ["feed 'words'", "feed 'bias'"]
    assert "int64[batch, 16, 1]" in texts[0]
    assert "int64[batch, 5, 1]" in texts[0]
    wanted, wanted_weight = trained(5, fed)
    assert losses == wanted
    np.testing.assert_array_equal(weight, wanted_weight)


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_each_fed_shape_is_compiled_once():
    with fresh() as (main, _):
        y = layers.reduce_sum(layers.data("x", shape=[16]), dim=1)
        exe = static.Executor(static.CPUPlace())
        for size in (3, 5, 3, 5, 16):
            found = exe.run(main, feed={"x": numbers(2, size)}, fetch_list=[y])[0]
            np.testing.assert_allclose(found, numbers(2, size).sum(axis=1), rtol=1e-5)
        assert len(static.global_scope().session.compilations) == 3


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_many_fed_shapes_are_warned_of():
    with fresh() as (main, _):
        y = layers.scale(layers.data("x", shape=[16]), 2.0)
        exe = static.Executor(static.CPUPlace())
        with pytest.warns(fluid.errors.FluidWarning, match="9 shapes were fed so far"):
            for size in range(1, 11):
                exe.run(main, feed={"x": numbers(2, size)}, fetch_list=[y])


def test_a_shape_without_fitting_weight_is_refused():
    with fresh() as (main, startup):
        y = layers.fc(layers.data("x", shape=[13]), size=2)
        exe = started(startup)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(fluid.errors.FeedError, match=r"found a row of shape \[12\].*Declare") as caught:
                exe.run(main, feed={"x": numbers(4, 12)}, fetch_list=[y])
        assert "in test_a_shape" in str(caught.value)
        assert isinstance(caught.value.__cause__, TypeError)
        assert exe.run(main, feed={"x": numbers(4, 13)}, fetch_list=[y])[0].shape == (4, 2)


def test_a_row_instead_of_a_column_is_refused():
    with fresh() as (main, _):
        found = layers.mean(layers.square(layers.data("x", shape=[1]) - layers.data("y", shape=[1])))
        with pytest.raises(fluid.errors.FeedError, match=r"feed 'y', sample 0: found a row of shape \[6\]"):
            static.Executor(static.CPUPlace()).run(main, {"x": numbers(6, 1), "y": numbers(1, 6)}, [found])


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_states_of_shape_1_are_fed_whole(batch):
    """Feed the states of all layers as one array, which is declared as `[1]`, as in a language model of 2018."""
    state, x = numbers(2, 3, 4), numbers(3, 4)
    with fresh() as (main, _):
        fed = layers.data("x", shape=[4] if batch is None else [batch, 4], append_batch_size=batch is None)
        init = layers.data("init_hidden", shape=[1])
        init.persistable = True
        states = layers.reshape(init, shape=[2, -1, 4])
        second = layers.reshape(layers.slice(states, axes=[0], starts=[1], ends=[2]), shape=[-1, 4])
        joined = layers.concat([fed, second], axis=1)
        assert states.shape == (2, batch or -1, 4)
        found = static.Executor(static.CPUPlace()).run(main, {"x": x, "init_hidden": state}, [joined])[0]
    np.testing.assert_array_equal(found, np.concatenate([x, state[1]], axis=1))


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_lod_levels_follow_the_fed_values():
    ids = np.array([[1], [2], [3]])
    with fresh() as (main, startup):
        words = layers.data("words", shape=[1], dtype="int64", lod_level=2)
        hidden = layers.embedding(words, size=[9, 4])
        exe = started(startup)
        table = scope_value("embedding_0.w_0")
        (found,) = exe.run(main, {"words": ids}, [hidden])
        np.testing.assert_array_equal(found, table[[1, 2, 3]])
        last = layers.sequence_pool(hidden, "last")
        (found,) = exe.run(main, {"words": tensor(ids, [1, 2])}, [last])
        np.testing.assert_array_equal(found, table[[1, 3]])
        with pytest.raises(fluid.errors.FeedError, match="A row is a list of sequences"):
            exe.run(main, {"words": ids}, [last])


def clicks(sparse):
    """Build a prediction of clicks from ids and dense features; with `sparse`, the ids are sequences of one step."""
    ids = layers.data("ids", shape=[1], dtype="int64", lod_level=int(sparse))
    dense = layers.data("dense", shape=[4])
    label = layers.data("label", shape=[1], dtype="int64")
    embedded = layers.embedding(ids, size=[9, 4])
    joined = layers.concat([embedded, dense], axis=1)
    near = layers.cos_sim(embedded, dense) + layers.elementwise_mul(dense, embedded)
    predicted = layers.fc([joined, near, embedded], size=2, act="softmax")
    direct = layers.fc(embedded, size=2, act="softmax")
    loss = layers.mean(layers.cross_entropy(predicted, label) + layers.cross_entropy(direct, label))
    static.optimizer.SGD(0.1).minimize(loss)
    return loss, layers.accuracy(direct, label), joined


def clicked(sparse):
    ids, label = np.array([[1], [2], [8]]), np.array([[0], [1], [1]])
    feed = {"ids": tensor(ids, [1, 1, 1]) if sparse else ids, "dense": numbers(3, 4), "label": label}
    with fresh() as (main, startup):
        loss, accuracy, joined = clicks(sparse)
        assert (joined.lod_level, joined.shape) == (0, (-1, 8))
        exe = started(startup)
        found = [exe.run(main, feed=feed, fetch_list=[loss, accuracy]) for _ in range(3)]
        return np.array(found).reshape(3, 2), scope_value("embedding_0.w_0")


def test_single_step_sequences_act_as_dense_rows():
    (found, table), (wanted, wanted_table) = clicked(sparse=True), clicked(sparse=False)
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_allclose(table, wanted_table, rtol=1e-6)


@pytest.mark.parametrize("ids", [tensor(np.array([[1], [2], [3]]), [1, 2]), [[1], [2, 3]], [[1], []]])
def test_several_steps_beside_dense_rows_are_refused(ids):
    with fresh() as (main, startup):
        loss, _, _ = clicks(sparse=True)
        exe = started(startup)
        feed = {"ids": ids, "dense": numbers(2, 4), "label": np.array([[0], [1]])}
        with pytest.raises(fluid.errors.FeedError, match=r"sample 1: found a row of \d steps, expected one .*concat_0"):
            exe.run(main, feed=feed, fetch_list=[loss])


def grouped(taken):
    """Build a net that scores words; return the largest score in each row of `taken` words, and all scores."""
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    each = layers.fc(layers.embedding(words, size=[9, 4]), size=1)
    return layers.reduce_max(layers.sequence_reshape(each, new_dim=taken), dim=1, keep_dim=True), each


@pytest.mark.parametrize("lengths", [(3, 3), (3, 6)])
def test_sequences_reduced_to_single_steps_meet_dense_rows(lengths):
    """Check that the maximum over three words is added to a dense row, and that a row of six words raises an error."""
    words, dense = np.arange(sum(lengths)).reshape(-1, 1), numbers(2, 1)
    with fresh() as (main, startup):
        best, each = grouped(3)
        total = layers.elementwise_add(layers.data("dense", shape=[1]), best)
        assert (total.lod_level, total.shape) == (0, (-1, 1))
        exe = started(startup)
        feed = {"words": tensor(words, lengths), "dense": dense}
        if lengths == (3, 6):
            with pytest.raises(fluid.errors.FeedError, match=r"sample 1: found a row of 6 steps, expected 3 steps"):
                exe.run(main, feed=feed, fetch_list=[total])
            return
        found, scores = exe.run(main, feed=feed, fetch_list=[total, each], return_numpy=False)
    wanted = dense + np.array(scores).reshape(2, 3).max(axis=1, keepdims=True)
    np.testing.assert_allclose(np.array(found), wanted, rtol=1e-5)


def test_indivisible_sequences_beside_rows_are_refused():
    with fresh():
        words = layers.data("words", shape=[2], lod_level=1)
        with pytest.raises(fluid.errors.ShapeError, match="elementwise_add"):
            layers.elementwise_add(layers.data("dense", shape=[1]), layers.sequence_reshape(words, new_dim=1))


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_labels_declared_as_float_are_fed_as_classes():
    """Declare the labels of all steps as float32 and feed integer classes, as a language model of 2019 did."""
    words, label = np.arange(8).reshape(2, 4, 1) % 5, np.array([[1], [0], [4], [2], [3], [1], [0], [2]])
    with fresh() as (main, startup):
        x = layers.embedding(layers.data("x", shape=[-1, 1, 1], dtype="int64"), size=[5, 3])
        steps = layers.reshape(x, shape=[-1, 4, 3])
        assert steps.shape == (-1, 4, 3)
        scores = layers.fc(layers.reshape(steps, shape=[-1, 3]), size=5)
        loss = layers.softmax_with_cross_entropy(scores, layers.data("y", shape=[-1, 1], dtype="float32"))
        exe = started(startup)
        found, logits, shaped = exe.run(main, {"x": words, "y": label}, [loss, scores, steps])
        broken = exe.run(main, {"x": words, "y": label + 0.5}, [loss])[0]
    assert shaped.shape == (2, 4, 3)
    chances = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found, -np.log(np.take_along_axis(chances, label, axis=1)), rtol=1e-5)
    assert np.isnan(broken).all()


def test_rows_are_grouped_by_a_literal_batch_size():
    """Check that a program may reshape to `[6, -1]`, where 6 is the batch size, and then refuses seven rows."""
    x = numbers(6, 4)
    with fresh() as (main, _):
        grouped = layers.reshape(layers.data("x", shape=[4]) * 2.0, shape=[6, -1])
        products = layers.matmul(grouped, grouped, transpose_y=True)
        assert products.shape == (6, 6)
        exe = static.Executor(static.CPUPlace())
        np.testing.assert_allclose(exe.run(main, {"x": x}, [products])[0], 4 * x @ x.T, rtol=1e-5)
        with pytest.raises(fluid.errors.ShapeError, match=r"cannot be reshaped to \[6, -1\]"):
            exe.run(main, {"x": numbers(7, 4)}, [products])


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_masks_of_unknown_length_fit_declared_lengths():
    """Declare nodes `[4, 30, 1]` and a mask `[4, -1, 1]`, as graph nets of 2019 do, and feed 6 nodes with 6 masks."""
    nodes, mask = numbers(4, 6, 1), (numbers(4, 6, 1) > 0).astype("float32")
    with fresh() as (main, _):
        x = layers.data("x", shape=[4, 30, 1], append_batch_size=False)
        masked = x * layers.data("mask", shape=[4, -1, 1], append_batch_size=False)
        exe = static.Executor(static.CPUPlace())
        np.testing.assert_array_equal(exe.run(main, {"x": nodes, "mask": mask}, [masked])[0], nodes * mask)
        with pytest.raises(fluid.errors.FluidError, match="feed 'x'"):
            exe.run(main, {"x": nodes, "mask": mask[:, :5]}, [masked])


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_level_two_ids_with_length_are_an_array():
    """Declare words with a fixed length and lod_level=2, as Transformers of 2018 do; the feed is a dense array."""
    ids = np.array([[[1], [2]], [[3], [0]], [[4], [4]]])
    with fresh() as (main, startup):
        words = layers.data("words", shape=(-1, 6, 1), dtype="int64", lod_level=2, append_batch_size=False)
        assert (words.lod_level, words.shape) == (0, (-1, 6, 1))
        hidden = layers.embedding(words, size=[9, 4])
        exe = started(startup)
        (found,) = exe.run(main, {"words": ids}, [hidden])
        np.testing.assert_array_equal(found, scope_value("embedding_0.w_0")[ids[..., 0]])


def test_an_exported_model_answers_several_steps_by_nan(tmp_path):
    with fresh() as (main, startup):
        ids = layers.data("ids", shape=[1], lod_level=1)
        joined = layers.concat([ids, layers.data("dense", shape=[4])], axis=1)
        exe = started(startup)
        static.io.save_inference_model(str(tmp_path), ["ids", "dense"], [joined], exe, main)
    found = fluid.Inferencer(param_path=str(tmp_path)).infer({"ids": [[1], [2, 3]], "dense": numbers(2, 4)})[0]
    assert np.isnan(np.asarray(found)).any(axis=1).tolist() == [False, True]


def test_sequences_beside_unfitting_rows_are_refused_when_written():
    with fresh():
        words = layers.data("words", shape=[4], lod_level=1)
        with pytest.raises(fluid.errors.ShapeError, match="cannot be joined"):
            layers.concat([words, layers.ones([3, 4], "float32")], axis=1)


def test_sequences_of_images_act_as_image_batches():
    """Check that layers of images treat sequences of video frames as a batch of all frames."""
    frames, lengths = numbers(5, 2, 6, 6), [2, 3]

    def net(x):
        x = layers.conv2d(x, num_filters=3, filter_size=3, act="relu")
        x = layers.pool2d(layers.batch_norm(x), pool_size=2, pool_stride=2)
        return layers.image_resize(x, out_shape=[3, 3])

    def run(lod_level, fed):
        with fresh() as (main, startup):
            resized = net(layers.data("x", shape=[2, 6, 6], lod_level=lod_level))
            assert resized.shape == (-1, 3, 3, 3)
            static.optimizer.SGD(0.1).minimize(layers.mean(layers.square(resized)))
            exe = started(startup)
            found = np.array(exe.run(main, {"x": fed}, [resized], return_numpy=False)[0])
            return found, scope_value("conv2d_0.w_0")

    (found, weight), (wanted, wanted_weight) = run(1, tensor(frames, lengths)), run(0, frames)
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(weight, wanted_weight, rtol=1e-4, atol=1e-6)


def test_a_two_sequence_tagger_is_exported_and_restored(tmp_path):
    """Check that a net that tags words can be exported and restored; it reads words and marks.

    The two sequences have equal lengths, as in semantic role labelling.
    """
    place = static.CPUPlace()

    def tagger():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        marks = layers.data("marks", shape=[1], dtype="int64", lod_level=1)
        tags = layers.data("tags", shape=[1], dtype="int64", lod_level=1)
        hidden = layers.concat([layers.embedding(words, [9, 4]), layers.embedding(marks, [2, 4])], axis=1)
        score = layers.fc([hidden, layers.embedding(words, [9, 4]) * layers.embedding(marks, [2, 4])], size=3)
        transitions = static.ParamAttr(name="transitions")
        loss = layers.mean(layers.linear_chain_crf(score, tags, param_attr=transitions))
        path = layers.crf_decoding(score, param_attr=transitions)
        static.optimizer.Momentum(0.1, momentum=0.9).minimize(loss)
        return loss, path

    def fed(*lengths):
        steps = np.arange(sum(lengths)).reshape(-1, 1)
        return {"words": tensor(steps % 9, lengths), "marks": tensor(steps % 2, lengths)}

    feed = {**fed(3, 2), "tags": tensor(np.array([[0], [1], [2], [1], [0]]), [3, 2])}
    with fresh() as (main, startup):
        loss, path = tagger()
        exe = started(startup)
        losses = [float(exe.run(main, feed, [loss])[0]) for _ in range(2)]
        static.io.save_persistables(exe, str(tmp_path), main)
        static.io.save_inference_model(str(tmp_path), ["words", "marks"], [path], exe, main)
        tested = main.clone(for_test=True)
        wanted = exe.run(tested, fed(6, 1, 2), [path], return_numpy=False)[0]
        after = float(exe.run(main, feed, [loss])[0])
    assert losses[-1] < losses[0]
    with fresh() as (main, startup):
        loss, _ = tagger()
        exe = started(startup)
        static.io.load_persistables(exe, str(tmp_path), main)
        assert float(exe.run(main, feed, [loss])[0]) == after
    exe = static.Executor(place)
    with static.scope_guard(static.Scope()):
        model, names, targets = static.io.load_inference_model(str(tmp_path), exe)
        assert names == ["words", "marks"]
        found = exe.run(model, fed(6, 1, 2), targets, return_numpy=False)[0]
    assert found.lod() == wanted.lod()
    np.testing.assert_array_equal(np.array(found), np.array(wanted))


def test_a_block_over_paragraphs_reads_sentences():
    """Apply sequence layers to the current sentence of each paragraph, inside the block of a DynamicRNN."""
    ids, lengths = np.arange(9).reshape(-1, 1), [[2, 1], [3, 2, 4]]
    with fresh() as (main, startup):
        words = layers.data("words", shape=[1], dtype="int64", lod_level=2)
        embedded = layers.embedding(words, size=[9, 4])
        rnn = layers.DynamicRNN()
        with rnn.block():
            sentence = rnn.step_input(embedded)
            states, _ = layers.dynamic_lstm(layers.fc(sentence, size=8), size=8, use_peepholes=False)
            before = rnn.memory(shape=[4])
            after = before + layers.sequence_pool(sentence, "sum") + 0.0 * layers.sequence_pool(states, "max")[:, :1]
            rnn.update_memory(before, after)
            rnn.output(after)
        last = layers.sequence_last_step(rnn())
        static.optimizer.SGD(0.1).minimize(layers.mean(last))
        exe = started(startup)
        table = scope_value("embedding_0.w_0")
        (found,) = exe.run(main, {"words": tensor(ids, *lengths)}, [last])
    np.testing.assert_allclose(found, [table[:5].sum(axis=0), table[5:].sum(axis=0)], rtol=1e-5)


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_word_labels_are_declared_by_negative_size():
    """Declare labels as Transformers of 2018 do: `[batch_size * length, 1]` with a batch size of -1."""
    with fresh() as (main, startup):
        words = layers.data("words", shape=[-1, 6, 1], dtype="int64", append_batch_size=False)
        label = layers.data("label", shape=[-1 * 6, 1], dtype="int64", append_batch_size=False)
        scores = layers.fc(layers.embedding(words, size=[9, 4]), size=5, num_flatten_dims=2)
        loss = layers.mean(layers.softmax_with_cross_entropy(layers.reshape(scores, shape=[-1, 5]), label))
        static.optimizer.SGD(0.1).minimize(loss)
        exe = started(startup)
        for batch, length in ((3, 6), (2, 4)):
            feed = {"words": np.ones((batch, length, 1), "int64"), "label": np.full((batch * length, 1), 2)}
            found, made = exe.run(main, feed=feed, fetch_list=[loss, scores])
            chances = np.exp(made[0, 0]) / np.exp(made[0, 0]).sum()
            np.testing.assert_allclose(found, [-np.log(chances[2])], rtol=1e-5)


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_a_reader_gives_shorter_rows_than_declared():
    with fresh() as (main, _):
        reader = layers.py_reader(capacity=2, shapes=[(-1, 8, 1)], dtypes=["float32"])
        total = layers.reduce_sum(layers.read_file(reader), dim=[1, 2])
        reader.decorate_tensor_provider(lambda: ([np.ones((2, size, 1), "float32")] for size in (3, 8)))
        reader.start()
        exe = static.Executor(static.CPUPlace())
        assert [exe.run(main, fetch_list=[total])[0].tolist() for _ in range(2)] == [[3.0, 3.0], [8.0, 8.0]]
