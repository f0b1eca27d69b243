"""Mistakes in saving and loading parameters and models."""

from fluid import errors
from mistakes.common import SGD, classifier, fluid, layers, np, regression
from mistakes.theme import Theme

THEME = Theme("Saving and loading")


@THEME.mistake("There is no such file", errors.ParameterFileError, "net.params")
def no_file():
    fluid.Trainer(regression, SGD, param_path="net.params")


@THEME.mistake("The file is something else", errors.ParameterFileError, "notes.txt")
def other_file():
    with open("notes.txt", "w") as file:
        file.write("learning rate 0.1 is too large")
    fluid.Trainer(regression, SGD, param_path="notes.txt")


@THEME.mistake("The file was written by another library", errors.ParameterFileError, "net.pt", ".safetensors")
def pickle():
    with open("net.pt", "wb") as file:
        file.write(b"\x80\x05.")
    fluid.Trainer(regression, SGD, param_path="net.pt")


@THEME.mistake("The folder to save in is not there", errors.ParameterFileError, "models")
def no_folder():
    fluid.Trainer(regression, SGD).save_params("models/net.params")


@THEME.mistake("Parameters of another net", errors.ParameterError, "fc_0.w_0", "[4, 1]", "[4, 3]")
def other_net():
    def train_program():
        return layers.mean(classifier())

    fluid.Trainer(regression, SGD).save_params("line.params")
    fluid.Trainer(train_program, SGD, param_path="line.params")


@THEME.mistake("A layer has got another name", errors.ParameterError, "fc_0.w_0", "head.w_0")
def renamed_layer():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, size=1, name="head"))

    fluid.Trainer(regression, SGD).save_params("line.params")
    fluid.Trainer(train_program, SGD, param_path="line.params")


@THEME.mistake("Parameters to save that are not there", errors.UnknownNameError, "'fc_0.weight'", "'fc_0.w_0'")
def save_names():
    fluid.Trainer(regression, SGD).save_params("net.params", names=["fc_0.weight"])


@THEME.mistake("A parameter is set to another shape", errors.ParameterError, "[4, 1]", "[1, 4]")
def set_shape():
    trainer = fluid.Trainer(regression, SGD)
    trainer.session.scope["fc_0.w_0"] = np.ones((1, 4))


@THEME.mistake("A model is exported with a value that is not there", errors.UnknownNameError, "'prediction'")
def export_name():
    fluid.Trainer(regression, SGD).save_inference_model("line.fluid", fetch=["prediction"])


@THEME.mistake(
    "Parameters are loaded where an exported model is",
    errors.ArtifactError,
    "line.params",
    "fluid.Inferencer(program, param_path=",
)
def parameters_as_model():
    fluid.Trainer(regression, SGD).save_params("line.params")
    fluid.Inferencer(param_path="line.params")


@THEME.mistake("No names to save", errors.FluidError, "names")
def save_no_names():
    fluid.Trainer(regression, SGD).save_params("net.params", names=[])


@THEME.mistake("A file that shares no name with the net", errors.ParameterError, "head.w_0", "fc_0.w_0")
def no_name_in_common():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, size=1, name="head"))

    fluid.Trainer(train_program, SGD).save_params("head.params")
    fluid.Trainer(regression, SGD).session.load_params("head.params", strict=False)


@THEME.mistake(
    "A layer takes the parameters of another one that had its name",
    errors.ParameterError,
    "fc_0.w_0",
    "in train_program there",
    "in second_half here",
    "rename=",
)
def another_layer():
    def train_program():
        x = layers.data("x", shape=[4])
        hidden = layers.fc(x, size=8, act="tanh")
        return layers.mean(layers.fc(hidden, size=4))

    def second_half():
        hidden = layers.data("hidden", shape=[8])
        return layers.fc(hidden, size=4)

    fluid.Trainer(train_program, SGD).save_params("net.params")
    fluid.Inferencer(second_half, param_path="net.params")


@THEME.mistake("Parameters to freeze that are not there", errors.UnknownNameError, "backbone/")
def freeze():
    fluid.Trainer(regression, SGD).freeze("backbone/*")


@THEME.mistake("A copy of a Trainer", errors.ArgumentTypeError, "copied", "save_params", "param_path=")
def copied_trainer():
    import copy

    copy.deepcopy(fluid.Trainer(regression, SGD))
