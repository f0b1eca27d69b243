"""Recognize handwritten digits: train a network, test it, save it, load it for inference and show its predictions.

The data are the 1797 digits of 8 x 8 pixels that come with scikit-learn. Run

    python examples/recognize_digits.py --net conv
    python examples/recognize_digits.py --net mlp --epochs 20 --save digits.params
"""

import argparse
import functools
import os
import tempfile

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fluid


def load_data():
    """Read images `[n, 1, 8, 8]` between 0 and 1 and labels `[n]`; one fifth of the images is kept for tests."""
    data = load_digits()
    images = (data.images[:, None] / 16).astype("float32")
    labels = data.target.astype("int64")
    split = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    return {"image": split[0], "label": split[2]}, {"image": split[1], "label": split[3]}


def mlp():
    """Return the probabilities of ten digits from two hidden layers."""
    image = fluid.layers.data(name="image", shape=[1, 8, 8])
    hidden = fluid.layers.fc(image, size=128, act="relu")
    hidden = fluid.layers.fc(hidden, size=64, act="relu")
    return fluid.layers.fc(hidden, size=10, act="softmax")


def conv():
    """Return probabilities from three convolutions with batch normalisation, pooled after the second and the third."""
    hidden = fluid.layers.data(name="image", shape=[1, 8, 8])
    for filters in ([32, 32], [64]):
        hidden = fluid.nets.img_conv_group(
            hidden, conv_num_filter=filters, conv_act="relu", conv_with_batchnorm=True, pool_size=2, pool_stride=2
        )
    return fluid.layers.fc(hidden, size=10, act="softmax")


NETS = {"mlp": mlp, "conv": conv}


def train_program(net):
    """Return the loss and the accuracy."""
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    prediction = net()
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": fluid.layers.accuracy(prediction, label)}


def show(images, predicted, labels, shades=" .:-=+*#%@"):
    """Print digits side by side, with the predicted and the true digit below each."""
    for row in range(images.shape[2]):
        strokes = ("".join(shades[int(v * 9)] * 2 for v in image[0, row]) for image in images)
        print("  ".join(strokes))
    marks = (f"{p} (true {t})" if p == t else f"{p} (NOT {t})" for p, t in zip(predicted, labels, strict=True))
    print("  ".join(mark.center(16) for mark in marks), "\n")


def main(net="conv", num_epochs=12, path="digits.params"):
    """Train, test, save, load and predict; return the test accuracy and the share of the commonest digit."""
    train, test = load_data()
    train_reader = fluid.reader.arrays(train, batch_size=64, shuffle=True, seed=0)
    test_reader = fluid.reader.arrays(test, batch_size=64)

    trainer = fluid.Trainer(functools.partial(train_program, NETS[net]), optimizer=fluid.optimizer.Adam(2e-3))

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            result = trainer.test(test_reader)
            print(f"epoch {event.epoch + 1:2}: test loss {result['loss']:.4f}, test accuracy {result['accuracy']:.4f}")

    trainer.train(train_reader, num_epochs=num_epochs, event_handler=on_event)
    trainer.save_params(path)

    (scores,) = fluid.Inferencer(NETS[net], param_path=path).infer({"image": test["image"]})
    predicted = scores.argmax(axis=1)
    print(f"\nparameters saved to {path}, loaded again; some digits of the test part:\n")
    for part in (slice(0, 5), slice(5, 10)):
        show(test["image"][part], predicted[part], test["label"][part])
    right, count = int(np.sum(predicted == test["label"])), len(predicted)
    print(f"test accuracy {right / count:.4f} ({right} of {count})")
    return right / count, np.bincount(test["label"]).max() / count


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, default="conv")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        main(arguments.net, arguments.epochs, arguments.save or os.path.join(directory, "digits.params"))
