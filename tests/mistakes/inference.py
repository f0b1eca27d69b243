"""Mistakes with an Inferencer: its parameters, its feeds and its results."""

from fluid import errors
from mistakes.common import LABELED, SGD, X, Y, classification, classifier, fluid, layers, regression
from mistakes.theme import Theme

THEME = Theme("Inference")


@THEME.mistake("No parameters", errors.ArgumentTypeError, "param_path", "params=trainer.params")
def no_parameters():
    fluid.Inferencer(classifier)


@THEME.mistake("The function that trains is used to infer", errors.FluidError, "'label'")
def program_that_trains():
    trainer = fluid.Trainer(classification, SGD)
    inferencer = fluid.Inferencer(classification, params=trainer.params)
    inferencer.infer({"x": X})


@THEME.mistake("A part of the net is missing in the file", errors.ParameterError, "fc_1.w_0")
def larger_net():
    def two_layers():
        return layers.fc(classifier(), size=3)

    trainer = fluid.Trainer(classification, SGD)
    fluid.Inferencer(two_layers, params=trainer.params)


@THEME.mistake("One example without a batch around it", errors.FeedError, "[4]", "value[None]")
def no_batch():
    inferencer = fluid.Inferencer(classifier, params=fluid.Trainer(classification, SGD).params)
    inferencer.infer({"x": X[0]})


@THEME.mistake("A feed by another name", errors.UnknownNameError, "'image'", "'x'")
def other_name():
    inferencer = fluid.Inferencer(classifier, params=fluid.Trainer(classification, SGD).params)
    inferencer.infer({"image": X})


@THEME.mistake("Another number of features", errors.FeedError, "[3]", "[4]")
def other_width():
    inferencer = fluid.Inferencer(classifier, params=fluid.Trainer(classification, SGD).params)
    inferencer.infer({"x": X[:, :3]})


@THEME.mistake("An answer depends on the other rows of its batch", errors.FluidWarning, "other rows", "axis=-1")
def answer_of_the_batch():
    def scaled():
        x = layers.data("x", shape=[4])
        return x / layers.reduce_max(x)

    fluid.Inferencer(scaled, params={}).infer({"x": X[:3]})


@THEME.mistake("Feeds of different lengths", errors.FeedError, "16", "8")
def other_lengths():
    def difference():
        x = layers.data("x", shape=[4])
        y = layers.data("y", shape=[1])
        return layers.fc(x, size=1) - y

    inferencer = fluid.Inferencer(difference, params=fluid.Trainer(regression, SGD).params)
    inferencer.infer({"x": X, "y": Y[:8]})


@THEME.mistake("A folder of checkpoints as a file of parameters", errors.ParameterFileError, "checkpoint='checkpoints'")
def checkpoint_folder():
    config = fluid.CheckpointConfig("checkpoints")
    fluid.Trainer(classification, SGD, checkpoint_config=config).train(LABELED)
    fluid.Inferencer(classifier, param_path="checkpoints")


@THEME.mistake("A value to fetch that is not there", errors.UnknownNameError, "'fc_0.output'", "'fc_0.tmp_2'")
def fetch():
    inferencer = fluid.Inferencer(classifier, params=fluid.Trainer(classification, SGD).params)
    inferencer.infer({"x": X}, fetch=["fc_0.output"])


@THEME.mistake("An Inferencer is trained", errors.MissingNameError, "'fit'", "fluid.Trainer(")
def fit():
    inferencer = fluid.Inferencer(classifier, params=fluid.Trainer(classification, SGD).params)
    inferencer.fit(LABELED)


@THEME.mistake("An array for a program of several feeds", errors.ArgumentTypeError, "ndarray", "'y'")
def array_for_two_feeds():
    inferencer = fluid.Inferencer(regression, params=fluid.Trainer(regression, SGD).params)
    inferencer.infer(X)


@THEME.mistake("A token for a model that is here", errors.ArgumentTypeError, "token=", "url=")
def token_for_a_file():
    fluid.Trainer(regression, SGD).save_inference_model("line.fluid", fetch=["fc_0"])
    fluid.Inferencer(param_path="line.fluid", token="s3cret")


@THEME.mistake("The address of a call", errors.ArgumentError, "'/infer'", "url='http://127.0.0.1:8000/v2/models/line'")
def address_of_a_call():
    fluid.Inferencer(url="http://127.0.0.1:8000/v2/models/line/infer")
