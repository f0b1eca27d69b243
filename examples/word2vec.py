"""Learn word vectors: a net learns to predict a word from the four words before, and a vector for each word.

The text is the English documentation that comes with Python, in `pydoc_data.topics`. All four words share one table; a
step updates only the rows in its batch. Run `python examples/word2vec.py`.
"""

import argparse
import collections
import os
import re
import tempfile
from pydoc_data import topics

import numpy as np

import fluid

NGRAM, WIDTH, HIDDEN = 5, 32, 128
WORDS = [f"word_{i}" for i in range(NGRAM - 1)]


def load_text():
    """Read paragraphs as lists of words, without repetitions, and without indented paragraphs such as code."""
    pieces = (piece for topic in topics.topics.values() for piece in re.split(r"\n\s*\n", topic))
    prose = dict.fromkeys(piece for piece in pieces if piece[:1].isalpha())
    paragraphs = [re.findall(r"[a-z_]+|[.,:;()]", piece.lower()) for piece in prose]
    return [paragraph for paragraph in paragraphs if len(paragraph) >= 10]


def count_words(paragraphs, at_least=4):
    """Return the vocabulary: words by id, the commonest first; rare words count as `<unk>`."""
    counts = collections.Counter(word for paragraph in paragraphs for word in paragraph)
    return ["<unk>", "<s>", *(word for word, count in counts.most_common() if count >= at_least)]


def ngrams(paragraphs, ids):
    """Return columns `word_0 ... word_3` and `next`: the ids of the four words before each word, and its id."""
    rows = []
    for paragraph in paragraphs:
        known = [ids["<s>"]] * (NGRAM - 1) + [ids.get(word, ids["<unk>"]) for word in paragraph]
        rows += [known[i : i + NGRAM] for i in range(len(paragraph))]
    return dict(zip([*WORDS, "next"], np.array(rows, "int64").T, strict=True))


def make_programs(vocabulary_size):
    """Return the inference program and the training program."""

    def inference_program():
        vectors = [
            fluid.layers.embedding(
                fluid.layers.data(name=name, shape=[1], dtype="int64"),
                size=[vocabulary_size, WIDTH],
                is_sparse=True,
                param_attr="shared_w",
            )
            for name in WORDS
        ]
        hidden = fluid.layers.fc(fluid.layers.concat(vectors, axis=1), size=HIDDEN, act="sigmoid")
        return fluid.layers.fc(hidden, size=vocabulary_size, act="softmax")

    def train_program():
        word = fluid.layers.data(name="next", shape=[1], dtype="int64")
        prediction = inference_program()
        loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, word))
        return {"loss": loss, "accuracy": fluid.layers.accuracy(prediction, word)}

    return inference_program, train_program


def unigram(train, test, vocabulary_size):
    """Compute the perplexity and accuracy of predicting words by their frequency alone."""
    counts = np.bincount(train["next"], minlength=vocabulary_size) + 1
    perplexity = np.exp(-np.mean(np.log(counts / counts.sum())[test["next"]]))
    return float(perplexity), float(np.mean(test["next"] == counts.argmax()))


def main(num_epochs=12, max_paragraphs=None, path="words.params"):
    """Train, test, show neighbours, save, load and predict; return the results of the net and of `unigram`."""
    paragraphs = load_text()[:max_paragraphs]
    held_out, kept = paragraphs[::10], [p for i, p in enumerate(paragraphs) if i % 10]
    vocabulary = count_words(kept)
    ids = {word: i for i, word in enumerate(vocabulary)}
    train, test = ngrams(kept, ids), ngrams(held_out, ids)
    print(f"{len(train['next'])} words to learn from, {len(test['next'])} to test, {len(vocabulary)} different ones")

    inference_program, train_program = make_programs(len(vocabulary))
    trainer = fluid.Trainer(train_program, optimizer=fluid.optimizer.Adagrad(0.05))
    train_reader = fluid.reader.arrays(train, batch_size=128, shuffle=True, seed=0)
    test_reader = fluid.reader.arrays(test, batch_size=512)
    by_counting = unigram(train, test, len(vocabulary))
    print(f"by counting words: perplexity {by_counting[0]:.1f}, accuracy {by_counting[1]:.3f}")

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            loss, accuracy = trainer.test(test_reader)
            print(f"epoch {event.epoch + 1:2}: test perplexity {np.exp(loss):.1f}, accuracy {accuracy:.3f}")

    trainer.train(train_reader, num_epochs=num_epochs, event_handler=on_event)
    loss, accuracy = trainer.test(test_reader)
    trainer.save_params(path)

    vectors = np.asarray(trainer.params["shared_w"])
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    print("\nnearest by cosine")
    for word in ("list", "is", "class", "may", "integer", "three"):
        if word in ids:
            near = np.argsort(-vectors @ vectors[ids[word]])[1:6]
            print(f"  {word:<8} {', '.join(vocabulary[i] for i in near)}")

    inferencer = fluid.Inferencer(inference_program, param_path=path)
    print(f"\nparameters saved to {path}, loaded again; what comes next?")
    for start in ("the value of the", "if the object is", "this is equivalent to", "the name of the"):
        feed = {name: [ids.get(word, 0)] for name, word in zip(WORDS, start.split(), strict=True)}
        (scores,) = inferencer.infer(feed)
        best = np.argsort(-scores[0])[:4]
        print(f"  {start} ... {', '.join(f'{vocabulary[i]} ({scores[0, i]:.0%})' for i in best)}")
    return (float(np.exp(loss)), float(accuracy)), by_counting


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(arguments.epochs, path=arguments.save or os.path.join(folder, "words.params"))
