"""Programs in the style of Fluid, run by an Executor: names, shapes, gradients, scopes and training.

A training by an Executor ends with the same parameters as a training of an equal program function.
"""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value, train_both

import fluid as functions
import fluid.static as fluid
from fluid.static import layers

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def test_fluid_loads_static_lazily():
    assert functions.static is fluid


def test_variable_shapes_match_fluid():
    with fresh() as (main, _):
        x = layers.data("x", shape=[4])
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        h = layers.fc(x, size=37)
        assert (x.shape, h.shape, h.dtype) == ((-1, 4), (-1, 37), "float32")
        assert (words.shape, words.lod_level) == ((-1, 1), 1)
        assert layers.embedding(words, size=[10, 8]).shape == (-1, 8)
        assert layers.mean(h).shape == (1,)
        assert layers.reshape(h, [-1, 1]).shape == (-1, 1)
        assert layers.transpose(h, [1, 0]).shape == (37, -1)
        assert [v.name for v in main.all_parameters()] == ["fc_0.w_0", "fc_0.b_0", "embedding_0.w_0"]
        assert main.global_block().var("fc_0.w_0").shape == (4, 37)


def test_a_call_keeps_the_arguments_of_its_line():
    with fresh() as (main, _):
        x = layers.data("x", shape=[3])
        parts, numbers = [x, x], np.ones((4, 1), "float32")
        joined, assigned = layers.concat(parts, axis=1), layers.assign(numbers)
        parts.append(x)
        numbers[:] = 7
        results = fluid.Executor(fluid.CPUPlace()).run(main, feed={"x": X}, fetch_list=[joined, assigned])
    np.testing.assert_array_equal(results[0], np.concatenate([X, X], 1))
    np.testing.assert_array_equal(results[1], np.ones((4, 1)))


def test_moving_statistics_are_parameters_of_the_program():
    with fresh() as (main, _):
        layers.batch_norm(layers.data("x", shape=[3, 4, 4]))
        names = [f"batch_norm_0.{name}" for name in ("w_0", "b_0", "w_1", "w_2")]
        assert [(v.name, v.trainable) for v in main.all_parameters()] == list(
            zip(names, [True, True, False, False], strict=True)
        )


def test_operators_are_layers():
    with fresh() as (main, _):
        x = layers.data("x", shape=[3])
        found = [1.0 - x, x * x, 2.0 / (x + 3.0), -x, x**2.0, x[:, 1], x[0:2], x < 0.5, x.astype("int64")]
        exe = fluid.Executor(fluid.CPUPlace())
        results = exe.run(main, feed={"x": X}, fetch_list=found)
        wanted = [1 - X, X * X, 2 / (X + 3), -X, X**2, X[:, 1], X[0:2], X < 0.5, X.astype(int)]
        for result, value in zip(results, wanted, strict=True):
            np.testing.assert_allclose(result, value, rtol=1e-5)
        with pytest.raises(TypeError, match="layers.Switch"):
            bool(x < 1.0)
        with pytest.raises(TypeError, match="layers.shape"):
            len(x)


def test_names_continue_between_programs_unless_guarded():
    with fresh():
        x = layers.data("x", shape=[3])
        assert layers.fc(x, size=1).name == "fc_0.tmp_1"
        other = fluid.Program()
        with fluid.program_guard(other):
            assert layers.fc(layers.data("x", shape=[3]), size=1).name == "fc_1.tmp_1"
            with fluid.unique_name.guard():
                shared = layers.fc(layers.data("y", shape=[3]), size=1)
        assert shared.name == "fc_0.tmp_1"
        with fluid.unique_name.guard("teacher"):
            assert layers.fc(x, size=1).name == "teacherteacherfc_0.tmp_1"


def test_a_layer_that_fails_leaves_no_trace():
    with fresh() as (main, _):
        x = layers.data("x", shape=[3])
        with pytest.raises(fluid.errors.FluidError):
            layers.fc(x, size=4, act="no such activation")
        assert layers.fc(x, size=5).name == "fc_0.tmp_1"
        assert main.global_block().var("fc_0.w_0").shape == (3, 5)


def test_a_variable_of_another_program_is_refused():
    with fresh():
        x = layers.data("x", shape=[3])
        with (
            fluid.program_guard(fluid.Program(), fluid.Program()),
            pytest.raises(fluid.errors.ProgramError, match="belongs to another program"),
        ):
            layers.fc(x, size=1)


def test_operators_are_recorded_into_the_guarded_program():
    with fresh() as (main, _):
        y = layers.fc(layers.data("x", shape=[3]), size=2, bias_attr=False)
        test, calls = main.clone(for_test=True), len(main.ops)
    with fluid.program_guard(test, fluid.Program()):
        found = (2.0 - y[:, 0]).astype("float64") * 100.0
    assert found.program is test and len(main.ops) == calls and len(test.ops) == calls + 4
    with fluid.program_guard(fluid.Program(), fluid.Program()):
        for use in (lambda: -y, lambda: y < 1.0, lambda: y.astype("int64"), lambda: y[0]):
            with pytest.raises(fluid.errors.ProgramError, match="belongs to another program"):
                use()
    assert (y + 1.0).program is main  # without a guard


def test_layers_of_startup_programs_run_after_initial_values():
    with fresh() as (main, startup), fluid.scope_guard(fluid.Scope()):
        attr = fluid.ParamAttr(name="w", initializer=fluid.initializer.Constant(3.0))
        y = layers.fc(layers.data("x", shape=[2]), size=1, param_attr=attr)
        with fluid.program_guard(startup, startup):
            half = layers.fill_constant([2, 1], "float32", 0.5)
            layers.assign(half * main.global_block().var("w"), output=main.global_block().var("w"))
            limit = layers.create_global_var([1], 2.0, "float32", persistable=True, name="limit")
            layers.assign(limit * 2.0, output=limit)
        exe = fluid.Executor(fluid.CPUPlace())
        for _ in range(2):
            exe.run(startup)
            assert np.array(fluid.global_scope().find_var("limit")) == 4.0
            assert exe.run(main, feed={"x": np.ones((1, 2), "float32")}, fetch_list=[y])[0] == 3.0


def test_one_program_in_both_roles_is_refused():
    both = fluid.Program()
    with fluid.program_guard(both, both), fluid.unique_name.guard():
        layers.fc(layers.data("x", shape=[2]), size=1)
    with pytest.raises(fluid.errors.ProgramError, match="this startup program has the feed 'x'"):
        fluid.Executor(fluid.CPUPlace()).run(both, feed={"x": np.ones((1, 2), "float32")})


def test_a_name_is_used_once():
    with fresh():
        x = layers.data("x", shape=[3])
        layers.scale(x, 2.0, name="twice")
        assert layers.data("x", shape=[3]) is x
        with pytest.raises(fluid.errors.ProgramError, match="used twice"):
            layers.data("x", shape=[4])


def net(fluid):
    x = fluid.layers.data("x", shape=[3])
    hidden = fluid.layers.batch_norm(fluid.layers.fc(x, size=8, act="relu"))
    hidden = fluid.layers.dropout(hidden, dropout_prob=0.5)
    gain = fluid.layers.create_parameter([1], "float32", name="gain")
    return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(hidden, size=1) * gain - 1.0))


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda fluid: fluid.optimizer.Adam(learning_rate=0.01, regularization=fluid.regularizer.L2Decay(0.1)),
        lambda fluid: fluid.optimizer.MomentumOptimizer(0.1, momentum=0.9, use_nesterov=True),
        lambda fluid: fluid.optimizer.RMSProp(0.01),
    ],
)
def test_training_gives_the_bits_of_the_function(optimizer):
    losses = train_both(net, [{"x": X}] * 4, optimizer)
    assert len(set(losses)) == 4


def test_clips_of_a_program():
    """Check that a step at rate 1 changes the weight by the clipped norm of the gradient, 0.25."""
    with fresh() as (main, startup):
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(clip_norm=0.25))
        loss = layers.reduce_sum(layers.fc(layers.data("x", shape=[3]), size=1, bias_attr=False))
        fluid.optimizer.SGD(1.0).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        before = scope_value("fc_0.w_0")
        exe.run(main, feed={"x": X * 10})
        assert np.linalg.norm(scope_value("fc_0.w_0") - before) == pytest.approx(0.25, rel=1e-4)


def test_gradients_are_fetched():
    with fresh() as (main, startup):
        x = layers.data("x", shape=[3])
        h = layers.square(x)
        (gradient,) = fluid.gradients([layers.scale(h, 3.0)], x)
        exe = fluid.Executor(fluid.CPUPlace())
        (found,) = exe.run(main, feed={"x": X}, fetch_list=[gradient])
        np.testing.assert_allclose(found, 6 * X, rtol=1e-5)
        (pair,) = fluid.backward.append_backward(layers.mean(layers.fc(x, size=1, bias_attr=False)))
        with pytest.raises(fluid.errors.ProgramError, match="can be fetched"):
            layers.scale(pair[1], 2.0)


def test_gradients_of_sequences_are_sequences():
    rows = np.arange(6, dtype="float32").reshape(3, 2)
    with fresh() as (main, _):
        x = layers.data("x", shape=[2], lod_level=1)
        (gradient,) = fluid.gradients(layers.sequence_pool(layers.square(x), "sum"), x)
        assert (gradient.shape, gradient.lod_level) == ((-1, 2), 1)
        feed = {"x": fluid.create_lod_tensor(rows, [[2, 1]], None)}
        (found,) = fluid.Executor().run(main, feed=feed, fetch_list=[gradient], return_numpy=False)
        np.testing.assert_allclose(np.array(found), 2 * rows)
        assert found.recursive_sequence_lengths() == [[2, 1]]


def test_gradients_stop_at_excluded_variables():
    with fresh() as (main, startup):
        x = layers.data("x", shape=[3])
        squared = layers.square(x)
        total = layers.reduce_sum(squared * x)
        found = [fluid.gradients(total, x, no_grad_set=given)[0] for given in (None, [squared], {squared.name})]
        results = fluid.Executor(fluid.CPUPlace()).run(main, feed={"x": X}, fetch_list=found)
        for result, factor in zip(results, (3, 1, 1), strict=True):
            np.testing.assert_allclose(result, factor * X**2, rtol=1e-5)
        with pytest.raises(fluid.errors.ArgumentError, match="stop_gradient = True"):
            fluid.backward.append_backward(total, no_grad_set=[squared])


def test_gradients_of_several_losses_are_not_mixed_up():
    with fresh() as (main, startup):
        h = layers.fc(layers.data("x", shape=[3]), size=1, param_attr="w", bias_attr=False)
        losses = [layers.mean(h), layers.mean(layers.square(h))]
        w = main.global_block().var("w")
        first, second = (fluid.gradients(loss, w)[0] for loss in losses)
        ((_, stale),) = fluid.backward.append_backward(losses[0])
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        value = scope_value("w")
        found = exe.run(main, feed={"x": X}, fetch_list=[first, second, stale])
        wanted = [X.mean(0)[:, None], 2 * X.T @ (X @ value) / len(X)]
        np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)
        np.testing.assert_allclose(found[1], wanted[1], rtol=1e-5)
        np.testing.assert_allclose(found[2], wanted[0], rtol=1e-5)
        fluid.optimizer.SGD(0.1).minimize(losses[1])
        with pytest.raises(fluid.errors.ProgramError, match="of another loss"):
            exe.run(main, feed={"x": X}, fetch_list=[stale])


def test_a_penalty_of_gradients():
    """Minimise a loss that depends on the gradient of a net with respect to its input."""
    import jax
    import jax.numpy as jnp

    with fresh() as (main, startup):
        x = layers.data("x", shape=[3])
        scaled = x * 2.0
        h = layers.fc(scaled, size=4, act="tanh", param_attr="u", bias_attr=False)
        score = layers.fc(h, size=1, param_attr="v", bias_attr=False)
        (slope,) = fluid.gradients(score, scaled)
        norm = layers.sqrt(layers.reduce_sum(layers.square(slope), dim=1))
        penalty = layers.mean(layers.square(norm - 1.0))
        fluid.optimizer.SGD(0.1).minimize(penalty)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        before = {name: scope_value(name) for name in ("u", "v")}
        (found,) = exe.run(main, feed={"x": X}, fetch_list=[penalty])
        after = {name: scope_value(name) for name in ("u", "v")}

    def wanted(weights):
        slopes = jax.grad(lambda rows: jnp.sum(jnp.tanh(rows @ weights["u"]) @ weights["v"]))(2 * X)
        return jnp.mean((jnp.sqrt(jnp.sum(slopes**2, 1)) - 1) ** 2)

    np.testing.assert_allclose(found, [wanted(before)], rtol=1e-5)
    moved = jax.grad(wanted)(before)
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value - 0.1 * moved[name], rtol=1e-4, atol=1e-6)


def test_gradients_end_where_the_user_says():
    with fresh() as (main, startup):
        x = layers.data("x", shape=[3])
        frozen = layers.fc(x, size=2, param_attr="frozen", bias_attr=False)
        frozen.stop_gradient = True
        loss = layers.mean(layers.fc(frozen, size=1, param_attr="trained", bias_attr=False))
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        before = {name: scope_value(name) for name in ("frozen", "trained")}
        exe.run(main, feed={"x": X})
        np.testing.assert_array_equal(scope_value("frozen"), before["frozen"])
        assert not np.array_equal(scope_value("trained"), before["trained"])


def test_without_the_startup_program_nothing_runs():
    with fresh() as (main, startup):
        y = layers.fc(layers.data("x", shape=[3]), size=1)
        exe = fluid.Executor(fluid.CPUPlace())
        with pytest.raises(fluid.errors.ProgramError, match="run the startup program first"):
            exe.run(main, feed={"x": X}, fetch_list=[y])
        exe.run(startup)
        assert exe.run(main, feed={"x": X}, fetch_list=[y])[0].shape == (4, 1)


def test_the_startup_program_begins_anew():
    with fresh() as (main, startup):
        loss = layers.mean(layers.fc(layers.data("x", shape=[3]), size=1))
        fluid.optimizer.Adam(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())

        def two_steps():
            exe.run(startup)
            return [float(exe.run(main, feed={"x": X}, fetch_list=[loss])[0]) for _ in range(2)]

        assert two_steps() == two_steps()


def test_scopes_hold_separate_values():
    with fresh() as (main, startup):
        y = layers.fc(layers.data("x", shape=[3]), size=1, bias_attr=False)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        other = fluid.core.Scope()
        with fluid.scope_guard(other):
            exe.run(startup)
            fluid.global_scope().find_var("fc_0.w_0").get_tensor().set(np.zeros((3, 1)), fluid.CPUPlace())
        assert not exe.run(main, feed={"x": X}, fetch_list=[y], scope=other)[0].any()
        assert exe.run(main, feed={"x": X}, fetch_list=[y])[0].any()
        assert fluid.global_scope().find_var("no such name") is None


def test_persistable_variables_are_kept_in_the_scope():
    with fresh() as (main, _):
        y = layers.scale(layers.data("x", shape=[3]), 2.0)
        y.persistable = True
        fluid.Executor(fluid.CPUPlace()).run(main, feed={"x": X})
        np.testing.assert_allclose(scope_value(y.name), 2 * X)


def test_a_clone_fetches_shapes_of_the_program():
    with fresh() as (main, startup):
        h = layers.fc(layers.data("x", shape=[3]), size=2)
        loss = layers.mean(h)
        test = main.clone(for_test=True)
        fluid.optimizer.SGD(0.1).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        tested = exe.run(test, feed={"x": X}, fetch_list=[loss, h])
        trained = exe.run(main, feed={"x": X}, fetch_list=[loss, h])
        assert [v.shape for v in tested] == [v.shape for v in trained] == [(1,), (4, 2)]
        np.testing.assert_array_equal(tested[1], trained[1])
        with fluid.program_guard(test, startup):
            (doubled,) = exe.run(test, feed={"x": X * 0}, fetch_list=[layers.scale(h, 2.0)])
        np.testing.assert_allclose(doubled, np.tile(2 * scope_value("fc_0.b_0"), (4, 1)), rtol=1e-6)


def test_layers_added_after_runs_keep_optimizer_state():
    def losses(later):
        with fresh() as (main, startup):
            loss = layers.mean(layers.square(layers.fc(layers.data("x", shape=[3]), size=1)))
            fluid.optimizer.Adam(0.1).minimize(loss)
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            for step in range(4):
                if step == 2 and later:
                    layers.scale(loss, 2.0)
                (found,) = exe.run(main, feed={"x": X}, fetch_list=[loss])
            return float(found)

    assert losses(later=True) == losses(later=False)


def test_branches_of_functions_see_variables():
    with fresh() as (main, _):
        x = layers.data("x", shape=[3])
        large = layers.reduce_max(x) > 1.0
        y = layers.cond(large, lambda: x / layers.reduce_max(x), lambda: x)
        exe = fluid.Executor(fluid.CPUPlace())
        (found,) = exe.run(main, feed={"x": X * 10}, fetch_list=[y])
        np.testing.assert_allclose(found, X / X.max(), rtol=1e-5)


def test_static_layers_run_directly_in_program_functions():
    trainer = fluid.Trainer(lambda: net(fluid), lambda: fluid.optimizer.SGD(learning_rate=0.1))
    wanted = functions.Trainer(lambda: net(functions), lambda: functions.optimizer.SGD(learning_rate=0.1))
    for each in (trainer, wanted):
        each.train(reader=lambda: iter([[(row,) for row in X]]), num_epochs=2)
    for name, value in wanted.params.items():
        np.testing.assert_array_equal(trainer.params[name], value)


def test_arguments_of_fluid_without_influence():
    with fresh():
        image = layers.data("image", shape=[1, 8, 8], type=None, stop_gradient=True)
        h = layers.conv2d(image, num_filters=2, filter_size=3, use_cudnn=True, use_mkldnn=False)
        assert layers.fc(h, size=2, is_test=False, use_mkldnn=False).shape == (-1, 2)
        with pytest.raises(TypeError, match="no_such_argument"):
            layers.fc(h, size=2, no_such_argument=1)


def test_persistables_continue_a_training(in_tmp):
    def build():
        loss = net(fluid)
        fluid.optimizer.Adam(0.05).minimize(loss)
        return loss

    with fresh() as (main, startup):
        loss = build()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for _ in range(2):
            exe.run(main, feed={"x": X})
        fluid.io.save_persistables(exe, "saved", main)
        fluid.io.save_params(exe, "params", main)
        wanted = [exe.run(main, feed={"x": X}, fetch_list=[loss])[0].tolist() for _ in range(2)]
        end = scope_value("fc_0.w_0")
    with fresh() as (main, startup):
        loss = build()
        exe = fluid.Executor(fluid.CPUPlace())
        fluid.io.load_persistables(exe, "saved", main)
        assert [exe.run(main, feed={"x": X}, fetch_list=[loss])[0].tolist() for _ in range(2)] == wanted
        np.testing.assert_array_equal(scope_value("fc_0.w_0"), end)
        fluid.io.load_params(exe, "params", main)
        assert not np.array_equal(scope_value("fc_0.w_0"), end)
        with pytest.raises(fluid.errors.ParameterFileError):
            fluid.io.load_persistables(exe, "nowhere", main)


def test_some_values_are_saved(in_tmp):
    with fresh() as (main, startup):
        layers.fc(layers.data("x", shape=[3]), size=1)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fluid.io.save_vars(exe, "saved", main, predicate=lambda v: v.name.endswith(".b_0"))
        fluid.global_scope().find_var("fc_0.b_0").get_tensor().set([5.0], None)
        fluid.io.load_vars(exe, "saved", main, vars=[main.global_block().var("fc_0.b_0")])
        assert scope_value("fc_0.b_0").tolist() == [0.0]
        with pytest.raises(fluid.errors.ParameterError, match="missing: fc_0.w_0"):
            fluid.io.load_vars(exe, "saved", main, vars=["fc_0.w_0"])


def test_the_two_halves_of_minimize():
    def losses(halves):
        with fresh() as (main, startup):
            loss = layers.mean(layers.square(layers.fc(layers.data("x", shape=[3]), size=1)))
            optimizer = fluid.optimizer.Adam(0.1)
            if halves:
                pairs = optimizer.backward(loss)
                optimizer.apply_gradients([pair for pair in pairs if pair[0].name == "fc_0.w_0"])
                with pytest.raises(fluid.errors.ProgramError, match="set_gradient_clip"):
                    optimizer.apply_gradients([(pairs[0][0], pairs[1][1])])
            else:
                optimizer.minimize(loss, parameter_list=["fc_0.w_0"])
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            return [float(exe.run(main, feed={"x": X}, fetch_list=[loss])[0]) for _ in range(3)]

    assert losses(halves=True) == losses(halves=False)


def test_averages_of_parameters():
    with fresh() as (main, startup):
        loss = layers.reduce_sum(layers.fc(layers.data("x", shape=[3]), size=1, bias_attr=False))
        fluid.optimizer.SGD(1.0).minimize(loss)
        ema = fluid.optimizer.ExponentialMovingAverage(0.5)
        ema.update()
        model_average = fluid.optimizer.ModelAverage(1.0, min_average_window=10, max_average_window=10)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        seen = []
        for _ in range(3):
            exe.run(main, feed={"x": X})
            seen.append(scope_value("fc_0.w_0"))
        with ema.apply(exe):
            averaged = scope_value("fc_0.w_0")
        with model_average.apply(exe, need_restore=False):
            mean = scope_value("fc_0.w_0")
        np.testing.assert_array_equal(scope_value("fc_0.w_0"), mean)
        model_average.restore(exe)
        np.testing.assert_array_equal(scope_value("fc_0.w_0"), seen[-1])
    weights = [0.125, 0.25, 0.5]
    wanted = sum(w * v for w, v in zip(weights, seen, strict=True)) / sum(weights)
    np.testing.assert_allclose(averaged, wanted, rtol=1e-5)
    np.testing.assert_allclose(mean, np.mean(seen, axis=0), rtol=1e-5)


def test_an_average_before_minimize_is_refused():
    with fresh(), pytest.raises(fluid.errors.ProgramError, match="first optimizer.minimize"):
        fluid.optimizer.ExponentialMovingAverage(0.5).update()


def test_a_computed_rate_inside_a_wrapper():
    with fresh() as (main, startup):
        loss = layers.reduce_sum(layers.fc(layers.data("x", shape=[3]), size=1, bias_attr=False))
        rate = layers.piecewise_decay([1], [0.5, 0.0])
        fluid.optimizer.Lookahead(fluid.optimizer.SGD(rate), alpha=0.5, k=10).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        before = scope_value("fc_0.w_0")
        exe.run(main, feed={"x": X})
        after = scope_value("fc_0.w_0")
        np.testing.assert_allclose(after, before - 0.5 * X.sum(0)[:, None], rtol=1e-5)
        exe.run(main, feed={"x": X})
        np.testing.assert_array_equal(scope_value("fc_0.w_0"), after)


@pytest.mark.parametrize("k", [1, 3])
def test_accuracy_stores_correct_and_total(k):
    rng = np.random.default_rng(3)
    numbers = rng.normal(size=(11, 5)).astype("float32")
    classes = np.where(np.arange(11) < 4, numbers.argmax(axis=1), numbers.argmin(axis=1))[:, None]
    hits = int(np.sum(np.argsort(-numbers, axis=1)[:, :k] == classes))
    with fresh():
        scores, label = layers.data("scores", shape=[5]), layers.data("label", shape=[1], dtype="int64")
        counts = layers.create_tensor("int64"), layers.create_tensor("int64")
        fraction = layers.accuracy(scores, label, k=k, correct=counts[0], total=counts[1])
        feed = {"scores": numbers, "label": classes}
        fraction, *found = fluid.Executor().run(feed=feed, fetch_list=[fraction, *counts])
    assert [int(value) for value in found] == [hits, 11] and 0 < hits < 11
    assert all(np.issubdtype(value.dtype, np.integer) for value in found)
    np.testing.assert_allclose(fraction, hits / 11, rtol=1e-6)
