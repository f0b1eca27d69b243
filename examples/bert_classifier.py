"""A BERT classifier (Devlin et al., 2018) with the weights of Hugging Face, fine-tuned on sentences.

The file is `model.safetensors` or `pytorch_model.bin` of a BertForSequenceClassification or a BertModel. With a
BertModel, the head starts with random weights. Sentences are lists of ids, for example from a tokenizer of
transformers. This example generates sentences; the class of a sentence is the more frequent one of two words. Run

    python examples/bert_classifier.py
    python examples/bert_classifier.py --weights model.safetensors --heads 12
"""

import argparse

import jax.numpy as jnp
import numpy as np

import fluid
from fluid import layers

# Matrices of PyTorch's Linear are [out, in], so they are transposed. Names in files of BertForSequenceClassification
# begin with "bert.encoder", and names in files of BertModel begin with "encoder".
TABLE = {
    "*embeddings.word_embeddings.weight": "words",
    "*embeddings.position_embeddings.weight": "positions",
    "*embeddings.token_type_embeddings.weight": "types",
    "*embeddings.LayerNorm.weight": "norm.w_0",
    "*embeddings.LayerNorm.bias": "norm.b_0",
    "*encoder.layer.{n}.attention.self.query.weight": ("block_{n}/attn.w_0", "transpose"),
    "*encoder.layer.{n}.attention.self.query.bias": "block_{n}/attn.b_0",
    "*encoder.layer.{n}.attention.self.key.weight": ("block_{n}/attn.w_1", "transpose"),
    "*encoder.layer.{n}.attention.self.key.bias": "block_{n}/attn.b_1",
    "*encoder.layer.{n}.attention.self.value.weight": ("block_{n}/attn.w_2", "transpose"),
    "*encoder.layer.{n}.attention.self.value.bias": "block_{n}/attn.b_2",
    "*encoder.layer.{n}.attention.output.dense.weight": ("block_{n}/attn.w_3", "transpose"),
    "*encoder.layer.{n}.attention.output.dense.bias": "block_{n}/attn.b_3",
    "*encoder.layer.{n}.attention.output.LayerNorm.weight": "block_{n}/attn_norm.w_0",
    "*encoder.layer.{n}.attention.output.LayerNorm.bias": "block_{n}/attn_norm.b_0",
    "*encoder.layer.{n}.intermediate.dense.weight": ("block_{n}/fc.w_0", "transpose"),
    "*encoder.layer.{n}.intermediate.dense.bias": "block_{n}/fc.b_0",
    "*encoder.layer.{n}.output.dense.weight": ("block_{n}/proj.w_0", "transpose"),
    "*encoder.layer.{n}.output.dense.bias": "block_{n}/proj.b_0",
    "*encoder.layer.{n}.output.LayerNorm.weight": "block_{n}/norm.w_0",
    "*encoder.layer.{n}.output.LayerNorm.bias": "block_{n}/norm.b_0",
    "*pooler.dense.weight": ("pooler.w_0", "transpose"),
    "*pooler.dense.bias": "pooler.b_0",
}
HEAD = {"classifier.weight": ("classifier.w_0", "transpose"), "classifier.bias": "classifier.b_0"}
IGNORE = ["*position_ids"]  # older files have the numbers 0, 1, 2, ... under this name, no weights
SMALL = {"count": 40, "positions": 32, "depth": 2, "size": 32, "hidden": 64}


def bert(count, positions, depth, size, hidden, heads, dropout=0.1, epsilon=1e-12, attention=None):
    """Return a vector for each sentence, `[batch, size]`, computed from its first word, [CLS].

    Args:
      count: the number of words.
      positions: the maximum length of a sentence.
      depth: the number of blocks.
      size: the width.
      hidden: the width of the hidden layer between the two dense layers of a block.
      heads: the number of heads.
      dropout: the rate of dropout in training.
      epsilon: the number that each normalisation adds to the variance.
      attention: `param_attr` of all attention layers.
    """
    ids = layers.data("ids", shape=[1], dtype="int64", lod_level=1)
    # BERT also reads pairs of sentences: the type of a word is 0 in the first sentence and 1 in the second.
    types = layers.data("types", shape=[1], dtype="int64", lod_level=1)

    def norm(x, name):
        return layers.feature_norm(x, epsilon=epsilon, name=name)

    def drop(x):
        return layers.dropout(x, dropout, dropout_implementation="upscale_in_train")

    x = layers.embedding(ids, size=[count, size], param_attr="words")
    x = x + layers.embedding(types, size=[2, size], param_attr="types")
    steps = jnp.arange(x.data.shape[1])[None, :, None]
    x = x.with_data(x.data + layers.embedding(steps, size=[positions, size], param_attr="positions"))
    x = drop(norm(x, "norm"))
    for n in range(depth):
        with fluid.name_scope(f"block_{n}"):
            seen = layers.multi_head_attention(
                x, num_heads=heads, dropout_rate=dropout, param_attr=attention, name="attn"
            )
            x = norm(x + drop(seen), "attn_norm")
            y = layers.dense(layers.dense(x, hidden, act="gelu", name="fc"), size, name="proj")
            x = norm(x + drop(y), "norm")
    return drop(layers.dense(x.data[:, 0], size, act="tanh", name="pooler"))


def scores_program(classes=2, **sizes):
    """Return the scores of the classes, `[batch, classes]`."""
    return layers.dense(bert(**sizes), classes, name="classifier")


def train_program(classes=2, **sizes):
    """Return loss and accuracy."""
    scores = scores_program(classes, **sizes)
    label = layers.data("label", shape=[1], dtype="int64")
    loss = layers.mean(layers.softmax_with_cross_entropy(scores, label))
    return {"loss": loss, "accuracy": layers.accuracy(layers.softmax(scores), label)}


def sizes_of(weights):
    """Compute the sizes of a net from the shapes of its weights; these shapes do not show the number of heads."""
    shapes = {name.removeprefix("bert."): array.shape for name, array in weights.items()}
    return {
        "count": shapes["embeddings.word_embeddings.weight"][0],
        "positions": shapes["embeddings.position_embeddings.weight"][0],
        "depth": sum(name.endswith("attention.self.query.bias") for name in shapes),
        "size": shapes["pooler.dense.bias"][0],
        "hidden": shapes["encoder.layer.0.intermediate.dense.bias"][0],
    }


def load(trainer, weights):
    """Load the weights into the trainer; if the weights contain no head, the head keeps its initial values."""
    has_head = "classifier.weight" in weights
    table = TABLE | HEAD if has_head else TABLE
    return fluid.io.load_state_dict(trainer, weights, table, IGNORE if has_head else [*IGNORE, "classifier.*"])


def sentences(rows, count, seed):
    """Generate rows `(ids, types, [label])`: the first id is 1, and the label is 1 if 2 occurs more often than 3."""
    rng = np.random.default_rng(seed)
    for length in rng.integers(6, 20, rows):
        words = np.where(rng.random(length) < 0.6, rng.integers(2, 4, length), rng.integers(4, count, length))
        label = int((words == 2).sum() > (words == 3).sum())
        yield [[1], *words[:, None].tolist()], [[0]] * (length + 1), [label]


def main(path=None, heads=4, rows=1024, num_epochs=6, rate=1e-3):
    """Load the weights and fine-tune; return the accuracy on test sentences and the share of the larger class."""
    weights = fluid.io.read_state_dict(path) if path else {}
    sizes = (sizes_of(weights) if path else SMALL) | {"heads": heads}
    train, test = (list(sentences(rows, sizes["count"], seed)) for seed in (0, 1))
    trainer = fluid.Trainer(lambda: train_program(**sizes), fluid.optimizer.Adam(rate))
    if path:
        print(load(trainer, weights))
    columns = ["ids", "types", "label"]
    batches = fluid.batch(fluid.reader.shuffle(lambda: iter(train), buf_size=rows), 32)
    trainer.train(batches, num_epochs=num_epochs, feed_order=columns)
    accuracy = float(trainer.test(fluid.batch(lambda: iter(test), 256), feed_order=columns)["accuracy"])
    ones = float(np.mean([label for _, _, label in test]))
    print(f"test accuracy {accuracy:.3f}; always the larger class: {max(ones, 1 - ones):.3f}")
    return accuracy, max(ones, 1 - ones)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", metavar="PATH", help="model.safetensors or pytorch_model.bin")
    parser.add_argument("--heads", type=int, default=4, help="12 for BERT base, 16 for BERT large")
    arguments = parser.parse_args()
    main(arguments.weights, arguments.heads, rate=3e-5 if arguments.weights else 1e-3)
