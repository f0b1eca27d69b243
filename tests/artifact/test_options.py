"""How a model may be exported: half the bytes, folded normalisation, one function for each size."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from artifact.test_artifact import digits, params_of, same, sentiment

import fluid
from fluid import artifact, errors

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(9, 3, 8, 8)).astype("float32")


def trained(function):
    """Parameters that look as if a program had been trained: no mean is 0, no scale 1."""
    return {
        name: np.random.default_rng(len(name)).uniform(0.5, 1.5, value.shape).astype("float32")
        if "batch_norm" in name
        else value
        for name, value in params_of(function).items()
    }


def functions_of(path, entry="predict"):
    """The exported functions of an entry point, as text."""
    _, entries = artifact.archive.read(path)
    files = [function.file for function in artifact.load(path).entries[entry].functions]
    return [jax.export.deserialize(bytearray(entries[file])).mlir_module() for file in files]


# Half precision


def attending():
    x = fluid.layers.data("x", shape=[6, 8])
    hidden = fluid.layers.layer_norm(fluid.layers.multi_head_attention(x, num_heads=2) + x, begin_norm_axis=2)
    hidden = fluid.layers.repeat(lambda h: h + fluid.layers.fc(h, 8, num_flatten_dims=2, act="relu"), 3, hidden)
    return fluid.layers.fc(hidden, size=3, num_flatten_dims=1)


def rated():
    """A table, a loop, and a state that stays in float32."""
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    embedded = fluid.layers.embedding(words, size=[10, 4], is_sparse=True)
    rnn = fluid.layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(embedded)
        before = rnn.memory(shape=[5])
        now = fluid.layers.fc([word, before], size=5, act="tanh")
        rnn.update_memory(before, now)
        rnn.output(now)
    return fluid.layers.fc(fluid.layers.batch_norm(fluid.layers.sequence_last_step(rnn())), size=2)


@pytest.mark.parametrize(
    ("function", "feed", "whole"),
    [
        (digits, {"image": IMAGES[:, :1]}, {"batch_norm_0.w_1", "batch_norm_0.w_2"}),
        (sentiment, {"words": [[1, 2], [3]]}, set()),
        (attending, {"x": RNG.normal(size=(3, 6, 8))}, None),
        (rated, {"words": [[1, 2, 9], [3]]}, None),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_half_the_bytes_and_the_same_bits(function, feed, whole, tmp_path):
    """What a program of mixed precision reads rounded can be stored so; what it reads whole cannot."""
    params = trained(function)
    fluid.io.save_inference_model(tmp_path / "m", function, params, precision="bfloat16")
    found = artifact.load(tmp_path / "m")
    want = fluid.Inferencer(function, params=params, precision="bfloat16").infer(feed)
    assert same(fluid.Inferencer(param_path=found).infer(feed), want)
    kept = {name for name, array in found.arrays.items() if array.dtype == "float32"}
    assert kept == whole if whole is not None else sum(found.arrays[n].nbytes for n in kept) < 200
    weights = [array for name, array in found.arrays.items() if array.ndim > 1]
    assert weights and all(array.dtype == jnp.bfloat16 for array in weights)


def test_entry_points_agree_on_what_is_stored_whole(tmp_path):
    def once():
        return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=4, param_attr="w", bias_attr=False)

    def exactly():
        x = fluid.layers.data("x", shape=[4])
        weight = fluid.layers.create_parameter([4, 4], "float32", name="w")
        return fluid.layers.reduce_sum(fluid.layers.square(weight)) + fluid.layers.reduce_sum(x) * 0

    params = {"w": RNG.normal(size=(4, 4)).astype("float32")}
    fluid.io.save_inference_model(tmp_path / "m", {"once": once}, params, precision="bfloat16")
    assert artifact.load(tmp_path / "m").arrays["w"].dtype == jnp.bfloat16
    assert same(
        fluid.Inferencer(param_path=tmp_path / "m").infer({"x": np.ones((1, 4))}),
        fluid.Inferencer(once, params=params, precision="bfloat16").infer({"x": np.ones((1, 4))}),
    )
    programs = {"once": once, "exactly": fluid.Program(exactly)}
    fluid.io.save_inference_model(tmp_path / "m", programs, params)
    assert artifact.load(tmp_path / "m").arrays["w"].dtype == "float32"


# Folded normalisation


def nets():
    """Programs, and how many normalisations of each can be folded."""

    def after_conv():
        image = fluid.layers.data("image", shape=[3, 8, 8])
        hidden = fluid.layers.batch_norm(fluid.layers.conv2d(image, 4, 3, bias_attr=False), act="relu")
        hidden = fluid.layers.batch_norm(fluid.layers.conv2d(hidden, 6, 3, groups=2), act="tanh")
        return fluid.layers.batch_norm(fluid.layers.fc(hidden, 5))

    def channels_last():
        image = fluid.layers.transpose(fluid.layers.data("image", shape=[3, 8, 8]), [0, 2, 3, 1])
        hidden = fluid.layers.conv2d(image, 4, 3, stride=2, padding=1, data_format="NHWC")
        return fluid.layers.batch_norm(hidden, data_layout="NHWC", epsilon=1e-3)

    def transposed():
        image = fluid.layers.data("image", shape=[3, 8, 8])
        return fluid.layers.batch_norm(fluid.layers.conv2d_transpose(image, 4, filter_size=3))

    def not_behind_a_product():
        image = fluid.layers.data("image", shape=[3, 8, 8])
        hidden = fluid.layers.batch_norm(image)
        return fluid.layers.batch_norm(fluid.layers.relu(fluid.layers.conv2d(hidden, 4, 3)))

    def used_twice():
        image = fluid.layers.data("image", shape=[3, 8, 8])
        hidden = fluid.layers.conv2d(image, 4, 3)
        return fluid.layers.batch_norm(hidden) + hidden, fluid.layers.reduce_mean(hidden, dim=[1, 2, 3])

    def one_weight_twice():
        image = fluid.layers.data("image", shape=[3, 8, 8])
        first = fluid.layers.batch_norm(fluid.layers.conv2d(image, 3, 3, padding=1, param_attr="w"))
        return fluid.layers.batch_norm(fluid.layers.conv2d(first, 3, 3, padding=1, param_attr="w"))

    return [(after_conv, 3), (channels_last, 1), (transposed, 1), (not_behind_a_product, 0), (used_twice, 1),
            (one_weight_twice, 2)]  # fmt: skip


@pytest.mark.parametrize(("function", "folded"), nets(), ids=lambda value: getattr(value, "__name__", ""))
def test_folded_normalisation_changes_results_by_rounding(function, folded, tmp_path):
    params = trained(function)
    fluid.io.save_inference_model(tmp_path / "m", function, params, fold_batch_norm=True)
    want = fluid.Inferencer(function, params=params).infer({"image": IMAGES})
    got = fluid.Inferencer(param_path=tmp_path / "m").infer({"image": IMAGES})
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    arrays = artifact.load(tmp_path / "m").arrays
    assert sum(name.endswith("@folded") for name in arrays) == folded
    left = {name.split(".")[0] for name in arrays if name.startswith("batch_norm")}
    assert len(left) == len({name.split(".")[0] for name in params if name.startswith("batch_norm")}) - folded
    assert ("rsqrt" in functions_of(tmp_path / "m")[0]) == bool(left)


def test_a_folded_weight_has_the_name_of_its_parameter(tmp_path):
    function = nets()[0][0]
    fluid.io.save_inference_model(tmp_path / "m", function, trained(function), fold_batch_norm=True)
    found = artifact.load(tmp_path / "m")
    assert {n for n in found.arrays if n.endswith("@folded")} == {
        "conv2d_0.w_0@folded",
        "conv2d_1.w_0@folded",
        "fc_0.w_0@folded",
    }


def test_folding_and_half_precision_go_together(tmp_path):
    function, params = nets()[0][0], trained(nets()[0][0])
    fluid.io.save_inference_model(tmp_path / "m", function, params, fold_batch_norm=True, precision="bfloat16")
    (want,) = fluid.Inferencer(function, params=params).infer({"image": IMAGES})
    (got,) = fluid.Inferencer(param_path=tmp_path / "m").infer({"image": IMAGES})
    assert got.dtype == jnp.bfloat16
    assert np.abs(got.astype("float32") - want).max() < 0.03 * np.abs(want).max()
    arrays = artifact.load(tmp_path / "m").arrays
    assert all(a.dtype == jnp.bfloat16 for n, a in arrays.items() if n.endswith("@folded"))


def test_without_normalisation_folding_changes_no_bit(tmp_path):
    params = params_of(sentiment)
    fluid.io.save_inference_model(tmp_path / "m", sentiment, params, fold_batch_norm=True)
    feed = {"words": [[1, 2, 3], [4]]}
    assert same(
        fluid.Inferencer(param_path=tmp_path / "m").infer(feed), fluid.Inferencer(sentiment, params=params).infer(feed)
    )


def test_entry_points_that_fold_one_weight_in_two_ways(tmp_path):
    def first():
        return fluid.layers.batch_norm(fluid.layers.fc(fluid.layers.data("x", [3]), 3, param_attr="w"), name="n")

    def second():
        return fluid.layers.batch_norm(fluid.layers.fc(fluid.layers.data("x", [3]), 3, param_attr="w"), name="m")

    params = {
        n: RNG.uniform(0.5, 1.5, v.shape).astype("float32") for n, v in (params_of(first) | params_of(second)).items()
    }
    with pytest.raises(errors.ArgumentError, match="two different arrays 'w@folded'"):
        fluid.io.save_inference_model(tmp_path / "m", {"a": first, "b": second}, params, fold_batch_norm=True)
    fluid.io.save_inference_model(tmp_path / "m", {"a": first, "b": first}, params, fold_batch_norm=True)
    assert set(artifact.load(tmp_path / "m").arrays) == {"w@folded", "w@shift"}


# Sizes


def by_numbers():
    """A program that looks at its sizes as numbers."""
    x = fluid.layers.data("x", shape=[2], lod_level=1)
    weights = np.linspace(0, 1, x.shape[1], dtype="float32")
    return fluid.layers.reduce_sum(x.with_data(x.data * weights[None, :, None]), dim=-1), x.data[:, 0] * len(x.data)


def test_what_looks_at_sizes_is_exported_for_each(tmp_path):
    fluid.io.save_inference_model(tmp_path / "m", by_numbers, {}, batch_sizes=[1, 3], buckets=[2, 5])
    (entry,) = artifact.load(tmp_path / "m").entries.values()
    assert [dict(f.sizes) for f in entry.functions] == [
        {"batch": b, "steps0": t} for b in (1, 3) for t in (2, 5)
    ] and "each of these sizes" in entry.note
    inferencer = fluid.Inferencer(param_path=tmp_path / "m", bucket=False)
    x = [[[1.0, 2.0]] * n for n in (4, 1, 2)]
    want = fluid.Inferencer(by_numbers, params={}, buckets=[2, 5], bucket=False)
    for rows in (x, x[:1], x[1:2]):
        assert same(inferencer.infer({"x": rows}), want.infer({"x": rows}))
    with pytest.raises(errors.FeedError, match="batch 1, steps0 2; .*found batch 2, steps0 5.*batch_sizes="):
        inferencer.infer({"x": x[:2]})
    with pytest.raises(errors.FeedError, match="a row of 6 steps, expected at most 5"):
        inferencer.infer({"x": [[[1.0, 2.0]] * 6]})


def test_batches_are_padded_to_the_sizes_there_are(tmp_path):
    def program():
        x = fluid.layers.data("x", shape=[2])
        return fluid.layers.scale(x, float(len(np.zeros(x.shape[0])) > 0) * 2)

    fluid.io.save_inference_model(tmp_path / "m", program, {}, batch_sizes=[3, 5])
    inferencer = fluid.Inferencer(param_path=tmp_path / "m")
    for rows in range(1, 6):
        assert inferencer.infer({"x": np.ones((rows, 2))})[0].tolist() == [[2, 2]] * rows
    assert len(inferencer.session.compilations) == 2
    with pytest.raises(errors.FeedError, match="found batch 6"):
        inferencer.infer({"x": np.ones((6, 2))})


def test_sequences_that_must_be_equally_long(tmp_path):
    def program():
        first, second = (fluid.layers.data(name, shape=[1], lod_level=1) for name in "ab")
        return first + second

    fluid.io.save_inference_model(tmp_path / "m", program, {})
    (entry,) = artifact.load(tmp_path / "m").entries.values()
    assert [feed.dims for feed in entry.feeds] == [("batch", "steps", 1)] * 2 and len(entry.functions) == 1
    inferencer = fluid.Inferencer(param_path=tmp_path / "m")
    (found,) = inferencer.infer({"a": [[1.0, 2.0], [3.0]], "b": [[1.0, 1.0], [1.0]]})
    assert [row.ravel().tolist() for row in found.rows()] == [[2, 3], [4]]
    with pytest.raises(errors.FeedError, match="'a' has 4 steps, and 'b' has 8"):
        inferencer.infer({"a": [[1.0]], "b": [[1.0] * 5]})


def test_sequences_of_sequences(tmp_path):
    def program():
        texts = fluid.layers.data("texts", shape=[1], dtype="int64", lod_level=2)
        return fluid.layers.sequence_pool(fluid.layers.embedding(texts, size=[9, 2]), "sum")

    params = params_of(program)
    fluid.io.save_inference_model(tmp_path / "m", program, params)
    feed = {"texts": [[[1, 2], [3]], [[4, 5, 6]], [[7], [8], [1]]]}
    inferencer = fluid.Inferencer(param_path=tmp_path / "m")
    assert same(inferencer.infer(feed), fluid.Inferencer(program, params=params).infer(feed))


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"batch_sizes": []}, "batch_sizes"),
        ({"batch_sizes": [4, 2]}, "increasing sizes"),
        ({"batch_sizes": 8}, "batch_sizes=8"),
        ({"buckets": [0, 4]}, "buckets"),
        ({"buckets": {"x": "long"}}, "buckets"),
        ({"batch_sizes": range(1, 40)}, "195 functions to export.*fewer sizes"),
        ({"platforms": []}, "platforms"),
        ({"precision": "int8"}, "precision"),
    ],
)
def test_options_that_make_no_sense(tmp_path, options, match):
    with pytest.raises(errors.ArgumentError, match=match):
        fluid.io.save_inference_model(tmp_path / "m", by_numbers, {}, **options)
    assert not (tmp_path / "m").exists()


def test_slices_are_no_gathers(tmp_path):
    """What NumPy's slices say is a slice for XLA, where sizes are open too; what data says is none."""

    def program():
        x = fluid.layers.data("x", shape=[6], lod_level=1)
        last = x.data[jnp.arange(x.shape[0]), x.lengths - 1]
        return x.data[:, 1:, 2:4], x.data[:, 0], x.data[:, -1, 1], last

    fluid.io.save_inference_model(tmp_path / "m", program, {})
    (text,) = functions_of(tmp_path / "m")
    assert "dynamic_gather" not in text and text.count('"stablehlo.gather"') == 1
    x = RNG.normal(size=(3, 4, 6)).astype("float32")
    got = fluid.Inferencer(param_path=tmp_path / "m", bucket=False).infer({"x": x})
    for found, want in zip(got, (x[:, 1:, 2:4], x[:, 0], x[:, -1, 1], x[:, -1]), strict=True):
        assert np.array_equal(found, want)


def test_functions_hold_no_two_operations_that_are_the_same(tmp_path):
    """They would be merged before XLA sees them, and XLA would round in another place."""

    def program():
        words = fluid.layers.data("words", shape=[3], lod_level=1)
        return [fluid.layers.sequence_pool(words, "sqrt") for _ in range(2)]

    fluid.io.save_inference_model(tmp_path / "m", program, {})
    (text,) = functions_of(tmp_path / "m")
    marks = re.findall(r'stablehlo\.sqrt .*mhlo.frontend_attributes = \{n = "(\d+)"\}', text)
    assert len(marks) == len(set(marks)) == 2
