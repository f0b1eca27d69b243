"""Mistakes in the order of rows, columns and calls, and with data that fluid would read with the wrong meaning."""

from fluid import errors
from mistakes.common import LABELS, READER, SGD, X, Y, classifier, fluid, layers, np, regression, sentiment
from mistakes.theme import Theme

THEME = Theme("Order, and what data means")


@THEME.mistake(
    "Tuples whose fields are alike, in an order that nobody has said",
    errors.FluidWarning,
    "'target' and 'source' are alike",
    "field 0 is read as 'target'",
    "feed_order=['target', 'source']",
)
def like_feeds():
    def program():
        target = layers.data("target", shape=[4])
        source = layers.data("source", shape=[4])
        return layers.mean(layers.square_error_cost(layers.fc(source, size=4), target))

    fluid.Trainer(program, SGD).train(fluid.reader.arrays((X, -X), batch_size=8))


@THEME.mistake(
    "A loader gives (image, label), and the program declares the label first",
    errors.FeedError,
    "Field 0 of the tuple is read as 'label', because the program declares it first",
    "feed_order=['x', 'label']",
)
def label_declared_first():
    def program():
        label = layers.data("label", shape=[1], dtype="int64")
        return layers.mean(layers.cross_entropy(classifier(), label))

    loader = [(X, np.arange(16) % 3)]
    fluid.Trainer(program, SGD).train(loader)


@THEME.mistake("Prediction of an array", errors.ArgumentTypeError, "reader=fluid.reader.arrays(x, batch_size=32)")
def array_to_predict():
    fluid.Trainer(regression, SGD).predict(X, fetch="fc_0.tmp_0")


@THEME.mistake("Prediction with a reader that shuffles", errors.FluidWarning, "predict shuffles", "shuffle=True")
def shuffled_prediction():
    reader = fluid.reader.arrays({"x": X}, batch_size=8, shuffle=True)
    list(fluid.Trainer(regression, SGD).predict(reader, fetch="fc_0.tmp_0"))


@THEME.mistake("A test that returns rows, and shuffles", errors.FluidWarning, "test shuffles", "Read without")
def shuffled_test():
    rows = fluid.reader.shuffle(list(zip(X, Y, strict=True)), buf_size=16)
    fluid.Trainer(regression, SGD).test(fluid.reader.batch(rows, batch_size=8), fetch="fc_0.tmp_0")


@THEME.mistake("A test of some rows of a reader that shuffles", errors.FluidWarning, "each test is one of other data")
def shuffled_part():
    reader = fluid.reader.arrays({"x": X, "y": Y}, batch_size=6, shuffle=True, drop_last=True)
    fluid.Trainer(regression, SGD).test(reader)


@THEME.mistake("Augmentation inside of a cache", errors.FluidWarning, "every pass", "reader.map(augment, reader.cache(")
def cached_augmentation():
    def augment(row, rng):
        return row + rng.normal(size=4)

    fluid.reader.cache(fluid.reader.map(augment, list(X), seed=0))


@THEME.mistake("A function with random numbers, without a seed", errors.ArgumentTypeError, "noisy(row, rng)", "seed=0")
def map_without_seed():
    def noisy(row, rng):
        return row + rng.normal(size=4)

    fluid.reader.map(noisy, list(X))


@THEME.mistake("Columns as arguments of their own", errors.ArgumentTypeError, "reader.arrays((x, y), batch_size=32)")
def columns_apart():
    fluid.reader.arrays(X, Y, batch_size=8)


@THEME.mistake("A sparse matrix as data", errors.FeedTypeError, "'x'", "sparse matrix", ".toarray()")
def sparse_matrix():
    from scipy.sparse import csr_matrix

    fluid.Session(classifier).run(classifier, {"x": csr_matrix(X)})


@THEME.mistake("The number of minibatches of a reader", errors.ArgumentTypeError, "no length", "batch_size")
def length_of_a_reader():
    len(READER)


@THEME.mistake("An Inferencer called as a function", errors.ArgumentTypeError, "inferencer.infer(data)")
def called_inferencer():
    session = fluid.Session(classifier)
    fluid.Inferencer(classifier, params=session.params())(X)


@THEME.mistake("A reader given to infer", errors.ArgumentTypeError, "found a reader", "inferencer.predict(reader)")
def reader_to_infer():
    session = fluid.Session(classifier)
    fluid.Inferencer(classifier, params=session.params()).infer(fluid.reader.arrays(X, batch_size=8))


@THEME.mistake("A prediction read as one result", errors.ArgumentTypeError, "np.concatenate", "['fc_0.tmp_0']")
def prediction_by_name():
    fluid.Trainer(regression, SGD).predict(READER, fetch="fc_0.tmp_0")["fc_0.tmp_0"]


@THEME.mistake("Several results compared with a number", errors.ArgumentTypeError, "2 results", "results['loss']")
def results_compared():
    def program():
        loss = regression()
        return {"loss": loss, "root": layers.sqrt(loss)}

    if fluid.Trainer(program, SGD).test(READER) < 1:
        print("good enough")


@THEME.mistake("The shape before the name", errors.ArgumentTypeError, "layers.data('x', shape=[8])")
def shape_before_name():
    fluid.Program(lambda: layers.data([8], "x"))


@THEME.mistake("Ids that are padded already", errors.FluidWarning, "'words'", "end in zeros", "fluid.SequenceBatch(ids")
def padded_ids():
    ids = np.array([[4, 8, 2, 0, 0], [7, 0, 0, 0, 0], [1, 2, 3, 4, 5]])
    session = fluid.Session(sentiment)
    session.run(sentiment, {"words": ids})


@THEME.mistake("Images of 0..255", errors.FluidWarning, "'x'", "uint8", "/ np.float32(255)", "dtype='uint8'")
def raw_pixels():
    images = np.arange(64, 128, dtype="uint8").reshape(16, 4) * 2
    fluid.Trainer(regression, SGD).train(fluid.reader.arrays({"x": images, "y": Y}, batch_size=8))


@THEME.mistake("Images are shuffled, and their labels are not", errors.FluidWarning, "reader.shuffle(reader.compose(")
def shuffled_apart():
    fluid.reader.compose(fluid.reader.shuffle(list(X), buf_size=16), list(LABELS))


@THEME.mistake("A seed, and nothing that shuffles", errors.FluidWarning, "arrays(seed=7) has no effect", "shuffle=True")
def seed_without_shuffle():
    fluid.reader.arrays({"x": X, "y": Y}, batch_size=8, seed=7)


@THEME.mistake("A buffer of one row to shuffle in", errors.FluidWarning, "buf_size=1", "buf_size=10000")
def buffer_of_one_row():
    fluid.reader.shuffle(list(X), buf_size=1)


@THEME.mistake("A shuffle inside of a cache", errors.FluidWarning, "every pass", "reader.shuffle(reader.cache(rows)")
def cached_shuffle():
    fluid.reader.cache(fluid.reader.shuffle(list(X), buf_size=16))


@THEME.mistake("Prediction without the last rows", errors.FluidWarning, "predict has drop_last=True", "no results")
def prediction_without_last_rows():
    reader = fluid.reader.arrays({"x": X}, batch_size=6, drop_last=True)
    list(fluid.Trainer(regression, SGD).predict(reader, fetch="fc_0.tmp_0"))


@THEME.mistake(
    "Timestamps as float32", errors.FluidWarning, "'t'", "16 different numbers", "keeps 1", "value - value.min()"
)
def timestamps():
    def program():
        return layers.fc(layers.data("t", shape=[1]), size=1)

    fluid.Session(program).run(feed={"t": 1.7e9 + np.arange(16)})


@THEME.mistake("A state of whole numbers is given fractions", errors.FluidWarning, "'mean' holds int32", "'float32'")
def fractions_in_a_state():
    def program():
        mean = layers.create_state([1], dtype="int64", name="mean")
        mean.update(0.9 * mean.value + 0.1 * layers.mean(layers.data("x", shape=[4])))
        return mean.value

    fluid.Program(program)


@THEME.mistake("A value of whole numbers is replaced by fractions", errors.FeedError, "'guess'", "expected int32")
def fractions_for_a_value():
    def program():
        return layers.identity(layers.argmax(layers.data("x", shape=[4]), axis=1), name="guess")

    fluid.Session(program).run(feed={"x": X, "guess": np.full(16, 0.5)})


@THEME.mistake("The results of a prediction are read twice", errors.FluidWarning, "second time", "list(trainer.predict")
def prediction_read_twice():
    results = fluid.Trainer(regression, SGD).predict(READER, fetch="fc_0.tmp_0")
    count = sum(len(minibatch[0]) for minibatch in results)
    print(count, [minibatch[0].mean() for minibatch in results])
