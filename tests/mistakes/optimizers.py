"""Mistakes about optimizers, learning rates and what is trained."""

from fluid import errors
from mistakes.common import READER, SGD, X, Y, fluid, layers, regression
from mistakes.theme import Theme

THEME = Theme("Optimizers and rates")


@THEME.mistake(
    "The learning rate has the name that it has in Keras and PyTorch", errors.ArgumentTypeError, "lr", "learning_rate"
)
def lr():
    fluid.optimizer.Adam(lr=0.001)


@THEME.mistake("An optimizer that is not there", errors.FluidError, "'AdaM'", "'Adam'")
def misspelled():
    fluid.optimizer.AdaM(0.001)


@THEME.mistake("A negative learning rate", errors.ArgumentError, "-0.1")
def negative_rate():
    fluid.Trainer(regression, fluid.optimizer.SGD(-0.1))


@THEME.mistake("A learning rate from a configuration, as text", errors.FluidError, "'1e-3'")
def rate_as_text():
    fluid.Trainer(regression, fluid.optimizer.SGD("1e-3"))


@THEME.mistake("A decay rate beyond 1", errors.ArgumentError, "beta1", "9")
def beta():
    fluid.Trainer(regression, fluid.optimizer.Adam(0.001, beta1=9))


@THEME.mistake("Python computes the learning rate", errors.FluidWarning, "learning_rate")
def baked_in():
    rates = [0.1, 0.05, 0.01]

    def train_program():
        loss = regression()
        fluid.optimizer.SGD(rates.pop(0)).minimize(loss)
        return loss

    fluid.Session(train_program).run(feed={"x": X, "y": Y})


@THEME.mistake("A rate is set that is none", errors.ArgumentError, "-1")
def set_rate():
    trainer = fluid.Trainer(regression, SGD)
    trainer.learning_rate = -1


@THEME.mistake("A schedule with as many values as boundaries", errors.ArgumentError, "values")
def piecewise():
    layers.piecewise_decay(boundaries=[100, 200], values=[0.1, 0.01])


@THEME.mistake("Parameters to train that are not there", errors.UnknownNameError, "'fc_1.w_0'", "'fc_0.w_0'")
def parameter_list():
    fluid.Trainer(regression, fluid.optimizer.SGD(0.1, parameter_list=["fc_1.w_0"]))


@THEME.mistake("All parameters are frozen", errors.ProgramError, "trainable")
def all_frozen():
    def train_program():
        x = layers.data("x", shape=[4])
        frozen = fluid.ParamAttr(trainable=False)
        return layers.mean(layers.fc(x, size=1, param_attr=frozen, bias_attr=False))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A vector is minimised", errors.ProgramError, "[batch, 1]", "fluid.layers.mean")
def minimized_vector():
    def train_program():
        prediction = layers.fc(layers.data("x", shape=[4]), size=1)
        fluid.optimizer.SGD(0.1).minimize(prediction)
        return prediction

    fluid.Trainer(train_program)


@THEME.mistake("A clip is a number", errors.ArgumentTypeError, "grad_clip=1.0", "fluid.clip.")
def clip():
    fluid.Trainer(regression, fluid.optimizer.SGD(0.1, grad_clip=1.0))


@THEME.mistake("A decay of weights is a number", errors.ArgumentTypeError, "0.0001", "fluid.regularizer.L2Decay")
def decay():
    fluid.Trainer(regression, fluid.optimizer.SGD(0.1, regularization=0.0001))


@THEME.mistake(
    "Rows of a large table are updated by an optimizer that touches all of them", errors.FluidWarning, "lazy_mode"
)
def dense_updates():
    def train_program():
        word = layers.data("word", shape=[1], dtype="int64")
        return layers.mean(layers.embedding(word, size=[100, 8], is_sparse=True))

    fluid.Trainer(train_program, fluid.optimizer.Adam(0.001))


@THEME.mistake("An average that no program updates", errors.FluidError, "update")
def average():
    trainer = fluid.Trainer(regression, SGD)
    with fluid.optimizer.ExponentialMovingAverage(0.9).apply(trainer):
        trainer.test(READER)


@THEME.mistake("A clip to a norm of 0, for no clip", errors.ArgumentError, "clip_norm=0.0", "leave grad_clip= out")
def clip_to_nothing():
    fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.0))


@THEME.mistake("The lower bound of a clip alone", errors.ArgumentError, "min <= 0 <= max", "GradientClipByValue(1.0)")
def lower_bound_alone():
    fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByValue(-1.0))


@THEME.mistake("A negative decay of weights", errors.ArgumentError, "L2Decay(-0.01)", "L2Decay(0.01)")
def negative_decay():
    fluid.optimizer.SGD(0.1, regularization=fluid.regularizer.L2Decay(-0.01))


@THEME.mistake("A population of one seed", errors.FluidWarning, "the same training", "0, 1, 2")
def population_of_one_seed():
    fluid.Population(regression, SGD, seeds=[7, 7, 7])


@THEME.mistake("The decay of an average as in torch", errors.FluidWarning, "decay=0.001", "decay=0.999")
def average_of_the_last_step():
    fluid.optimizer.ExponentialMovingAverage(decay=0.001)
