"""Time loop of an LSTM: equal to a scan in values and derivatives, without buffer copies in a step."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluid.layers.kernels.lstm import lstm_scan

WIDTH = 4
LENGTHS = jnp.array([6, 1, 3])
REAL = (np.arange(6) < np.asarray(LENGTHS)[:, None])[..., None]


def by_scan(order, sums, weight, bias, peepholes, hidden, cell):
    """Return hidden and cell states of all steps by the equations of an LSTM, in a scan that JAX differentiates."""
    p_i, p_f, p_o = peepholes

    def step(state, now):
        h, c = state
        a = dict(zip(order, jnp.split(now + h @ weight + bias, 4, axis=1), strict=True))
        new = jax.nn.sigmoid(a["f"] + p_f * c) * c + jax.nn.sigmoid(a["i"] + p_i * c) * jnp.tanh(a["g"])
        h = jax.nn.sigmoid(a["o"] + p_o * new) * jnp.tanh(new)
        return (h, new), (h, new)

    _, states = jax.lax.scan(step, (hidden, cell), jnp.swapaxes(sums, 0, 1))
    return [jnp.swapaxes(state, 0, 1) for state in states]


@pytest.mark.parametrize("order", ["gifo", "ifog"])
@pytest.mark.parametrize("peeps", [False, True])
def test_lstm_kernel_equals_a_scan(order, peeps):
    random = np.random.default_rng(0)
    shapes = [(3, 6, 4 * WIDTH), (WIDTH, 4 * WIDTH), (4 * WIDTH,), (3, WIDTH), (3, WIDTH), (3, WIDTH)]
    sums, weight, bias, peepholes, hidden, cell = (jnp.asarray(random.normal(size=s), "float32") for s in shapes)
    peepholes = peepholes if peeps else jnp.zeros_like(peepholes)

    def loss(form, *arrays):
        states = form(*arrays)
        return sum(jnp.sum(jnp.where(REAL, jnp.sin(state + i), 0)) for i, state in enumerate(states))

    def by_kernel(sums, weight, bias, peepholes, hidden, cell):
        return lstm_scan(order, sums, LENGTHS, weight, bias, peepholes if peeps else None, hidden, cell)

    arrays = (sums, weight, bias, peepholes, hidden, cell)
    numbers = tuple(range(6)) if peeps else (0, 1, 2, 4, 5)
    found, want = (
        jax.value_and_grad(lambda *a, form=form: loss(form, *a), numbers)(*arrays)
        for form in (by_kernel, lambda *a: by_scan(order, *a))
    )
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the loop is written for a CPU")
def test_no_step_copies_the_buffer():
    """Check that the time loop of an LSTM copies its buffer once, to keep the argument unchanged, not in each step."""
    sums, weight, zeros = jnp.ones((3, 6, 4 * WIDTH)), jnp.ones((WIDTH, 4 * WIDTH)), jnp.zeros((3, WIDTH))

    def loss(sums, weight):
        return sum(map(jnp.sum, lstm_scan("gifo", sums, LENGTHS, weight, None, None, zeros, zeros)))

    compiled = jax.jit(jax.grad(loss, (0, 1))).lower(sums, weight).compile().as_text()
    assert len(re.findall(r"= f32\[3,6,16\]\S* copy\(", compiled)) == 1
