"""Classify small colour images in ten classes with VGG-16 and batch normalisation, or with ResNet-32.

If `--data` names a directory with CIFAR-10 in its published binary format, the example trains on CIFAR-10. Otherwise
the example trains on generated coloured shapes. By default the nets are narrow, so a run takes about a minute. Run

    python examples/image_classification.py --net resnet
    python examples/image_classification.py --net vgg --data cifar-10-batches-bin --width 1 --epochs 100
"""

import argparse
import functools
import os
import pathlib
import tempfile

import numpy as np

import fluid

CIFAR = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SHAPES = tuple(
    f"{color} {shape}" for shape in ("disc", "ring", "cross", "triangle", "checks") for color in ("red", "blue")
)
RECORD, BATCH = 1 + 3 * 32 * 32, 32
BLOCKS = 5  # blocks in each of three stages; the ResNet has 6 * BLOCKS + 2 layers


def read_cifar10(directory):
    """Read images `[n, 3, 32, 32]` from 0 to 1 and labels `[n]`, for training and for testing."""

    def read(name):
        path = pathlib.Path(directory) / name
        if not path.is_file():
            raise FileNotFoundError(f"no {path}; --data takes the directory of the binary version of CIFAR-10")
        content = np.fromfile(path, dtype=np.uint8)
        if not content.size or content.size % RECORD:
            raise ValueError(f"{path} has {content.size} bytes; expected some records of {RECORD}: is it complete?")
        records = content.reshape(-1, RECORD)
        if (wrong := records[:, 0].max()) > 9:
            raise ValueError(f"{path} has a label {wrong}; expected 0 to 9: is it CIFAR-10 in its binary version?")
        return records

    train = np.concatenate([read(f"data_batch_{number}.bin") for number in range(1, 6)])
    return [
        {"image": part[:, 1:].reshape(-1, 3, 32, 32).astype("float32") / 255, "label": part[:, 0].astype("int64")}
        for part in (train, read("test_batch.bin"))
    ]


def generate(count, seed):
    """Generate noisy images of a red or blue shape of random position and size; all classes are equally frequent."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(count) % 10)
    images = np.empty((count, 3, 32, 32), "float32")
    for image, label in zip(images, labels, strict=True):
        radius, center = random.uniform(7, 11), random.uniform(13, 19, size=2)
        y, x = (np.mgrid[:32, :32] - center[:, None, None]) / radius
        distance, square = np.hypot(x, y), np.maximum(abs(x), abs(y))
        inside = (
            distance < 1,
            abs(distance - 0.8) < 0.25,
            (np.minimum(abs(x), abs(y)) < 0.25) & (square < 1),
            (abs(x) < (y + 1) / 2) & (y < 1),
            (square < 1) & ((np.floor(2 * x) + np.floor(2 * y)) % 2 == 0),
        )[label // 2]
        ink = random.uniform((0.6, 0.2, 0.0), (1.0, 0.6, 0.4))[:: 1 if label % 2 == 0 else -1]
        ground = random.uniform(0.0, 0.4, size=3)
        image[:] = np.where(inside, ink[:, None, None], ground[:, None, None])
    return {"image": images + random.normal(0, 0.15, images.shape).astype("float32"), "label": labels}


def vgg(width):
    """Return probabilities from VGG-16 (Simonyan and Zisserman, 2014): 13 convolutions in 5 groups, 2 hidden layers."""
    hidden = fluid.layers.data(name="image", shape=[3, 32, 32])
    for filters, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        hidden = fluid.nets.img_conv_group(
            hidden,
            conv_num_filter=[max(4, int(filters * width))] * count,
            conv_act="relu",
            conv_with_batchnorm=True,
            conv_batchnorm_drop_rate=[0.3 * min(width, 1)] * (count - 1) + [0.0],  # narrow nets need less dropout
            pool_size=2,
            pool_stride=2,
        )
    size = max(32, int(512 * width))
    hidden = fluid.layers.dropout(hidden, dropout_prob=0.5 * min(width, 1))
    hidden = fluid.layers.batch_norm(fluid.layers.fc(hidden, size=size), act="relu")
    hidden = fluid.layers.fc(hidden, size=size, act="relu")
    return fluid.layers.fc(hidden, size=10, act="softmax")


def resnet(width):
    """Return probabilities from ResNet-32 (He et al., 2015): 3 stages of blocks of 2 convolutions and a shortcut."""

    def conv_bn(x, filters, size, stride, act="relu"):
        x = fluid.layers.conv2d(x, filters, size, stride, padding=(size - 1) // 2, bias_attr=False)
        return fluid.layers.batch_norm(x, act=act)

    image = fluid.layers.data(name="image", shape=[3, 32, 32])
    hidden = conv_bn(image, max(4, int(16 * width)), 3, 1)
    for stage in range(3):
        filters = max(4, int(16 * width)) * 2**stage
        for block in range(BLOCKS):
            stride = 2 if stage and not block else 1
            around = conv_bn(hidden, filters, 1, stride, act=None) if stride > 1 else hidden
            within = conv_bn(conv_bn(hidden, filters, 3, stride), filters, 3, 1, act=None)
            hidden = fluid.layers.relu(within + around)
    hidden = fluid.layers.pool2d(hidden, pool_type="avg", global_pooling=True)
    return fluid.layers.fc(hidden, size=10, act="softmax")


NETS = {"vgg": vgg, "resnet": resnet}
NARROW = {"vgg": 0.125, "resnet": 0.5}


def train_program(inference_program):
    """Return the loss and the accuracy."""
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    prediction = inference_program()
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    return {"loss": loss, "accuracy": fluid.layers.accuracy(prediction, label)}


def main(net="resnet", data=None, width=None, num_epochs=5, count=2000, rate=0.003, path="image.params"):
    """Train, test, save, load and predict; return the test accuracy and the share of the commonest class."""
    if data:
        (train, test), names = read_cifar10(data), CIFAR
        print(f"CIFAR-10 from {data}: {len(train['label'])} images, {len(test['label'])} to test")
    else:
        train, test, names = generate(count, seed=0), generate(count // 4, seed=1), SHAPES
        print(f"generated shapes (not CIFAR-10): {count} images, {count // 4} to test")
    mean, deviation = (f(train["image"], axis=(0, 2, 3), keepdims=True) for f in (np.mean, np.std))
    for part in (train, test):
        part["image"] = (part["image"] - mean[0]) / deviation[0]
    train_reader = fluid.reader.arrays(train, batch_size=BATCH, shuffle=True, seed=0)
    test_reader = fluid.reader.arrays(test, batch_size=128)

    steps = num_epochs * -(-len(train["label"]) // BATCH)
    schedule = fluid.layers.piecewise_decay([steps * 6 // 10, steps * 9 // 10], [rate, rate / 10, rate / 100])
    optimizer = fluid.optimizer.Adam(learning_rate=schedule)
    width = NARROW[net] if width is None else width
    inference_program = functools.partial(NETS[net], width)
    trainer = fluid.Trainer(functools.partial(train_program, inference_program), optimizer)
    sizes = [int(np.prod(spec.shape)) for spec in trainer.program.parameters.values()]
    print(f"{net}, width {width:g}: {sum(sizes):,} numbers in {len(sizes)} parameters")

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            result = trainer.test(test_reader)
            print(f"epoch {event.epoch + 1:2}: test loss {result['loss']:.4f}, test accuracy {result['accuracy']:.4f}")

    trainer.train(train_reader, num_epochs=num_epochs, event_handler=on_event)
    trainer.save_params(path)

    inferencer = fluid.Inferencer(inference_program, param_path=path)
    scores = np.concatenate([inferencer.infer({"image": batch["image"]})[0] for batch in test_reader])
    predicted, labels = scores.argmax(axis=1), test["label"]
    print(f"\nparameters saved to {path}, loaded again; of the test part:")
    for label, name in enumerate(names):
        of_class = predicted[labels == label]
        if len(of_class):
            found = np.bincount(of_class, minlength=10)
            others = ", ".join(f"{names[i]} {found[i]}" for i in np.argsort(-found) if found[i] and i != label)
            print(f"  {name:<13} {found[label]:4} of {len(of_class)}{'; taken for ' if others else ''}{others}")
    right = float(np.mean(predicted == labels))
    print(f"test accuracy {right:.4f}")
    return right, np.bincount(labels).max() / len(labels)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", choices=NETS, default="resnet")
    parser.add_argument("--data", metavar="DIR", help="with data_batch_1.bin ... data_batch_5.bin and test_batch.bin")
    parser.add_argument("--width", type=float, help="factor of the number of filters, 1 for the real net")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save = arguments.save or os.path.join(folder, "image.params")
        main(arguments.net, arguments.data, arguments.width, arguments.epochs, path=save)
