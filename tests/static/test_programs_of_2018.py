"""Typical PaddlePaddle programs of 2018, unchanged except for the import."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value, train_both

import fluid.static as fluid

random = np.random.default_rng(0)


def test_digits_with_an_executor(in_tmp):
    """Train a convolutional net, test a clone, save the net for inference, and load it into another scope."""

    def convolutional_neural_network(img):
        pool_1 = fluid.nets.simple_img_conv_pool(
            input=img, filter_size=5, num_filters=4, pool_size=2, pool_stride=2, act="relu"
        )
        pool_1 = fluid.layers.batch_norm(pool_1)
        return fluid.layers.fc(input=pool_1, size=3, act="softmax")

    images = random.normal(size=(30, 1, 12, 12)).astype("float32")
    labels = (images.mean((1, 2, 3)) * 30).clip(-1, 1).round().astype("int64").reshape(-1, 1) + 1
    with fresh():
        img = fluid.layers.data(name="img", shape=[1, 12, 12], dtype="float32")
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        prediction = convolutional_neural_network(img)
        cost = fluid.layers.cross_entropy(input=prediction, label=label)
        avg_cost = fluid.layers.mean(cost)
        acc = fluid.layers.accuracy(input=prediction, label=label)
        test_program = fluid.default_main_program().clone(for_test=True)
        fluid.optimizer.AdamOptimizer(learning_rate=0.01).minimize(avg_cost)

        place = fluid.CPUPlace()
        exe = fluid.Executor(place)
        feeder = fluid.DataFeeder(feed_list=[img, label], place=place)
        exe.run(fluid.default_startup_program())

        def rows():
            yield from zip(images, labels, strict=True)

        train_reader = fluid.batch(fluid.reader.shuffle(rows, buf_size=30), batch_size=10)

        def test_cost():
            fed = feeder.feed(list(rows()))
            return [float(v) for v in exe.run(test_program, feed=fed, fetch_list=[avg_cost, acc])]

        before = test_cost()
        assert test_cost() == before, "a test changes nothing"
        for _ in range(12):
            for data in train_reader():
                loss, accuracy = exe.run(
                    fluid.default_main_program(), feed=feeder.feed(data), fetch_list=[avg_cost, acc.name]
                )
                assert loss.shape == (1,) and accuracy[0] <= 1.0
        after = test_cost()
        assert after[0] < 0.5 * before[0] and after[1] > before[1]
        fluid.io.save_inference_model("digits.model", ["img"], [prediction], exe)
        (wanted,) = exe.run(test_program, feed={"img": images, "label": labels}, fetch_list=[prediction])

    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        inference_program, feed_target_names, fetch_targets = fluid.io.load_inference_model("digits.model", exe)
        (found,) = exe.run(inference_program, feed={feed_target_names[0]: images}, fetch_list=fetch_targets)
        assert fetch_targets[0].shape == (-1, 3)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    (inferred,) = fluid.Inferencer(param_path="digits.model").infer({"img": images})
    np.testing.assert_allclose(inferred, wanted, rtol=1e-5, atol=1e-6)


def semantic_roles(fluid):
    """Build a tagger: words and marks pass through recurrences of alternating directions, and a CRF."""
    word = fluid.layers.data(name="word_data", shape=[1], dtype="int64", lod_level=1)
    mark = fluid.layers.data(name="mark_data", shape=[1], dtype="int64", lod_level=1)
    target = fluid.layers.data(name="target", shape=[1], dtype="int64", lod_level=1)
    emb_layers = [
        fluid.layers.embedding(size=[20, 6], input=word, param_attr=fluid.ParamAttr(name="emb", trainable=False)),
        fluid.layers.embedding(size=[2, 4], input=mark, is_sparse=True),
    ]
    hidden_0 = fluid.layers.sums(input=[fluid.layers.fc(input=emb, size=16, act="tanh") for emb in emb_layers])
    lstm_0 = fluid.layers.dynamic_lstm(input=hidden_0, size=16, candidate_activation="relu", use_peepholes=True)
    input_tmp = [hidden_0, lstm_0]
    for _ in range(1):
        mix_hidden = fluid.layers.sums(input=[fluid.layers.fc(input=x, size=16, act="tanh") for x in input_tmp])
        lstm = fluid.layers.dynamic_lstm(input=mix_hidden, size=16, is_reverse=True)
        input_tmp = [mix_hidden, lstm]
    feature_out = fluid.layers.sums(input=[fluid.layers.fc(input=x, size=5, act="tanh") for x in input_tmp])
    crf_cost = fluid.layers.linear_chain_crf(
        input=feature_out, label=target, param_attr=fluid.ParamAttr(name="crfw", learning_rate=0.5)
    )
    avg_cost = fluid.layers.mean(crf_cost)
    crf_decode = fluid.layers.crf_decoding(input=feature_out, param_attr=fluid.ParamAttr(name="crfw"))
    return avg_cost, crf_decode


def sentences(count, seed):
    """Return a feed of `count` sentences: words, marks of 0 or 1, and targets that depend on words and marks."""
    lengths = np.random.default_rng(seed).integers(2, 6, count).tolist()
    total = sum(lengths)
    words = np.random.default_rng(seed + 1).integers(0, 20, (total, 1))
    marks = np.random.default_rng(seed + 2).integers(0, 2, (total, 1))
    fields = {"word_data": words, "mark_data": marks, "target": (words + marks) % 5}
    return {name: fluid.create_lod_tensor(data.astype("int64"), [lengths], None) for name, data in fields.items()}


def test_semantic_roles_with_a_crf():
    feeds = [sentences(6, seed) for seed in range(4)] * 3
    losses = train_both(semantic_roles, feeds, lambda fluid: fluid.optimizer.SGD(learning_rate=0.1))
    assert losses[-1] < losses[0]


def test_pretrained_embeddings_are_set_before_training():
    table = random.normal(size=(20, 6)).astype("float32")
    with fresh():
        avg_cost, crf_decode = semantic_roles(fluid)
        fluid.optimizer.SGD(
            learning_rate=fluid.layers.exponential_decay(
                learning_rate=0.01, decay_steps=100, decay_rate=0.5, staircase=True
            )
        ).minimize(avg_cost)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        embedding_param = fluid.global_scope().find_var("emb").get_tensor()
        embedding_param.set(table, fluid.CPUPlace())
        feed = sentences(3, 9)
        before = scope_value("crfw")
        decoded, cost = exe.run(feed=feed, fetch_list=[crf_decode, avg_cost], return_numpy=False)
        np.testing.assert_array_equal(scope_value("emb"), table)
        assert not np.array_equal(scope_value("crfw"), before)
        assert decoded.lod() == feed["target"].lod() and np.array(cost).shape == (1,)
        with pytest.raises(fluid.errors.ArgumentError, match="return_numpy=False"):
            exe.run(feed=feed, fetch_list=[crf_decode])


def encoder_decoder(fluid):
    """Build the training program of chapter 8 of the PaddlePaddle book: an encoder, and a decoder in a DynamicRNN."""
    src_word_id = fluid.layers.data(name="src_word_id", shape=[1], dtype="int64", lod_level=1)
    src_embedding = fluid.layers.embedding(
        input=src_word_id, size=[11, 6], dtype="float32", is_sparse=True, param_attr=fluid.ParamAttr(name="vemb")
    )
    fc1 = fluid.layers.fc(input=src_embedding, size=32, act="tanh")
    lstm_hidden0, _ = fluid.layers.dynamic_lstm(input=fc1, size=32)
    context = fluid.layers.sequence_last_step(input=lstm_hidden0)
    trg = fluid.layers.data(name="target_language_word", shape=[1], dtype="int64", lod_level=1)
    trg_embedding = fluid.layers.embedding(
        input=trg, size=[11, 6], dtype="float32", is_sparse=True, param_attr=fluid.ParamAttr(name="vemb")
    )
    rnn = fluid.layers.DynamicRNN()
    with rnn.block():
        current_word = rnn.step_input(trg_embedding)
        pre_state = rnn.memory(init=context)
        current_state = fluid.layers.fc(input=[current_word, pre_state], size=8, act="tanh")
        current_score = fluid.layers.fc(input=current_state, size=11, act="softmax")
        rnn.update_memory(pre_state, current_state)
        rnn.output(current_score)
    label = fluid.layers.data(name="target_language_next_word", shape=[1], dtype="int64", lod_level=1)
    cost = fluid.layers.cross_entropy(input=rnn(), label=label)
    return fluid.layers.mean(cost)


def test_training_of_a_translation():
    def feed(seed):
        draw = np.random.default_rng(seed)
        lengths = draw.integers(2, 5, 4).tolist()
        source = draw.integers(2, 11, (sum(lengths), 1)).astype("int64")
        tensors = {"src_word_id": source, "target_language_word": source, "target_language_next_word": source[::-1]}
        return {name: fluid.create_lod_tensor(np.ascontiguousarray(v), [lengths], None) for name, v in tensors.items()}

    losses = train_both(
        encoder_decoder,
        [feed(seed) for seed in (1, 2, 3)] * 4,
        lambda fluid: fluid.optimizer.Adagrad(
            learning_rate=0.1, regularization=fluid.regularizer.L2DecayRegularizer(regularization_coeff=0.01)
        ),
    )
    assert losses[-1] < losses[0]


def test_a_rate_by_switch():
    """Compute the learning rate by a Switch in the program, and compare each training step with NumPy."""
    x = random.normal(size=(8, 3)).astype("float32")
    y = random.normal(size=(8, 1)).astype("float32")
    boundaries = [2, 4]
    rates = [0.1, 0.05, 0.01]
    with fresh():
        global_step = fluid.layers.autoincreased_step_counter(counter_name="@LR_DECAY_COUNTER@", begin=0, step=1)
        step = fluid.layers.cast(global_step, "float32")
        lr = fluid.layers.create_global_var(
            shape=[1], value=0.0, dtype="float32", persistable=True, name="learning_rate"
        )
        with fluid.layers.Switch() as switch:
            for boundary, rate in zip(boundaries, rates, strict=False):
                limit = fluid.layers.fill_constant(shape=[1], dtype="float32", value=float(boundary))
                value = fluid.layers.fill_constant(shape=[1], dtype="float32", value=rate)
                with switch.case(fluid.layers.less_than(step, limit)):
                    fluid.layers.assign(value, lr)
            with switch.default():
                last = fluid.layers.fill_constant(shape=[1], dtype="float32", value=rates[-1])
                fluid.layers.assign(last, lr)
        predict = fluid.layers.fc(input=fluid.layers.data(name="x", shape=[3]), size=1, param_attr="w", bias_attr=False)
        cost = fluid.layers.square_error_cost(input=predict, label=fluid.layers.data(name="y", shape=[1]))
        loss = fluid.layers.mean(cost)
        fluid.optimizer.SGD(learning_rate=lr).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        weight = scope_value("w").astype("float64")
        found = []
        for wanted in (0.1, 0.1, 0.05, 0.05, 0.01, 0.01):
            weight -= wanted * 2 * x.T @ (x @ weight - y) / len(x)
            found.append(float(exe.run(feed={"x": x, "y": y}, fetch_list=[lr])[0]))
            np.testing.assert_allclose(scope_value("w"), weight, rtol=1e-4)
        np.testing.assert_allclose(found, [0.1, 0.1, 0.05, 0.05, 0.01, 0.01])
        assert scope_value("@LR_DECAY_COUNTER@").tolist() == [5]


@pytest.mark.parametrize(
    "make",
    [
        lambda fluid: fluid.layers.exponential_decay(0.1, decay_steps=3, decay_rate=0.5),
        lambda fluid: fluid.layers.piecewise_decay([2, 4], [0.1, 0.05, 0.01]),
        lambda fluid: fluid.layers.noam_decay(64, 3),
        lambda fluid: fluid.layers.linear_lr_warmup(
            fluid.layers.polynomial_decay(0.1, 6, 0.01, 1.0), warmup_steps=3, start_lr=0.0, end_lr=0.1
        ),
    ],
)
def test_schedules_are_variables(make):
    import fluid as functions

    schedule = make(functions)
    with fresh():
        rate = make(fluid)
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
        fluid.optimizer.Momentum(rate, momentum=0.9).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        feed = {"x": np.ones((2, 2), "float32")}
        found = [float(exe.run(feed=feed, fetch_list=[rate])[0]) for _ in range(7)]
    np.testing.assert_allclose(found, [float(schedule(step)) for step in range(7)], rtol=1e-6)


def detector(fluid):
    """Build a small SSD detector: two feature maps, prior boxes, and the loss."""
    image = fluid.layers.data(name="image", shape=[3, 32, 32], dtype="float32")
    gt_box = fluid.layers.data(name="gt_box", shape=[4], dtype="float32", lod_level=1)
    gt_label = fluid.layers.data(name="gt_label", shape=[1], dtype="int32", lod_level=1)
    first = fluid.layers.conv2d(image, num_filters=8, filter_size=3, stride=4, padding=1, act="relu")
    second = fluid.layers.conv2d(first, num_filters=8, filter_size=3, stride=2, padding=1, act="relu")
    mbox_locs, mbox_confs, box, box_var = fluid.layers.multi_box_head(
        inputs=[first, second],
        image=image,
        num_classes=3,
        min_ratio=20,
        max_ratio=90,
        min_sizes=[8.0, 16.0],
        max_sizes=[[], 24.0],
        aspect_ratios=[[2.0], [2.0]],
        base_size=32,
        offset=0.5,
        flip=True,
        clip=True,
    )
    loss = fluid.layers.ssd_loss(mbox_locs, mbox_confs, gt_box, gt_label, box, box_var)
    loss = fluid.layers.reduce_sum(loss)
    nmsed = fluid.layers.detection_output(mbox_locs, mbox_confs, box, box_var, nms_threshold=0.45)
    return loss, nmsed


def test_ssd_on_generated_boxes():
    def feed(seed):
        draw = np.random.default_rng(seed)
        corner = draw.uniform(0.0, 0.5, (4, 2))
        boxes = np.concatenate([corner, corner + draw.uniform(0.2, 0.5, (4, 2))], 1).astype("float32")
        lengths = [[1, 2, 1]]
        return {
            "image": draw.normal(size=(3, 3, 32, 32)).astype("float32"),
            "gt_box": fluid.create_lod_tensor(boxes, lengths, None),
            "gt_label": fluid.create_lod_tensor(draw.integers(1, 3, (4, 1)).astype("int32"), lengths, None),
        }

    losses = train_both(
        detector, [feed(seed) for seed in (1, 2)] * 4, lambda fluid: fluid.optimizer.Momentum(0.001, momentum=0.9)
    )
    assert losses[-1] < losses[0]


def test_py_reader_to_its_end():
    rows = [(random.normal(size=4).astype("float32"), i % 2) for i in range(10)]
    with fresh() as (main, startup):
        reader = fluid.layers.py_reader(
            capacity=64,
            shapes=[(-1, 4), (-1, 1)],
            dtypes=["float32", "int64"],
            lod_levels=[0, 0],
            use_double_buffer=True,
        )
        reader.decorate_paddle_reader(fluid.batch(lambda: iter(rows), batch_size=4))
        reader = fluid.layers.double_buffer(reader)
        image, label = fluid.layers.read_file(reader)
        prediction = fluid.layers.fc(image, size=2, act="softmax")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
        fluid.optimizer.Adam().minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        sizes = []
        for _ in range(2):
            reader.start()
            try:
                while True:
                    value, labels = exe.run(main, fetch_list=[loss.name, label])
                    sizes.append(len(labels))
            except fluid.core.EOFException:
                reader.reset()
        assert sizes == [4, 4, 2] * 2
        with pytest.raises(fluid.errors.ProgramError, match="reader.start()"):
            exe.run(main, fetch_list=[loss])
        assert np.isfinite(value).all()


def test_readers_that_give_their_feeds():
    rows = [(float(i), [i]) for i in range(5)]
    with fresh():
        x = fluid.layers.data("x", shape=[1])
        y = fluid.layers.data("y", shape=[1], dtype="int64")
        total = fluid.layers.reduce_sum(x) + fluid.layers.cast(fluid.layers.reduce_sum(y), "float32")
        reader = fluid.io.PyReader(feed_list=[x, y], capacity=4)
        reader.decorate_sample_list_generator(fluid.batch(lambda: iter(rows), batch_size=2), fluid.CPUPlace())
        loader = fluid.io.DataLoader.from_generator(feed_list=[x, y], capacity=4)
        loader.set_batch_generator(lambda: [(np.ones((3, 1), "float32"), np.ones((3, 1), "int64"))])
        exe = fluid.Executor(fluid.CPUPlace())
        assert [exe.run(feed=feed, fetch_list=[total])[0].tolist() for feed in reader()] == [[2.0], [10.0], [8.0]]
        assert [exe.run(feed=feed, fetch_list=[total])[0].tolist() for feed in loader] == [[6.0]]


def regression(fluid):
    x = fluid.layers.data(name="x", shape=[3])
    y = fluid.layers.data(name="y", shape=[1])
    hidden = fluid.layers.dropout(fluid.layers.fc(x, size=6, act="relu"), dropout_prob=0.25)
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1), y))


@pytest.mark.parametrize("compiled", [True, False])
def test_parallel_executors_match_a_single_executor(compiled):
    feeds = [{"x": random.normal(size=(8, 3)).astype("float32"), "y": np.ones((8, 1), "float32")} for _ in range(3)]
    wanted = train_both(regression, feeds)
    with fresh() as (main, startup):
        loss = regression(fluid)
        fluid.optimizer.SGD(learning_rate=0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        build_strategy = fluid.BuildStrategy()
        build_strategy.memory_optimize = True
        exec_strategy = fluid.ExecutionStrategy()
        exec_strategy.num_threads = 2
        halves = [[{n: v[:4] for n, v in feed.items()}, {n: v[4:] for n, v in feed.items()}] for feed in feeds]
        if compiled:
            program = fluid.CompiledProgram(main).with_data_parallel(
                loss_name=loss.name, build_strategy=build_strategy, exec_strategy=exec_strategy
            )
            found = [exe.run(program, feed=parts, fetch_list=[loss.name])[0] for parts in halves]
        else:
            parallel = fluid.ParallelExecutor(
                use_cuda=False, loss_name=loss.name, main_program=main, build_strategy=build_strategy
            )
            found = [parallel.run(fetch_list=[loss.name], feed=parts)[0] for parts in halves]
    assert [float(v) for v in found] == wanted


def test_two_programs_share_parameters():
    """Share word vectors between two programs in one scope: one program trains them, the other only reads them."""
    main_a = fluid.Program()
    main_b = fluid.Program()
    startup = fluid.Program()

    def tower(name):
        word = fluid.layers.data(name="word", shape=[1], dtype="int64")
        vector = fluid.layers.embedding(word, size=[5, 4], param_attr=fluid.ParamAttr(name="shared_emb"))
        return fluid.layers.fc(vector, size=1, param_attr=f"{name}_w", bias_attr=False)

    with fluid.scope_guard(fluid.Scope()), fluid.unique_name.guard():
        with fluid.program_guard(main_a, startup):
            loss_a = fluid.layers.mean(tower("a"))
            fluid.optimizer.SGD(0.5).minimize(loss_a)
        with fluid.program_guard(main_b, startup):
            loss_b = fluid.layers.mean(fluid.layers.square(tower("b")))
            fluid.optimizer.SGD(0.5).minimize(loss_b, parameter_list=["b_w"])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        first = scope_value("shared_emb")
        feed = {"word": np.array([[1], [3]], "int64")}
        weight = scope_value("a_w")
        exe.run(main_a, feed=feed, fetch_list=[loss_a])
        changed = first.copy()
        changed[[1, 3]] -= 0.5 * weight[:, 0] / 2
        np.testing.assert_allclose(scope_value("shared_emb"), changed, rtol=1e-6)
        (squares,) = exe.run(main_b, feed=feed, fetch_list=[loss_b])
        np.testing.assert_array_equal(scope_value("shared_emb"), np.float32(scope_value("shared_emb")))
        np.testing.assert_allclose(scope_value("shared_emb"), changed, rtol=1e-6)
        assert squares > 0
