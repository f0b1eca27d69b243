"""Training the same nets in Keras 3 on JAX, Flax NNX and PyTorch, those of them that are installed.

Images are `[batch, height, width, channel]` for those libraries that prefer it, and `[batch, channel, height, width]`
for fluid and PyTorch.
"""

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import bigemb
import models
import numpy as np
import optax
import resnet32
from timing import Row, interleave, rate
from training import ADAM, Setup, fluid_peer

Train = Callable[[int], Any]
NAMES = {"keras": "Keras 3 on JAX", "flax": "Flax NNX", "torch": "PyTorch"}


def keras_peer(net: str, x: np.ndarray, labels: np.ndarray, setup: Setup) -> Train | None:
    import by_keras
    from keras import optimizers

    makers: dict[str, Callable[[], Any]] = {
        "mlp": by_keras.mlp,
        "lenet": by_keras.lenet,
        "resnet32": lambda: by_keras.resnet(models.RESNET_BLOCKS),
    }
    if net not in makers:
        return None
    rule = optimizers.SGD(0.01, momentum=0.9) if net == "resnet32" else optimizers.Adam(1e-3)
    return by_keras.trained(makers[net](), rule, channels_last(x), labels, setup.batch, setup.read_every)


def flax_peer(net: str, x: np.ndarray, labels: np.ndarray, setup: Setup) -> Train | None:
    import by_nnx
    from flax import nnx

    makers: dict[str, Callable[[Any], Any]] = {
        "mlp": by_nnx.Mlp,
        "lenet": by_nnx.Lenet,
        "resnet32": functools.partial(by_nnx.Resnet, models.RESNET_BLOCKS),
    }
    if net not in makers:
        return None
    rule = optax.sgd(0.01, momentum=0.9) if net == "resnet32" else optax.adam(1e-3)
    return by_nnx.trained(makers[net](nnx.Rngs(0)), rule, channels_last(x), labels, setup.batch, setup.read_every)


def torch_peer(net: str, x: np.ndarray, labels: np.ndarray, setup: Setup) -> Train | None:
    import by_torch
    import torch

    makers: dict[str, Callable[[], Any]] = {
        "mlp": by_torch.mlp,
        "lenet": by_torch.lenet,
        "resnet32": lambda: by_torch.resnet(models.RESNET_BLOCKS),
        "bigemb": lambda: by_torch.Lookups(bigemb.ROWS),
    }
    rules = {
        "resnet32": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        "bigemb": functools.partial(torch.optim.Adagrad, lr=0.01),
    }
    rule = rules.get(net, functools.partial(torch.optim.Adam, lr=1e-3))
    return by_torch.trained(makers[net](), rule, x, labels, setup.batch, setup.read_every)


PEERS = {"keras": keras_peer, "flax": flax_peer, "torch": torch_peer}


def channels_last(x: np.ndarray) -> np.ndarray:
    """Images as Keras and Flax have them."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if x.ndim == 4 else x


def compared(net: str, model: models.Model, steps: int, epochs: int, rounds: int, setup: Setup) -> list[Row]:
    """Steps per second of fluid and of each library that is installed and has this net, in turns."""
    x, labels = model.data(steps * setup.batch)
    found: dict[str, Train | None] = {"fluid": fluid_peer(model, x, labels, setup)[1]}
    for library, peer in PEERS.items():
        if importlib.util.find_spec(library):
            found[library] = peer(net, x, labels, setup)
    turns = {
        name: functools.partial(rate, steps * epochs, functools.partial(f, epochs)) for name, f in found.items() if f
    }
    numbers = interleave(turns, rounds)
    what = f"training, {net}, fluid / {{}}"
    return [
        Row(what.format(NAMES[name]), "steps/s", {"fluid": numbers["fluid"], "hand": numbers[name]}, True)
        for name in numbers
        if name != "fluid"
    ]


def run(rounds: int) -> list[Row]:
    few = -(-rounds // 3)
    return [
        *compared("mlp", models.MLP, 200, 5, rounds, ADAM),
        *compared("lenet", models.LENET, 30, 1, rounds, ADAM),
        *compared("resnet32", models.RESNET, 4, 1, few, resnet32.SETUP),
        *compared("bigemb", models.lookups(bigemb.ROWS), bigemb.STEPS, 5, few, bigemb.SETUP),
    ]
