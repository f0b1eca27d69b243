"""Mistakes in calls of a Trainer, such as `train` and `test`."""

from fluid import errors
from mistakes.common import LABELED, READER, SGD, X, Y, classification, fluid, layers, np, regression
from mistakes.theme import Logged, Theme

THEME = Theme("Training and testing")


@THEME.mistake("No reader", errors.ArgumentTypeError, "reader=")
def no_reader():
    fluid.Trainer(regression, SGD).train(num_epochs=3)


@THEME.mistake("Half an epoch", errors.ArgumentError, "num_epochs=0.5")
def half_an_epoch():
    fluid.Trainer(regression, SGD).train(READER, num_epochs=0.5)


@THEME.mistake("The number of epochs has the name that it has in Keras", errors.FluidError, "epochs", "num_epochs")
def epochs():
    fluid.Trainer(regression, SGD).train(READER, epochs=5)


@THEME.mistake("Tested without data", errors.ArgumentTypeError, "trainer.test(reader=")
def test_without_data():
    fluid.Trainer(regression, SGD).test()


@THEME.mistake("A metric that the program does not return", errors.UnknownNameError, "'acc'", "'accuracy'")
def unknown_result():
    trainer = fluid.Trainer(classification, SGD)
    print(trainer.test(LABELED)["acc"])


@THEME.mistake("A result by its name, of a program that names none", errors.UnknownNameError, "loss", "dict")
def results_without_names():
    trainer = fluid.Trainer(regression, SGD)
    print(trainer.test(READER)["loss"])


@THEME.mistake("Fewer results are unpacked than there are", errors.FluidError, "loss")
def float_of_results():
    trainer = fluid.Trainer(classification, SGD)
    print(float(trainer.test(LABELED)))


@THEME.mistake("Training is started by a handler", errors.ArgumentError, "trainer.stop()")
def train_in_train():
    trainer = fluid.Trainer(regression, SGD)
    trainer.train(READER, event_handler=lambda event: trainer.train(READER))


@THEME.mistake("The best parameters are to be restored, and nothing is tested", errors.FluidError, "test_reader")
def restore_best_without_test():
    fluid.Trainer(regression, SGD).train(READER, restore_best=True)


@THEME.mistake("A metric of one's own is a function", errors.FluidError, "metrics")
def metric_function():
    trainer = fluid.Trainer(classification, SGD)
    trainer.test(LABELED, metrics={"error": lambda prediction, label: np.mean(prediction != label)})


@THEME.mistake("A metric of values that the program does not return", errors.FluidError, "auc")
def metric_without_values():
    trainer = fluid.Trainer(classification, SGD)
    trainer.test(LABELED, metrics={"auc": fluid.metrics.Auc()})


@THEME.mistake("A value that cannot be averaged over minibatches is tested", errors.FluidWarning, "layers.metric")
def not_averaged():
    def train_program():
        x = layers.data("x", shape=[4])
        loss = layers.mean(layers.square(layers.fc(x, size=1)))
        return {"loss": loss, "log": layers.log(loss)}

    fluid.Trainer(train_program, SGD).test(fluid.reader.arrays({"x": X}, batch_size=8))


@THEME.mistake("A precision by another name", errors.ArgumentError, "'fp16'", '"float16"')
def precision():
    fluid.Trainer(regression, SGD, precision="fp16")


@THEME.mistake("A device by a name of PyTorch", errors.DeviceError, "'cuda:0'", "place=None")
def device_by_name():
    fluid.Trainer(regression, SGD, place="cuda:0")


@THEME.mistake("A step of one's own returns its loss only", errors.FluidError, "step")
def own_step():
    def step(training):
        return 0.0

    fluid.Trainer(regression, SGD, step=step).train(READER)


@THEME.mistake("The average is trained on", errors.FluidError, "apply")
def training_the_average():
    average = fluid.optimizer.ExponentialMovingAverage(0.9)

    def train_program():
        loss = regression()
        fluid.optimizer.SGD(0.1).minimize(loss)
        average.update()
        return loss

    trainer = fluid.Trainer(train_program)
    with average.apply(trainer):
        trainer.train(READER)


@THEME.mistake("`fit`, as in Keras", errors.MissingNameError, "'fit'", "trainer.train(")
def fit():
    fluid.Trainer(regression, SGD).fit(READER, epochs=5)


@THEME.mistake("Data and labels side by side, as in Keras", errors.ArgumentTypeError, "fluid.reader.arrays")
def data_and_labels():
    fluid.Trainer(regression, SGD).train(X, Y)


@THEME.mistake("A step of one's own returns the parameters of before", errors.FluidWarning, "changes nothing", "update")
def step_without_effect():
    def step(training):
        here = training.losses_and_gradients()
        training.update(here.gradients)
        return training.parameters, training.slots, here

    fluid.Trainer(regression, SGD, step=step).train(READER)


@THEME.mistake("A step of one's own returns the states of before", errors.FluidWarning, "step.slots", "momentum")
def step_without_momentum():
    def step(training):
        here = training.losses_and_gradients()
        parameters, slots = training.update(here.gradients)
        return parameters, training.slots, here

    fluid.Trainer(regression, fluid.optimizer.Adam(0.01), step=step).train(READER)


@THEME.mistake("A learning rate at which the loss rises", Logged, "did not fall in 3 epochs", "find_learning_rate")
def rising_loss():
    fluid.Trainer(regression, fluid.optimizer.SGD(1.0)).train(READER, num_epochs=3)
