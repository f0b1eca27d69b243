"""Mistakes with the argument `seed` of predictions and runs that draw random numbers in test mode."""

from fluid import errors
from mistakes.common import SGD, X, classifier, fluid, jax, layers, regression
from mistakes.theme import Theme

THEME = Theme("Sampling")


@THEME.mistake("A seed for a program that draws nothing", errors.FluidWarning, "draws no random numbers", "seed=7")
def seed_for_nothing():
    inferencer = fluid.Inferencer(classifier, params=fluid.Session(classifier).params())
    inferencer.infer({"x": X}, seed=7)


@THEME.mistake("A seed for an Inferencer of a net with dropout", errors.FluidWarning, "dropout", "leave seed= out")
def seed_for_dropout():
    def program():
        return layers.fc(layers.dropout(layers.data("x", shape=[4]), 0.5), size=1)

    fluid.Inferencer(program, params=fluid.Session(program).params(), seed=7)


@THEME.mistake("A fraction as a seed", errors.ArgumentError, "infer(seed=0.5)", "2**64 - 1", "seed=7")
def seed_is_a_fraction():
    def program():
        return layers.gaussian_random([2, 3])

    fluid.Inferencer(program, params={}).infer({}, seed=0.5)


@THEME.mistake("A key as a seed", errors.ArgumentError, "Inferencer(seed=", "whole number", "seed=7")
def seed_is_a_key():
    def program():
        return layers.gaussian_random([2, 3])

    fluid.Inferencer(program, params={}, seed=jax.random.key(0))


@THEME.mistake("A negative seed for a pass", errors.ArgumentError, "predict(seed=-1)", "from 0", "seed=7")
def seed_is_negative():
    trainer = fluid.Trainer(regression, SGD)
    trainer.predict(fluid.reader.arrays({"x": X, "y": X[:, :1]}, batch_size=8), seed=-1)


@THEME.mistake("A seed for a training step", errors.ArgumentError, "mode='test'", "fluid.Session(program, seed=7)")
def seed_of_a_step():
    def program():
        x = layers.data("x", shape=[4])
        loss = layers.mean(layers.square(layers.fc(x, size=1)))
        SGD.minimize(loss)
        return loss

    fluid.Session(program).run(feed={"x": X}, seed=7)
