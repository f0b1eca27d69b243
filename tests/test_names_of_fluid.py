"""Names and arguments of PaddlePaddle Fluid (2018 and 1.8): old programs that use them run. Layers have other tests."""

import importlib
import pathlib

import jax
import numpy as np
import pytest

import fluid
from fluid import errors


def program():
    return fluid.layers.mean(fluid.layers.fc(fluid.data("x", [None, 2]), size=1, is_test=True))


def test_data_by_its_whole_shape():
    def feeds():
        whole = fluid.data("whole", [-1, 3], "int64")
        fixed = fluid.data("fixed", [4, 3])
        words = fluid.data("words", [None, 2], lod_level=1)
        deep = fluid.data("deep", [None, 1], "int64", lod_level=2)
        return whole, fixed, words, deep

    found = fluid.Program(feeds).feeds
    assert {n: (f.shape, f.dtype, f.lod_level) for n, f in found.items()} == {
        "whole": ((None, 3), "int64", 0),
        "fixed": ((4, 3), "float32", 0),
        "words": ((None, 2), "float32", 1),
        "deep": ((None, 1), "int64", 2),
    }
    with pytest.raises(errors.ArgumentError, match=r"shape=\[None, 1\]"):
        fluid.Program(lambda: fluid.data("words", [3, 1], lod_level=1))


def test_names_start_afresh():
    for _ in range(2):
        with fluid.unique_name.guard():
            assert list(fluid.Program(program).parameters) == ["fc_0.w_0", "fc_0.b_0"]

    def guarded():
        with fluid.unique_name.guard():
            return program()

    assert list(fluid.Program(guarded).parameters) == ["fc_0.w_0", "fc_0.b_0"]
    with pytest.raises(errors.ProgramError, match="fluid.name_scope"):
        fluid.Program(lambda: program() + guarded())
    with pytest.raises(errors.ArgumentTypeError, match="fluid.name_scope"), fluid.unique_name.guard("teacher"):
        pass
    names = fluid.Program(lambda: [fluid.layers.identity(1.0, fluid.unique_name.generate("x")) for _ in range(2)])
    assert list(names.values) == ["x_0", "x_1"]
    with pytest.raises(errors.OutsideProgramError, match="unique_name.generate"):
        fluid.unique_name.generate("x")


def test_weighted_average():
    values, weights = np.arange(6.0).reshape(3, 2), [1, 0.5, 3]
    average = fluid.average.WeightedAverage()
    for _ in range(2):
        for value, weight in zip(values, weights, strict=True):
            average.add(value, np.array([weight]))
        np.testing.assert_allclose(average.eval(), np.average(values, axis=0, weights=weights))
        average.reset()
    with pytest.raises(errors.ArgumentError, match="nothing to average"):
        average.eval()
    for wrong in (("2", 1), (2, "1"), (2, [1, 2])):
        with pytest.raises(errors.ArgumentTypeError, match="expected numbers"):
            average.add(*wrong)


@pytest.mark.parametrize("folder", [(), (None,)])
def test_checkpoints_without_a_folder(folder, in_tmp):
    config = fluid.CheckpointConfig(*folder, step_interval=None)
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), checkpoint_config=config)
    trainer.train(lambda: [[(np.ones(2, "float32"),)]], num_epochs=1)
    assert pathlib.Path("checkpoints").is_dir() and any(pathlib.Path("checkpoints").iterdir())


def test_old_values_of_parallel_are_accepted():
    for harmless in (None, False, True):
        trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), parallel=harmless)
        fluid.Inferencer(program, params=trainer.params, parallel=harmless)


def test_import_paths_of_1_x():
    for module, names in {
        "fluid.contrib.trainer": "Trainer CheckpointConfig BeginEpochEvent EndEpochEvent BeginStepEvent EndStepEvent",
        "fluid.contrib.inferencer": "Inferencer",
    }.items():
        found = importlib.import_module(module)
        assert found.__all__ == sorted(names.split())
        assert all(getattr(found, name) is getattr(fluid, name) for name in names.split())
    assert fluid.contrib.trainer.Trainer is fluid.Trainer


def test_is_compiled_with_cuda():
    assert fluid.core.is_compiled_with_cuda() == any(d.platform == "gpu" for d in jax.local_devices())


def test_settings_that_change_nothing():
    attr = fluid.ParamAttr(do_model_average=False)
    assert fluid.Program(lambda: fluid.layers.fc(fluid.data("x", [None, 2]), 1, param_attr=attr)).parameters
    assert fluid.optimizer.ModelAverage(0.15, regularization=fluid.regularizer.L2Decay(0.1)) == (
        fluid.optimizer.ModelAverage(0.15)
    )
