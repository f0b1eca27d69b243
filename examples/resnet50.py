"""ResNet-50 (He et al., 2015) with the weights of torchvision.

`torch.save(torchvision.models.resnet50().state_dict(), path)` writes the file, for example resnet50-11ad3fa6.pth.
Without a file, the weights are random. The images are generated. Run

    python examples/resnet50.py
    python examples/resnet50.py --weights resnet50-11ad3fa6.pth
"""

import argparse

import numpy as np

import fluid
from fluid import layers

# The names of arrays in BatchNorm2d of PyTorch, and in batch_norm of fluid.
NORM = {"weight": "w_0", "bias": "b_0", "running_mean": "w_1", "running_var": "w_2"}
TABLE = {
    "conv1.weight": "conv1.w_0",
    "layer{n}.{i}.conv{k}.weight": "layer{n}_{i}/conv{k}.w_0",
    "layer{n}.{i}.downsample.0.weight": "layer{n}_{i}/downsample.w_0",
    "fc.weight": ("fc.w_0", "transpose"),
    "fc.bias": "fc.b_0",
}
for there, here in NORM.items():
    TABLE[f"bn1.{there}"] = f"bn1.{here}"
    TABLE[f"layer{{n}}.{{i}}.bn{{k}}.{there}"] = f"layer{{n}}_{{i}}/bn{{k}}.{here}"
    TABLE[f"layer{{n}}.{{i}}.downsample.1.{there}"] = f"layer{{n}}_{{i}}/downsample_bn.{here}"
IGNORE = ["*.num_batches_tracked"]


def conv_bn(x, filters, size, name, norm, stride=1, act=None):
    """Apply a convolution and batch normalisation; the image keeps its size if the stride is 1."""
    x = layers.conv2d(x, filters, size, stride, padding=size // 2, bias_attr=False, name=name)
    return layers.batch_norm(x, act=act, name=norm)


def bottleneck(x, filters, stride):
    """Add the result of three convolutions to `x`; the second convolution has the stride, as in torchvision."""
    y = conv_bn(x, filters, 1, "conv1", "bn1", act="relu")
    y = conv_bn(y, filters, 3, "conv2", "bn2", stride, act="relu")
    y = conv_bn(y, 4 * filters, 1, "conv3", "bn3")
    if x.shape[1] != 4 * filters or stride != 1:
        x = conv_bn(x, 4 * filters, 1, "downsample", "downsample_bn", stride)
    return layers.relu(x + y)


def resnet50(image, blocks=(3, 4, 6, 3), classes=1000):
    """Return the scores of the classes, `[batch, classes]`, for images `[batch, 3, height, width]`."""
    x = conv_bn(image, 64, 7, "conv1", "bn1", stride=2, act="relu")
    x = layers.pool2d(x, pool_size=3, pool_type="max", pool_stride=2, pool_padding=1)
    for n, count in enumerate(blocks):
        for i in range(count):
            with fluid.name_scope(f"layer{n + 1}_{i}"):
                x = bottleneck(x, 64 * 2**n, stride=2 if n and not i else 1)
    return layers.fc(layers.reduce_mean(x, dim=[2, 3]), size=classes, name="fc")


def scores_program(size=224, **sizes):
    """Return the scores of the classes for the images in the feed "image"."""
    return resnet50(layers.data("image", shape=[3, size, size]), **sizes)


def main(path=None, size=224, count=2, **sizes):
    """Load the weights, classify generated images, and return the scores of the classes and the Session."""
    session = fluid.Session(lambda: scores_program(size, **sizes))
    if path:
        print(fluid.io.load_state_dict(session, path, TABLE, ignore=IGNORE))
    images = np.random.default_rng(0).normal(size=(count, 3, size, size)).astype("float32")
    (scores,) = session.run(feed={"image": images})
    for row in scores:
        print("most probable classes:", *np.argsort(-row)[:5])
    return scores, session


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", metavar="PATH", help="resnet50-11ad3fa6.pth or another file of torch.save")
    main(parser.parse_args().weights)
