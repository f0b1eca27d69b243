"""FLOPs and bytes: compared with formulas and with the cost analysis of XLA."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from inspection import nets

import fluid
from fluid import layers
from fluid.core.equations import live_equations
from fluid.inspection.partition import Counter


def cost(function, *arguments):
    """Return the cost of a function of JAX arrays, counted from its jaxpr."""
    return Counter().cost(live_equations(jax.make_jaxpr(function)(*arguments).jaxpr))


def flops(program, layer, **sizes):
    """Return the FLOPs of a layer of a program."""
    return next(row.flops for row in fluid.summary(program, **sizes).rows if row.name == layer)


sizes = st.integers(1, 9)


@given(sizes, sizes, sizes)
def test_a_matrix_product(batch, rows, columns):
    def program():
        return layers.fc(layers.data("x", shape=[rows]), size=columns, bias_attr=False)

    assert flops(program, "fc_0", batch_size=batch) == 2 * batch * rows * columns


def test_a_product_of_batches():
    def program():
        return layers.matmul(layers.data("x", shape=[3, 5, 7]), layers.data("y", shape=[3, 7, 2]))

    assert flops(program, "matmul_0", batch_size=4) == 2 * 4 * 3 * 5 * 7 * 2


@pytest.mark.parametrize(("padding", "stride"), [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)])
def test_convolution_flops_exclude_padding(padding, stride):
    size, channels, filters, kernel, batch = 8, 3, 5, 3, 2

    def program():
        image = layers.data("image", shape=[channels, size, size])
        return layers.conv2d(image, filters, kernel, stride, padding, bias_attr=False)

    starts = range(-padding, size + padding - kernel + 1, stride)
    taps = sum(0 <= start + tap < size for start in starts for tap in range(kernel))
    assert flops(program, "conv2d_0", batch_size=batch) == 2 * batch * filters * channels * taps**2


def test_a_grouped_convolution():
    def program():
        return layers.conv2d(layers.data("image", shape=[4, 6, 6]), 8, 3, groups=2, bias_attr=False)

    assert flops(program, "conv2d_0") == 2 * 8 * (4 // 2) * 9 * 4 * 4


def test_loop_flops_scale_with_iterations():
    def step(carry, x):
        return carry @ weight + x, None

    weight = jnp.ones((8, 8))
    found = cost(lambda c, xs: jax.lax.scan(step, c, xs), jnp.ones((2, 8)), jnp.ones((5, 2, 8)))
    assert found.flops == 5 * (2 * 2 * 8 * 8 + 2 * 8)
    assert not found.partial


def test_loops_in_loops_and_in_functions():
    inner = jax.jit(lambda c: jax.lax.scan(lambda h, _: (h @ jnp.ones((4, 4)), None), c, length=3)[0])
    outer = jax.checkpoint(lambda c: jax.lax.scan(lambda h, _: (inner(h), None), c, length=7)[0])
    assert cost(outer, jnp.ones((2, 4))).flops == 7 * 3 * 2 * 2 * 4 * 4


def test_of_branches_the_dearest_counts():
    small, large = jnp.ones((4, 4)), jnp.ones((4, 64))

    def program(i, x):
        return jax.lax.switch(i, [lambda x: x @ small, lambda x: x @ large @ large.T], x)

    def looping(i, x):
        return jax.lax.cond(
            i > 0, lambda x: x, lambda x: jax.lax.scan(lambda h, _: (h @ small, None), x, length=9)[0], x
        )

    assert cost(program, 0, jnp.ones((2, 4))).flops == pytest.approx(2 * 2 * 4 * 64 * 2, abs=8)
    assert cost(looping, 0, jnp.ones((2, 4))).flops == pytest.approx(9 * 2 * 2 * 4 * 4, abs=8)


def test_data_dependent_loops_count_once_and_are_partial():
    def program():
        x = layers.data("x", shape=[4])
        return layers.while_loop(
            lambda h: layers.reduce_sum(h) < 9.0, lambda h: [layers.fc(h, size=4, bias_attr=False)], [x]
        )[0]

    found = fluid.summary(program, batch_size=3)
    row = next(row for row in found.rows if row.name == "fc_0")
    assert row.flops == 2 * 3 * 4 * 4 and row.partial and row.depth == 1
    assert found.totals.forward.partial
    assert ">= 96" in str(found) and ">= 96" in found._repr_html_().replace("&gt;", ">")


def whole(program, batch_size, time=16):
    """Return the cost analysis of XLA for the forward pass of a program."""
    feeds = {n: fluid.core.stand_in(spec, batch_size, (time, time)) for n, spec in program.feeds.items()}
    arrays = {n: jnp.zeros(s.shape, s.dtype) for n, s in (program.parameters | program.states).items()}

    def forward(arrays, feeds):
        return program.apply(arrays, feeds, key=None, mode="test").outputs

    return jax.jit(forward).lower(arrays, feeds).cost_analysis()


def convolutions():
    hidden = layers.data("image", shape=[3, 16, 16])
    for filters in (4, 8):
        hidden = layers.batch_norm(layers.conv2d(hidden, filters, 3, padding=1), act="relu")
        hidden = layers.pool2d(hidden, 2, pool_stride=2)
    return layers.fc(layers.dropout(hidden, 0.5), size=5, act="softmax")


def attention():
    x = layers.data("x", shape=[6, 16])
    return layers.layer_norm(x + layers.multi_head_attention(x, x, x, num_heads=4), begin_norm_axis=1)


def sentences():
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    vectors = layers.embedding(words, size=[50, 8])
    return layers.fc(layers.sequence_pool(layers.sequence_conv(vectors, 6, 3), "max"), size=2)


@pytest.mark.parametrize(
    "function", [nets.digits, nets.residual, convolutions, attention, sentences, nets.train_generator]
)
def test_sum_of_rows_matches_xla_cost_analysis(function):
    program = fluid.Program(function)
    found = fluid.summary(program, batch_size=3)
    want = whole(program, 3)
    assert sum(row.flops for row in found.rows) == found.totals.forward.flops
    assert sum(row.bytes for row in found.rows) == found.totals.forward.bytes
    # If two layers share a value, XLA may count its operations once or twice, so the totals may differ a little.
    assert found.totals.forward.flops == pytest.approx(want["flops"], rel=0.02)
    assert found.totals.forward.bytes == pytest.approx(want["bytes accessed"], rel=0.05)


def test_recurrence_flops_scale_with_steps():
    found = fluid.summary(nets.recurrent, batch_size=2, time=5)
    by_name = {row.name: row.flops for row in found.rows}
    # fc_0 has two products and two sums of shape [2, 8] in each of 5 steps. repeat_0/fc_0 has one product and one sum
    # in each of 3 blocks.
    assert by_name["fc_0"] == 5 * (2 * 2 * (4 + 8) * 8 + 2 * 2 * 8)
    assert by_name["repeat_0/fc_0"] == pytest.approx(3 * (2 * 2 * 8 * 8 + 2 * 8), abs=3 * 8)


def test_a_training_step_against_the_whole():
    def program():
        x = layers.data("x", shape=[32])
        y = layers.data("y", shape=[1])
        hidden = layers.fc(x, size=64, act="relu", bias_attr=False)
        return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1, bias_attr=False), y))

    batch = 128
    found = fluid.summary(fluid.Trainer(program, fluid.optimizer.SGD(0.1)), batch_size=batch)

    def loss(weights, x, y):
        return jnp.mean(jnp.square(jnp.maximum(x @ weights[0], 0) @ weights[1] - y))

    def step(weights, x, y):
        return jax.tree.map(lambda w, g: w - 0.1 * g, weights, jax.grad(loss)(weights, x, y))

    shapes = [np.zeros((32, 64), "float32"), np.zeros((64, 1), "float32")]
    want = (
        jax.jit(step).lower(shapes, np.zeros((batch, 32), "float32"), np.zeros((batch, 1), "float32")).cost_analysis()
    )
    assert found.totals.step.flops == pytest.approx(want["flops"], rel=0.05)
    # The lower limit is the FLOPs of the matrix products: forward, and backward for both weights and the hidden layer.
    assert found.totals.step.flops > 2 * batch * (32 * 64 * 2 + 64 * 3)


def test_programs_without_optimizer_have_no_training_step():
    assert fluid.summary(nets.residual).totals.step is None
