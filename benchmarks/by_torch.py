"""Models in PyTorch: the compared nets, a training loop in the style of PyTorch's guide, and inference."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn

Train = Callable[[int], list[float]]
Answer = Callable[[np.ndarray], np.ndarray]


def mlp() -> nn.Module:
    """Return a perceptron 64-200-200-10."""
    return nn.Sequential(
        nn.Linear(64, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
    )  # all nets of this module return logits


def lenet() -> nn.Module:
    """Return LeNet for 1 x 28 x 28, with batch normalisation after each convolution."""
    return nn.Sequential(
        *(nn.Conv2d(1, 20, 5), nn.BatchNorm2d(20), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(20, 50, 5), nn.BatchNorm2d(50), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(800, 500), nn.ReLU(), nn.Linear(500, 10)),
    )


class Residual(nn.Module):
    """A residual block: two convolutions and a shortcut."""

    def __init__(self, channels: int, filters: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(conv_bn(channels, filters, 3, stride), nn.ReLU(), conv_bn(filters, filters, 3, 1))
        self.shortcut = conv_bn(channels, filters, 1, stride) if stride == 2 else nn.Identity()

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


def conv_bn(channels: int, filters: int, size: int, stride: int) -> nn.Module:
    """Return a convolution without bias, followed by batch normalisation."""
    conv = nn.Conv2d(channels, filters, size, stride, (size - 1) // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(filters))


def resnet(blocks: list[tuple[int, int]]) -> nn.Module:
    """Return a ResNet for 32 x 32 images; `blocks` has (filters, stride) of each residual block."""
    layers = [conv_bn(3, 16, 3, 1), nn.ReLU()]
    for (before, _), (filters, stride) in itertools.pairwise([(16, 1), *blocks]):
        layers.append(Residual(before, filters, stride))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def grouped(groups: int) -> nn.Module:
    """Return a net: three convolutions of 128 channels in `groups` groups, the mean over pixels, and 10 classes."""
    layers: list[nn.Module] = []
    for _ in range(3):
        layers += nn.Conv2d(128, 128, 3, padding=1, groups=groups), nn.ReLU()
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10))


class Lookups(nn.Module):
    """A net that reads four rows of a table with sparse gradients: then a layer of 256, and 10 classes."""

    def __init__(self, rows: int):
        super().__init__()
        self.table = nn.Embedding(rows, 32, sparse=True)
        self.rest = nn.Sequential(nn.Flatten(), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, ids: Any) -> Any:
        return self.rest(self.table(ids))


class Lstm(nn.Module):
    """A classifier: an embedding, an LSTM, the maximum over the words of a sentence, and two classes."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.table = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width)
        self.last = nn.Linear(width, 2)

    def forward(self, words: Any, lengths: Any) -> Any:
        hidden, _ = self.lstm(self.table(words.T))
        padding = torch.arange(len(hidden))[:, None] >= lengths
        return self.last(hidden.masked_fill(padding[..., None], -torch.inf).amax(0))


def trained(
    model: nn.Module,
    optimizer: Callable[[Any], torch.optim.Optimizer],
    inputs: tuple[np.ndarray, ...],
    labels: np.ndarray,
    batch: int,
    read_every: int,
) -> Train:
    """Return a function that trains for n epochs, and returns the loss of every `read_every`-th step of an epoch."""
    rule = optimizer(model.parameters())
    if inputs[0].ndim == 4:
        model.to(memory_format=torch.channels_last)
    columns, targets = [torch.from_numpy(x) for x in inputs], torch.from_numpy(labels.astype("int64"))
    random = np.random.default_rng(0)

    def train(epochs: int) -> list[float]:
        losses = []
        for _ in range(epochs):
            order = torch.from_numpy(random.permutation(len(labels)))
            for number in range(len(labels) // batch):
                chosen = order[number * batch : (number + 1) * batch]
                rule.zero_grad()
                loss = nn.functional.cross_entropy(model(*(laid_out(x[chosen]) for x in columns)), targets[chosen])
                loss.backward()
                rule.step()
                if number % read_every == read_every - 1:
                    losses.append(loss.item())
        return losses

    return train


def answering(model: nn.Module) -> Answer:
    """Return a function that infers probabilities `[batch, classes]` from images `[batch, channel, height, width]`."""
    model.to(memory_format=torch.channels_last).eval()

    def answer(x: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(laid_out(torch.from_numpy(x))).softmax(1).numpy()

    return answer


def laid_out(x: Any) -> Any:
    """Convert images to channels-last memory, as PyTorch's guide recommends on CPUs; return other inputs unchanged."""
    return x.to(memory_format=torch.channels_last) if x.ndim == 4 else x


def size_of(model: nn.Module) -> int:
    """Return the number of trainable parameters of the model."""
    return sum(parameter.numel() for parameter in model.parameters())
