"""The partition of a program into layers: the equations, parameters and source lines of each layer."""

import inspect
import pathlib

import jax
import jax.numpy as jnp
import pytest
from flax import linen
from inspection import nets
from layers.layer_table import ROWS

import fluid
from fluid import layers
from fluid.core.equations import live_equations
from fluid.inspection.drawing import Flow
from fluid.inspection.partition import Sizes, partition, trace


def rows(function, **options):
    return {row.name: row for row in fluid.summary(function, **options).rows}


def line_of(function, text):
    """Return `FILE:LINE` of the first line in a function that contains `text`."""
    lines, start = inspect.getsourcelines(function)
    number = next(i for i, line in enumerate(lines) if text in line)
    return f"{pathlib.Path(inspect.getsourcefile(function)).name}:{start + number}"


def test_an_unread_parameter_reads_nothing():
    def net():
        x = layers.data("x", shape=[2])
        for name in ("first", "second"):
            layers.create_parameter([2], "float32", name=name)
        return layers.mean(x)

    program = fluid.Program(net)
    found = partition(program, trace(program, Sizes(4, 4, 4)))
    unread = [part for part in found.parts if part.name in ("first", "second")]
    assert len(unread) == 2 and not any(Flow(found).inputs(part) for part in unread)


def test_layers_come_in_order_after_the_feeds():
    found = fluid.summary(nets.digits).rows
    assert [(row.name, row.kind) for row in found] == [
        ("label", "data"),
        ("image", "data"),
        ("conv2d_0", "conv2d"),
        ("pool2d_0", "pool2d"),
        ("batch_norm_0", "batch_norm"),
        ("fc_0", "fc"),
        ("cross_entropy2_0", "cross_entropy2"),
        ("mean_0", "mean"),
        ("accuracy_0", "accuracy"),
    ]
    assert all(row.live for row in found)


def test_operators_are_rows_of_their_line():
    found = fluid.summary(nets.recurrent).rows
    operators = {row.name: (row.kind, row.depth) for row in found if row.operators}
    assert operators == {
        line_of(nets.recurrent, "* 2.0"): ("mul", 1),
        line_of(nets.recurrent, "* scale"): ("mul", 0),
        line_of(nets.recurrent, "h + "): ("add", 1),
        line_of(nets.recurrent, "jnp.ones"): ("dot_general", 0),
    }


def test_layers_in_a_loop_are_nested_below():
    found = fluid.summary(nets.recurrent).rows
    assert [(row.name, row.depth, row.steps) for row in found if not row.operators] == [
        ("words", 0, None),
        ("scale", 0, None),
        ("dynamic_rnn_0", 0, "time"),
        ("fc_0", 1, None),
        ("sequence_pool_0", 0, None),
        ("repeat_0", 0, 3),
        ("repeat_0/fc_0", 1, None),
        ("mean_0", 0, None),
    ]


def test_parameters_belong_to_the_layer_that_reads_them():
    found = rows(nets.recurrent)
    assert found["fc_0"].parameters == ("fc_0.w_0", "fc_0.w_1", "fc_0.b_0")
    assert found["repeat_0/fc_0"].parameters == ("repeat_0/fc_0.w_0", "repeat_0/fc_0.b_0")
    assert found["repeat_0/fc_0"].trainable == 3 * (8 * 8 + 8)
    assert found["dynamic_rnn_0"].parameters == found["repeat_0"].parameters == ()


def test_states_are_counted_apart():
    found = rows(nets.digits)["batch_norm_0"]
    assert (found.trainable, found.states, found.size) == (40, 40, 320)
    assert found.numbers == "40 + 40 in states"


def test_half_precision_changes_neither_names_nor_numbers():
    half = fluid.summary(fluid.Program(nets.recurrent, precision="bfloat16"))
    full = fluid.summary(nets.recurrent)
    assert [row.name for row in half.rows] == [row.name for row in full.rows]
    assert half.totals.trainable == full.totals.trainable and half.totals.size == full.totals.size
    assert {row.dtype for row in half.rows if row.kind == "fc"} == {"bfloat16"}


def test_a_shared_parameter_is_counted_once():
    def program():
        x = layers.data("x", shape=[4])
        return layers.fc(layers.fc(x, size=4, param_attr="w", bias_attr=False), size=4, param_attr="w")

    found = fluid.summary(program)
    first, second = found.rows[1:]
    assert (first.trainable, first.shared, second.trainable, second.shared) == (16, (), 4, ("w",))
    assert found.totals.trainable == 20


def test_unused_layers_have_no_flops():
    def program():
        x = layers.data("x", shape=[4])
        layers.fc(x, size=100, name="spare")
        return layers.fc(x, size=2)

    found = fluid.summary(program)
    spare = next(row for row in found.rows if row.name == "spare")
    assert not spare.live and spare.flops == 0 and spare.trainable == 500
    assert found.totals.forward.flops == 2 * 4 * 2 + 2
    assert "spare (fc)" in str(found) and "not used" in str(found)


def test_unused_loops_have_no_flops():
    def program():
        x = layers.data("x", shape=[4])
        layers.repeat(lambda h: layers.fc(h, size=4), 3, x)
        return layers.mean(x)

    found = fluid.summary(program)
    assert [(row.name, row.live, row.flops) for row in found.rows[1:3]] == [
        ("repeat_0", False, 0),
        ("repeat_0/fc_0", False, 0),
    ]
    assert found.totals.trainable == 3 * 20 and found.totals.forward.flops < 10


def test_identity_names_the_result_of_an_operator():
    def program():
        x = layers.data("x", shape=[4])
        hidden = layers.identity(x * 2.0, name="doubled")
        return layers.fc(hidden, size=2)

    assert [(row.name, row.kind, row.flops) for row in fluid.summary(program).rows[:2]] == [
        ("x", "data", 0),
        ("doubled", "mul", 4),
    ]


def test_a_custom_activation_belongs_to_its_layer():
    def program():
        x = layers.data("x", shape=[4])
        return layers.fc(x, size=4, act=lambda v: v * v + 1.0)

    assert [row.name for row in fluid.summary(program).rows] == ["x", "fc_0"]


def test_a_flax_module_is_a_single_layer():
    def program():
        x = layers.data("x", shape=[4])
        return layers.module(linen.Dense(3), x) + 1.0

    found = fluid.summary(program).rows
    assert [(row.kind, row.trainable) for row in found] == [("data", 0), ("module", 15), ("add", 0)]


def test_named_scopes_of_jax_do_not_hide_operators():
    def program():
        x = layers.data("x", shape=[4])
        with jax.named_scope("mine"):
            doubled = x * 2.0
        return layers.fc(doubled, size=2)

    assert [row.kind for row in fluid.summary(program).rows] == ["data", "mul", "fc"]


def test_an_unread_parameter_is_counted_as_trainable():
    def program():
        layers.create_parameter(shape=[3, 5], name="unread")
        return layers.data("x", shape=[2]) * 1.0

    found = fluid.summary(program)
    assert found.totals.trainable == 15
    assert found.rows[-1].name == "unread" and not found.rows[-1].live


def test_feeds_and_constants_as_outputs_are_accepted():
    def program():
        x = layers.data("x", shape=[2])
        return x, jnp.ones(3), layers.fill_constant([2], "float32", 1.0)

    assert [row.name for row in fluid.summary(program).rows][0] == "x"


@pytest.mark.sample(3)
@pytest.mark.parametrize("row", ROWS, ids=[row.id for row in ROWS])
def test_each_equation_belongs_to_a_single_layer(row):
    program = fluid.Program(row.program())
    batch = 6 if row.name == "temporal_shift" else 4  # temporal_shift reads videos of three images each
    traced = trace(program, Sizes(batch, 16, 16))
    found = partition(program, traced)
    outputs = [getattr(v, "data", v) for v in traced.applied.outputs]
    live = live_equations(traced.jaxpr, outputs)
    assert all(id(equation) in found.owners for equation in live)
    counted = [id(e) for top in found.parts for part, _ in top.walk() for p in part.pieces for e in p.equations]
    assert len(counted) == len(set(counted))
    plain = {id(e) for e in live if not found.inner.keys() & set(e.outvars)}
    assert plain <= set(counted)
