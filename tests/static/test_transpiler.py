"""Programs that declare training on several machines by DistributeTranspiler: they equal a single trainer."""

import numpy as np
import pytest
from launch_processes import launched
from static import transpiled_program
from static.both_styles import fresh

import fluid.static as fluid
from fluid import SequenceBatch, errors
from fluid.checkpoint import load_arrays
from fluid.static.executor import feeds_of_all

SCRIPT = transpiled_program.__file__


@pytest.mark.full
def test_two_trainers_match_a_single_trainer(tmp_path):
    alone, together = tmp_path / "alone", tmp_path / "together"
    for folder in (alone, together):
        folder.mkdir()
    transpiled_program.main(alone, slice(0, 5))
    _, log, code = launched(2, together, script=SCRIPT)
    assert code == 0, log
    assert "2 processes train together" in log
    wanted = np.load(alone / "0.npz")
    for trainer in range(2):
        found = np.load(together / f"{trainer}.npz")
        np.testing.assert_allclose(found["losses"], wanted["losses"], rtol=1e-5)
        np.testing.assert_allclose(found["costs"], wanted["costs"], rtol=1e-4)
    before, after = (load_arrays(folder / "persistables.fluid")[0] for folder in (alone, together))
    for name, value in before.items():
        np.testing.assert_allclose(after[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_feeds_of_processes_are_joined_exactly():
    feed = {
        "ids": np.array([[2**40], [-1]]),
        "rows": fluid.create_lod_tensor(np.float16([[1.5], [2.5], [3.5]]), [[2, 1]]),
        "padded": SequenceBatch.from_rows([np.float32([[1.0]]), np.float32([[2.0], [3.0]])]),
    }
    (found,) = feeds_of_all(feed, list(feed))
    np.testing.assert_array_equal(found["ids"], feed["ids"])
    assert [np.array(found[name]).dtype for name in feed] == ["int64", "float16", "float32"]
    assert [found[name].recursive_sequence_lengths() for name in ("rows", "padded")] == [[[2, 1]], [[1, 2]]]
    assert np.ravel(found["padded"]).tolist() == [1.0, 2.0, 3.0]
    with pytest.raises(errors.ArgumentTypeError, match="'ids' is a list"):
        feeds_of_all({"ids": [[1], [2]]}, ["ids"])


def collective(trainers, **options):
    config = fluid.DistributeTranspilerConfig()
    config.mode = "collective"
    transpiler = fluid.DistributeTranspiler(config)
    transpiler.transpile(0, trainers=trainers, **options)
    return transpiler.get_trainer_program()


def test_an_unlaunched_program_names_the_launch_command():
    with fresh() as (main, _):
        with pytest.raises(errors.DistributedError, match="launch --processes 2"):
            collective("10.0.0.1:6174,10.0.0.2:6174", current_endpoint="10.0.0.1:6174")
        with pytest.raises(errors.DistributedError, match="launch --processes 4"):
            fluid.ParallelExecutor(use_cuda=False, num_trainers=4, trainer_id=1)
        assert collective(1) is main and not main.collective


def test_parameter_servers_are_refused_with_the_other_way():
    transpiler = fluid.DistributeTranspiler()
    for call in (
        lambda: transpiler.transpile(0, pservers="10.0.0.1:6174", trainers=2),
        lambda: transpiler.get_pserver_program("10.0.0.1:6174"),
        lambda: transpiler.get_startup_program("10.0.0.1:6174", None),
    ):
        with pytest.raises(errors.ArgumentError, match=r'config\.mode = "nccl2".*fluid launch'):
            call()
    with pytest.raises(errors.ProgramError, match="first transpile"):
        transpiler.get_trainer_program()


def test_a_scope_that_was_used_alone_is_refused():
    with fresh() as (main, startup):
        fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
        fluid.Executor(fluid.CPUPlace()).run(startup)
        main.collective = True
        with pytest.raises(errors.ProgramError, match=r"call transpile before the first exe\.run"):
            fluid.Executor(fluid.CPUPlace()).run(startup)


def test_programs_for_inference_stay_as_they_are():
    with fresh() as (main, _):
        y = fluid.layers.scale(fluid.layers.data("x", shape=[1]), scale=2.0)
        before = str(main)
        fluid.InferenceTranspiler().transpile(main, fluid.CPUPlace())
        fluid.memory_optimize(main)
        assert str(main) == before
        (found,) = fluid.Executor(fluid.CPUPlace()).run(main, {"x": np.ones((2, 1), "float32")}, [y])
    assert found.tolist() == [[2.0], [2.0]]
