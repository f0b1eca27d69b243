"""Tutorial on tables: its code cells run, and the network predicts better than the mean of the targets."""

import pathlib
import re

import matplotlib
import pytest

TUTORIAL = pathlib.Path(__file__).resolve().parent.parent / "docs" / "tutorials" / "tabular.md"


@pytest.mark.full
def test_tutorial_on_tables_runs(in_tmp, own_compilation_cache):
    matplotlib.use("agg")
    cells = re.findall(r"^```\{code-cell\}\n(.*?)^```$", TUTORIAL.read_text(encoding="utf-8"), re.M | re.S)
    namespace = {"__name__": "__tutorial__"}
    for cell in cells:
        exec(compile(cell, str(TUTORIAL), "exec"), namespace)
    error, test_rows = namespace["root_error"], namespace["test_rows"]
    assert error(namespace["predicted"]) < 0.85 * error(namespace["train_rows"]["target"].mean())
    assert (in_tmp / "diabetes.fluid").is_file() and len(test_rows) == 92
