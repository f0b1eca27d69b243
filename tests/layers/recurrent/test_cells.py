"""Recurrent cells, run over the steps of a sequence: tests with a cell that no layer of fluid uses."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fluid
from fluid.layers.recurrent.cells import (
    GRU,
    LSTM,
    Cell,
    LSTMUnit,
    ProjectedLSTM,
    StateAsOutput,
    numbered,
    unroll,
    unroll_rows,
)

WIDTH = 3


@dataclass(frozen=True, eq=False)
class Elman(Cell):
    """The simple recurrent network of Elman (1990), whose output is twice its state."""

    weight: Any

    def initial_state(self, batch_ref):
        return jnp.zeros((batch_ref.shape[0], WIDTH), batch_ref.dtype)

    def step(self, inputs, state):
        hidden = jnp.tanh(inputs + state @ self.weight)
        return 2 * hidden, hidden


def values(*shape, salt=0):
    return np.random.default_rng(salt).normal(size=shape).astype("float32")


def by_loop(x, weight, lengths, reverse):
    """Return outputs `[time, batch, width]`, which are 0 after the end of a row, and last states, by a NumPy loop."""
    outputs, last = np.zeros_like(x), np.zeros(x.shape[1:], "float32")
    for row, length in enumerate(lengths):
        for t in sorted(range(length), reverse=reverse):
            last[row] = np.tanh(x[t, row] + last[row] @ weight)
            outputs[t, row] = 2 * last[row]
    return outputs, last


@given(lengths=st.lists(st.integers(0, 5), min_size=3, max_size=3), reverse=st.booleans())
@settings(deadline=None, max_examples=20)
def test_a_custom_cell_matches_a_numpy_loop(lengths, reverse):
    x, weight, lengths = values(5, 3, WIDTH), values(WIDTH, WIDTH, salt=1), np.array(lengths)
    cell = Elman(weight)
    outputs, last = unroll(cell, x, cell.initial_state(x[0]), lengths, reverse)
    want_outputs, want_last = by_loop(x, weight, lengths, reverse)
    real = np.arange(5)[:, None] < lengths
    np.testing.assert_allclose(np.where(real[..., None], outputs, 0), want_outputs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last, want_last, rtol=1e-5, atol=1e-6)


def test_without_lengths_all_steps_count():
    x, weight = values(5, 3, WIDTH), values(WIDTH, WIDTH, salt=1)
    cell = Elman(weight)
    for got, want in zip(unroll(cell, x, cell.initial_state(x[0])), by_loop(x, weight, [5] * 3, False), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_cell_over_sequences(reverse):
    weight, lengths = values(WIDTH, WIDTH, salt=1), [2, 4, 0]
    batch = fluid.SequenceBatch.from_rows([values(n, WIDTH, salt=n) for n in lengths], "float32")
    cell = Elman(weight)
    start = cell.initial_state(batch.data)
    doubled = unroll_rows(cell, batch, start, reverse)
    states = unroll_rows(StateAsOutput(cell), batch, start, reverse)
    wants, _ = by_loop(np.swapaxes(batch.data, 0, 1), weight, lengths, reverse)
    for row, got, state in zip(range(3), doubled.rows(), states.rows(), strict=True):
        np.testing.assert_allclose(got, wants[: lengths[row], row], rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(2 * state, got)


def test_step_numbers_follow_positions_in_both_directions():
    class Counter(Elman):
        def step(self, inputs, state):
            number, x = inputs
            return number, state + x

    x = values(4, 2, WIDTH)
    for reverse in (False, True):
        outputs, _ = unroll(Counter(None), numbered(x), jnp.zeros((2, WIDTH)), reverse=reverse)
        assert outputs.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "cell",
    [
        LSTM(LSTMUnit("ifgo"), np.zeros((3, 12))),
        ProjectedLSTM(LSTMUnit("ifgo"), np.zeros((2, 12)), np.zeros((3, 2)), jnp.tanh),
        GRU(np.zeros((3, 6)), np.zeros((3, 3))),
    ],
    ids=lambda cell: type(cell).__name__,
)
def test_a_step_keeps_the_initial_state_structure(cell, dtype):
    weights = {name: jnp.asarray(v, dtype) for name, v in vars(cell).items() if isinstance(v, np.ndarray)}
    cell = replace(cell, **weights)
    inputs = jnp.zeros((5, 9 if isinstance(cell, GRU) else 12), dtype)
    state = cell.initial_state(inputs)
    output, new = cell.step(inputs, state)
    kinds = [jax.tree.map(lambda v: (v.shape, v.dtype), tree) for tree in (state, new)]
    assert kinds[0] == kinds[1]
    assert output.shape == (5, 2 if isinstance(cell, ProjectedLSTM) else 3) and output.dtype == dtype


@pytest.mark.parametrize("order", ["gifo", "ifgo", "ifog"])
def test_gate_order_permutes_the_columns(order):
    sums, c = values(4, 4 * WIDTH), values(4, WIDTH, salt=1)
    columns = dict(zip("ifgo", np.split(sums, 4, axis=1), strict=True))
    want = LSTMUnit("ifgo", forget_bias=0.5)(sums, c)
    got = LSTMUnit(order, forget_bias=0.5)(np.concatenate([columns[k] for k in order], axis=1), c)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)
