"""`python -m fluid`: what it says of checkpoints and files, whole and damaged."""

import pathlib
import shutil
import subprocess
import sys

import pytest
from checkpointed import arrays, trainer

from fluid.__main__ import main

DATA = pathlib.Path(__file__).parent / "data" / "checkpoint"


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


def test_damage_is_told_and_left_where_it_is(tmp_path, capsys):
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
