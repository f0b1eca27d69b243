"""Worker processes: they map like threads, their exceptions arrive, and all end, however a pass ends."""

import functools
import gc
import itertools
import multiprocessing
import os
import pathlib
import pickle
import signal
import sys
import threading

import forked
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import mapped_functions
import numpy as np
import pytest
from hypothesis import given, settings

from fluid import errors, reader
from fluid.reader import processes, worker

SCRIPT = pathlib.Path(mapped_functions.__file__)


def ours():
    return [p for p in multiprocessing.active_children() if p.name.startswith("fluid-reader")]


def join_threads():
    for thread in threading.enumerate():
        if thread.name.startswith("fluid-reader"):
            thread.join(10)


@pytest.fixture(autouse=True)
def none_left():
    collected()
    yield
    collected()


def collected():
    join_threads()  # a reader thread may still start a process, although the loop over the reader has ended
    # Worker processes end when the iterator of their reader is freed. A reference cycle, such as a traceback, may hold
    # an abandoned iterator until the garbage collection.
    if ours():
        gc.collect()
    assert not ours(), "a process was left behind"


def test_rows_equal_map_and_passes_continue_exactly():
    made = reader.xmap(mapped_functions.double, reader.shuffle(range(20), 8, seed=3), processes=2)
    expected = reader.map(mapped_functions.double, reader.shuffle(range(20), 8, seed=3))
    passes = [list(expected()) for _ in range(3)]
    rows = made()
    assert list(itertools.islice(rows, 7)) == passes[0][:7]
    state = made.state()
    assert state == {"epoch": 0, "given": 7, "reader": expected.plan}
    rows.close()
    made.restore(state)
    assert [list(made()) for _ in range(3)] == [passes[0][7:], *passes[1:]]


def test_random_numbers_are_equal_in_threads_and_processes():
    rows = list(range(12))
    expected = [list(pass_) for pass_ in itertools.repeat(reader.map(mapped_functions.noisy, rows, seed=4), 2)]
    assert expected[0] != expected[1]
    for how in ({"processes": 2}, {"process_num": 3}):
        made = reader.xmap(mapped_functions.noisy, rows, seed=4, **how)
        assert [list(made()), list(made())] == expected
        made.restore({"epoch": 1, "given": 5})
        assert list(made()) == expected[1][5:]


def test_processes_serve_later_passes_without_jax():
    made = reader.xmap(mapped_functions.environment, range(8), processes=2)
    found = [*made(), *made()]
    assert {pid for pid, *_ in found} <= {process.pid for process in ours()}
    assert len(ours()) == 2
    assert all(rest == [[], "cpu"] for _, *rest in found), "neither jax nor fluid is imported; jax would use the CPU"


def test_arrays_arrive_writable_and_close_their_files():
    made = reader.xmap(mapped_functions.stacked, [5, 1000, 3, 2000, 7], processes=1)
    for found, row in zip(made, [5, 1000, 3, 2000, 7], strict=True):
        assert found["large"].tolist() == np.full((300, row), row).tolist()
        found["large"] += 1
        assert found["small"][0].tolist() == list(range(row)) and found["small"][1:] == ["text"]
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    list(made())
    assert before == (len(os.listdir("/proc/self/fd")) if before else 0)


arrays = hnp.arrays(
    st.sampled_from(["float32", "int64", "uint8", "bool", "complex64", "U3"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)


@pytest.mark.parametrize("large", [0, 100, 1 << 16])
@pytest.mark.parametrize("shared", [True, False])
def test_a_channel_changes_nothing(large, shared, monkeypatch):
    monkeypatch.setattr(worker, "_LARGE", large)
    monkeypatch.setattr(worker, "_HAS_SHARED_MEMORY", shared and worker._HAS_SHARED_MEMORY)
    one, other = map(worker.Channel, multiprocessing.Pipe())

    @settings(max_examples=60, deadline=None)
    @given(st.recursive(arrays | st.integers() | st.binary(), lambda inner: st.lists(inner, max_size=3)), st.booleans())
    def law(value, transposed):
        if transposed and isinstance(value, np.ndarray):
            value = value.T
        sending = threading.Thread(target=one.send, args=(value,))
        sending.start()
        found = worker.loaded(other.receive())
        sending.join()
        assert pickle.dumps(found) == pickle.dumps(pickle.loads(pickle.dumps(value)))
        if isinstance(found, np.ndarray) and found.dtype != object:
            assert found.flags.writeable
        other.send(None)
        assert worker.loaded(one.receive()) is None

    law()
    one.close()
    with pytest.raises(EOFError):
        other.receive()
    other.close()


def test_an_exception_arrives_and_the_next_pass_works():
    made = reader.xmap(mapped_functions.failing, range(5), processes=2)
    rows = made()
    assert [next(rows), next(rows), next(rows)] == [0, 1, 2]
    with pytest.raises(KeyError, match="row 3") as caught:
        next(rows)
    (note,) = caught.value.__notes__
    assert "worker process" in note and "mapped_functions.py" in note and "in failing" in note and "KeyError" in note
    assert made.state()["given"] == 3
    assert next(made()) == 0


def test_an_unpicklable_exception_arrives_as_text():
    with pytest.raises(errors.ReaderError, match="raised mapped_functions.Unsendable: no way home") as caught:
        list(reader.xmap(mapped_functions.unsendable, [1], processes=1))
    assert "in unsendable" in caught.value.__notes__[0]


def test_the_function_cannot_end_the_pass_by_accident():
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(reader.xmap(mapped_functions.ending, [1, 2], processes=1))


def test_a_result_that_cannot_be_sent():
    with pytest.raises(TypeError, match="pickle 'generator' object"):
        list(reader.xmap(mapped_functions.generator, [1], processes=1))


def test_a_row_that_cannot_be_sent():
    made = reader.xmap(mapped_functions.double, [1, lambda: None], processes=1)
    rows = made()
    assert next(rows) == 2
    with pytest.raises(errors.ReaderError, match="cannot send a row.*can be pickled.*process_num=4"):
        next(rows)
    assert next(made()) == 2


def test_a_dead_process_is_reported_and_replaced():
    made = reader.xmap(mapped_functions.dying, range(9), processes=2)
    rows = made()
    assert [next(rows), next(rows), next(rows)] == [0, 1, 2]
    with pytest.raises(errors.ReaderError, match="ended with exit code 7 while it mapped a row"):
        next(rows)
    made.restore({"epoch": 0, "given": 4})
    assert list(made()) == [4, 5, 6, 7, 8]


def test_a_process_that_is_killed():
    made = reader.xmap(mapped_functions.double, range(9), processes=1)
    rows = made()
    next(rows)
    (process,) = ours()
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(errors.ReaderError, match="exit code -9 .*killed it, perhaps for want of memory"):
        list(rows)


def test_dropping_an_unfinished_pass_ends_its_processes():
    rows = reader.xmap(mapped_functions.double, itertools.count, processes=2)()
    next(rows)
    assert len(ours()) == 2
    del rows
    join_threads()


def test_a_process_that_hangs_is_killed(monkeypatch):
    monkeypatch.setattr(processes, "_PATIENCE", 0.01)
    rows = reader.xmap(mapped_functions.hanging, range(4), processes=1)()
    assert next(rows) == 0
    pool = processes.Pool("reader.xmap", mapped_functions.hanging, 1)
    assert pool.call(0) == 0
    asking = threading.Thread(target=lambda: pytest.raises(errors.ReaderError, pool.call, 1))
    asking.start()
    for process in ours():
        process.kill()
    asking.join(10)
    assert not asking.is_alive()
    rows.close()


def test_processes_start_at_the_first_row():
    rows = reader.xmap(mapped_functions.double, [1], processes=1)()
    assert not ours()
    rows.close()


@pytest.mark.parametrize(
    "function",
    [lambda row: row, functools.partial(lambda row: row), threading.Lock().acquire],
    ids=["lambda", "partial", "method"],
)
def test_a_function_that_other_processes_cannot_find(function):
    with pytest.raises(
        errors.ArgumentTypeError, match=r"(?s)xmap\(processes=3\).*by its name.*with def at the top.*process_num=3"
    ):
        reader.xmap(function, [1], processes=3)


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({}, "process_num=None, processes=None.*one of them"),
        ({"process_num": 2, "processes": 2}, "expected one of them"),
        ({"processes": 0}, r"xmap\(processes=0\): .* from 1 on"),
        ({"processes": 1, "buffer_size": 0}, r"xmap\(buffer_size=0\)"),
        ({"processes": 1, "seed": -1}, r"xmap\(seed=-1\): .* from 0 on"),
    ],
)
def test_wrong_arguments(arguments, words):
    with pytest.raises(errors.ArgumentError, match=words):
        reader.xmap(mapped_functions.double, [1], **arguments)


def run(*command, **options):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(["tests", "tests/helpers", *sys.path])}
    return forked.Process(*command, env=environment, **options)


def test_a_script_may_hold_the_function():
    with run(str(SCRIPT), "end") as script:
        # All processes share the output, so `communicate` returns only after the last process has ended.
        assert script.communicate(timeout=120) == ("0\n", "")


def test_a_script_without_main_guard_gets_an_error(tmp_path):
    (tmp_path / "script.py").write_text(
        "import mapped_functions\nfrom fluid import reader\nlist(reader.xmap(abs, [1], processes=1))"
    )
    with run(str(tmp_path / "script.py")) as script:
        _, said = script.communicate(timeout=120)
    assert "before it had mapped a row" in said and "under `if __name__ == '__main__':`" in said


def test_a_function_from_the_prompt_is_refused():
    code = "from fluid import reader\ndef f(x): return x\nreader.xmap(f, [1], processes=1)"
    with run("-c", code) as script:
        assert "typed into a notebook or at the prompt; write it with def" in script.communicate(timeout=120)[1]


@pytest.mark.parametrize("mode", ["hang", "work"])
def test_ctrl_c_ends_all_processes_quietly(mode):
    with run(str(SCRIPT), mode, start_new_session=True) as script:
        assert script.stdout.readline() == "0\n"
        os.killpg(script.pid, signal.SIGINT)  # a terminal also sends Ctrl-C to all processes of the group
        out, said = script.communicate(timeout=120)
    # The signal may arrive while the script prints another line, so the test compares only the end of the output.
    assert out.endswith("interrupted\n") and said == ""


def test_when_python_is_killed_its_processes_end():
    with run(str(SCRIPT), "work") as script:
        assert script.stdout.readline() == "0\n"
        script.kill()
        script.communicate(timeout=120)  # `communicate` waits until no process can write to the output
