"""Classify the sentiment of reviews of any length with three nets: convolution, stacked LSTM, and `DynamicRNN`.

The reviews are generated: a few clauses such as "the story was not very good". Each clause has a word of praise or
blame, which "not" reverses and "very" doubles, so counting the words is often wrong. A batch has sentences of similar
length. Run `python examples/understand_sentiment.py --net lstm`.
"""

import argparse
import os
import tempfile

import numpy as np

import fluid

THINGS = "story music cast ending camera dialogue humour script setting hero villain plot".split()
PRAISE = "good wonderful clever moving funny brilliant charming honest".split()
BLAME = "bad dull clumsy boring silly shallow awkward lifeless".split()
JOINTS = ", and | but | while | ; though ".split("|")
WIDTH = 32


def generate(count, seed=0):
    """Generate reviews as `(words, label)`, with label 1 if praise exceeds blame."""
    random = np.random.default_rng(seed)
    reviews = []
    while len(reviews) < count:
        text, score = "", 0
        for number in range(random.integers(1, 9)):
            kind, negated, doubled = random.random(3) < (0.5, 0.25, 0.5)
            score += (1 if kind else -1) * (-1 if negated else 1) * (2 if doubled else 1)
            text += random.choice(JOINTS) if number else ""
            text += f"the {random.choice(THINGS)} {random.choice(['was', 'seemed', 'felt'])} "
            text += "not " * int(negated) + "very " * int(doubled) + random.choice(PRAISE if kind else BLAME)
        if score:
            reviews.append((text.replace(",", " ,").replace(";", " ;").split(), int(score > 0)))
    return reviews


def convolution_net(words, size):
    """Return probabilities from convolutions over windows of three and four words, pooled over each sentence."""
    vectors = fluid.layers.embedding(words, size=[size, WIDTH])
    windows = [
        fluid.nets.sequence_conv_pool(vectors, num_filters=WIDTH, filter_size=width, act="tanh", pool_type="sqrt")
        for width in (3, 4)
    ]
    return fluid.layers.fc(windows, size=2, act="softmax")


def stacked_lstm_net(words, size, layers=3):
    """Return probabilities from stacked LSTMs in alternating directions."""
    vectors = fluid.layers.embedding(words, size=[size, WIDTH])
    projected = fluid.layers.fc(vectors, size=4 * WIDTH)
    hidden, _ = fluid.layers.dynamic_lstm(projected, size=4 * WIDTH)
    for number in range(2, layers + 1):
        projected = fluid.layers.fc([projected, hidden], size=4 * WIDTH)
        hidden, _ = fluid.layers.dynamic_lstm(projected, size=4 * WIDTH, is_reverse=number % 2 == 0)
    pooled = [fluid.layers.sequence_pool(x, pool_type="max") for x in (projected, hidden)]
    return fluid.layers.fc(pooled, size=2, act="softmax")


def dynamic_rnn_net(words, size):
    """Return probabilities from a `DynamicRNN`, whose custom step computes an LSTM."""
    vectors = fluid.layers.embedding(words, size=[size, WIDTH])
    rnn = fluid.layers.DynamicRNN()
    with rnn.block():
        word = rnn.step_input(vectors)
        hidden, cell = rnn.memory(shape=[WIDTH]), rnn.memory(shape=[WIDTH])
        new_hidden, new_cell = fluid.layers.lstm_unit(word, hidden, cell, forget_bias=1.0)
        rnn.update_memory(hidden, new_hidden)
        rnn.update_memory(cell, new_cell)
        rnn.output(new_hidden)
    last = fluid.layers.sequence_last_step(rnn())
    return fluid.layers.fc(last, size=2, act="softmax")


NETS = {"conv": convolution_net, "lstm": stacked_lstm_net, "rnn": dynamic_rnn_net}


def make_programs(net, size):
    """Return the inference program and the training program of a net that classifies reviews."""

    def inference_program():
        words = fluid.layers.data(name="words", shape=[1], dtype="int64", lod_level=1)
        return NETS[net](words, size)

    def train_program():
        prediction = inference_program()
        label = fluid.layers.data(name="label", shape=[1], dtype="int64")
        loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
        return {"loss": loss, "accuracy": fluid.layers.accuracy(prediction, label)}

    return inference_program, train_program


def by_words(reviews):
    """Compute the accuracy of a baseline that predicts praise if words of praise outnumber words of blame."""
    counts = [sum((w in PRAISE) - (w in BLAME) for w in words) for words, _ in reviews]
    return float(np.mean([(count > 0) == label for count, (_, label) in zip(counts, reviews, strict=True)]))


def main(net="lstm", num_epochs=6, count=6000, path="sentiment.params"):
    """Train, test, save, load and judge; return accuracies of the net, of counting words, and of a constant answer."""
    reviews = generate(count + 1000)
    ids = {word: i for i, word in enumerate(sorted({word for words, _ in reviews for word in words}))}
    rows = [([ids[word] for word in words], label) for words, label in reviews]
    train, test = rows[1000:], rows[:1000]
    longest = max(len(words) for words, _ in rows)
    print(f"{len(train)} generated reviews (not IMDB) of up to {longest} words, {len(ids)} different ones")
    majority = max(np.mean([label for _, label in test]), 1 - np.mean([label for _, label in test]))
    counting = by_words(reviews[:1000])
    print(f"one answer for all: accuracy {majority:.3f}; by counting words: {counting:.3f}")

    inference_program, train_program = make_programs(net, len(ids))
    trainer = fluid.Trainer(train_program, optimizer=fluid.optimizer.Adam(3e-3), buckets=[16, 32, 64])
    train_reader = fluid.reader.bucket_by_length(fluid.reader.shuffle(train, len(train), seed=0), batch_size=64)
    test_reader = fluid.reader.bucket_by_length(test, batch_size=100)

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            loss, accuracy = trainer.test(test_reader)
            print(f"epoch {event.epoch + 1}: test loss {loss:.3f}, test accuracy {accuracy:.4f}")

    trainer.train(train_reader, num_epochs=num_epochs, event_handler=on_event)
    accuracy = float(trainer.test(test_reader)[1])
    trainer.save_params(path)

    inferencer = fluid.Inferencer(inference_program, param_path=path)
    print(f"\nparameters saved to {path}, loaded again; what it says of")
    said = ["the story was good", "the story was not good", "the music was bad but the cast was very wonderful"]
    known = [np.array([[ids[word]] for word in text.split()]) for text in said]
    (scores,) = inferencer.infer({"words": fluid.SequenceBatch.from_rows(known)})
    for text, (_, kind) in zip(said, scores, strict=True):
        print(f"  {text:<50} {'kind' if kind > 0.5 else 'unkind'} ({max(kind, 1 - kind):.0%})")
    return accuracy, counting, float(majority)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=list(NETS), default="lstm")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(arguments.net, arguments.epochs, path=arguments.save or os.path.join(folder, "sentiment.params"))
