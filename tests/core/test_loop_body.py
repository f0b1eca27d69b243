"""Bodies of loops and branches: their values, names and states, and visibility from outside."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import run

import fluid
from fluid import core, errors, layers

X = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")


@core.begins_path
def once(function, *args):
    """Call a function once by `core.Body`, which runs the body of a loop such as `layers.scan`; return the result."""
    body = core.Body(function, args, "layers.scan")
    result, states = body(body.states(), jnp.int32(0), *args)
    body.keep(states)
    return result


def test_body_has_values_and_names_of_its_function():
    def plain():
        x = layers.data("x", [3])
        return layers.fc(layers.batch_norm(layers.fc(x, 3)), 2)

    def inside():
        x = layers.data("x", [3])
        return layers.fc(once(lambda v: layers.batch_norm(layers.fc(v, 3)), x), 2)

    first, second = fluid.Program(plain), fluid.Program(inside)
    assert list(first.parameters) == list(second.parameters) and list(first.states) == list(second.states)
    want, got = run(plain, {"x": X}), run(inside, {"x": X})
    np.testing.assert_array_equal(got.outputs[0], want.outputs[0])
    assert got.states.keys() == want.states.keys()
    for name, value in want.states.items():
        np.testing.assert_array_equal(got.states[name], value)


def test_testing_changes_no_state():
    def program():
        return once(layers.batch_norm, layers.data("x", [3]))

    initial = fluid.Program(program).init(jax.random.key(1))
    for name, value in run(program, {"x": X}, mode="test").states.items():
        np.testing.assert_array_equal(value, initial[name])


def test_named_values_inside_are_invisible_outside():
    def program():
        return once(lambda v: layers.identity(v, name="hidden") * 2, layers.data("x", [3]))

    assert "hidden" not in fluid.Program(program).values


@pytest.mark.parametrize("depth", [1, 4])
def test_the_first_run_is_remembered(depth):
    """Check that each level of nested loops adds one run of the innermost loop body, and does not double the runs."""
    runs = []

    def nested(level):
        def function(v):
            if level == depth:
                runs.append(level)
                return layers.fc(v, 3)
            return once(nested(level + 1), v)

        return function

    program = fluid.Program(lambda: once(nested(1), layers.data("x", [3])))
    assert len(runs) == 2 * (depth + 1)  # the discovery of a program traces it with two batch sizes
    runs.clear()
    program.apply(program.init(jax.random.key(0)), {"x": X}, key=None)
    assert len(runs) == 1


def test_body_first_seen_after_discovery_runs():
    seen = []

    def program():
        x = layers.data("x", [3])
        seen.append(x)
        return x if len(seen) == 1 else once(lambda v: v * 2, x)

    np.testing.assert_array_equal(run(program, {"x": X}).outputs[0], 2 * X)


@pytest.mark.parametrize(
    "function, message",
    [
        (lambda x: fluid.optimizer.SGD(0.1).minimize(layers.mean(x)), "minimise it outside"),
        (lambda x: x + layers.data("late", [3]), r"call layers.data\('late', ...\) before"),
    ],
)
def test_feeds_and_minimize_inside_are_refused(function, message):
    with pytest.raises(errors.ProgramError, match=message):
        fluid.Program(lambda: once(function, layers.data("x", [3])))


def test_sparse_table_inside_is_updated_densely():
    def program():
        ids = layers.data("ids", [1], "int64")
        loss = layers.mean(once(lambda v: layers.embedding(v, [5, 2], is_sparse=True), ids))
        fluid.optimizer.SGD(1.0).minimize(loss)
        return loss

    found = fluid.Program(program)
    assert not found.lookups and found.dense_uses == {"embedding_0.w_0"}
    session = fluid.Session(found)
    before = np.array(session.scope["embedding_0.w_0"])
    session.run(found, {"ids": np.array([[1], [3]])})
    changed = np.array(session.scope["embedding_0.w_0"]) - before
    np.testing.assert_allclose(changed, -0.25 * np.isin(np.arange(5), [1, 3])[:, None] * np.ones(2), atol=1e-6)
