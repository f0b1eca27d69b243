"""Rows 1 to 7 of the requirements of 2017: feed and fetch operators, used as a user would use them."""

import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
import zipfile

import jax
import numpy as np
import pytest
from capabilities.processes import python
from line_by_numpy import assert_params, data, descend, guess_of, minibatches, train_program

import fluid
from fluid import layers

COLUMNS = data()
SGD = fluid.optimizer.SGD(0.1)


def trained(reader, epochs=1, program=train_program, **options):
    """Train a linear model on a reader; return its parameters before and after the training."""
    trainer = fluid.Trainer(program, SGD)
    before = dict(trainer.params)
    trainer.train(reader, epochs, progress=False, **options)
    return before, trainer.params


def test_row_01_feed_numpy_by_name_fetch_named_results():
    """Feed NumPy arrays by name, and fetch results by the requested names."""
    session = fluid.Session(train_program)
    w, b = (np.asarray(session.scope[name]) for name in ("guess.w_0", "guess.b_0"))
    guess = COLUMNS["x"] @ w + b

    found = session.run(train_program, COLUMNS, fetch=["loss", "guess", "guess.w_0", "y"])
    np.testing.assert_allclose(found["guess"], guess, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["loss"], ((guess - COLUMNS["y"]) ** 2).mean(), rtol=1e-5)
    np.testing.assert_array_equal(found["guess.w_0"], w)
    np.testing.assert_array_equal(found["y"], COLUMNS["y"])
    # The results are in the order of `fetch`.
    assert [np.asarray(value).shape for value in found] == [(), guess.shape, w.shape, guess.shape]

    lists = {name: column.astype("float64").tolist() for name, column in COLUMNS.items()}
    np.testing.assert_array_equal(session.run(train_program, lists)["guess"], found["guess"])
    with pytest.raises(KeyError, match="guess"):
        session.run(train_program, COLUMNS, fetch=["gues"])
    with pytest.raises(KeyError, match="'x'"):
        session.run(train_program, {"X": COLUMNS["x"], "y": COLUMNS["y"]})


def test_row_02_minibatches_are_rows():
    """Train on minibatches that are lists of rows; a row is a tuple of fields, so no caller needs to split columns."""

    def reader():
        for batch in minibatches(COLUMNS):
            yield list(zip(batch["x"], batch["y"], strict=True))

    before, after = trained(reader, epochs=2)
    assert_params(after, descend(before, minibatches(COLUMNS), 0.1, epochs=2)[0])
    one_number = [
        [(x, float(y[0])) for x, y in zip(batch["x"], batch["y"], strict=True)] for batch in minibatches(COLUMNS)
    ]
    assert_params(trained(one_number, epochs=2)[1], after)


@pytest.mark.parametrize(
    ("fields", "order"), [(("y", "x"), ["y", "x"]), (("id", "y", "none", "x"), {"x": 3, "y": 1})], ids=["list", "dict"]
)
def test_row_03_the_feed_map_is_stated_once(fields, order):
    """Check that `feed_order` assigns the fields of a row to feeds: by a list of names or a dict of column numbers."""
    rows = COLUMNS | {"id": np.arange(24), "none": [None] * 24}
    reader = fluid.batch([tuple(rows[field][i] for field in fields) for i in range(24)], 8)
    before, after = trained(reader, feed_order=order)
    assert_params(after, descend(before, minibatches(COLUMNS), 0.1)[0])

    session = fluid.Session(train_program)  # a custom loop accepts `feed_order`, too
    feeds = fluid.reader.prefetch(reader, session, feed_order=order)
    losses = [float(session.run(feed=feed)["loss"]) for feed in feeds]
    errors = [(guess_of(before, batch["x"]) - batch["y"]) for batch in minibatches(COLUMNS)]
    np.testing.assert_allclose(losses, [(error**2).mean() for error in errors], rtol=1e-4)


def test_row_04_data_knows_its_column():
    """Check that a feed reads the field of each data row that `layers.data(column=)` names.

    Without `column=`, the feeds read the fields in the order of their declarations.
    """

    def program():
        x, y = layers.data("x", shape=[3], column=2), layers.data("y", shape=[1], column=0)
        return layers.mean(layers.square_error_cost(layers.fc(x, size=1, name="guess"), y))

    rows = [(y, "a remark", x) for x, y in zip(COLUMNS["x"], COLUMNS["y"], strict=True)]
    before, after = trained(fluid.batch(rows, 8), program=program)
    expected = descend(before, minibatches(COLUMNS), 0.1)[0]
    assert_params(after, expected)
    assert_params(trained(fluid.batch(list(zip(COLUMNS["x"], COLUMNS["y"], strict=True)), 8))[1], expected)


def test_row_05_feeds_arrive_over_the_network():
    """Check that minibatches may come from a socket, without a change of the program."""
    here, there = socket.socketpair()

    def send():
        with there, there.makefile("w") as stream:
            for batch in minibatches(COLUMNS):
                stream.write(json.dumps({name: column.tolist() for name, column in batch.items()}) + "\n")
                stream.flush()

    sender = threading.Thread(target=send)
    sender.start()
    with here, here.makefile() as stream:
        before, after = trained(map(json.loads, stream))
    sender.join()
    assert_params(after, descend(before, minibatches(COLUMNS), 0.1)[0])


def test_row_06_a_distributed_file_system():
    """Read rows from files in a distributed store, divided among processes without loss."""
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    for number, batch in enumerate(minibatches(COLUMNS)):
        with store.open(f"/capabilities/{number}.npz", "wb") as file:
            np.savez(file, **batch)
    rows = fluid.reader.files("memory://capabilities/*.npz")
    before, after = trained(fluid.batch(rows, 8))
    assert_params(after, descend(before, minibatches(COLUMNS), 0.1)[0])

    shuffled = fluid.reader.files("memory://capabilities/*.npz", shuffle=True, seed=1)
    shares = [[float(row["y"][0]) for row in fluid.reader.shard(shuffled, 3, i)()] for i in range(3)]
    assert [len(share) for share in shares] == [8, 8, 8]
    assert sorted(sum(shares, [])) == sorted(COLUMNS["y"].ravel().tolist())
    assert sum(shares, []) != COLUMNS["y"].ravel().tolist()


def test_row_07_compile_and_run_are_separate(tmp_path):
    """Check that the Python code of a program runs only for compilation, and that an exported model needs no code."""
    runs = []

    def program():
        runs.append(1)
        return train_program()

    trainer = fluid.Trainer(program, SGD)
    trainer.train(minibatches(COLUMNS), num_epochs=20, progress=False)
    compiled = len(runs)  # also the runs that show how the values of several minibatches become one
    trainer.train(minibatches(COLUMNS), num_epochs=20, progress=False)
    assert len(runs) == compiled

    trainer.save_inference_model(tmp_path / "line.fluid", fetch=["guess"], platforms=["cpu"])
    with zipfile.ZipFile(tmp_path / "line.fluid") as archive:
        archive.extract("standalone.py", tmp_path)
        blobs = [archive.read(name) for name in archive.namelist() if name.startswith("functions/")]
    assert all("stablehlo" in jax.export.deserialize(bytearray(blob)).mlir_module() for blob in blobs)
    np.save(tmp_path / "x.npy", COLUMNS["x"])
    script = """
import sys
import numpy as np
sys.modules["fluid"] = None  # cannot be imported
import standalone
(guess,) = standalone.load("line.fluid")({"x": np.load("x.npy")})
np.save("guess.npy", guess)
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True)
    expected = guess_of(trainer.params, COLUMNS["x"])
    np.testing.assert_allclose(np.load(pathlib.Path(tmp_path, "guess.npy")), expected, rtol=1e-5, atol=1e-6)


def test_row_07_a_training_step_without_its_python(tmp_path):
    """Export a training step as a function from arrays to arrays; it runs with only JAX and NumPy."""
    trainer = fluid.Trainer(train_program, SGD)
    before = dict(trainer.params)
    trainer.save_training_step(tmp_path / "line.step", platforms=["cpu"])
    with zipfile.ZipFile(tmp_path / "line.step") as archive:
        archive.extract("standalone.py", tmp_path)
    np.savez(tmp_path / "columns.npz", **COLUMNS)
    python(
        """
        import sys
        sys.modules["fluid"] = None  # cannot be imported
        sys.path.insert(0, ".")
        import jax
        import numpy as np
        import standalone
        columns = dict(np.load("columns.npz"))
        step, losses = standalone.load("line.step"), []
        for i in (0, 8, 16):
            results = step({name: columns[name][i : i + 8] for name in ("x", "y")})
            losses.append(float(jax.tree.leaves(results)[0]))
        arrays = {name: np.asarray(step.arrays[name]) for name in ("guess.w_0", "guess.b_0")}
        np.savez("after.npz", losses=losses, **arrays)
        """,
        tmp_path,
        fresh=True,
    )
    after, losses = descend(before, minibatches(COLUMNS), 0.1)
    with np.load(tmp_path / "after.npz") as found:
        assert_params(found, after)
        np.testing.assert_allclose(found["losses"], losses, rtol=1e-4)
