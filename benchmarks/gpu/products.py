"""Rate of large matrix products in bfloat16: the upper limit with which the GPT benchmark compares its rate."""

import time

import jax
import jax.numpy as jnp


def operations_per_second(small: bool) -> float:
    """Return the floating point operations per second of matrix products, the best of five measurements."""
    size, times = (256, 4) if small else (8192, 20)
    x = jax.random.normal(jax.random.key(0), (size, size)).astype(jnp.bfloat16)
    # Without the factor `size**-0.5`, the numbers would grow with each product, and overflow after some products.
    multiply = jax.jit(lambda x, y: (x @ y) * (size**-0.5))
    multiply(x, x).block_until_ready()
    best = 0.0
    for _ in range(5):
        y = x
        start = time.perf_counter()
        for _ in range(times):
            y = multiply(x, y)
        y.block_until_ready()
        best = max(best, 2 * size**3 * times / (time.perf_counter() - start))
    return best
