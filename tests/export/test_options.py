"""Options of a model export: half precision, sizes that may vary, and a separate function for each of several sizes."""

import jax.numpy as jnp
import numpy as np
import pytest
from export.test_artifact import close, digits, params_of, same, sentiment

import fluid
from fluid import errors, export

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(9, 3, 8, 8)).astype("float32")


def trained(function):
    """Return parameters as if trained: random numbers for batch normalisation, and initial values for other layers."""
    return {
        name: np.random.default_rng(len(name)).uniform(0.5, 1.5, value.shape).astype("float32")
        if "batch_norm" in name
        else value
        for name, value in params_of(function).items()
    }


# Tests of exports in half precision.


def attending():
    x = fluid.layers.data("x", shape=[6, 8])
    hidden = fluid.layers.layer_norm(fluid.layers.multi_head_attention(x, num_heads=2) + x, begin_norm_axis=2)
    hidden = fluid.layers.repeat(lambda h: h + fluid.layers.fc(h, 8, num_flatten_dims=2, act="relu"), 3, hidden)
    return fluid.layers.fc(hidden, size=3, num_flatten_dims=1)


def rated():
    """Build a program to export in half precision: a sparse table, a loop, and batch statistics that remain float32."""
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
        (attending, {"x": RNG.normal(size=(3, 6, 8))}, set()),
        (rated, {"words": [[1, 2, 9], [3]]}, {"batch_norm_0.w_1", "batch_norm_0.w_2"}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_half_the_bytes_and_the_same_answers(function, feed, whole, tmp_path):
    """Check that an export in bfloat16 stores rounded parameters and full states, and answers as an Inferencer."""
    params = trained(function)
    fluid.io.save_inference_model(tmp_path / "m", function, params, precision="bfloat16")
    found = export.load(tmp_path / "m")
    want = fluid.Inferencer(function, params=params, precision="bfloat16").infer(feed)
    assert close(fluid.Inferencer(param_path=found).infer(feed), want)
    kept = {name for name, array in found.arrays.items() if array.dtype == "float32"}
    assert kept == whole
    assert all(array.dtype == jnp.bfloat16 for name, array in found.arrays.items() if name not in whole)


def test_a_fetched_parameter_is_stored_whole(tmp_path):
    params = params_of(digits)
    fluid.io.save_inference_model(tmp_path / "m", digits, params, fetch=["guess", "guess.w_0"], precision="bfloat16")
    found = fluid.Inferencer(param_path=tmp_path / "m").infer({"image": IMAGES[:, :1]})
    assert same([found["guess.w_0"]], [params["guess.w_0"]]) and found["guess"].dtype == jnp.bfloat16
    assert export.load(tmp_path / "m").arrays["guess.b_0"].dtype == jnp.bfloat16


def test_entry_points_share_rounded_parameters(tmp_path):
    def first():
        return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=4, param_attr="w", bias_attr=False)

    def second():
        return fluid.layers.reduce_sum(first(), dim=1)

    params = {"w": RNG.normal(size=(4, 4)).astype("float32")}
    programs = {"first": first, "second": second}
    fluid.io.save_inference_model(tmp_path / "m", programs, params, precision="bfloat16")
    assert export.load(tmp_path / "m").arrays["w"].dtype == jnp.bfloat16
    for entry, function in programs.items():
        assert close(
            fluid.Inferencer(param_path=tmp_path / "m", entry=entry).infer({"x": np.ones((1, 4))}),
            fluid.Inferencer(function, params=params, precision="bfloat16").infer({"x": np.ones((1, 4))}),
        )


# Tests of sizes that are open, or that have a separate function for each size.


def by_numbers():
    """Build a program that reads its batch size and sequence length as numbers."""
    x = fluid.layers.data("x", shape=[2], lod_level=1)
    weights = np.linspace(0, 1, x.shape[1], dtype="float32")
    return fluid.layers.reduce_sum(x.with_data(x.data * weights[None, :, None]), dim=-1), x.data[:, 0] * len(x.data)


def test_program_that_reads_sizes_exports_each_size(tmp_path):
    fluid.io.save_inference_model(tmp_path / "m", by_numbers, {}, batch_sizes=[1, 3], buckets=[2, 5])
    (entry,) = export.load(tmp_path / "m").entries.values()
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
    (entry,) = export.load(tmp_path / "m").entries.values()
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
    assert close(inferencer.infer(feed), fluid.Inferencer(program, params=params).infer(feed))


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


def test_slices_of_open_sizes(tmp_path):
    def program():
        x = fluid.layers.data("x", shape=[6], lod_level=1)
        last = x.data[jnp.arange(x.shape[0]), x.lengths - 1]
        return x.data[:, 1:, 2:4], x.data[:, 0], x.data[:, -1, 1], last

    fluid.io.save_inference_model(tmp_path / "m", program, {})
    assert len(export.load(tmp_path / "m").entries["predict"].functions) == 1
    x = RNG.normal(size=(3, 4, 6)).astype("float32")
    got = fluid.Inferencer(param_path=tmp_path / "m", bucket=False).infer({"x": x})
    for found, want in zip(got, (x[:, 1:, 2:4], x[:, 0], x[:, -1, 1], x[:, -1]), strict=True):
        assert np.array_equal(found, want)
