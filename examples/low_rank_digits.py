"""Fine-tune a net with low-rank adapters (Hu et al., 2021): after the digits 0 to 4, the net learns 5 to 9.

Training updates only the adapters and the new head. Then the adapters are merged into the matrices of the net, which
runs without adapters. Run

    python examples/low_rank_digits.py
"""

import numpy as np
from sklearn.datasets import load_digits

import fluid
from fluid import layers


def net(param_attr=None):
    """Return the probabilities of five digits; `param_attr` sets the weights of the two hidden layers."""
    x = layers.data("image", shape=[64])
    for name in ("first", "second"):
        x = layers.fc(x, size=128, act="relu", param_attr=param_attr, name=name)
    return layers.fc(x, size=5, act="softmax", name="head")


def train_program(trained, param_attr=None):
    """Return loss and accuracy; `trained` selects the parameters to train."""
    label = layers.data("label", shape=[1], dtype="int64")
    guess = net(param_attr)
    loss = layers.mean(layers.cross_entropy(guess, label))
    fluid.optimizer.Adam(3e-3).minimize(loss, parameter_list=trained)
    return {"loss": loss, "accuracy": layers.accuracy(guess, label)}


def readers(digits, first):
    """Return a reader of training images and a reader of test images, with the five digits from `first` on."""
    chosen = (digits.target >= first) & (digits.target < first + 5)
    images, labels = (digits.data[chosen] / 16).astype("float32"), digits.target[chosen] - first
    train, test = ({"image": images[i::3], "label": labels[i::3]} for i in (0, 1))
    return fluid.reader.arrays(train, batch_size=32, shuffle=True), fluid.reader.arrays(test, batch_size=256)


def main(num_epochs=20, rank=4):
    """Train, fine-tune and merge; return the accuracy of the fine-tuned, of the merged and of the unchanged net."""
    digits = load_digits()
    base = fluid.Trainer(lambda: train_program(["*"]))
    base.train(readers(digits, 0)[0], num_epochs=num_epochs)

    train, test = readers(digits, 5)
    adapters = fluid.LowRankParamAttr(rank)
    tuned = fluid.Trainer(lambda: train_program(["*.low_rank_?", "head.*"], adapters))
    tuned.load_params(base.params, skip=["*.low_rank_*"])
    tuned.train(train, num_epochs=num_epochs)

    images, labels = (np.concatenate([batch[name] for batch in test()]) for name in ("image", "label"))
    reached = {"tuned": float(tuned.test(test)["accuracy"])}
    for name, params in (("merged", fluid.io.merge_low_rank(tuned.params)), ("unchanged", base.params)):
        (guess,) = fluid.Inferencer(net, params=params).infer({"image": images})
        reached[name] = float((guess.argmax(1) == labels).mean())
    trained = sum(tuned.params[name].size for name in tuned.program.minimizes[0].parameters)
    print(f"{trained:,} numbers trained of {sum(array.size for array in base.params.values()):,} in the plain net")
    print("test accuracy: " + ", ".join(f"{name} {accuracy:.3f}" for name, accuracy in reached.items()))
    return reached


if __name__ == "__main__":
    main()
