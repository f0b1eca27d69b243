"""Blocks that assign variables, such as While and Switch: results equal the same computation in Python."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid as functions
import fluid.static as fluid
from fluid.static import layers


def run(main, startup, fetch, feed=None, turns=1):
    """Run the main program `turns` times, and return the results of the last run as lists."""
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(startup)
    for _ in range(turns):
        found = exe.run(main, feed=feed or {}, fetch_list=fetch)
    return [np.array(v).tolist() for v in found]


def constant(value, dtype="float32"):
    return layers.fill_constant(shape=[1], dtype=dtype, value=value)


def test_a_counter():
    with fresh() as programs:
        i = layers.zeros(shape=[1], dtype="int32")
        n = constant(7, "int32")
        total = constant(0.0)
        cond = layers.less_than(x=i, y=n)
        loop = layers.While(cond=cond)
        with loop.block():
            layers.assign(total + layers.cast(i, "float32") * 2.0, total)
            layers.increment(x=i, value=1, in_place=True)
            layers.less_than(x=i, y=n, cond=cond)
        assert run(*programs, [total, i]) == [[2.0 * sum(range(7))], [7]]


def test_a_loop_that_data_ends():
    with fresh() as programs:
        y = layers.assign(layers.data("x", shape=[3], append_batch_size=False))
        one = constant(1.0)
        cond = layers.greater_than(x=layers.reduce_max(y), y=one)
        loop = layers.While(cond=cond)
        with loop.block():
            layers.assign(layers.scale(y, 0.5), y)
            layers.greater_than(x=layers.reduce_max(y), y=one, cond=cond)
        assert run(*programs, [y], {"x": np.array([3.0, 17.0, -2.0], "float32")}) == [[3 / 32, 17 / 32, -2 / 32]]
        assert run(*programs, [y], {"x": np.array([0.5, 0.25, 0.0], "float32")}) == [[0.5, 0.25, 0.0]]


def test_arrays_and_loops_within_loops():
    with fresh() as programs:
        n = constant(4, "int64")
        i = layers.zeros([1], "int64")
        squares = layers.create_array("float32")
        cond = layers.less_than(i, n)
        outer = layers.While(cond)
        with outer.block():
            j = layers.zeros([1], "int64")
            total = layers.zeros([1], "float32")
            inner_cond = layers.less_than(j, i)
            inner = layers.While(inner_cond)
            with inner.block():
                layers.assign(total + layers.cast(i, "float32"), total)
                layers.increment(j)
                layers.less_than(j, i, cond=inner_cond)
            layers.array_write(total, i, array=squares)
            layers.increment(i)
            layers.less_than(i, n, cond=cond)
        length = layers.array_length(squares)
        reads = [layers.array_read(squares, constant(k, "int64")) for k in range(4)]
        assert run(*programs, [*reads, length]) == [[0.0], [1.0], [4.0], [9.0], [4]]


def test_array_capacity_ignores_reused_conditions():
    with fresh() as programs:
        i = layers.zeros([1], "int64")
        few, many = constant(3, "int64"), constant(10, "int64")
        numbers = layers.create_array("int64")
        cond = layers.less_than(i, many)
        loop = layers.While(cond)
        with loop.block():
            layers.array_write(layers.assign(i), i, array=numbers)
            layers.increment(i)
            layers.less_than(i, many, cond=cond)
        layers.less_than(i, few, cond=cond)
        reads = [layers.array_read(numbers, constant(k, "int64")) for k in range(10)]
        assert run(*programs, reads) == [[k] for k in range(10)]


def test_changing_loop_limits_require_max_length():
    with fresh() as programs:
        i = layers.zeros([1], "int64")
        numbers = layers.create_array("int64")
        cond = layers.less_than(i, constant(3, "int64"))
        loop = layers.While(cond)
        with loop.block():
            layers.array_write(layers.assign(i), i, array=numbers)
            layers.increment(i)
            layers.less_than(i, constant(10, "int64"), cond=cond)
        with pytest.raises(fluid.errors.ProgramError, match="max_length=50"):
            run(*programs, [layers.array_length(numbers)])


def test_a_nested_loop_with_an_outer_condition_runs():
    """Add up rows by a While inside a While, as a test of Fluid does; both conditions are made outside the loops."""
    x = np.random.default_rng(2).normal(size=(3, 4)).astype("float32")
    with fresh() as programs:
        i, j = layers.zeros([1], "int64"), constant(1, "int64")
        rows = layers.create_array("float32")
        for k in range(3):
            layers.array_write(layers.data(f"x{k}", [4], append_batch_size=False), constant(k, "int64"), array=rows)
        totals = layers.array_write(layers.zeros([4], "float32"), i)
        one, three = constant(1, "int64"), constant(3, "int64")
        conds = [layers.less_than(i, one), layers.less_than(j, three)]
        loops = [layers.While(cond) for cond in conds]

        def add(index):
            total = layers.sums([layers.array_read(rows, index), layers.array_read(totals, index)])
            layers.array_write(total, layers.increment(index), array=totals)

        with loops[0].block():
            add(i)
            layers.less_than(i, one, cond=conds[0])
            with loops[1].block():
                add(j)
                layers.less_than(j, three, cond=conds[1])
        (found,) = run(*programs, [layers.array_read(totals, j)], {f"x{k}": row for k, row in enumerate(x)})
    np.testing.assert_allclose(found, x.sum(0), rtol=1e-5)


def test_gradients_through_a_loop():
    """Compare a recurrence with a shared weight, and the gradient of this weight, with a computation in NumPy."""
    x = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
    with fresh() as (main, startup):
        i = layers.zeros(shape=[1], dtype="int64")
        n = constant(3, "int64")
        states = layers.array_write(x=layers.data("x", shape=[3]), i=i)
        cond = layers.less_than(x=i, y=n)
        loop = layers.While(cond=cond)
        with loop.block():
            new = layers.fc(layers.array_read(states, i), size=3, param_attr="w", bias_attr=False)
            layers.increment(x=i, value=1, in_place=True)
            layers.array_write(new, i=i, array=states)
            layers.less_than(x=i, y=n, cond=cond)
        loss = layers.reduce_sum(layers.array_read(states, n))
        ((parameter, gradient),) = fluid.backward.append_backward(loss)
        assert parameter.name == "w"
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        (found,) = exe.run(main, feed={"x": x}, fetch_list=[gradient])
        w = scope_value("w")
    powers = [np.linalg.matrix_power(w, k) for k in range(4)]
    ones = np.ones((2, 3), "float32")
    wanted = sum((x @ powers[k]).T @ ones @ powers[2 - k].T for k in range(3))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("x", "wanted"), [(-0.5, 0.0), (0.5, 1.0), (1.5, 2.0), (2.5, 3.0)])
def test_switch_takes_the_first_true_case(x, wanted):
    with fresh() as programs:
        value = layers.data("x", shape=[1], append_batch_size=False)
        result = layers.create_global_var(shape=[1], value=-1.0, dtype="float32", persistable=True)
        with layers.Switch() as switch:
            for limit in (0.0, 1.0, 2.0):
                with switch.case(layers.less_than(value, constant(limit))):
                    layers.assign(constant(limit), result)
            with switch.default():
                layers.assign(constant(3.0), result)
        assert run(*programs, [result], {"x": np.array([x], "float32")}) == [[wanted]]
        assert scope_value(result.name).tolist() == [wanted]


def test_a_switch_inside_a_loop():
    """Check a While loop that doubles a value; one branch of a Switch writes the value, the other ends the loop."""
    with fresh() as programs:
        x = layers.data("x", shape=[1], append_batch_size=False)
        counter = layers.zeros([1], "int64")
        n = constant(8, "int64")
        limit = constant(20.0)
        states = layers.create_array("float32")
        layers.array_write(layers.scale(x, 1.0), array=states, i=counter)
        cond = layers.less_than(counter, n)
        loop = layers.While(cond)
        with loop.block():
            new = layers.scale(layers.array_read(states, counter), scale=2.0)
            with layers.Switch() as switch:
                with switch.case(layers.greater_than(new, limit)):
                    layers.fill_constant(shape=[1], value=0, dtype="bool", force_cpu=True, out=cond)
                with switch.default():
                    layers.increment(counter)
                    layers.array_write(new, array=states, i=counter)
                    layers.logical_and(layers.less_than(counter, n), layers.less_than(new, limit), out=cond)
        fetch = [counter, layers.array_read(states, counter), layers.array_length(states)]
        assert run(*programs, fetch, {"x": np.array([1.5], "float32")}) == [[3], [12.0], [4]]
        assert run(*programs, fetch, {"x": np.array([0.125], "float32")}) == [[7], [16.0], [8]]
        assert run(*programs, fetch, {"x": np.array([30.0], "float32")}) == [[0], [30.0], [1]]


def test_rows_by_a_condition():
    with fresh() as programs:
        x = layers.data("x", shape=[1])
        choice = layers.IfElse(layers.less_than(x, layers.fill_constant_batch_size_like(x, [-1, 1], "float32", 0.0)))
        with choice.true_block():
            choice.output(layers.scale(choice.input(x), -1.0))
        with choice.false_block():
            choice.output(layers.scale(choice.input(x), 2.0))
        (y,) = choice()
        assert y.shape == (-1, 1)
        assert run(*programs, [y], {"x": np.array([[1.0], [-2.0], [3.0]], "float32")}) == [[[2.0], [2.0], [6.0]]]


def test_assignments_outside_of_blocks():
    with fresh() as programs:
        a = constant(1.0)
        b = layers.assign(a)
        c = layers.increment(b, 2.0)
        kept = layers.increment(b, 5.0, in_place=False)
        layers.increment(c, 3.0)
        s = layers.sums([a, b])
        layers.sums([s, s], out=s)
        less = layers.less_than(a, b)
        layers.logical_not(less, out=less)
        assert c is b
        assert run(*programs, [a, b, kept, s, less]) == [[1.0], [6.0], [8.0], [14.0], [False]]


def test_results_that_are_stored_in_given_variables():
    """Pass the variable for a result by keyword and by position, as in Fluid; the layer returns this variable."""
    with fresh() as programs:
        x, y = constant(2.0), constant(3.0)
        cond = layers.less_than(x, y)
        assert layers.less_than(y, x, None, cond) is cond
        same = layers.equal(x, x)
        assert layers.not_equal(x, x, cond=same) is same
        either = layers.logical_or(cond, same)
        assert layers.logical_not(either, either) is either
        blank = constant(7.0)
        assert layers.zeros_like(x, out=blank) is blank
        assert run(*programs, [cond, same, either, blank]) == [[False], [False], [True], [0.0]]
        with pytest.raises(fluid.errors.ArgumentTypeError, match="expected a variable"):
            layers.less_than(x, y, cond=1.0)
        with pytest.raises(fluid.errors.ProgramError, match="holds nothing yet"):
            layers.scale(layers.create_tensor("float32"), 2.0)


def test_branch_functions_cannot_assign_outer_variables():
    with fresh() as programs:
        i, n = layers.zeros([1], "int64"), constant(5, "int64")
        (last, _) = layers.while_loop(layers.less_than, lambda i, n: [layers.increment(i), n], [i, n])
        assert run(*programs, [last]) == [[5]]
        array = layers.array_write(n, i)
        for assign in (
            lambda: layers.increment(i),
            lambda: layers.assign(n * 2, i),
            lambda: layers.sums([i], i),
            lambda: layers.array_write(n * 2, i, array=array),
        ):
            with pytest.raises(fluid.errors.ProgramError, match="return the value from the function"):
                layers.cond(i < 3, assign, lambda: n)


def test_later_layers_read_the_assigned_value():
    with fresh() as programs:
        x = constant(3.0)
        before = x * 2.0
        layers.increment(x)
        assert run(*programs, [before, x * 2.0]) == [[6.0], [8.0]]


def test_step_counters_advance_only_in_training_runs():
    with fresh() as (main, startup):
        counter = layers.autoincreased_step_counter(begin=1)
        again = layers.autoincreased_step_counter(begin=1)
        assert again is counter
        total = layers.create_global_var([1], 10.0, "float32", persistable=True, name="total")
        layers.assign(total + 1.0, output=total)
        test = main.clone(for_test=True)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        found = [[v.tolist() for v in exe.run(main, fetch_list=[counter, total])] for _ in range(2)]
        assert found == [[[1], [11.0]], [[2], [12.0]]]
        assert [v.tolist() for v in exe.run(test, fetch_list=[counter, total])] == [[3], [13.0]]
        assert scope_value("total").tolist() == [12.0]


def test_a_parameter_is_assigned():
    """Check that a second program copies one parameter to another, as for the target network of Q-learning."""
    with fresh() as (main, startup):
        x = layers.data("x", shape=[2])
        loss = layers.mean(layers.fc(x, size=1, param_attr="fast", bias_attr=False))
        layers.fc(x, size=1, param_attr="slow", bias_attr=False)
        fluid.optimizer.SGD(1.0).minimize(loss, parameter_list=["fast"])
        copy = fluid.Program()
        with fluid.program_guard(copy, startup):
            for name in ("fast", "slow"):
                layers.create_parameter([2, 1], "float32", name=name)
            layers.assign(copy.global_block().var("fast"), copy.global_block().var("slow"))
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        before = scope_value("slow")
        exe.run(main, feed={"x": np.ones((1, 2), "float32")})
        np.testing.assert_array_equal(scope_value("slow"), before)
        exe.run(copy)
        np.testing.assert_array_equal(scope_value("slow"), scope_value("fast"))
        assert not np.array_equal(scope_value("slow"), before)


def test_a_recurrence_over_arrays():
    x = np.random.default_rng(1).normal(size=(4, 2, 3)).astype("float32")
    with fresh() as programs:
        steps = layers.data("x", shape=[4, 2, 3], append_batch_size=False)
        rnn = layers.StaticRNN()
        with rnn.step():
            now = rnn.step_input(steps)
            total = rnn.memory(shape=[-1, 3], batch_ref=now)
            rnn.update_memory(total, now + total)
            rnn.step_output(total)
        before = rnn()
        assert before.shape == (4, 2, 3)
        (found,) = run(*programs, [before], {"x": x})
    np.testing.assert_allclose(found, np.cumsum(x, 0) - x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda x, cond: layers.scale(x, 2.0), "never assigns its condition"),
        (lambda x, cond: layers.assign(layers.concat([x, x]), x), "returned"),
    ],
)
def test_blocks_that_cannot_be_loops_are_refused(write, message):
    with fresh(), pytest.raises((fluid.errors.ProgramError, fluid.errors.ShapeError), match=message):
        x = constant(1.0)
        cond = layers.less_than(x, constant(2.0))
        loop = layers.While(cond)
        with loop.block():
            write(x, cond)
            if message == "returned":
                layers.less_than(constant(1.0), constant(2.0), cond=cond)


def test_an_array_of_unknown_length_is_refused():
    with fresh() as programs:
        x = layers.data("x", shape=[1], append_batch_size=False)
        i = layers.zeros([1], "int64")
        array = layers.create_array("float32")
        cond = layers.less_than(layers.cast(i, "float32"), x)
        loop = layers.While(cond)
        with loop.block():
            layers.array_write(x, i, array=array)
            layers.increment(i)
            layers.less_than(layers.cast(i, "float32"), x, cond=cond)
        length = layers.array_length(array)
        feed = {"x": np.array([3.0], "float32")}
        with pytest.raises(fluid.errors.ProgramError, match="max_length=50"):
            run(*programs, [length], feed)
        array.least = 5
        assert run(*programs, [length], feed) == [[3]]


def test_variables_of_a_block_are_not_seen_outside():
    with fresh():
        i = layers.zeros([1], "int64")
        n = constant(2, "int64")
        cond = layers.less_than(i, n)
        loop = layers.While(cond)
        with loop.block():
            local = layers.scale(i, 2.0)
            layers.increment(i)
            layers.less_than(i, n, cond=cond)
        with pytest.raises(fluid.errors.ProgramError, match="stands in a block that is over"):
            layers.scale(local, 2.0)


def test_a_block_in_a_program_function_is_refused():
    import fluid as functions

    def program():
        return layers.While(functions.layers.fill_constant([1], "bool", True))

    with pytest.raises(fluid.errors.ArgumentTypeError, match="layers.while_loop"):
        functions.Program(program)


def of_trainers(library, guess):
    """Train the net that `guess(x)` builds on fixed rows; return the losses, and the predictions of an Inferencer.

    The layers of the loss come from `library`, which is `fluid` or `fluid.static`.
    """
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")

    def infer_program():
        return guess(library.layers.data("x", shape=[4]))

    def train_program():
        y = library.layers.data("y", shape=[1])
        return library.layers.mean(library.layers.square_error_cost(infer_program(), y))

    def reader():
        yield from ([(row, [row.sum()]) for row in part] for part in (rows[:4], rows[4:]))

    losses = []

    def handle(event):
        if isinstance(event, library.EndStepEvent):
            losses.append(float(np.asarray(event.metrics[0]).reshape(())))

    trainer = library.Trainer(train_func=train_program, optimizer_func=lambda: library.optimizer.SGD(0.02))
    trainer.train(num_epochs=3, event_handler=handle, reader=reader, feed_order=["x", "y"])
    trainer.save_params("params")
    found = library.Inferencer(infer_func=infer_program, param_path="params").infer({"x": rows})[0]
    return losses, np.asarray(found)


def test_blocks_in_the_function_of_a_trainer(in_tmp):
    def three_times(x):
        once = layers.fc(x, size=1)
        total = layers.assign(once * 0.0)
        i = layers.zeros([1], "int64")
        n = layers.fill_constant([1], "int64", 3)
        cond = layers.less_than(i, n)
        with layers.While(cond).block():
            layers.assign(total + once, output=total)
            layers.increment(i)
            layers.less_than(i, n, cond=cond)
        with layers.Switch() as switch:
            with switch.case(layers.less_than(n, i)):
                layers.assign(total * 0.0, output=total)
            with switch.default():
                layers.assign(total + 1.0, output=total)
        return total

    losses, found = of_trainers(fluid, three_times)
    wanted, answered = of_trainers(functions, lambda x: functions.layers.fc(x, size=1) * 3.0 + 1.0)
    np.testing.assert_allclose(losses, wanted, rtol=1e-5)
    np.testing.assert_allclose(found, answered, rtol=1e-5)


def test_a_recurrent_block_in_a_trainer_function():
    def program():
        x = layers.data("x", shape=[2], lod_level=1)
        rnn = layers.DynamicRNN()
        with rnn.block():
            step = rnn.step_input(x)
            total = rnn.memory(shape=[2])
            rnn.update_memory(total, total + step)
            rnn.output(total)
        return layers.reduce_sum(layers.fc(layers.sequence_last_step(rnn()), size=1))

    trainer = fluid.Trainer(train_func=program, optimizer_func=fluid.optimizer.SGD(0.1))
    line = program.__code__.co_firstlineno + 1
    assert trainer.program.feeds["x"].site == f"{__file__}:{line} in program"
    assert list(trainer.program.parameters) == ["fc_0.w_0", "fc_0.b_0"]
