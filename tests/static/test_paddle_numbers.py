"""Recorded programs of PaddlePaddle, run by an Executor: results equal the recorded numbers."""

import golden_cases
import jax
import numpy as np
import pytest
from golden_cases import IMPOSSIBLE, assert_close, cases
from static.both_styles import fresh, scope_value

import fluid.static as fluid
from fluid import errors

BY_ID = {case.id: case for case in cases()}
# These classes of PaddlePaddle 1.8 work only inside a program function, so an Executor cannot run their cases.
CELLS = {"layers.GRUCell", "layers.LSTMCell", "layers.BasicDecoder", "layers.TrainingHelper"}


def runnable():
    """Yield a pytest parameter for each golden case (a recorded result) that an Executor can run.

    A case has the mark `soak` if earlier cases need all its functions, unless the case is a training.
    """
    seen = set()
    for id, case in BY_ID.items():
        if CELLS & case.needs() or id in IMPOSSIBLE or {"build_only", "defect"} & case.spec.keys():
            continue
        new = case.needs() - seen or case.spec["family"] == "training"
        seen |= case.needs()
        yield pytest.param(id, marks=[] if new else pytest.mark.soak)


@pytest.fixture(autouse=True)
def full_precision():
    with jax.default_matmul_precision("highest"):
        yield


# Some recorded programs have optimizers that update all rows of a sparse embedding table, so fluid warns.
@pytest.mark.sample(0)  # tests/test_goldens.py compares the same numbers
@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
@pytest.mark.parametrize("id", list(runnable()))
def test_recorded_programs_give_the_recorded_numbers(id, monkeypatch):
    monkeypatch.setattr(golden_cases, "fluid", fluid)
    case = BY_ID[id]
    with fresh() as (main, startup):
        fetch = case.program()()
        assert [v.name for v in main.all_parameters()] == [p["name"] for p in case.spec["parameters"]]
        exe = fluid.Executor(fluid.CPUPlace())
        exe.run(startup)
        for name, value in case.arrays("before").items():
            if main.has_var(name):
                fluid.global_scope().find_var(name).get_tensor().set(value, fluid.CPUPlace())
        steps = []
        trajectory = {name: [] for name in case.arrays("trajectory")}
        for step in range(case.spec["steps"]):
            found = exe.run(main, feed=case.feeds(step), fetch_list=fetch, return_numpy=False)
            steps.append([np.array(value) for value in found])
            for name, values in trajectory.items():
                values.append(scope_value(name))
        for position, name in enumerate(case.spec["fetch"]):
            want = case.arrays("out").get(name)
            if want is not None:
                got = np.stack([step[position] for step in steps])
                assert_close(got if case.spec["steps"] > 1 else got[0], want, case.tolerance("out"), name)
        for name, want in case.arrays("trajectory").items():
            assert_close(np.stack(trajectory[name]), want, case.tolerance("trajectory"), f"trajectory of {name}")


@pytest.mark.parametrize("kind", ["layers.GRUCell", "layers.LSTMCell"])
def test_cells_are_made_in_program_functions(kind):
    with fresh(), pytest.raises(errors.OutsideProgramError, match=rf"{kind} .*(.|\n)*static: layers.dynamic_"):
        getattr(fluid.layers, kind.removeprefix("layers."))(hidden_size=2)
