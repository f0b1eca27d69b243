"""Detect rectangles and ellipses in images with SSD (Liu et al., 2016).

The images are generated: one to four shapes of random position, size and brightness under noise, which may overlap. Run

    python examples/detect_shapes.py
"""

import argparse
import os
import tempfile

import numpy as np

import fluid

NAMES = ("background", "rectangle", "ellipse")
SIZE = 48  # the width and the height of an image, in pixels


def generate(count, seed):
    """Generate rows `(image [1, 48, 48], boxes [n, 4] in fractions of the image, labels [n, 1])`."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        image = np.zeros((SIZE, SIZE), "float32")
        shapes = random.integers(1, 5)
        boxes, labels = np.zeros((shapes, 4), "float32"), random.integers(1, 3, (shapes, 1))
        for box, label in zip(boxes, labels[:, 0], strict=True):
            width, height = random.integers(10, 25, 2)
            left, top = random.integers(0, SIZE - width + 1), random.integers(0, SIZE - height + 1)
            y, x = np.mgrid[:SIZE, :SIZE] + 0.5
            across, down = (x - left) / width * 2 - 1, (y - top) / height * 2 - 1
            inside = np.maximum(abs(across), abs(down)) < 1 if label == 1 else np.hypot(across, down) < 1
            image[inside] = random.uniform(0.5, 1.0)
            box[:] = np.array([left, top, left + width, top + height]) / SIZE
        rows.append(((image + random.normal(0, 0.1, image.shape))[None].astype("float32"), boxes, labels))
    return rows


def predicted():
    """Return the predictions for all prior boxes (offsets and logits of classes), the boxes, and their variances."""
    image = fluid.layers.data(name="image", shape=[1, SIZE, SIZE])
    hidden, maps = image, []
    for filters in (16, 32, 64):
        for stride in (1, 2):
            hidden = fluid.layers.conv2d(hidden, filters, filter_size=3, stride=stride, padding=1, bias_attr=False)
            hidden = fluid.layers.batch_norm(hidden, act="relu")
        maps.append(hidden)
    return fluid.layers.multi_box_head(
        maps[1:], image, base_size=SIZE, num_classes=len(NAMES), aspect_ratios=[[1.6], [1.6]],
        min_sizes=[11.0, 18.0], max_sizes=[16.0, 24.0], kernel_size=3, pad=1,
    )  # fmt: skip


def train_program():
    """Return the loss; the metric in `main` reads the detections by their name, "found"."""
    offsets, logits, prior, variances = predicted()
    boxes = fluid.layers.data(name="boxes", shape=[4], lod_level=1)
    labels = fluid.layers.data(name="labels", shape=[1], dtype="int64", lod_level=1)
    loss = fluid.layers.ssd_loss(offsets, logits, boxes, labels, prior, variances)
    fluid.layers.detection_output(offsets, logits, prior, variances, nms_threshold=0.45, keep_top_k=20, name="found")
    # A test returns the mean of this loss over all minibatches.
    return fluid.layers.metric(fluid.layers.reduce_sum(loss), reduce="mean")


def inference_program():
    """Return the detections in each image: rows of label, probability and box."""
    return fluid.layers.detection_output(*predicted(), nms_threshold=0.45, keep_top_k=20, score_threshold=0.4)


def guessing(train, test):
    """Compute the mean average precision of a simple guess: the objects of a random training image."""
    metric, random = fluid.metrics.DetectionMAP(class_num=len(NAMES)), np.random.default_rng(0)
    others = [train[i] for i in random.integers(0, len(train), len(test))]
    found = [
        np.concatenate([labels, random.uniform(size=(len(labels), 1)), boxes], axis=1) for _, boxes, labels in others
    ]
    metric.update(found, [labels for _, _, labels in test], [boxes for _, boxes, _ in test])
    return metric.eval()


def show(image, found, shades=" .:-=+*#%@"):
    """Print every second row of an image with the corners of the detected boxes, and then the detections."""
    picture = [[shades[int(np.clip(v, 0, 1) * 9)] for v in line] for line in image[0, ::2]]
    for _, _, *box in found:
        left, top, right, bottom = (int(np.clip(v * SIZE, 0, SIZE - 1)) for v in box)
        for row, column in ((top, left), (top, right), (bottom, left), (bottom, right)):
            picture[row // 2][column] = "O"
    for line in picture:
        print("    " + "".join(line).rstrip())
    for label, chance, *box in found:
        left, top, right, bottom = (round(float(v * SIZE)) for v in box)
        print(f"    {NAMES[int(label)]}, {chance:.0%}: {left}, {top} to {right}, {bottom}")
    print()


def main(num_epochs=8, count=2000, path="shapes.params"):
    """Train, test, save, load and detect; return the mean average precision of the net and of guessing."""
    train, test = generate(count, seed=0), generate(300, seed=1)
    print(f"{len(train)} generated images to learn from, {len(test)} to test")
    by_guessing = guessing(train, test)
    steps = num_epochs * -(-len(train) // 32)
    rate = fluid.layers.cosine_decay(3e-3, step_each_epoch=1, epochs=steps)
    trainer = fluid.Trainer(train_program, fluid.optimizer.Adam(rate))
    reader = fluid.reader.batch(fluid.reader.shuffle(train, buf_size=len(train)), batch_size=32)
    found = fluid.metrics.DetectionMAP(class_num=len(NAMES)).of(input="found.tmp_0", gt_label="labels", gt_box="boxes")

    def test_now():
        return trainer.test(fluid.reader.batch(test, batch_size=100), metrics={"map": found})["map"]

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            print(f"epoch {event.epoch + 1:2}: mean average precision {test_now():.3f} in the test images")

    trainer.train(reader, num_epochs=num_epochs, event_handler=on_event)
    reached = test_now()
    trainer.save_params(path)

    inferencer = fluid.Inferencer(inference_program, param_path=path)
    (shapes,) = inferencer.infer({"image": np.stack([image for image, _, _ in test[:3]])})
    print(f"\nparameters saved to {path}, loaded again; some images of the test part:\n")
    for (image, _, _), rows in zip(test[:3], shapes.rows(), strict=True):
        show(image, rows)
    print(f"mean average precision {reached:.3f}; guessing the objects of another image reaches {by_guessing:.3f}")
    return reached, by_guessing


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--save", metavar="PATH", help="where to keep the parameters (a temporary place by default)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        main(arguments.epochs, arguments.images, arguments.save or os.path.join(folder, "shapes.params"))
