"""Idioms of PaddlePaddle programs of 2018 and 2019, written as in these programs."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid.static as fluid
from fluid import errors
from fluid.static import layers

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


def regression():
    """Return the loss of a layer without a bias; with FEED, the gradient of its weight w is `2 * X.T @ (X @ w) / 4`."""
    h = layers.fc(layers.data("x", shape=[3]), size=1, bias_attr=False)
    return layers.mean(layers.square_error_cost(h, layers.data("label", shape=[1])))


FEED = {"x": X, "label": np.zeros((4, 1), "float32")}


def step(main, exe, **kwargs):
    """Run a training step; return the change of the weight as a multiple of the gradient, and the fetched values."""
    before = scope_value("fc_0.w_0")
    found = exe.run(main, feed=FEED, **kwargs)
    moved = before - scope_value("fc_0.w_0")
    gradient = 2 * X.T @ (X @ before) / 4
    np.testing.assert_allclose(moved / gradient, (moved / gradient)[0, 0], rtol=1e-3)
    return float((moved / gradient)[0, 0]), found


def test_the_rate_of_an_optimizer_is_fetched():
    with fresh() as (main, startup):
        optimizer = fluid.optimizer.SGD(learning_rate=0.5)
        assert optimizer._global_learning_rate() is None
        loss = regression()
        optimizer.minimize(loss)
        rate = optimizer._global_learning_rate()
        rate.persistable = True
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        moved, found = step(main, exe, fetch_list=[loss, rate.name, rate])
        assert [value.tolist() for value in found[1:]] == [[0.5], [0.5]]
        assert moved == pytest.approx(0.5, rel=1e-3)
        for use in (lambda: layers.scale(rate, 2.0), lambda: layers.assign(layers.ones([1], "float32"), rate)):
            with pytest.raises(errors.ProgramError, match="SGD\\(learning_rate=rate\\)"):
                use()


def test_the_rate_of_a_program_is_its_variable():
    with fresh():
        rate = layers.piecewise_decay([1], [0.5, 0.1])
        assert fluid.optimizer.SGD(learning_rate=rate)._global_learning_rate() is rate


@pytest.mark.parametrize("name", ["learning_rate_0", "learning_rate"])
def test_the_learning_rate_is_set_in_the_scope(name, tmp_path):
    with fresh() as (main, startup):
        rate = 0.5
        if name == "learning_rate":
            rate = layers.create_global_var([1], 0.5, "float32", persistable=True, name=name)
        fluid.optimizer.SGD(learning_rate=rate).minimize(regression())
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        found = fluid.global_scope().find_var(name).get_tensor()
        assert np.array(found).tolist() == [0.5]
        found.set(np.array([0.25], "float32"), fluid.CPUPlace())
        assert step(main, exe)[0] == pytest.approx(0.25, rel=1e-3)
        layers.scale(main.global_block().var("fc_0.tmp_0"), 2.0)  # this layer is added after the first run
        assert step(main, exe)[0] == pytest.approx(0.25, rel=1e-3)
        fluid.io.save_persistables(exe, str(tmp_path), main)
        exe.run(startup)
        assert scope_value(name).tolist() == [0.5]
        fluid.io.load_persistables(exe, str(tmp_path), main)
        assert scope_value(name).tolist() == [0.25]
        assert step(main, exe)[0] == pytest.approx(0.25, rel=1e-3)


def test_rates_of_two_programs_have_two_names():
    with fresh() as (_, startup):
        regression()
        for rate in (0.5, 0.25):
            with fluid.program_guard(fluid.Program(), startup):
                fluid.optimizer.SGD(rate).minimize(regression())
        fluid.Executor(fluid.CPUPlace()).run(startup)
        assert [scope_value(f"learning_rate_{i}").tolist() for i in range(2)] == [[0.5], [0.25]]


def test_a_label_has_no_gradient():
    with fresh() as (main, startup):
        loss = regression()
        label = main.global_block().var("label")
        pairs = [fluid.backward.append_backward(loss, no_grad_set=given) for given in ({"label"}, {label})]
        pairs += [fluid.optimizer.SGD(0.5).minimize(loss, no_grad_set=given)[1] for given in ({"label"}, {label})]
        assert [[v.name for v, _ in found] for found in pairs] == [["fc_0.w_0"]] * 4
        with pytest.raises(errors.ArgumentError, match="stop_gradient = True"):
            fluid.optimizer.SGD(0.5).minimize(loss, no_grad_set=[main.global_block().var("fc_0.tmp_0")])


def test_a_prefix_separates_nets_of_a_program():
    """Check that names contain the prefix twice, as in PaddlePaddle: once for the layer, and once for the parameter."""
    with fresh() as (main, startup):
        x = layers.data("x", shape=[3])
        with fluid.unique_name.guard("teacher_"):
            first = layers.fc(x, size=1)
            assert fluid.unique_name.generate("fc") == "teacher_fc_1"
        with fluid.unique_name.guard("student_"):
            second = layers.fc(x, size=1)
        names = [f"{end}_{end}_fc_0.{kind}_0" for end in ("teacher", "student") for kind in "wb"]
        assert [v.name for v in main.all_parameters()] == names
        assert [v.name for v in (first, second)] == ["teacher_teacher_fc_0.tmp_1", "student_student_fc_0.tmp_1"]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        found = exe.run(main, feed={"x": X}, fetch_list=[first.name, second.name])
        for value, end in zip(found, ("teacher", "student"), strict=True):
            np.testing.assert_allclose(value, X @ scope_value(f"{end}_{end}_fc_0.w_0"), rtol=1e-5)
        with pytest.raises(errors.ArgumentTypeError, match="expected a string"), fluid.unique_name.guard(3):
            pass


def test_a_shared_function_has_no_prefix():
    with fresh() as (main, _):
        with fluid.unique_name.guard("teacher_"):
            encoder = fluid.shared(lambda x: layers.fc(x, size=2), name="encoder")
            for name in "ab":
                encoder(layers.data(name, shape=[3]))
        assert [v.name for v in main.all_parameters()] == ["encoder/fc_0.w_0", "encoder/fc_0.b_0"]


@pytest.mark.parametrize("prune", [fluid.Program.prune, fluid.Program._prune])
def test_a_pruned_program_needs_no_label(prune):
    with fresh() as (main, startup):
        fluid.optimizer.SGD(0.5).minimize(regression())
        target = main.global_block().var("fc_0.tmp_0")
        pruned = prune(main, [target])
        assert [call.type for call in pruned.ops] == ["data", "fc"] and list(pruned.feeds) == ["x"]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        (found,) = exe.run(pruned, feed={"x": X}, fetch_list=[target])
        np.testing.assert_allclose(found, X @ scope_value("fc_0.w_0"), rtol=1e-5)


def test_a_block_creates_parameters_and_variables():
    with fresh() as (main, startup):
        block = main.global_block()
        weight = block.create_parameter(
            name="w", shape=[3, 1], dtype="float32", initializer=fluid.initializer.Constant(2.0), trainable=False
        )
        kept = main.current_block().create_var(name="kept", shape=[-1, 1], dtype="float32", persistable=True)
        assert (kept.shape, kept.dtype, block.var("w") is weight, block.var("kept") is kept) == (
            (-1, 1), "float32", True, True,
        )  # fmt: skip
        with pytest.raises(errors.ProgramError, match="holds nothing yet"):
            layers.scale(kept, 2.0)
        layers.assign(layers.mul(layers.data("x", shape=[3]), weight), output=kept)
        assert main.all_parameters() == [weight] and not weight.trainable
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        (found,) = exe.run(main, feed={"x": X}, fetch_list=[kept])
        np.testing.assert_allclose(found, 2 * X.sum(1, keepdims=True), rtol=1e-5)
        np.testing.assert_array_equal(fluid.executor._fetch_var("kept"), found)


def test_a_function_of_numpy_fills_a_created_variable():
    """Check `py_func` as in PaddlePaddle's documentation: its backward function reads the result, not the input."""
    with fresh() as (main, startup):
        x = layers.fc(layers.data("x", shape=[3]), size=2, bias_attr=False)
        y = main.current_block().create_var(name="y", shape=[-1, 2], dtype="float32")
        layers.py_func(np.tanh, x, y, lambda y, slope: slope * (1 - y * y), skip_vars_in_backward_input=x)
        fluid.optimizer.SGD(1.0).minimize(layers.reduce_sum(y))
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        before = scope_value("fc_0.w_0")
        (found,) = exe.run(main, feed={"x": X}, fetch_list=[y])
        np.testing.assert_allclose(found, np.tanh(X @ before), rtol=1e-5)
        np.testing.assert_allclose(before - scope_value("fc_0.w_0"), X.T @ (1 - found**2), rtol=1e-3, atol=1e-5)


def test_an_inner_scope_reads_the_outer_scope():
    with fresh() as (main, startup):
        y = layers.fc(layers.data("x", shape=[3]), size=1)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        inner = fluid.global_scope().new_scope()
        assert inner.find_var("nothing") is None
        weight = np.array(inner.find_var("fc_0.w_0").get_tensor())
        (found,) = exe.run(main, feed={"x": X}, fetch_list=[y], scope=inner)
        np.testing.assert_allclose(found, X @ weight, rtol=1e-5)
        exe.run(startup, scope=inner)
        inner.find_var("fc_0.w_0").get_tensor().set(np.zeros((3, 1), "float32"), fluid.CPUPlace())
        assert not exe.run(main, feed={"x": X}, fetch_list=[y], scope=inner)[0].any()
        np.testing.assert_array_equal(fluid.executor.fetch_var("fc_0.w_0", fluid.global_scope()), weight)
        with pytest.raises(errors.UnknownNameError, match="run the startup program first"):
            fluid.executor._fetch_var("nothing")


def test_an_average_of_fetched_losses_is_printed():
    average = fluid.average.WeightedAverage()
    average.add(value=np.array([2.0], "float32"), weight=1)
    average.add(value=np.array([5.0], "float32"), weight=np.array([2]))
    assert "%f" % average.eval() == "4.000000" and average.eval().shape == (1,)


@pytest.mark.parametrize("name", ["less_than", "less_equal", "greater_than", "greater_equal", "equal", "not_equal"])
def test_comparisons_broadcast(name):
    compare = {"less_than": np.less, "greater_than": np.greater}.get(name) or getattr(np, name)
    rows = np.arange(6, dtype="float32").reshape(2, 3)
    with fresh() as (main, _):
        x, column = layers.data("a", shape=[3]), layers.data("b", shape=[1])
        pairs = [(x, layers.fill_constant([1], "float32", 2.0)), (x, column), (column, x)]
        found = [getattr(layers, name)(a, b) for a, b in pairs]
        results = fluid.Executor().run(main, feed={"a": rows, "b": rows[:, 1:2]}, fetch_list=found)
        wanted = [compare(rows, 2.0), compare(rows, rows[:, 1:2]), compare(rows[:, 1:2], rows)]
        for result, value in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(result, value)
        with pytest.raises(errors.ShapeError, match="differ in shape"):
            getattr(layers, name)(x, layers.data("c", shape=[4]))


@pytest.mark.parametrize(("options", "wanted"), [({}, 0.625), ({"exclusive": False}, 0.625 * 16 / 49)])
def test_pooling_beyond_the_image_is_its_mean(options, wanted):
    """Check the mean of a window that is larger than the image, as PaddlePaddle computes it.

    A 4 x 4 image has (4 - 7) / 7 + 1 windows of 7 pixels. PaddlePaddle divides in C, where -3 / 7 is 0, so the image
    has one window.
    """
    image = np.repeat([0.5, 0.75], 8).astype("float32").reshape(1, 1, 4, 4)
    with fresh() as (main, _):
        x = layers.data("x", shape=[1, 4, 4])
        mean = layers.pool2d(x, pool_size=7, pool_stride=7, pool_type="avg", **options)
        largest = layers.pool2d(x, pool_size=6, pool_stride=2, ceil_mode=True)
        found = fluid.Executor().run(main, feed={"x": image}, fetch_list=[mean, largest])
        np.testing.assert_allclose([v.tolist() for v in found], [[[[[wanted]]]], [[[[0.75]]]]], rtol=1e-6)
        with pytest.raises(errors.ShapeError, match="pool_size=4, pool_padding=0"):
            layers.pool2d(x, pool_size=7, pool_type="avg")


def test_a_second_program_has_parameters_of_other_shapes():
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        programs = []
        for width, prefix in ((2, None), (2, "kept_"), (5, None)):
            main, startup = fluid.Program(), fluid.Program()
            with fluid.program_guard(main, startup), fluid.unique_name.guard(prefix):
                loss = layers.mean(layers.fc(layers.data("x", shape=[3]), size=width))
                fluid.optimizer.Momentum(0.5, 0.9).minimize(loss)
            programs.append((main, loss))
            exe.run(startup)
            before = [float(exe.run(main, feed={"x": X}, fetch_list=[loss])[0]) for main, loss in programs[1:]]
        assert scope_value("fc_0.w_0").shape == (3, 5)
        after = [float(exe.run(main, feed={"x": X}, fetch_list=[loss])[0]) for main, loss in programs[1:]]
        assert all(a < b for a, b in zip(after, before, strict=True))
        with pytest.raises(errors.ParameterError, match="float32\\[3, 5\\]"):
            exe.run(programs[0][0], feed={"x": X})


def test_a_model_without_feeds_uses_reader_names(tmp_path):
    with fresh() as (main, startup):
        reader = layers.py_reader(8, shapes=[(-1, 3), (-1, 1)], dtypes=["float32", "float32"])
        x, label = layers.read_file(reader)
        y = layers.fc(x, size=1)
        fluid.optimizer.SGD(0.5).minimize(layers.mean(layers.square_error_cost(y, label)))
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fluid.io.save_inference_model(str(tmp_path), [], [y], exe)
        program, feeds, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        assert feeds == [x.name]
        (found,) = exe.run(program, feed={feeds[0]: X}, fetch_list=targets)
        np.testing.assert_allclose(found, X @ scope_value("fc_0.w_0"), rtol=1e-5)


def test_a_model_of_parameters_has_no_feeds(tmp_path):
    with fresh() as (_, startup):
        y = layers.scale(layers.create_parameter([2], "float32", name="w"), 2.0)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        fluid.io.save_inference_model(str(tmp_path), [], [y], exe)
        program, feeds, targets = fluid.io.load_inference_model(str(tmp_path), exe)
        (found,) = exe.run(program, fetch_list=targets)
        assert feeds == [] and np.array_equal(found, 2 * scope_value("w"))


def test_init_on_cpu_gives_initial_values():
    from fluid.static.initializer import force_init_on_cpu, init_on_cpu

    with fresh() as (_, startup):
        with init_on_cpu():
            rate = layers.create_global_var([1], 0.5, "float32", persistable=True, name="rate")
        layers.scale(rate, 2.0)
        fluid.Executor(fluid.CPUPlace()).run(startup)
        assert scope_value("rate").tolist() == [0.5] and not force_init_on_cpu()


def test_actual_shapes_are_computed_from_shapes_and_constants():
    image = np.arange(32, dtype="float32").reshape(2, 1, 4, 4)
    with fresh() as (main, _):
        x = layers.data("x", shape=[1, 4, 4])
        flat = layers.reshape(x, shape=[-1, 16])
        small = layers.pool2d(x, pool_size=2, pool_stride=2, pool_type="avg")
        high = layers.cast(layers.slice(layers.shape(small), axes=[0], starts=[2], ends=[4]), dtype="int32") * 4
        found = [
            layers.reshape(flat, shape=[-1, 1, 8, 2], actual_shape=layers.shape(x)),
            layers.reshape(x, [-1, 16], layers.assign(np.array([0, 2, 8], "int32"))),
            layers.reshape(x, shape=[-1, layers.fill_constant([1], "int32", 8)]),
            layers.resize_nearest(x, scale=2, actual_shape=high),
            layers.image_resize(x, out_shape=layers.shape(layers.data("other", shape=[4, 4]))[1:], resample="NEAREST"),
        ]
        shapes = [(-1, 1, 4, 4), (-1, 2, 8), (-1, 8), (-1, 1, 8, 8), (-1, 1, 4, 4)]
        assert [v.shape for v in found] == shapes
        results = fluid.Executor().run(main, feed={"x": image}, fetch_list=found[:4])
        for result, shape in zip(results[:3], [(2, 1, 4, 4), (2, 2, 8), (4, 8)], strict=True):
            np.testing.assert_array_equal(result, image.reshape(shape))
        assert results[3].shape == (2, 1, 8, 8)
        with pytest.raises(errors.ArgumentError, match="actual_shape is not possible"):
            layers.reshape(x, [-1, 16], actual_shape=layers.data("sizes", shape=[2], append_batch_size=False))
