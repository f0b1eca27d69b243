"""Mistakes in program functions: their arguments, their results, and the place of their layers."""

from fluid import errors
from mistakes.common import SGD, X, fluid, layers, np, regression
from mistakes.theme import Theme

THEME = Theme("Program functions")


@THEME.mistake("Nothing is returned", errors.ProgramError, "returned nothing", "return loss")
def no_return():
    def train_program():
        x = layers.data("x", shape=[4])
        loss = layers.mean(layers.fc(x, size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The function is called instead of handed over", errors.OutsideProgramError, "fluid.Trainer(program")
def called():
    fluid.Trainer(regression(), SGD)


@THEME.mistake("A layer stands outside of a program function", errors.OutsideProgramError, "layers.data", "def program")
def outside():
    x = layers.data("x", shape=[4])
    prediction = layers.fc(x, size=1)


@THEME.mistake(
    "The program function takes the data as an argument", errors.ProgramError, "takes x, y", "x = fluid.layers.data('x'"
)
def takes_arguments():
    def train_program(x, y):
        return layers.mean(layers.square_error_cost(layers.fc(x, size=1), y))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A class with a method `forward`, as in PyTorch", errors.ArgumentTypeError, "Net", "def program")
def a_class():
    class Net:
        def forward(self, x):
            return layers.fc(x, size=1)

    fluid.Trainer(Net(), SGD)


@THEME.mistake("A list of layers, as Sequential in Keras", errors.ArgumentTypeError, "list", "def program")
def sequential():
    fluid.Trainer([layers.fc, layers.relu, layers.fc], SGD)


@THEME.mistake("A message is returned beside the loss", errors.ProgramError, "str", "arrays")
def returns_text():
    def train_program():
        return {"loss": regression(), "name": "my first net"}

    fluid.Trainer(train_program, SGD)


@THEME.mistake("No optimizer is given", errors.ArgumentTypeError, "fluid.optimizer")
def no_optimizer():
    fluid.Trainer(regression)


@THEME.mistake("The optimizer is a name, as in Keras", errors.ArgumentTypeError, "'adam'", "fluid.optimizer.Adam(")
def optimizer_by_name():
    fluid.Trainer(regression, "adam")


@THEME.mistake("The optimizer is a class", errors.ArgumentTypeError, "not the class", "fluid.optimizer.Adam(")
def optimizer_class():
    fluid.Trainer(regression, fluid.optimizer.SGD)


@THEME.mistake(
    "The optimizer gets the parameters, as in PyTorch",
    errors.ArgumentTypeError,
    "too many positional",
    "learning_rate=",
)
def optimizer_with_parameters():
    params = {"fc_0.w_0": np.zeros((4, 1))}
    fluid.Trainer(regression, fluid.optimizer.SGD(params, 0.1))


@THEME.mistake(
    "An optimizer in the program and one for the Trainer", errors.ArgumentError, "SGD", "Adam", "leave one out"
)
def two_optimizers():
    def train_program():
        loss = regression()
        fluid.optimizer.Adam(0.01).minimize(loss)
        return loss

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`minimize` is called outside of a program", errors.OutsideProgramError, "minimize")
def minimize_outside():
    fluid.optimizer.SGD(0.1).minimize(0.5)


@THEME.mistake("Two feeds have one name", errors.ProgramError, "'x'", "4", "8")
def data_twice():
    def train_program():
        x = layers.data("x", shape=[4])
        y = layers.data("x", shape=[8])
        return layers.mean(layers.fc([x, y], size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A feed has no name", errors.ArgumentTypeError, "'shape'", "layers.data(name, shape")
def data_without_name():
    def train_program():
        return layers.mean(layers.fc(layers.data([4]), size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake(
    "The shape of a feed holds the batch size", errors.FeedError, "'x'", "does not belong to the declared shapes"
)
def batch_size_in_shape():
    def train_program():
        x = layers.data("x", shape=[8, 4])
        return layers.mean(layers.fc(x, size=1))

    fluid.Trainer(train_program, SGD).train(fluid.reader.arrays({"x": X}, batch_size=8))


@THEME.mistake("Two layers share a parameter of different shapes", errors.ParameterError, "'w'", "[4, 8]", "[8, 1]")
def shared_shapes():
    def train_program():
        hidden = layers.fc(layers.data("x", shape=[4]), size=8, param_attr="w")
        return layers.mean(layers.fc(hidden, size=1, param_attr="w"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Random numbers of NumPy in a program", errors.FluidWarning, "layers.random_key", "layers.dropout")
def random_numbers_of_numpy():
    def train_program():
        x = layers.data("x", shape=[4])
        noise = np.random.normal(size=(4,)).astype("float32")
        return layers.mean(layers.fc(x + noise, size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An executor and a start-up program, as in Fluid", errors.MissingNameError, "Executor", "fluid.Session")
def executor():
    exe = fluid.Executor(fluid.CPUPlace())
    exe.run(fluid.default_startup_program())


@THEME.mistake("A module of PyTorch", errors.MissingNameError, "'nn'", "fluid.layers")
def torch_module():
    class Net(fluid.nn.Module):
        pass

    fluid.Trainer(Net(), SGD)
