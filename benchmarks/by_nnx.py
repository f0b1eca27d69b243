"""Models in Flax NNX: the compared nets, a training loop in the style of Flax's guide, and inference."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

Train = Callable[[int], list[float]]
Answer = Callable[[np.ndarray], np.ndarray]


class Mlp(nnx.Module):
    """A perceptron 64-200-200-10."""

    def __init__(self, rngs: nnx.Rngs):
        self.layers = nnx.List([nnx.Linear(a, b, rngs=rngs) for a, b in itertools.pairwise((64, 200, 200, 10))])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = nnx.relu(layer(x))
        return self.layers[-1](x)


class Lenet(nnx.Module):
    """LeNet for 28 x 28 x 1, with batch normalisation after each convolution."""

    def __init__(self, rngs: nnx.Rngs):
        sizes = ((1, 20), (20, 50))
        self.convs = nnx.List([nnx.Conv(a, b, (5, 5), padding="VALID", rngs=rngs) for a, b in sizes])
        self.norms = nnx.List([nnx.BatchNorm(b, momentum=0.9, rngs=rngs) for _, b in sizes])
        self.hidden = nnx.Linear(800, 500, rngs=rngs)
        self.last = nnx.Linear(500, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = nnx.max_pool(nnx.relu(norm(conv(x))), (2, 2), (2, 2))
        return self.last(nnx.relu(self.hidden(x.reshape(len(x), -1))))


class ConvNorm(nnx.Module):
    """A convolution without bias, followed by batch normalisation."""

    def __init__(self, channels: int, filters: int, size: int, stride: int, rngs: nnx.Rngs):
        padding = (size - 1) // 2
        self.conv = nnx.Conv(
            channels, filters, (size, size), stride, padding=[(padding, padding)] * 2, use_bias=False, rngs=rngs
        )
        self.norm = nnx.BatchNorm(filters, momentum=0.9, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.norm(self.conv(x))


class Residual(nnx.Module):
    """A residual block: two convolutions and a shortcut."""

    def __init__(self, channels: int, filters: int, stride: int, rngs: nnx.Rngs):
        self.first = ConvNorm(channels, filters, 3, stride, rngs)
        self.second = ConvNorm(filters, filters, 3, 1, rngs)
        self.shortcut = ConvNorm(channels, filters, 1, stride, rngs) if stride == 2 else None

    def __call__(self, x: Any) -> Any:
        return nnx.relu(self.second(nnx.relu(self.first(x))) + (self.shortcut(x) if self.shortcut else x))


class Resnet(nnx.Module):
    """A ResNet for 32 x 32 images; `blocks` has (filters, stride) of each residual block."""

    def __init__(self, blocks: list[tuple[int, int]], rngs: nnx.Rngs):
        self.first = ConvNorm(3, 16, 3, 1, rngs)
        pairs = itertools.pairwise([(16, 1), *blocks])
        self.blocks = nnx.List([Residual(before, filters, stride, rngs) for (before, _), (filters, stride) in pairs])
        self.last = nnx.Linear(64, 10, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        x = nnx.relu(self.first(x))
        for block in self.blocks:
            x = block(x)
        return self.last(x.mean((1, 2)))


class Lstm(nnx.Module):
    """A classifier: an embedding, an LSTM, the maximum over the words of a sentence, and two classes."""

    def __init__(self, vocabulary: int, width: int, rngs: nnx.Rngs):
        self.table = nnx.Embed(vocabulary, width, rngs=rngs)
        self.lstm = nnx.RNN(nnx.OptimizedLSTMCell(width, width, rngs=rngs), time_major=True)
        self.last = nnx.Linear(width, 2, rngs=rngs)

    def __call__(self, words: Any, lengths: Any) -> Any:
        hidden = self.lstm(self.table(words.T), seq_lengths=lengths)
        there = jnp.arange(len(hidden))[:, None] < lengths
        return self.last(jnp.max(hidden, axis=0, where=there[..., None], initial=-jnp.inf))


def trained(
    model: nnx.Module,
    optimizer: optax.GradientTransformation,
    inputs: tuple[np.ndarray, ...],
    labels: np.ndarray,
    batch: int,
    read_every: int,
) -> Train:
    """Return a function that trains for n epochs, and returns the loss of every `read_every`-th step of an epoch."""
    rule = nnx.Optimizer(model, optimizer, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, rule: Any, labels: Any, *inputs: Any) -> Any:
        def loss_function(model: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(model(*inputs), labels).mean()

        loss, gradients = nnx.value_and_grad(loss_function)(model)
        rule.update(model, gradients)
        return loss

    # `cached_partial` traverses the modules once instead of in every step, as Flax's guide on performance recommends.
    quick = nnx.cached_partial(step, model, rule)
    random = np.random.default_rng(0)

    def train(epochs: int) -> list[float]:
        losses = []
        loss = None
        for _ in range(epochs):
            order = random.permutation(len(labels))
            for number in range(len(labels) // batch):
                chosen = order[number * batch : (number + 1) * batch]
                loss = quick(labels[chosen], *(x[chosen] for x in inputs))
                if number % read_every == read_every - 1:
                    losses.append(float(loss))
        jax.block_until_ready(loss)
        return losses

    return train


def answering(model: nnx.Module) -> Answer:
    """Return a function that infers probabilities `[batch, classes]` from images `[batch, height, width, channel]`."""
    # Separate the model's arrays from its structure once, so that a call need not traverse all modules.
    graph, state = nnx.split(nnx.view(model, use_running_average=True))

    @jax.jit
    def predict(state: Any, x: Any) -> Any:
        return nnx.softmax(nnx.merge(graph, state)(x))

    return lambda x: np.asarray(predict(state, x))


def size_of(model: nnx.Module) -> int:
    """Return the number of trainable parameters of a model of Flax NNX."""
    return sum(value.size for value in jax.tree.leaves(nnx.state(model, nnx.Param)))
