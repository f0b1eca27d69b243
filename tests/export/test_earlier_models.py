"""Exported models of earlier versions: this version of fluid reads them and returns the recorded answers."""

import numpy as np
import pytest
from export.earlier_models import FOLDER, KEPT, answers

import fluid
from fluid import export


# An earlier file does not say whether rows depend on each other, so its batches are not padded.
@pytest.mark.filterwarnings("ignore:an earlier fluid exported the program")
@pytest.mark.parametrize("name", KEPT)
def test_models_of_earlier_versions_answer_equally(name):
    with np.load(FOLDER / "answers.npz") as file:
        wanted = {key: value for key, value in file.items() if key.startswith(f"{name}/")}
    found = answers(name)
    assert found.keys() == wanted.keys()
    for key, want in wanted.items():
        near = {"rtol": 2e-2, "atol": 1e-2} if name == "half" else {"rtol": 1e-5, "atol": 1e-6}
        np.testing.assert_allclose(found[key], want, **near, err_msg=key)


def test_every_kind_is_kept():
    assert {path.stem for path in FOLDER.glob("*.fluid")} == set(KEPT)
    assert len(export.load(FOLDER / "entries.fluid").entries) == 2
    assert export.load(FOLDER / "random.fluid").entries["predict"].random
    assert export.load(FOLDER / "fixed.fluid").entries["predict"].functions[0].sizes == {"steps0": 4}
    assert "bfloat16" in {str(array.dtype) for array in export.load(FOLDER / "half.fluid").arrays.values()}
    assert fluid.Inferencer(param_path=FOLDER / "sequences.fluid").program.feeds["words"].limits == (0, 10, None)
