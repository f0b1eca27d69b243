"""Gradient clipping, compared with NumPy: all gradients, a selection by `need_clip`, and `set_gradient_clip`."""

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.clip import GradientClipByGlobalNorm, GradientClipByNorm, GradientClipByValue, set_gradient_clip

X = np.array([[3.0, -4.0], [1.0, 0.5]], "float32")
SLOPES = {"a": np.array([4.0, -3.5]), "b": np.array([2.0, -1.75])}  # the gradients of `loss` for the feed X


def loss():
    x = fluid.layers.data("x", shape=[2])
    a, b = (fluid.layers.create_parameter([2], name=n) for n in "ab")
    return fluid.layers.reduce_sum(x * a + x * b / 2)


def moved(program, optimizer=None):
    """Train one step, and return the decrease of each parameter; at learning rate 1 the decrease is the gradient."""
    trainer = fluid.Trainer(program, optimizer)
    before = {n: np.array(v) for n, v in trainer.params.items()}
    trainer.train(lambda: [[(row,) for row in X]], num_epochs=1)
    return {n: before[n] - np.asarray(v) for n, v in trainer.params.items()}


def shrunk(*names, norm):
    length = np.sqrt(sum(np.sum(SLOPES[n] ** 2) for n in names))
    return {n: SLOPES[n] * min(1, norm / length) for n in names}


def only_a(parameter):
    assert parameter.shape == (2,) and parameter.dtype == "float32"
    return parameter.name == "a"


CLIPS = {
    "value": (GradientClipByValue(2.0, -3.0, need_clip=only_a), {"a": np.array([2.0, -3.0])}),
    "norm": (GradientClipByNorm(1.5, need_clip=only_a), shrunk("a", norm=1.5)),
    "global": (GradientClipByGlobalNorm(1.5, need_clip=only_a), shrunk("a", norm=1.5)),
    "everything": (GradientClipByGlobalNorm(1.5), shrunk("a", "b", norm=1.5)),
}


def check(found, **want):
    for name in SLOPES:
        np.testing.assert_allclose(found[name], want.get(name, SLOPES[name]), rtol=1e-5)


@pytest.mark.parametrize("name", CLIPS)
def test_clips_of_some_parameters(name):
    clip, want = CLIPS[name]
    check(moved(loss, fluid.optimizer.SGD(1.0, grad_clip=clip)), **want)


def test_without_a_clip():
    check(moved(loss, fluid.optimizer.SGD(1.0)))


def test_set_in_the_function_of_the_optimizer():
    def optimizer():
        set_gradient_clip(clip=GradientClipByGlobalNorm(clip_norm=1.5))
        return fluid.optimizer.SGD(1.0)

    check(moved(loss, optimizer), **shrunk("a", "b", norm=1.5))
    wrapped = fluid.optimizer.as_optimizer(lambda: (set_gradient_clip(GradientClipByNorm(1.5)), lookahead())[1])
    assert wrapped.inner_optimizer.grad_clip == GradientClipByNorm(1.5)
    check(moved(loss, fluid.optimizer.SGD(1.0)))


def lookahead():
    return fluid.optimizer.Lookahead(fluid.optimizer.SGD(1.0), k=2)


@pytest.mark.parametrize("how", ["set", "argument"])
def test_set_in_the_program(how):
    def program():
        cost = loss()
        if how == "set":
            set_gradient_clip(GradientClipByValue(1.0))
            set_gradient_clip(GradientClipByNorm(1.5))
        clip = GradientClipByNorm(1.5) if how == "argument" else None
        fluid.optimizer.SGD(1.0).minimize(cost, startup_program=None, grad_clip=clip)
        return cost

    check(moved(program), **shrunk("a", norm=1.5), **shrunk("b", norm=1.5))


def test_clip_of_the_optimizer_overrides_set_gradient_clip():
    def program():
        set_gradient_clip(GradientClipByValue(0.1))
        return loss()

    own = fluid.optimizer.SGD(1.0, grad_clip=GradientClipByNorm(1.5))
    with pytest.warns(errors.FluidWarning, match=r"clip_norm=1.5.* counts, and .*max=0.1.* has no effect"):
        check(moved(program, own), **shrunk("a", norm=1.5), **shrunk("b", norm=1.5))
    check(moved(program, fluid.optimizer.SGD(1.0)), a=np.array([0.1, -0.1]), b=np.array([0.1, -0.1]))


def test_set_for_some_parameters():
    def program():
        cost = loss()
        set_gradient_clip(GradientClipByNorm(1.5), param_list=["b"])
        return cost

    check(moved(program, fluid.optimizer.SGD(1.0)), **shrunk("b", norm=1.5))


def test_wrong_calls_raise_named_errors():
    with pytest.raises(errors.OutsideProgramError, match="clip.set_gradient_clip was called outside"):
        set_gradient_clip(GradientClipByNorm(1.0))
    with pytest.raises(errors.ArgumentTypeError, match="expected a clip"):
        set_gradient_clip(1.0)
    with pytest.raises(errors.ArgumentError, match="inside of the program function"):
        set_gradient_clip(GradientClipByNorm(1.0), program=fluid.Program(loss))
    with pytest.raises(errors.ArgumentError, match="need_clip=lambda"):
        set_gradient_clip(GradientClipByGlobalNorm(1.0), ["a"])
    with pytest.raises(errors.UnknownNameError, match="set_gradient_clip was given 'c', which is no parameter"):
        fluid.Program(lambda: (loss(), set_gradient_clip(GradientClipByNorm(1.0), ["c"]))[0])
    with pytest.raises(errors.OutsideProgramError, match="layers.data was called outside"):
        fluid.optimizer.as_optimizer(lambda: fluid.layers.data("x", [1]))


def test_clip_between_two_minimize_calls_affects_the_second():
    def program():
        cost = loss()
        fluid.optimizer.SGD(1.0).minimize(cost, parameter_list=["a"])
        set_gradient_clip(GradientClipByValue(0.1))
        fluid.optimizer.SGD(1.0).minimize(cost, parameter_list=["b"])
        return cost

    check(moved(program), a=SLOPES["a"], b=np.array([0.1, -0.1]))  # pytest turns warnings into errors


def test_shared_clip_applies_to_its_need_clip_parameters():
    clip = GradientClipByValue(0.1, need_clip=lambda parameter: parameter.name == "b")

    def program():
        cost = loss()
        for name in "ab":
            fluid.optimizer.SGD(1.0, grad_clip=clip).minimize(cost, parameter_list=[name])
        return cost

    check(moved(program), a=SLOPES["a"], b=np.array([0.1, -0.1]))  # pytest turns warnings into errors
