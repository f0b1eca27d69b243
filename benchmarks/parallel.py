"""The cost of `parallel=` on one device, and its speed on all devices, compared with a hand-written step.

`XLA_FLAGS=--xla_force_host_platform_device_count=8` splits a CPU into eight devices, which share its cores. The ratio
then compares the overhead of the steps, not the speedup by several devices.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from timing import Row, interleave, rate

import fluid

STEPS = 200
BATCH = 512
SIZES = (64, 256, 256, 10)
ROWS = 1 << 20
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(BATCH, SIZES[0])).astype("float32")
LABELS = RANDOM.integers(0, SIZES[-1], size=(BATCH, 1))
IDS = RANDOM.integers(0, ROWS, size=(BATCH, 4))


def perceptron() -> Any:
    hidden = fluid.layers.data("x", shape=[SIZES[0]])
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    for size in SIZES[1:-1]:
        hidden = fluid.layers.fc(hidden, size, act="relu")
    loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(fluid.layers.fc(hidden, SIZES[-1]), label))
    fluid.optimizer.SGD(0.01).minimize(loss)
    return loss


def table() -> Any:
    ids = fluid.layers.data("ids", shape=[4], dtype="int64")
    rows = fluid.layers.embedding(fluid.layers.unsqueeze(ids, axes=[2]), [ROWS, 32], is_sparse=True)
    loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, 1)))
    fluid.optimizer.Adagrad(0.01).minimize(loss)
    return loss


def by_fluid(program: Callable[[], Any], feed: dict[str, Any], **settings: Any) -> Callable[[], float]:
    """Return a function that measures the steps per second of a program in a `fluid.Session` with `settings`."""
    session = fluid.Session(program, **settings)
    loss = session.step(feed)[0]

    def work() -> None:
        nonlocal loss
        for _ in range(STEPS):
            loss = session.step(feed)[0]
        loss.block_until_ready()

    return lambda: rate(STEPS, work)


def by_hand() -> Callable[[], float]:
    """Return a function that measures the steps per second of a hand-written perceptron on all devices (shard_map)."""
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    whole = PartitionSpec()
    split = PartitionSpec("data")
    pairs = zip(SIZES[:-1], SIZES[1:], strict=True)
    start = [(RANDOM.normal(size=(m, n)).astype("float32") / m**0.5, np.zeros(n, "float32")) for m, n in pairs]
    parameters = jax.device_put(start, NamedSharding(mesh, whole))

    def loss_of(parameters: Any, x: Any, labels: Any) -> Any:
        *hidden, (weight, bias) = parameters
        for w, b in hidden:
            x = jax.nn.relu(x @ w + b)
        logits = jax.nn.log_softmax(x @ weight + bias)
        return -jnp.take_along_axis(logits, labels, axis=1).mean()

    def step(parameters: Any, x: Any, labels: Any) -> Any:
        found = jax.value_and_grad(loss_of)(parameters, x, labels)
        loss, gradients = jax.lax.pmean(found, "data")
        return jax.tree.map(lambda p, g: p - 0.01 * g, parameters, gradients), loss

    mapped = jax.shard_map(step, mesh=mesh, in_specs=(whole, split, split), out_specs=(whole, whole), check_vma=False)
    compiled = jax.jit(mapped, donate_argnums=0)

    def work() -> None:
        nonlocal parameters
        for number in range(STEPS):
            feed = jax.device_put((X.copy(), LABELS.copy()), NamedSharding(mesh, split))
            parameters, loss = compiled(parameters, *feed)
            if number % 5 == 4:  # devices that share few cores may hang if many steps wait for their turn
                loss.block_until_ready()

    return lambda: rate(STEPS, work)


def run(rounds: int) -> list[Row]:
    count = jax.device_count()
    feed = {"x": X, "label": LABELS}
    one = [f"{jax.devices()[0].platform}:0"]
    compared = {
        "perceptron, parallel=True on one device / without": (
            by_fluid(perceptron, feed, place=one, parallel=True),
            by_fluid(perceptron, feed, place=one),
        ),
        "perceptron, a mesh of one device / one device": (
            by_fluid(perceptron, feed, place=one, parallel=fluid.Mesh(data=1)),
            by_fluid(perceptron, feed, place=one),
        ),
        f"perceptron, parallel=True on {count} devices / shard_map by hand": (
            by_fluid(perceptron, feed, parallel=True),
            by_hand(),
        ),
        f"table of {ROWS:,} rows, divided among {count} devices / on one": (
            by_fluid(table, {"ids": IDS}, parallel="fsdp"),
            by_fluid(table, {"ids": IDS}, place=one),
        ),
    }
    rows = []
    for what, (first, second) in compared.items():
        found = interleave({"fluid": first, "hand": second}, rounds)
        rows.append(Row(what, "steps/s", found, higher_is_better=True))
    return rows
