"""Pairs of code blocks in docs/coming-from/: the block for another library and the block for fluid agree in numbers."""

import os
import pathlib
import re

import numpy as np
import pytest
from test_pages import DOCS

import fluid

os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras reads this variable during its import
# Torch reads this when it is imported. For small nets, threads take more time than they save.
os.environ.setdefault("OMP_NUM_THREADS", "1")

pytestmark = [pytest.mark.peers, pytest.mark.filterwarnings("default")]  # the other libraries warn about each other

FOLDER = DOCS / "coming-from"
# Each page compares fluid with another library. Its code blocks `py` are for the other library, and its code blocks
# `python` are for fluid. Blocks `python` before the first block `py` are run for fluid and for the other library.
BLOCKS = re.compile(r"^```(py|python)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)


def run(name):
    """Run the code blocks of a page that compares fluid with a library; return the variables of each of the two."""
    path = FOLDER / f"{name}.md"
    text = path.read_text(encoding="utf-8")
    peer, ours = {"__name__": "peer"}, {"__name__": "ours"}
    owner = None
    for block in BLOCKS.finditer(text):
        owner = "peer" if block[1] == "py" else "both" if owner in (None, "both") else "ours"
        code = compile("\n" * text.count("\n", 0, block.start(2)) + block[2], str(path), "exec")
        for namespace in {"peer": [peer], "ours": [ours], "both": [peer, ours]}[owner]:
            exec(code, namespace)
    return peer, ours


def count(params):
    return sum(np.size(array) for array in params.values())


def correct(scores, ours):
    """Return the fraction of the test digits that scores `[n, 10]` classify correctly."""
    return np.mean(np.asarray(scores).argmax(axis=1) == ours["labels"][ours["test"]])


def test_keras_page(in_tmp):
    keras, ours = run("keras")
    assert keras["model"].count_params() == count(ours["trainer"].params)
    assert len(ours["history"]["loss"]) <= 20 and len(keras["history"].history["loss"]) <= 20
    assert min(keras["accuracy"], ours["accuracy"]) > 0.85
    np.testing.assert_allclose(ours["rates"], keras["rates"], rtol=1e-5, atol=1e-9)
    assert correct(keras["scores"], ours) == pytest.approx(keras["accuracy"])
    assert correct(ours["scores"], ours) == pytest.approx(ours["accuracy"])
    columns = [pathlib.Path(name).read_text().split()[0].split(",") for name in ("k.csv", "fluid.csv")]
    assert {name.replace("val_", "test_") for name in columns[0]} <= set(columns[1])


def test_keras_page_custom_steps_move_by_the_rate(in_tmp):
    keras, ours = run("keras")
    images, labels = ours["images"][:64], ours["labels"][:64]
    model, trainer = keras["SignDescent"](keras["model"].inputs, keras["model"].outputs), ours["signs"]
    model.compile(keras["keras"].optimizers.SGD(1e-3), "sparse_categorical_crossentropy")
    before = [model.get_weights(), list(trainer.params.values())]
    model.fit(images, labels, batch_size=64, epochs=1, verbose=0)
    trainer.train(fluid.reader.arrays({"image": images, "label": labels}, batch_size=64))
    for old, new in zip(before, [model.get_weights(), list(trainer.params.values())], strict=True):
        moves = np.concatenate([np.abs(b - a).ravel() for a, b in zip(old, new, strict=True)])
        assert set(moves.round(5).tolist()) == {0.0, np.float32(1e-3).round(5)}


def test_lightning_page(in_tmp):
    lightning, ours = run("lightning")
    assert sum(p.numel() for p in lightning["model"].parameters()) == count(ours["trainer"].params)
    assert lightning["trainable"] == ours["trainable"] == 650
    assert min(lightning["accuracy"], ours["accuracy"]) > 0.85
    np.testing.assert_allclose(ours["rates"], lightning["rates"], rtol=1e-6)
    first, _, last = lightning["model"].net
    arrays = [value.detach().numpy().T for layer in (first, last) for value in (layer.weight, layer.bias)]
    ours["trainer"].load_params(dict(zip(["fc_0.w_0", "fc_0.b_0", "scores.w_0", "scores.b_0"], arrays, strict=True)))
    assert ours["trainer"].test(ours["val_loader"])["accuracy"] == pytest.approx(lightning["accuracy"])


def test_hugging_face_page(in_tmp):
    peer, ours = run("hugging-face")
    assert min(peer["accuracy"], ours["accuracy"]) > 0.95
    truth = np.array([row["labels"] for row in ours["eval_rows"]])
    for page in (peer, ours):
        assert np.mean(page["scores"].argmax(axis=1) == truth) == pytest.approx(page["accuracy"])
    scheduler = peer["trainer"].lr_scheduler.lr_lambdas[0]
    rates = [2e-3 * scheduler(step) for step in range(0, 301, 10)]
    np.testing.assert_allclose([float(ours["schedule"](step)) for step in range(0, 301, 10)], rates, rtol=1e-5)
    ids = [row["input_ids"] for row in ours["eval_rows"]]
    np.testing.assert_allclose(ours["again"].infer({"input_ids": ids})[0], ours["scores"], atol=1e-4)
    assert sum(p.numel() for p in peer["again"].parameters()) == sum(p.numel() for p in peer["model"].parameters())


def test_flax_page(in_tmp):
    flax, ours = run("flax")
    assert len(flax["names"]) == len(ours["names"]) == 4
    assert flax["trainable"] == ours["trainable"] == 650
    assert min(flax["accuracy"], ours["accuracy"]) > 0.85

    def arrays(model):
        parts = {"hidden": model.hidden, "scores": model.scores}
        weights = {f"{name}.w_0": layer.kernel[...] for name, layer in parts.items()}
        return weights | {f"{name}.b_0": layer.bias[...] for name, layer in parts.items()}

    # From the initial arrays of Flax, the program of fluid must train to the final arrays of Flax.
    start = arrays(flax["Classifier"](flax["nnx"].Rngs(0)))
    trainer = fluid.Trainer(ours["program"], ours["optax"].adam(3e-3), params=start)
    trainer.train(ours["reader"], num_epochs=10)
    for name, array in arrays(flax["model"]).items():
        np.testing.assert_allclose(trainer.params[name], array, rtol=1e-3, atol=1e-4)
