"""Several forms of a layer on a CPU: the time of each form, compared with the first, which leaves the work to XLA.

    python benchmarks/kernels.py [LSTM pooling ...] [--rounds 9]

Every row is a jitted function with its gradient. The variants run alternately. The figure is the least CPU time of a
call, because other work on the machine disturbs the CPU time less than the elapsed time.
"""

import argparse
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fluid
from fluid.layers.kernels import convolution
from fluid.layers.kernels.convolution import Geometry, computed_once

Variants = dict[str, Callable[..., Any]]
CALLS = 3


def random(*shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(size=shape), "float32")


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes `function` and its gradients, for output gradients of ones."""

    def call(*arguments: Any) -> Any:
        value, pull = jax.vjp(function, *arguments)
        return value, pull(jax.tree.map(jnp.ones_like, value))

    return call


def plain(x: Any, filters: Any, stride: int = 1, padding: int = 0) -> Any:
    """Compute XLA's convolution of channels-last images with filters `[filters, channels, kh, kw]`, as in fluid."""
    pads = [(padding, padding)] * 2
    return jax.lax.conv_general_dilated(x, filters, [stride] * 2, pads, dimension_numbers=("NHWC", "OIHW", "NHWC"))


def first(x: Any, filters: Any, stride: int = 1, padding: int = 0) -> Any:
    """Transpose channels-last images to channels first, compute XLA's convolution, and transpose the result back."""
    found = jax.lax.conv_general_dilated(x.transpose(0, 3, 1, 2), filters, [stride] * 2, [(padding, padding)] * 2)
    return found.transpose(0, 2, 3, 1)


def ours(x: Any, filters: Any, stride: int = 1, padding: int = 0) -> Any:
    """Compute the convolution that fluid uses in training, for channels-last images."""
    geometry = Geometry((stride, stride), [(padding, padding)] * 2, (1, 1), (1, 1), "NHWC")
    return convolution.convolution(x, filters, geometry, 1, training=True)


def patches(x: Any, filters: Any, padding: int = 0) -> Any:
    """Compute a convolution as one matrix product of the filters with the concatenated pixels of each window."""
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    count, channels, rows, columns = filters.shape
    high, wide = x.shape[1] - rows + 1, x.shape[2] - columns + 1
    cells = [x[:, i : i + high, j : j + wide] for i in range(rows) for j in range(columns)]
    flat = jnp.concatenate(cells, axis=-1).reshape(-1, rows * columns * channels)
    return (flat @ filters.transpose(2, 3, 1, 0).reshape(-1, count)).reshape(len(x), high, wide, count)


def convolutions() -> dict[str, tuple[Variants, tuple[Any, ...]]]:
    cases: dict[str, tuple[Variants, tuple[Any, ...]]] = {}
    x = random(64, 12, 12, 20)
    variants: Variants = {"XLA": plain, "channels first": first, "product of patches": patches, "fluid": ours}
    cases["convolution 5 x 5, 12 x 12 x 20 to 50, batch 64"] = (variants, (x, random(50, 20, 5, 5)))
    padded = {name: functools.partial(function, padding=1) for name, function in variants.items()}
    arguments = (random(32, 32, 32, 16), random(16, 16, 3, 3))
    cases["convolution 3 x 3 with padding, 32 x 32 x 16 to 16, batch 32"] = (padded, arguments)
    for channels, size, stride in ((16, 32, 2), (256, 14, 1)):
        filters = 2 * channels if stride == 2 else channels // 4
        pair = {"XLA": functools.partial(plain, stride=stride), "fluid": functools.partial(ours, stride=stride)}
        what = f"convolution 1 x 1, {size} x {size} x {channels} to {filters}, stride {stride}, batch 32"
        cases[what] = (pair, (random(32, size, size, channels), random(filters, channels, 1, 1)))
    return cases


def grouped(form: Callable[..., Any], groups: int, stride: int, x: Any, filters: Any) -> Any:
    """Compute a grouped convolution of channels-last images by the implementation `form`; padding is half a window."""
    pad = filters.shape[2] // 2
    geometry = Geometry([stride] * 2, [(pad, pad)] * 2, (1, 1), (1, 1), "NHWC")
    return form(x, filters, geometry, groups)


def dense(groups: int, stride: int, x: Any, filters: Any) -> Any:
    """Compute an ungrouped convolution of equally many channels, to compare its time with a grouped convolution."""
    repeated = jnp.tile(filters, (1, groups, 1, 1))
    return grouped(convolution.plain_convolution, 1, stride, x, repeated)


def grouped_convolutions() -> dict[str, tuple[Variants, tuple[Any, ...]]]:
    cases: dict[str, tuple[Variants, tuple[Any, ...]]] = {}
    for channels, size, window, groups, stride in (
        (128, 14, 3, 4, 1),
        (128, 14, 3, 32, 1),
        (256, 14, 3, 32, 1),
        (128, 28, 3, 32, 2),
        (240, 28, 1, 3, 1),
        (128, 14, 3, 128, 1),
        (64, 56, 3, 64, 1),
        (128, 14, 5, 128, 1),
    ):
        forms = {"XLA": convolution.plain_convolution, "fluid": convolution.grouped_convolution}
        if groups == channels:
            forms["blocks of channels"] = convolution.blocks_of_channels
        filters = random(channels, channels // groups, window, window)
        variants = {name: functools.partial(grouped, form, groups, stride) for name, form in forms.items()}
        variants["dense"] = functools.partial(dense, groups, stride)
        shape = f"{size} x {size} x {channels}, stride {stride}, batch 8"
        what = f"grouped convolution {window} x {window}, {groups} groups, {shape}"
        cases[what] = (variants, (random(8, size, size, channels), filters))
    return cases


def residual(once: bool, blocks: int, convolution: Callable[..., Any], x: Any, filters: Any) -> Any:
    """Compute residual blocks of two convolutions, to measure the function `computed_once`.

    With `once`, this function is applied to the input of each convolution, so that XLA computes the input only once.
    """

    def normalised(y: Any) -> Any:
        mean = y.mean((0, 1, 2))
        return (y - mean) * jax.lax.rsqrt(jnp.square(y - mean).mean((0, 1, 2)) + 1e-5)

    kept = computed_once if once else lambda y: y
    for _ in range(blocks):
        hidden = jax.nn.relu(normalised(convolution(kept(x), filters, padding=1)))
        x = jax.nn.relu(normalised(convolution(kept(hidden), filters, padding=1)) + x)
    return x


def pooled_by_window(x: Any) -> Any:
    return jax.lax.reduce_window(x, -np.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def pooled_by_reshape(x: Any) -> Any:
    batch, high, wide, channels = x.shape
    return x.reshape(batch, high // 2, 2, wide // 2, 2, channels).max((2, 4))


def in_program(layer: Callable[[], Any], names: tuple[str, ...]) -> Callable[..., Any]:
    """Return a function of the feed `x` and the parameters `names`, which computes a layer in train mode."""
    program = fluid.Program(layer)

    def call(x: Any, *arrays: Any) -> Any:
        return program.apply(dict(zip(names, arrays, strict=True)), {"x": x}, key=None, mode="train").outputs[0]

    return call


def pooled_by_fluid(shape: tuple[int, ...]) -> Callable[..., Any]:
    return in_program(lambda: fluid.layers.pool2d(fluid.layers.data("x", shape), 2, "max", 2, data_format="NHWC"), ())


def lstm_by_jax(unroll: int, masked: bool, x: Any, weight: Any) -> Any:
    """Compute the hidden states of an LSTM by `jax.lax.scan`, whose gradient comes from JAX."""

    def step(state: Any, now: Any) -> Any:
        number, x = now
        h, c = state
        g, i, f, o = jnp.split(x + h @ weight, 4, axis=1)
        new_c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        new_h = jax.nn.sigmoid(o) * jnp.tanh(new_c)
        if masked:
            real = (number < jnp.full(len(x), 100))[:, None]
            new_h, new_c = jnp.where(real, new_h, h), jnp.where(real, new_c, c)
        return (new_h, new_c), new_h

    zeros = jnp.zeros((x.shape[0], weight.shape[0]))
    steps = (jnp.arange(x.shape[1]), jnp.swapaxes(x, 0, 1))
    return jnp.swapaxes(jax.lax.scan(step, (zeros, zeros), steps, unroll=unroll)[1], 0, 1)


def lstm_by_fluid(x: Any, weight: Any) -> Any:
    def layer() -> Any:
        rows = fluid.layers.data("x", [x.shape[2]], lod_level=1)
        return fluid.layers.dynamic_lstm(rows, x.shape[2], use_peepholes=False, bias_attr=False)[0]

    rows = fluid.SequenceBatch(x, jnp.full(x.shape[0], x.shape[1], "int32"))
    return in_program(layer, ("lstm_0.w_0",))(rows, weight).data


def rows_projected(ids: Any, table: Any, weight: Any) -> Any:
    """Project rows of a table: look up the rows, then multiply the rows by `weight`."""
    return (table[ids].reshape(-1, table.shape[1]) @ weight).reshape(*ids.shape, -1)


def table_projected(ids: Any, table: Any, weight: Any) -> Any:
    """Project rows of a table: multiply the whole table by `weight`, then look up the rows."""
    return (table @ weight)[ids]


def projected_by_fluid(rows: int, width: int, size: int) -> Callable[..., Any]:
    def layer() -> Any:
        words = fluid.layers.embedding(fluid.layers.data("x", [100, 1], "int64"), [rows, width])
        return fluid.layers.fc(words, size, num_flatten_dims=2, bias_attr=False)

    found = in_program(layer, ("embedding_0.w_0", "fc_0.w_0"))
    return lambda ids, table, weight: found(ids[..., None], table, weight)


def lookups() -> dict[str, tuple[Variants, tuple[Any, ...]]]:
    cases: dict[str, tuple[Variants, tuple[Any, ...]]] = {}
    for rows, width, size in ((1000, 128, 512), (3000, 128, 512), (6000, 128, 512), (3000, 16, 64)):
        variants: Variants = {
            "rows, then product": rows_projected,
            "product, then rows": table_projected,
            "fluid": projected_by_fluid(rows, width, size),
        }
        ids = jnp.asarray(np.random.default_rng(0).integers(0, rows, (64, 100), "int32"))
        what = f"6400 rows of {rows} x {width}, times {width} x {size}"
        cases[what] = (variants, (ids, random(rows, width), random(width, size)))
    return cases


def every_case() -> dict[str, tuple[Variants, tuple[Any, ...]]]:
    cases = convolutions() | grouped_convolutions()
    blocks: Variants = {
        "XLA": functools.partial(residual, False, 5, plain),
        "channels first": functools.partial(residual, False, 5, first),
        "the input computed once": functools.partial(residual, True, 5, plain),
    }
    cases["five residual blocks, 32 x 32 x 16, batch 32"] = (blocks, (random(32, 32, 32, 16), random(16, 16, 3, 3)))
    image = random(64, 24, 24, 20)
    pools = {"XLA": pooled_by_window, "reshape": pooled_by_reshape, "fluid": pooled_by_fluid(image.shape[1:])}
    cases["pooling 2 x 2, 24 x 24 x 20, batch 64"] = (pools, (image,))
    loops: Variants = {
        "scan": functools.partial(lstm_by_jax, 1, False),
        "scan, masked": functools.partial(lstm_by_jax, 1, True),
        "scan, four steps unrolled": functools.partial(lstm_by_jax, 4, False),
        "fluid": lstm_by_fluid,
    }
    cases |= lookups()
    cases["LSTM of 128, 100 steps, batch 64"] = (loops, (random(64, 100, 512), random(128, 512) / 10))
    return cases


def least(variants: Variants, arguments: tuple[Any, ...], rounds: int) -> dict[str, float]:
    """Return the least CPU milliseconds of a call, for each variant; the first round compiles, and does not count."""
    calls = {name: jax.jit(with_gradient(function)) for name, function in variants.items()}
    found = dict.fromkeys(calls, np.inf)
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.process_time()
            for _ in range(CALLS):
                made = call(*arguments)
            jax.block_until_ready(made)
            if number:
                found[name] = min(found[name], (time.process_time() - start) / CALLS * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of the rows to measure; all by default")
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    print("| what | variant | CPU ms | times as fast |\n|---|---|---|---|")
    for what, (variants, arguments) in every_case().items():
        if not what.startswith(tuple(given.names) or ""):
            continue
        found = least(variants, arguments, given.rounds)
        for name, milliseconds in found.items():
            ratio = next(iter(found.values())) / milliseconds
            print(f"| {what} | {name} | {milliseconds:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
