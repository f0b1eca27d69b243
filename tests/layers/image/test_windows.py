"""Convolution and pooling: compared with loops in NumPy."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from layers.run_program import check, output, run

import fluid
from fluid import errors, layers

RNG = np.random.default_rng(5)


def windows(x, size, stride, pads, dilation=(1, 1), fill=0.0, ceil=False):
    """Yield for each window of a convolution: its index, the window counts, the pixels `[batch, channels, kh, kw]`."""
    sizes = x.shape[2:]
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    rounded = math.ceil if ceil else math.floor
    counts = [rounded((n + sum(p) - s) / st) + 1 for n, p, s, st in zip(sizes, pads, spans, stride, strict=True)]
    wide = [(p[0], p[1] + st) for p, st in zip(pads, stride, strict=True)]
    padded = np.pad(x, [(0, 0), (0, 0), *wide], constant_values=fill)
    for i, j in itertools.product(*map(range, counts)):
        top, left = i * stride[0], j * stride[1]
        rows = slice(top, top + spans[0], dilation[0])
        yield (i, j), counts, padded[:, :, rows, left : left + spans[1] : dilation[1]]


def convolve(x, w, stride=(1, 1), pads=((0, 0), (0, 0)), dilation=(1, 1), groups=1):
    """Return the convolution of images with filters, computed in float64 by a loop over windows and groups."""
    x, w = x.astype("float64"), w.astype("float64")
    inputs, outputs = x.shape[1] // groups, w.shape[0] // groups
    result = None
    for (i, j), counts, window in windows(x, w.shape[2:], stride, pads, dilation):
        if result is None:
            result = np.zeros([x.shape[0], w.shape[0], *counts])
        for g in range(groups):
            part = window[:, g * inputs : (g + 1) * inputs]
            own = slice(g * outputs, (g + 1) * outputs)
            result[:, own, i, j] = np.einsum("ncij,ocij->no", part, w[own])
    return result


def pool(x, size, kind, stride, pads, ceil, exclusive):
    """Return the maxima or means of all windows, computed by a loop over windows."""
    result = None
    for (i, j), counts, window in windows(x, size, stride, pads, fill=np.nan, ceil=ceil):
        if result is None:
            result = np.zeros([*x.shape[:2], *counts])
        if kind == "max":
            result[:, :, i, j] = np.nanmax(window, axis=(2, 3))
        else:
            total = np.nansum(window, axis=(2, 3))
            cells = np.sum(~np.isnan(window), axis=(2, 3)) if exclusive else size[0] * size[1]
            result[:, :, i, j] = total / cells
    return result


def same(size, span, stride):
    total = max((-(-size // stride) - 1) * stride + span - size, 0)
    return total // 2, total - total // 2


CONVOLUTIONS = [
    dict(filter_size=3),
    dict(filter_size=[2, 3], stride=[2, 1], padding=[1, 2]),
    dict(filter_size=3, padding=[0, 1, 2, 3], dilation=[2, 1]),
    dict(filter_size=2, padding=[[0, 0], [0, 0], [1, 0], [2, 1]], groups=2),
    dict(filter_size=3, stride=2, padding="SAME"),
    dict(filter_size=[4, 3], stride=[3, 2], padding="SAME", groups=2),
    dict(filter_size=3, dilation=2, padding="SAME"),
    dict(filter_size=2, stride=2, padding="VALID"),
]


def geometry(settings, shape):
    """Return sizes, strides, dilations and pads of a convolution with these `settings`, for images of `shape`."""
    pair = lambda v: [v, v] if isinstance(v, int) else v  # noqa: E731
    size, stride = pair(settings["filter_size"]), pair(settings.get("stride", 1))
    dilation, padding = pair(settings.get("dilation", 1)), settings.get("padding", 0)
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, size, strict=True)]
    if padding == "SAME":
        pads = [same(*v) for v in zip(shape, spans, stride, strict=True)]
    elif padding == "VALID":
        pads = [(0, 0), (0, 0)]
    elif isinstance(padding, int) or len(padding) == 2:
        pads = [(p, p) for p in pair(padding)]
    else:
        pads = padding[2:] if isinstance(padding[0], list) else [padding[:2], padding[2:]]
    return size, stride, dilation, pads


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("settings", CONVOLUTIONS, ids=str)
def test_convolution_is_the_sum_over_windows(settings, layout):
    x = RNG.normal(size=(2, 4, 7, 9)).astype("float32")
    size, stride, dilation, pads = geometry(settings, x.shape[2:])
    groups = settings.get("groups", 1)
    w = RNG.normal(size=(6, 4 // groups, *size)).astype("float32")
    want = convolve(x, w, stride, pads, dilation, groups)
    if layout == "NHWC" and isinstance(settings.get("padding"), list) and isinstance(settings["padding"][0], list):
        settings = settings | {"padding": [[0, 0], *pads, [0, 0]]}
    given = x if layout == "NCHW" else x.transpose(0, 2, 3, 1)

    def program():
        data = layers.data("x", given.shape[1:])
        return layers.conv2d(data, 6, data_format=layout, bias_attr=False, **settings)

    got = output(program, {"x": given}, arrays={"conv2d_0.w_0": w})
    np.testing.assert_allclose(got if layout == "NCHW" else got.transpose(0, 3, 1, 2), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "settings", [dict(stride=2, padding=1), dict(stride=[3, 2], dilation=2), dict(padding=[1, 0, 0, 2])], ids=str
)
def test_transposed_convolution_carries_the_gradient_of_a_convolution(settings, groups):
    x = RNG.normal(size=(2, 4, 5, 4)).astype("float32")
    w = RNG.normal(size=(4, 6 // groups, 3, 2)).astype("float32")

    def back():
        data = layers.data("x", x.shape[1:])
        return layers.conv2d_transpose(data, 6, filter_size=[3, 2], groups=groups, bias_attr=False, **settings)

    got = output(back, {"x": x}, arrays={"conv2d_transpose_0.w_0": w})

    def forward(y):
        def program():
            data = layers.data("y", got.shape[1:])
            return layers.conv2d(data, 4, [3, 2], groups=groups, bias_attr=False, data_format="NCHW", **settings)

        return run(program, {"y": y}, arrays={"conv2d_0.w_0": w}).outputs[0]

    _, pull = jax.vjp(forward, jnp.zeros(got.shape))
    np.testing.assert_allclose(got, pull(jnp.asarray(x))[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind, exclusive", [("max", True), ("avg", True), ("avg", False)])
@pytest.mark.parametrize("ceil", [False, True])
@pytest.mark.parametrize(
    "size, stride, pads",
    [((2, 2), (2, 2), ((0, 0), (0, 0))), ((3, 2), (2, 1), ((1, 1), (0, 0))), ((3, 3), (2, 2), ((0, 1), (2, 0)))],
)
def test_pooling_is_over_windows(kind, exclusive, ceil, size, stride, pads):
    x = RNG.normal(size=(2, 3, 6, 7)).astype("float32")
    want = pool(x, size, kind, stride, pads, ceil, exclusive)
    flat = [p for pair in pads for p in pair]
    check(
        lambda v: layers.pool2d(v, list(size), kind, list(stride), flat, ceil_mode=ceil, exclusive=exclusive), want, x=x
    )
    moved = x.transpose(0, 2, 3, 1)
    check(
        lambda v: layers.pool2d(
            v, list(size), kind, list(stride), flat, ceil_mode=ceil, exclusive=exclusive, data_format="NHWC"
        ),
        want.transpose(0, 2, 3, 1),
        x=moved,
    )


def test_pooling_forms():
    x = RNG.normal(size=(2, 3, 6, 7)).astype("float32")
    check(lambda v: layers.pool2d(v, pool_type="avg", global_pooling=True), x.mean((2, 3), keepdims=True), x=x)
    pads = [same(6, 3, 2), same(7, 3, 2)]
    want = pool(x, (3, 3), "avg", (2, 2), pads, False, True)
    check(lambda v: layers.pool2d(v, 3, "avg", 2, "SAME"), want, x=x)
    integers = np.arange(32).reshape(2, 1, 4, 4)
    check(lambda v: layers.pool2d(v, 2, "max", 2), integers[:, :, 1::2, 1::2], x=integers)


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda x: layers.conv2d(x, 4, 9), "smaller than a filter"),
        (lambda x: layers.conv2d(x, 4, 3, groups=2), "must divide the 3 channels"),
        (lambda x: layers.conv2d(x, 4, 3, data_format="CHWN"), "data_format='CHWN'"),
        (lambda x: layers.conv2d(x, 4, [3, 3, 3]), "filter_size"),
        (lambda x: layers.conv2d(x, 4, 3, padding="FULL"), "SAME"),
        (lambda x: layers.conv2d(x, 4, 3, padding=[1, 2, 3]), "padding"),
        (lambda x: layers.conv2d(x, 4, 3, padding=[[1, 1], [0, 0], [1, 1], [1, 1]]), "batch or the channels"),
        (lambda x: layers.conv2d(x, 0, 3), r"num_filters=0\): expected a whole number from 1 on"),
        (lambda x: layers.conv2d(x, 4, 3, param_attr=False), "cannot do without"),
        (lambda x: layers.conv2d_transpose(x, 4), "needs filter_size or output_size"),
        (lambda x: layers.conv2d_transpose(x, 4, output_size=40, filter_size=3, stride=2), "stride - 1 more"),
        (lambda x: layers.pool2d(x, 9), "does not fit"),
        (lambda x: layers.pool2d(x, 2, pool_padding=2), "must cover some"),
        (lambda x: layers.pool2d(x, 1, pool_stride=5, ceil_mode=True), "must cover some"),
        (lambda x: layers.pool2d(x, 2, "median"), "pool_type='median'"),
        (lambda x: layers.pool2d(x), r"pool_size=-1\): expected a whole number from 1 on"),
        (lambda x: layers.adaptive_pool2d(x, 9), "fewer cells"),
        (lambda x: layers.conv2d(layers.flatten(x), 4, 3), "layers.reshape"),
    ],
)
def test_mistakes_are_explained(build, message):
    with pytest.raises(errors.FluidError, match=message) as caught:
        fluid.Program(lambda: build(layers.data("x", [3, 8, 8])))
    assert "called at" in caught.value.__notes__[0] and "test_windows.py" in caught.value.__notes__[0]


@pytest.mark.sample(3)
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32"])
def test_adjacent_pooling_windows_match_reduce_window(layout, dtype):
    """Check values and gradients if pixels are equal, if pixels remain at the edge, and, for values, with NaN."""
    x = jnp.asarray(RNG.integers(-2, 3, (3, 7, 8, 7)), dtype)
    if dtype != "int32":
        x = x.at[0, 0, 1, 0].set(jnp.nan).at[1, 3, 2, 1].set(jnp.inf).at[1, 3, 2, 2].set(-jnp.inf)
    shape = (1, 1, 2, 3) if layout == "NCHW" else (1, 2, 3, 1)
    lowest = np.array(-np.inf if dtype != "int32" else np.iinfo("int32").min, x.dtype)

    def by_window(x):
        return jax.lax.reduce_window(x, lowest, jax.lax.max, shape, shape, "VALID")

    def pooled():
        image = layers.data("x", [7, 8, 7], dtype)
        return layers.pool2d(image, pool_size=[2, 3], pool_stride=[2, 3], data_format=layout)

    program = fluid.Program(pooled)

    def by_layer(x):
        return program.apply({}, {"x": x}, key=None, mode="test").outputs[0]

    np.testing.assert_array_equal(by_layer(x).astype("float32"), by_window(x).astype("float32"))
    if dtype == "int32":
        return
    finite = jnp.nan_to_num(x, posinf=1, neginf=-1)
    found, expected = (jax.vjp(f, finite) for f in (by_layer, by_window))
    seed = jnp.arange(found[0].size, dtype=dtype).reshape(found[0].shape)
    np.testing.assert_array_equal(found[1](seed)[0], expected[1](seed)[0])


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(
    "settings",
    [
        dict(filter_size=[5, 3]),
        dict(filter_size=[6, 1]),
        dict(filter_size=1, stride=[2, 3]),
        dict(filter_size=3, padding=1, stride=2),
        dict(filter_size=5, groups=2),
        dict(filter_size=5, dilation=[1, 2]),
    ],
    ids=str,
)
@pytest.mark.sample(3)
@pytest.mark.parametrize("channels", [4, 6])
def test_training_has_the_gradients_of_convolutions(channels, settings, layout):
    """Check that `conv2d` in training has the values and gradients of `lax.conv_general_dilated`."""
    x = RNG.normal(size=(2, channels, 9, 11)).astype("float32")
    size, stride, dilation, pads = geometry(settings, x.shape[2:])
    groups = settings.get("groups", 1)
    w = RNG.normal(size=(6, channels // groups, *size)).astype("float32")
    order = (0, 1, 2, 3) if layout == "NCHW" else (0, 2, 3, 1)

    def program():
        data = layers.data("x", np.transpose(x, order).shape[1:])
        return layers.conv2d(data, 6, data_format=layout, bias_attr=False, **settings)

    traced = fluid.Program(program)

    def by_layer(x, w):
        feed = {"x": x.transpose(order)}
        found = traced.apply({"conv2d_0.w_0": w}, feed, key=None, mode="train").outputs[0]
        return found.transpose(np.argsort(order))

    def by_lax(x, w):
        return jax.lax.conv_general_dilated(
            x, w, stride, pads, rhs_dilation=dilation, feature_group_count=groups, precision="highest"
        )

    (found, back), (want, wanted) = (jax.vjp(f, jnp.asarray(x), jnp.asarray(w)) for f in (by_layer, by_lax))
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-4)
    seed = jnp.asarray(RNG.normal(size=want.shape).astype("float32"))
    for got, expected in zip(back(seed), wanted(seed), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


def test_depthwise_convolution_names_match_fluid():
    """Check that default names of convolutions begin with `depthwise_` in the same cases as in Fluid 1.8.

    Fluid does so if a convolution has as many groups as channels, and `use_cudnn` is False. `conv2d` may have more
    filters than channels, but `conv2d_transpose` may not.
    """

    def program():
        x = layers.data("x", [4, 6, 6])
        for convolution in (layers.conv2d, layers.conv2d_transpose):
            for filters, groups, use_cudnn in (
                (4, 4, False),
                (8, 4, False),
                (4, 4, True),
                (4, 2, False),
                (4, None, False),
            ):
                convolution(x, filters, filter_size=3, groups=groups, use_cudnn=use_cudnn, bias_attr=False)
        return layers.conv2d(x, 4, 3, groups=4, use_cudnn=False, name="mine", bias_attr=False)

    usual, moved = "conv2d_{}.w_0", "conv2d_transpose_{}.w_0"
    assert list(fluid.Program(program).parameters) == [
        *(f"depthwise_{usual}".format(i) for i in range(2)),
        *(usual.format(i) for i in range(3)),
        f"depthwise_{moved}".format(0),
        *(moved.format(i) for i in range(4)),
        "mine.w_0",
    ]


def test_layers_go_on_with_the_channels_last():
    """Check that a convolutional net on a CPU transposes only its input and its output, and that NaN stays NaN."""

    def program():
        hidden = layers.data("x", [3, 12, 12])
        for _ in range(2):
            hidden = layers.batch_norm(layers.conv2d(hidden, 4, 3, padding=1), act="relu")
            hidden = layers.tanh(layers.pool2d(hidden, 2, "max", 2))
        return layers.conv2d(hidden, 2, 3)

    traced = fluid.Program(program)
    arrays = {n: jnp.ones(s.shape) for n, s in {**traced.parameters, **traced.states}.items()}

    def compute(x):
        return traced.apply(arrays, {"x": x}, key=None, mode="train").outputs[0]

    x = jnp.asarray(RNG.normal(size=(2, 3, 12, 12)), "float32")
    assert np.isnan(compute(x.at[0, 0, 0, 0].set(jnp.nan))).any()
    jaxpr = jax.make_jaxpr(compute)(x).jaxpr
    needed = set(map(id, jaxpr.outvars))
    moves = 0
    for equation in reversed(jaxpr.eqns):
        if any(id(v) in needed for v in equation.outvars):
            needed |= set(map(id, equation.invars))
            moves += equation.primitive.name == "transpose"
    assert moves == (2 if jax.default_backend() == "cpu" else 0)
