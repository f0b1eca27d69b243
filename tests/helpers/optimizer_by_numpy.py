"""Comparison of optimizers: fluid and formulas in NumPy apply the same fixed gradients to two parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

RNG = np.random.default_rng(1)
START = {"w": RNG.normal(size=(3, 2)), "b": RNG.normal(size=2)}
GRADS = [{n: RNG.normal(size=v.shape) for n, v in START.items()} for _ in range(6)]


def run(optimizer, settings=None, start=START, grads=GRADS):
    """Apply an optimizer of fluid to all gradients in float32; return the final parameters."""
    return trajectory(optimizer, settings, start, grads)[-1]


def trajectory(optimizer, settings=None, start=START, grads=GRADS):
    """Apply an optimizer of fluid to all gradients in float32; return the parameters after each gradient."""
    tx = optimizer.transformation({n: (settings or {}).get(n) for n in start})
    params = {n: jnp.asarray(v, "float32") for n, v in start.items()}
    state, found = tx.init(params), []
    # For a few steps, an optimized compilation takes more time than it saves.
    update = jax.jit(tx.update, compiler_options={"xla_backend_optimization_level": 0})
    for step in grads:
        updates, state = update({n: jnp.asarray(g, "float32") for n, g in step.items()}, state, params)
        params = optax.apply_updates(params, updates)
        found.append(params)
    return found


def numpy_run(rule, start=START, grads=GRADS):
    """Apply `rule(name, p, g, memory, t) -> p` to all gradients in float64; return the final parameters."""
    return numpy_trajectory(rule, start, grads)[-1]


def numpy_trajectory(rule, start=START, grads=GRADS):
    """Update parameters in float64 by an optimizer in NumPy; return the parameters after each gradient.

    In step `t`, `rule(name, p, g, memory, t)` returns the new value of the parameter `p`, which has the gradient `g`.
    """
    params, memory, found = {n: v.copy() for n, v in start.items()}, {n: {} for n in start}, []
    for t, step in enumerate(grads, 1):
        params = {n: rule(n, p, step[n], memory[n], t) for n, p in params.items()}
        found.append(params)
    return found


def norm(*arrays):
    return np.sqrt(sum((a**2).sum() for a in arrays))


def assert_close(found, want, rtol=2e-5, atol=2e-6):
    assert found.keys() == want.keys()
    for name, value in want.items():
        np.testing.assert_allclose(found[name], value, rtol=rtol, atol=atol, err_msg=name)
