"""Summary tables of programs: shapes, sums, text, HTML, JSON, and accepted arguments."""

import json
import math
import pathlib

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inspection import nets

import fluid
from fluid import errors, layers
from fluid.runtime.state_io import live_state

ORIGINAL = pathlib.Path(__file__).parent.parent / "data" / "paddle"


def outputs(function, **options):
    return {row.name: row.output for row in fluid.summary(function, **options).rows if not row.operators}


def test_shapes_follow_batch_and_time():
    assert outputs(nets.recurrent)["words"] == "float32[batch, time, 4]"
    assert outputs(nets.recurrent)["dynamic_rnn_0"] == "float32[batch, time, 8]"
    assert outputs(nets.recurrent)["fc_0"] == "float32[batch, 8]"  # inside a loop over time, so without `time`
    assert outputs(nets.digits)["conv2d_0"] == "float32[batch, 20, 6, 6]"
    assert outputs(nets.digits)["mean_0"] == "float32[]"


def test_shapes_that_are_computed_from_batch_and_time():
    def program():
        x = layers.data("x", shape=[4], lod_level=1)
        layers.reshape(x.data, [-1, 4])
        layers.reshape(x.data[:, 0], [-1, 2])
        layers.concat([x.data[:, 0], jnp.zeros((3, 4))], axis=0)
        layers.slice(x.data, axes=[1], starts=[2], ends=[10**6])
        layers.pool2d(x.data[:, None], 2, pool_stride=2)
        return layers.sequence_pool(x, "sum")

    assert [shape.partition("[")[2] for shape in list(outputs(program).values())] == [
        "batch, time, 4]",
        "batch*time, 4]",
        "2*batch, 2]",
        "batch+3, 4]",
        "batch, time-2, 4]",
        "batch, 1, time/2, 2]",
        "batch, 4]",
    ]


def test_shapes_of_nested_sequences():
    def program():
        x = layers.data("x", shape=[4], lod_level=2)
        return layers.sequence_pool(x, "sum")

    assert list(outputs(program).values()) == ["float32[batch, outer, inner, 4]", "float32[batch, outer, 4]"]


def test_fixed_batch_size_is_shown_in_shapes():
    def program():
        x = layers.data("x", shape=[3, 4], append_batch_size=False)
        return layers.fc(x, size=2)

    assert outputs(program)["fc_0"] == "float32[3, 2]"


def test_a_program_with_sample_feeds_has_their_sizes():
    def program():
        return layers.concat([layers.data("x", shape=[4]), layers.data("y", shape=[4])], axis=0)

    sample = {"x": np.zeros((2, 4), "float32"), "y": np.zeros((3, 4), "float32")}
    assert outputs(fluid.Program(program, sample_feed=sample))["concat_0"] == "float32[5, 4]"


@settings(max_examples=30)
@given(st.lists(st.sampled_from([1, 4, 19]), min_size=1, max_size=4), st.sampled_from(["float32", "float16"]))
def test_sums_of_parameters(widths, dtype):
    def program():
        x = layers.data("x", shape=[3], dtype=dtype)
        for width in widths:
            x = layers.fc(x, size=width)
        return x

    found = fluid.summary(program)
    count = sum(a * b + b for a, b in zip([3, *widths], widths, strict=False))
    assert (found.totals.trainable, found.totals.size) == (count, count * np.dtype(dtype).itemsize)
    assert sum(row.trainable for row in found.rows) == count


def test_frozen_parameters_are_counted_per_session():
    frozen = fluid.ParamAttr(name="w", trainable=False)

    def program():
        return layers.fc(layers.data("x", shape=[4]), size=2, param_attr=frozen)

    assert (fluid.summary(program).totals.frozen, fluid.summary(program).totals.trainable) == (8, 2)
    alone = fluid.summary(nets.train_generator).totals
    assert (alone.trainable, alone.frozen) == (5, 16 + 16 + 16 + 1)
    both = fluid.summary(fluid.Session(nets.train_discriminator, nets.train_generator)).totals
    assert (both.trainable, both.frozen) == (54, 0)


def test_sessions_trainers_and_inferencers():
    session = fluid.Session(nets.train_discriminator, nets.train_generator)
    found = fluid.summary(session)
    assert list(found.forward) == list(found.step) == ["train_discriminator", "train_generator"]
    assert found.totals.forward == sum(found.forward.values(), fluid.inspection.partition.Cost())
    assert found.totals.step.flops == sum(cost.flops for cost in found.step.values()) > found.totals.forward.flops
    # The summary counts shared parameters only once, in the rows of train_discriminator.
    assert sum(row.trainable for row in found.rows if row.program == "train_generator") == 0

    trainer = fluid.Trainer(nets.digits, fluid.optimizer.Adam(1e-3))
    inferencer = fluid.Inferencer(nets.digits, params=trainer.params)
    one, other = fluid.summary(trainer), fluid.summary(inferencer)
    assert [row.name for row in one.rows] == [row.name for row in other.rows]
    assert one.totals.step is not None and other.totals.step is None
    assert fluid.summary(trainer.program).totals == one.totals


def test_an_exported_model_has_counts_and_shapes(tmp_path):
    def program():
        return layers.fc(layers.data("x", shape=[6]), size=3, name="head")

    params = fluid.Session(program).params()
    fluid.io.save_inference_model(tmp_path / "head.model", program, params)
    found = fluid.summary(fluid.Inferencer(param_path=tmp_path / "head.model"), batch_size=4)
    assert found.totals.trainable == 6 * 3 + 3
    assert found.totals.forward.flops == pytest.approx(2 * 4 * 6 * 3 + 4 * 3, rel=0.5)
    assert found.rows[0].output == "float32[batch, 6]" and found.rows[-1].output == "float32[batch, 3]"
    assert "head" in fluid.draw(fluid.Inferencer(param_path=tmp_path / "head.model")).svg


def test_a_paddle_model_lists_layers_and_parameters():
    model = fluid.io.load_inference_model(ORIGINAL / "sentiment" / "inference")
    found = fluid.summary(model.program)
    assert [row.title for row in found.rows[:4]] == ["words", "embedding_0", "fc_0", "lstm_0"]
    assert found.rows[2].parameters == ("fc_0.w_0", "fc_0.b_0")


def test_summary_and_draw_change_no_state():
    trainer = fluid.Trainer(nets.digits, fluid.optimizer.Adam(1e-3))
    before = live_state(trainer.session)
    fluid.summary(trainer)
    fluid.draw(trainer)
    after = live_state(trainer.session)
    assert all(after[name] is value for name, value in before.items())
    assert not trainer.session.compilations


def test_prints_of_a_program_are_not_repeated(capsys):
    def program():
        x = layers.data("x", shape=[4])
        print("shape", x.shape)
        return layers.fc(x, size=2)

    once = fluid.Program(program)
    capsys.readouterr()
    fluid.summary(once)
    assert capsys.readouterr().out == ""


def test_text_table_has_aligned_columns_and_totals():
    text = str(fluid.summary(fluid.Trainer(nets.digits, fluid.optimizer.Adam(1e-3)), batch_size=32))
    lines = text.splitlines()
    assert lines[0] == "digits"
    assert lines[1].split() == ["layer", "output", "parameters", "size", "FLOPs", "moved", "line"]
    assert "batch_norm_0      float32[batch, 20, 3, 3]  40 + 40 in states    320 B" in text
    assert "parameters     2,050 trainable, 40 in states: 8.36 kB" in text
    assert text.count("nets.py:") == 9
    assert "forward pass" in text and "training step" in text and "32 examples" in text
    table = lines[2 : lines.index(lines[2], 3)]
    assert len({line.index("nets.py") for line in table[1:]}) == 1  # the columns are aligned
    assert len(lines[2]) == max(map(len, table))


def test_session_text_has_a_table_per_program():
    text = str(fluid.summary(fluid.Session(nets.train_discriminator, nets.train_generator)))
    assert text.index("train_discriminator") < text.index("train_generator")
    assert text.count("layer  ") == 2 and "training step of train_generator" in text


def test_html_has_tables_of_layers_and_totals():
    shown = fluid.summary(nets.recurrent)._repr_html_()
    assert shown.count("<table>") == 2 and shown.count("<tr") == 1 + 12 + 3
    assert "dynamic_rnn_0 x time" in shown and 'title="' in shown and "fc_0.w_0, fc_0.w_1, fc_0.b_0" in shown


def test_json_holds_rows_and_totals():
    found = fluid.summary(fluid.Trainer(nets.digits, fluid.optimizer.Adam(1e-3)))
    told = json.loads(json.dumps(found.to_dict()))
    assert [row["name"] for row in told["rows"]] == [row.name for row in found.rows]
    assert told["rows"][2]["shape"] == ["batch", 20, 6, 6]
    assert told["totals"]["forward"] == told["programs"]["digits"]["forward"] == found.totals.forward._asdict()
    assert told["totals"]["step"]["flops"] == found.step["digits"].flops


def test_some_layers():
    found = fluid.summary(nets.train_generator, layers="generator/*")
    assert [row.name for row in found.rows] == ["generator/fc_0"]
    assert found.rows[0].scope == "generator"
    assert found.totals == fluid.summary(nets.train_generator).totals
    assert [row.name for row in fluid.summary(nets.digits, layers=["fc_*", "mean_0"]).rows] == ["fc_0", "mean_0"]
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'batch_norm_0'"):
        fluid.summary(nets.digits, layers="batch_norm_1")


def test_scalars_and_time_scale():
    def program():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        return layers.fc(layers.embedding(words, size=[10, 4]), size=3, bias_attr=False)

    flops = {
        time: next(r.flops for r in fluid.summary(program, batch_size=2, time=time).rows if r.kind == "fc")
        for time in (1, 5)
    }
    assert flops[5] - flops[1] == pytest.approx(4 * 2 * 2 * 4 * 3, rel=0.5) and math.isfinite(flops[1])


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"batch_size": True}, {"time": -1}, {"time": 2.5}])
def test_non_positive_sizes_are_refused(bad):
    with pytest.raises(errors.ArgumentError, match="positive whole number"):
        fluid.summary(nets.residual, **bad)


@pytest.mark.parametrize("bad", [3, None, {"loss": 1}, fluid.Trainer])
@pytest.mark.parametrize("look", [fluid.summary, fluid.draw])
def test_values_that_are_no_program_are_refused(look, bad):
    with pytest.raises(errors.ArgumentTypeError, match="program function"):
        look(bad)


def test_errors_of_a_program_name_the_layer():
    def program():
        return layers.fc(layers.data("x", shape=[]), size=3)

    with pytest.raises(errors.ShapeError, match="fc_0"):
        fluid.summary(program)
