"""Mistakes in calls of layers: names, arguments and shapes."""

from fluid import errors
from mistakes.common import SGD, classifier, fluid, layers, np
from mistakes.theme import Theme

THEME = Theme("Layers")


@THEME.mistake("The name of a layer of Keras", errors.FluidError, "Dense", "layers.dense")
def keras_layer():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.Dense(1)(x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The name of a layer of PyTorch", errors.FluidError, "Linear", "layers.dense")
def torch_layer():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.Linear(4, 1)(x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A layer is misspelled", errors.FluidError, "batchnorm", "batch_norm")
def misspelled_layer():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.batchnorm(layers.fc(x, size=1)))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An argument has the name that it has in Keras", errors.ArgumentTypeError, "activation", "act")
def keras_argument():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, size=1, activation="relu"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An argument has the name that it has in PyTorch", errors.ArgumentTypeError, "bias", "bias_attr")
def torch_argument():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, size=1, bias=False))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An argument is left out", errors.ArgumentTypeError, "fc", "size")
def argument_left_out():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Sizes in the order of PyTorch: in, then out", errors.FluidError, "fc")
def torch_sizes():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(4, 1)(x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An activation that is not there", errors.ArgumentError, "'rleu'", "'relu'")
def activation():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, size=8, act="rleu"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A size that is no whole number", errors.FluidError, "2.5")
def size_of_a_division():
    def train_program():
        x = layers.data("x", shape=[5])
        return layers.mean(layers.fc(x, size=5 / 2))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An image of height, width, channels", errors.FeedError, "[28, 28, 3]", "[3, 28, 28]")
def channels_last():
    def train_program():
        image = layers.data("image", shape=[3, 28, 28])
        return layers.mean(layers.conv2d(image, num_filters=4, filter_size=3))

    images = np.zeros((8, 28, 28, 3), "float32")
    fluid.Trainer(train_program, SGD).train([{"image": images}])


@THEME.mistake("A convolution over vectors", errors.ShapeError, "[batch, 784]", "reshape")
def convolution_over_vectors():
    def train_program():
        image = layers.data("image", shape=[784])
        return layers.mean(layers.conv2d(image, num_filters=4, filter_size=3))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Pooling until nothing is left", errors.ShapeError, "pool", "2")
def too_much_pooling():
    def train_program():
        image = layers.data("image", shape=[1, 4, 4])
        for _ in range(4):
            image = layers.pool2d(image, pool_size=2, pool_stride=2)
        return layers.mean(layers.fc(image, size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Words as floats for an embedding", errors.ArgumentTypeError, "int64")
def embedding_of_floats():
    def train_program():
        word = layers.data("word", shape=[1])
        return layers.mean(layers.embedding(word, size=[100, 8]))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The size of an embedding is one number", errors.FluidError, "[", "size")
def embedding_size():
    def train_program():
        word = layers.data("word", shape=[1], dtype="int64")
        return layers.mean(layers.embedding(word, size=100))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A dropout probability in per cent", errors.ArgumentError, "dropout", "50")
def dropout():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.dropout(layers.fc(x, size=8), dropout_prob=50))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Images are concatenated along an axis that is not theirs", errors.ShapeError, "[batch, 1, 8, 8]")
def concatenated():
    def train_program():
        image = layers.data("image", shape=[1, 8, 8])
        half = layers.pool2d(image, pool_size=2, pool_stride=2)
        return layers.mean(layers.concat([image, half], axis=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Values are concatenated without a list", errors.FluidError, "concat([")
def concat_without_list():
    def train_program():
        x = layers.data("x", shape=[4])
        y = layers.data("y", shape=[1])
        return layers.mean(layers.fc(layers.concat(x, y), size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Matrices that do not fit together", errors.ShapeError, "matmul", "[batch, 4]", "[batch, 4]")
def matmul():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.matmul(layers.fc(x, size=4), x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("The cost of values of other shapes", errors.ShapeError, "[batch, 3]", "[batch, 1]")
def cost_shapes():
    def train_program():
        y = layers.data("y", shape=[1])
        return layers.mean(layers.square_error_cost(classifier(), y))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A parameter's settings as a dict", errors.FluidError, "ParamAttr")
def settings_as_a_dict():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, size=1, param_attr={"learning_rate": 0.1}))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An initializer by its name, as in Keras", errors.FluidError, "initializer")
def initializer_by_name():
    def train_program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, size=1, param_attr=fluid.ParamAttr(initializer="glorot_uniform")))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Branches of other shapes", errors.FluidError, "cond", "[batch, 1]")
def branches():
    def train_program():
        x = layers.data("x", shape=[4])
        hidden = layers.fc(x, size=1)
        positive = layers.reduce_sum(x) > 0
        return layers.mean(layers.cond(positive, lambda: hidden, lambda: x))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Branches are values instead of functions", errors.FluidError, "lambda")
def branches_as_values():
    def train_program():
        x = layers.data("x", shape=[4])
        hidden = layers.fc(x, size=1)
        return layers.mean(layers.cond(layers.reduce_sum(x) > 0, hidden, -hidden))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A block of 2018 that is not here", errors.FluidError, "While", "layers.while_loop")
def while_block():
    def train_program():
        x = layers.data("x", shape=[4])
        with layers.While(layers.reduce_sum(x) > 0).block():
            x = x / 2
        return layers.mean(x)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A switch is text", errors.ArgumentTypeError, "is_reverse='False'", "True or False", "is_reverse=False")
def switch_as_text():
    def program():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        return layers.dynamic_gru(layers.embedding(words, size=[100, 24]), size=8, is_reverse="False")

    fluid.Session(program)


@THEME.mistake("`is_training` without a call", errors.ArgumentTypeError, "layers.is_training()")
def mode_without_call():
    def program():
        x = layers.data("x", shape=[4])
        return layers.fc(x if layers.is_training else x * 2, size=1)

    fluid.Session(program)
