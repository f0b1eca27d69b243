"""Name scopes: access to their values and parameters while the program function runs."""

import copy
import gc
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import ParamAttr, errors, layers

X = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")


def ran(function, feed=None):
    """Return the outputs of a program function for `feed`, by default x = X."""
    return fluid.Session(function).run(feed={"x": X} if feed is None else feed)


def test_scope_gives_layer_results_and_named_values():
    def program():
        x = layers.data("x", shape=[4])
        with fluid.name_scope("d") as d:
            hidden = layers.fc(x, size=3, act="relu")
            layers.fc(hidden, size=2, name="head")
            assert d.fc_0 is hidden is d["fc_0"]
        assert d.fc_0 is hidden, "after the block as well"
        assert "fc_0" in dir(d) and repr(d) == "NameScope('d')"
        return {"head": d.head, "sums": d["fc_0.tmp_1"], "w": d["fc_0.w_0"]}

    session = fluid.Session(program)
    found = session.run(feed={"x": X})
    same = session.run(feed={"x": X}, fetch=["d/head", "d/fc_0.tmp_1", "d/fc_0.w_0"])
    for mine, theirs in zip(found, same, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(found["sums"], X @ found["w"] + session.scope["d/fc_0.b_0"], rtol=1e-5, atol=1e-6)


def test_scopes_inside_and_opened_again():
    def program():
        x = layers.data("x", shape=[4])
        with fluid.name_scope("net") as net:
            with fluid.name_scope("encoder") as encoder:
                code = layers.fc(x, size=3)
            layers.fc(code, size=2)
        with fluid.name_scope("net") as again:
            layers.fc(code, size=1)
        assert net.encoder.fc_0 is encoder.fc_0 is code and net["encoder/fc_0"] is code
        assert again.fc_1 is net.fc_1 and list(encoder.parameters) == ["net/encoder/fc_0.w_0", "net/encoder/fc_0.b_0"]
        assert list(net.parameters) == [*encoder.parameters, *(f"net/fc_{i}.{p}_0" for i in (0, 1) for p in "wb")]
        return again.fc_1

    assert ran(program)[0].shape == (5, 1)


def adversarial(whose):
    """Return a program that trains only the parameters of the name scope `whose`, "g" or "d"."""

    def program():
        x = layers.data("x", shape=[4])
        with fluid.name_scope("g") as g:
            made = layers.batch_norm(layers.fc(x, size=3, param_attr=ParamAttr(name="shared.w")))
        with fluid.name_scope("d") as d:
            judged = layers.fc(made, size=1)
        loss = layers.mean(judged)
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list={"g": g, "d": d}[whose].parameters)
        return loss

    return program


@pytest.mark.parametrize(
    "whose, names",
    [
        ("g", ["shared.w", "g/fc_0.b_0", "g/batch_norm_0.w_0", "g/batch_norm_0.b_0"]),
        ("d", ["d/fc_0.w_0", "d/fc_0.b_0"]),
    ],
)
def test_parameters_of_a_scope_form_a_parameter_list(whose, names):
    session = fluid.Session(adversarial(whose))
    before = session.params()
    session.run(feed={"x": X})
    changed = [name for name, value in session.params().items() if not np.array_equal(value, before[name])]
    assert set(names) >= set(changed) - {"g/batch_norm_0.w_1", "g/batch_norm_0.w_2"} and changed
    assert list(session.programs["program"].minimizes[0].parameters) == names


def test_parameters_are_arrays_of_the_program_with_gradients():
    """Add a penalty on the parameters of a scope to the loss; compare its gradient with the derivative by hand."""

    def program():
        x = layers.data("x", shape=[4])
        with fluid.name_scope("d") as d:
            loss = layers.mean(layers.fc(x, size=2))
        assert len(d.parameters) == 2
        penalty = sum(jnp.sum(w**2) for w in d.parameters.values())
        return loss * 0.0 + penalty

    session = fluid.Session(program)
    weight, (gradient,) = session.scope["d/fc_0.w_0"], session.run(feed={"x": X}, fetch="d/fc_0.w_0@GRAD")
    np.testing.assert_allclose(gradient, 2 * weight, rtol=1e-6)


def test_scope_returns_the_overridden_value():
    def program():
        with fluid.name_scope("d") as d:
            layers.fc(layers.data("x", shape=[4]), size=2)
        return d.fc_0 * 1.0

    np.testing.assert_array_equal(ran(program, {"d/fc_0": np.full((2, 2), 7.0)})[0], np.full((2, 2), 7.0))


def test_unknown_names_raise_errors_with_near_names():
    def program(ask):
        with fluid.name_scope("d") as d:
            hidden = layers.fc(layers.data("x", shape=[4]), size=2)
        ask(d)
        return hidden

    with pytest.raises(AttributeError, match="has no value, parameter or scope 'fc_1' so far. Did you mean 'fc_0'"):
        fluid.Program(lambda: program(lambda d: d.fc_1))
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'fc_0.w_0'"):
        fluid.Program(lambda: program(lambda d: d["fc_0.w_1"]))
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'd/fc_0.w_0'"):
        fluid.Program(lambda: program(lambda d: d.parameters["d/fc_0.w_1"]))
    fluid.Program(lambda: program(lambda d: copy.copy(d)))


def test_scope_access_ends_with_the_program_function():
    kept = []

    def program():
        with fluid.name_scope("d") as d:
            hidden = layers.fc(layers.data("x", shape=[4]), size=2)
        kept.append(d)
        kept.append(weakref.ref(fluid.core.present_frame()))
        return hidden

    ran(program)
    gc.collect()
    assert all(frame() is None for frame in kept[1::2]), "a scope that is kept keeps no values of a trace"
    for use in (lambda: kept[0].fc_0, lambda: list(kept[0].parameters), lambda: dir(kept[0])):
        with pytest.raises(errors.OutsideProgramError, match=r"fetch=\['d/fc_0'\].*'d/\*' stands for"):
            use()
    with pytest.raises(errors.OutsideProgramError):
        fluid.Program(lambda: kept[0].fc_0)
    with pytest.raises(errors.OutsideProgramError, match="name_scope was called outside"):
        fluid.name_scope("d").__enter__()


def test_values_of_a_loop_stay_inside():
    kept = []

    def body(carry):
        with fluid.name_scope("inner") as inner:
            layers.fc(carry, size=4)
        kept.append(inner)
        return inner.fc_0

    def program(leak):
        x = layers.data("x", shape=[4])
        with fluid.name_scope("outer") as outer:
            layers.fc(x, size=4)
        result = layers.cond(layers.reduce_sum(x) > 0, lambda: body(outer.fc_0), lambda: outer.fc_0)
        return kept[-1].fc_0 if leak else result

    assert ran(lambda: program(False))[0].shape == (5, 4)
    with pytest.raises(errors.OutsideProgramError, match="loop or branch"):
        fluid.Program(lambda: program(True))
