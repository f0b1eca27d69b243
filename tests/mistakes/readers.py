"""Mistakes in readers, which are the functions and iterables that yield the data."""

from fluid import errors
from mistakes.common import READER, SGD, X, Y, fluid, np, regression
from mistakes.theme import Theme

THEME = Theme("Readers")


@THEME.mistake("A generator is used for several epochs", errors.ReaderError, "function that returns")
def exhausted():
    def rows():
        for x, y in zip(X, Y, strict=True):
            yield [(x, y)]

    fluid.Trainer(regression, SGD).train(rows(), num_epochs=2)


@THEME.mistake("Rows that are not put into minibatches", errors.FeedError, "one row", "fluid.reader.batch(reader")
def rows_without_batches():
    def rows():
        for x, y in zip(X, Y, strict=True):
            yield x, y

    fluid.Trainer(regression, SGD).train(rows)


@THEME.mistake(
    "A list of dicts that are not put into minibatches", errors.FeedError, "one row", "fluid.reader.batch(reader"
)
def dicts_without_batches():
    rows = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
    fluid.Trainer(regression, SGD).train(rows)


@THEME.mistake("A function that forgets to return its reader", errors.FluidError, "None")
def returns_none():
    def reader():
        fluid.reader.arrays({"x": X, "y": Y}, batch_size=8)

    fluid.Trainer(regression, SGD).train(reader)


@THEME.mistake("A function of a map that forgets to return its row", errors.FeedError, "reader.map", "`return row`")
def map_returns_none():
    def scaled(row):
        row["x"] = row["x"] / 255

    rows = [{"x": x, "y": y} for x, y in zip(X, Y, strict=True)]
    fluid.Trainer(regression, SGD).train(fluid.batch(fluid.reader.map(scaled, rows), batch_size=8))


@THEME.mistake("A reader without data", errors.ReaderError, "nothing")
def empty():
    fluid.Trainer(regression, SGD).train([])


@THEME.mistake("Fewer rows than batch_size, and drop_last", errors.ReaderError, "drop_last")
def all_dropped():
    fluid.Trainer(regression, SGD).train(fluid.reader.arrays({"x": X, "y": Y}, batch_size=32, drop_last=True))


@THEME.mistake("The path of a file instead of a reader", errors.ArgumentTypeError, "reader.files('train.csv')")
def path_as_reader():
    fluid.Trainer(regression, SGD).train("train.csv")


@THEME.mistake("A folder instead of files", errors.ArgumentError, "reader.files('./*')")
def folder_as_files():
    fluid.reader.files(".")


@THEME.mistake("Rows of files that are not put into minibatches", errors.FeedError, "fluid.reader.batch(reader")
def files_without_batches():
    np.savez("train.npz", x=X, y=Y)
    fluid.Trainer(regression, SGD).train(fluid.reader.files("train.npz"))


@THEME.mistake("A column of a file that is not there", errors.ReaderError, "train.npz", "'target'", "'x', 'y'")
def column_of_files():
    np.savez("train.npz", x=X, y=Y)
    rows = fluid.reader.files("train.npz", columns=["x", "target"])
    fluid.Trainer(regression, SGD).train(fluid.reader.batch(rows, 8))


@THEME.mistake("A batch size from a configuration, as text", errors.FluidError, "batch_size", "'32'")
def batch_size_as_text():
    fluid.batch(READER, batch_size="32")


@THEME.mistake("Readers of different lengths side by side", errors.ReaderError, "compose")
def composed():
    rows = fluid.reader.compose(list(X), list(Y[:10]))
    fluid.Trainer(regression, SGD).train(fluid.batch(rows, batch_size=4))


@THEME.mistake("An order of feeds with a name that is not there", errors.UnknownNameError, "'target'", "'y'")
def feed_order():
    fluid.Trainer(regression, SGD).train(fluid.reader.arrays((X, Y), batch_size=8), feed_order=["x", "target"])


@THEME.mistake(
    "Minibatches are shuffled instead of rows", errors.FluidWarning, "minibatches", "before they are grouped"
)
def shuffled_minibatches():
    rows = list(zip(X, Y, strict=True))
    fluid.reader.shuffle(fluid.reader.batch(rows, batch_size=4), buf_size=100)


@THEME.mistake("Columns of pandas in different orders", errors.ArgumentError, "different orders", "y.loc[x.index]")
def torn_table():
    import pandas

    table = pandas.DataFrame({"a": X[:, 0], "y": Y[:, 0]})
    mixed = table.sample(frac=1, random_state=0)
    fluid.reader.arrays({"x": mixed[["a"]], "y": table["y"]}, batch_size=4)
