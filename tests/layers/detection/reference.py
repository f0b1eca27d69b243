"""Reference for detection layers: boxes computed one at a time in plain Python, example boxes, and `results`."""

import math

import jax
import numpy as np

import fluid


def results(function, feed):
    """Return the outputs of a program function for a feed and its initial parameters, compiled with `jax.jit`."""
    program = fluid.Program(function)
    arrays = jax.tree.map(lambda v: np.asarray(v, jax.dtypes.canonicalize_dtype(v.dtype)), feed)
    parameters = program.init(jax.random.key(1))
    return jax.jit(lambda feed: program.apply(parameters, feed, key=None, mode="train").outputs)(arrays)


def side(first, last, pixel):
    return max(last - first + pixel, 0.0)


def area(box, pixel=0.0):
    return side(box[0], box[2], pixel) * side(box[1], box[3], pixel)


def iou(a, b, pixel=0.0):
    """Return the intersection of two boxes divided by their union."""
    both = area((max(a[0], b[0]), max(a[1], b[1]), min(a[2], b[2]), min(a[3], b[3])), pixel)
    union = area(a, pixel) + area(b, pixel) - both
    return both / union if union > 0 else 0.0


def decode(offset, prior, variance, pixel=0.0):
    """Return the box that a prior box and predicted offsets, multiplied by `variance`, describe."""
    width, height = side(prior[0], prior[2], pixel), side(prior[1], prior[3], pixel)
    dx, dy, dw, dh = (o * v for o, v in zip(offset, variance, strict=True))
    x, y = prior[0] + width / 2 + dx * width, prior[1] + height / 2 + dy * height
    width, height = width * math.exp(dw), height * math.exp(dh)
    return [x - width / 2, y - height / 2, x + width / 2 - pixel, y + height / 2 - pixel]


def suppress(boxes, order, threshold, eta=1.0, pixel=0.0):
    """Return the indices of the boxes that non-maximum suppression keeps when it visits the boxes in `order`."""
    left = []
    for i in order:
        if all(iou(boxes[i], boxes[j], pixel) <= threshold for j in left):
            left.append(i)
            threshold *= eta if eta < 1 and threshold > 0.5 else 1.0
    return left


def some_boxes(seed, *shape, size=1.0, least=0.05):
    """Return random boxes `[*shape, 4]` within a square of side `size`; some of the boxes overlap."""
    rng = np.random.default_rng(seed)
    corner = rng.uniform(0, 0.6, (*shape, 2))
    far = corner + rng.uniform(least, 0.4, (*shape, 2))
    return (size * np.concatenate([corner, far], axis=-1)).astype("float32")
