"""Mistakes with optimizers, learning rates and the choice of the trained parameters."""

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


@THEME.mistake("A population of one seed and one value", errors.FluidWarning, "the same training", "give vary=")
def population_of_one_value():
    fluid.Population(regression, SGD, seeds=[7, 7], vary={"learning_rate": [0.1, 0.1]})


@THEME.mistake("The decay of an average as in torch", errors.FluidWarning, "decay=0.001", "decay=0.999")
def average_of_the_last_step():
    fluid.optimizer.ExponentialMovingAverage(decay=0.001)


@THEME.mistake("A decay that ends above its start", errors.FluidWarning, "the rate grows", "end_learning_rate=0.0")
def growing_decay():
    layers.polynomial_decay(learning_rate=1e-5, decay_steps=1000)


@THEME.mistake("A warm-up that falls", errors.FluidWarning, "falls", "start_lr=0.0, end_lr=0.1")
def falling_warm_up():
    layers.linear_lr_warmup(0.1, warmup_steps=100, start_lr=0.1, end_lr=0.0)


@THEME.mistake("A schedule of negative rates", errors.ArgumentError, "-0.1", "learning_rate=0.1")
def negative_schedule():
    layers.cosine_decay(-0.1, step_each_epoch=100, epochs=10)


@THEME.mistake("A share of 1, with which nothing fades", errors.ArgumentError, "rho=1.0", "rho=0.9")
def share_of_one():
    fluid.optimizer.RMSProp(0.01, rho=1.0)


@THEME.mistake("The decays of Adam in the other order", errors.FluidWarning, "beta1=0.999", "beta1=0.9, beta2=0.999")
def swapped_betas():
    fluid.optimizer.Adam(0.001, beta1=0.999, beta2=0.9)


@THEME.mistake("A decay of weights that lets them grow", errors.FluidWarning, "grows without bound", "0.0001")
def too_much_decay():
    fluid.Trainer(regression, fluid.optimizer.SGD(0.5, regularization=fluid.regularizer.L2Decay(5.0)))


@THEME.mistake("Two decays of weights", errors.FluidWarning, "twice", "AdamW(weight_decay=0.0001)")
def two_decays():
    fluid.optimizer.AdamW(0.001, regularization=fluid.regularizer.L2Decay(1e-4))


@THEME.mistake("Lookahead that goes back to the start", errors.ArgumentError, "alpha=0", "alpha=0.5")
def lookahead_to_nowhere():
    fluid.optimizer.Lookahead(SGD, alpha=0)


@THEME.mistake("Two clips for one optimizer", errors.FluidWarning, "clip_norm=5.0", "has no effect", "leave one")
def two_clips():
    def optimizer():
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(5.0))
        return fluid.optimizer.SGD(0.1, grad_clip=fluid.clip.GradientClipByGlobalNorm(1.0))

    fluid.Trainer(regression, optimizer)


@THEME.mistake("A clip after `minimize`", errors.FluidWarning, "clips nothing", "before optimizer.minimize")
def late_clip():
    def train_program():
        loss = regression()
        SGD.minimize(loss)
        fluid.clip.set_gradient_clip(fluid.clip.GradientClipByGlobalNorm(5.0))
        return loss

    fluid.Trainer(train_program)


@THEME.mistake("A clip of no parameter", errors.FluidWarning, "need_clip", "nothing is clipped", "fc_0.w_0")
def clip_of_nothing():
    clip = fluid.clip.GradientClipByGlobalNorm(5.0, need_clip=lambda parameter: "lstm" in parameter.name)
    fluid.Trainer(regression, fluid.optimizer.SGD(0.1, grad_clip=clip))


@THEME.mistake("Biases have another name in fluid", errors.FluidWarning, "excludes none", "fc_0.b_0", "parameter.shape")
def excluded_by_name_of_torch():
    optimizer = fluid.optimizer.AdamW(0.001, exclude_from_weight_decay_fn=lambda p: p.name.endswith(".bias"))
    fluid.Trainer(regression, optimizer)


@THEME.mistake("A function that excludes returns a name", errors.ArgumentTypeError, "'fc_0.b_0'", "True or False")
def excluded_name():
    optimizer = fluid.optimizer.AdamW(0.001, exclude_from_weight_decay_fn=lambda parameter: "fc_0.b_0")
    fluid.Trainer(regression, optimizer)


@THEME.mistake("The standard deviation in the place of the mean", errors.FluidWarning, "the mean 0.02", "(0.0, 0.02)")
def mean_for_deviation():
    fluid.ParamAttr(initializer=fluid.initializer.Normal(0.02))


@THEME.mistake("One bound of a range around 0", errors.FluidWarning, "to 1", "Uniform(-0.05, 0.05)")
def one_bound():
    fluid.ParamAttr(initializer=fluid.initializer.Uniform(0.05))


@THEME.mistake("The bounds in the other order", errors.ArgumentError, "low <= high", "Uniform(-0.05, 0.05)")
def swapped_bounds():
    fluid.ParamAttr(initializer=fluid.initializer.Uniform(0.05, -0.05))


@THEME.mistake("A rate that Python cuts to 0", errors.FluidWarning, "learning_rate=0", "1 / 10")
def whole_quotient():
    fluid.Trainer(regression, fluid.optimizer.SGD(1 // 10))


@THEME.mistake("The betas of Adam without a rate", errors.FluidWarning, "beta1=0.9, beta2=0.999", "learning_rate=0.001")
def betas_first():
    fluid.Trainer(regression, fluid.optimizer.Adam(0.9, 0.999))


@THEME.mistake("Momentum and rate change places", errors.FluidWarning, "comes first", "momentum=0.9")
def momentum_first():
    fluid.Trainer(regression, fluid.optimizer.Momentum(0.9, 0.01))
