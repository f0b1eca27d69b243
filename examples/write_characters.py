"""Generate text with a character model: train, export and serve a recurrent net, and receive its text in parts.

The text is the English documentation that comes with Python, in `pydoc_data.topics`. `layers.generate` writes the
characters of a part in one compiled loop, and the server sends each part as soon as it is complete. Run

    python examples/write_characters.py
    python examples/write_characters.py --prompt "An object " --temperature 0.9 --steps 3000
"""

import argparse
import itertools
import os
import re
import tempfile
from pydoc_data import topics

import jax.numpy as jnp
import numpy as np

import fluid

WINDOW, BATCH, PART = 64, 32, 16  # length of a training text, texts in a minibatch, length of a written part


def load_text():
    """Join the paragraphs of Python's documentation to one ASCII text, without code and repetitions."""
    pieces = (piece for topic in topics.topics.values() for piece in re.split(r"\n\s*\n", topic))
    prose = dict.fromkeys(piece for piece in pieces if piece[:1].isalpha() and len(piece) > 40)
    return re.sub(r"[^ -~]+", " ", "  ".join(prose))


def encode(text, characters):
    """Return the ids of characters, `[n, 1]`; unknown characters count as spaces."""
    ids = {character: i for i, character in enumerate(characters)}
    return np.array([[ids.get(character, ids[" "])] for character in text], "int64")


def make_programs(count, size):
    """Return the program that trains a model of text, and the program that continues a text by `PART` characters."""

    def model(ids, state=None):
        """Return the scores of the next character after each character, and the last state of the recurrent layer."""
        x = fluid.layers.fc(fluid.layers.embedding(ids, size=[count, 32]), size=3 * size)
        states = fluid.layers.dynamic_gru(x, size, h_0=state)
        return fluid.layers.fc(states, size=count), fluid.layers.sequence_last_step(states)

    def train_program():
        text = fluid.layers.data("text", shape=[1], dtype="int64", lod_level=1)
        following = fluid.layers.data("following", shape=[1], dtype="int64", lod_level=1)
        scores, _ = model(text)
        return {"bits": fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, following) / np.log(2))}

    def writing_program():
        text = fluid.layers.data("text", shape=[1], dtype="int64", lod_level=1)
        temperature = fluid.layers.data("temperature", shape=[1])
        state = jnp.zeros([text.shape[0], size])
        more = fluid.layers.generate(model, text, PART, state, temperature=temperature, top_p=0.95)
        # The output "text" has the name of a feed, so it becomes this feed when the server computes the next part.
        return {"text": fluid.layers.sequence_concat([text, more]), "more": more}

    return train_program, writing_program


def by_counting(train, test, count):
    """Compute the bits per character of a model that counts pairs of characters."""
    pairs = np.ones((count, count))
    np.add.at(pairs, (train[:-1], train[1:]), 1)
    return float(-np.mean(np.log2((pairs / pairs.sum(1, keepdims=True))[test[:-1], test[1:]])))


def windows(text, starts):
    """Return a minibatch: pieces of a text, `[n, WINDOW, 1]`, and the characters that follow each character."""
    found = text[np.asarray(starts)[:, None] + np.arange(WINDOW + 1)]
    return {"text": found[:, :-1], "following": found[:, 1:]}


def main(size=192, steps=600, length=192, prompt="The value of the ", temperature=0.5, path="writer.fluid"):
    """Train, test, export and serve a net that writes text; return two scores, and a text from the server.

    The scores are bits per character: first of the net, then of a baseline that counts pairs of characters.
    """
    text = load_text()
    characters = "".join(sorted(set(text)))
    ids = encode(text, characters)
    train, test = ids[: -len(ids) // 10], ids[-len(ids) // 10 :]
    counted = by_counting(train[:, 0], test[:, 0], len(characters))
    print(f"{len(train)} characters to learn from; {counted:.2f} bits per character by counting pairs")

    train_program, writing_program = make_programs(len(characters), size)
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(fluid.layers.cosine_decay(5e-3, 1, steps)))
    random = np.random.default_rng(0)

    def batches():
        for _ in range(steps):
            yield windows(train, random.integers(0, len(train) - WINDOW, BATCH))

    trainer.train(batches, num_epochs=1)
    (bits,) = trainer.test([windows(test, range(0, len(test) - WINDOW, WINDOW))])
    print(f"test: {float(bits):.2f} bits per character")

    fluid.io.save_inference_model(path, writing_program, trainer.params)
    with fluid.serve(path, port=0, batch_sizes=[1], buckets=[64, 256]) as server:
        writer = fluid.Inferencer(url=server.url)
        print(f"what {server.url} writes at temperature {temperature}:\n{prompt}", end="", flush=True)
        written = prompt
        feed = {"text": [encode(prompt, characters)], "temperature": [temperature]}
        for part in itertools.islice(writer.stream(feed, fetch="more", seed=1), length // PART):
            more = "".join(characters[i] for i in part.more.rows()[0].ravel())
            print(more, end="", flush=True)
            written += more
    print()
    return float(bits), counted, written


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=192, help="width of the recurrent net")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument(
        "--prompt", default="The value of the ", help="the beginning of the text, 48 characters at most"
    )
    parser.add_argument("--temperature", type=float, default=0.5)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(**vars(arguments), path=os.path.join(folder, "writer.fluid"))
