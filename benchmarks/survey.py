"""Time of every layer on a CPU, compared with PyTorch: a search for slow layers, at the sizes of real nets.

    OMP_WAIT_POLICY=passive python benchmarks/survey.py [conv2d pool2d ...] [--seconds 4] [--above 0]

Each row is the least wall time of a call in train mode: the forward pass, or the forward pass with the gradients of the
inputs and the parameters. fluid and PyTorch run alternately. PyTorch is eager and has one thread for each core. If
PyTorch has no such layer, the peer combines operations of PyTorch, or is missing.
"""

import argparse
import functools
import importlib
import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # otherwise idle threads of PyTorch spin and slow down XLA

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import fluid
from fluid import layers

Feeds = dict[str, Any]
Peer = Callable[..., Any]
LEAST_ROUNDS = 3
MOST_ROUNDS = 30


class Rows(NamedTuple):
    """A feed of equally long sequences: `data` is `[batch, time, ...]`."""

    data: np.ndarray


class Case(NamedTuple):
    """One layer at one size.

    Attributes:
      layer: a function that declares its feeds and returns the result of the layer.
      feeds: arrays, or `Rows`, by name.
      peer: the layer in PyTorch: a function of the feeds in their order, or a module with parameters. None if PyTorch
        has no such layer.
      gradient: whether the layer is differentiable.
    """

    layer: Callable[..., Any]
    feeds: Feeds
    peer: Peer | None = None
    gradient: bool = True


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def whole(most: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, most, shape).astype("int32")


def boxes(*shape: int, size: float) -> np.ndarray:
    """Return random boxes `[*shape, 4]` as x1, y1, x2, y2, inside a square of this `size`."""
    random = np.random.default_rng(0)
    corner = random.uniform(0, 0.7 * size, (*shape, 2))
    extent = random.uniform(0.05 * size, 0.3 * size, (*shape, 2))
    return np.concatenate([corner, corner + extent], -1).astype("float32")


def channels_last(feeds: Feeds) -> Feeds:
    return {name: np.ascontiguousarray(np.moveaxis(array, 1, -1)) for name, array in feeds.items()}


def of_vision(name: str) -> Any:
    """Return a function of torchvision by its name; None if torchvision is not installed."""
    try:
        return getattr(importlib.import_module("torchvision.ops"), name)
    except ImportError:
        return None


def permuted(peer: Peer) -> Peer:
    """Wrap a PyTorch net to read images `[batch, height, width, channels]`, which PyTorch recommends on CPUs."""
    if isinstance(peer, nn.Module):
        peer.to(memory_format=torch.channels_last)  # type: ignore[call-overload,unused-ignore]

    class Permuted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = peer

        def forward(self, x: Any) -> Any:
            return self.inner(x.permute(0, 3, 1, 2))

    return Permuted()


def images() -> dict[str, Case]:
    """Return cases of image layers, with the channels first and, if the layer supports it, with the channels last."""
    found: dict[str, Case] = {}

    def add(what: str, layer: Callable[..., Any], x: np.ndarray, peer: Peer, last: Callable[..., Any] | None) -> None:
        found[what] = Case(layer, {"x": x}, peer)
        if last is not None:
            found[f"{what}, NHWC"] = Case(last, channels_last({"x": x}), permuted(peer))

    def convolution(what: str, x: np.ndarray, count: int, size: int, **given: Any) -> None:
        add(
            f"conv2d {what}",
            lambda x: layers.conv2d(x, count, size, **given),
            x,
            nn.Conv2d(x.shape[1], count, size, **given),
            lambda x: layers.conv2d(x, count, size, data_format="NHWC", **given),
        )

    convolution("3 x 3, 64 x 56 x 56", normal(8, 64, 56, 56), 64, 3, padding=1)
    convolution("3 x 3, 256 x 14 x 14", normal(8, 256, 14, 14), 256, 3, padding=1)
    convolution("1 x 1, 256 x 56 x 56 to 64", normal(8, 256, 56, 56), 64, 1)
    convolution("3 x 3 stride 2, 128 x 56 x 56", normal(8, 128, 56, 56), 128, 3, padding=1, stride=2)
    convolution("7 x 7 stride 2, 3 x 224 x 224", normal(8, 3, 224, 224), 64, 7, padding=3, stride=2)
    convolution("3 x 3 dilation 2, 128 x 28 x 28", normal(8, 128, 28, 28), 128, 3, padding=2, dilation=2)
    convolution("depthwise 3 x 3, 128 x 56 x 56", normal(8, 128, 56, 56), 128, 3, padding=1, groups=128)
    convolution("depthwise 3 x 3 stride 2, 128 x 56", normal(8, 128, 56, 56), 128, 3, padding=1, stride=2, groups=128)

    def transposed(what: str, x: np.ndarray, count: int, size: int, **given: Any) -> None:
        add(
            f"conv2d_transpose {what}",
            lambda x: layers.conv2d_transpose(x, count, None, size, **given),
            x,
            nn.ConvTranspose2d(x.shape[1], count, size, **given),
            lambda x: layers.conv2d_transpose(x, count, None, size, data_format="NHWC", **given),
        )

    transposed("4 x 4 stride 2, 128 x 16 x 16 to 64", normal(16, 128, 16, 16), 64, 4, stride=2, padding=1)
    transposed("2 x 2 stride 2, 128 x 28 x 28 to 64", normal(8, 128, 28, 28), 64, 2, stride=2)
    found["conv3d 3 x 3 x 3, 16 x 16 x 56 x 56"] = Case(
        lambda x: layers.conv3d(x, 32, 3, padding=1), {"x": normal(2, 16, 16, 56, 56)}, nn.Conv3d(16, 32, 3, padding=1)
    )

    def pooling(what: str, x: np.ndarray, size: int, kind: str, stride: int, padding: int = 0) -> None:
        peer = nn.MaxPool2d(size, stride, padding)
        if kind == "avg":
            peer = nn.AvgPool2d(size, stride, padding, count_include_pad=False)
        add(
            f"pool2d {kind} {what}",
            lambda x: layers.pool2d(x, size, kind, stride, padding),
            x,
            peer,
            lambda x: layers.pool2d(x, size, kind, stride, padding, data_format="NHWC"),
        )

    pooling("2 x 2, 64 x 112 x 112", normal(8, 64, 112, 112), 2, "max", 2)
    pooling("3 x 3 stride 2, 64 x 112 x 112", normal(8, 64, 112, 112), 3, "max", 2, 1)
    pooling("3 x 3 stride 1, 192 x 28 x 28", normal(8, 192, 28, 28), 3, "max", 1, 1)
    pooling("2 x 2, 64 x 112 x 112", normal(8, 64, 112, 112), 2, "avg", 2)
    pooling("3 x 3 stride 1, 192 x 28 x 28", normal(8, 192, 28, 28), 3, "avg", 1, 1)
    mean = functools.partial(layers.pool2d, pool_type="avg", global_pooling=True)
    add(
        "pool2d avg global, 512 x 7 x 7",
        mean,
        normal(8, 512, 7, 7),
        nn.AdaptiveAvgPool2d(1),
        functools.partial(mean, data_format="NHWC"),
    )
    found["pool3d max 2 x 2 x 2, 32 x 16 x 56 x 56"] = Case(
        lambda x: layers.pool3d(x, 2, "max", 2), {"x": normal(2, 32, 16, 56, 56)}, nn.MaxPool3d(2)
    )
    for kind, peer in (("avg", nn.AdaptiveAvgPool2d(7)), ("max", nn.AdaptiveMaxPool2d(7))):
        add(f"adaptive_pool2d {kind}, 256 x 32 x 32 to 7 x 7",
            functools.partial(layers.adaptive_pool2d, pool_size=7, pool_type=kind), normal(8, 256, 32, 32), peer,
            functools.partial(layers.adaptive_pool2d, pool_size=7, pool_type=kind, data_format="NHWC"))  # fmt: skip
    wide = normal(8, 64, 112, 112)
    add("batch_norm, 64 x 112 x 112", layers.batch_norm, wide, nn.BatchNorm2d(64),
        functools.partial(layers.batch_norm, data_layout="NHWC"))  # fmt: skip
    add("group_norm, 32 groups, 256 x 56 x 56", lambda x: layers.group_norm(x, 32), normal(4, 256, 56, 56),
        nn.GroupNorm(32, 256), lambda x: layers.group_norm(x, 32, data_layout="NHWC"))  # fmt: skip
    add("instance_norm, 64 x 128 x 128", layers.instance_norm, normal(4, 64, 128, 128),
        nn.InstanceNorm2d(64, affine=True), functools.partial(layers.instance_norm, data_format="NHWC"))  # fmt: skip
    add("lrn, 96 x 55 x 55", lambda x: layers.lrn(x, 5, 2.0), normal(8, 96, 55, 55), nn.LocalResponseNorm(5, k=2.0),
        lambda x: layers.lrn(x, 5, 2.0, data_format="NHWC"))  # fmt: skip
    for kind, given in (("bilinear", {"align_corners": False}), ("nearest", {}), ("bicubic", {"align_corners": False})):
        resize = functools.partial(
            layers.image_resize, out_shape=[128, 128], resample=kind.upper(), align_corners=False, align_mode=0
        )
        add(f"image_resize {kind}, 64 x 64 x 64 to 128 x 128", resize, normal(8, 64, 64, 64),
            functools.partial(F.interpolate, size=(128, 128), mode=kind, **given),
            functools.partial(resize, data_format="NHWC"))  # fmt: skip
    add("pixel_shuffle 2, 256 x 64 x 64", lambda x: layers.pixel_shuffle(x, 2), normal(4, 256, 64, 64),
        nn.PixelShuffle(2), None)  # fmt: skip
    add("space_to_depth 2, 64 x 128 x 128", lambda x: layers.space_to_depth(x, 2), normal(4, 64, 128, 128),
        nn.PixelUnshuffle(2), None)  # fmt: skip
    add("shuffle_channel, 8 groups, 240 x 28 x 28", lambda x: layers.shuffle_channel(x, 8), normal(16, 240, 28, 28),
        nn.ChannelShuffle(8), None)  # fmt: skip
    add("prelu channel, 64 x 112 x 112", lambda x: layers.prelu(x, "channel"), wide, nn.PReLU(64), None)
    add("maxout 2, 64 x 112 x 112", lambda x: layers.maxout(x, 2), wide,
        lambda x: x.reshape(8, 32, 2, 112, 112).amax(2), None)  # fmt: skip
    add("unfold 3 x 3, 64 x 56 x 56", lambda x: layers.unfold(x, 3, 1, 1), normal(8, 64, 56, 56),
        nn.Unfold(3, padding=1), None)  # fmt: skip
    add("im2sequence 3 x 3, 64 x 28 x 28", lambda x: layers.im2sequence(x, 3, 1, 1).data, normal(8, 64, 28, 28),
        lambda x: F.unfold(x, 3, padding=1).transpose(1, 2), None)  # fmt: skip
    add("pad2d reflect 3, 64 x 128 x 128", lambda x: layers.pad2d(x, [3, 3, 3, 3], "reflect"), normal(4, 64, 128, 128),
        nn.ReflectionPad2d(3), None)  # fmt: skip
    add("temporal_shift, 64 x 56 x 56", lambda x: layers.temporal_shift(x, 8), normal(16, 64, 56, 56),
        temporal_shift, None)  # fmt: skip
    grid = np.random.default_rng(0).uniform(-1, 1, (4, 64, 64, 2)).astype("float32")
    found["grid_sampler, 64 x 64 x 64"] = Case(
        layers.grid_sampler,
        {"x": normal(4, 64, 64, 64), "grid": grid},
        functools.partial(F.grid_sample, align_corners=True),
    )
    found["affine_grid, 8 x 128 x 128"] = Case(
        lambda theta: layers.affine_grid(theta, [8, 3, 128, 128]),
        {"theta": normal(8, 2, 3)},
        lambda theta: F.affine_grid(theta, [8, 3, 128, 128], align_corners=True),
    )
    return found


def temporal_shift(x: Any) -> Any:
    """Move a quarter of the channels to the next of the 8 images of a clip, and a quarter to the previous image."""
    clips = x.reshape(-1, 8, *x.shape[1:])
    part = x.shape[1] // 4
    back = F.pad(clips[:, :-1, :part], (0, 0, 0, 0, 0, 0, 1, 0))
    forth = F.pad(clips[:, 1:, part : 2 * part], (0, 0, 0, 0, 0, 0, 0, 1))
    return torch.cat([back, forth, clips[:, :, 2 * part :]], 2).reshape(x.shape)


class Recurrent(nn.Module):
    """A recurrent layer of PyTorch, which returns only the hidden states.

    PyTorch projects the input inside the layer, so the case of a fluid layer without this projection includes an `fc`.
    """

    def __init__(self, kind: Callable[..., nn.Module], width: int, **given: Any):
        super().__init__()
        self.cell = kind(width, width, batch_first=True, **given)

    def forward(self, x: Any) -> Any:
        return self.cell(x)[0]


class Attention(nn.Module):
    """A self-attention layer that uses PyTorch's fused kernel."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x: Any) -> Any:
        parts = self.inner(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(*parts, is_causal=self.causal)
        return self.outer(seen.transpose(1, 2).flatten(2))


class Crf(nn.Module):
    """The loss of tags in a linear-chain conditional random field, computed by a loop over the steps."""

    def __init__(self, tags: int):
        super().__init__()
        self.start, self.stop = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.moves = nn.Parameter(torch.zeros(tags, tags))

    def forward(self, x: Any, tags: Any) -> Any:
        tags = tags[..., 0].long()
        total = self.start + x[:, 0]
        for step in range(1, x.shape[1]):
            total = torch.logsumexp(total[:, :, None] + self.moves, 1) + x[:, step]
        score = x.gather(2, tags[..., None])[..., 0].sum(1) + self.moves[tags[:, :-1], tags[:, 1:]].sum(1)
        return torch.logsumexp(total + self.stop, 1) - score - self.start[tags[:, 0]] - self.stop[tags[:, -1]]


def sequences() -> dict[str, Case]:
    """Return cases of layers for sequences and for words."""
    found: dict[str, Case] = {}
    words = {"ids": whole(30000, 64, 100, 1)}
    found["embedding, 6400 of 30000 x 128"] = Case(
        lambda ids: layers.embedding(ids, [30000, 128]), words, Squeezed(nn.Embedding(30000, 128))
    )

    def projected(x: Any, size: int, layer: Callable[..., Any]) -> Any:
        return layer(layers.fc(x, size, num_flatten_dims=1))

    x = Rows(normal(32, 100, 128))
    found["fc + dynamic_lstm 128, 100 steps, batch 32"] = Case(
        lambda x: projected(x, 512, lambda y: layers.dynamic_lstm(y, 512, use_peepholes=False)[0]).data,
        {"x": x},
        Recurrent(nn.LSTM, 128),
    )
    found["fc + dynamic_lstm 128 with peepholes (peer without), 100 steps, batch 32"] = Case(
        lambda x: projected(x, 512, lambda y: layers.dynamic_lstm(y, 512)[0]).data, {"x": x}, Recurrent(nn.LSTM, 128)
    )
    found["fc + dynamic_gru 128, 100 steps, batch 32"] = Case(
        lambda x: projected(x, 384, lambda y: layers.dynamic_gru(y, 128)).data, {"x": x}, Recurrent(nn.GRU, 128)
    )
    found["fc + dynamic_lstmp 256 to 128, 100 steps, batch 32"] = Case(
        lambda x: projected(x, 1024, lambda y: layers.dynamic_lstmp(y, 1024, 128)[0]).data,
        {"x": Rows(normal(32, 100, 256))},
        Recurrent(nn.LSTM, 256, proj_size=128),
    )
    found["lstm 2 layers of 128, 100 steps, batch 32"] = Case(
        lambda x: layers.lstm(x, None, None, 100, 128, 2)[0],
        {"x": normal(32, 100, 128)},
        Recurrent(nn.LSTM, 128, num_layers=2),
    )
    for causal in (False, True):
        found[f"multi_head_attention 512, 8 heads, 128 steps, batch 8, causal={causal}"] = Case(
            functools.partial(layers.multi_head_attention, num_heads=8, causal=causal),
            {"x": normal(8, 128, 512)},
            Attention(512, 8, causal),
        )
    found["multi_head_attention 256, 4 heads, 512 steps, batch 4"] = Case(
        functools.partial(layers.multi_head_attention, num_heads=4),
        {"x": normal(4, 512, 256)},
        Attention(256, 4, False),
    )
    many = Rows(normal(64, 100, 256))
    pools: dict[str, Peer] = {
        "sum": lambda x: x.sum(1),
        "average": lambda x: x.mean(1),
        "max": lambda x: x.amax(1),
        "last": lambda x: x[:, -1],
    }
    for kind, peer in pools.items():
        found[f"sequence_pool {kind}, 64 x 100 x 256"] = Case(
            functools.partial(layers.sequence_pool, pool_type=kind), {"x": many}, peer
        )
    found["sequence_softmax, 64 x 100"] = Case(
        lambda x: layers.sequence_softmax(x).data, {"x": Rows(normal(64, 100, 1))}, lambda x: x.softmax(1)
    )
    found["sequence_conv 3, 64 x 100 x 256 to 256"] = Case(
        lambda x: layers.sequence_conv(x, 256, 3).data, {"x": many}, Over(nn.Conv1d(256, 256, 3, padding=1))
    )
    found["row_conv 8, 64 x 100 x 256"] = Case(
        lambda x: layers.row_conv(x, 8).data, {"x": many},
        Over(nn.Sequential(nn.ConstantPad1d((0, 8), 0.0), nn.Conv1d(256, 256, 9, groups=256, bias=False))),
    )  # fmt: skip
    found["sequence_reverse, 64 x 100 x 256"] = Case(
        lambda x: layers.sequence_reverse(x).data, {"x": many}, lambda x: x.flip(1)
    )
    found["sequence_expand, 64 x 256 to 100 steps"] = Case(
        lambda x, y: layers.sequence_expand(x, y).data,
        {"x": normal(64, 256), "y": Rows(normal(64, 100, 1))},
        lambda x, y: x[:, None].repeat(1, 100, 1) + 0 * y,
    )
    letters = {"x": Rows(normal(16, 200, 64)), "label": Rows(1 + whole(63, 16, 40, 1))}
    found["warpctc, 200 steps, 64 classes, labels of 40, batch 16"] = Case(layers.warpctc, letters, ctc)
    tagged = {"x": Rows(normal(32, 80, 40)), "tags": Rows(whole(40, 32, 80, 1))}
    found["linear_chain_crf, 80 steps, 40 tags, batch 32"] = Case(
        lambda x, tags: layers.linear_chain_crf(x, tags, fluid.ParamAttr(name="crf")), tagged, Crf(40)
    )
    found["crf_decoding, 80 steps, 40 tags, batch 32"] = Case(
        lambda x: layers.crf_decoding(x, fluid.ParamAttr(name="crf")).data, {"x": tagged["x"]}, viterbi, False
    )
    texts = {"x": Rows(whole(50, 32, 100, 1)), "y": Rows(whole(50, 32, 100, 1)[::-1].copy())}
    found["edit_distance, 100 by 100, batch 32"] = Case(
        lambda x, y: layers.edit_distance(x, y)[0], texts, levenshtein, False
    )
    found["ctc_greedy_decoder, 200 steps, 64 classes, batch 16"] = Case(
        lambda x: layers.ctc_greedy_decoder(x, 0).data, {"x": letters["x"]}, lambda x: x.argmax(2), False
    )
    found["add_position_encoding, 32 x 128 x 512"] = Case(
        lambda x: layers.add_position_encoding(x, 1.0, 1.0), {"x": normal(32, 128, 512)}, lambda x: x + x.new_zeros(512)
    )
    return found


class Squeezed(nn.Module):
    """A module that removes the last dimension of ids, and applies `inner`."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, ids: Any) -> Any:
        return self.inner(ids[..., 0])


class Over(nn.Module):
    """A module that applies a convolution over the second dimension instead of the last."""

    def __init__(self, inner: nn.Module):
        super().__init__()
        self.inner = inner

    def forward(self, x: Any) -> Any:
        return self.inner(x.transpose(1, 2)).transpose(1, 2)


def ctc(x: Any, label: Any) -> Any:
    steps = [torch.full((len(v),), v.shape[1]) for v in (x, label)]
    return F.ctc_loss(x.log_softmax(2).transpose(0, 1), label[..., 0], *steps, reduction="none")


def viterbi(x: Any) -> Any:
    """Return the best tags by a loop over the steps; the transition scores are zeros."""
    moves, total, came = torch.zeros(x.shape[2], x.shape[2]), x[:, 0], []
    for step in range(1, x.shape[1]):
        best, places = (total[:, :, None] + moves).max(1)
        total = best + x[:, step]
        came.append(places)
    tags = [total.argmax(1)]
    for places in reversed(came):
        tags.append(places.gather(1, tags[-1][:, None])[:, 0])
    return torch.stack(tags[::-1], 1)


def levenshtein(x: Any, y: Any) -> Any:
    """Return the edit distances of pairs of sequences, by a loop over the rows of the distance table."""
    x, y = x[..., 0], y[..., 0]
    columns = torch.arange(y.shape[1] + 1)
    row = columns.expand(len(x), -1)
    for step in range(x.shape[1]):
        above = torch.minimum(row[:, :-1] + (x[:, step, None] != y), row[:, 1:] + 1)
        above = torch.cat([row[:, :1] + 1, above], 1)
        row = torch.cummin(above - columns, 1).values + columns
    return row[:, -1]


class Sampled(nn.Module):
    """The loss of the true class against randomly drawn classes.

    Of the weights, the loss reads only the rows of the true class and of the drawn classes.
    """

    def __init__(self, classes: int, width: int, count: int):
        super().__init__()
        self.weight, self.bias = nn.Embedding(classes, width), nn.Embedding(classes, 1)
        self.classes, self.count = classes, count

    def forward(self, x: Any, label: Any) -> Any:
        drawn = torch.randint(self.classes, (len(x), self.count))
        ids = torch.cat([label.long(), drawn], 1)
        logits = (self.weight(ids) @ x[..., None])[..., 0] + self.bias(ids)[..., 0]
        wanted = torch.zeros_like(logits)
        wanted[:, 0] = 1
        return F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").sum(1)


class Tree(nn.Module):
    """The loss of classes in a balanced binary tree, which reads only the weights on the path to each class."""

    def __init__(self, classes: int, width: int):
        super().__init__()
        self.weight, self.bias = nn.Embedding(classes, width), nn.Embedding(classes, 1)
        self.classes, self.depth = classes, (classes - 1).bit_length()

    def forward(self, x: Any, label: Any) -> Any:
        places = (label.long() + self.classes) >> torch.arange(1, self.depth + 1)
        bits = ((label.long() + self.classes) >> torch.arange(self.depth)) & 1
        ids = (places - 1).clamp(min=0)
        logits = (self.weight(ids) @ x[..., None])[..., 0] + self.bias(ids)[..., 0]
        return F.binary_cross_entropy_with_logits(logits, bits.float(), reduction="none").sum(1)


def dense() -> dict[str, Case]:
    """Return benchmark cases: layers that work on vectors, and losses."""
    found: dict[str, Case] = {}
    found["fc 1024 to 1024, batch 256"] = Case(
        lambda x: layers.fc(x, 1024), {"x": normal(256, 1024)}, nn.Linear(1024, 1024)
    )
    found["layer_norm, 4096 x 512"] = Case(layers.layer_norm, {"x": normal(4096, 512)}, nn.LayerNorm(512))
    found["rms_norm, 4096 x 512"] = Case(layers.rms_norm, {"x": normal(4096, 512)}, nn.RMSNorm(512))
    found["l2_normalize, 4096 x 512"] = Case(
        lambda x: layers.l2_normalize(x, -1), {"x": normal(4096, 512)}, lambda x: F.normalize(x, dim=-1)
    )
    found["gelu, 4096 x 2048"] = Case(layers.gelu, {"x": normal(4096, 2048)}, F.gelu)
    found["softmax, 4096 x 512"] = Case(layers.softmax, {"x": normal(4096, 512)}, lambda x: x.softmax(-1))
    found["dropout, 4096 x 1024"] = Case(lambda x: layers.dropout(x, 0.5), {"x": normal(4096, 1024)}, nn.Dropout(0.5))
    found["softmax_with_cross_entropy, 1024 x 30000"] = Case(
        layers.softmax_with_cross_entropy,
        {"x": normal(1024, 30000), "label": whole(30000, 1024, 1)},
        lambda x, label: F.cross_entropy(x, label[:, 0].long(), reduction="none"),
    )
    label = {"x": normal(256, 256), "label": whole(30000, 256, 1)}
    found["hsigmoid, 256 x 256, 30000 classes"] = Case(
        lambda x, label: layers.hsigmoid(x, label, 30000), label, Tree(30000, 256)
    )
    found["nce, 256 x 256, 30000 classes, 20 samples"] = Case(
        lambda x, label: layers.nce(x, label, 30000, num_neg_samples=20), label, Sampled(30000, 256, 20)
    )
    found["sampled_softmax_with_cross_entropy, 256 x 30000, 100 samples"] = Case(
        lambda x, label: layers.sampled_softmax_with_cross_entropy(x, label, 100),
        {"x": normal(256, 30000), "label": label["label"]},
        sampled_softmax,
    )
    found["bilinear_tensor_product 128 x 128 to 64, batch 256"] = Case(
        lambda x, y: layers.bilinear_tensor_product(x, y, 64),
        {"x": normal(256, 128), "y": normal(256, 128)},
        nn.Bilinear(128, 128, 64),
    )
    found["matmul, 64 of 128 x 64 by 64 x 128"] = Case(
        layers.matmul, {"x": normal(64, 128, 64), "y": normal(64, 64, 128)}, torch.matmul
    )
    found["matmul transpose_y, 64 of 128 x 64"] = Case(
        lambda x, y: layers.matmul(x, y, transpose_y=True),
        {"x": normal(64, 128, 64), "y": normal(64, 128, 64)},
        lambda x, y: x @ y.transpose(1, 2),
    )
    found["cos_sim, 4096 x 256"] = Case(
        layers.cos_sim, {"x": normal(4096, 256), "y": normal(4096, 256)[::-1].copy()}, F.cosine_similarity
    )
    return found


def sampled_softmax(x: Any, label: Any) -> Any:
    drawn = torch.randint(x.shape[1], (len(x), 100))
    return -x.gather(1, torch.cat([label.long(), drawn], 1)).log_softmax(1)[:, 0]


def plain() -> dict[str, Case]:
    """Return, by name, the operations on arrays that the benchmark measures."""
    found: dict[str, Case] = {}
    scores = {"x": normal(256, 30000)}
    found["topk 5 of 1000, batch 256"] = Case(
        lambda x: layers.topk(x, 5)[0], {"x": normal(256, 1000)}, lambda x: x.topk(5).values
    )
    found["topk 10 of 30000, batch 256"] = Case(lambda x: layers.topk(x, 10)[0], scores, lambda x: x.topk(10).values)
    found["argsort, 256 x 1000"] = Case(
        lambda x: layers.argsort(x)[0], {"x": normal(256, 1000)}, lambda x: x.sort(stable=True).values
    )
    found["argsort descending, 16 x 20000"] = Case(
        lambda x: layers.argsort(x, descending=True)[0],
        {"x": normal(16, 20000)},
        lambda x: x.sort(stable=True, descending=True).values,
    )
    found["argmax, 256 x 30000"] = Case(layers.argmax, scores, lambda x: x.argmax(0), False)
    found["argmax last, 256 x 30000"] = Case(lambda x: layers.argmax(x, 1), scores, lambda x: x.argmax(1), False)
    found["unique, 10000 ids of 5000"] = Case(
        lambda x: layers.unique(x)[0].data, {"x": whole(5000, 10000)}, torch.unique, False
    )
    rows = {"x": normal(30000, 128), "index": whole(30000, 6400)}
    found["gather, 6400 of 30000 x 128"] = Case(layers.gather, rows, lambda x, index: x[index])
    found["gather_nd, 6400 of 300 x 100 x 128"] = Case(
        layers.gather_nd,
        {"x": normal(300, 100, 128), "index": whole(100, 6400, 2)},
        lambda x, index: x[index[:, 0], index[:, 1]],
    )
    updates = {**rows, "updates": normal(6400, 128)}
    found["scatter add, 6400 of 30000 x 128"] = Case(
        lambda x, index, updates: layers.scatter(x, index, updates, overwrite=False),
        updates,
        lambda x, index, updates: x.index_add(0, index, updates),
    )
    found["scatter overwrite, 6400 of 30000 x 128"] = Case(
        lambda x, index, updates: layers.scatter(x, index, updates),
        updates,
        lambda x, index, updates: x.index_copy(0, index.long(), updates),
    )
    found["scatter_nd_add, 6400 of 300 x 100 x 128"] = Case(
        layers.scatter_nd_add,
        {"x": normal(300, 100, 128), "index": whole(100, 6400, 2), "updates": normal(6400, 128)},
        lambda x, index, updates: x.index_put((index[:, 0], index[:, 1]), updates, accumulate=True),
    )
    found["index_sample, 10 of 30000, batch 256"] = Case(
        layers.index_sample, {**scores, "index": whole(30000, 256, 10)}, lambda x, index: x.gather(1, index.long())
    )
    found["cumsum last, 256 x 4096"] = Case(
        lambda x: layers.cumsum(x, -1), {"x": normal(256, 4096)}, lambda x: x.cumsum(-1)
    )
    found["cumsum over time, 64 x 200 x 256"] = Case(
        lambda x: layers.cumsum(x, 1), {"x": normal(64, 200, 256)}, lambda x: x.cumsum(1)
    )
    found["one_hot, 6400 of 1000"] = Case(
        lambda ids: layers.one_hot(ids, 1000),
        {"ids": whole(1000, 6400, 1)},
        lambda ids: F.one_hot(ids[:, 0].long(), 1000).float(),
        False,
    )
    parts = {name: normal(8, 64, 56, 56) for name in "xyz"}
    found["concat of 3, 64 x 56 x 56"] = Case(
        lambda x, y, z: layers.concat([x, y, z], 1), parts, lambda x, y, z: torch.cat([x, y, z], 1)
    )
    found["split in 4, 256 x 56 x 56"] = Case(
        lambda x: layers.split(x, 4, 1)[1] * 2.0, {"x": normal(8, 256, 56, 56)}, lambda x: x.chunk(4, 1)[1] * 2.0
    )
    found["transpose 0 2 3 1, 64 x 112 x 112"] = Case(
        lambda x: layers.transpose(x, [0, 2, 3, 1]),
        {"x": normal(8, 64, 112, 112)},
        lambda x: x.permute(0, 2, 3, 1).contiguous(),
    )
    found["transpose 0 2 1 3, 128 x 8 x 64"] = Case(
        lambda x: layers.transpose(x, [0, 2, 1, 3]),
        {"x": normal(32, 128, 8, 64)},
        lambda x: x.permute(0, 2, 1, 3).contiguous(),
    )
    sums: dict[str, tuple[Callable[..., Any], Peer]] = {
        "reduce_sum": (layers.reduce_sum, torch.sum),
        "reduce_mean": (layers.reduce_mean, torch.mean),
        "reduce_max": (layers.reduce_max, torch.amax),
        "logsumexp": (layers.logsumexp, torch.logsumexp),
        "reduce_prod": (layers.reduce_prod, torch.prod),
    }
    for (name, (layer, peer)), dim in itertools.product(sums.items(), (0, 1)):
        found[f"{name} over {dim}, 2048 x 2048"] = Case(
            functools.partial(layer, dim=dim), {"x": normal(2048, 2048)}, functools.partial(peer, dim=dim)
        )
    found["flip, 64 x 112 x 112"] = Case(
        lambda x: layers.flip(x, [2]), {"x": normal(8, 64, 112, 112)}, lambda x: x.flip(2)
    )
    found["roll, 64 x 112 x 112"] = Case(
        lambda x: layers.roll(x, 3, 2), {"x": normal(8, 64, 112, 112)}, lambda x: x.roll(3, 2)
    )
    found["expand, 512 to 64 times"] = Case(
        lambda x: layers.expand(x, [1, 64, 1]), {"x": normal(64, 1, 512)}, lambda x: x.repeat(1, 64, 1)
    )
    found["tril, 64 x 512 x 512"] = Case(layers.tril, {"x": normal(64, 512, 512)}, torch.tril)
    found["pow 3, 2048 x 2048"] = Case(lambda x: layers.pow(x, 3.0), {"x": normal(2048, 2048)}, lambda x: x.pow(3.0))
    for name in ("tanh", "sigmoid", "exp", "erf", "softplus", "sin"):
        found[f"{name}, 2048 x 2048"] = Case(
            getattr(layers, name), {"x": normal(2048, 2048)}, getattr(torch, name, F.softplus)
        )
    return found


class Deformable(nn.Module):
    """The deformable convolution of torchvision, with trainable filters."""

    def __init__(self, channels: int, count: int):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(count, channels, 3, 3)), nn.Parameter(torch.zeros(count))

    def forward(self, x: Any, offset: Any, mask: Any) -> Any:
        return of_vision("deform_conv2d")(x, offset, self.weight, self.bias, padding=1, mask=mask)


def detection() -> dict[str, Case]:
    """Return, by name, the layers for object detection that the benchmark measures."""
    found: dict[str, Case] = {}
    vision = of_vision("roi_align") is not None
    regions = {"x": normal(2, 256, 50, 50), "rois": boxes(2, 128, size=800.0)}
    pooled: dict[str, Any] = {"pooled_height": 7, "pooled_width": 7, "spatial_scale": 1 / 16}

    def by_region(name: str, **given: Any) -> Peer | None:
        return (lambda x, rois: of_vision(name)(x, list(rois.detach()), 7, 1 / 16, **given)) if vision else None

    found["roi_align 7 x 7 ratio 2, 256 regions, 256 x 50 x 50"] = Case(
        lambda x, rois: layers.roi_align(x, rois, sampling_ratio=2, **pooled),
        regions,
        by_region("roi_align", sampling_ratio=2, aligned=False),
    )
    found["roi_align 7 x 7 adaptive, 256 regions, 256 x 50 x 50"] = Case(
        lambda x, rois: layers.roi_align(x, rois, **pooled), regions, by_region("roi_align", aligned=False)
    )
    found["roi_pool 7 x 7, 256 regions, 256 x 50 x 50"] = Case(
        lambda x, rois: layers.roi_pool(x, rois, **pooled), regions, by_region("roi_pool")
    )
    sensitive = {"x": normal(2, 490, 50, 50), "rois": regions["rois"]}
    found["psroi_pool 7 x 7 of 10, 256 regions, 490 x 50 x 50"] = Case(
        lambda x, rois: layers.psroi_pool(x, rois, 10, 1 / 16, 7, 7), sensitive, by_region("ps_roi_pool")
    )
    found["prroi_pool 7 x 7, 256 regions (peer: roi_align)"] = Case(
        lambda x, rois: layers.prroi_pool(x, rois, **pooled), regions, by_region("roi_align", aligned=False)
    )
    found["deformable_conv 3 x 3, 64 x 56 x 56"] = Case(
        lambda x, offset, mask: layers.deformable_conv(x, offset, mask, 64, 3, padding=1),
        {"x": normal(2, 64, 56, 56), "offset": normal(2, 18, 56, 56), "mask": normal(2, 9, 56, 56)},
        Deformable(64, 64) if vision else None,
    )
    located = {"boxes": boxes(2, 8732, size=1.0), "scores": jax.nn.softmax(normal(2, 21, 8732) * 3, 1)}
    located["scores"] = np.asarray(located["scores"])

    def by_class(boxes: Any, scores: Any) -> Any:
        kept = []
        for image, chances in zip(boxes, scores, strict=True):
            labels, places = torch.nonzero(chances[1:] > 0.01, as_tuple=True)
            values = chances[1:][labels, places]
            order = values.topk(min(400 * 20, len(values))).indices
            chosen = of_vision("batched_nms")(image[places[order]], values[order], labels[order], 0.45)[:200]
            kept.append(F.pad(values[order][chosen], (0, 200 - len(chosen))))
        return torch.stack(kept)

    found["multiclass_nms, 8732 boxes, 21 classes, batch 2"] = Case(
        lambda boxes, scores: layers.multiclass_nms(boxes, scores, 0.01, 400, 200, 0.45).data,
        located,
        by_class if vision else None,
        False,
    )
    found["matrix_nms, 8732 boxes, 21 classes, batch 2 (peer: batched_nms)"] = Case(
        lambda boxes, scores: layers.matrix_nms(boxes, scores, 0.01, 0.01, 400, 200).data,
        located,
        by_class if vision else None,
        False,
    )
    found["iou_similarity, 100 by 8732"] = Case(
        layers.iou_similarity,
        {"x": boxes(100, size=1.0), "y": boxes(8732, size=1.0)},
        of_vision("box_iou"),
        False,
    )
    found["bipartite_match, 20 by 8732, batch 4"] = Case(
        lambda x: layers.bipartite_match(x, "per_prediction", 0.5)[0],
        {"x": Rows(np.abs(normal(4, 20, 8732)))},
        None,
        False,
    )
    found["prior_box, 38 x 38"] = Case(
        lambda x, image: layers.prior_box(x, image, [30.0], [60.0], [2.0], flip=True)[0],
        {"x": normal(2, 8, 38, 38), "image": normal(2, 3, 300, 300)},
        None,
        False,
    )
    found["yolo_box, 3 x 80 classes, 52 x 52, batch 4"] = Case(
        lambda x, size: layers.yolo_box(x, size, [10, 13, 16, 30, 33, 23], 80, 0.01, 8)[1],
        {"x": normal(4, 255, 52, 52), "size": np.full((4, 2), 416, "int32")},
        lambda x, size: x.reshape(4, 3, 85, 52, 52).sigmoid().permute(0, 1, 3, 4, 2).contiguous(),
        False,
    )
    found["yolov3_loss, 3 x 80 classes, 26 x 26, 30 boxes, batch 4"] = Case(
        lambda x, box, label: layers.yolov3_loss(
            x, box, label, [10, 13, 16, 30, 33, 23, 30, 61, 62, 45, 59, 119], [3, 4, 5], 80, 0.7, 16
        ),
        {
            "x": normal(4, 255, 26, 26),
            "box": np.random.default_rng(0).uniform(0.1, 0.5, (4, 30, 4)).astype("float32"),
            "label": whole(80, 4, 30),
        },
        None,
    )
    proposals = {
        "scores": np.abs(normal(2, 9, 38, 50)),
        "deltas": normal(2, 36, 38, 50) / 10,
        "info": np.array([[600, 800, 1]] * 2, "float32"),
    }
    anchors, variances = boxes(38, 50, 9, size=600.0), np.ones((38, 50, 9, 4), "float32")
    found["generate_proposals, 17100 anchors, 6000 to 1000, batch 2"] = Case(
        lambda scores, deltas, info: (
            layers.generate_proposals(
                scores, deltas, info, jnp.asarray(anchors), jnp.asarray(variances), nms_thresh=0.7
            )[0].data
        ),
        proposals,
        functools.partial(proposed, anchors) if vision else None,
        False,
    )
    found["box_coder decode, 8732 priors, batch 16"] = Case(
        lambda prior, x: layers.box_coder(prior, [0.1, 0.1, 0.2, 0.2], x, "decode_center_size"),
        {"prior": boxes(8732, size=1.0), "x": normal(16, 8732, 4)},
        None,
    )
    return found


def proposed(anchors: np.ndarray, scores: Any, deltas: Any, info: Any) -> Any:
    """Return the proposals of a region proposal network, selected by torchvision's non-maximum suppression."""
    places = torch.from_numpy(anchors.reshape(-1, 4))
    found = []
    for chances, moves in zip(scores.permute(0, 2, 3, 1), deltas.permute(0, 2, 3, 1), strict=True):
        best, order = chances.flatten().topk(6000)
        moved, old = moves.reshape(-1, 4)[order], places[order]
        size = old[:, 2:] - old[:, :2]
        centre = old[:, :2] + size / 2 + moved[:, :2] * size
        size = size * moved[:, 2:].exp()
        new = torch.cat([centre - size / 2, centre + size / 2], 1).clamp(0, 600)
        kept = of_vision("nms")(new, best, 0.7)[:1000]
        found.append(F.pad(new[kept], (0, 0, 0, 1000 - len(kept))))
    return torch.stack(found)


def every_case() -> dict[str, Case]:
    return images() | sequences() | dense() | plain() | detection()


def floating(array: Any) -> bool:
    return np.issubdtype(array.dtype, np.floating)


def with_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes `function` and its gradients for output gradients, which are an argument.

    With constant output gradients, XLA would compute the gradients of linear functions during compilation.
    """

    def call(floats: Any, rest: Any, slopes: Any) -> Any:
        value, pull = jax.vjp(lambda given: function(given, rest), floats)
        return value, pull(slopes)

    return call


def by_fluid(case: Case) -> dict[str, Callable[[], Any]]:
    """Return functions that run a layer in train mode, by the name of the pass: "forward" and "gradient"."""

    def declared() -> Any:
        batched = any(isinstance(feed, Rows) for feed in case.feeds.values())
        given = []
        for name, feed in case.feeds.items():
            array = feed.data if isinstance(feed, Rows) else feed
            shape = array.shape[1 + isinstance(feed, Rows) :] if batched else array.shape
            level = int(isinstance(feed, Rows))
            given.append(layers.data(name, list(shape), str(array.dtype), level, append_batch_size=batched))
        return case.layer(*given)

    program = fluid.Program(declared)
    arrays = {name: jnp.asarray(array) for name, array in program.init(jax.random.key(0)).items()}
    learnt = {name: arrays.pop(name) for name in program.parameters}
    feeds = {name: jnp.asarray(v.data if isinstance(v, Rows) else v) for name, v in case.feeds.items()}

    def call(floats: Any, rest: Any) -> Any:
        own, x = floats
        fed = {}
        for name, feed in case.feeds.items():
            array = (x | rest)[name]
            if isinstance(feed, Rows):
                array = fluid.SequenceBatch(array, jnp.full(len(array), array.shape[1], "int32"))
            fed[name] = array
        return program.apply(own | arrays, fed, key=rest["key"], mode="train").outputs[0]

    floats = (learnt, {name: x for name, x in feeds.items() if floating(x)})
    rest = {name: x for name, x in feeds.items() if not floating(x)} | {"key": jax.random.key(0)}

    def run(form: Callable[..., Any], *slopes: Any) -> None:
        jax.block_until_ready(form(floats, rest, *slopes))

    calls: dict[str, Callable[[], Any]] = {"forward": functools.partial(run, jax.jit(call))}
    if case.gradient:
        slopes = jnp.asarray(normal(*jax.eval_shape(call, floats, rest).shape))
        calls["gradient"] = functools.partial(run, jax.jit(with_gradient(call)), slopes)
    return calls


def by_torch(case: Case) -> dict[str, Callable[[], Any]]:
    """Return functions that run the layer in PyTorch, by name: "forward" and, if there is a gradient, "gradient"."""
    if case.peer is None:
        return {}
    peer = case.peer
    feeds = [torch.from_numpy(np.array(v.data if isinstance(v, Rows) else v)) for v in case.feeds.values()]
    learnt = [x.requires_grad_() for x in feeds if case.gradient and x.is_floating_point()]
    learnt += list(peer.parameters()) if isinstance(peer, nn.Module) else []

    def forward() -> Any:
        with torch.no_grad():
            return peer(*feeds)

    if not case.gradient:
        return {"forward": forward}
    slopes = torch.empty_like(forward()).normal_()  # `empty_like` keeps the memory layout of the result

    def gradient() -> Any:
        value = peer(*feeds)
        return value, torch.autograd.grad(value, learnt, slopes, allow_unused=True)

    return {"forward": forward, "gradient": gradient}


def least(calls: Mapping[Any, Callable[[], Any]], seconds: float) -> dict[Any, float]:
    """Run the calls alternately for about `seconds` after a warm-up, and return the least milliseconds of each call."""
    for call in calls.values():
        call()
    found = dict.fromkeys(calls, np.inf)
    end = time.perf_counter() + seconds
    for number in range(MOST_ROUNDS):
        if number >= LEAST_ROUNDS and time.perf_counter() > end:
            break
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name] = min(found[name], (time.perf_counter() - start) * 1e3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="beginnings of the rows to measure; all by default")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each row, after compilation")
    parser.add_argument("--above", type=float, default=0.0, help="print rows with a larger factor only")
    given = parser.parse_args()
    torch.set_num_threads(os.cpu_count() or 1)
    print("| layer | pass | fluid ms | PyTorch ms | times as long |\n|---|---|---|---|---|")
    for what, case in every_case().items():
        if not what.startswith(tuple(given.names) or ""):
            continue
        try:
            ours, theirs = by_fluid(case), by_torch(case)
            calls = {("fluid", name): call for name, call in ours.items()}
            found = least(calls | {("PyTorch", name): call for name, call in theirs.items()}, given.seconds)
        except Exception as error:  # a row that fails must not stop the other rows
            print(f"| {what} | {type(error).__name__}: {str(error).splitlines()[0]} | | | |", flush=True)
            continue
        for name in ours:
            mine, other = found["fluid", name], found.get(("PyTorch", name))
            factor = mine / other if other else np.nan
            if not factor < given.above:
                print(f"| {what} | {name} | {mine:.2f} | {other or np.nan:.2f} | {factor:.2f} |", flush=True)


if __name__ == "__main__":
    main()
