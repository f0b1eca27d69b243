"""`repeat`: compared with a Python loop over the same blocks with the same arrays."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import run

import fluid
from fluid import errors, layers

N = 3
X = np.random.default_rng(0).normal(size=(4, 5)).astype("float32")


def block(h):
    h = layers.layer_norm(h + layers.fc(h, 5, act="tanh"))
    return layers.batch_norm(h + layers.fc(h, 5, bias_attr=False), momentum=0.5)


def repeated(block=block, **settings):
    return lambda: layers.repeat(block, N, layers.data("x", [5]), **settings)


def unrolled(block=block):
    """Return a program function that calls `block` N times in a Python loop; the name scope of call `i` is `i`."""

    def program():
        h = layers.data("x", [5])
        for i in range(N):
            with fluid.name_scope(str(i)):
                h = block(h)
        return h

    return program


def slices(arrays):
    """Split the stacked arrays of `layers.repeat` into one array for each block, with the names in `unrolled`."""
    stacked = {n: v for n, v in arrays.items() if n.startswith("repeat_0/")}
    apart = {n.replace("repeat_0", str(i), 1): v[i] for n, v in stacked.items() for i in range(N)}
    return apart | {n: v for n, v in arrays.items() if n not in stacked}


def stacks(arrays):
    """Stack the arrays of the blocks under the names that `layers.repeat` uses, as the inverse of `slices`."""
    names = [n for n in arrays if n.startswith("0/")]
    whole = {n.replace("0", "repeat_0", 1): jnp.stack([arrays[f"{i}{n[1:]}"] for i in range(N)]) for n in names}
    return whole | {n: v for n, v in arrays.items() if n.partition("/")[0] not in map(str, range(N))}


def differentiated(function, arrays, mode="train"):
    """Return the output and the states of a program, and the gradients with respect to its parameters and its input."""
    program = fluid.Program(function)
    assert set(arrays) == {*program.parameters, *program.states}

    def loss(parameters, x):
        applied = program.apply(arrays | parameters, {"x": x}, key=jax.random.key(3), mode=mode)
        return jnp.sum(jnp.sin(applied.outputs[0])), (applied.outputs[0], applied.states)

    parameters = {n: jnp.asarray(arrays[n]) for n in program.parameters}
    slopes = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, (output, states)), (of_parameters, of_x) = slopes(parameters, jnp.asarray(X))
    return output, states, of_parameters, of_x


def agree(got, want):
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-4, atol=2e-5)


def sharing(h):
    """Build a block: a layer and moving averages that all blocks share, and a layer with parameters of each block."""
    h = layers.batch_norm(layers.fc(h, 5, param_attr="shared"), moving_mean_name="m", moving_variance_name="v")
    return layers.fc(h, 5)


def nested(h):
    return layers.repeat(lambda h: layers.batch_norm(layers.fc(h, 5)), 2, h) + h


@pytest.mark.parametrize("mode", ["train", "test"])
@pytest.mark.parametrize("remat", [False, True])
@pytest.mark.parametrize("block", [block, sharing])
def test_repeat_equals_a_loop_of_python(block, remat, mode):
    program = repeated(block, remat=remat)
    arrays = fluid.Program(program).init(jax.random.key(1))
    output, states, of_parameters, of_x = differentiated(program, arrays, mode)
    want = differentiated(unrolled(block), slices(arrays), mode)
    agree((output, states, of_parameters, of_x), (want[0], stacks(want[1]), stacks(want[2]), want[3]))
    if mode == "train":
        assert all(np.abs(states[n] - arrays[n]).max() > 1e-3 for n in states)


def test_repeats_nest():
    program = fluid.Program(repeated(nested))
    assert program.parameters["repeat_0/repeat_0/fc_0.w_0"].shape == (N, 2, 5, 5)
    arrays = program.init(jax.random.key(1))
    output, states, *slopes = differentiated(repeated(nested), arrays)

    def want():
        h = layers.data("x", [5])
        for i in range(N):
            with fluid.name_scope(str(i)):
                h = nested(h)
        return h

    apart = slices(arrays)
    other = differentiated(want, apart)
    agree((output, states, *slopes), (other[0], stacks(other[1]), stacks(other[2]), other[3]))
    assert np.unique(arrays["repeat_0/repeat_0/fc_0.w_0"]).size == N * 2 * 25


def test_names_shapes_and_settings():
    decay = fluid.regularizer.L2Decay(0.1)

    def body(h):
        h = layers.fc(h, 5, param_attr=fluid.ParamAttr(regularizer=decay, learning_rate=0.5), bias_attr="b")
        return h * layers.create_parameter([5], name="gain", attr=None)

    def program():
        x = layers.data("x", [5])
        with fluid.name_scope("tower"):
            h = layers.repeat(body, N, x, name="blocks")
            return layers.fc(layers.repeat(body, N, h), 1)

    found = fluid.Program(program)
    assert {n: s.shape for n, s in found.parameters.items()} == {
        "tower/blocks/fc_0.w_0": (N, 5, 5),
        "b": (5,),
        "tower/blocks/gain": (N, 5),
        "tower/repeat_0/fc_0.w_0": (N, 5, 5),
        "tower/repeat_0/gain": (N, 5),
        "tower/fc_0.w_0": (5, 1),
        "tower/fc_0.b_0": (1,),
    }
    settings = found.parameters["tower/blocks/fc_0.w_0"].settings
    assert settings.regularizer is decay and settings.learning_rate == 0.5
    assert {"tower/blocks.tmp_0", "tower/repeat_0.tmp_0"} <= set(found.values)


def test_parameters_created_outside_are_shared():
    def program():
        x = layers.fc(layers.data("x", [5]), 5, param_attr="w", bias_attr=False)
        return layers.repeat(lambda h: layers.fc(h, 5, param_attr="w", bias_attr=False), N, x)

    assert {n: s.shape for n, s in fluid.Program(program).parameters.items()} == {"w": (5, 5)}
    w = np.random.default_rng(2).normal(size=(5, 5)).astype("float32")
    got = run(program, {"x": X}, arrays={"w": w}).outputs[0]
    np.testing.assert_allclose(got, X @ np.linalg.matrix_power(w, N + 1), rtol=1e-3, atol=1e-4)


def test_blocks_are_initialised_independently():
    """Check initial weights in `layers.repeat`: blocks differ, and Xavier's bound is the bound of a 40 x 60 matrix."""
    seen = []

    def ones(key, shape, dtype):
        seen.append(shape)
        return np.ones(shape, dtype)

    def body(h):
        return layers.fc(layers.fc(h, 60), 40, bias_attr=fluid.ParamAttr(initializer=ones))

    arrays = fluid.Program(lambda: layers.repeat(body, N, layers.data("x", [40]))).init(jax.random.key(0))
    w = np.asarray(arrays["repeat_0/fc_0.w_0"])
    assert w.shape == (N, 40, 60) and np.unique(w).size > 0.99 * w.size
    bound = np.sqrt(6 / (40 + 60))
    for one in w:
        assert 0.98 * bound < np.abs(one).max() <= bound
    assert seen == [(40,)] * N
    np.testing.assert_array_equal(arrays["repeat_0/fc_1.b_0"], np.ones([N, 40]))


def test_modules_are_stacked_too():
    from flax import linen

    program = fluid.Program(repeated(lambda h: layers.module(linen.Dense(5), h)))
    arrays = program.init(jax.random.key(0))
    kernel = np.asarray(arrays["repeat_0/module_0/kernel"])
    assert kernel.shape == (N, 5, 5) and np.unique(kernel).size == kernel.size


def test_dropout_is_drawn_by_each_block():
    def body(h, _):
        return h, layers.dropout(h, 0.5)

    def program():
        x = layers.data("x", [50])
        return layers.repeat(body, N, x, xs=jnp.arange(N))[1]

    ones = np.ones([4, 50], "float32")
    drawn = [np.asarray(run(program, {"x": ones}, key=key).outputs[0]) for key in (0, 0, 1)]
    assert all((drawn[0][i] != drawn[0][j]).any() for i, j in ((0, 1), (0, 2), (1, 2)))
    np.testing.assert_array_equal(drawn[0], drawn[1])
    assert (drawn[0] != drawn[2]).any()


def test_rematerialised_dropout_draws_the_same_mask():
    def body(h):
        return h + layers.dropout(layers.fc(h, 5), 0.5)

    arrays = fluid.Program(repeated(body)).init(jax.random.key(1))
    agree(*(differentiated(repeated(body, remat=remat), arrays) for remat in (False, True)))


def test_each_block_reads_and_returns_its_cache():
    """Check `layers.repeat` with a pytree as carry and a cache: each block reads and returns its slice of the cache."""
    caches = {"k": np.random.default_rng(4).normal(size=(N, 1, 5)).astype("float32")}

    def body(carry, cache):
        h, depth = carry
        h = layers.fc(h, 5, bias_attr=False) + cache["k"]
        return (h, depth + 1), {"k": h * 2, "depth": depth}

    def program():
        cache = {"k": layers.data("k", [N, 1, 5], append_batch_size=False)}
        (h, depth), after = layers.repeat(body, N, (layers.data("x", [5]), 0), xs=cache)
        return h, depth, after["k"], after["depth"]

    arrays = fluid.Program(program).init(jax.random.key(1))
    h, depth, after, depths = run(program, {"x": X, **caches}, arrays=arrays).outputs
    want, kept = X, []
    for i in range(N):
        want = want @ np.asarray(arrays["repeat_0/fc_0.w_0"][i]) + caches["k"][i]
        kept.append(2 * want)
    np.testing.assert_allclose(h, want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(after, kept, rtol=1e-4, atol=1e-5)
    assert int(depth) == N and depths.tolist() == [0, 1, 2]


@pytest.mark.parametrize("around", ["repeat", "loop"])
def test_caches_pass_through_a_decoding_loop(around):
    """Check that a scan over time passes the cache of each repeated block (its sum so far) from step to step."""

    def body(h, cache):
        total = cache + layers.fc(h, 5, bias_attr=False)
        return total, total

    def stack(h, caches):
        if around == "repeat":
            return layers.repeat(body, N, h, xs=caches, name="stack")
        rows = []
        for i in range(N):
            w = layers.create_parameter([N, 5, 5], attr="stack/fc_0.w_0")[i]
            h = caches[i] + h @ w
            rows.append(h)
        return h, jnp.stack(rows)

    def program():
        x = layers.data("x", [5])

        def step(carry, _):
            h, caches = stack(*carry)
            return (h, caches), h

        return layers.scan(step, (x, jnp.zeros([N, *x.shape])), length=4)[1]

    w = np.random.default_rng(5).normal(size=(N, 5, 5)).astype("float32") / 3
    got = run(program, {"x": X}, arrays={"stack/fc_0.w_0": w}).outputs[0]
    h, caches, want = X, np.zeros([N, 4, 5]), []
    for _ in range(4):
        for i in range(N):
            h = caches[i] = caches[i] + h @ w[i]
        want.append(h)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


def test_sequences_go_through():
    rows = fluid.SequenceBatch(np.ones([2, 4, 5], "float32"), np.array([4, 2], "int32"))

    def program():
        return layers.repeat(lambda h: h + layers.fc(h, 5), N, layers.data("x", [5], lod_level=1))

    got = run(program, {"x": rows}).outputs[0]
    np.testing.assert_array_equal(got.lengths, rows.lengths)
    np.testing.assert_allclose(got.data[0], np.repeat(got.data[1][:1], 4, 0), rtol=1e-5)


@pytest.mark.parametrize("optimizer", [fluid.optimizer.Adam(0.01, epsilon=1e-3), fluid.optimizer.Momentum(0.1, 0.9)])
def test_training_equals_training_the_loop(optimizer):
    def training(net):
        def program():
            loss = layers.mean(layers.square_error_cost(net(), layers.data("y", [5])))
            optimizer.minimize(loss)
            return loss

        return program

    looped, apart = training(repeated()), training(unrolled())
    stacked, single = fluid.Session(looped), fluid.Session(apart)
    for name, value in slices({n: np.asarray(v) for n, v in stacked.scope.items()}).items():
        single.scope[name] = value
    for _ in range(3):
        for session, program in ((stacked, looped), (single, apart)):
            session.run(program, {"x": X, "y": np.tanh(X)})
    after = slices({n: np.asarray(v) for n, v in stacked.scope.items()})
    for name, value in single.scope.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-3, atol=1e-4)


def test_stacked_arrays_can_be_overridden_and_differentiated():
    program = repeated(lambda h: layers.fc(h, 5, bias_attr=False))
    session = fluid.Session(program)
    feed = {"x": X, "repeat_0/fc_0.w_0": np.tile(2 * np.eye(5, dtype="float32"), (N, 1, 1))}
    (got,) = session.run(program, feed)
    np.testing.assert_allclose(got, X * 2**N, rtol=1e-5)


def test_gradients_of_all_blocks_can_be_fetched():
    def program():
        return layers.mean(repeated(lambda h: layers.fc(h, 5, bias_attr=False))())

    session = fluid.Session(program)
    w = np.array(session.scope["repeat_0/fc_0.w_0"])
    (got,) = session.run(program, {"x": X}, fetch=["repeat_0/fc_0.w_0@GRAD"])
    ones = np.ones_like(X) / X.size
    np.testing.assert_allclose(got[2], (X @ w[0] @ w[1]).T @ ones, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got[0], X.T @ (ones @ w[2].T @ w[1].T), rtol=1e-4, atol=1e-6)


def test_mixed_precision():
    found = fluid.Program(repeated(), precision="bfloat16")
    assert found.outputs[0].dtype == "bfloat16"
    assert {s.dtype for s in (found.parameters | found.states).values()} == {"float32"}
    arrays = found.init(jax.random.key(1))
    near = found.apply(arrays, {"x": X}, key=None, mode="test").outputs[0]
    exact = run(repeated(), {"x": X}, arrays=arrays, mode="test").outputs[0]
    np.testing.assert_allclose(np.asarray(near, "float32"), exact, rtol=0.1, atol=0.1)


def test_the_block_is_traced_once_for_all():
    calls = []

    def body(h):
        calls.append(h)
        return layers.fc(h, 5)

    program = fluid.Program(lambda: layers.repeat(body, 48, layers.data("x", [5])))
    calls.clear()
    arrays = program.init(jax.random.key(0))
    jax.eval_shape(functools.partial(program.apply, key=None), arrays, {"x": jnp.asarray(X)})
    assert len(calls) == 1


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda x: layers.repeat(lambda h: layers.fc(h, 3), N, x),
         r"the block was given float32\[batch, 5\] and returned float32\[batch, 3\]"),
        (lambda x: layers.repeat(lambda h: h > 0, N, x), "returned bool.*layers.cast"),
        (lambda x: layers.repeat(lambda h: (h, h), N, x), r"returned \(float32\[batch, 5\], float32\[batch, 5\]\)"),
        (lambda x: layers.repeat(lambda h: None, N, x), "returned None"),
        (lambda x: layers.repeat(lambda h: h, 0, x), r"repeat_0\(n=0\): expected a whole number from 1 on"),
        (lambda x: layers.repeat(lambda h: h, 2.0, x), r"repeat_0\(n=2.0\): expected a whole number from 1 on"),
        (lambda x: layers.repeat(lambda h, y: (h, y), N, x, xs=jnp.zeros([4, 2])), r"xs is float32\[4, 2\] and n is 3"),
        (lambda x: layers.repeat(lambda h, y: h, N, x, xs=jnp.zeros([N])), "expected a pair.*lambda x, x_i"),
    ],
)  # fmt: skip
def test_mistakes_are_explained(build, message):
    with pytest.raises(errors.FluidError, match=message):
        fluid.Program(lambda: build(layers.data("x", [5])))
