"""Training ResNet-50 (He et al., 2015) in bfloat16 on generated images, channels last: images per second."""

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
Data = tuple[np.ndarray, np.ndarray]
Steps = Callable[[int], list[float]]


class Size(NamedTuple):
    """The sizes of images and minibatches, the number of blocks in each stage, and the number of classes."""

    pixels: int = 224
    batch: int = 128
    stages: tuple[int, ...] = (3, 4, 6, 3)
    classes: int = 1000


SMALL = Size(pixels=32, batch=2, stages=(1, 1), classes=10)


def blocks_of(size: Size) -> list[tuple[int, int, bool]]:
    """List (filters, stride, changes) for each block; `changes` says whether the shortcut has a convolution."""
    return [
        (64 * 2**stage, 2 if stage and not block else 1, not block)
        for stage, count in enumerate(size.stages)
        for block in range(count)
    ]


def program(size: Size) -> Any:
    """Return the loss of ResNet-50 in fluid."""

    def conv_bn(x: Any, filters: int, width: int, stride: int = 1, act: str | None = "relu") -> Any:
        padding = (width - 1) // 2
        x = fluid.layers.conv2d(x, filters, width, stride, padding, bias_attr=False, data_format="NHWC")
        return fluid.layers.batch_norm(x, act=act, data_layout="NHWC")

    x = conv_bn(fluid.layers.data("x", shape=[size.pixels, size.pixels, 3]), 64, 7, 2)
    x = fluid.layers.pool2d(x, 3, "max", pool_stride=2, pool_padding=1, data_format="NHWC")
    for filters, stride, changes in blocks_of(size):
        shortcut = conv_bn(x, 4 * filters, 1, stride, None) if changes else x
        x = conv_bn(conv_bn(conv_bn(x, filters, 1), filters, 3, stride), 4 * filters, 1, 1, None)
        x = fluid.layers.relu(x + shortcut)
    x = fluid.layers.pool2d(x, pool_type="avg", global_pooling=True, data_format="NHWC")
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    scores = fluid.layers.fc(x, size=size.classes)
    return fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, label))


def loss_by_hand(size: Size, dtype: str, parameters: Arrays, states: Arrays, x: Any, label: Any) -> tuple[Any, Arrays]:
    """Compute the loss and the new moving statistics of ResNet-50 in hand-written JAX.

    Args:
      size: the size of the net.
      dtype: the dtype of the computation.
      parameters: fluid's parameters by name, the filters as `[height, width, in, out]`.
      states: fluid's states by name.
      x: images `[batch, height, width, 3]`.
      label: classes `[batch]`.
    """
    moved: Arrays = {}
    number = 0

    def conv_bn(x: Any, stride: int = 1) -> Any:
        nonlocal number
        weight = parameters[f"conv2d_{number}.w_0"].astype(dtype)
        padding = [((weight.shape[0] - 1) // 2,) * 2] * 2
        x = jax.lax.conv_general_dilated(x, weight, (stride,) * 2, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"))
        norm = f"batch_norm_{number}"
        number += 1
        wide = x.astype("float32")
        mean, variance = wide.mean((0, 1, 2)), wide.var((0, 1, 2))
        for name, new in (("w_1", mean), ("w_2", variance)):
            moved[f"{norm}.{name}"] = 0.9 * states[f"{norm}.{name}"] + 0.1 * new
        factor = parameters[f"{norm}.w_0"] * jax.lax.rsqrt(variance + 1e-5)
        return ((wide - mean) * factor + parameters[f"{norm}.b_0"]).astype(dtype)

    x = jax.nn.relu(conv_bn(x.astype(dtype), 2))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), [(0, 0), (1, 1), (1, 1), (0, 0)])
    for _, stride, changes in blocks_of(size):
        shortcut = conv_bn(x, stride) if changes else x
        hidden = jax.nn.relu(conv_bn(x))
        hidden = jax.nn.relu(conv_bn(hidden, stride))
        x = jax.nn.relu(conv_bn(hidden) + shortcut)
    x = x.mean((1, 2))
    scores = (x @ parameters["fc_0.w_0"].astype(dtype)).astype("float32") + parameters["fc_0.b_0"]
    return optax.softmax_cross_entropy_with_integer_labels(scores, label).mean(), moved


def steps_by_hand(size: Size, dtype: str, trainer: fluid.Trainer, data: Data) -> Steps:
    """Return a function that makes n training steps in JAX from the parameters of `trainer`, and returns the losses."""
    rule = optax.sgd(0.01, momentum=0.9)

    @functools.partial(jax.jit, donate_argnums=0)
    def step(state: tuple[Arrays, Arrays, Any], x: Any, label: Any) -> tuple[Any, Any]:
        parameters, states, slots = state
        gradient = jax.value_and_grad(functools.partial(loss_by_hand, size, dtype), has_aux=True)
        (loss, states), gradients = gradient(parameters, states, x, label)
        updates, slots = rule.update(gradients, slots, parameters)
        return (optax.apply_updates(parameters, updates), states, slots), loss

    arrays = {n: np.transpose(v, (2, 3, 1, 0)) if np.ndim(v) == 4 else np.array(v) for n, v in trainer.params.items()}
    trainable = trainer.program.parameters
    parameters = {n: jnp.array(v) for n, v in arrays.items() if n in trainable}
    state = (parameters, {n: jnp.array(v) for n, v in arrays.items() if n not in trainable}, rule.init(parameters))

    def run(steps: int) -> list[float]:
        nonlocal state
        losses = []
        for _ in range(steps):
            state, loss = step(state, *data)
            losses.append(loss)
        return [float(loss) for loss in losses]

    return run


def steps_by_fluid(size: Size, precision: str | None, data: Data) -> tuple[fluid.Trainer, Steps]:
    """Return a Trainer, and a function that makes n training steps with this Trainer, and returns their losses."""
    rule = fluid.optimizer.Momentum(0.01, momentum=0.9)
    trainer = fluid.Trainer(functools.partial(program, size), rule, precision=precision)

    feed = {"x": data[0], "label": data[1][:, None]}

    def run(steps: int) -> list[float]:
        losses: list[Any] = []

        def keep(event: Any) -> None:
            if isinstance(event, fluid.EndStepEvent):
                losses.append(event.metrics[0])

        trainer.train(lambda: [feed] * steps, num_epochs=1, event_handler=keep)
        return [float(loss) for loss in losses]

    return trainer, run


def steps_by_torch(size: Size, data: Data) -> Steps:
    """Return a function that makes n training steps in PyTorch, and returns their losses."""
    import torch
    from torch import nn
    from torch.nn import functional

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def conv_bn(channels: int, filters: int, width: int, stride: int = 1) -> nn.Module:
        conv = nn.Conv2d(channels, filters, width, stride, (width - 1) // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(filters))

    class Block(nn.Module):
        def __init__(self, channels: int, filters: int, stride: int, changes: bool):
            super().__init__()
            self.parts = nn.ModuleList(
                [conv_bn(channels, filters, 1), conv_bn(filters, filters, 3, stride), conv_bn(filters, 4 * filters, 1)]
            )
            self.shortcut = conv_bn(channels, 4 * filters, 1, stride) if changes else nn.Identity()

        def forward(self, x: Any) -> Any:
            first, second, third = self.parts
            return torch.relu(third(torch.relu(second(torch.relu(first(x))))) + self.shortcut(x))

    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for filters, stride, changes in blocks_of(size):
        layers.append(Block(channels, filters, stride, changes))
        channels = 4 * filters
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, size.classes))
    net = net.to(device, memory_format=torch.channels_last)
    rule = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    x, label = data

    def step() -> Any:
        images = torch.from_numpy(x).to(device).permute(0, 3, 1, 2)  # `x` is NHWC, so the memory is channels last
        labels = torch.from_numpy(label.astype("int64")).to(device)
        with torch.autocast(device, torch.bfloat16):
            loss = functional.cross_entropy(net(images).float(), labels)
        rule.zero_grad()
        loss.backward()
        rule.step()
        return loss.detach()

    return lambda steps: [loss.item() for loss in [step() for _ in range(steps)]]


def data_of(size: Size) -> Data:
    """Generate images `[batch, height, width, 3]` and labels `[batch]`."""
    random = np.random.default_rng(0)
    x = random.normal(size=(size.batch, size.pixels, size.pixels, 3)).astype("float32")
    return x, random.integers(0, size.classes, size.batch, dtype="int32")


def run(rounds: int, small: bool, peers: set[str]) -> list[Row]:
    """Measure the images per second of fluid and each peer."""
    size = SMALL if small else Size()
    data = data_of(size)
    trainer, by_fluid = steps_by_fluid(size, "bfloat16", data)
    turns = {"fluid": by_fluid, "JAX": steps_by_hand(size, "bfloat16", trainer, data)}
    if "torch" in peers:
        turns["PyTorch"] = steps_by_torch(size, data)
    steps = 2 if small else 10
    found = interleave({n: functools.partial(rate, steps, lambda f=f: f(steps)) for n, f in turns.items()}, rounds)
    by_name = {name: [size.batch * number for number in numbers] for name, numbers in found.items()}
    return [
        Row(f"ResNet-50, NHWC, fluid / {name}", "images/s", {"fluid": by_name["fluid"], "hand": numbers}, True)
        for name, numbers in by_name.items()
        if name != "fluid"
    ]
