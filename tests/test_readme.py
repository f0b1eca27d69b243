"""Code of README.md, and the example program in fluid's design document: every block runs as printed."""

import pathlib
import re

import numpy as np
import pytest

README = pathlib.Path(__file__).resolve().parent.parent / "README.md"

DESIGN = """
import fluid

def inference_program():
    image = fluid.layers.data(name="image", shape=[1, 8, 8])
    hidden = fluid.nets.simple_img_conv_pool(image, num_filters=20, filter_size=3, pool_size=2, pool_stride=2, act="relu")
    hidden = fluid.layers.batch_norm(hidden)
    return fluid.layers.fc(hidden, size=10, act="softmax")

def train_program():
    label = fluid.layers.data(name="label", shape=[1], dtype="int64")
    prediction = inference_program()
    loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
    return loss, fluid.layers.accuracy(prediction, label)

trainer = fluid.Trainer(train_program, optimizer=fluid.optimizer.Adam(1e-3))

def on_event(event):
    if isinstance(event, fluid.EndEpochEvent):
        print(event.epoch, trainer.test(test_reader))
        trainer.save_params("digits.params")

trainer.train(train_reader, num_epochs=10, event_handler=on_event)
prediction, = fluid.Inferencer(inference_program, param_path="digits.params").infer({"image": images})
"""  # noqa: E501  (as printed)


def blocks(text):
    """Yield `(number of lines before the code, code)` for each python block of a Markdown text."""
    for found in re.finditer(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        yield text.count("\n", 0, found.start(1)), found.group(1)


def test_every_block_of_the_readme_runs(in_tmp):
    namespace = {"__name__": "__readme__"}
    found = list(blocks(README.read_text(encoding="utf-8")))
    assert found, "README.md shows no code"
    for line, code in found:
        # Add empty lines before the code, so that tracebacks have the line numbers of README.md.
        exec(compile("\n" * line + code, str(README), "exec"), namespace)


@pytest.mark.full
def test_the_design_runs_as_printed(digits, in_tmp, capsys):
    import fluid

    # The program passes no feed order, so the fields of a row are in the order in which the program declares them.
    rows = [(label, image) for image, label in digits.rows()]
    test_rows = [(label, image) for image, label in digits.rows("test")]
    namespace = {
        "__name__": "__design__",
        "train_reader": fluid.reader.batch(fluid.reader.shuffle(rows, 500), 64),
        "test_reader": fluid.reader.batch(test_rows, 64),
        "images": digits.test_images,
    }
    exec(compile(DESIGN, "DESIGN.md", "exec"), namespace)
    assert np.mean(np.argmax(namespace["prediction"], axis=1) == digits.test_labels) > 0.95
    assert len(capsys.readouterr().out.splitlines()) >= 10
