"""Measurements of layers on sequences: results and gradients with arbitrary padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from layers.layer_table import declare

import fluid
from fluid import core, layers

SEQUENCES = (fluid.SequenceBatch, fluid.NestedSequenceBatch)


class Measured:
    """A program with the layer of a table row; the feed `fill` replaces the padding of all input sequences."""

    def __init__(self, row, feed=None):
        self.feed = row.feed if feed is None else feed
        self.program = fluid.Program(functools.partial(self._build, row))
        self.arrays = self.program.init(jax.random.key(2))
        self._step = jax.jit(self._measure)

    def __call__(self, feed=None, fill=0.0):
        """Run the layer; return results, states, and the gradients for parameters, fed arrays and fed sequences."""
        return self._step(self.arrays, self.feed if feed is None else feed, jnp.float32(fill))

    def _build(self, row):
        fill = layers.data("fill", [], append_batch_size=False)
        values = [_spoilt(name, declare(name, value), fill) for name, value in self.feed.items()]
        # The table of layers has unusual shapes on purpose, so `as_fluid` silences warnings about likely mistakes.
        with core.as_fluid():
            return row.build(*values)

    def _measure(self, arrays, feed, fill):
        sequences = {n: v for n, v in feed.items() if isinstance(v, SEQUENCES)}
        moved = {
            "parameters": {n: arrays[n] for n in self.program.parameters},
            "arrays": {n: v for n, v in feed.items() if n not in sequences and np.dtype(v.dtype).kind == "f"},
            "sequences": {n: jnp.zeros(v.shape) for n, v in sequences.items() if np.dtype(v.dtype).kind == "f"},
        }

        def total(moved):
            applied = self.program.apply(
                arrays | moved["parameters"],
                feed | moved["arrays"] | {"fill": fill},
                key=jax.random.key(3),
                mode="train",
                perturbations={f"{n}_spoilt": sequences[n].with_data(v) for n, v in moved["sequences"].items()},
            )
            return _total(applied.outputs), (applied.outputs, applied.states)

        gradients, (outputs, states) = jax.grad(total, has_aux=True)(moved)
        for name, value in gradients["sequences"].items():
            gradients["sequences"][name] = sequences[name].with_data(value)
        return outputs, states, gradients


def assert_same(got, want, what="", close=1e-5):
    """Check that two measurements agree; sequences are compared on their valid steps only."""
    got, want = (jax.tree.leaves(v, is_leaf=_is_sequence) for v in (got, want))
    for one, other in zip(got, want, strict=True):
        for a, b in zip(_arrays(one), _arrays(other), strict=True):
            np.testing.assert_allclose(a, b, rtol=close, atol=close, err_msg=what)


def assert_no_gradient_in_padding(gradients):
    """Check that gradients of padding are zero, because other values would reach the parameters of earlier layers."""
    for value in gradients["sequences"].values():
        assert not np.asarray(value.data)[~np.asarray(value.mask)].any()


def cut(value, start, stop):
    """Return the rows `start` to `stop` of a value."""
    return jax.tree.map(lambda v: v[start:stop], value)


def roomier(value, more):
    """Return a SequenceBatch with more padding; return other values unchanged."""
    if not isinstance(value, fluid.SequenceBatch):
        return value
    return value.with_data(np.concatenate([value.data, np.repeat(np.zeros_like(value.data[:, :1]), more, 1)], axis=1))


def with_lengths(value, lengths, salt=0):
    """Return a SequenceBatch of these lengths, with steps drawn at random from the valid steps of `value`."""
    steps = np.concatenate(value.rows())
    data = steps[np.random.default_rng(salt).integers(0, len(steps), value.shape[:2])]
    return fluid.SequenceBatch(data, np.array(lengths, "int32"))


def _spoilt(name, value, fill):
    if not isinstance(value, SEQUENCES):
        return value
    broken = jnp.isnan(fill)
    garbage = fill if jnp.issubdtype(value.dtype, jnp.inexact) else jnp.where(broken, 12345, 0).astype(value.dtype)
    data = jnp.where(core.spread_mask(value, value.data.ndim), value.data, garbage.astype(value.dtype))
    return layers.identity(value.with_data(data), name=f"{name}_spoilt")


def _is_sequence(value):
    return isinstance(value, SEQUENCES)


def _arrays(value):
    if isinstance(value, fluid.SequenceBatch):
        return value.rows()
    return [steps for row in value.rows() for steps in row] if _is_sequence(value) else [np.asarray(value)]


def _total(outputs):
    """Return a number that depends on all floats of the outputs except padding, and is a sum over rows."""
    total = jnp.float32(0)
    for value in jax.tree.leaves(outputs, is_leaf=_is_sequence):
        if jnp.issubdtype(value.dtype, jnp.inexact):
            array = value.data if _is_sequence(value) else value
            where = core.spread_mask(value, array.ndim) if _is_sequence(value) else None
            total += jnp.sum(jnp.sin(jnp.where(True if where is None else where, array, 0)), where=where)
    return total
