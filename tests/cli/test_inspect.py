"""The commands `fluid inspect` and `fluid summary`: reports about whole or damaged checkpoints, files and programs."""

import json
import pathlib
import shutil
import subprocess
import sys

import forked
import pytest
from resumed_programs import arrays, trainer

from fluid.__main__ import main

DATA = pathlib.Path(__file__).parents[1] / "data" / "checkpoint"


def test_a_folder_of_checkpoints(tmp_path, capsys):
    folder = tmp_path / "kept"
    trainer(folder, config={"step_interval": 2, "keep_best": ("loss", "min")}).train(arrays())
    before = sorted(folder.rglob("*"))
    assert main(["inspect", str(folder)]) == 0
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines()[1:4]] == ["2", "4", "6"]
    assert said.count("whole") == 3 and "loss" in said and "arrays of step 6" in said
    assert "fc_0.w_0" in said and "[4, 1]" in said and "float32" in said
    assert main(["inspect", str(folder), "--step", "2"]) == 0
    assert "arrays of step 2" in capsys.readouterr().out
    assert sorted(folder.rglob("*")) == before


def test_damaged_checkpoints_are_reported_and_unchanged(tmp_path, capsys):
    folder = tmp_path / "kept"
    trainer(folder, config={"step_interval": 2}).train(arrays())
    (folder / "6" / "meta.json").write_text("{}")
    (folder / "2").rename(folder / "2.damaged")
    assert main(["inspect", str(folder)]) == 1
    said = capsys.readouterr().out
    assert "meta.json is not what was written" in said and "set aside" in said and "arrays of step 4" in said
    assert (folder / "6").is_dir()
    assert main(["inspect", str(folder), "--step", "6"]) == 1
    assert "not among the whole ones: 4" in capsys.readouterr().err


def test_a_file_of_parameters(tmp_path, capsys):
    trainer().save_params(tmp_path / "line.params")
    assert main(["inspect", str(tmp_path / "line.params")]) == 0
    assert "fc_0.w_0" in capsys.readouterr().out


@pytest.mark.parametrize("path", ["nowhere", "."])
def test_nothing_to_look_at(path, in_tmp, capsys):
    assert main(["inspect", path]) == 1
    assert capsys.readouterr().err


def test_from_a_shell_and_nothing_is_written(tmp_path):
    folder = shutil.copytree(DATA, tmp_path / "kept")
    done = subprocess.run([sys.executable, "-m", "fluid", "inspect", str(folder)], capture_output=True, text=True)
    assert done.returncode == 0 and "batch_norm_0.w_1" in done.stdout and not done.stderr
    assert [p.name for p in pathlib.Path(folder).iterdir()] == ["6"]


NET = """
import fluid

def inference_program():
    x = fluid.layers.data("x", shape=[4])
    with fluid.name_scope("head"):
        return fluid.layers.fc(x, size=2)

class Nets:
    program = fluid.Program(inference_program)
"""


@pytest.fixture
def net(in_tmp, monkeypatch):
    """Write a file with programs to the current folder, and yield the name of its module."""
    monkeypatch.setattr(sys, "path", [str(in_tmp), *sys.path])
    monkeypatch.delitem(sys.modules, "some_net", raising=False)
    (in_tmp / "some_net.py").write_text(NET)
    yield "some_net"
    sys.modules.pop("some_net", None)


@pytest.mark.parametrize(
    "place", ["some_net.py:inference_program", "some_net:inference_program", "some_net:Nets.program"]
)
def test_a_summary(net, place, capsys):
    assert main(["summary", place, "--batch-size", "8"]) == 0
    said = capsys.readouterr().out
    assert "head/fc_0  float32[batch, 2]" in said and "8 examples" in said and "10 trainable" in said


def test_a_summary_as_json_and_of_some_layers(net, capsys):
    assert main(["summary", "some_net.py:inference_program", "--json", "--layers", "head/*"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in told["rows"]] == ["head/fc_0"] and told["totals"]["trainable"] == 10


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("some_net.py", "expected a file and a function of it: net.py:train_program"),
        ("some_net.py:", "expected a file and a function of it: net.py:train_program"),
        ("nowhere.py:program", "there is no 'program' in 'nowhere.py': there is no such file"),
        ("nowhere.at.all:program", "there is no 'program' in 'nowhere.at.all': there is no such module"),
        ("some_net.py:inference_progrm", "Did you mean 'inference_program'"),
        ("some_net.py:NET", "expected a program function"),
    ],
)
def test_no_program_to_summarise(net, place, why, capsys):
    (pathlib.Path("some_net.py")).write_text(NET + "NET = 3")
    assert main(["summary", place]) == 1
    assert why in capsys.readouterr().err


def test_a_module_that_lacks_something_says_so(net):
    pathlib.Path("some_net.py").write_text("import nothing_of_that_name")
    with pytest.raises(ModuleNotFoundError, match="nothing_of_that_name"):
        main(["summary", "some_net:program"])


def test_a_summary_from_a_shell(net):
    done = forked.run("-m", "fluid", "summary", "some_net:inference_program")
    assert done.returncode == 0 and "head/fc_0" in done.stdout and not done.stderr
