"""Branches and loops in program functions: results and gradients are compared with plain Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layers.run_program import run

import fluid
from fluid import errors, layers

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
ROWS = fluid.SequenceBatch(np.array([[1, 2, 3, 0], [4, 0, 0, 0]], "float32"), np.array([3, 1], "int32"))


def flag(name="pred", kind="bool"):
    return layers.data(name, [1], kind, append_batch_size=False)


def first(function, **feed):
    return np.asarray(run(function, {n: np.asarray(v) for n, v in feed.items()}).outputs[0])


def slopes(function, feed, arrays=None):
    """Return the gradients of the sum of the sines of the first output: by parameter name, and for the feed `x`."""
    program = fluid.Program(function)
    arrays = program.init(jax.random.key(1)) | (arrays or {})
    parameters = {n: jnp.asarray(arrays[n]) for n in program.parameters}

    def loss(parameters, x):
        given = {n: jnp.asarray(v) for n, v in {**feed, "x": x}.items()}
        applied = program.apply(arrays | parameters, given, key=jax.random.key(3), mode="train")
        return jnp.sum(jnp.sin(applied.outputs[0]))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))(parameters, jnp.asarray(feed["x"]))


def agree(got, want, rtol=1e-5, atol=1e-6):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=rtol, atol=atol)


# --- Branches: `cond`, `case` and `switch_case`


def branching(x, pred):
    return layers.cond(pred, lambda: layers.batch_norm(layers.fc(x, 2)), lambda: layers.fc(x, 2, act="tanh"))


@pytest.mark.parametrize("taken", [True, False])
def test_cond_is_the_branch_that_is_taken(taken):
    def program():
        return branching(layers.data("x", [3]), flag())

    def alone():
        x = layers.data("x", [3])
        with_norm = layers.batch_norm(layers.fc(x, 2)) if taken else None
        other = layers.fc(x, 2, act="tanh", param_attr="fc_1.w_0", bias_attr="fc_1.b_0")
        return with_norm if taken else other

    names = ["fc_0.w_0", "fc_0.b_0", "batch_norm_0.w_0", "batch_norm_0.b_0", "fc_1.w_0", "fc_1.b_0"]
    found = fluid.Program(program)
    assert list(found.parameters) == names
    arrays = found.init(jax.random.key(5))
    feed = {"x": X, "pred": np.array([taken])}
    got, want = run(program, feed, arrays=arrays), run(alone, {"x": X}, arrays=arrays)
    agree(got.outputs[0], want.outputs[0])
    # The states of a branch that is not taken keep their values.
    for name, value in got.states.items():
        np.testing.assert_allclose(value, want.states[name] if taken else arrays[name], rtol=1e-5)
    of_program, of_alone = slopes(program, feed, arrays), slopes(alone, {"x": X}, arrays)
    agree(of_program[1], of_alone[1])
    for name in names:
        want = of_alone[0].get(name)
        agree(of_program[0][name], jnp.zeros_like(of_program[0][name]) if want is None else want)
    assert any(np.any(v) for v in of_program[0].values())


def test_layers_after_branches_keep_names_in_every_mode():
    def program():
        x = layers.data("x", [3])
        return layers.fc(branching(layers.fc(x, 3), layers.reduce_sum(x) > 0), 1)

    assert [n for n in fluid.Program(program).parameters if n.startswith("fc_3")] == ["fc_3.w_0", "fc_3.b_0"]
    for mode in ("train", "test"):
        run(program, {"x": X}, mode=mode)


def test_a_branch_may_do_nothing_but_change_states():
    def program():
        x = layers.data("x", [3])

        def note():
            layers.batch_norm(x)

        assert layers.cond(flag(), note) is None
        return x

    for taken in (True, False):
        moved = run(program, {"x": X, "pred": np.array([taken])}).states["batch_norm_0.w_1"]
        np.testing.assert_allclose(moved, 0.1 * X.mean(0) if taken else np.zeros(3), rtol=1e-5)


def test_branches_return_any_structure():
    def program():
        rows = layers.data("rows", [], lod_level=1)
        result = layers.cond(
            flag(), lambda: {"a": [rows, None], "b": 1}, lambda: {"a": [rows.with_data(rows.data * 2), None], "b": 2}
        )
        assert result["a"][1] is None
        return result["a"][0], result["b"]

    for taken, factor in ((True, 1), (False, 2)):
        applied = run(program, {"rows": ROWS, "pred": np.array([taken])})
        np.testing.assert_array_equal(applied.outputs[0].data, ROWS.data * factor)
        np.testing.assert_array_equal(applied.outputs[0].lengths, ROWS.lengths)
        assert int(applied.outputs[1]) == factor
    assert fluid.Program(program).values["cond_0.tmp_0"].shape == (None, 5)


@given(flags=st.lists(st.booleans(), min_size=1, max_size=4), with_default=st.booleans())
@settings(deadline=None, max_examples=20)
def test_case_takes_the_first_that_is_true(flags, with_default):
    def program():
        pairs = [(flag(f"p{i}"), lambda i=i: float(i)) for i in range(len(flags))]
        return layers.case(pairs, default=(lambda: -1.0) if with_default else None)

    want = flags.index(True) if any(flags) else (-1 if with_default else len(flags) - 1)
    assert first(program, **{f"p{i}": [v] for i, v in enumerate(flags)}) == want


FORMS = {
    "dict": lambda fs: dict(zip((3, 7, 0), fs, strict=True)),
    "pairs": lambda fs: list(zip((3, 7, 0), fs, strict=True)),
    "list": list,
}


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_switch_case_takes_the_function_of_that_number(form, default):
    functions = [lambda value=value: float(value) for value in (10, 20, 30)]
    numbers = dict(zip((0, 1, 2) if form == "list" else (3, 7, 0), (10, 20, 30), strict=True))

    def program():
        return layers.switch_case(flag("i", "int64"), FORMS[form](functions), (lambda: -1.0) if default else None)

    for index in (-1, 0, 1, 2, 3, 7, 8):
        want = numbers.get(index, -1 if default else numbers[max(numbers)])
        assert first(program, i=[index]) == want


def test_the_idiom_of_2018_for_learning_rates():
    def constant(value):
        return layers.fill_constant([1], "float32", value)

    def program():
        step = layers.data("step", [1], append_batch_size=False)
        first_part, second_part = (layers.less_than(step, constant(bound)) for bound in (100.0, 200.0))
        rates = [(first_part, lambda: constant(1.0)), (second_part, lambda: constant(0.1))]
        return layers.case(rates, default=lambda: constant(0.01))

    for step, rate in ((0, 1.0), (99, 1.0), (100, 0.1), (200, 0.01)):
        np.testing.assert_allclose(first(program, step=np.float32([step])), [rate])


# --- Loops: `while_loop` and `scan`


def test_while_loop_ends_when_the_condition_fails():
    def program():
        n, steps = flag("n", "int64"), layers.zeros([1], "int32")

        def body(n, steps):
            return layers.cond(n % 2 == 0, lambda: n // 2, lambda: 3 * n + 1), layers.increment(steps)

        return layers.while_loop(lambda n, steps: n != 1, body, [n, steps])[1]

    for start, steps in ((1, 0), (6, 8), (27, 111)):
        assert first(program, n=[start]) == steps


def test_while_loop_carries_any_structure():
    def program():
        rows = layers.data("rows", [], lod_level=1)
        i, tree = layers.while_loop(
            lambda i, tree: i < 3,
            lambda i, tree: [i + 1, {"rows": tree["rows"] * 2, "none": None}],
            [0, {"rows": rows, "none": None}],
        )
        return tree["rows"], i

    rows, i = run(program, {"rows": ROWS}).outputs
    np.testing.assert_array_equal(rows.data, ROWS.data * 8)
    assert int(i) == 3


def newton(x, bound=None):
    """Return the final `r` of a `while_loop` with at most 3 iterations; the loop ends early if `r` is large.

    An iteration is similar to a step of Newton's method: it divides `x` by `r`.
    """
    return layers.while_loop(
        lambda i, r: (i < 3) & (jnp.max(jnp.abs(r)) < 100),
        lambda i, r: (i + 1, layers.fc(r, 3, param_attr="w", bias_attr=False) + x / r),
        [0, x],
        max_iterations=bound,
    )[1]


def unrolled_newton(x, iterations):
    r = x
    for _ in range(iterations):
        r = layers.fc(r, 3, param_attr="w", bias_attr=False) + x / r
    return r


@pytest.mark.parametrize("bound, iterations", [(None, 3), (3, 3), (8, 3), (2, 2)])
def test_while_loop_equals_its_iterations(bound, iterations):
    def looped():
        return newton(layers.data("x", [3]), bound)

    def unrolled():
        return unrolled_newton(layers.data("x", [3]), iterations)

    agree(run(looped, {"x": X}).outputs[0], run(unrolled, {"x": X}).outputs[0])
    if bound is not None:
        agree(slopes(looped, {"x": X}), slopes(unrolled, {"x": X}), rtol=1e-4)


def test_unused_loop_iterations_do_not_divide_by_zero():
    def program():
        x = layers.data("x", [3])
        return layers.while_loop(lambda i, v: i < 2, lambda i, v: (i + 1, v / (2.0 - i)), [0, x], max_iterations=9)[1]

    _, of_x = slopes(program, {"x": X})
    np.testing.assert_allclose(of_x, np.cos(X / 2) / 2, rtol=1e-5)


@pytest.mark.parametrize("stop", [False, True])
def test_a_gradient_needs_max_iterations(stop):
    def program():
        x = layers.fc(layers.data("x", [3]), 3)
        r = layers.while_loop(lambda i, r: i < 3, lambda i, r: (i + 1, r * 2), [0, x])[1]
        loss = layers.mean(x + (jax.lax.stop_gradient(r) if stop else r))
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    session = fluid.Session(program)
    if stop:
        session.run(program, {"x": X})
        return
    with pytest.raises(errors.ProgramError, match="while_loop_0 has no gradient.*max_iterations=100"):
        session.run(program, {"x": X})


def cell(carry, x):
    h = layers.batch_norm(layers.fc([carry, x], 3, act="tanh"), momentum=0.5)
    return h, h * x


STEPS = np.random.default_rng(1).normal(size=(5, 4, 3)).astype("float32")


def steps():
    return layers.data("x", [5, 4, 3], append_batch_size=False)


def scanned(reverse=False):
    xs = steps()
    carry, ys = layers.scan(cell, xs[0] * 0 + 1, xs, reverse=reverse)
    return ys, carry


def unrolled(reverse=False):
    xs = steps()
    frame = fluid.core.current_frame("layers.scan")
    carry, ys, counters = xs[0] * 0 + 1, [], dict(frame.naming.counters)
    for i in range(5)[:: -1 if reverse else 1]:
        frame.naming.counters.clear()
        frame.naming.counters.update(counters)
        frame.made.values.clear()
        carry, y = cell(carry, xs[i])
        ys.append(y)
    return jnp.stack(ys[:: -1 if reverse else 1]), carry


@pytest.mark.parametrize("reverse", [False, True])
def test_scan_equals_a_loop_of_python(reverse):
    got, want = (run(functools.partial(f, reverse), {"x": STEPS}) for f in (scanned, unrolled))
    agree(got.outputs, want.outputs, rtol=1e-4, atol=1e-5)
    agree(got.states, want.states)  # each of the five steps has updated the moving averages
    assert set(got.states) == {"batch_norm_0.w_1", "batch_norm_0.w_2"}
    of_scan, of_loop = (slopes(functools.partial(f, reverse), {"x": STEPS}) for f in (scanned, unrolled))
    agree(of_scan, of_loop, rtol=1e-3, atol=1e-4)


def averages(program):
    return run(program, {"x": STEPS}).states["batch_norm_0.w_1"]


def moved(rows):
    """Return the moving average, with momentum 0.5, of the means of all batches in `rows`."""
    mean = np.zeros(3, "float32")
    for row in rows:
        mean = 0.5 * mean + 0.5 * row.mean(0)
    return mean


def test_averages_move_in_while_loops_too():
    def norm(x):
        layers.batch_norm(x, momentum=0.5)

    def counted(bound):
        xs = steps()

        def body(i):
            norm(xs[i])
            return [i + 1]

        layers.while_loop(lambda i: i < 3, body, [0], max_iterations=bound)
        return layers.mean(xs)

    for bound in (None, 4):
        np.testing.assert_allclose(averages(lambda b=bound: counted(b)), moved(STEPS[:3]), rtol=1e-5)


def test_loops_and_branches_nest():
    """Check that batch_norm in a branch, inside two loops, updates its averages in every second step."""

    def program():
        xs = steps()

        def inner(count, x):
            layers.cond(count % 2 == 0, lambda: layers.batch_norm(x, momentum=0.5) * 0, lambda: x * 0)
            return count + 1, None

        def outer(total, _):
            return total + layers.scan(inner, 0, xs)[0], None

        return layers.scan(outer, 0, length=2)[0]

    np.testing.assert_allclose(averages(program), moved([*STEPS[::2]] * 2), rtol=1e-5)
    assert first(program, x=STEPS) == 10


def masks(program):
    """Return the outputs of a dropout program for the keys 0, 1, and 0 again."""
    program = fluid.Program(program)
    draw = jax.jit(lambda x, key: program.apply({}, {"x": x}, key=key, mode="train").outputs[0])
    return [np.asarray(draw(np.ones([2, 50], "float32"), jax.random.key(key))) for key in (0, 1, 0)]


def test_dropout_differs_by_iteration_and_follows_the_key():
    def drop(x):
        return layers.dropout(x, 0.5)

    def in_scan():
        x = layers.data("x", [50])
        return layers.scan(lambda carry, _: (carry, drop(x)), 0, length=3)[1]

    def in_while(bound):
        x = layers.data("x", [50])

        def body(i, array):
            return i + 1, layers.array_write(drop(x), i, array)

        array = layers.create_array("float32", 3, shape=x.shape)
        return layers.while_loop(lambda i, array: i < 3, body, [0, array], max_iterations=bound)[1].data

    for program in (in_scan, lambda: in_while(None), lambda: in_while(5)):
        drawn, other, again = masks(program)
        assert all((drawn[i] != drawn[j]).any() for i, j in ((0, 1), (0, 2), (1, 2)))
        assert (drawn != other).any()
        np.testing.assert_array_equal(drawn, again)


def test_mixed_precision_goes_through_loops_and_branches():
    def program():
        x = layers.data("x", [3])
        h = layers.scan(lambda h, _: (h + layers.fc(h, 3), None), x, length=2)[0]
        return layers.cond(True, lambda: h * 0.5, lambda: layers.fc(h, 3))

    found = fluid.Program(program, precision="bfloat16")
    assert found.outputs[0].dtype == "bfloat16"
    assert {s.dtype for s in found.parameters.values()} == {"float32"}


# --- TensorArrays: `create_array`, `array_write` and `array_read`


def test_arrays_are_written_and_read():
    def program():
        x = layers.data("x", [3])
        array = layers.array_write(x, 0, max_length=4)
        array = layers.array_write(x * 2, flag("i", "int64"), array)
        return array.data, layers.array_read(array, flag("j", "int64")), layers.array_length(array)

    for i, j, length in ((1, 1, 2), (0, 0, 1), (3, 2, 4), (4, 3, 4), (-1, 4, 1), (1, -1, 2)):
        data, read, count = run(program, {"x": X, "i": np.array([i]), "j": np.array([j])}).outputs
        want = np.zeros([4, *X.shape], "float32")
        want[0] = X
        if 0 <= i < 4:
            want[i] = 2 * X
        np.testing.assert_array_equal(data, want)
        np.testing.assert_array_equal(read, want[j] if 0 <= j < 4 else np.full_like(X, np.nan))
        assert int(count) == length


def test_gradients_go_through_arrays():
    def program():
        x = layers.data("x", [3])
        array = layers.while_loop(
            lambda i, x, a: i < 3,
            lambda i, x, a: (i + 1, x * 2, layers.array_write(x, i, a)),
            [0, x, layers.create_array("float32", 3, shape=x.shape)],
            max_iterations=3,
        )[2]
        return layers.array_read(array, 2)

    np.testing.assert_allclose(slopes(program, {"x": X})[1], 4 * np.cos(4 * X), rtol=1e-5)


# --- Printed values: `Print`


def printed(capsys, program, feed):
    session = fluid.Session(program)
    for _ in range(2):
        session.run(program, feed)
    jax.effects_barrier()
    return capsys.readouterr().out.splitlines()


def test_print_shows_values_and_gradients(capsys):
    def program():
        x = layers.fc(layers.data("x", [3]), 2, param_attr=fluid.initializer.Constant(1.0))
        loss = layers.mean(layers.Print(x, message="look:", summarize=2, name="h"))
        fluid.optimizer.SGD(0.0).minimize(loss)
        return loss

    lines = printed(capsys, program, {"x": np.ones([2, 3], "float32")})
    assert sorted(lines) == [
        "look: h float32[2, 2] [3. 3.]",
        "look: h float32[2, 2] [3. 3.]",
        "look: h@GRAD float32[2, 2] [0.25 0.25]",
        "look: h@GRAD float32[2, 2] [0.25 0.25]",
    ]


def test_print_shows_only_the_requested_parts(capsys):
    def program():
        rows = layers.data("rows", [], lod_level=1)
        rows = layers.Print(rows, first_n=1, print_tensor_name=False, summarize=0)
        rows = layers.Print(rows, print_phase="backward")
        rows = layers.Print(rows, 1, print_tensor_lod=False, print_tensor_type=False, summarize=1, name="r")
        return layers.mean(rows)

    assert sorted(printed(capsys, program, {"rows": ROWS})) == ["float32[2, 4] lengths [3, 1] []", "r [2, 4] [1.]"]


# --- Mistakes of users, and the errors that explain them

TRUE = np.True_


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda x: layers.cond(x > 0, lambda: x, lambda: x), r"pred is bool\[batch, 3\].*layers.where"),
        (lambda x: layers.cond(layers.reduce_sum(x), lambda: x, lambda: x), r"pred is float32\[\].*pred > 0"),
        (lambda x: layers.cond(TRUE, lambda: x, lambda: [x, x]),
         r"true_fn returned float32\[batch, 3\], false_fn returned \[float32\[batch, 3\], float32\[batch, 3\]\]"),
        (lambda x: layers.cond(TRUE, lambda: x, lambda: x[:, :2]), r"false_fn returned float32\[batch, 2\]"),
        (lambda x: layers.cond(TRUE, lambda: x, lambda: x > 0), r"false_fn returned bool.*layers.cast"),
        (lambda x: layers.cond(TRUE, lambda: x), "false_fn returned None"),
        (lambda x: layers.case([]), "pairs of a condition and a function"),
        (lambda x: layers.case([(TRUE, x)]), "pairs of a condition and a function"),
        (lambda x: layers.case([(x > 0, lambda: x)]), r"condition 0 is bool\[batch, 3\]"),
        (lambda x: layers.case([(TRUE, lambda: x), (TRUE, lambda: x[0])]), "function 1 returned float32"),
        (lambda x: layers.switch_case(layers.reduce_sum(x), [lambda: x]), "expected an integer"),
        (lambda x: layers.switch_case(0, []), "functions without arguments by number"),
        (lambda x: layers.switch_case(0, {"a": lambda: x}), "functions without arguments by number"),
        (lambda x: layers.switch_case(0, [(1, lambda: x), (1, lambda: x)]), r"numbers \[1, 1\]"),
        (lambda x: layers.while_loop(lambda: TRUE, lambda: [], []), "at least one value"),
        (lambda x: layers.while_loop(lambda v: v > 0, lambda v: [v], [x]), r"what cond returned is bool\[batch, 3\]"),
        (lambda x: layers.while_loop(lambda v: TRUE, lambda v: [v, v], [x]),
         r"was given \[float32\[batch, 3\]\] and returned \[float32"),
        (lambda x: layers.while_loop(lambda i: i < 3, lambda i: i + 0.5, [0]),
         r"was given \[int32\[\]\] and returned \[float32\[\]\]"),
        (lambda x: layers.while_loop(lambda v: TRUE, lambda v: v, [x], max_iterations=0),
         r"while_loop_0\(max_iterations=0\): expected a whole number from 1 on"),
        (lambda x: layers.scan(lambda c, v: c, 0, x), "expected a pair.*lambda carry, x"),
        (lambda x: layers.scan(lambda c, v: (c + v, None), 0.0, x), r"given float32\[\] and returned float32\[3\]"),
        (lambda x: layers.scan(lambda c, v: (c, None), 0), "length=None"),
        (lambda x: layers.scan(lambda c, v: (c, None), 0, length=0),
         r"scan_0\(length=0\): expected a whole number from 1 on"),
        (lambda x: layers.scan(lambda c, v: (c, None), 0, jnp.zeros([0, 2])), "at least one"),
        (lambda x: layers.scan(lambda c, v: (c, None), 0, [x, x[0]]), "same number of steps"),
        (lambda x: layers.scan(lambda c, v: (c, None), 0, x, length=7), "length is 7"),
        (lambda x: layers.scan(lambda c, v: (c, None), 0, layers.reduce_sum(x)), r"expected arrays \[steps"),
        (lambda x: layers.create_array("float32", None), r"max_length=None\): expected a whole number from 1 on"),
        (lambda x: layers.create_array("float32", 2, shape=[-1]), "not known"),
        (lambda x: layers.array_write(x, 0), "neither array nor max_length"),
        (lambda x: layers.array_write(x, 2, max_length=2), r"\(i=2\): expected a whole number from 0 to 1"),
        (lambda x: layers.array_write(x, 0, max_length=-1), r"max_length=-1\): expected a whole number from 1 on"),
        (lambda x: layers.array_write(x, layers.reduce_sum(x), max_length=2), "expected one integer"),
        (lambda x: layers.array_write(x, 0, x), "what layers.create_array"),
        (lambda x: layers.array_write(x, 0, layers.create_array("float32", 2)), r"room for 2 of float32\[\]"),
        (lambda x: layers.Print(x, print_phase="sideways"), "expected one of forward"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(build, message):
    with pytest.raises(errors.FluidError, match=message) as caught:
        fluid.Program(lambda: build(layers.data("x", [3])))
    assert "in the layer" in "".join(caught.value.__notes__)


def test_scan_over_sequences_names_dynamic_gru():
    with pytest.raises(errors.ShapeError, match="layers.dynamic_gru"):
        fluid.Program(lambda: layers.scan(lambda c, x: (c, x), 0, layers.data("x", [3], lod_level=1)))


@pytest.mark.parametrize(
    "name, instead", [("While", "layers.while_loop"), ("Switch", "layers.case"), ("IfElse", "layers.where")]
)
def test_missing_layers_name_their_replacement(name, instead):
    with pytest.raises(AttributeError, match=f"no attribute '{name}'; use {instead}"):
        getattr(layers, name)
    assert not hasattr(layers, "anything_else")
