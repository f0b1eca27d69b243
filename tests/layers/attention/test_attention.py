"""Attention: results are compared with NumPy loops, cached steps with whole sequences, and positions with formulas."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layers.layer_table import declare, real, whole
from layers.run_program import check
from layers.sequence_table import sequence

import fluid
from fluid import errors, layers, nets
from fluid.layers.attention.attention import attend

LENGTHS = [4, 1, 0, 3]


def outputs(program, feed, arrays=None, mode="test", **options):
    """Compile a program, run it once, and return its outputs."""
    program = fluid.Program(program, **options)

    def apply(arrays, feed):
        arrays = program.init(jax.random.key(1)) if arrays is None else arrays
        return program.apply(arrays, feed, key=jax.random.key(0), mode=mode).outputs

    return jax.jit(apply)(arrays, feed)


def output(*args, **options):
    """Compile a program, run it once, and return its first output as a NumPy array."""
    return np.asarray(outputs(*args, **options)[0])


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def attention(queries, keys, values, heads, sees):
    """Compute attention query by query and head by head; `sees(row, i)` is the number of visible keys of query i."""
    result = np.zeros((*queries.shape[:2], values.shape[2]))
    for row, i, head in np.ndindex(*queries.shape[:2], heads):
        q, k, v = (np.split(x, heads, axis=-1)[head][row] for x in (queries, keys, values))
        seen = sees(row, i)
        if seen:
            weights = softmax(k[:seen] @ q[i] / np.sqrt(q.shape[-1]))
            result[row, i, head * v.shape[-1] :][: v.shape[-1]] = weights @ v[:seen]
    return result


def rotated(x):
    """Return `x`, `[batch, time, size]`, rotated by the positions 0, 1, 2, ... of its steps.

    Elements `i` and `size / 2 + i` are the parts of a complex number, which is multiplied by `exp(1j * angle)`.
    """
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * 10000.0 ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([turned.real, turned.imag], axis=-1)


def projected(arrays, *inputs, rotary_heads=0):
    """Return `inputs`, which are queries, keys and values, projected as `multi_head_attention` projects them.

    The queries and keys are rotated too, unless `rotary_heads` is 0.
    """
    found = [x @ arrays[f"w_{i}"] + arrays[f"b_{i}"] for i, x in enumerate(inputs)]
    if rotary_heads:
        for i in (0, 1):
            found[i] = np.concatenate([rotated(x) for x in np.split(found[i], rotary_heads, axis=-1)], axis=-1)
    return found


def parameters(*shapes, dtype="float32"):
    """Return random weights `w_0`, `w_1`, ... of the given shapes, and a bias `b_0`, `b_1`, ... for each weight."""
    weights = {f"w_{i}": real(*shape, salt=i).astype(dtype) for i, shape in enumerate(shapes)}
    return weights | {f"b_{i}": real(shape[1], salt=i).astype(dtype) for i, shape in enumerate(shapes)}


def named(arrays, prefix="multi_head_attention_0"):
    return {f"{prefix}.{name}": value for name, value in arrays.items()}


def room(x, steps):
    """Return an empty attention cache for `steps` steps of two heads of size four, with as many rows as `x`."""
    return layers.attention_cache(x.shape[0], steps, 2, 4, str(x.dtype))


def program_of(feed, dtype=None, **arguments):
    """Return a program function that passes all feeds, in order, to `multi_head_attention`."""
    return lambda: layers.multi_head_attention(*(declare(n, v, dtype) for n, v in feed.items()), **arguments)


SQUARE = [(8, 8)] * 4
X = real(4, 5, 8)


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("rotary", [False, True], ids=["", "rotary"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_self_attention(heads, causal, rotary):
    arrays = parameters(*SQUARE)
    program = program_of({"x": X}, num_heads=heads, causal=causal, rotary=rotary)
    got = output(program, {"x": X}, arrays=named(arrays))
    seen = attention(
        *projected(arrays, X, X, X, rotary_heads=rotary * heads), heads, lambda row, i: i + 1 if causal else 5
    )
    np.testing.assert_allclose(got, seen @ arrays["w_3"] + arrays["b_3"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("drop", [0.0, 1e-9], ids=["library", "weights"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_sequences_do_not_attend_to_padding(causal, drop):
    arrays, x = parameters(*SQUARE), sequence(4, 5, 8, lengths=LENGTHS)
    program = program_of({"x": x}, num_heads=2, causal=causal, dropout_rate=drop)
    got = outputs(program, {"x": x}, named(arrays))[0]
    data = np.asarray(x.data)
    seen = attention(
        *projected(arrays, data, data, data), 2, lambda row, i: min(i + 1, LENGTHS[row]) if causal else LENGTHS[row]
    )
    want = x.with_data(seen @ arrays["w_3"] + arrays["b_3"])
    for a, b in zip(got.rows(), want.rows(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_cross_attention_of_other_widths():
    shapes = [(8, 6), (5, 6), (3, 6), (6, 6)]
    arrays = parameters(*shapes)
    feed = {"q": X, "k": sequence(4, 4, 5, lengths=LENGTHS), "v": sequence(4, 4, 3, lengths=LENGTHS)}
    program = program_of(feed, num_heads=2, size=6)
    assert [s.shape for n, s in fluid.Program(program).parameters.items() if ".w_" in n] == shapes
    got = output(program, feed, arrays=named(arrays))
    seen = attention(*projected(arrays, X, feed["k"].data, feed["v"].data), 2, lambda row, i: LENGTHS[row])
    assert not seen[2].any()
    np.testing.assert_allclose(got, seen @ arrays["w_3"] + arrays["b_3"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("heads", "width"), [(1, 8), (1, 6), (2, 8), (2, 4)])
def test_scaled_dot_product_attention(heads, width):
    feed = {"q": X, "k": sequence(4, 4, 8, lengths=LENGTHS), "v": sequence(4, 4, width, lengths=LENGTHS)}
    arrays = parameters((8, 8), (8, 8), (width, width))
    values = [X, feed["k"].data, feed["v"].data]

    def program():
        return nets.scaled_dot_product_attention(*(declare(n, v) for n, v in feed.items()), num_heads=heads)

    if heads > 1:
        values = projected(arrays, *values)
        assert list(fluid.Program(program).parameters) == [f"fc_{i}.{s}_0" for i in range(3) for s in "wb"]
    by_name = {f"fc_{name[-1]}.{name[0]}_0": v for name, v in arrays.items()} if heads > 1 else {}
    got = output(program, feed, arrays=by_name)
    want = attention(*values, heads, lambda row, i: LENGTHS[row])
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert not got[2].any()


def test_sequences_of_queries_stay_sequences():
    feed = {"q": sequence(4, 5, 8, lengths=LENGTHS), "k": real(4, 3, 8)}
    for build in (layers.multi_head_attention, lambda q, k: nets.scaled_dot_product_attention(q, k, k)):
        result = outputs(lambda build=build: build(*(declare(n, v) for n, v in feed.items())), feed)[0]
        assert result.shape == (4, 5, 8) and result.lengths.tolist() == LENGTHS


BUILDS = {
    "self": lambda q, k: layers.multi_head_attention(q, num_heads=2, causal=True, rotary=True),
    "cross": lambda q, k: layers.multi_head_attention(q, k, num_heads=2),
    "weights": lambda q, k: layers.multi_head_attention(q, k, num_heads=2, dropout_rate=1e-9),
    "nets": lambda q, k: nets.scaled_dot_product_attention(q, k, k, num_heads=2),
    "cache": lambda q, k: layers.multi_head_attention(q, num_heads=2, rotary=True, cache=room(q, 9))[0],
}


@pytest.mark.parametrize("build", BUILDS)
def test_gradients_are_slopes(build):
    """Check that gradients of attention equal finite differences in float64, with padded rows and an empty row."""
    lengths = {"q": [5, 2, 0, 3], "k": LENGTHS}
    feed = {n: sequence(4, 5 if n == "q" else 4, 8, lengths=v) for n, v in lengths.items()}
    with jax.enable_x64(True):
        feed = {n: v.with_data(v.data.astype("float64")) for n, v in feed.items()}
        program = fluid.Program(lambda: BUILDS[build](*(declare(n, v, "float64") for n, v in feed.items())))
        arrays = program.init(jax.random.key(0))
        assert {v.dtype for v in arrays.values()} == {np.dtype("float64")}

        def loss(point):
            given = {n: v.with_data(point[n]) for n, v in feed.items()}
            result = program.apply(point["arrays"], given, key=jax.random.key(0), mode="train").outputs[0]
            return jnp.sum(jnp.where(result.mask[..., None], jnp.sin(result.data), 0))

        point = {"arrays": arrays} | {n: jnp.asarray(v.data) for n, v in feed.items()}
        along = jax.tree.map(lambda v: np.random.default_rng(v.size).normal(size=v.shape), point)
        value_and_slope = jax.jit(jax.value_and_grad(loss))
        slope = sum(jax.tree.leaves(jax.tree.map(lambda g, a: jnp.sum(g * a), value_and_slope(point)[1], along)))
        ends = (jax.tree.map(lambda v, a, h=h: v + h * a, point, along) for h in (1e-6, -1e-6))
        ahead, behind = (value_and_slope(end)[0] for end in ends)
        np.testing.assert_allclose(slope, (ahead - behind) / 2e-6, rtol=1e-7)


def test_library_and_explicit_weights_agree_in_bfloat16():
    query, key, value = (jnp.asarray(real(2, 5, 2, 4, salt=i), "bfloat16") for i in range(3))
    mask = np.tril(np.ones([5, 5], bool))[None, None]
    by_library = attend(query, key, value, mask)
    by_weights = attend(query, key, value, mask, lambda weights: weights)
    exact = attend(*(v.astype("float32") for v in (query, key, value)), mask)
    for found in (by_library, by_weights):
        assert found.dtype == "bfloat16"
        np.testing.assert_allclose(found.astype("float32"), exact, rtol=2e-2, atol=1e-2)


def test_mixed_precision():
    """Check that the outputs and the cache are bfloat16, while the parameters stay float32."""

    def program():
        return BUILDS["cache"](declare("x", X), None)

    mixed = fluid.Program(program, precision="bfloat16")
    assert {s.dtype for s in mixed.parameters.values()} == {"float32"}
    assert mixed.values["attention_cache_0.tmp_0"].dtype == mixed.outputs[0].dtype == "bfloat16"
    arrays = named(parameters(*SQUARE))
    want, got = (outputs(program, {"x": X}, arrays, precision=p)[0] for p in (None, "bfloat16"))
    assert not np.array_equal(got, want)
    np.testing.assert_allclose(got.astype("float32"), want, rtol=5e-2, atol=5e-2)


def test_dropout_applies_to_weights_only_in_training():
    eye = np.stack([np.eye(8, dtype="float32")] * 4)
    program = program_of({"x": eye}, num_heads=2, dropout_rate=0.5)
    # The values are one-hot vectors and the projections are identities, so the output equals the attention weights.
    arrays = named({n: np.eye(8, dtype="float32") if "w" in n else 0 * v for n, v in parameters(*SQUARE).items()})
    whole_weights = output(program, {"x": eye}, arrays=arrays)
    np.testing.assert_allclose(whole_weights, attention(eye, eye, eye, 2, lambda row, i: 8), rtol=1e-5)
    kept = output(program, {"x": eye}, arrays=arrays, mode="train")
    assert 0.3 < np.mean(kept == 0) < 0.7
    np.testing.assert_allclose(kept[kept != 0], 2 * whole_weights[kept != 0], rtol=1e-5)


@pytest.mark.sample(2)
@pytest.mark.parametrize("rotary", [False, True], ids=["", "rotary"])
@pytest.mark.parametrize("pieces", [[1] * 5, [5], [3, 1, 1], [2, 3]], ids=str)
def test_cached_steps_match_the_whole_sequence(pieces, rotary):
    """Check that attention with a cache, in pieces of one or more steps, equals attention on the whole sequence."""
    ends = np.cumsum(pieces)

    def program():
        x = declare("x", X)
        whole = shared(x, causal=True, rotary=rotary)
        cache, found = room(x, 6), []
        for start, end in zip(ends - pieces, ends, strict=True):
            y, cache = shared(x[:, start:end], cache=cache, rotary=rotary)
            found.append(y)
        return whole, jnp.concatenate(found, axis=1), cache.position

    want, got, position = outputs(program, {"x": X})
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert position.tolist() == [5] * 4


def shared(x, **arguments):
    """Call attention with parameters that all calls share."""
    weights, biases = ([f"{kind}_{i}" for i in range(4)] for kind in "wb")
    return layers.multi_head_attention(x, num_heads=2, param_attr=weights, bias_attr=biases, **arguments)


def test_a_cache_of_rows_of_different_lengths():
    """Check that each row equals attention without a cache, for prompts of 4, 1, 0 and 3 steps and two more steps."""
    prompt, more = sequence(4, 5, 8, lengths=LENGTHS), real(4, 2, 8, salt=1)

    def program():
        x, y = declare("x", prompt), declare("y", more)
        first, cache = shared(x, cache=room(x, 8), rotary=True)
        second, cache = shared(y[:, :1], cache=cache, rotary=True)
        third, cache = shared(y[:, 1:], cache=cache, rotary=True)
        return first, second, third, cache.position

    first, second, third, position = outputs(program, {"x": prompt, "y": more})
    assert position.tolist() == [n + 2 for n in LENGTHS]
    rows = [np.concatenate([alone, after]) for alone, after in zip(prompt.rows(), more, strict=True)]
    batch = fluid.SequenceBatch.from_rows(rows)
    want = outputs(lambda: shared(declare("x", batch), causal=True, rotary=True), {"x": batch})[0].rows()
    for got, end, last, row in zip(first.rows(), second, third, want, strict=True):
        np.testing.assert_allclose(np.concatenate([got, end, last]), row, rtol=1e-5, atol=1e-5)


def test_a_full_cache_returns_nan():
    def program(feed):
        x = declare("x", feed)
        return shared(x, cache=room(x, 3))[0]

    got = output(lambda: program(X), {"x": X})
    assert np.isfinite(got[:, :3]).all() and np.isnan(got[:, 3:]).all()
    ragged = sequence(4, 5, 8, lengths=[3, 1, 0, 2])
    result = outputs(lambda: program(ragged), {"x": ragged})[0]
    assert np.isfinite(result.data).all(), "the padding of a row needs no room"


def test_a_cache_can_be_reordered_by_its_rows():
    """Check that attention continues from a cache whose rows were selected and repeated, as a beam search does."""

    def program():
        x = declare("x", X)
        _, cache = shared(x[:, :3], cache=room(x, 5))
        cache = jax.tree.map(lambda a: a[jnp.arange(x.shape[0]) // 2], cache)
        return shared(x[:, 3:], cache=cache)[0]

    mixed = np.concatenate([X[[0, 0, 1, 1], :3], X[:, 3:]], axis=1)
    want = output(lambda: shared(declare("x", mixed), causal=True), {"x": mixed})[:, 3:]
    np.testing.assert_allclose(output(program, {"x": X}), want, rtol=1e-5, atol=1e-5)


@functools.cache
def products_of_rotated(heads, half):
    """Return a compiled function of queries, keys and their first position: the dot products after the rotation."""
    shape = [4, heads, 2 * half]

    def program():
        q, k = (layers.data(name, shape) for name in "qk")
        start = layers.data("start", [1], "int64", append_batch_size=False)[0]
        turned = [layers.rotary_position(v, start) for v in (q, k)]
        return jnp.einsum("bthd,bshd->bhts", *turned)

    discovered = fluid.Program(program)
    return jax.jit(lambda feed: discovered.apply({}, feed, key=None, mode="test").outputs[0])


@given(shift=st.integers(0, 1000), heads=st.integers(1, 2), half=st.sampled_from([1, 4]), seed=st.integers(0, 99))
def test_products_of_rotated_vectors_depend_on_distance_only(shift, heads, half, seed):
    q, k = np.random.default_rng(seed).normal(size=[2, 1, 4, heads, 2 * half]).astype("float32")
    at_zero, later = (
        products_of_rotated(heads, half)({"q": q, "k": k, "start": np.array([start], "int32")}) for start in (0, shift)
    )
    np.testing.assert_allclose(later, at_zero, atol=2e-3)
    # A query and a key at the same time step have the same product without rotation, so rotation keeps lengths.
    plain = np.einsum("bthd,bthd->bht", q, k)
    np.testing.assert_allclose(np.einsum("bhtt->bht", later), plain, atol=2e-3)


def test_rotary_positions():
    x = real(2, 3, 4)
    check(lambda x: layers.rotary_position(x), rotated(x), x=x)
    later = rotated(np.concatenate([x, x], axis=1))[:, 3:]
    check(lambda x: layers.rotary_position(x, 3), later, x=x)
    check(lambda x: layers.rotary_position(x, np.arange(3, 6)), later, x=x)
    places = np.array([[0, 1, 2], [3, 4, 5]])
    check(lambda x, p: layers.rotary_position(x, p), np.stack([rotated(x)[0], later[1]]), x=x, p=places)
    batch = sequence(2, 3, 4, lengths=[3, 1])
    got = outputs(lambda: layers.rotary_position(declare("x", batch)), {"x": batch})[0]
    np.testing.assert_allclose(got.rows()[0], rotated(np.asarray(batch.data))[0], rtol=1e-5)
    one = real(2, 3, 1, 4)
    check(lambda x: layers.rotary_position(x, base=100.0)[:, :, 0, 1] * 0, np.zeros([2, 3]), x=one)


def test_sinusoidal_positions():
    places = whole(50, 4, 3)
    rates = 10000.0 ** (-np.arange(3) / 2)
    angles = places[..., None] * rates
    want = np.concatenate([np.sin(angles), np.cos(angles)], axis=-1)
    check(lambda p: layers.sinusoidal_position(p, 6), want, rtol=1e-4, atol=1e-5, p=places)
    want = np.stack([np.sin(places / 1e4), np.cos(places / 1e4)], axis=-1)
    check(lambda p: layers.sinusoidal_position(p, 2), want, p=places)


WRONG = {
    "heads": (lambda x: layers.multi_head_attention(x, num_heads=3), "size=8 cannot be shared among num_heads=3.*=9"),
    "no heads": (
        lambda x: layers.multi_head_attention(x, num_heads=0), r"num_heads=0\): expected a whole number from 1 on"
    ),
    "odd": (lambda x: layers.multi_head_attention(x, num_heads=8, rotary=True), "a head has 1; expected an even"),
    "values": (lambda x: layers.multi_head_attention(x, values=x), "values without keys"),
    "both": (lambda x: layers.multi_head_attention(x, x, cache=room(x, 5)), "leave out keys="),
    "cache": (
        lambda x: layers.multi_head_attention(x, num_heads=2, cache=layers.attention_cache(4, 5, 2, 8)),
        "num_heads=2, head_size=4",
    ),
    "one name": (
        lambda x: layers.multi_head_attention(x, param_attr="w"), r'param_attr=\["w_q", "w_k", "w_v", "w_out"\]'
    ),
    "three": (lambda x: layers.multi_head_attention(x, bias_attr=[None] * 3), "3 settings; give one for all, or four"),
    "dimensions": (lambda x: layers.multi_head_attention(x, x[:, 0]), r"expected \[batch, targets, width\]"),
    "room": (lambda x: layers.attention_cache(4, 0, 2, 4), r"max_length=0\): expected a whole number from 1 on"),
    "position": (lambda x: layers.rotary_position(x, np.arange(4)), "does not fit the steps of x"),
    "size": (lambda x: layers.sinusoidal_position(np.arange(4), 5), "size=5; expected a positive even number"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments(case):
    build, message = WRONG[case]
    with pytest.raises(errors.FluidError, match=message) as caught:
        fluid.Program(lambda: build(declare("x", X)))
    assert isinstance(caught.value, ValueError)


def test_causal_attention_to_more_steps_is_refused():
    def program():
        new, memory = layers.data("new", [2, 8]), layers.data("memory", [5, 8])
        return layers.multi_head_attention(new, memory, num_heads=2, causal=True)

    with pytest.raises(errors.ShapeError, match=r"\[batch, 2, 8\] and keys .*\[batch, 5, 8\].*cache="):
        fluid.Program(program)
