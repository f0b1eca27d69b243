"""Mistakes with the loss, after which a training would learn nothing, or the wrong thing."""

from fluid import errors
from mistakes.common import SGD, X, Y, classification, classifier, fluid, jnp, layers, regression
from mistakes.theme import Theme

THEME = Theme("Losses")


@THEME.mistake("The accuracy comes first", errors.ProgramError, "accuracy", "loss")
def accuracy_first():
    def train_program():
        outputs = classification()
        return outputs["accuracy"], outputs["loss"]

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The prediction comes first", errors.ProgramError, "[batch, 1]", "fluid.layers.mean")
def prediction_first():
    def train_program():
        prediction = layers.fc(layers.data("x", shape=[4]), size=1)
        y = layers.data("y", shape=[1])
        return prediction, layers.mean(layers.square_error_cost(prediction, y))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The loss of each example, without their mean", errors.ProgramError, "[batch, 1]", "fluid.layers.mean")
def loss_without_mean():
    def train_program():
        x = layers.data("x", shape=[4])
        y = layers.data("y", shape=[1])
        return layers.square_error_cost(layers.fc(x, size=1), y)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The loss does not depend on the net", errors.ProgramError, "parameter")
def loss_of_the_label():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        wrong = layers.one_hot(label, 3)
        prediction = classifier()
        return layers.mean(layers.cross_entropy(wrong, label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A program without any parameter", errors.ProgramError, "parameter")
def no_parameters():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.relu(x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The loss is no number that can be differentiated", errors.ProgramError, "loss")
def loss_of_argmax():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        guess = layers.argmax(classifier(), axis=1)
        return layers.mean(layers.cast(guess == label[:, 0], "float32"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Logits are given to `cross_entropy`", errors.FluidWarning, "softmax")
def logits():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        logits = layers.fc(layers.data("x", shape=[4]), size=3)
        return layers.mean(layers.cross_entropy(logits, label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Probabilities are given to `softmax_with_cross_entropy`", errors.FluidWarning, "softmax")
def softmax_twice():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.softmax_with_cross_entropy(classifier(), label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`[batch, 1] - [batch]` is laid out to `[batch, batch]`", errors.FluidWarning, "[batch, batch]")
def laid_out():
    def train_program():
        x = layers.data("x", shape=[4])
        y = layers.data("y", shape=[])
        difference = layers.fc(x, size=1) - y
        return layers.mean(difference * difference)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`accuracy` gets its arguments in another order", errors.FluidError, "accuracy")
def accuracy_swapped():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        prediction = classifier()
        loss = layers.mean(layers.cross_entropy(prediction, label))
        return loss, layers.accuracy(label, prediction)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The labels of `cross_entropy` are floats", errors.FluidError, "int64")
def float_labels():
    def train_program():
        label = layers.data("label", shape=[1])
        return layers.mean(layers.cross_entropy(classifier(), label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The loss becomes NaN", errors.FluidWarning, "the loss is inf", "TerminateOnNaN")
def loss_becomes_nan():
    trainer = fluid.Trainer(regression, fluid.optimizer.SGD(1e20))
    trainer.train(fluid.reader.arrays({"x": X, "y": Y}, batch_size=2), num_epochs=2)


@THEME.mistake("NaN in the data", errors.FluidError, "x", "nan")
def nan_in_data():
    spoiled = X.copy()
    spoiled[3, 2] = float("nan")
    trainer = fluid.Trainer(regression, SGD)
    trainer.train(
        fluid.reader.arrays({"x": spoiled, "y": Y}, batch_size=8), handlers=[fluid.handlers.TerminateOnNaN(report=True)]
    )


@THEME.mistake("An accuracy of every prediction with every label", errors.FluidWarning, "[batch, batch]", "reshape")
def accuracy_of_all_pairs():
    def train_program():
        label = layers.data("label", shape=[1], dtype="int64")
        prediction = classifier()
        right = jnp.argmax(prediction, axis=1) == label
        loss = layers.mean(layers.cross_entropy(prediction, label))
        return {"loss": loss, "right": layers.mean(right.astype("float32"))}

    fluid.Trainer(train_program, SGD)
