"""Compilation time of deep nets: blocks by `layers.repeat`, compared with equal blocks in a Python loop."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from timing import Row, interleave

import fluid

SIZE = 64
X = np.random.default_rng(0).normal(size=(2, 32, SIZE)).astype("float32")


def block(x: Any) -> Any:
    """Compute a transformer block: attention, then a perceptron, each after a normalisation."""
    h = fluid.layers.layer_norm(x, begin_norm_axis=2)
    x = x + fluid.layers.multi_head_attention(h, num_heads=4, causal=True)
    h = fluid.layers.layer_norm(x, begin_norm_axis=2)
    h = fluid.layers.fc(h, size=4 * SIZE, num_flatten_dims=2, act="gelu")
    return x + fluid.layers.fc(h, size=SIZE, num_flatten_dims=2)


def repeated(n: int) -> Any:
    """Return a net of `n` equal blocks; `layers.repeat` runs the blocks in a scan, so XLA compiles a single block."""
    return fluid.layers.repeat(block, n, fluid.layers.data("x", X.shape[1:]))


def unrolled(n: int) -> Any:
    """Return a net of `n` blocks in a Python loop, which compiles every block."""
    x = fluid.layers.data("x", X.shape[1:])
    for _ in range(n):
        x = block(x)
    return x


def first_step(net: Callable[[int], Any], n: int) -> float:
    """Return the seconds of the first training step of a net with `n` blocks; this step traces and compiles."""

    def program() -> Any:
        loss = fluid.layers.mean(fluid.layers.square(net(n)))
        fluid.optimizer.Adam(1e-3).minimize(loss)
        return loss

    jax.clear_caches()
    with fluid.Session(program) as session:
        start = time.perf_counter()
        float(session.run(program, {"x": X})[0])
        return time.perf_counter() - start


def run(rounds: int) -> list[Row]:
    fluid.set_compilation_cache(None)  # a cache on disk would save later runs the compilations
    peers = {
        "48": lambda: first_step(repeated, 48),
        "12": lambda: first_step(repeated, 12),
        "loop": lambda: first_step(unrolled, 12),
    }
    found = interleave(peers, max(1, rounds // 7))

    def row(what: str, first: str, second: str) -> Row:
        return Row(f"first step, {what}", "s", {"fluid": found[first], "hand": found[second]}, higher_is_better=False)

    return [
        row("48 blocks by repeat / 12 by repeat", "48", "12"),
        row("12 blocks by repeat / 12 in a loop of Python", "12", "loop"),
    ]
