"""The command `fluid`: new, train, test, predict, doctor, completion, and properties of every command."""

import argparse
import contextlib
import csv
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.request

import forked
import numpy as np
import pytest

import fluid
from fluid.__main__ import main, parser
from fluid.checkpoint import save_arrays
from fluid.cli import common, doctor, train

ROOT = pathlib.Path(__file__).resolve().parents[2]
NET = """
import fluid


def inference_program():
    x = fluid.layers.data("x", shape=[2])
    return {"y": fluid.layers.fc(x, size=2, name="line")}


def train_program():
    y = inference_program()["y"]
    target = fluid.layers.data("target", shape=[2])
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(y, target))}


def minimizing_program():
    loss = train_program()["loss"]
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def words_program():
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    return {"vectors": fluid.layers.embedding(words, size=[10, 1])}
"""
TRAIN = ["train", "net.py:train_program", "--data", "train.csv"]


@pytest.fixture
def folder(in_tmp, monkeypatch):
    """Write programs, parameters, and data as CSV and Parquet to the current folder; yield the inputs `[40, 2]`."""
    import pyarrow as pa
    import pyarrow.parquet

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    pathlib.Path("net.py").write_text(NET)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 2)).round(3).astype("float32")
    target = x @ np.array([[1, 2], [3, 4]], "float32")
    np.savetxt(
        "train.csv", np.c_[x, target], delimiter=",", header="x_0,x_1,target_0,target_1", comments="", fmt="%.6f"
    )
    pa.parquet.write_table(pa.table({"id": range(40), "x": x.tolist(), "target": target.tolist()}), "train.parquet")
    params = {"line.w_0": np.array([[1, 2], [3, 4]], "float32"), "line.b_0": np.array([0.5, 0], "float32")}
    save_arrays("line.params", params)
    yield x
    sys.modules.pop("net", None)


def given(*arguments):
    """Parse a command line, and return the parsed arguments."""
    return parser().parse_args(arguments)


def read_csv(text):
    """Return the columns of a CSV text by name."""
    names, *rows = csv.reader(text.splitlines())
    return dict(zip(names, np.array(rows, "float32").T, strict=True))


# Tests of `fluid train`.


def test_train_equals_a_trainer_by_hand(folder, capsys):
    assert main([*TRAIN, "--epochs", "3", "--lr", "0.05", "--optimizer", "SGD", "--output", "net.params"]) == 0
    assert "loss" in capsys.readouterr().out

    import net

    data = np.loadtxt("train.csv", delimiter=",", skiprows=1).astype("float32")
    by_hand = fluid.Trainer(net.train_program, fluid.optimizer.SGD(0.05))
    rows = [{"x": row[:2], "target": row[2:]} for row in data]
    by_hand.train(fluid.reader.batch(rows, 64), num_epochs=3)  # one minibatch has all rows, so the order is irrelevant
    found, _ = fluid.io.load_arrays("net.params")
    for name, value in by_hand.params.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)


def test_train_prints_the_history_as_json(folder, capsys):
    arguments = [*TRAIN, "--epochs", "2", "--batch-size", "10", "--test-data", "train.parquet", "--json"]
    assert main(arguments) == 0
    history = json.loads(capsys.readouterr().out)
    assert history["epoch"] == [0, 1] and history["step"] == [4, 8]
    assert history["loss"][1] < history["loss"][0] and len(history["test_loss"]) == 2


def test_csv_and_parquet_train_equally(folder, capsys):
    losses = []
    for file in ("train.csv", "train.parquet"):
        assert main(["train", "net.py:train_program", "--data", file, "--batch-size", "7", "--json"]) == 0
        losses.append(json.loads(capsys.readouterr().out)["loss"])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-4)


def test_columns_of_no_feed_may_hold_anything(folder):
    head, *lines = pathlib.Path("train.csv").read_text().splitlines()
    rows = [f"{line},{'' if number else 3},text" for number, line in enumerate(lines)]
    pathlib.Path("wide.csv").write_text("\n".join([f"{head},age,city", *rows]) + "\n")
    assert main(["train", "net.py:train_program", "--data", "wide.csv"]) == 0


def test_training_continues_from_its_checkpoint(folder, capsys):
    for epochs in ("1", "3"):
        assert main([*TRAIN, "--batch-size", "10", "--epochs", epochs, "--checkpoint", "kept", "--output", "a"]) == 0
    assert main([*TRAIN, "--batch-size", "10", "--epochs", "3", "--output", "b"]) == 0
    capsys.readouterr()
    assert main(["inspect", "a", "b"]) == 0
    assert "0 of them other numbers" in capsys.readouterr().out


def test_a_program_that_minimizes_trains(folder, capsys):
    command = ["train", "net.py:minimizing_program", "--data", "train.csv"]
    assert main(command) == 0
    assert main([*command, "--lr", "0.1"]) == 1
    assert "leave out lr and optimizer.*" in capsys.readouterr().err


TOML = (
    'program = "net.py:train_program"\nlr = 0.5\nepochs = 2\nseed = 3\n[optimizer]\nname = "Momentum"\nmomentum = 0.8\n'
)


def test_settings_come_by_their_precedence(in_tmp):
    pathlib.Path("run.toml").write_text(TOML + '[column]\nlabel = "species"\n')
    assert tomllib.loads(TOML)["epochs"] == 2
    values = train.settings(
        given("train", "--config", "run.toml", "--set", "epochs=4", "--set", "seed=5", "--seed", "6")
    )
    assert values["batch_size"] == 64  # the default of `batch_size`
    assert values["lr"] == 0.5 and values["optimizer"] == "Momentum"  # the file run.toml sets these two values
    assert values["epochs"] == 4  # --set overrides run.toml
    assert values["seed"] == 6  # the option --seed overrides --set
    assert values["optimizer.momentum"] == 0.8 and values["column.label"] == "species"


def test_arguments_reach_the_optimizer():
    found = common.optimizer("Momentum", 0.5, {"momentum": 0.8, "use_nesterov": True})
    assert found == fluid.optimizer.Momentum(0.5, momentum=0.8, use_nesterov=True)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("epoch = 2", "run.toml: there is no setting 'epoch'. Did you mean 'epochs'?"),
        ("epochs = 2.5", "run.toml: epochs = 2.5: expected a whole number"),
        ("lr = true", "run.toml: lr = True: expected a number"),
        ("data = 3", "run.toml: data = 3: expected text"),
        ("epochs =", "expected a TOML file with lines like epochs = 10"),
    ],
)
def test_wrong_settings_of_a_file_are_named(text, why, folder, capsys):
    pathlib.Path("run.toml").write_text(text)
    assert main([*TRAIN, "--config", "run.toml"]) == 1
    assert why in capsys.readouterr().err


# Tests of wrong commands in a shell: the error shows the corrected command.


@pytest.mark.parametrize(
    ("arguments", "why", "corrected"),
    [
        ("train nett.py:train_program --data train.csv", "there is no such file", f"{shlex.join(TRAIN)}"),
        ("train net.py:train_progam --data train.csv", "there is no 'train_progam'", f"{shlex.join(TRAIN)}"),
        ("train net.py:train_program --data trian.csv", "there is no data file 'trian.csv'", f"{shlex.join(TRAIN)}"),
        (
            "train net.py:train_program --data train.csv --optimizer=Adm",
            "there is no fluid.optimizer.Adm. Did you mean 'Adam'?",
            f"{shlex.join(TRAIN)} --optimizer=Adam",
        ),
        (
            "train net.py:train_program --data train.csv --set optimizer.beta_1=0.8",
            "fluid.optimizer.Adam has no argument 'beta_1'",
            f"{shlex.join(TRAIN)} --set optimizer.beta1=0.8",
        ),
        (
            "train net.py:train_program --data train.csv --set batchsize=8",
            "there is no setting 'batchsize'. Did you mean 'batch_size'?",
            f"{shlex.join(TRAIN)} --set batch_size=8",
        ),
        (
            "train net.py:train_program --data renamed.csv",
            "found the columns 'x_0', 'x_1', 'goal_0', 'goal_1'",
            "train net.py:train_program --data renamed.csv --column target=goal_1",
        ),
        (
            "train net.py:train_program --data train.csv --column tarpet=y",
            "which is no feed that is read",
            f"{shlex.join(TRAIN)} --column target=y",
        ),
        (
            "test net.py:train_program --params lin.params --data train.csv",
            "there is no file of parameters 'lin.params'",
            "test net.py:train_program --params line.params --data train.csv",
        ),
    ],
)
def test_mistyped_arguments_show_the_corrected_command(arguments, why, corrected, folder, capsys):
    renamed = pathlib.Path("train.csv").read_text().replace("target", "goal")
    pathlib.Path("renamed.csv").write_text(renamed)
    assert main(shlex.split(arguments)) == 1
    said = capsys.readouterr().err
    assert why in said and said.splitlines()[-1] == f"Corrected: fluid {corrected}"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ("train", "fluid train needs program, found none"),
        ("train net.py:train_program", "fluid train needs data, found none"),
        ("train net.py:NOTHING --data train.csv", "expected a program function"),
        ("train net.py:train_program --data train.csv --optimizer net.py:NOTHING --lr 1", "leave out lr"),
        ("train net.py:train_program --data train.csv --set epochs", "expected a key and a value"),
        ("train net.py:train_program --data train.csv --set optimizer.name=Adm", "Did you mean 'Adam'?"),
        ("train net.py:train_program --data train.csv --set optimizer.learning_rate=1", "a setting of its own"),
        ("train net.py:train_program --data empty.csv", "the reader gave nothing"),
        ("test net.py:words_program --params words.params --data words.parquet", "the loss must be one float"),
        ("predict net.py:inference_program --data train.csv", "needs parameters: --params net.params"),
        ("predict net.py:train_program --params line.params --data train.csv", "is one number for all rows"),
        ("predict net.py:inference_program --params line.params --data train.csv --output a.txt", ".csv or .parquet"),
        ("predict net.py:words_program --params words.params --data words.parquet", "differ in length"),
        ("predict net.py:inference_program --params line.params --data train.csv --fetch yy", "Did you mean 'y'"),
    ],
)
def test_wrong_commands_name_the_missing_input(arguments, why, folder, capsys):
    words()
    pathlib.Path("empty.csv").write_text("x_0,x_1,target_0,target_1\n")
    pathlib.Path("net.py").write_text(f"{NET}\nNOTHING = 3\n")
    assert main(shlex.split(arguments)) == 1
    assert why in capsys.readouterr().err


def words():
    """Write a file of two sentences, and a file with an embedding in which the vector of word i is `[i]`."""
    import pyarrow as pa
    import pyarrow.parquet

    pa.parquet.write_table(pa.table({"words": [[1, 2, 3], [4]]}), "words.parquet")
    save_arrays("words.params", {"embedding_0.w_0": np.arange(10, dtype="float32")[:, None]})


# Tests of `fluid test` and `fluid predict`.


def test_metrics_equal_numpy(folder, capsys):
    command = ["test", "net.py:train_program", "--params", "line.params", "--data", "train.csv", "--batch-size", "7"]
    assert main([*command, "--json"]) == 0
    # One of two outputs differs from its target by the bias 0.5, so the mean squared error is 0.125.
    np.testing.assert_allclose(json.loads(capsys.readouterr().out)["loss"], 0.125, rtol=1e-4)
    assert main(command) == 0
    assert capsys.readouterr().out == "loss  0.125\n"


def test_metrics_of_a_checkpoint(folder, capsys):
    assert main([*TRAIN, "--checkpoint", "kept", "--output", "net.params"]) == 0
    capsys.readouterr()
    said = []
    for source in (["--checkpoint", "kept"], ["--params", "net.params"]):
        assert main(["test", "net.py:train_program", *source, "--data", "train.csv"]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]


PREDICT = ["predict", "net.py:inference_program", "--params", "line.params", "--batch-size", "16"]


@pytest.mark.parametrize("source", ["train.csv", "train.parquet"])
def test_predictions_in_csv_equal_numpy(source, folder, capsys):
    assert main([*PREDICT, "--data", source]) == 0
    found = read_csv(capsys.readouterr().out)
    expected = folder @ np.array([[1, 2], [3, 4]], "float32") + [0.5, 0]
    np.testing.assert_allclose(np.stack([found["y_0"], found["y_1"]], axis=1), expected, rtol=1e-5, atol=1e-5)
    assert main([*PREDICT, "--data", source, "--output", "y.csv"]) == 0
    np.testing.assert_array_equal(read_csv(pathlib.Path("y.csv").read_text())["y_0"], found["y_0"])


def test_predictions_in_parquet_are_lists(folder):
    import pyarrow.parquet

    assert main([*PREDICT, "--data", "train.csv", "--output", "y.parquet"]) == 0
    found = pyarrow.parquet.read_table("y.parquet").to_pydict()
    expected = folder @ np.array([[1, 2], [3, 4]], "float32") + [0.5, 0]
    np.testing.assert_allclose(found["y"], expected, rtol=1e-5, atol=1e-5)


def test_an_exported_model_predicts_equally(folder, capsys):
    assert main(["export", "net.py:inference_program", "--params", "line.params", "--output", "net.fluid"]) == 0
    assert main(["predict", "net.fluid", "--data", "train.csv", "--output", "a.csv"]) == 0
    assert main([*PREDICT, "--data", "train.csv", "--output", "b.csv"]) == 0
    a, b = (read_csv(pathlib.Path(file).read_text()) for file in ("a.csv", "b.csv"))
    np.testing.assert_allclose(a["y_1"], b["y_1"], rtol=1e-6)
    assert main(["predict", "net.fluid", "--params", "line.params", "--data", "train.csv"]) == 1
    assert "an exported model, which has its parameters" in capsys.readouterr().err


def test_bfloat16_predictions_become_float32(folder):
    import pyarrow.parquet

    command = ["export", "net.py:inference_program", "--params", "line.params", "--output", "net.fluid"]
    assert main([*command, "--precision", "bfloat16"]) == 0
    assert main(["predict", "net.fluid", "--data", "train.csv", "--output", "y.parquet"]) == 0
    found = pyarrow.parquet.read_table("y.parquet").to_pydict()["y"]
    np.testing.assert_allclose(found, folder @ np.array([[1, 2], [3, 4]]) + [0.5, 0], atol=0.05)


def test_sequences_of_parquet_are_predicted(folder, capsys):
    import pyarrow.parquet

    words()
    command = ["predict", "net.py:words_program", "--params", "words.params", "--data", "words.parquet"]
    assert main([*command, "--output", "vectors.parquet"]) == 0
    assert pyarrow.parquet.read_table("vectors.parquet").to_pydict() == {"vectors": [[[1], [2], [3]], [[4]]]}


def test_export_takes_a_checkpoint(folder, capsys):
    assert main([*TRAIN, "--checkpoint", "kept", "--output", "net.params"]) == 0
    for name, source in (("a.fluid", ["--checkpoint", "kept"]), ("b.fluid", ["--params", "net.params"])):
        assert main(["export", "net.py:inference_program", *source, "--output", name]) == 0
    assert pathlib.Path("a.fluid").read_bytes() == pathlib.Path("b.fluid").read_bytes()


# Tests of `fluid inspect`, `fluid doctor`, `fluid completion` and `fluid new`.


def test_inspect_as_json(folder, capsys):
    assert main(["export", "net.py:inference_program", "--params", "line.params", "--output", "net.fluid"]) == 0
    assert main([*TRAIN, "--checkpoint", "kept"]) == 0
    save_arrays("other.params", {"line.w_0": np.ones((2, 2), "float32"), "line.b_0": np.zeros(2, "float32")})
    capsys.readouterr()
    found = []
    for arguments, status in (
        (["kept"], 0),
        (["line.params"], 0),
        (["net.fluid"], 0),
        (["line.params", "other.params"], 1),
    ):
        assert main(["inspect", *arguments, "--json"]) == status
        found.append(json.loads(capsys.readouterr().out))
    folder_of, params, exported, compared = found
    weight = {"dtype": "float32", "shape": [2, 2], "bytes": 16}
    assert folder_of["checkpoints"][0]["health"] == "whole" and folder_of["arrays"]["line.w_0"] == weight
    assert params["arrays"]["line.w_0"] == weight
    assert exported["entries"]["predict"]["feeds"] == [{"name": "x", "dtype": "float32", "shape": "[batch, 2]"}]
    assert compared == {"arrays": 2, "largest_difference": {"line.w_0": 3.0, "line.b_0": 0.5}}


def test_doctor_reports_this_installation(capsys):
    import jax

    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["versions"]["fluid"] == fluid.__version__ and found["versions"]["jax"] == jax.__version__
    assert [device["name"] for device in found["devices"]] == [f"{d.platform}:{d.id}" for d in jax.devices()]
    assert found["compilation_cache"]["folder"] == jax.config.jax_compilation_cache_dir
    assert main(["doctor"]) == 0
    assert "tensorboard" in capsys.readouterr().out


def test_doctor_names_missing_distributions(monkeypatch):
    lines = ["jax>=0.10", "nowhere>=1; extra == 'files'", "numpy>=2; extra == 'files'"]
    monkeypatch.setattr(doctor.importlib.metadata, "requires", lambda name: lines)
    found = doctor.report()
    assert {extra["name"]: extra["missing"] for extra in found["extras"]}["files"] == ["nowhere"]
    assert found["advice"][0] == "To add what is missing: pip install 'fluid-jax[files]'"


def test_doctor_knows_the_extras_of_the_package():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(declared) - {"test", "dev", "bench", "docs", "peers"} == set(doctor.EXTRAS)


def completed(script, *words):
    """Return the words that bash offers to complete the last word."""
    line = f'COMP_WORDS=({shlex.join(words)}); COMP_CWORD={len(words) - 1}; _fluid; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{line}"], capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_bash_completes_commands_and_options(capsys):
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    assert completed(script, "fluid", "tr") == ["train"]
    assert completed(script, "fluid", "train", "--ep") == ["--epochs"]
    assert completed(script, "fluid", "train", "net") == []  # bash then completes file names


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_every_option(shell, capsys):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "test-data" in script and "allow-anonymous" in script
    assert script.startswith("autoload" if shell == "zsh" else "complete -c fluid")


def test_a_new_project_is_whole(in_tmp, capsys):
    assert main(["new", "flowers"]) == 0
    written = {path.name for path in pathlib.Path("flowers").iterdir()}
    assert {"program.py", "reader.py", "train.py", "test_program.py", "notebook.ipynb", "run.toml"} <= written
    assert str(pathlib.Path("flowers", "program.py")) in capsys.readouterr().out
    assert main(["new", "flowers"]) == 1
    assert "'flowers' exists already" in capsys.readouterr().err
    pathlib.Path("file").write_text("")
    assert main(["new", "file/inside"]) == 1
    assert "cannot write" in capsys.readouterr().err


def test_the_code_of_a_new_project_is_tidy(in_tmp):
    main(["new", "flowers"])
    ruff = [sys.executable, "-m", "ruff"]
    settings = ["--line-length", "120", "--no-cache"]
    assert subprocess.run([*ruff, "check", "--select", "E,F,I,B,UP", *settings], cwd="flowers").returncode == 0
    assert subprocess.run([*ruff, "format", "--check", *settings], cwd="flowers").returncode == 0


# Tests of properties of every command.


COMMANDS = next(a for a in parser()._actions if isinstance(a, argparse._SubParsersAction)).choices


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_each_command_is_valid(name, capsys):
    with pytest.raises(SystemExit):
        main([name, "--help"])
    said = capsys.readouterr().out
    examples = re.search(r"example:\n((?:  .+\n)+)", said)[1]
    for command in re.findall(r"fluid ([^|>)\n]+)", examples.replace('"', "")):
        assert given(*shlex.split(command)).command == name


@pytest.mark.parametrize("arguments", ["--help", "summary some_net.py:inference_program", "doctor"])
def test_a_closed_pipe_leaves_no_traceback(arguments, in_tmp):
    pathlib.Path("some_net.py").write_text(NET)
    reading, writing = os.pipe()
    os.close(reading)
    # Without a buffer, argparse ignores the closed pipe.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = forked.run("-m", "fluid", *arguments.split(), stdout=writing, env=buffered)
    os.close(writing)
    assert not done.stderr and done.returncode == 141


def test_the_entry_point_is_the_main_function():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"fluid": f"{main.__module__}:{main.__name__}"}


def test_control_c_ends_without_a_traceback(monkeypatch):
    def interrupted(given):
        raise KeyboardInterrupt

    monkeypatch.setattr(doctor, "run", interrupted)
    assert main(["doctor"]) == 130


# Tests of several commands, one after the other, in a shell.


@pytest.fixture
def shell(in_tmp, monkeypatch):
    """Return a function that runs lines in bash, where `fluid` and `python` use the interpreter of this test."""
    (in_tmp / "bin").mkdir()
    for name, call in (("fluid", "-m fluid "), ("python", "")):
        path = in_tmp / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {call}"$@"\n')
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{in_tmp / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    monkeypatch.delenv("JAX_DISABLE_MOST_OPTIMIZATIONS", raising=False)

    def run(lines, cwd="."):
        done = subprocess.run(["bash", "-euc", lines], cwd=cwd, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


@contextlib.contextmanager
def served(command, cwd="."):
    """Start a server by a shell command, and yield its URL when all its models are ready."""
    output = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(["bash", "-c", f"exec {command}"], cwd=cwd, **output) as process:
        try:
            said = "".join(itertools.takewhile(lambda line: " is ready" not in line, process.stdout))
            yield re.search(r"http://\S+", said)[0]
        finally:
            process.terminate()


DIGITS = """
import fluid


def inference_program():
    image = fluid.layers.data("image", shape=[1, 8, 8])
    return {"probability": fluid.layers.fc(image, size=10, act="softmax", name="net")}


def train_program():
    probability = inference_program()["probability"]
    label = fluid.layers.data("label", shape=[1], dtype="int64")
    loss = fluid.layers.mean(fluid.layers.cross_entropy(probability, label))
    return {"loss": loss, "accuracy": fluid.layers.accuracy(probability, label)}
"""


@pytest.mark.full
def test_csv_goes_from_training_to_a_server(shell, digits):
    pathlib.Path("digits.py").write_text(DIGITS)
    for name in ("train", "test"):
        images, labels = getattr(digits, f"{name}_images"), getattr(digits, f"{name}_labels")
        header = ",".join([*(f"image_{i}" for i in range(64)), "label"])
        table = np.c_[images.reshape(-1, 64), labels]
        np.savetxt(f"{name}.csv", table, delimiter=",", header=header, comments="", fmt="%g")
    shell(
        "fluid train digits.py:train_program --data train.csv --optimizer Adam --lr 1e-2 --epochs 10 --output d.params"
    )
    metrics = json.loads(shell("fluid test digits.py:train_program --params d.params --data test.csv --json"))
    shell("fluid export digits.py:inference_program --params d.params --output digits.fluid")
    shell("fluid predict digits.fluid --data test.csv --output predicted.csv")

    parameters, _ = fluid.io.load_arrays("d.params")
    scores = digits.test_images.reshape(-1, 64) @ parameters["net.w_0"] + parameters["net.b_0"]
    expected = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected /= expected.sum(axis=1, keepdims=True)
    found = read_csv(pathlib.Path("predicted.csv").read_text())
    predicted = np.stack([found[f"probability_{i}"] for i in range(10)], axis=1)
    np.testing.assert_allclose(predicted, expected, atol=1e-5)
    accuracy = (predicted.argmax(axis=1) == digits.test_labels).mean()
    assert accuracy > 0.93 and metrics["accuracy"] == pytest.approx(accuracy, abs=1e-6)

    with served("fluid serve digits.fluid --port 0 --max-batch 512") as url:
        (answer,) = fluid.Inferencer(url=url).infer({"image": digits.test_images})
    np.testing.assert_allclose(answer, expected, atol=1e-5)


@pytest.mark.sample(3)  # as the pages of tests/test_pages.py
@pytest.mark.full
def test_every_block_of_the_page_runs(shell):
    page = (ROOT / "docs" / "command.md").read_text(encoding="utf-8")
    first, *blocks = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    shell(first)
    for block in blocks:
        if "fluid serve" not in block:
            shell(block, "flowers")
            continue
        command = block.replace("--port 8000", "--port 0")  # port 0 selects a free port
        with served(command, "flowers") as url, urllib.request.urlopen(f"{url}/v2/health/ready") as answer:
            assert answer.status == 200
    (settings,) = re.findall(r"^```toml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    pathlib.Path("flowers", "page.toml").write_text(settings)
    shell("fluid train --config page.toml --epochs 1", "flowers")


@pytest.mark.full
def test_the_notebook_of_a_new_project_runs(in_tmp):
    import nbclient
    import nbformat

    main(["new", "flowers"])
    notebook = nbformat.read("flowers/notebook.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": "flowers"}}).execute()
    assert pathlib.Path("flowers", "net.params").is_file()
