"""Mistakes in the training data, such as wrong shapes, labels or names of columns."""

from fluid import errors
from mistakes.common import LABELED, LABELS, READER, SGD, X, Y, classification, fluid, np, regression
from mistakes.theme import Theme

THEME = Theme("Data")


@THEME.mistake("Rows have another number of features", errors.FeedError, "'x'", "[5]", "[4]")
def other_width():
    trainer = fluid.Trainer(regression, SGD)
    trainer.train(fluid.reader.arrays({"x": np.zeros((16, 5)), "y": Y}, batch_size=8))


@THEME.mistake("A label beyond the classes", errors.FeedError, "'label'", "3", "sample 5")
def label_beyond_the_classes():
    labels = LABELS.copy()
    labels[5] = 3
    fluid.Trainer(classification, SGD).train(fluid.reader.arrays({"x": X, "label": labels}, batch_size=8))


@THEME.mistake("Labels that begin with 1", errors.FeedError, "'label'", "3", "0")
def labels_from_1():
    fluid.Trainer(classification, SGD).train(fluid.reader.arrays({"x": X, "label": LABELS + 1}, batch_size=8))


@THEME.mistake("Labels are floats", errors.FeedTypeError, "'label'", "float64", "astype('int64')")
def float_labels():
    labels = LABELS.astype(float)
    fluid.Trainer(classification, SGD).train(fluid.reader.arrays({"x": X, "label": labels}, batch_size=8))


@THEME.mistake("Labels are the names of classes", errors.FeedTypeError, "'label'", "cat")
def labels_as_text():
    labels = np.array(["cat", "dog"] * 8)
    fluid.Trainer(classification, SGD).train(fluid.reader.arrays({"x": X, "label": labels}, batch_size=8))


@THEME.mistake("Labels are one-hot", errors.FeedError, "'label'", "[3]", "argmax")
def one_hot():
    labels = np.eye(3, dtype="int64")[LABELS]
    fluid.Trainer(classification, SGD).train(fluid.reader.arrays({"x": X, "label": labels}, batch_size=8))


@THEME.mistake("Columns are in another order than the program declares them", errors.FeedError, "[1]", "[4]")
def swapped_columns():
    fluid.Trainer(regression, SGD).train(fluid.reader.arrays((Y, X), batch_size=8))


@THEME.mistake("Columns of different lengths", errors.ArgumentError, "16", "15")
def other_lengths():
    fluid.reader.arrays({"x": X, "y": Y[:15]}, batch_size=8)


@THEME.mistake("A feed has another name in the data", errors.UnknownNameError, "'target'", "'y'")
def other_name():
    fluid.Trainer(regression, SGD).train(fluid.reader.arrays({"x": X, "target": Y}, batch_size=8))


@THEME.mistake("A feed is missing in the data", errors.FeedError, "'y'")
def missing_feed():
    fluid.Trainer(regression, SGD).train(fluid.reader.arrays({"x": X}, batch_size=8))


@THEME.mistake("A column too many", errors.FeedError, "3", "2", "feed_order")
def column_too_many():
    fluid.Trainer(regression, SGD).train(fluid.reader.arrays((X, Y, LABELS), batch_size=8))


@THEME.mistake("Arrays instead of a reader", errors.ArgumentTypeError, "fluid.reader.arrays")
def arrays_as_reader():
    fluid.Trainer(regression, SGD).train((X, Y))


@THEME.mistake("Data of training is tested with other columns", errors.UnknownNameError, "'y'", "'label'")
def tested_with_other_columns():
    trainer = fluid.Trainer(classification, SGD)
    trainer.train(LABELED)
    trainer.test(READER)


@THEME.mistake("NaN in the data, without a handler that looks for it", errors.FluidWarning, "'x'", "allow_nan=True")
def nan_without_handler():
    spoiled = X.copy()
    spoiled[3, 2] = np.nan
    fluid.Trainer(regression, SGD).train(fluid.reader.arrays({"x": spoiled, "y": Y}, batch_size=8))


@THEME.mistake("Rows are sorted by their label", errors.FluidWarning, "'label' alone", "shuffle=True")
def sorted_rows():
    labels = np.repeat(np.arange(3), 32)[:, None]
    rows = {"x": np.random.default_rng(0).normal(size=(96, 4)), "label": labels}
    fluid.Trainer(classification, SGD).train(fluid.reader.arrays(rows, batch_size=8))
