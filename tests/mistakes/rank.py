"""Mistakes with the dimensions of arrays: the defaults of Fluid do not expect the shape [batch, time, features]."""

from fluid import errors
from mistakes.common import SGD, fluid, layers
from mistakes.theme import Theme

THEME = Theme("Dimensions")


@THEME.mistake(
    "`layer_norm` normalises over time too",
    errors.FluidWarning,
    *("5 x 8 numbers, time too", "begin_norm_axis=2 for the last axis", "layers.feature_norm", "begin_norm_axis=1"),
)
def layer_norm_over_time():
    def program():
        x = layers.data("x", shape=[5, 8])
        return layers.layer_norm(x + layers.multi_head_attention(x, num_heads=2, causal=True))

    fluid.Session(program)


@THEME.mistake(
    "`fc` flattens time",
    errors.FluidWarning,
    *("5 x 8 = 40 numbers, time too", "layers.dense(x, size=16)", "num_flatten_dims=2", "num_flatten_dims=1"),
)
def fc_over_time():
    def program():
        x = layers.data("x", shape=[5, 8])
        return layers.fc(x, size=16, act="relu")

    fluid.Session(program)


@THEME.mistake(
    "`concat` joins the batch", errors.FluidWarning, "along the batch", "2 times as many rows", "axis=-1", "axis=0"
)
def concat_of_rows():
    def train_program():
        a, b = layers.data("a", shape=[4]), layers.data("b", shape=[4])
        both = layers.concat([a, b])
        return layers.mean(layers.fc(both, size=1))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("`argmax` compares the rows of the batch", errors.FluidWarning, "rows of the batch", "axis=-1", "axis=0")
def argmax_of_rows():
    def program():
        return layers.argmax(layers.fc(layers.data("x", shape=[4]), size=3))

    fluid.Session(program)


@THEME.mistake(
    "Dimension 1 of a sequence is taken for time",
    errors.FluidWarning,
    *("dim=1", "batch and time count as one dimension", "dim=-1", "layers.sequence_pool(x, 'average')"),
)
def mean_over_features():
    def program():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        return layers.reduce_mean(layers.embedding(words, size=[100, 8]), dim=1)

    fluid.Session(program)


@THEME.mistake(
    "Dimension 2 of a sequence is asked for",
    errors.ArgumentError,
    *("dim=2", "expected -2 to 1", "batch and time count as one dimension", "dim=-1"),
)
def no_such_dimension():
    def program():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        return layers.reduce_mean(layers.embedding(words, size=[100, 8]), dim=2)

    fluid.Session(program)


@THEME.mistake(
    "The size of an LSTM is taken for its width", errors.FluidWarning, "4 x the width", "2 here, not 8", "size=32"
)
def lstm_of_two_units():
    def program():
        words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
        x = layers.fc(layers.embedding(words, size=[100, 16]), size=8)
        hidden, cell = layers.dynamic_lstm(x, size=8)
        return layers.sequence_last_step(hidden)

    fluid.Session(program)


@THEME.mistake(
    "Images with their channels last",
    errors.FluidWarning,
    *("28 channels", "28 x 1 pixels", "data_format='NHWC'", "1 channels of 28 x 28", "data_format='NCHW'"),
)
def channels_last():
    def program():
        image = layers.data("image", shape=[28, 28, 1])
        return layers.conv2d(image, num_filters=4, filter_size=3, padding=1)

    fluid.Session(program)


@THEME.mistake(
    "Images with their channels last, smaller than a filter", errors.ShapeError, "[28, 1] pixels", "data_format='NHWC'"
)
def channels_last_without_padding():
    def program():
        image = layers.data("image", shape=[28, 28, 1])
        return layers.conv2d(image, num_filters=4, filter_size=3)

    fluid.Session(program)


@THEME.mistake(
    "`batch_norm` takes time for channels", errors.FluidWarning, "5 rows", "data_layout='NHWC'", "data_layout='NCHW'"
)
def batch_norm_of_time():
    def program():
        return layers.batch_norm(layers.data("x", shape=[5, 8]))

    fluid.Session(program)


@THEME.mistake("`dense` of several values", errors.ArgumentTypeError, "a list of 2", "layers.concat([a, b], axis=-1)")
def dense_of_a_list():
    def program():
        a, b = layers.data("a", shape=[4]), layers.data("b", shape=[4])
        return layers.dense([a, b], size=2)

    fluid.Session(program)


@THEME.mistake("`dense` of numbers without features", errors.ShapeError, "float32[batch]", "layers.unsqueeze(x, [-1])")
def dense_of_a_column():
    def program():
        return layers.dense(layers.data("x", shape=[]), size=2)

    fluid.Session(program)
