"""A notebook about training: it is interrupted, continues, and creates two trainers. Tests run and render it.

`python tests/helpers/training_notebook.py shown.html` writes the rendered page, for
`chromium --headless --screenshot=shown.png --window-size=1200,3000 shown.html`.
"""

import html.parser
import sys

import nbclient
import nbconvert
import nbformat

# A cell that begins with this line is expected to end with an error.
FAILS = "# fails"

CELLS = [
    """\
import os, signal
import numpy as np
from sklearn.datasets import load_digits
import fluid

digits = load_digits()
images, labels = (digits.images / 16).astype("float32").reshape(-1, 64), digits.target
train_reader = fluid.reader.arrays({"image": images[:1437], "label": labels[:1437]}, batch_size=32, shuffle=True)
test_reader = fluid.reader.arrays({"image": images[1437:], "label": labels[1437:]}, batch_size=360)


def program():
    image = fluid.layers.data("image", shape=[64])
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    guess = fluid.layers.fc(fluid.layers.fc(image, size=64, act="relu"), size=10, act="softmax")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(guess, label))
    return {"loss": loss, "accuracy": fluid.layers.accuracy(guess, label)}


def interrupt(event):
    \"\"\"What the stop button does, in the middle of the fourth epoch.\"\"\"
    if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (3, 20):
        os.kill(os.getpid(), signal.SIGINT)""",
    f"""\
{FAILS}
trainer = fluid.Trainer(program, fluid.optimizer.Adam(1e-3))
trainer.train(train_reader, 25, interrupt, test_reader=test_reader)""",
    """\
history = trainer.train(train_reader, 25, test_reader=test_reader)""",
    """\
history.plot()""",
    """\
slow = fluid.Trainer(program, fluid.optimizer.SGD(0.01))
fast = fluid.Trainer(program, fluid.optimizer.SGD(0.3))
histories = [t.train(train_reader, 3, test_reader=test_reader) for t in (slow, fast)]""",
    """\
trainer""",
]


def run(times=2):
    """Run all cells of the notebook `times` times in one kernel, from top to bottom.

    Returns:
      The notebook, with the outputs of the last run.
    """
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS])
    for cell in notebook.cells:
        cell.metadata["tags"] = ["raises-exception"] if cell.source.startswith(FAILS) else []
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    with client.setup_kernel():
        for _ in range(times):
            for index, cell in enumerate(notebook.cells):
                client.execute_cell(cell, index)
    return notebook


def rendered(notebook):
    """Convert the notebook to an HTML page."""
    page, _ = nbconvert.HTMLExporter().from_notebook_node(notebook)
    return page


class Table(html.parser.HTMLParser):
    """A parser of an HTML page: `rows` has the table cells row by row, `text` has all other text."""

    def __init__(self, page):
        super().__init__()
        self.rows, self.text, self._cell = [], [], False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        self._cell = self._cell and tag not in ("td", "th")

    def handle_data(self, data):
        if self._cell:
            self.rows[-1][-1] += data
        else:
            self.text.append(data)


if __name__ == "__main__":
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        file.write(rendered(run()))
