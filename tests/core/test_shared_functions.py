"""`fluid.shared`: one set of parameters and states for all calls of a function."""

import functools

import jax
import numpy as np
import pytest

import fluid
from fluid import errors, layers

X = np.random.default_rng(0).normal(size=(6, 4)).astype("float32")
Z = np.random.default_rng(1).normal(size=(6, 4)).astype("float32")


@fluid.shared
def encoder(x):
    return layers.fc(layers.fc(x, size=5, act="tanh"), size=3)


def inputs():
    return layers.data("x", shape=[4]), layers.data("z", shape=[4])


def distance():
    x, z = inputs()
    return layers.mean(layers.square(encoder(x) - encoder(z)))


def by_hand(arrays, x):
    """Compute the outputs of the two-layer net `encoder` with NumPy."""
    hidden = np.tanh(x @ arrays["encoder/fc_0.w_0"] + arrays["encoder/fc_0.b_0"])
    return hidden @ arrays["encoder/fc_1.w_0"] + arrays["encoder/fc_1.b_0"]


ENCODER = ["encoder/fc_0.w_0", "encoder/fc_0.b_0", "encoder/fc_1.w_0", "encoder/fc_1.b_0"]


def test_all_calls_use_the_same_parameters():
    with fluid.Session(distance) as session:
        assert list(session.programs["distance"].parameters) == ENCODER
        arrays = {name: np.asarray(value) for name, value in session.params().items()}
        expected = np.mean((by_hand(arrays, X) - by_hand(arrays, Z)) ** 2)
        np.testing.assert_allclose(session.run(feed={"x": X, "z": Z})[0], expected, rtol=1e-5)


def test_the_gradient_adds_up_over_the_calls():
    gradients = ["encoder/fc_1.w_0@GRAD", "encoder/fc_0.b_0@GRAD"]
    with fluid.Session(distance) as session:
        arrays = {name: np.asarray(value) for name, value in session.params().items()}
        found = session.run(feed={"x": X, "z": Z}, fetch=gradients)

        def loss(values):
            def net(x):
                hidden = jax.numpy.tanh(x @ values["encoder/fc_0.w_0"] + values["encoder/fc_0.b_0"])
                return hidden @ values["encoder/fc_1.w_0"] + values["encoder/fc_1.b_0"]

            return jax.numpy.mean((net(X) - net(Z)) ** 2)

        expected = jax.grad(loss)(arrays)
    for name, value in zip(gradients, found, strict=True):
        np.testing.assert_allclose(value, expected[name.removesuffix("@GRAD")], rtol=1e-4, atol=1e-6)


def test_names_do_not_depend_on_other_layers():
    def crowded():
        x, z = inputs()
        h = layers.fc(layers.fc(x, size=4), size=4)
        with fluid.name_scope("outer"), fluid.name_scope("inner"):
            return layers.mean(encoder(h) + encoder(layers.fc(z, size=4)))

    names = list(fluid.Program(crowded).parameters)
    assert [n for n in names if n.startswith("encoder/")] == ENCODER
    assert "outer/inner/fc_0.w_0" in names


def test_values_of_each_call_are_fetched_and_overridden():
    def program():
        x, z = inputs()
        return layers.mean(layers.identity(encoder(x), name="first") + encoder(z))

    found = fluid.Program(program)
    assert "encoder/fc_0.tmp_2" in found.values and "encoder(2)/fc_0.tmp_2" in found.values
    assert found.aliases["encoder(2)/fc_1"] == "encoder(2)/fc_1.tmp_1"
    with fluid.Session(program) as session:
        first, second = session.run(feed={"x": X, "z": X}, fetch=["encoder/fc_1", "encoder(2)/fc_1"])
        np.testing.assert_array_equal(first, second)
        other = session.run(feed={"encoder(2)/fc_1": second + 1, "x": X}, fetch=["mean_0"])[0]
        np.testing.assert_allclose(other, session.run(feed={"x": X, "z": X})[0] + 1, rtol=1e-5)


def test_user_named_value_has_a_name_per_call():
    @fluid.shared
    def net(x):
        return layers.identity(x * layers.create_parameter([4], name="gain"), name="scaled")

    program = fluid.Program(lambda: [layers.mean(net(v)) for v in inputs()])
    assert list(program.parameters) == ["net/gain"]
    assert {"net/scaled", "net(2)/scaled"} <= set(program.values)


def test_dropout_draws_anew_in_each_call():
    @fluid.shared
    def noisy(x):
        return layers.dropout(layers.fc(x, size=50), 0.5)

    def program():
        x = layers.data("x", shape=[4])
        return layers.mean(x), noisy(x), noisy(x)

    with fluid.Session(program) as session:
        _, first, second = session.run(feed={"x": X}, mode="train")
    assert 0.2 < np.mean((first == 0) != (second == 0)) < 0.8


def test_moving_averages_follow_all_calls_in_order():
    @fluid.shared
    def normal(x):
        return layers.batch_norm(x, momentum=0.8)

    def program():
        x, z = inputs()
        return layers.mean(normal(x) + normal(z))

    with fluid.Session(program) as session:
        session.run(feed={"x": X, "z": Z + 3}, mode="train")
        mean = session.scope["normal/batch_norm_0.w_1"]
    expected = 0.8 * (0.2 * X.mean(0)) + 0.2 * (Z + 3).mean(0)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)


def test_custom_states_are_shared():
    @fluid.shared
    def counted(x):
        state = layers.create_state([1], "int32", name="calls")
        state.update(state.value + 1)
        return x + state.value.astype("float32")

    def program():
        x, z = inputs()
        return layers.mean(counted(x)) + layers.mean(counted(z))

    with fluid.Session(program) as session:
        for _ in range(3):
            session.run(feed={"x": X, "z": Z}, mode="train")
        assert session.scope["counted/calls"].tolist() == [6]


def test_session_programs_and_an_inferencer_share_parameters(tmp_path):
    def score():
        return {"features": encoder(layers.data("image", shape=[4]))}

    def minimized():
        x, z = inputs()
        layers.fc(x, size=2)  # an extra `fc`, so layer names in the two programs have different numbers
        loss = layers.mean(layers.square(encoder(x) - encoder(z) - 1.0))
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["encoder/*"])
        return loss

    with fluid.Session(minimized, score) as session:
        before = session.run(score, {"image": X})["features"]
        for _ in range(3):
            session.run(minimized, {"x": X, "z": Z})
        after = session.run(score, {"image": X})["features"]
        assert np.abs(np.asarray(after) - np.asarray(before)).max() > 1e-3
        session.save_params(tmp_path / "encoder.params", names=["encoder/*"])
    inferencer = fluid.Inferencer(score, param_path=tmp_path / "encoder.params")
    np.testing.assert_allclose(inferencer.infer({"image": X})["features"], after, rtol=1e-6)


def test_exported_model_runs_a_shared_function(tmp_path):
    trainer = fluid.Trainer(distance, fluid.optimizer.SGD(0.1))
    trainer.save_inference_model(tmp_path / "distance.model", fetch=["mean_0"])
    model = fluid.Inferencer(param_path=tmp_path / "distance.model")
    np.testing.assert_allclose(
        model.infer({"x": X, "z": Z})[0], trainer.run({"x": X, "z": Z}, fetch=["mean_0"])[0], rtol=1e-5
    )


def test_globs_select_shared_parameters_to_freeze_and_rename():
    def headed():
        return layers.mean(layers.fc(encoder(inputs()[0]), size=1))

    trainer = fluid.Trainer(headed, fluid.optimizer.SGD(0.1))
    assert set(trainer.freeze("encoder/*")) == set(ENCODER)
    with fluid.Session(distance) as session:
        session.load_params(
            {f"old/{n.partition('/')[2]}": v for n, v in trainer.params.items() if n in ENCODER},
            rename={"old/*": "encoder/*"},
        )


def test_nested_shared_functions_have_a_single_scope_each():
    @fluid.shared
    def word(x):
        return layers.fc(x, size=4)

    @fluid.shared
    def sentence(x):
        return word(x) + layers.fc(x, size=4)

    def program():
        x, z = inputs()
        return layers.mean(sentence(x) + sentence(word(z)))

    assert list(fluid.Program(program).parameters) == [
        "word/fc_0.w_0",
        "word/fc_0.b_0",
        "sentence/fc_0.w_0",
        "sentence/fc_0.b_0",
    ]


def test_stacked_blocks_share_arrays_inside_and_outside():
    @fluid.shared
    def tower(x):
        return layers.repeat(lambda h: layers.batch_norm(layers.fc(h, size=4)), 3, x)

    def program():
        x, z = inputs()
        mixed = layers.repeat(lambda h: encoder_of_four(h) + layers.fc(h, size=4), 2, tower(x))
        return layers.mean(mixed + tower(z) + encoder_of_four(z))

    @fluid.shared
    def encoder_of_four(x):
        return layers.fc(x, size=4, bias_attr=False)

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1))
    shapes = {name: value.shape for name, value in trainer.params.items()}
    assert shapes == {
        "encoder_of_four/fc_0.w_0": (4, 4),
        "repeat_0/fc_0.w_0": (2, 4, 4),
        "repeat_0/fc_0.b_0": (2, 4),
        "tower/repeat_0/fc_0.w_0": (3, 4, 4),
        "tower/repeat_0/fc_0.b_0": (3, 4),
        **{f"tower/repeat_0/batch_norm_0.{s}": (3, 4) for s in ("w_0", "b_0", "w_1", "w_2")},
    }
    trainer.train([{"x": X, "z": Z}], num_epochs=1)


def test_recurrent_block_shares_with_layers_outside():
    @fluid.shared
    def cell(x, h):
        return layers.fc([x, h], size=3, act="tanh")

    def program():
        steps = layers.data("steps", shape=[4], lod_level=1)
        rnn = layers.DynamicRNN()
        with rnn.block():
            x = rnn.step_input(steps)
            memory = rnn.memory(shape=[3])
            hidden = cell(x, memory)
            rnn.update_memory(memory, hidden)
            rnn.output(hidden)
        last = layers.sequence_last_step(rnn())
        return cell(layers.data("x", shape=[4]), last)

    with fluid.Session(program) as session:
        assert list(session.scope) == ["cell/fc_0.b_0", "cell/fc_0.w_0", "cell/fc_0.w_1"]
        found = session.run(feed={"steps": [X[:2]], "x": X[2:3]})[0]
        a = {name: np.asarray(v) for name, v in session.params().items()}
    h = np.zeros((1, 3), "float32")
    for row in X[:3]:
        h = np.tanh(row @ a["cell/fc_0.w_0"] + h @ a["cell/fc_0.w_1"] + a["cell/fc_0.b_0"])
    np.testing.assert_allclose(found, h, rtol=1e-5)


def test_both_branches_of_cond_share_parameters():
    def program():
        x, z = inputs()
        return layers.cond(layers.mean(x) > 0.0, lambda: encoder(x), lambda: encoder(z))

    program = fluid.Program(program)
    assert list(program.parameters) == ENCODER


@pytest.mark.parametrize("scan", [layers.scan, None])
def test_function_redefined_in_a_loop_is_shared(scan):
    def step(h, x):
        net = fluid.shared(lambda v: layers.fc(v, size=4), name="inner")
        return (net(h) + x, None) if scan else net(h) + x

    def program():
        x, z = inputs()
        if scan:
            return layers.scan(step, x, jax.numpy.stack([z, z, z]))[0]
        return layers.while_loop(lambda h: layers.mean(h) < 0.0, lambda h: [step(h, z)], [x])[0]

    assert list(fluid.Program(program).parameters) == ["inner/fc_0.w_0", "inner/fc_0.b_0"]


class Net:
    def __init__(self, size):
        self.size = size

    @fluid.shared
    def encode(self, x):
        return layers.fc(x, size=self.size, bias_attr=False)


def one(function, count=2):
    """Return the names of the parameters of a program that calls a shared function `count` times."""
    return list(fluid.Program(lambda: sum(layers.mean(function(v)) for v in inputs()[:count])).parameters)


def test_methods_partials_lambdas_and_other_names():
    net = Net(3)
    assert one(net.encode) == ["encode/fc_0.w_0"]
    assert one(fluid.shared(net.encode, name="mine")) == ["mine/fc_0.w_0"]
    assert one(fluid.shared(functools.partial(layers.fc, size=2, bias_attr=False), name="head")) == ["head/fc_0.w_0"]
    assert one(fluid.shared(lambda x: layers.fc(x, size=2, bias_attr=False), name="f")) == ["f/fc_0.w_0"]
    assert one(fluid.shared(encoder, name="target"))[0] == "target/fc_0.w_0"

    @fluid.shared(name="named")
    def unnamed(x):
        """Kept."""
        return layers.fc(x, size=2, bias_attr=False)

    assert one(unnamed) == ["named/fc_0.w_0"]
    assert unnamed.__doc__ == "Kept." and "named" in repr(unnamed)


def test_a_shared_function_can_be_the_program():
    @fluid.shared
    def whole():
        return layers.fc(layers.data("x", shape=[4]), size=2)

    program = fluid.Program(whole)
    assert program.name == "whole" and list(program.parameters) == ["whole/fc_0.w_0", "whole/fc_0.b_0"]


def test_other_input_shapes_are_refused_with_both_calls():
    def program():
        x = layers.data("x", shape=[4])
        wide = layers.data("wide", shape=[7])
        return layers.mean(encoder(x)) + layers.mean(encoder(wide))

    with pytest.raises(errors.ParameterError) as caught:
        fluid.Program(program)
    text = str(caught.value)
    assert text.count("called at") == 2 and text.count("test_shared_functions.py") == 4
    assert 'fluid.shared(encoder, name="encoder_2")' in text and "float32[7, 5]" in text


def test_two_functions_of_equal_name_are_refused():
    def made(scale):
        @fluid.shared
        def tower(x):
            return layers.fc(x * scale, size=3)

        return tower

    first, second = made(1.0), made(2.0)
    with pytest.raises(errors.ProgramError, match="two functions are shared under the name 'tower'.*two nets"):
        fluid.Program(lambda: [layers.mean(net(x)) for net, x in zip((first, second), inputs(), strict=True)])
    mine, other = Net(3), Net(3)
    with pytest.raises(errors.ProgramError, match="'encode'"):
        fluid.Program(lambda: [layers.mean(net.encode(x)) for net, x in zip((mine, other), inputs(), strict=True)])


def test_session_refuses_different_functions_of_equal_name():
    first, second = Net(3), Net(3)
    with pytest.raises(errors.ProgramError, match="the program g shares another function under the name 'encode'"):
        fluid.Session(
            fluid.Program(lambda: first.encode(inputs()[0]), name="f"),
            fluid.Program(lambda: second.encode(inputs()[0]), name="g"),
        )
    same = fluid.shared(first.encode, name="net"), fluid.shared(second.encode, name="net")
    fluid.Session(*(fluid.Program(functools.partial(lambda f: f(inputs()[0]), net)) for net in same)).close()


@pytest.mark.parametrize("scope_first", [True, False])
def test_name_scope_of_equal_name_is_refused(scope_first):
    def by_hand(x):
        with fluid.name_scope("encoder"):
            return layers.fc(x, size=4)

    def program():
        x, z = inputs()
        results = [f(v) for f, v in zip((by_hand, encoder) if scope_first else (encoder, by_hand), (x, z), strict=True)]
        return [layers.mean(r) for r in results]

    with pytest.raises(errors.ParameterError, match="is the name of a shared function, and of a name scope"):
        fluid.Program(program)


def test_call_inside_an_equally_named_scope_keeps_names():
    def program():
        x, z = inputs()
        with fluid.name_scope("encoder"):
            return layers.mean(encoder(x) - encoder(z))

    assert list(fluid.Program(program).parameters) == ENCODER


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: fluid.shared(lambda x: x), errors.ArgumentError),
        (lambda: fluid.shared(encoder, name="a/b"), errors.ArgumentError),
        (lambda: fluid.shared(encoder, name=""), errors.ArgumentError),
        (lambda: fluid.shared(3), errors.ArgumentTypeError),
        (lambda: encoder(X), errors.OutsideProgramError),
    ],
)
def test_unsupported_functions_are_refused(make, error):
    with pytest.raises(error, match=r"fluid\.shared"):
        make()


def test_initial_values_depend_on_the_name_only():
    def alone():
        return encoder(layers.data("x", shape=[4]))

    with fluid.Session(distance, seed=3) as session, fluid.Session(alone, seed=3) as other:
        for name in ENCODER:
            np.testing.assert_array_equal(session.scope[name], other.scope[name])


def test_table_rows_of_two_calls_are_updated_once():
    @fluid.shared
    def look(ids):
        return layers.embedding(ids, size=[10, 3], is_sparse=True)

    def program(net):
        a, b = (layers.data(n, shape=[1], dtype="int64") for n in "ab")
        return layers.mean(layers.square(net(a))) + layers.mean(layers.square(net(b) - 1.0))

    def dense():
        return program(fluid.shared(lambda ids: layers.embedding(ids, size=[10, 3]), name="look"))

    feed = {"a": np.array([[1], [2], [2]]), "b": np.array([[2], [3], [1]])}
    trained = []
    for function in (functools.partial(program, look), dense):
        trainer = fluid.Trainer(function, fluid.optimizer.Adagrad(0.1), seed=0)
        trainer.train([feed] * 3, num_epochs=1)
        trained.append(trainer.params["look/embedding_0.w_0"])
    np.testing.assert_allclose(trained[0], trained[1], rtol=1e-5)


def test_reopened_scope_with_new_parameters_warns_with_lines():
    def net(x):
        with fluid.name_scope("d"):
            return layers.fc(x, size=2)

    def program():
        x, z = inputs()
        first = net(x)
        return layers.mean(first - net(z))

    with pytest.warns(errors.FluidWarning, match="'d/fc_1.w_0' is another array than 'd/fc_0.w_0'") as caught:
        fluid.Program(program)
    assert len(caught) == 1
    text = str(caught[0].message)
    assert "fluid.shared" in text and text.count("in program") == 2


def test_reopened_scope_with_other_layers_is_silent():
    def program():
        x = layers.data("x", shape=[4])
        with fluid.name_scope("d"):
            x = layers.fc(x, size=3)
        with fluid.name_scope("d"):
            x = layers.fc(x, size=2)
        with fluid.name_scope("d"):
            return layers.mean(layers.relu(x))

    fluid.Program(program)


def test_second_layer_of_equal_name_and_kind_warns():
    def program(kinds):
        x, z = inputs()
        return [layers.mean(kind(v, name="h")) for kind, v in zip(kinds, (x, z), strict=True)]

    dense = functools.partial(layers.fc, size=3)
    with pytest.warns(errors.FluidWarning, match=r"'h.w_1' is another array than 'h.w_0'.*fluid\.shared") as caught:
        found = fluid.Program(functools.partial(program, [dense, dense]))
    assert len(caught) == 1 and list(found.parameters) == ["h.w_0", "h.b_0", "h.w_1", "h.b_1"]
    named = functools.partial(layers.fc, size=3, param_attr="w", bias_attr="b")
    assert list(fluid.Program(functools.partial(program, [named, named])).parameters) == ["w", "b"]


def test_named_layer_of_several_inputs_is_silent():
    fluid.Program(lambda: layers.fc(list(inputs()), size=3, name="h"))


def test_target_networks_are_copied_and_moved():
    def q(x):
        return layers.batch_norm(layers.fc(x, size=2))

    online, target = fluid.shared(q, name="online"), fluid.shared(q, name="target")

    def program():
        x, z = inputs()
        return layers.mean(online(x) - target(z))

    with fluid.Session(program) as session:
        session.scope["online/batch_norm_0.w_1"] = np.array([1.0, 2.0], "float32")
        old = {name: np.asarray(value) for name, value in session.params().items()}
        moved = session.copy_params({"online/*": "target/*"}, rate=0.25)
        assert sorted(moved) == sorted(n for n in old if n.startswith("target/"))
        for name in moved:
            source = old[name.replace("target", "online")]
            np.testing.assert_allclose(session.scope[name], old[name] + 0.25 * (source - old[name]), rtol=1e-6)
        session.copy_params({"online/*": "target/*"})
        for name in moved:
            np.testing.assert_array_equal(session.scope[name], old[name.replace("target", "online")])
        session.run(feed={"x": X, "z": Z}, mode="train")  # frees old arrays, so the two nets cannot share an array


@pytest.mark.parametrize(
    ("names", "rate", "error"),
    [
        ({"nowhere/*": "target/*"}, 1.0, errors.UnknownNameError),
        ({"online/*": "aim/*"}, 1.0, errors.UnknownNameError),
        ({"online/fc_0.w_0": "target/fc_0.b_0"}, 1.0, errors.ParameterError),
        ({"online/*": "target/*"}, 0.0, errors.ArgumentError),
        ({"online/*": "target/*"}, 1.5, errors.ArgumentError),
    ],
)
def test_refused_copy_changes_no_parameter(names, rate, error):
    def program():
        return sum(layers.mean(fluid.shared(layers.fc, name=n)(inputs()[0], size=2)) for n in ("online", "target"))

    with fluid.Session(program) as session:
        before = session.params()
        with pytest.raises(error, match="copy_params"):
            session.copy_params(names, rate)
        for name, value in session.params().items():
            np.testing.assert_array_equal(value, before[name])


def test_summary_counts_uses_of_a_shared_block():
    shown = fluid.summary(distance)
    rows = {row.name: row for row in shown.rows}
    assert rows["encoder/fc_0"].uses == 2 and "encoder(2)/fc_0" not in rows
    assert "encoder/fc_0, used 2 times" in str(shown)
    single = {row.name: row for row in fluid.summary(lambda: encoder(layers.data("x", shape=[4]))).rows}
    assert rows["encoder/fc_0"].flops == 2 * single["encoder/fc_0"].flops


def test_static_program_shares_a_function():
    import fluid.static as static

    @static.shared
    def tower(x):
        return static.layers.fc(static.layers.fc(x, size=5, act="tanh"), size=3)

    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), static.unique_name.guard():
        x, z = (static.layers.data(n, shape=[4]) for n in "xz")
        difference = tower(x) - tower(z)
    assert [v.name for v in main.all_parameters()] == [n.replace("encoder", "tower") for n in ENCODER]
    with static.scope_guard(static.Scope()):
        executor = static.Executor(static.CPUPlace())
        executor.run(startup)
        (same,) = executor.run(main, feed={"x": X, "z": X}, fetch_list=[difference])
        (other,) = executor.run(main, feed={"x": X, "z": Z}, fetch_list=[difference])
        weights = {v.name: np.array(static.global_scope().find_var(v.name)) for v in main.all_parameters()}
    assert not same.any()
    weights = {name.replace("tower", "encoder"): value for name, value in weights.items()}
    np.testing.assert_allclose(other, by_hand(weights, X) - by_hand(weights, Z), rtol=1e-4, atol=1e-6)


def test_equal_layer_names_are_silent_in_static_programs():
    import fluid.static as static

    def program():
        return layers.fc(layers.fc(layers.data("x", shape=[4]), size=4, name="h"), size=4, name="h")

    with pytest.warns(errors.FluidWarning, match="second layer of this name"):
        fluid.Program(program)

    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), static.unique_name.guard():
        hidden = static.layers.fc(static.layers.data("x", shape=[4]), size=4, name="h")
        result = static.layers.fc(hidden, size=4, name="h")
    with static.scope_guard(static.Scope()):
        executor = static.Executor(static.CPUPlace())
        executor.run(startup)
        assert executor.run(main, feed={"x": X}, fetch_list=[result])[0].shape == (6, 4)


def test_copy_to_a_stop_gradient_target_is_silent():
    def learn():
        online, target = (fluid.shared(layers.fc, name=n) for n in ("online", "target"))
        x, z = inputs()
        goal = jax.lax.stop_gradient(target(z, size=2))
        return layers.mean(layers.square(online(x, size=2) - goal))

    trainer = fluid.Trainer(learn, fluid.optimizer.SGD(0.1))
    trainer.copy_params({"online/*": "target/*"}, rate=0.005)


def test_full_copy_to_a_trained_net_is_silent():
    def learn():
        first, second = (fluid.shared(layers.fc, name=n) for n in ("first", "second"))
        x, z = inputs()
        return layers.mean(layers.square(first(x, size=2) - second(z, size=2)))

    trainer = fluid.Trainer(learn, fluid.optimizer.SGD(0.1))
    trainer.copy_params({"first/*": "second/*"})
