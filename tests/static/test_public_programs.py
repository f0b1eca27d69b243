"""Idioms of public programs of 2018 and 2019: copies between programs, GAN parameters, in-place reshape, and names."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid.static as fluid
from fluid import errors

X = np.array([[1.0, -2.0], [3.0, 4.0], [0.5, 0.0]], "float32")


def net(x, field):
    attrs = {"param_attr": fluid.ParamAttr(name=f"{field}_w"), "bias_attr": fluid.ParamAttr(name=f"{field}_b")}
    return fluid.layers.fc(x, size=3, **attrs)


def test_assign_copies_parameters_when_its_program_runs():
    with fresh() as (train, _):
        x = fluid.layers.data("x", shape=[2])
        loss = fluid.layers.mean(fluid.layers.square(net(x, "policy") - net(x, "target")))
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["policy_w", "policy_b"])
        copy = fluid.Program()
        with fluid.program_guard(copy):
            for name in ("w", "b"):
                fluid.layers.assign(
                    train.global_block().var(f"policy_{name}"), train.global_block().var(f"target_{name}")
                )
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(fluid.default_startup_program())
        target = scope_value("target_w")
        exe.run(train, feed={"x": X}, fetch_list=[loss])
        np.testing.assert_array_equal(scope_value("target_w"), target)
        policy = scope_value("policy_w")
        exe.run(copy)
        np.testing.assert_array_equal(scope_value("target_w"), policy)
        assert exe.run(train, feed={"x": X}, fetch_list=[loss])[0] == 0


def test_assigning_a_value_of_another_program_is_refused():
    with fresh():
        total = fluid.layers.fill_constant([1], "float32", 1.0)
        with (
            fluid.program_guard(fluid.Program()),
            pytest.raises(errors.ProgramError, match="belongs to another program"),
        ):
            fluid.layers.assign(np.array([2.0], "float32"), output=total)


def test_a_state_assigned_before_reading_is_used():
    with fresh() as (main, startup):
        order = fluid.layers.create_global_var(shape=[3], value=0, dtype="int32", persistable=True, name="order")
        order = fluid.layers.assign(np.array([2, 0, 1], "int32"), order)
        picked = fluid.layers.gather(fluid.layers.data("x", shape=[2]), index=order)
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        np.testing.assert_array_equal(exe.run(main, feed={"x": X}, fetch_list=[picked])[0], X[[2, 0, 1]])
        np.testing.assert_array_equal(scope_value("order"), [2, 0, 1])


def test_minimize_takes_all_parameters_with_statistics_among_them():
    with fresh() as (main, startup):
        y = fluid.layers.batch_norm(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=3))
        names = [p.name for p in main.global_block().all_parameters()]
        assert "batch_norm_0.w_1" in names
        loss = fluid.layers.mean(fluid.layers.square(y - 1.0))
        _, pairs = fluid.optimizer.SGD(0.5).minimize(loss, parameter_list=names)
        assert sorted(p.name for p, _ in pairs) == ["batch_norm_0.b_0", "batch_norm_0.w_0", "fc_0.b_0", "fc_0.w_0"]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        first, second = (exe.run(main, feed={"x": X}, fetch_list=[loss])[0] for _ in range(2))
        assert second < first


def test_reshape_in_place_gives_x_the_new_shape():
    with fresh() as (main, startup):
        x = fluid.layers.data("x", shape=[2])
        hidden = fluid.layers.fc(x, size=4)
        kept = hidden * 1.0
        shaped = fluid.layers.reshape(hidden, shape=[-1, 2, 2], inplace=True)
        assert shaped is hidden
        assert hidden.shape == (-1, 2, 2)
        fluid.optimizer.SGD(0.1).minimize(fluid.layers.mean(fluid.layers.square(hidden)))
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        found = exe.run(main, feed={"x": X}, fetch_list=[kept, hidden])
        np.testing.assert_array_equal(found[0].reshape(3, 2, 2), found[1])


@pytest.mark.parametrize("version", ["1.6.0", "1.8", "0.14"])
def test_a_program_for_an_earlier_version_is_welcome(version):
    fluid.require_version(version)


@pytest.mark.parametrize("asked", [("2.0.0",), ("1.9",), ("1.0", "1.5"), ("newest",)])
def test_a_program_for_other_versions_is_refused(asked):
    with pytest.raises(errors.ArgumentError, match="require_version"):
        fluid.require_version(*asked)


def test_names_of_public_programs_are_there():
    from fluid.static.layers import core

    assert core.VarDesc.VarType.FP32 == "float32"
    assert issubclass(errors.ShapeError, fluid.core.EnforceNotMet)
    assert [len(rows) for rows in fluid.io.batch(lambda: range(5), batch_size=2)()] == [2, 2, 1]
    tensor = fluid.Tensor()
    tensor.set(X, fluid.CPUPlace())
    np.testing.assert_array_equal(np.array(tensor), X)
    with fresh() as (main, _):
        y = fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
        assert fluid.framework._get_var("fc_0.w_0", main).shape == (2, 1)
        assert fluid.io.get_inference_program([y]).for_test
