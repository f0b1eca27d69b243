"""Traced programs: they find parameters and names, name values, and compute without side effects."""

import functools
import os
import pathlib
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import core, errors
from fluid.core.equations import labelled


def two_layers():
    x = fluid.layers.data("x", shape=[4])
    return fluid.layers.fc(fluid.layers.fc(x, size=3, act="relu"), size=2)


def apply(function, feeds, **options):
    program = fluid.Program(function)
    return program.apply(program.init(jax.random.key(0)), feeds, key=jax.random.key(1), **options)


def test_discovery_without_data_finds_feeds_and_shapes():
    program = fluid.Program(two_layers)
    assert list(program.feeds) == ["x"]
    assert program.feeds["x"].shape == (None, 4)
    assert {n: s.shape for n, s in program.parameters.items()} == {
        "fc_0.w_0": (4, 3),
        "fc_0.b_0": (3,),
        "fc_1.w_0": (3, 2),
        "fc_1.b_0": (2,),
    }
    assert [str(o) for o in program.outputs] == ["float32[batch, 2]"]
    assert program.name == "two_layers"


def test_counters_start_afresh_for_every_program():
    assert list(fluid.Program(two_layers).parameters) == list(fluid.Program(two_layers).parameters)


def test_outputs_independent_of_the_batch_keep_sizes():
    program = fluid.Program(lambda: (jnp.sum(fluid.layers.data("x", shape=[7])), fluid.layers.data("x", shape=[7])))
    assert program.outputs[0].shape == ()
    assert program.outputs[1].shape == (None, 7)


class Net:
    def method(self):
        return two_layers()

    def __call__(self):
        return two_layers()


@pytest.mark.parametrize(
    "function, name",
    [
        (lambda: two_layers(), "program"),
        (functools.partial(two_layers), "two_layers"),
        (Net().method, "method"),
        (Net(), "Net"),
    ],
)
def test_any_callable_is_a_program_function(function, name):
    assert fluid.Program(function).name == name


def test_values_are_arrays_and_jnp_works_between_layers():
    def program():
        x = fluid.layers.data("x", shape=[4])
        return jnp.tanh(x) * 2 + fluid.layers.fc(x, size=4)

    x = np.ones((3, 4), "float32")
    assert apply(program, {"x": x}).outputs[0].shape == (3, 4)


def test_named_values_are_fetched_and_overridden():
    def program():
        x = fluid.layers.data("x", shape=[2])
        h = fluid.layers.identity(x * 3, name="h")
        return h + 1

    x = np.ones((1, 2), "float32")
    assert apply(program, {"x": x}).values["h"].tolist() == [[3, 3]]
    replaced = apply(program, {"x": x}, overrides={"h": np.full((1, 2), 5.0, "float32")})
    assert replaced.outputs[0].tolist() == [[6, 6]]
    assert replaced.values["h"].tolist() == [[5, 5]]


def test_perturbation_gives_the_gradient_of_a_value():
    def program():
        h = fluid.layers.identity(fluid.layers.data("x", shape=[2]) * 3, name="h")
        return jnp.sum(h**2)

    discovered = fluid.Program(program)
    x = np.array([[1.0, 2.0]], "float32")

    def loss(nudge):
        return discovered.apply({}, {"x": x}, key=jax.random.key(0), perturbations={"h": nudge}).outputs[0]

    assert jax.grad(loss)(jnp.zeros((1, 2))).tolist() == [[6, 12]]


def test_adding_a_layer_changes_no_other_initial_value():
    def longer():
        x = fluid.layers.data("x", shape=[4])
        extra = fluid.layers.embedding(fluid.layers.data("id", shape=[1], dtype="int64"), size=[5, 4])
        return fluid.layers.fc(fluid.layers.fc(x + extra, size=3, act="relu"), size=2)

    short, long = (fluid.Program(f).init(jax.random.key(3)) for f in (two_layers, longer))
    assert set(short) < set(long)
    for name, value in short.items():
        assert np.array_equal(value, long[name])


def test_initial_values_depend_on_the_seed():
    program = fluid.Program(two_layers)
    a, b = program.init(jax.random.key(0)), program.init(jax.random.key(1))
    assert not np.array_equal(a["fc_0.w_0"], b["fc_0.w_0"])


def test_name_scopes_prefix_and_go_on_counting():
    def program():
        x = fluid.layers.data("x", shape=[4])
        for scope in ("a", "b", "a"):
            with fluid.name_scope(scope):
                x = fluid.layers.fc(x, size=4, bias_attr=False)
        with fluid.name_scope("a"), fluid.name_scope("c"):
            x = fluid.layers.fc(x, size=4, bias_attr="shared")
        return x

    with pytest.warns(errors.FluidWarning, match="'a/fc_1.w_0' is another array than 'a/fc_0.w_0'"):
        names = list(fluid.Program(program).parameters)
    assert names == ["a/fc_0.w_0", "b/fc_0.w_0", "a/fc_1.w_0", "a/c/fc_0.w_0", "shared"]


@pytest.mark.parametrize("prefix", ["", "a/b", 3])
def test_a_bad_name_scope_is_refused(prefix):
    def program():
        with fluid.name_scope(prefix):
            return fluid.layers.data("x", shape=[1])

    with pytest.raises(errors.ArgumentError, match="name_scope"):
        fluid.Program(program)


def test_a_parameter_is_shared_by_name():
    def program():
        x = fluid.layers.data("x", shape=[4])
        y = fluid.layers.fc(x, size=4, param_attr="w", bias_attr=False)
        return fluid.layers.fc(y, size=4, param_attr=fluid.ParamAttr(name="w"), bias_attr=False)

    assert list(fluid.Program(program).parameters) == ["w"]


def test_parameter_name_with_two_shapes_shows_both_lines():
    def program():
        x = fluid.layers.data("x", shape=[4])
        a = fluid.layers.fc(x, size=4, param_attr="w")
        return fluid.layers.fc(a, size=5, param_attr="w")

    with pytest.raises(errors.ParameterError, match="'w'") as caught:
        fluid.Program(program)
    text = str(caught.value)
    assert text.count("test_program.py:") == 2
    assert "[4, 4]" in text and "[4, 5]" in text


def test_repeated_value_name_is_refused():
    def program():
        x = fluid.layers.data("x", shape=[4])
        return fluid.layers.identity(fluid.layers.identity(x, name="h"), name="h")

    with pytest.raises(errors.ProgramError, match="'h' is used twice"):
        fluid.Program(program)


def test_a_layer_outside_a_program_function_is_refused():
    with pytest.raises(errors.OutsideProgramError, match=r"fluid\.layers\.fc.*\n.*def program"):
        fluid.layers.fc(np.ones((2, 2)), size=1)
    with pytest.raises(RuntimeError):
        fluid.optimizer.SGD(0.1).minimize(0.0)


@pytest.mark.parametrize("result", [None, [], (None,)])
def test_a_program_that_returns_nothing_is_refused(result):
    with pytest.raises(errors.ProgramError, match="return"):
        fluid.Program(lambda: result)


def test_a_program_that_returns_no_array_is_refused():
    with pytest.raises(errors.ProgramError, match="str"):
        fluid.Program(lambda: "loss")


def test_number_instead_of_a_function_is_refused():
    with pytest.raises(errors.ArgumentTypeError, match="function"):
        fluid.Program(3)


def test_layer_errors_name_layer_and_user_line():
    def program():
        x = fluid.layers.data("x", shape=[])
        return fluid.layers.fc(x, size=3, name="head")  # the message of the error must name this line

    with pytest.raises(errors.ShapeError) as caught:
        fluid.Program(program)
    note = caught.value.__notes__[0]
    assert "fc" in note and "test_program.py" in note and "in program" in note


def test_equal_declarations_of_a_feed_are_merged():
    def program():
        return fluid.layers.data("x", shape=[2]) + fluid.layers.data("x", shape=[2])

    assert apply(program, {"x": np.ones((1, 2), "float32")}).outputs[0].tolist() == [[2, 2]]


def test_different_declarations_of_a_feed_are_refused():
    with pytest.raises(errors.ProgramError, match="declared twice"):
        fluid.Program(lambda: fluid.layers.data("x", shape=[2]) + fluid.layers.data("x", shape=[3]))


@pytest.mark.parametrize(
    "bad, error",
    [
        ({"name": "x", "shape": 3}, errors.ShapeError),
        ({"name": "x", "shape": [3], "dtype": "float31"}, errors.ArgumentError),
        ({"name": "x", "shape": [3], "lod_level": 7}, errors.ArgumentError),
        ({"name": "", "shape": [3]}, errors.ArgumentTypeError),
    ],
)
def test_bad_declarations_are_refused(bad, error):
    with pytest.raises(error, match="data"):
        fluid.Program(lambda: fluid.layers.data(**bad))


def test_sample_feed_resolves_dependent_batch_sizes():
    def program():
        pairs = fluid.layers.data("pairs", shape=[2])
        singles = fluid.layers.data("singles", shape=[2])
        return jnp.reshape(pairs, (-1, 2, 2)).sum(1) + singles

    with pytest.raises(errors.ShapeError, match=r"\(batch, 2\)"):
        fluid.Program(program)
    sample = {"pairs": np.ones((6, 2)), "singles": np.ones((3, 2))}
    assert fluid.Program(program, sample_feed=sample).outputs[0].shape == (3, 2)


def test_discovery_runs_twice_only_for_batch_sizes():
    runs = []

    def program():
        runs.append(None)
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=3))

    found = fluid.Program(program)
    assert found.outputs == [((), "float32")] and len(runs) == 1
    assert found.values["fc_0.tmp_0"] == ((None, 3), "float32") and len(runs) == 2
    assert found.values["mean_0.tmp_0"] == ((), "float32") and len(runs) == 2


def test_two_threads_may_trace_at_once():
    found, gate = {}, threading.Barrier(2)

    def trace(size):
        def program():
            gate.wait(timeout=30)
            x = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=size)
            gate.wait(timeout=30)
            return fluid.layers.fc(x, size=size)

        found[size] = fluid.Program(program)
        assert found[size].outputs  # reading the outputs runs `program` again

    threads = [threading.Thread(target=trace, args=(size,)) for size in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for size in (2, 3):
        assert list(found[size].parameters) == ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"]
        assert found[size].outputs[0].shape == (None, size)


def test_states_change_in_train_mode_only():
    def program():
        x = fluid.layers.data("x", shape=[1])
        count = core.create_state("count", [], "float32", fluid.initializer.Constant(0.0))
        core.set_state("count", count + 1)
        return x

    x = {"x": np.ones((1, 1), "float32")}
    assert float(apply(program, x, mode="train").states["count"]) == 1
    assert float(apply(program, x, mode="test").states["count"]) == 0


def test_sequence_batches_round_trip():
    rows = [np.arange(3.0), np.arange(1.0), np.arange(0.0)]
    batch = fluid.SequenceBatch.from_rows(rows, "float32", time=4)
    assert batch.shape == (3, 4)
    assert batch.mask.sum(1).tolist() == [3, 1, 0]
    for got, want in zip(batch.rows(), rows, strict=True):
        assert got.tolist() == want.tolist()


def test_values_know_the_kind_of_their_layer():
    def program():
        x = fluid.layers.data("x", shape=[4])
        hidden = fluid.layers.fc(x, size=2, name="hidden")
        return fluid.layers.identity(fluid.layers.relu(hidden), name="out")

    assert fluid.Program(program).kinds == {
        "hidden.tmp_0": "fc",
        "hidden.tmp_1": "fc",
        "relu_0.tmp_0": "relu",
        "out": "identity",
    }


def test_labels_name_values_in_loops_without_computation():
    def program():
        x = fluid.layers.data("x", shape=[4])
        return fluid.layers.repeat(lambda h: fluid.layers.fc(h, size=4, act="tanh"), 3, x)

    found = fluid.Program(program)
    arrays, feeds, key = found.init(jax.random.key(0)), {"x": jnp.ones((2, 4))}, jax.random.key(1)

    def outputs(labelling):
        def run(arrays, feeds):
            return found.apply(arrays, feeds, key=key, labelling=labelling).outputs

        scan = next(e for e in jax.make_jaxpr(run)(arrays, feeds).eqns if e.primitive.name == "scan")
        names = [labelled(e) for e in scan.params["jaxpr"].jaxpr.eqns]
        return [name for name in names if name], run(arrays, feeds)[0]

    (names, with_labels), (none, without) = outputs(True), outputs(False)
    assert names == [f"repeat_0/fc_0.tmp_{i}" for i in range(3)] and not none
    assert jnp.array_equal(with_labels, without)


def test_repr_of_a_program_has_shapes_and_size():
    program = fluid.Program(two_layers)
    assert program.parameter_count == 4 * 3 + 3 + 3 * 2 + 2
    assert repr(program) == "Program(two_layers(x: float32[batch, 4]) -> float32[batch, 2]; 23 parameters)"
    shown = program._repr_html_()
    assert "two_layers" in shown and "23 in 4 arrays" in shown and "minimised by" in shown
    named = fluid.Program(lambda: {"a<b": fluid.layers.data("x", shape=[4])}, name="named")
    assert repr(named) == "Program(named(x: float32[batch, 4]) -> a<b: float32[batch, 4]; 0 parameters)"
    assert "a&lt;b" in named._repr_html_()


def test_float_update_of_an_integer_state_warns():
    def counted(step):
        def program():
            count = fluid.layers.create_state([1], dtype="int64", name="count")
            count.update(step(count.value))
            return count.value

        return program

    with pytest.warns(errors.FluidWarning, match=r"'count' holds int32 and is given float32.*'float32'.*layers\.cast"):
        fluid.Program(counted(lambda value: value + 0.5))
    fluid.Program(counted(lambda value: value + 1))
    fluid.Program(counted(lambda value: fluid.layers.cast(value + 0.5, "int64")))


@pytest.mark.sample(3)
def test_the_digest_is_the_same_in_another_process():
    code = "import mistakes.common as c, fluid; print(fluid.Trainer(c.classification, c.SGD).program.digest)"
    found = {
        subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, **options).stdout
        for seed in "12"
        for options in [{"check": True, "capture_output": True, "cwd": pathlib.Path(__file__).parent.parent}]
    }
    assert len(found) == 1 and len(found.pop().strip()) == 32
