"""Implementations of convolution: each has the values and derivatives of `plain_convolution`."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fluid.layers.kernels.convolution import (
    Geometry,
    blocks_of_channels,
    computed_once,
    convolution,
    grouped_convolution,
    growing_convolution,
    plain_convolution,
    shifted_images,
)

# The forms of a kernel have equal results; one row in three runs, and all rows with FLUID_TEST_ALL=1.
pytestmark = pytest.mark.sample(3)

SAME = Geometry((1, 1), [(1, 1), (1, 1)], (1, 1), (1, 1), "NHWC")
TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 2e-3}
LAYOUTS = {1: ("NCW", "NWC"), 2: ("NCHW", "NHWC"), 3: ("NCDHW", "NDHWC")}

# Sizes of convolutions, by name: numbers of channels, filters and groups, and the size of a filter in pixels.
SHAPES = {
    "two groups": (4, 6, 2, (3, 3)),
    "four groups of more filters": (8, 16, 4, (3, 3)),
    "several groups in each of several blocks": (96, 48, 12, (3, 3)),
    "one group in each block": (96, 6, 3, (1, 1)),
    "groups that no two blocks divide": (70, 14, 7, (2, 3)),
    "one pixel": (64, 64, 32, (1, 1)),
    "depthwise": (5, 5, 5, (3, 2)),
    "depthwise, two filters for each channel": (6, 12, 6, (3, 3)),
    "depthwise, large filters": (3, 3, 3, (8, 7)),
    "signals": (6, 6, 3, (3,)),
    "volumes": (4, 8, 2, (2, 3, 2)),
    "depthwise volumes": (4, 4, 4, (3, 1, 2)),
    "one group": (3, 5, 1, (3, 2)),
    "volumes in one group": (3, 5, 1, (2, 3, 2)),
}
# The geometry of a convolution: lists of strides, padding, dilations and spread (the distance of input pixels in a
# transposed convolution). A short list is repeated, so that each dimension of the image has an element.
GEOMETRIES = {
    "plain": ([1], [(0, 0)], [1], [1]),
    "padded": ([1], [(1, 1)], [1], [1]),
    "unevenly padded, strides": ([2, 3], [(0, 2), (3, 1)], [1], [1]),
    "dilated": ([1, 2], [(2, 2)], [2, 1], [1]),
    "spread": ([1], [(2, 1), (1, 2)], [1], [2, 3]),
    "cropped": ([1], [(-1, 2), (2, -1)], [1], [1, 2]),
    "larger than its images": ([1], [(3, 2), (-1, 4)], [1, 2], [1]),
}
# Tested convolutions. Most shapes of images are tested with one geometry (strides, padding, dilation). Shapes with
# special implementations are tested with all geometries. Channels are first and last in turn.
CASES = [(shape, list(GEOMETRIES)[i % len(GEOMETRIES)], i % 2 == 0) for i, shape in enumerate(SHAPES)]
CASES += [("two groups", geometry, i % 2 == 1) for i, geometry in enumerate(GEOMETRIES)]
CASES += [("depthwise", geometry, i % 2 == 0) for i, geometry in enumerate(GEOMETRIES)]
CASES += [("one group", geometry, i % 2 == 1) for i, geometry in enumerate(GEOMETRIES)]
CASES += [("volumes in one group", geometry, i % 2 == 0) for i, geometry in enumerate(GEOMETRIES)]
CASES = list(dict.fromkeys(CASES))


def case(shape, geometry, last, dtype="float32"):
    """Return a case of a convolution: images, filters, geometry (strides, padding, dilations) and number of groups.

    If `last` is True, the images have channels last.
    """
    channels, count, groups, window = SHAPES[shape]
    dims = len(window)
    around = lambda values: [values[i % len(values)] for i in range(dims)]  # noqa: E731
    random = np.random.default_rng(3)
    pixels = [13, 12, 8][:dims]
    size = (2, *pixels, channels) if last else (2, channels, *pixels)
    x = jnp.asarray(random.normal(size=size), dtype)
    filters = jnp.asarray(random.normal(size=(count, channels // groups, *window)), dtype)
    return x, filters, Geometry(*map(around, GEOMETRIES[geometry]), LAYOUTS[dims][last]), groups


def forms_of(x, filters, geometry, groups):
    """Return, by name, all implementations that can compute a convolution, as functions of images and filters."""
    depthwise = groups == len(filters) == x.shape[geometry.layout.index("C")] and filters.size < 100
    forms = {
        "chosen": lambda x, w: grouped_convolution(x, w, geometry, groups),
        "blocks": lambda x, w: blocks_of_channels(x, w, geometry, groups),
    }
    if depthwise:
        forms["shifted"] = lambda x, w: shifted_images(x, w, geometry)
    if groups == 1 and max(geometry.strides) == 1:
        forms["growing"] = lambda x, w: growing_convolution(x, w, geometry)
    if max(geometry.spread) == 1:
        forms["in training"] = lambda x, w: convolution(x, w, geometry, groups, True)
        forms["without gradients"] = lambda x, w: convolution(x, w, geometry, groups, False)
    return forms


@functools.partial(jax.jit, static_argnums=0)
def derivatives(form, x, filters):
    """Return values of a convolution `form`, its tangents and gradients, and the gradients of the gradients' norm."""

    def gradients(x, filters):
        value, pull = jax.vjp(form, x, filters)
        return pull(jnp.cos(jnp.arange(value.size, dtype=value.dtype)).reshape(value.shape) * value)

    value, tangent = jax.jvp(form, (x, filters), (x[::-1], filters[::-1]))
    norm = lambda x, w: sum(jnp.square(g).sum() for g in gradients(x, w)) / 1000  # noqa: E731
    return value, tangent, gradients(x, filters), jax.grad(norm, (0, 1))(x, filters)


def assert_equal(got, want, dtype="float32"):
    """Check that arrays agree, with a tolerance relative to the largest number of each array."""
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert a.dtype == b.dtype == dtype and a.shape == b.shape
        a, b = np.asarray(a, "float64"), np.asarray(b, "float64")
        np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE[dtype] * np.abs(b).max())


@pytest.mark.sample(4)
@pytest.mark.parametrize("shape, geometry, last", CASES)
def test_forms_equal_the_plain_form(shape, geometry, last):
    x, filters, how, groups = case(shape, geometry, last)
    want = derivatives(lambda x, w: plain_convolution(x, w, how, groups), x, filters)
    for form in forms_of(x, filters, how, groups).values():
        assert_equal(derivatives(form, x, filters), want)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape", ["several groups in each of several blocks", "depthwise", "volumes in one group"])
def test_half_precision(shape, dtype):
    x, filters, how, groups = case(shape, "padded", True, dtype)
    want = plain_convolution(x.astype("float32"), filters.astype("float32"), how, groups).astype(dtype)
    for form in forms_of(x, filters, how, groups).values():
        assert_equal(form(x, filters), want, dtype)


@pytest.mark.parametrize("shape", ["several groups in each of several blocks", "depthwise"])
def test_batched_and_rematerialised(shape):
    x, filters, how, groups = case(shape, "padded", True)
    xs, ws = jnp.stack([x, 2 * x]), jnp.stack([filters, filters[::-1]])
    form = lambda x, w: grouped_convolution(x, w, how, groups)  # noqa: E731
    assert_equal(jax.vmap(form)(xs, ws), jnp.stack([form(x, filters), form(2 * x, filters[::-1])]))
    loss = lambda form: jax.jit(jax.grad(lambda x, w: jnp.square(form(x, w)).sum(), (0, 1)))  # noqa: E731
    assert_equal(loss(jax.checkpoint(form))(x, filters), loss(form)(x, filters))


DENSE = [("one group", "spread"), ("one group", "larger than its images"), ("volumes in one group", "padded")]


def dense_form(x, filters, how, groups):
    """Return the implementation of a convolution that a layer uses in training, as a function of images and filters."""
    forms = forms_of(x, filters, how, groups)
    return forms.get("in training", forms["chosen"])


@pytest.mark.parametrize("shape, geometry", DENSE)
def test_dense_gradients_hold_under_vmap_loop_and_remat(shape, geometry):
    x, filters, how, groups = case(shape, geometry, True)
    form = dense_form(x, filters, how, groups)
    gradients = jax.grad(lambda x, w: jnp.square(form(x, w)).sum(), (0, 1))
    want = [gradients(x, filters), gradients(2 * x, filters[::-1])]
    xs, ws = jnp.stack([x, 2 * x]), jnp.stack([filters, filters[::-1]])
    assert_equal(jax.vmap(gradients)(xs, ws), jax.tree.map(lambda *each: jnp.stack(each), *want))
    assert_equal(jax.lax.map(lambda each: gradients(*each), (xs, ws)), jax.vmap(gradients)(xs, ws))
    kept = jax.grad(lambda x, w: jnp.square(jax.checkpoint(form)(x, w)).sum(), (0, 1))
    assert_equal(jax.jit(kept)(x, filters), want[0])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("shape, geometry", DENSE)
def test_gradients_of_half_precision(shape, geometry, dtype):
    x, filters, how, groups = case(shape, geometry, True, dtype)
    form = dense_form(x, filters, how, groups)
    loss = lambda form: jax.grad(lambda x, w: form(x, w).sum(dtype="float32"), (0, 1))  # noqa: E731
    want = loss(lambda x, w: plain_convolution(x, w, how))(x.astype("float32"), filters.astype("float32"))
    assert_equal(loss(form)(x, filters), jax.tree.map(lambda g: g.astype(dtype), want), dtype)


@pytest.mark.parametrize("shape, geometry", DENSE)
def test_gradients_of_any_number_of_images(shape, geometry):
    """Check that gradients can be exported with a symbolic batch dimension."""
    x, filters, how, groups = case(shape, geometry, False)
    form = dense_form(x, filters, how, groups)
    gradients = jax.jit(jax.grad(lambda w, x: jnp.square(form(x, w)).sum(), (0, 1)))
    (batch,) = jax.export.symbolic_shape("b")
    exported = jax.export.export(gradients)(filters, jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype))
    assert_equal(exported.call(filters, x), gradients(filters, x))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the forms are those of a CPU")
@pytest.mark.parametrize("shape, geometry", DENSE)
def test_no_slow_convolution_is_left_on_a_cpu(shape, geometry):
    """Check that values and gradients contain no convolution that XLA computes slowly on a CPU.

    Convolutions of volumes are slow, and convolutions whose filters are larger than their images.
    """
    x, filters, how, groups = case(shape, geometry, True)
    form = dense_form(x, filters, how, groups)
    gradients = jax.jit(jax.grad(lambda x, w: jnp.square(form(x, w)).sum(), (0, 1)))
    text = gradients.lower(x, filters).as_text()
    found = re.findall(r"stablehlo\.convolution.*: \(tensor<([\dx]+)xf32>, tensor<([\dx]+)xf32>\)", text)
    operands = [[tuple(map(int, operand.split("x"))) for operand in pair] for pair in found]
    assert len(operands) == 3 and all(len(operand) == 4 for pair in operands for operand in pair)
    if len(how.strides) == 2:
        assert all(math.prod(images) > math.prod(window) for images, window in operands)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the forms are those of a CPU")
def test_no_grouped_convolution_is_left_on_a_cpu():
    for shape in SHAPES:
        x, filters, how, groups = case(shape, "plain", True)
        compiled = str(jax.make_jaxpr(lambda x, w: grouped_convolution(x, w, how, groups))(x, filters))  # noqa: B023
        assert set(re.findall(r"feature_group_count=(\d+)", compiled)) <= {"1"}


def test_other_dtypes_have_the_plain_form():
    x, filters, how, groups = case("depthwise", "plain", True)
    x, filters = x.astype("int32"), filters.astype("int32")
    np.testing.assert_array_equal(
        grouped_convolution(x, filters, how, groups), plain_convolution(x, filters, how, groups)
    )


def test_any_number_of_images():
    """Check that a grouped convolution can be exported with a symbolic batch dimension."""
    for shape in ("several groups in each of several blocks", "depthwise"):
        x, filters, how, groups = case(shape, "unevenly padded, strides", False)
        form = jax.jit(lambda x: grouped_convolution(x, filters, how, groups))  # noqa: B023
        (batch,) = jax.export.symbolic_shape("b")
        exported = jax.export.export(form)(jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype))
        assert_equal(exported.call(x), form(x))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="XLA repeats computations on a CPU")
def test_the_input_of_a_convolution_is_computed_once():
    """Check that `computed_once` saves work: a net compiled with this function computes fewer maxima than without it.

    If both numbers of maxima become equal in a later JAX, `computed_once` can be removed.
    """

    def normalised(y):
        centred = y - y.mean((0, 1, 2))
        return centred * jax.lax.rsqrt(jnp.square(centred).mean((0, 1, 2)) + 1e-5)

    def net(kept, x, filters):
        for _ in range(2):
            hidden = jax.nn.relu(normalised(plain_convolution(kept(x), filters, SAME)))
            x = jax.nn.relu(normalised(plain_convolution(kept(hidden), filters, SAME)) + x)
        return jnp.sum(jnp.square(x))

    x, filters = jnp.ones((8, 16, 16, 8)), jnp.ones((8, 8, 3, 3))
    compiled = [
        jax.jit(jax.grad(functools.partial(net, kept), (0, 1))).lower(x, filters).compile().as_text()
        for kept in (computed_once, lambda x: x)
    ]
    once, repeated = (text.count(" maximum(") for text in compiled)
    assert once < repeated
