"""`pad2d`: pad images with pixels."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fluid import core, errors
from fluid.layers.base import Layer, describe, layer
from fluid.layers.image.spatial import CHANNELS_FIRST, image_of

_MODES = ("constant", "reflect", "edge")


@layer
def pad2d(
    input: core.Value,
    paddings: Sequence[int] = (0, 0, 0, 0),
    mode: str = "constant",
    pad_value: float = 0.0,
    data_format: str = CHANNELS_FIRST,
    name: str | None = None,
) -> jax.Array:
    """Pad images with pixels on all sides.

    Args:
      input: `[batch, channels, height, width]`, or with the channels last for "NHWC".
      paddings: `[top, bottom, left, right]`.
      mode: "constant"; "edge", which repeats the pixel at the edge; or "reflect", which mirrors the image at the edge
        pixel.
      pad_value: the value of the new pixels, for "constant".
      data_format: "NCHW" or "NHWC".
      name: name of the layer; by default `pad2d_N`.

    Returns:
      `[batch, channels, height + top + bottom, width + left + right]`, or with the channels last.

    Raises:
      ArgumentError: there is no such mode, or there are not four paddings.
      ShapeError: the input is no batch of images, or is too small to be mirrored.

    Example:
      >>> import fluid
      >>> def program():
      ...     image = fluid.layers.data("image", shape=[3, 8, 8])
      ...     return fluid.layers.pad2d(image, paddings=[1, 1, 2, 2], mode="reflect")
      >>> print(fluid.Program(program).outputs[0])
      float32[batch, 3, 10, 12]
    """
    this = Layer("pad2d", name)
    image = image_of(this, input, 4, data_format)
    if mode not in _MODES:
        raise errors.ArgumentError(f"{this.name}: mode={mode!r}; expected {', '.join(map(repr, _MODES))}")
    widths = [int(p) for p in paddings]
    if len(widths) != 4 or min(widths) < 0:
        raise errors.ArgumentError(
            f"{this.name}: paddings={list(paddings)}; expected [top, bottom, left, right], as in paddings=[1, 1, 1, 1]"
        )
    pairs = [(0, 0)] * 4
    for axis, pixels, pair in zip(image.axes, image.pixels, (widths[:2], widths[2:]), strict=True):
        if mode == "reflect" and max(pair) >= pixels:
            raise errors.ShapeError(
                f"{this.name}: {max(pair)} pixels cannot be mirrored from {pixels} of {describe(input)}; pad less, "
                f"or use mode='edge'"
            )
        pairs[axis] = (pair[0], pair[1])
    values = {"constant_values": np.array(pad_value, image.array.dtype)} if mode == "constant" else {}
    return this.output(jnp.pad(image.array, pairs, mode=mode, **values))
