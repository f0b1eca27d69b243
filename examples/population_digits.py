"""Recognize digits with a population of 32 trainings: eight learning rates, with four seeds each.

A picture of the results shows the best learning rate, and the influence of the seed. The net is a small convolutional
net. The data are the 1797 digits of 8 x 8 pixels that come with scikit-learn. Run

    python examples/population_digits.py
    python examples/population_digits.py --epochs 30 --picture rates.png
"""

import argparse

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fluid

RATES = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3]
SEEDS = [0, 1, 2, 3]


def load_data():
    """Read images `[n, 1, 8, 8]` between 0 and 1 and labels `[n]`; one fifth of the images is kept for tests."""
    data = load_digits()
    images = (data.images[:, None] / 16).astype("float32")
    split = train_test_split(images, data.target, test_size=0.2, random_state=0, stratify=data.target)
    return {"image": split[0], "label": split[2]}, {"image": split[1], "label": split[3]}


def net():
    """Return the probabilities of ten digits, after a convolution, pooling and a normalisation."""
    image = fluid.layers.data(name="image", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(image, 20, 3, pool_size=2, pool_stride=2, act="relu")
    return fluid.layers.fc(fluid.layers.batch_norm(hidden), size=10, act="softmax")


def train_program():
    """Return the loss and the accuracy."""
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    prediction = net()
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": fluid.layers.accuracy(prediction, label)}


def draw(accuracies, members, path):
    """Draw the test error of each training, once for each epoch, and once by learning rate after the last epoch.

    Args:
      accuracies: `[epochs, members]`.
      members: the learning rate of each member.
      path: the path of the PNG.
    """
    wrong = 100 * (1 - np.asarray(accuracies))
    figure = Figure(figsize=(12, 4.2), dpi=110, layout="constrained")
    along, by_rate = figure.subplots(1, 2, sharey=True, width_ratios=(1.25, 1))
    colors = colormaps["viridis"](np.linspace(0, 0.92, len(RATES)))
    epochs = np.arange(1, len(wrong) + 1)
    for rate, color in zip(RATES, colors, strict=True):
        mine = wrong[:, np.isclose(members, rate)]
        lines = along.plot(epochs, mine, color=color, linewidth=1.2, alpha=0.9)
        lines[0].set_label(f"{rate:g}")
        by_rate.plot(np.full(mine.shape[1], rate), mine[-1], "o", color=color, markersize=5, alpha=0.9)
    means = [wrong[-1, np.isclose(members, rate)].mean() for rate in RATES]
    by_rate.plot(RATES, means, color="0.35", linewidth=1, zorder=0)
    along.set(
        xlabel="epoch", ylabel="wrong digits of the test part, %", yscale="log", title="each line is one training"
    )
    figure.legend(title="learning rate", frameon=False, loc="outside right center")
    by_rate.set(xlabel="learning rate of Adam", xscale="log", title="after the last epoch, by seed, and their mean")
    for axes in (along, by_rate):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        axes.yaxis.set_major_formatter("{x:g}")
    figure.savefig(path)


def main(num_epochs=15, path="population_digits.png"):
    """Train, test and draw; return the accuracy of the best member and of the ensemble."""
    train, test = load_data()
    members = [rate for rate in RATES for _ in SEEDS]
    population = fluid.Population(
        train_program, fluid.optimizer.Adam(), seeds=SEEDS * len(RATES), vary={"learning_rate": members}
    )
    train_reader = fluid.reader.arrays(train, batch_size=64, shuffle=True, seed=0)
    test_reader = fluid.reader.arrays(test, batch_size=360)
    history = population.train(train_reader, num_epochs=num_epochs, test_reader=test_reader)
    draw(history["test_accuracy"], members, path)

    last = history["test_accuracy"][-1].reshape(len(RATES), len(SEEDS))
    print("learning rate   test accuracy of each seed")
    for rate, of_rate in zip(RATES, last, strict=True):
        print(f"{rate:13g}   {'  '.join(f'{accuracy:.4f}' for accuracy in of_rate)}")
    best = population.best("accuracy", mode="max")
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(members[best]), params=population[best])
    alone = float(trainer.test(test_reader)["accuracy"])
    print(f"best: learning rate {members[best]:g}, seed {population.seeds[best]}, test accuracy {alone:.4f}")
    (mean,) = fluid.Inferencer(net, params=population).infer({"image": test["image"]})
    together = float(np.mean(mean.argmax(axis=1) == test["label"]))
    print(f"all {len(population)} together, by the mean of their probabilities: {together:.4f}; picture in {path}")
    return alone, together


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--picture", metavar="PATH", default="population_digits.png")
    arguments = parser.parse_args()
    main(arguments.epochs, arguments.picture)
