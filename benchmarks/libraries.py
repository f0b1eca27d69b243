"""Training and inference in fluid, compared with Keras 3 on JAX, Flax NNX and PyTorch, if they are installed.

Images are `[batch, height, width, channel]` for the libraries that prefer channels last, and
`[batch, channel, height, width]` for fluid and PyTorch.
"""

import functools
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import bigemb
import inference
import lstm
import models
import numpy as np
import optax
import resnet32
from timing import Row, interleave, rate
from training import ADAM, Setup, fluid_peer

Train = Callable[[int], Any]
CALLS, BATCHES, ROWS = 1000, 40, 256  # measured inference: calls with one row, calls with a batch, rows of a batch


class Library(NamedTuple):
    """A library that fluid is compared with.

    Attributes:
      name: the name of the library.
      package: the package that must be installed.
      peer: the module with the nets, the training loop and the inference of the library.
      model: a function that returns a new net by its name, or None if the comparison leaves out this net.
      rule: a function that returns the optimizer of a net by the name of the net.
      channels_last: whether images are `[batch, height, width, channel]`.
    """

    name: str
    package: str
    peer: str
    model: Callable[[str], Any]
    rule: Callable[[str], Any]
    channels_last: bool

    def module(self) -> Any:
        return importlib.import_module(self.peer)

    def images(self, x: np.ndarray) -> np.ndarray:
        """Convert images from fluid's layout to the layout of the other library; return other inputs unchanged."""
        return np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if self.channels_last and x.ndim == 4 else x

    def trained(self, net: str, inputs: tuple[np.ndarray, ...], labels: np.ndarray, setup: Setup) -> Train | None:
        """Return a function that trains `net` in the other library for n epochs, or None if `net` is not compared."""
        model = self.model(net)
        if model is None:
            return None
        fed = tuple(self.images(x) for x in inputs)
        return self.module().trained(model, self.rule(net), fed, labels, setup.batch, setup.read_every)


def keras_model(net: str) -> Any:
    import by_keras

    makers: dict[str, Callable[[], Any]] = {
        "mlp": by_keras.mlp,
        "lenet": by_keras.lenet,
        "resnet32": lambda: by_keras.resnet(models.RESNET_BLOCKS),
        "lstm": lambda: by_keras.lstm(lstm.WORDS, lstm.WIDTH, lstm.LONGEST),
    }
    return makers[net]() if net in makers else None


def keras_rule(net: str) -> Any:
    from keras import optimizers

    return optimizers.SGD(0.01, momentum=0.9) if net == "resnet32" else optimizers.Adam(1e-3)


def flax_model(net: str) -> Any:
    import by_nnx
    from flax import nnx

    makers: dict[str, Callable[[Any], Any]] = {
        "mlp": by_nnx.Mlp,
        "lenet": by_nnx.Lenet,
        "resnet32": functools.partial(by_nnx.Resnet, models.RESNET_BLOCKS),
        "lstm": functools.partial(by_nnx.Lstm, lstm.WORDS, lstm.WIDTH),
    }
    return makers[net](nnx.Rngs(0)) if net in makers else None


def flax_rule(net: str) -> optax.GradientTransformation:
    return optax.sgd(0.01, momentum=0.9) if net == "resnet32" else optax.adam(1e-3)


def torch_model(net: str) -> Any:
    import by_torch

    makers: dict[str, Callable[[], Any]] = {
        "mlp": by_torch.mlp,
        "lenet": by_torch.lenet,
        "resnet32": lambda: by_torch.resnet(models.RESNET_BLOCKS),
        "lstm": lambda: by_torch.Lstm(lstm.WORDS, lstm.WIDTH),
        "bigemb": lambda: by_torch.Lookups(bigemb.ROWS),
    }
    return makers[net]()


def torch_rule(net: str) -> Callable[[Any], Any]:
    import torch

    rules = {
        "resnet32": functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9),
        "bigemb": functools.partial(torch.optim.Adagrad, lr=0.01),
    }
    return rules.get(net, functools.partial(torch.optim.Adam, lr=1e-3))


LIBRARIES = (
    Library("Keras 3 on JAX", "keras", "by_keras", keras_model, keras_rule, True),
    Library("Flax NNX", "flax", "by_nnx", flax_model, flax_rule, True),
    Library("PyTorch", "torch", "by_torch", torch_model, torch_rule, False),
)


def installed() -> list[Library]:
    """Return the installed libraries."""
    return [library for library in LIBRARIES if importlib.util.find_spec(library.package)]


def rows_of(what: str, unit: str, turns: Mapping[str, Callable[[], float]], rounds: int, higher: bool) -> list[Row]:
    """Measure the functions `turns` alternately, and return rows that compare "fluid" with each library."""
    numbers = interleave(turns, rounds)
    return [
        Row(f"{what}, fluid / {name}", unit, {"fluid": numbers["fluid"], "hand": numbers[name]}, higher)
        for name in numbers
        if name != "fluid"
    ]


def compared(
    net: str,
    by_fluid: Train,
    inputs: tuple[np.ndarray, ...],
    labels: np.ndarray,
    epochs: int,
    rounds: int,
    setup: Setup,
) -> list[Row]:
    """Measure the steps per second of fluid and of each installed library that has this net, alternately."""
    found = {"fluid": by_fluid, **{each.name: each.trained(net, inputs, labels, setup) for each in installed()}}
    steps = epochs * (len(labels) // setup.batch)
    turns = {name: functools.partial(rate, steps, functools.partial(f, epochs)) for name, f in found.items() if f}
    return rows_of(f"training, {net}", "steps/s", turns, rounds, higher=True)


def compared_model(net: str, model: models.Model, steps: int, epochs: int, rounds: int, setup: Setup) -> list[Row]:
    """Measure the steps per second of fluid and of each installed library, for a model whose input is one array."""
    x, labels = model.data(steps * setup.batch)
    return compared(net, fluid_peer(model, x, labels, setup)[1], (x,), labels, epochs, rounds, setup)


def compared_lstm(rounds: int) -> list[Row]:
    """Measure the steps per second of an LSTM on sentences that are all padded to the longest sentence."""
    _, an_epoch = lstm.fluid_peer()

    def by_fluid(epochs: int) -> None:
        for _ in range(epochs):
            an_epoch()

    words, lengths, labels = (np.concatenate(column) for column in zip(*lstm.data(), strict=True))
    setup = ADAM._replace(batch=lstm.BATCH, read_every=lstm.BATCHES)
    return compared("lstm", by_fluid, (words, lengths), labels, 1, rounds, setup)


def compared_answers(rounds: int) -> list[Row]:
    """Measure inference of LeNet from NumPy to NumPy: microseconds for one row, and rows per second in batches."""
    answers = {"fluid": inference.make_peers(models.LENET)["fluid"]}
    one, many = (models.LENET.data(count)[0] for count in (1, ROWS))
    fed = {"fluid": (one, many)}
    for library in installed():
        answers[library.name] = library.module().answering(library.model("lenet"))
        fed[library.name] = (library.images(one), library.images(many))

    def latency(name: str) -> float:
        return inference.latencies(answers[name], fed[name][0], CALLS)[0]

    def throughput(name: str) -> float:
        return rate(BATCHES * ROWS, lambda: inference.repeat(answers[name], fed[name][1], BATCHES))

    single = {name: functools.partial(latency, name) for name in answers}
    batches = {name: functools.partial(throughput, name) for name in answers}
    return [
        *rows_of("inference, LeNet, batch 1, p50", "us", single, rounds, higher=False),
        *rows_of(f"inference, LeNet, batch {ROWS}", "examples/s", batches, rounds, higher=True),
    ]


def run(rounds: int) -> list[Row]:
    few = -(-rounds // 3)
    return [
        *compared_model("mlp", models.MLP, 200, 5, rounds, ADAM),
        *compared_model("lenet", models.LENET, 30, 1, rounds, ADAM),
        *compared_model("resnet32", models.RESNET, 4, 1, few, resnet32.SETUP),
        *compared_lstm(rounds),
        *compared_model("bigemb", models.lookups(bigemb.ROWS), bigemb.STEPS, 5, few, bigemb.SETUP),
        *compared_answers(rounds),
    ]
