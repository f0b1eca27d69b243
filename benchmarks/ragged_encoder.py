"""Train a small encoder for 8 epochs on generated sentences of 2 to 40 words; `startup.py` measures the seconds.

    python benchmarks/ragged_encoder.py default

A minibatch has sentences of similar length. The argument selects the padded lengths: "default" for the lengths that
fluid chooses, "one" for the length of the longest sentence.
"""

import sys
from typing import Any

import numpy as np

import fluid

SENTENCES, LONGEST, BATCH, WORDS, WIDTH, EPOCHS = 1600, 40, 32, 500, 32, 8


def block(x: Any) -> Any:
    """Compute a transformer block, with a normalisation before the attention and before the perceptron."""
    h = fluid.layers.layer_norm(x, begin_norm_axis=-1)
    x = x + fluid.layers.multi_head_attention(h, num_heads=4)
    h = fluid.layers.layer_norm(x, begin_norm_axis=-1)
    return x + fluid.layers.fc(fluid.layers.fc(h, size=4 * WIDTH, act="relu"), size=WIDTH)


def program() -> Any:
    """Return the loss of a classifier: two transformer blocks, the mean over each sentence, and two classes."""
    words = fluid.layers.data("words", [1], "int64", lod_level=1)
    label = fluid.layers.data("label", [1], "int64")
    hidden = block(block(fluid.layers.embedding(words, [WORDS, WIDTH])))
    prediction = fluid.layers.fc(fluid.layers.sequence_pool(hidden, "average"), 2, act="softmax")
    return fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))


def rows() -> list[tuple[np.ndarray, int]]:
    """Generate rows `(words, label)`; most sentences are short."""
    random = np.random.default_rng(0)
    lengths = np.clip(np.exp(random.normal(2.4, 0.7, SENTENCES)), 2, LONGEST).astype(int)
    return [(random.integers(0, WORDS, n), int(random.integers(0, 2))) for n in lengths]


def train(buckets: list[int] | None, sentences: list[Any], epochs: int = EPOCHS) -> fluid.Trainer:
    """Train the encoder, and test it on the training sentences after each epoch."""
    trainer = fluid.Trainer(program, fluid.optimizer.Adam(1e-3), buckets=buckets)
    reader = fluid.reader.bucket_by_length(fluid.reader.shuffle(sentences, len(sentences), seed=0), BATCH)
    trainer.train(reader, num_epochs=epochs, test_reader=fluid.batch(sentences, BATCH))
    return trainer


if __name__ == "__main__":
    train([LONGEST] if sys.argv[1] == "one" else None, rows())
