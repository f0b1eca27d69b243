"""A GAN that draws handwritten digits: two programs, each with its own optimizer, in one Trainer.

The generator draws an image of a requested digit from noise; the discriminator distinguishes generated images from the
real digits of scikit-learn. Training alternates between a step of the generator and a step of the discriminator.
`--loop session` trains in a custom loop over a Session, with bit-identical results. Run

    python examples/gan_digits.py
    python examples/gan_digits.py --loop session
    python examples/gan_digits.py --checkpoints here   # after a kill, run this again: the result has equal bits
"""

import argparse

import numpy as np
from matplotlib.image import imsave
from sklearn.datasets import load_digits

import fluid
from fluid import layers

NOISE, HIDDEN, PIXELS, DIGITS = 32, 192, 64, 10
# For each program, the parameters that its optimizer updates. By default, each optimizer would update the parameters
# of both programs.
MOVED = {"discriminator": "discriminator/*", "generator": "generator/*"}


def load_data():
    """Load images `[n, 64]` from -1 to 1 and their digits `[n, 1]`; 360 images are kept for `measure`."""
    data = load_digits()
    order = np.random.default_rng(0).permutation(len(data.target))
    images = (data.data[order] / 8 - 1).astype("float32")
    digits = data.target[order, None].astype("int64")
    return (images[:-360], digits[:-360]), (images[-360:], digits[-360:])


@fluid.shared(name="generator")
def draw(digit):
    """Draw images `[batch, 64]` of digits `[batch, 1]` from noise."""
    noise = layers.gaussian_random_batch_size_like(digit, shape=[-1, NOISE])
    hidden = layers.concat([noise, layers.one_hot(digit, DIGITS)], axis=1)
    for _ in range(2):
        hidden = layers.fc(hidden, size=HIDDEN, act="relu")
    return layers.fc(hidden, size=PIXELS, act="tanh")


@fluid.shared(name="discriminator")
def realness(image, digit):
    """Return logits `[batch, 1]` of the probability that images `[batch, 64]` are real images of the digits."""
    hidden = layers.concat([image, layers.one_hot(digit, DIGITS)], axis=1)
    for _ in range(2):
        hidden = layers.leaky_relu(layers.fc(hidden, size=HIDDEN), alpha=0.2)
        hidden = layers.dropout(hidden, 0.3, dropout_implementation="upscale_in_train")
    return layers.fc(hidden, size=1)


def surprise(logits, truth):
    """Return the mean cross-entropy of logits of `realness` against the constant target `truth`."""
    return layers.mean(layers.sigmoid_cross_entropy_with_logits(logits, layers.full_like(logits, truth)))


def discriminator():
    """Return the loss of the discriminator, and the share of drawn images that it classifies as drawn.

    The target for real images is 0.9 instead of 1, because this avoids overconfidence.
    """
    image, digit = layers.data("image", shape=[PIXELS]), layers.data("digit", shape=[1], dtype="int64")
    real, drawn = realness(image, digit), realness(draw(digit), digit)
    return {
        "loss": surprise(real, 0.9) + surprise(drawn, 0.0),
        "caught": layers.mean(layers.cast(drawn < 0.0, "float32")),
    }


def generator():
    """Return the loss of the generator, which is small if the discriminator classifies drawn images as real."""
    digit = layers.data("digit", shape=[1], dtype="int64")
    return {"loss": surprise(realness(draw(digit), digit), 1.0)}


def inference_program():
    """Return drawn images of the requested digits."""
    return {"image": draw(layers.data("digit", shape=[1], dtype="int64"))}


def optimizer():
    """Return a new optimizer, one for each program."""
    return fluid.optimizer.Adam(3e-4, beta1=0.5)


def train(reader, num_epochs, checkpoints=None, event_handler=None):
    """Train with a Trainer; return the parameters by name."""
    config = None if checkpoints is None else fluid.CheckpointConfig(checkpoints, step_interval=100)
    programs = [
        fluid.TrainingProgram(discriminator, optimizer(), parameter_list=MOVED["discriminator"]),
        fluid.TrainingProgram(generator, optimizer(), parameter_list=MOVED["generator"]),
    ]
    trainer = fluid.Trainer(programs, schedule="alternate", seed=1, checkpoint_config=config)
    trainer.train(reader, num_epochs, event_handler=event_handler)
    return trainer.params


def train_by_hand(reader, num_epochs):
    """Train in a custom loop over a Session, with the steps of `train`; return the parameters by name."""

    def discriminate():
        outputs = discriminator()
        optimizer().minimize(outputs["loss"], parameter_list=MOVED["discriminator"])
        return outputs

    def deceive():
        outputs = generator()
        optimizer().minimize(outputs["loss"], parameter_list=MOVED["generator"])
        return outputs

    session = fluid.Session(discriminate, deceive, seed=1)
    step = 0
    for _ in range(num_epochs):
        for batch in reader():
            if step % 2 == 0:
                session.run(discriminate, batch)
            else:
                session.run(deceive, {"digit": batch["digit"]})
            step += 1
    return session.params()


def nearest(images, known, digits):
    """Return, for each image, the digit of the nearest known image and the distance to this known image."""
    distances = np.linalg.norm(images[:, None] - known[None], axis=2)
    return digits[distances.argmin(1), 0], distances.min(1)


def measure(images, asked, test):
    """Return the share of images whose nearest test image shows the requested digit, and the mean distance."""
    found, distances = nearest(images, *test)
    return float((found == asked).mean()), float(distances.mean())


def write_grid(path, images):
    """Write a PNG with ten rows of ten images; each image has a margin, and each pixel becomes 4 x 4 pixels."""
    framed = np.pad(images.reshape(DIGITS, 10, 8, 8), ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-1)
    rows = framed.transpose(0, 2, 1, 3).reshape(DIGITS * 10, 10 * 10)
    imsave(path, np.kron(rows, np.ones((4, 4))), cmap="gray", vmin=-1, vmax=1)


def main(num_epochs=200, loop="trainer", checkpoints=None, path="digits.png"):
    """Train, and draw a grid of digits; return the results of `measure` for drawn images, real images and noise."""
    train_data, test = load_data()
    columns = dict(zip(("image", "digit"), train_data, strict=True))
    reader = fluid.reader.arrays(columns, batch_size=64, shuffle=True, drop_last=True)
    params = train_by_hand(reader, num_epochs) if loop == "session" else train(reader, num_epochs, checkpoints)

    asked = np.repeat(np.arange(DIGITS), 10)
    inferencer = fluid.Inferencer(inference_program, params={n: v for n, v in params.items() if n.startswith("gen")})
    drawn = np.asarray(inferencer.infer({"digit": asked[:, None]})["image"])
    write_grid(path, drawn)
    noise = np.random.default_rng(0).uniform(-1, 1, drawn.shape)
    images, digits = train_data
    measured = {
        "drawn by the GAN": measure(drawn, asked, test),
        "real": measure(images[:500], digits[:500, 0], test),
        "noise": measure(noise, asked, test),
    }
    print(f"{path} shows ten of each digit")
    print("                  nearest real image is of the digit   distance to it")
    for name, (share, distance) in measured.items():
        print(f"{name:17} {share:36.0%} {distance:16.2f}")
    return measured


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--epochs", type=int, default=200)
    parser.add_argument("--loop", choices=["trainer", "session"], default="trainer")
    parser.add_argument("--checkpoints", help="a folder: a run that was killed is continued")
    parser.add_argument("--path", default="digits.png", help="of the picture")
    given = parser.parse_args()
    main(given.epochs, given.loop, given.checkpoints, given.path)
