"""Exported models without Python: IREE compiles and runs them, and returns the answers of an Inferencer."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from export.programs import examples

import fluid
from fluid.__main__ import main

TOOLS = Path(sys.executable).parent
COMPILE = "--iree-input-type=stablehlo --iree-hal-target-device=local --iree-hal-local-target-device-backends=llvm-cpu"
EXAMPLES = ["fit_a_line", "recognize_digits.conv", "word2vec", "recommender_system", "understand_sentiment.lstm"]


@pytest.fixture
def iree():
    """Return a function that runs a tool of IREE; skip the test if IREE is not installed."""
    found = {name: shutil.which(name, path=TOOLS) or shutil.which(name) for name in ("iree-compile", "iree-run-module")}
    if missing := [name for name, path in found.items() if path is None]:
        pytest.skip(f"{missing[0]} is absent: pip install 'fluid-jax[iree]' (0.4 GB)")

    def run(name, *arguments):
        done = subprocess.run([found[name], *map(str, arguments)], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def answers(run, folder, feeds, count):
    """Run the compiled model of a folder on the arrays in `feeds`; return its `count` results."""
    inputs = []
    for number, array in enumerate(feeds):
        np.save(folder / f"in{number}.npy", array)
        inputs.append(f"--input=@{folder}/in{number}.npy")
    outputs = [f"--output=@{folder}/out{number}.npy" for number in range(count)]
    run("iree-run-module", f"--module={folder}/model.vmfb", "--function=main", *inputs, *outputs)
    return [np.load(folder / f"out{number}.npy") for number in range(count)]


@pytest.mark.full
@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", EXAMPLES)
def test_iree_answers_as_the_inferencer(iree, tmp_path, name, rows):
    (model,) = [m for m in examples() if m.id == f"examples/{name}"]
    path = tmp_path / "model.fluid"
    fluid.io.save_inference_model(path, model.function, model.params(), platforms=["cpu"])
    (entry,) = fluid.export.load(path).entries.values()
    names = dict.fromkeys(d for feed in entry.feeds for d in feed.dims if isinstance(d, str))
    sizes = {n: rows if n == "batch" else 8 for n in names}
    named = [f"{n}={size}" for n, size in sizes.items()]
    assert main(["convert", str(path), f"{tmp_path}/model.mlir", "--to", "stablehlo", "--sizes", *named]) == 0
    iree("iree-compile", *COMPILE.split(), tmp_path / "model.mlir", "-o", tmp_path / "model.vmfb")
    feed = {n: value for n, value in model.feed(rows, 8).items() if n in {f.name for f in entry.feeds}}
    inferencer = fluid.Inferencer(param_path=path)
    wanted = inferencer.infer(feed)
    given = []
    for spec in entry.feeds:
        if spec.lod_level == 0:
            given.append(np.asarray(feed[spec.name], spec.held))
            continue
        lengths = np.array([len(row) for row in feed[spec.name]], "int32")
        data = np.zeros((rows, 8, *spec.shape[1:]), spec.held)
        for to, row in zip(data, feed[spec.name], strict=True):
            to[: len(row)] = np.asarray(row).reshape(len(row), *spec.shape[1:])
        given += [data, lengths]
    found = answers(iree, tmp_path, given, len(wanted))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


def sampled():
    x = fluid.layers.data("x", shape=[3])
    return {"noise": fluid.layers.uniform_random_batch_size_like(x, shape=[-1, 3]) + x}


@pytest.fixture
def model(tmp_path, monkeypatch):
    """Export a model to the current folder; return the name of the file."""
    monkeypatch.chdir(tmp_path)
    fluid.io.save_inference_model("model.fluid", sampled, {}, platforms=["cpu"])
    return "model.fluid"


def test_equal_sizes_make_equal_stablehlo(model, capsys):
    for name in ("a", "b"):
        assert main(["convert", model, name, "--to", "stablehlo", "--sizes", "batch=4"]) == 0
    assert "bytes of StableHLO, with the parameters" in capsys.readouterr().out
    assert Path("a").read_bytes() == Path("b").read_bytes() == fluid.export.load(model).stablehlo({"batch": 4})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "stablehlo"], "expected a whole number from 1 on for each open size of the feeds, {'batch': 8}"),
        (["--to", "stablehlo", "--sizes", "batch=0"], "sizes={'batch': 0}: expected a whole number"),
        (["--to", "stablehlo", "--sizes", "rows=4"], "sizes={'rows': 4}: expected a whole number"),
        (["--to", "stablehlo", "--sizes", "batch"], "--sizes batch: expected a name and a number"),
        ([], "is an exported model already"),
    ],
)
def test_stablehlo_that_lacks_sizes_is_refused(model, arguments, message, capsys):
    assert main(["convert", model, "new", *arguments]) == 1
    assert message in capsys.readouterr().err
    assert not Path("new").exists()


def test_stablehlo_of_a_model_for_single_sizes(tmp_path):
    def program():
        x = fluid.layers.data("x", shape=[2], lod_level=1)
        return fluid.layers.reduce_sum(x.data * np.linspace(0, 1, x.shape[1], dtype="float32")[None, :, None], dim=1)

    fluid.io.save_inference_model(tmp_path / "m", program, {}, platforms=["cpu"], buckets=[4, 8])
    found = fluid.export.load(tmp_path / "m")
    assert found.stablehlo({"batch": 2, "steps0": 8})
    with pytest.raises(
        fluid.errors.ArgumentError, match="found batch=2, steps0=5, and .* exported for steps0=4; steps0"
    ):
        found.stablehlo({"batch": 2, "steps0": 5})
