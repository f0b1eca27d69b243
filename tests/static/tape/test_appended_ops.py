"""Layers that users write with `LayerHelper` and `block.append_op`: results equal NumPy."""

import numpy as np
import pytest
from static.both_styles import fresh, scope_value

import fluid.static as fluid
from fluid import errors
from fluid.static import layers
from fluid.static.layer_helper import LayerHelper

X = np.random.default_rng(0).normal(size=(2, 3)).astype("float32")
Y = np.abs(X[::-1]) + 0.5

# Each entry: the type of an op, its inputs, its attributes, and its expected result.
OPS = [
    ("scale", {"X": X}, {"scale": 2.0, "bias": 1.0, "bias_after_scale": False}, (X + 1) * 2),
    ("elementwise_add", {"X": X, "Y": Y}, {"axis": -1}, X + Y),
    ("elementwise_sub", {"X": X, "Y": Y}, {}, X - Y),
    ("elementwise_mul", {"X": X, "Y": Y}, {}, X * Y),
    ("elementwise_div", {"X": X, "Y": Y}, {}, X / Y),
    ("elementwise_max", {"X": X, "Y": Y}, {}, np.maximum(X, Y)),
    ("elementwise_pow", {"X": Y, "Y": Y}, {}, Y**Y),
    ("fill_constant", {}, {"shape": (2, 1), "dtype": "float32", "value": 3}, np.full((2, 1), 3.0)),
    ("assign", {"X": X}, {}, X),
    ("sum", {"X": [X, Y, X]}, {"use_mkldnn": False}, X + Y + X),
    ("increment", {"X": X}, {"step": 1.5}, X + 1.5),
    ("cast", {"X": X}, {"in_dtype": "float32", "out_dtype": np.int32}, X.astype("int32")),
    ("concat", {"X": [X, Y]}, {"axis": np.int64(1)}, np.concatenate([X, Y], 1)),
    ("mul", {"X": X, "Y": Y.T.copy()}, {"x_num_col_dims": 1, "y_num_col_dims": 1}, X @ Y.T),
    ("reduce_sum", {"X": X}, {"dim": [1], "keep_dim": True, "reduce_all": False}, X.sum(1, keepdims=True)),
    ("reshape2", {"X": X}, {"shape": [3, 2]}, X.reshape(3, 2)),
    ("transpose2", {"X": X}, {"axis": [1, 0]}, X.T),
    ("softmax", {"X": X}, {"axis": -1}, np.exp(X) / np.exp(X).sum(1, keepdims=True)),
    ("sqrt", {"X": Y}, {"op_role": 0}, np.sqrt(Y)),
]


@pytest.mark.parametrize(("type", "inputs", "attrs", "wanted"), OPS, ids=[op[0] for op in OPS])
def test_an_appended_op_computes_its_layer(type, inputs, attrs, wanted):
    with fresh() as (main, _):
        block = main.global_block()
        given = {
            slot: [layers.assign(v) for v in value] if isinstance(value, list) else layers.assign(value)
            for slot, value in inputs.items()
        }
        out, unused = block.create_var(dtype="float32"), block.create_var(name="shape_of_x")
        op = block.append_op(type=type, inputs=given, outputs={"Out": [out], "XShape": unused}, attrs=attrs)
        assert (op.type, op.outputs, out.shape) == (type, [out], wanted.shape)
        (found,) = fluid.Executor(fluid.CPUPlace()).run(main, fetch_list=[out])
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert found.dtype.kind == wanted.dtype.kind


def fully_connected(input, size, param_attr=None, bias_attr=None, act=None, name=None):
    """Build a copy of Fluid's `fc`; programs copy `fc` to change one of its lines."""
    helper = LayerHelper("fc", **locals())
    products = []
    for x, attr in helper.iter_inputs_and_params():
        w = helper.create_parameter(attr=attr, shape=[x.shape[1], size], dtype=helper.input_dtype())
        products.append(helper.create_variable_for_type_inference(x.dtype))
        helper.append_op("mul", {"X": x, "Y": w}, {"Out": products[-1]}, {"x_num_col_dims": 1})
    total = helper.create_variable_for_type_inference(products[0].dtype)
    helper.append_op("sum", {"X": products}, {"Out": total}, {"use_mkldnn": False})
    return helper.append_activation(helper.append_bias_op(total, dim_start=1))


def test_a_copy_of_fc_adds_up_its_inputs():
    with fresh() as (main, startup):
        x, y = layers.data("x", shape=[3]), layers.data("y", shape=[3])
        out = fully_connected([x, y], size=2, param_attr=["of_x", "of_y"], act={"type": "relu"})
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        (found,) = exe.run(main, {"x": X, "y": Y}, [out])
        np.testing.assert_allclose(
            found, np.maximum(X @ scope_value("of_x") + Y @ scope_value("of_y"), 0), rtol=1e-5, atol=1e-6
        )
        with pytest.raises(errors.ArgumentError, match="3 param_attr for 2 inputs"):
            fully_connected([x, y], size=2, param_attr=[None] * 3)
        with pytest.raises(errors.ArgumentError, match="has 2 inputs in input="):
            LayerHelper("fc", input=[x, y]).input()
        with pytest.raises(errors.ArgumentError, match=r"\*\*locals\(\)"):
            LayerHelper("fc").input()


def scaled(input, size, param_attr=None, bias_attr=None, act=None, name=None):
    helper = LayerHelper("scaled", **locals())
    shape = [helper.input().shape[1], size]
    w = helper.create_parameter(helper.param_attr, shape=shape, dtype=helper.input_dtype(), is_bias=False)
    out = helper.create_variable_for_type_inference(input.dtype)
    helper.append_op(type="mul", inputs={"X": input, "Y": w}, outputs={"Out": out})
    return helper.append_activation(helper.append_bias_op(out))


def test_a_layer_of_the_user_trains_like_fc():
    trained = []
    for layer in (scaled, layers.fc):
        with fresh() as (main, startup):
            x = layers.data("x", shape=[3])
            constant = fluid.initializer.Constant(0.1)
            h = layer(x, size=4, param_attr=fluid.ParamAttr(name="w", initializer=constant), act="tanh")
            loss = layers.mean(layer(h, size=2, bias_attr=False, param_attr=constant))
            fluid.optimizer.SGD(0.5).minimize(loss)
            names = [v.name for v in main.all_parameters()]
            exe = fluid.Executor(fluid.CPUPlace())
            exe.run(startup)
            losses = [float(exe.run(main, feed={"x": X}, fetch_list=[loss])[0]) for _ in range(3)]
            trained.append((losses, [scope_value(name) for name in names]))
        assert names == ["w", *(f"{layer.__name__}_{end}" for end in ("0.b_0", "1.w_0"))]
    np.testing.assert_allclose(trained[0][0], trained[1][0], rtol=1e-6)
    for ours, wanted in zip(trained[0][1], trained[1][1], strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-6)


def test_appended_ops_look_up_and_assign_parameters():
    with fresh() as (main, startup):
        helper = LayerHelper("table", name="net")
        tables = [helper.create_parameter(None, [5, 2]) for _ in range(2)]
        rows = helper.create_tmp_variable("float32", stop_gradient=True)
        helper.append_op("lookup_table", {"W": tables[0], "Ids": layers.data("ids", [1], dtype="int64")}, {"Out": rows})
        main.global_block().append_op(type="assign", inputs={"X": [tables[0].name]}, outputs={"Out": ["net.w_1"]})
        counter = helper.create_global_variable(persistable=True, shape=[1], dtype="int64", name="counter")
        helper.set_variable_initializer(counter, fluid.initializer.Constant(7))
        helper.append_op("increment", {"X": counter}, {"Out": counter}, {"step": 1.0})
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for _ in range(2):
            (found,) = exe.run(main, feed={"ids": np.int64([[4], [0]])}, fetch_list=[rows])
        np.testing.assert_array_equal(found, scope_value("net.w_0")[[4, 0]])
        np.testing.assert_array_equal(scope_value("net.w_1"), scope_value("net.w_0"))
        assert scope_value("counter").tolist() == [9] and rows.stop_gradient


@pytest.mark.parametrize(
    ("type", "attrs", "message"),
    [
        ("sgd", {}, r"an optimizer of fluid\.optimizer"),
        ("while", {}, r"layers\.While\(cond\)"),
        ("hsigmoid", {}, r"call the layer: layers\.hsigmoid\("),
        ("elementwise_plus", {}, "Did you mean 'elementwise_"),
        ("scale", {"factor": 2.0}, r"is given factor=2\.0"),
        ("cast", {"out_dtype": "complex64"}, "is no data type of Fluid"),
    ],
)
def test_ops_without_layer_name_the_correction(type, attrs, message):
    with fresh() as (main, _), pytest.raises(errors.FluidError, match=message):
        out = main.global_block().create_var()
        main.global_block().append_op(type, {"X": layers.assign(X)}, {"Out": out}, attrs)


def test_a_result_that_is_not_computed_is_refused():
    with fresh() as (main, _):
        block = main.global_block()
        made = [block.create_var(), block.create_var()]
        with pytest.raises(errors.ProgramError, match="its result 'Scale' is not computed"):
            block.append_op("scale", {"X": layers.assign(X)}, dict(zip(("Out", "Scale"), made, strict=True)))
        with pytest.raises(errors.ArgumentTypeError, match=r"call the layer: layers\.scale"):
            block.append_op("scale", {"X": layers.assign(X)}, {"Out": made[0]}, {"scale": layers.assign(X)})
