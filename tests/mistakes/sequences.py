"""Mistakes with sequences, which are rows of different lengths."""

from fluid import errors
from mistakes.common import SGD, fluid, layers, np, sentiment
from mistakes.theme import Theme

THEME = Theme("Sequences")


@THEME.mistake("Rows of different lengths for a feed that is no sequence", errors.FeedError, "lod_level=1")
def ragged_rows():
    def train_program():
        x = layers.data("x", shape=[3])
        return layers.mean(layers.fc(x, size=1))

    fluid.Trainer(train_program, SGD).train([[([5, 7, 9],), ([8],)]])


@THEME.mistake("Words instead of their numbers", errors.FeedTypeError, "words", "'film'", "int64")
def words_as_text():
    session = fluid.Session(sentiment)
    session.run(feed={"words": [["a", "good", "film"], ["bad"]]})


@THEME.mistake("One sentence without a batch around it", errors.FeedError, "the single value 5", "[value]")
def one_sentence():
    session = fluid.Session(sentiment)
    session.run(feed={"words": [5, 7, 9]})


@THEME.mistake("A word beyond the vocabulary", errors.FeedError, "100", "larger size")
def word_beyond_the_table():
    session = fluid.Session(sentiment)
    session.run(feed={"words": [[5, 7, 100], [8]]})


@THEME.mistake("A sentence longer than the largest bucket", errors.FeedError, "12", "8")
def beyond_the_buckets():
    session = fluid.Session(sentiment, buckets=[4, 8])
    session.run(feed={"words": [[1] * 12]})


@THEME.mistake("A layer for sequences on what is none", errors.FluidError, "lod_level=1")
def dense_to_sequence_layer():
    def train_program():
        x = layers.data("x", shape=[10, 4])
        return layers.mean(layers.sequence_pool(x, "average"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A kind of pooling that is not there", errors.FluidError, "'mean'", "'average'")
def pooling_by_another_name():
    def train_program():
        words = layers.data("words", shape=[8], lod_level=1)
        return layers.mean(layers.sequence_pool(words, "mean"))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("An LSTM without the layer in front of it", errors.ShapeError, "fc", "128")
def lstm_without_fc():
    def train_program():
        words = layers.data("words", shape=[8], lod_level=1)
        hidden, cell = layers.dynamic_lstm(words, size=128)
        return layers.mean(layers.sequence_last_step(hidden))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A sequence where one value for each row is needed", errors.FluidError, "sequence")
def sequence_as_prediction():
    def train_program():
        words = layers.data("words", shape=[8], lod_level=1)
        label = layers.data("label", shape=[1], dtype="int64")
        prediction = layers.fc(words, size=2, act="softmax")
        return layers.mean(layers.cross_entropy(prediction, label))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A memory that is never updated", errors.FluidError, "update_memory")
def memory_without_update():
    def train_program():
        words = layers.data("words", shape=[8], lod_level=1)
        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(words)
            memory = rnn.memory(shape=[4])
            rnn.output(layers.fc([word, memory], size=4))
        return layers.mean(layers.sequence_last_step(rnn()))

    fluid.Trainer(train_program, SGD)


@THEME.mistake("A value from inside a block is used behind it", errors.ProgramError, "rnn.output(")
def value_from_a_block():
    def train_program():
        words = layers.data("words", shape=[8], lod_level=1)
        rnn = layers.DynamicRNN()
        with rnn.block():
            word = rnn.step_input(words)
            memory = rnn.memory(shape=[4])
            hidden = layers.fc([word, memory], size=4)
            rnn.update_memory(memory, hidden)
            rnn.output(hidden)
        return layers.mean(hidden)

    fluid.Trainer(train_program, SGD)


@THEME.mistake("Sequences of other lengths are added", errors.FluidError, "length")
def other_lengths():
    def program():
        question = layers.data("question", shape=[2], lod_level=1)
        answer = layers.data("answer", shape=[2], lod_level=1)
        return layers.sequence_pool(question + answer, "sum")

    session = fluid.Session(program)
    session.run(feed={"question": [np.ones((3, 2))], "answer": [np.ones((5, 2))]})
