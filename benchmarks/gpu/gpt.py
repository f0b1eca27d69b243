"""Training a GPT in bfloat16: tokens per second, and the fraction of the device's measured rate of matrix products.

The backward pass computes each block again. Attention is causal, and the net has no position embeddings. The optimizer
is Adam, with parameters and optimizer state in float32. The peers are hand-written JAX, with a scan over the blocks,
and PyTorch.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from timing import Row, interleave, rate

import fluid

Arrays = dict[str, Any]
Steps = Callable[[int], list[float]]


class Size(NamedTuple):
    """The sizes of the net, and of the text in one step."""

    layers: int = 16
    width: int = 2048
    heads: int = 16
    words: int = 32_000
    length: int = 1024
    batch: int = 16

    @property
    def parameters(self) -> int:
        """Return the number of weights in the matrix products of the GPT: in all blocks and in the last layer."""
        return self.layers * 12 * self.width**2 + self.width * self.words

    @property
    def operations(self) -> int:
        """Return the floating point operations of the matrix products in one step, without recomputed products."""
        attention = self.layers * 2 * self.length * self.width
        return 6 * self.batch * self.length * (self.parameters + attention)


SMALL = Size(layers=2, width=32, heads=2, words=50, length=16, batch=2)
RATE = 3e-4


def program(size: Size) -> Any:
    """Build the GPT in fluid, and return its loss."""
    norm = functools.partial(fluid.layers.layer_norm, begin_norm_axis=2)
    dense = functools.partial(fluid.layers.fc, num_flatten_dims=2, bias_attr=False)

    def block(x: Any) -> Any:
        x = x + fluid.layers.multi_head_attention(norm(x), num_heads=size.heads, causal=True, bias_attr=False)
        return x + dense(dense(norm(x), size=4 * size.width, act="gelu"), size=size.width)

    text = fluid.layers.data("text", shape=[size.length + 1, 1], dtype="int64")
    x = fluid.layers.embedding(text[:, :-1], size=[size.words, size.width])
    x = fluid.layers.repeat(block, size.layers, x, remat=True)
    scores = dense(norm(x), size=size.words)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, text[:, 1:]))


def layer_norm(x: Any, scale: Any, shift: Any) -> Any:
    """Normalise the last dimension of `x` in float32, and return the result in the dtype of `x`."""
    wide = x.astype("float32")
    centred = wide - wide.mean(-1, keepdims=True)
    return (centred * jax.lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * scale + shift).astype(x.dtype)


def loss_by_hand(size: Size, dtype: str, parameters: Arrays, text: Any) -> Any:
    """Compute the loss of the GPT in hand-written JAX.

    Args:
      size: the size of the net.
      dtype: the dtype of the computation.
      parameters: fluid's parameters by name; parameters of blocks are stacked in dimension 0.
      text: the ids of words, `[batch, length + 1]`.
    """
    heads = (size.heads, size.width // size.heads)
    blocks = {name.removeprefix("repeat_0/"): p for name, p in parameters.items() if name.startswith("repeat_0/")}
    rest = {name: p for name, p in parameters.items() if not name.startswith("repeat_0/")}
    norms = sorted({name.partition(".")[0] for name in blocks if "layer_norm" in name})
    attention = sorted(name for name in blocks if "multi_head_attention" in name)
    dense = sorted(name for name in blocks if name.startswith("fc"))
    last = {kind: next(n for n in rest if n.startswith(kind)) for kind in ("embedding", "fc")}
    last_norm = next(n.partition(".")[0] for n in rest if n.startswith("layer_norm"))

    @jax.checkpoint
    def block(x: Any, p: Arrays) -> tuple[Any, None]:
        def product(x: Any, name: str) -> Any:
            return x @ p[name].astype(dtype)

        def normed(x: Any, name: str) -> Any:
            return layer_norm(x, p[f"{name}.w_0"], p[f"{name}.b_0"])

        seen = normed(x, norms[0])
        query, key, value = (product(seen, name).reshape(*x.shape[:2], *heads) for name in attention[:3])
        mixed = jax.nn.dot_product_attention(query, key, value, is_causal=True)
        x = x + product(mixed.reshape(x.shape), attention[3])
        return x + product(jax.nn.gelu(product(normed(x, norms[1]), dense[0]), approximate=False), dense[1]), None

    x = rest[last["embedding"]].astype(dtype)[text[:, :-1]]
    x, _ = jax.lax.scan(block, x, blocks)
    x = layer_norm(x, rest[f"{last_norm}.w_0"], rest[f"{last_norm}.b_0"])
    scores = (x @ rest[last["fc"]].astype(dtype)).astype("float32")
    return optax.softmax_cross_entropy_with_integer_labels(scores, text[:, 1:]).mean()


def steps_by_hand(size: Size, dtype: str, parameters: Arrays, text: np.ndarray) -> Steps:
    """Return a function that makes n training steps on `text` in hand-written JAX, and returns their losses."""
    rule = optax.adam(RATE)

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(parameters: Arrays, slots: Any, text: Any) -> tuple[Arrays, Any, Any]:
        loss, gradients = jax.value_and_grad(functools.partial(loss_by_hand, size, dtype))(parameters, text)
        updates, slots = rule.update(gradients, slots, parameters)
        return optax.apply_updates(parameters, updates), slots, loss

    parameters = {name: jnp.array(value) for name, value in parameters.items()}
    state = [parameters, rule.init(parameters)]

    def run(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            *state[:], loss = step(*state, text)
            losses.append(loss)
        return [float(loss) for loss in losses]

    return run


def steps_by_fluid(size: Size, precision: str | None, text: np.ndarray) -> tuple[fluid.Trainer, Steps]:
    """Return a Trainer, and a function that makes n training steps with this Trainer, and returns their losses."""
    trainer = fluid.Trainer(functools.partial(program, size), fluid.optimizer.Adam(RATE), precision=precision)

    def run(steps: int) -> list[float]:
        losses: list[Any] = []

        def keep(event: Any) -> None:
            if isinstance(event, fluid.EndStepEvent):
                losses.append(event.metrics[0])

        trainer.train(lambda: [{"text": text[..., None]}] * steps, num_epochs=1, event_handler=keep)
        return [float(loss) for loss in losses]

    return trainer, run


def steps_by_torch(size: Size, text: np.ndarray) -> Steps:
    """Return a function that makes n training steps in PyTorch, and returns their losses."""
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint

    device = "cuda" if torch.cuda.is_available() else "cpu"

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(nn.LayerNorm(size.width) for _ in range(2))
            self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)
            self.out = nn.Linear(size.width, size.width, bias=False)
            self.dense = nn.Sequential(
                nn.Linear(size.width, 4 * size.width, bias=False),
                nn.GELU(),
                nn.Linear(4 * size.width, size.width, bias=False),
            )

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
            query, key, value = (p.unflatten(-1, (size.heads, -1)).transpose(1, 2) for p in parts)
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            return x + self.dense(self.norms[1](x))

    table = nn.Embedding(size.words, size.width).to(device)
    blocks = nn.ModuleList(Block() for _ in range(size.layers)).to(device)
    last = nn.Sequential(nn.LayerNorm(size.width), nn.Linear(size.width, size.words, bias=False)).to(device)
    everything = [*table.parameters(), *blocks.parameters(), *last.parameters()]
    rule = torch.optim.Adam(everything, lr=RATE, fused=device == "cuda")

    words = torch.from_numpy(text.astype("int64")).to(device)

    def step() -> Any:
        with torch.autocast(device, torch.bfloat16):
            x = table(words[:, :-1])
            for block in blocks:
                x = checkpoint(block, x, use_reentrant=False)
            loss = functional.cross_entropy(last(x).flatten(0, 1).float(), words[:, 1:].flatten())
        rule.zero_grad()
        loss.backward()
        rule.step()
        return loss.detach()

    return lambda steps: [loss.item() for loss in [step() for _ in range(steps)]]


def texts(size: Size) -> np.ndarray:
    """Generate random ids of words, `[batch, length + 1]`."""
    return np.random.default_rng(0).integers(0, size.words, (size.batch, size.length + 1), dtype="int32")


def run(rounds: int, small: bool, peers: set[str], rate_of_products: float) -> list[Row]:
    """Measure tokens per second of fluid and each peer, and compare fluid's FLOP/s with matrix products (in FLOP/s)."""
    size = SMALL if small else Size()
    text = texts(size)
    trainer, by_fluid = steps_by_fluid(size, "bfloat16", text)
    turns = {"fluid": by_fluid, "JAX": steps_by_hand(size, "bfloat16", dict(trainer.params), text)}
    if "torch" in peers:
        turns["PyTorch"] = steps_by_torch(size, text)
    steps = 2 if small else 5
    found = interleave({n: functools.partial(rate, steps, lambda f=f: f(steps)) for n, f in turns.items()}, rounds)
    by_name = {name: [size.batch * size.length * number for number in numbers] for name, numbers in found.items()}
    what = f"GPT of {size.parameters / 1e6:.0f} M, fluid / {{}}"
    rows = [
        Row(what.format(name), "tokens/s", {"fluid": by_name["fluid"], "hand": numbers}, True)
        for name, numbers in by_name.items()
        if name != "fluid"
    ]
    reached = [size.operations * number for number in found["fluid"]]
    numbers = {"fluid": reached, "hand": [rate_of_products] * len(reached)}
    return [*rows, Row("GPT, operations of a step / products of large matrices", "FLOP/s", numbers, True)]
