"""A deep net in `fluid.static`, compared with a program function: the time to declare a layer, and the first step."""

import time
from typing import Any

import jax
import numpy as np
from timing import Row, interleave

import fluid
from fluid import static

BLOCKS = 50
LAYERS = 10 * BLOCKS + 4
random = np.random.default_rng(0)
FEED = {"x": random.normal(size=(4, 8, 8, 8)).astype("float32"), "label": random.integers(0, 10, (4, 1))}


def net(faces: Any, blocks: int) -> Any:
    """Return the loss of a net: `blocks` blocks of ten layers, and four more layers.

    `faces` is the module that provides the layers, `fluid` or `fluid.static`.
    """
    layers = faces.layers
    x, label = layers.data("x", shape=[8, 8, 8]), layers.data("label", shape=[1], dtype="int64")
    for _ in range(blocks):
        h = layers.conv2d(x, num_filters=8, filter_size=1, bias_attr=False)
        h = layers.relu(layers.batch_norm(h))
        h = layers.conv2d(h, num_filters=8, filter_size=3, padding=1, groups=4)
        h = layers.elementwise_add(x, h)
        pooled = layers.pool2d(h, pool_size=3, pool_padding=1)
        h = layers.conv2d(layers.concat([h, pooled], axis=1), num_filters=8, filter_size=1)
        x = layers.dropout(layers.relu(h), dropout_prob=0.1)
    guess = layers.fc(layers.pool2d(x, pool_type="avg", global_pooling=True), size=10, act="softmax")
    return layers.mean(layers.cross_entropy(guess, label))


def by_static() -> tuple[float, float]:
    """Measure seconds in `fluid.static`: until the program has all layers, and until the first training step ends."""
    jax.clear_caches()
    main, startup = static.Program(), static.Program()
    with static.scope_guard(static.Scope()), static.program_guard(main, startup), static.unique_name.guard():
        start = time.perf_counter()
        loss = net(static, BLOCKS)
        written = time.perf_counter() - start
        static.optimizer.Momentum(learning_rate=0.01, momentum=0.9).minimize(loss)
        executor = static.Executor()
        executor.run(startup)
        executor.run(main, feed=FEED, fetch_list=[loss])
        return written, time.perf_counter() - start


def by_function() -> tuple[float, float]:
    """Measure a program function: the seconds until its Session is created, and until the first step ends."""

    def program() -> Any:
        loss = net(fluid, BLOCKS)
        fluid.optimizer.Momentum(learning_rate=0.01, momentum=0.9).minimize(loss)
        return loss

    jax.clear_caches()
    start = time.perf_counter()
    with fluid.Session(program) as session:
        opened = time.perf_counter() - start
        float(session.run(program, FEED)[0])
        return opened, time.perf_counter() - start


def run(rounds: int) -> list[Row]:
    fluid.set_compilation_cache(None)
    found = interleave({"static": by_static, "function": by_function}, max(1, rounds // 7))

    def row(what: str, unit: str, index: int, scale: float) -> Row:
        numbers = {name: [scale * pair[index] for pair in pairs] for name, pairs in found.items()}
        numbers = {"fluid": numbers["static"], "hand": numbers["function"]}
        return Row(f"{what}, {LAYERS} layers", unit, numbers, higher_is_better=False)

    return [
        row("one layer: written down in fluid.static / in a Session of a function", "ms", 0, 1000 / LAYERS),
        row("first step: of fluid.static / of a function", "s", 1, 1),
    ]
