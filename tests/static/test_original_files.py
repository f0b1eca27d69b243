"""Files that the original wrote, loaded by an Executor."""

import numpy as np
import pytest
from original_programs import FOLDER
from static.both import fresh, scope_value

import fluid.static as fluid


def lenet():
    """The net whose parameters were saved, written down anew."""
    image = fluid.layers.data("img", shape=[1, 12, 12])
    x = fluid.nets.simple_img_conv_pool(image, num_filters=4, filter_size=3, pool_size=2, pool_stride=2, act="relu")
    x = fluid.layers.batch_norm(x)
    x = fluid.nets.simple_img_conv_pool(x, num_filters=6, filter_size=3, pool_size=2, pool_stride=2, act="relu")
    return fluid.layers.fc(x, size=10, act="softmax")


def recorded():
    with np.load(FOLDER / "lenet" / "io.npz") as file:
        return file["in_img"], file["out"]


@pytest.mark.parametrize("load", [fluid.io.load_params, fluid.io.load_persistables, fluid.io.load_vars])
def test_parameters(load):
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


def test_a_loaded_model_replaces_what_the_scope_has():
    images, wanted = recorded()
    with fresh() as (_, startup):
        lenet()
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        program, feeds, targets = fluid.io.load_inference_model(str(FOLDER / "lenet" / "inference"), exe)
        (found,) = exe.run(program, feed={feeds[0]: images}, fetch_list=targets)
        np.testing.assert_allclose(found, wanted, atol=1e-5)
