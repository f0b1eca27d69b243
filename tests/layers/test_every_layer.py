"""Properties of every layer: jit, gradients, dtypes, names, errors, documentation."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.layer_table import ROWS
from layers.sequence_table import SEQUENCE_ROWS

import fluid
from fluid import errors, layers, nets

# Functions that only declare feeds, so the table of all layers has no row for them. `tests/test_tabular.py` tests the
# functions for tables.
DECLARE_FEEDS = {"data", "table_columns", "table_features"}
NETS = {name: value for name, value in vars(nets).items() if getattr(value, "__module__", "") == nets.__name__}
SCHEDULES = {name for name in layers.__all__ if getattr(layers, name).__module__ == "fluid.lr"}
PUBLIC = {name: getattr(layers, name) for name in layers.__all__ if name not in SCHEDULES | {"overview"}} | {
    name: value for name, value in NETS.items() if not name.startswith("_")
}


def each(rows):
    return pytest.mark.parametrize("row", rows, ids=[row.id for row in rows])


def apply(program, arrays, feed):
    """Return outputs and states of a program in train mode."""
    applied = program.apply(arrays, feed, key=jax.random.key(3), mode="train")
    return applied.outputs, applied.states


def test_the_table_is_complete():
    assert {row.name for row in ROWS} == set(PUBLIC) - DECLARE_FEEDS
    assert {row.name for row in SEQUENCE_ROWS} <= set(PUBLIC)
    assert layers.__all__ == sorted(layers.__all__)
    assert len({row.id for row in ROWS}) == len(ROWS)


def rounded(arrays):
    """Return the arrays with float32 numbers rounded to bfloat16, but still of dtype float32."""
    return {n: v.astype("bfloat16").astype("float32") if v.dtype == "float32" else v for n, v in arrays.items()}


@pytest.mark.sample(3)
@each(ROWS)
def test_under_jit_and_in_mixed_precision(row):
    """Check that jit changes no result, and that mixed precision changes results little.

    In mixed precision, parameters, states and inputs of losses stay float32.
    """
    exact, mixed = (fluid.Program(row.program(), precision=p) for p in ("float32", "bfloat16"))
    assert {s.dtype for s in (mixed.parameters | mixed.states).values()} <= {"float32", "int32"}
    arrays, feed = rounded(exact.init(jax.random.key(2))), rounded(row.feed)
    both = jax.jit(lambda arrays, feed: [apply(program, arrays, feed) for program in (exact, mixed)])
    for program, (outputs, states) in zip((exact, mixed), (found := both(arrays, feed)), strict=True):
        assert [o.dtype for o in outputs] == [o.dtype for o in program.outputs]
        assert {name: value.dtype for name, value in states.items()} == {n: s.dtype for n, s in program.states.items()}
    for got, want in zip(jax.tree.leaves(found[0]), jax.tree.leaves(apply(exact, arrays, feed)), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-6)
    (wants, _), (gots, _) = found
    in_float32 = row.half == "float32" and not mixed.parameters and gots[0].dtype == "float32"
    near = 1e-5 if in_float32 else 3e-2
    for got, want in zip(gots, wants, strict=True):
        np.testing.assert_allclose(np.asarray(got, "float32"), np.asarray(want, "float32"), rtol=near, atol=near)


@pytest.mark.sample(3)
@each([row for row in ROWS if row.gradient])
def test_gradient_is_the_slope(row):
    with jax.enable_x64(True):
        program = fluid.Program(row.program(dtype="float64"))
        feed = {name: v.astype("float64") if v.dtype.kind == "f" else v for name, v in row.feed.items()}
        arrays = program.init(jax.random.key(2))
        shapes, _ = jax.eval_shape(functools.partial(apply, program), arrays, feed)
        weights = [np.random.default_rng(i).normal(size=o.shape) for i, o in enumerate(shapes)]
        moved = {name: jnp.asarray(v) for name, v in (feed | arrays).items() if v.dtype == np.float64}
        assert moved.keys() >= set(program.parameters), "a parameter beside float64 data is float64"

        def loss(moved):
            outputs, _ = apply(program, arrays | {n: moved[n] for n in arrays if n in moved}, feed | moved)
            real = [(o, w) for o, w in zip(outputs, weights, strict=True) if jnp.issubdtype(o.dtype, jnp.inexact)]
            return sum(jnp.sum(o * w) for o, w in real)

        along = {name: np.random.default_rng(len(name)).normal(size=v.shape) for name, v in moved.items()}
        value_and_slope = jax.jit(jax.value_and_grad(loss))
        slope = sum(np.sum(g * along[name]) for name, g in value_and_slope(moved)[1].items())
        ahead, behind = ({n: v + step * along[n] for n, v in moved.items()} for step in (1e-6, -1e-6))
        found = (value_and_slope(ahead)[0] - value_and_slope(behind)[0]) / 2e-6
        assert np.isfinite(slope)
        np.testing.assert_allclose(slope, found, rtol=1e-5, atol=1e-6)


@pytest.mark.sample(3)
@each(ROWS)
def test_half_precision_goes_through(row):
    outputs = fluid.Program(row.program(dtype="bfloat16")).outputs
    assert outputs[0].dtype == row.half


@each(ROWS)
def test_results_have_names(row):
    automatic = fluid.Program(row.program())
    assert automatic.values or automatic.parameters
    assert all(name.split(".")[0].rstrip("0123456789").endswith("_") for name in automatic.values if "." in name)
    given = fluid.Program(row.program(name="given"))
    recorded = [*given.values, *given.parameters]
    assert any(name == "given" or name.startswith("given.") for name in recorded), recorded
    assert all(name.startswith(("given", "scale")) for name in recorded), recorded


@each([row for row in ROWS if row.wrong])
def test_wrong_shapes_name_the_layer_and_line(row):
    with pytest.raises(errors.FluidError) as caught:
        fluid.Program(row.program(row.wrong))
    note = "\n".join(caught.value.__notes__)
    assert isinstance(caught.value, ValueError)
    assert "in the layer " in note and "table.py:" in note
    assert row.name in NETS or f"in the layer {row.name}, " in note
    assert len(str(caught.value)) > 40, "say what was found, what was expected, and the corrected call"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_documentation_is_whole(name):
    function = PUBLIC[name]
    text = inspect.getdoc(function)
    parameters = inspect.signature(function).parameters
    assert ("Args:" in text or not parameters) and "Returns:" in text and ">>>" in text
    undescribed = [p for p in parameters if f"  {p}: " not in text]
    assert not undescribed


@pytest.mark.parametrize("name", sorted(PUBLIC.keys() - {"rowwise"}))  # a decorator, for any place
def test_outside_a_program_the_error_says_so(name):
    with pytest.raises(errors.OutsideProgramError, match=f"layers.{name} was called outside"):
        PUBLIC[name]()
