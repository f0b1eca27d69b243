"""Files that PaddlePaddle saved, loaded by an Executor: predictions equal the recorded predictions."""

import os
import shutil
import struct

import numpy as np
import pytest
from paddle_programs import FOLDER
from static.both_styles import fresh, scope_value

import fluid as functions
import fluid.static as fluid


def lenet():
    """Build the net whose parameters PaddlePaddle saved."""
    image = fluid.layers.data("img", shape=[1, 12, 12])
    x = fluid.nets.simple_img_conv_pool(image, num_filters=4, filter_size=3, pool_size=2, pool_stride=2, act="relu")
    x = fluid.layers.batch_norm(x)
    x = fluid.nets.simple_img_conv_pool(x, num_filters=6, filter_size=3, pool_size=2, pool_stride=2, act="relu")
    return fluid.layers.fc(x, size=10, act="softmax")


def recorded():
    with np.load(FOLDER / "lenet" / "io.npz") as file:
        return file["in_img"], file["out"]


@pytest.mark.parametrize("load", [fluid.io.load_params, fluid.io.load_persistables, fluid.io.load_vars])
def test_loaded_parameters_reproduce_recorded_predictions(load):
    images, wanted = recorded()
    with fresh() as (main, _):
        prediction = lenet()
        test = main.clone(for_test=True)
        exe = fluid.Executor(fluid.CPUPlace())
        load(exe, str(FOLDER / "lenet" / "persistables"), main)
        (found,) = exe.run(test, feed={"img": images}, fetch_list=[prediction])
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert scope_value("batch_norm_0.w_1").any()


def test_an_inference_model():
    images, wanted = recorded()
    with fluid.scope_guard(fluid.Scope()):
        exe = fluid.Executor(fluid.CPUPlace())
        program, feeds, targets = fluid.io.load_inference_model(str(FOLDER / "lenet" / "inference"), exe)
        (found,) = exe.run(program, feed={feeds[0]: images}, fetch_list=targets)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
        assert targets[0].shape == (-1, 10)


def test_a_loaded_model_replaces_scope_values():
    images, wanted = recorded()
    with fresh() as (_, startup):
        lenet()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        program, feeds, targets = fluid.io.load_inference_model(str(FOLDER / "lenet" / "inference"), exe)
        (found,) = exe.run(program, feed={feeds[0]: images}, fetch_list=targets)
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def with_counter(folder, count):
    """Copy a folder that PaddlePaddle saved, add the step counter of its schedules, and return the new folder."""
    for file in (FOLDER / "lenet" / "persistables").iterdir():
        shutil.copy(file, folder)
    description = b"\x08\x03\x10\x01"  # a protobuf message: dtype int64, shape [1]
    head = struct.pack("<IQIi", 0, 0, 0, len(description))
    (folder / "@LR_DECAY_COUNTER@").write_bytes(head + description + struct.pack("<q", count))
    return str(folder)


@pytest.mark.parametrize(
    ("load", "count"), [("load_params", -1), ("load_persistables", 7), ("load_vars", 7), ("predicate", 7)]
)
def test_a_schedule_continues_from_the_loaded_counter(load, count, tmp_path):
    folder = with_counter(tmp_path, 7)
    with fresh() as (main, startup):
        loss = fluid.layers.mean(fluid.layers.cross_entropy(lenet(), fluid.layers.data("label", [1], dtype="int64")))
        rate = fluid.layers.exponential_decay(0.5, decay_steps=1, decay_rate=0.5)
        fluid.optimizer.Momentum(rate, 0.9).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        if load == "predicate":
            fluid.io.load_vars(exe, folder, main, predicate=lambda v: os.path.exists(os.path.join(folder, v.name)))
        else:
            getattr(fluid.io, load)(exe, folder, main)
        assert scope_value("@LR_DECAY_COUNTER@").tolist() == [count]
        feed = {"img": recorded()[0], "label": np.zeros((len(recorded()[0]), 1), "int64")}
        (found,) = exe.run(main, feed=feed, fetch_list=[rate])
        assert found == pytest.approx(0.5 * 0.5 ** (count + 1))


def test_loading_restores_the_rate_not_optimizer_state(caplog):
    with fresh() as (main, startup):
        loss = fluid.layers.mean(fluid.layers.cross_entropy(lenet(), fluid.layers.data("label", [1], dtype="int64")))
        fluid.optimizer.Momentum(0.5, 0.9).minimize(loss)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        folder = FOLDER / "lenet" / "persistables"
        fluid.io.load_persistables(exe, str(folder), main)
        np.testing.assert_array_equal(
            scope_value("learning_rate_0"),
            functions.io.load_fluid_params(folder / "learning_rate_0", slots=True)["learning_rate_0"],
        )
        assert scope_value("learning_rate_0") != 0.5 and "optimizer states are not loaded" in caplog.text


def test_missing_variables_in_a_folder_are_listed(tmp_path):
    with fresh() as (main, startup):
        x = fluid.layers.data("x", shape=[3])
        for _ in range(2):
            x = fluid.layers.fc(x, size=10)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        before = scope_value("fc_1.w_0")
        for folder, message in (
            (FOLDER / "lenet" / "params", "lacks 2 of 4 variables: fc_1.w_0, fc_1.b_0; it has batch_norm_0.b_0"),
            (tmp_path, "no files in .* expected one for each variable: fc_0.w_0, fc_0.b_0, fc_1.w_0, fc_1.b_0"),
        ):
            for load in (fluid.io.load_params, fluid.io.load_persistables, fluid.io.load_vars):
                with pytest.raises(fluid.errors.ParameterFileError, match=message):
                    load(exe, str(folder), main)
        np.testing.assert_array_equal(scope_value("fc_1.w_0"), before)
