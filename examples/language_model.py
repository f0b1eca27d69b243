"""A small language model: a transformer learns to predict the next character, and then writes text.

The text is the English documentation that comes with Python, in `pydoc_data.topics`. All blocks are one scan over their
stacked parameters. All steps of writing are one compiled program, with a cache of the previous keys and values. Run

    python examples/language_model.py
    python examples/language_model.py --layers 6 --size 256 --steps 2000
"""

import argparse
import os
import re
import tempfile
from pydoc_data import topics

import jax
import jax.numpy as jnp
import numpy as np

import fluid

WINDOW, BATCH, HEAD = 256, 8, 32  # characters per window of text, windows per batch, width of an attention head


def load_text():
    """Read paragraphs in ASCII, without repetitions, and without indented paragraphs such as code."""
    pieces = (piece for topic in topics.topics.values() for piece in re.split(r"\n\s*\n", topic))
    prose = dict.fromkeys(piece for piece in pieces if piece[:1].isalpha() and len(piece) > 40)
    return [re.sub(r"[^\n -~]", "", piece.replace("’", "'")) + "\n\n" for piece in prose]


def encode(text, characters):
    """Return the ids of characters, `[n]`; unknown characters count as spaces."""
    ids = {character: i for i, character in enumerate(characters)}
    return np.array([ids.get(character, ids[" "]) for character in text], "int64")


def make_programs(count, layers, size, length):
    """Return the training program of a model of `count` characters, and the program that writes texts."""
    heads = max(1, size // HEAD)

    norm = fluid.layers.feature_norm

    def block(x, cache=None):
        seen = fluid.layers.multi_head_attention(norm(x), num_heads=heads, causal=True, rotary=True, cache=cache)
        seen, cache = (seen, None) if cache is None else seen
        x = x + seen
        hidden = fluid.layers.dense(norm(x), size=4 * size, act="gelu")
        x = x + fluid.layers.dense(hidden, size=size)
        return x if cache is None else (x, cache)

    def model(ids, caches=None):
        """Return scores of each next character, `[batch, time, count]`, for ids `[batch, time, 1]`."""
        x = fluid.layers.embedding(ids, size=[count, size])
        if caches is None:
            x = fluid.layers.repeat(block, layers, x)
        else:
            x, caches = fluid.layers.repeat(block, layers, x, xs=caches)
        scores = fluid.layers.dense(norm(x), size=count)
        return scores if caches is None else (scores, caches)

    def train_program():
        text = fluid.layers.data("text", shape=[WINDOW + 1, 1], dtype="int64")
        scores = model(text[:, :-1])
        loss = fluid.layers.mean(fluid.layers.softmax_with_cross_entropy(scores, text[:, 1:]))
        return {"bits": loss / np.log(2)}

    def writing_program():
        prompt = fluid.layers.data("prompt", shape=[1], dtype="int64", lod_level=1)
        temperature = fluid.layers.data("temperature", shape=[1])
        given = prompt.data[:, :, 0]
        cache = fluid.layers.attention_cache(given.shape[0], length, heads, size // heads)
        caches = jax.tree.map(lambda array: jnp.stack([array] * layers), cache)

        def step(carry, i):
            character, caches = carry
            character = jnp.where(i < prompt.lengths, given[:, jnp.minimum(i, given.shape[1] - 1)], character)
            scores, caches = model(character[:, None, None], caches)
            chances = fluid.layers.softmax(scores[:, 0] / temperature)
            return (fluid.layers.sampling_id(chances, dtype="int64"), caches), character

        _, written = fluid.layers.scan(step, (given[:, 0], caches), jnp.arange(length))
        return written.T

    return train_program, writing_program


def by_counting(train, test, count):
    """Compute the bits per character of two baselines, which count single characters and pairs of characters."""
    pairs = np.zeros((count, count))
    np.add.at(pairs, (train[:-1], train[1:]), 1)
    common = (pairs.sum(0) + 1) / (pairs.sum() + count)
    after = (pairs + common) / (pairs.sum(1, keepdims=True) + 1)
    chances = {"single characters": common[test[1:]], "pairs": after[test[:-1], test[1:]]}
    return {name: float(-np.mean(np.log2(chance))) for name, chance in chances.items()}


def windows(text, starts):
    """Return the pieces of a text that begin at the indices `starts`, `[n, WINDOW + 1]`."""
    return text[np.asarray(starts)[:, None] + np.arange(WINDOW + 1)]


def main(layers=3, size=128, steps=200, length=WINDOW, max_paragraphs=None, path="language.params"):
    """Train, test, save and load a net that writes texts; return two scores, and the texts.

    The scores are bits per character: first of the net, then of baselines that count characters.
    """
    paragraphs = load_text()[:max_paragraphs]
    characters = "".join(sorted(set("".join(paragraphs))))
    test = encode("".join(paragraphs[::10]), characters)
    train = encode("".join(p for i, p in enumerate(paragraphs) if i % 10), characters)
    print(f"{len(train)} characters to learn from, {len(test)} to test, {len(characters)} different ones")
    counted = by_counting(train, test, len(characters))
    print("bits per character by counting " + ", ".join(f"{name} {bits:.2f}" for name, bits in counted.items()))

    train_program, writing_program = make_programs(len(characters), layers, size, length)
    warm_up = max(1, steps // 10)
    rate = fluid.layers.linear_lr_warmup(fluid.layers.cosine_decay(3e-3, 1, steps), warm_up, 0.0, 3e-3)
    trainer = fluid.Trainer(train_program, fluid.optimizer.AdamW(rate, weight_decay=0.01))
    random = np.random.default_rng(0)

    def batches():
        for _ in range(steps):
            yield {"text": windows(train, random.integers(0, len(train) - WINDOW, BATCH))}

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent) and (event.step + 1) % max(1, steps // 10) == 0:
            print(f"step {event.step + 1:5}: {float(event.metrics[0]):.2f} bits per character")

    trainer.train(batches, num_epochs=1, event_handler=on_event)
    whole = windows(test, range(0, len(test) - WINDOW, WINDOW))
    (bits,) = trainer.test(fluid.reader.arrays({"text": whole}, batch_size=BATCH))
    print(f"test: {float(bits):.2f} bits per character")

    trainer.save_params(path)
    writer = fluid.Inferencer(writing_program, param_path=path, bucket=False)
    prompts = ["The value of the ", "If the object ", "This is "]
    feed = {"prompt": [encode(prompt, characters)[:, None] for prompt in prompts], "temperature": [0.3, 0.6, 0.9]}
    (written,) = writer.infer(feed)
    texts = ["".join(characters[i] for i in row) for row in written]
    print(f"parameters saved to {path}, loaded again; what it writes at temperatures 0.3, 0.6 and 0.9:")
    print("\n----\n".join(texts))
    return float(bits), counted, texts


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--size", type=int, default=128, help=f"width; there are {HEAD} numbers in a head")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save = arguments.save or os.path.join(folder, "language.params")
        main(arguments.layers, arguments.size, arguments.steps, path=save)
