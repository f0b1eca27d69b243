"""The commands `fluid export` and `fluid inspect`: export of a program, and a report about the exported file."""

import sys

import forked
import numpy as np
import pytest
from export.test_artifact import close, params_of

import fluid
from fluid.__main__ import main

SOURCE = """
import fluid
from neighbour import WIDTH

def hidden():
    return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=WIDTH, act="relu", name="hidden")

def predict():
    return fluid.layers.fc(hidden(), size=2, name="out")

class Nets:
    predict = staticmethod(predict)
"""


@pytest.fixture
def here(in_tmp, monkeypatch):
    """Write a program and its parameters to the current folder, and yield the program function."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (in_tmp / "neighbour.py").write_text("WIDTH = 3")
    (in_tmp / "nets.py").write_text(SOURCE)
    namespace = {}
    sys.path.insert(0, str(in_tmp))
    exec(SOURCE, namespace)
    fluid.io.save_arrays("net.params", params_of(namespace["predict"]))
    yield namespace["predict"]
    sys.modules.pop("neighbour", None)


def test_a_program_of_a_file(here, capsys):
    assert main("export nets.py:predict --params net.params --output net.fluid --platforms cpu".split()) == 0
    assert "net.fluid:" in capsys.readouterr().out
    (got,) = fluid.Inferencer(param_path="net.fluid").infer({"x": np.ones((2, 4))})
    (want,) = fluid.Inferencer(here, param_path="net.params").infer({"x": np.ones((2, 4))})
    assert close([got], [want])
    assert main(["inspect", "net.fluid"]) == 0
    said = capsys.readouterr().out
    assert "exported model" in said and "entry point predict" in said and "[batch, 4]" in said and "hidden.w_0" in said


def test_several_programs_and_options(here, capsys):
    command = "export lower=nets.py:hidden whole=nets.py:Nets.predict --params net.params --output net.fluid"
    assert main([*command.split(), "--precision", "bfloat16"]) == 0
    assert main(["inspect", "net.fluid"]) == 0
    said = capsys.readouterr().out
    assert "entry point lower" in said and "entry point whole" in said and "bfloat16" in said
    command = "export nets.py:predict --params net.params --output net.fluid --feed hidden --fetch out hidden"
    assert main(command.split()) == 0
    found = fluid.Inferencer(param_path="net.fluid").infer({"hidden": np.ones((1, 3))})
    assert found.keys() == ["out", "hidden"]


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ("nowhere.py:predict", "no 'predict' in 'nowhere.py'"),
        ("nets.py:prediction", "no 'prediction' in 'nets.py'"),
        ("predict", "expected a file and a function"),
        ("nets.py:predict nets.py:hidden", "told apart by names"),
        ("a=nets.py:predict b=nets.py:hidden --fetch out", "for one program"),
        ("nets.py:SOURCE", "no 'SOURCE'"),
        ("nets.py:WIDTH", "a program is a function"),
    ],
)
def test_wrong_export_arguments_raise_named_errors(here, arguments, match, capsys):
    assert main(["export", *arguments.split(), "--params", "net.params", "--output", "net.fluid"]) == 1
    assert match in capsys.readouterr().err


def test_inspect_reports_a_damaged_model(here, in_tmp, capsys):
    assert main("export nets.py:predict --params net.params --output net.fluid".split()) == 0
    content = bytearray((in_tmp / "net.fluid").read_bytes())
    content[content.index(b"StableHLO")] ^= 1
    (in_tmp / "net.fluid").write_bytes(content)
    assert main(["inspect", "net.fluid"]) == 1
    assert "is damaged" in capsys.readouterr().err


def test_from_a_shell(here, in_tmp):
    done = forked.run(*"-m fluid export nets.py:predict --params net.params --output net.fluid".split())
    assert done.returncode == 0, done.stderr
    assert fluid.Inferencer(param_path="net.fluid").infer({"x": [[1, 2, 3, 4]]})[0].shape == (1, 2)
