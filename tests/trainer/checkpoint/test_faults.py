"""Faults of training and its checkpoints, by row of tests/FAULTS.md: a clear error, or training survives the fault."""

import inspect
import itertools
import json
import logging
import os
import pathlib
import re
import shutil
import threading
import traceback

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest
from resumed_programs import ROWS, X, Y, arrays, assert_equal, program, seen_by, small, state, trainer

import fluid
from fluid import errors
from fluid.checkpoint import integrity
from fluid.checkpoint.folder import Folder
from fluid.reader.files.formats import json_lines
from fluid.serving import Settings, connection

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The distance between two flipped bytes of a file: 61 by default, to save time; 1 in `make soak`, to flip every byte.
STRIDE = int(os.environ.get("FLUID_STRIDE", "61"))
NAMES = {"fc_0.b_0", "fc_0.w_0", "@step", "@root"}


def failing(error):
    def fail(*_):
        raise error

    return fail


def at_step(count, then):
    return seen_by([], count, then)


def names_in(folder):
    return sorted(p.name for p in folder.iterdir() if p.name != "fluid.lock")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return a folder with undamaged checkpoints of the steps 2, 4 and 6, and a dict of the states by step."""
    folder, states = tmp_path_factory.mktemp("trained"), {}
    mine = trainer(folder, config={"step_interval": 2})

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent) and event.step % 2:
            states[event.step + 1] = state(mine)

    mine.train(arrays(), event_handler=on_event)
    return folder, states


@pytest.fixture
def copied(trained, tmp_path):
    """Return a copy of the checkpoint folder of `trained`, which a test may damage, and the states of `trained`."""
    return pathlib.Path(shutil.copytree(trained[0], tmp_path / "copied")), trained[1]


def test_row_03_exception_passes_unchanged_and_checkpoints_stay_whole(tmp_path):
    error = ZeroDivisionError("mine")

    def failing_reader():
        yield from itertools.islice(arrays(), 4)
        raise error

    def threads():
        return {t for t in threading.enumerate() if t.name.startswith("fluid-")}

    before = threads()
    for number, (reader, handler) in enumerate([(failing_reader, None), (arrays(), at_step(5, failing(error)))]):
        folder = tmp_path / str(number)
        with pytest.raises(ZeroDivisionError) as caught:
            trainer(folder, config={"step_interval": 2}).train(reader, event_handler=handler)
        # In both turns, the error has one note. The failing reader adds the number of its minibatch; then the failing
        # handler adds none.
        assert caught.value is error and len(error.__notes__) == 1
        assert names_in(folder) == ["2", "4"] and Folder(folder).flaw(4) is None
        with Folder(folder).locked():
            pass
    assert threads() <= before


def test_row_04_nonfinite_parameters_are_never_saved(tmp_path, caplog):
    def poisoned():
        for i, (x, y) in enumerate(arrays()):
            yield (x * np.nan if i == 3 else x), y

    mine = trainer(tmp_path, config={"step_interval": 1, "max_num_checkpoints": None})
    noticed = pytest.warns(errors.FluidWarning, match="feed 'x', sample 0, batch 3: found NaN")
    refused = pytest.raises(errors.CheckpointError, match=r"checkpoint 12 in .* was refused: .*fc_0.b_0")
    with refused, pytest.warns(errors.FluidWarning, match="the loss is nan in step"), noticed:
        mine.train(poisoned, num_epochs=2)
    assert names_in(tmp_path) == ["1", "2", "3"]
    [record] = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert "checkpoint 4 is not saved" in record.message and "fc_0.w_0" in record.message
    assert np.isfinite(np.asarray(trainer(tmp_path).params["fc_0.w_0"])).all()


@pytest.mark.parametrize("restored", [False, True])
def test_row_04_a_second_call_keeps_finite_checkpoints(restored, tmp_path):
    if restored:
        trainer(tmp_path).train(arrays(), num_epochs=1)
    mine = trainer(tmp_path, config={"max_num_checkpoints": 2})
    if not restored:
        mine.train(arrays(), num_epochs=1)
    before = names_in(tmp_path)
    mine.session.scope["fc_0.b_0"] = [np.inf]
    for epochs in (2, 3):
        with pytest.raises(errors.CheckpointError, match="was refused"), pytest.warns(errors.FluidWarning):
            mine.train(arrays(), num_epochs=epochs)
    assert before and names_in(tmp_path) == before
    mine.restore()
    mine.train(arrays(), num_epochs=4)
    assert names_in(tmp_path)[-1] != before[-1]


def test_row_04_pause_with_a_refused_save_says_so(tmp_path, caplog):
    mine = trainer(tmp_path)

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 2:
            mine.session.scope["fc_0.b_0"] = [np.inf]
            mine.pause()

    mine.train(arrays(), event_handler=on_event)
    assert "paused after 3 steps; its checkpoint was not saved" in caplog.text and "saved as" not in caplog.text
    mine.session.scope["fc_0.b_0"] = [0.5]
    mine.train(arrays())  # continues after the pause
    assert names_in(tmp_path) == ["6"]


def test_row_04_later_save_replaces_a_refused_one(tmp_path):
    mine = trainer(tmp_path, config={"step_interval": 1, "max_num_checkpoints": None})

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 2:
            mine.session.scope["fc_0.b_0"] = [np.inf]
        if isinstance(event, fluid.BeginStepEvent) and event.step == 3:
            mine.session.scope["fc_0.b_0"] = [0.5]

    mine.train(arrays(), event_handler=on_event)
    assert names_in(tmp_path) == ["1", "2", "4", "5", "6"]


def test_row_04_custom_loop_with_nonfinite_result_raises(tmp_path):
    def minimised():
        loss = small()["loss"]
        fluid.optimizer.SGD(0.1).minimize(loss)
        return loss

    session = fluid.Session(minimised)
    with (
        pytest.raises(errors.CheckpointError, match="what was trained is not saved.* fc_0.w_0 is not finite"),
        fluid.Checkpoint(session, tmp_path) as checkpoint,
    ):
        session.scope["fc_0.w_0"] = np.full(session.scope["fc_0.w_0"].shape, np.nan)
        checkpoint.save()
    assert names_in(tmp_path) == []


def test_row_04_infinite_initial_values_are_saved(tmp_path):
    def masked():
        mask = fluid.layers.create_parameter([2], "float32", "mask", default_initializer=infinite())
        return fluid.layers.mean(small()["loss"] + 0 * jnp.sum(jnp.where(jnp.isinf(mask), 0.0, mask)))

    def infinite():
        return fluid.initializer.Constant(-np.inf)

    trainer(tmp_path, masked, fluid.optimizer.SGD(0.1)).train(arrays())
    assert names_in(tmp_path) == ["6"]


def test_row_05_stop_and_normal_end_save_without_deletion(tmp_path):
    mine = trainer(tmp_path, config={"step_interval": None})
    mine.train(arrays(), num_epochs=2, event_handler=at_step(8, mine.stop))
    assert names_in(tmp_path) == ["6", "8"]
    trainer(tmp_path, config={"step_interval": None}).train(arrays(), num_epochs=2)
    assert names_in(tmp_path) == ["12", "6", "8"]


@pytest.mark.parametrize(
    "config",
    [
        {"step_interval": 0},
        {"epoch_interval": -1},
        {"max_num_checkpoints": 0},
        {"step_interval": 1.5},
        {"step_interval": True},
        {"keep_best": "score"},
        {"keep_best": ("loss", "less")},
    ],
)
def test_row_07_wrong_intervals_raise_argument_error(config):
    with pytest.raises(errors.ArgumentError, match=next(iter(config))):
        fluid.CheckpointConfig("here", **config)


@pytest.mark.parametrize(
    "function, optimizer",
    [
        (lambda: fluid.layers.data("x", shape=[4]), fluid.optimizer.SGD(0.1)),
        (lambda: None, fluid.optimizer.SGD(0.1)),
        (small, "sgd"),
    ],
)
def test_row_08_untrainable_program_fails_before_the_first_step(function, optimizer, tmp_path):
    with pytest.raises(errors.FluidError):
        trainer(tmp_path / "never", function, optimizer)
    assert not (tmp_path / "never").exists()


def test_row_09_out_of_memory_error_names_the_remedy(tmp_path):
    def pairs():
        x = fluid.layers.data("x", shape=[1])
        products = fluid.layers.matmul(fluid.layers.fc(x, size=1), x, transpose_y=True)
        return fluid.layers.metric(fluid.layers.mean(products), reduce="mean")

    def reader():
        yield (np.ones((8, 1), "float32"),)
        yield (np.ones((3_000_000, 1), "float32"),)  # the products of all pairs of these rows need 36 TB

    mine = trainer(tmp_path, pairs, config={"step_interval": 1})
    with pytest.raises(Exception, match="RESOURCE_EXHAUSTED|[Oo]ut of memory") as caught:
        mine.train(reader)
    assert any("batch" in note for note in caught.value.__notes__)
    assert names_in(tmp_path) == ["1"]


def test_row_10_handlers_change_parameters_and_stop_iteration_propagates(tmp_path):
    mine = trainer(tmp_path, config={"step_interval": 2})

    def change():
        mine.session.scope["fc_0.b_0"] = [42.0]

    mine.train(arrays(), event_handler=at_step(6, change))
    assert trainer(tmp_path).params["fc_0.b_0"].tolist() == [42.0]
    with pytest.raises(StopIteration):
        mine.train(arrays(), event_handler=at_step(2, failing(StopIteration())))


def test_row_11_second_trainer_in_a_folder_raises(tmp_path):
    first, second = trainer(tmp_path), trainer(tmp_path)

    def train_too():
        with pytest.raises(errors.CheckpointError, match=f"another trainer \\(process {os.getpid()}"):
            second.train(arrays())
        with pytest.raises(errors.CheckpointError, match="another trainer"):
            trainer(tmp_path)

    first.train(arrays(), event_handler=at_step(3, train_too))
    with pytest.raises(errors.CheckpointError, match="written since this Trainer was made"):
        second.train(arrays())
    third = trainer(tmp_path)
    assert_equal(state(third), state(first))


def threads_that_stay(before):
    """Return new threads that do not end within 30 seconds; an ending thread may need a moment on a busy machine."""
    new = set(threading.enumerate()) - set(before)
    for thread in new:
        thread.join(30)
    return [thread for thread in new if thread.is_alive()]


def test_row_12_reading_thread_exception_reaches_the_caller(tmp_path):
    def breaking():
        yield from itertools.islice(arrays(), 2)
        raise LookupError("no more disks")

    before, mine = threading.enumerate(), trainer(tmp_path, config={"step_interval": 1})
    with pytest.raises(LookupError, match="no more disks") as caught:
        mine.train(fluid.reader.buffered(breaking, 4))
    assert "breaking" in [f.name for f in traceback.extract_tb(caught.tb)]
    assert not threads_that_stay(before)
    mine.train(fluid.reader.buffered(lambda: iter(arrays()), 4))  # training resumes after the two trained minibatches
    assert int(mine.session.scope.step) == 6


def test_row_13_empty_reader_raises_and_endless_reader_stops(tmp_path):
    mine = trainer(tmp_path)
    with pytest.raises(errors.ReaderError, match="nothing"):
        mine.train(lambda: iter([]))
    mine.train(lambda: ((X, Y) for _ in itertools.count()), event_handler=at_step(5, mine.stop))
    assert int(mine.session.scope.step) == 5


def test_row_14_short_last_batch_is_kept_and_weighted():
    mine = trainer()
    mine.train(arrays(), num_epochs=3)
    assert len([c for c in mine.session.compilations if c.mode == "train"]) == 2
    whole = mine.test(fluid.reader.arrays((X, Y), batch_size=44))
    assert mine.test(arrays())["loss"] == pytest.approx(whole["loss"], rel=1e-6)


@pytest.mark.parametrize(
    "row, found",
    [
        ((X[0],), "found 1 fields"),
        ((X[0][:3], Y[0]), "sample 1"),
        (("x", Y[0]), "sample 1"),
    ],
)
def test_row_15_bad_rows_are_named(row, found, tmp_path):
    mine = trainer(tmp_path)
    with pytest.raises(errors.FeedError, match=found):
        mine.train([ROWS[:8], [ROWS[0], row]])
    assert int(mine.session.scope.step) == 1
    assert names_in(tmp_path) == []


def test_row_18_abandoned_pass_leaves_no_thread(tmp_path):
    def endless():
        while True:
            yield X[:8], Y[:8]

    before, mine = threading.enumerate(), trainer(tmp_path)
    mine.train(fluid.reader.buffered(endless, 8), event_handler=at_step(5, mine.stop))
    assert not threads_that_stay(before)


def test_row_20_remains_of_a_killed_save_are_removed(copied):
    folder, states = copied
    shutil.copytree(folder / "6", folder / "8.writing")
    os.rename(folder / "2", folder / "2.deleting")
    resumed = trainer(folder)
    assert_equal(state(resumed), states[6])
    assert names_in(folder) == ["4", "6"]


def files_of(folder):
    return sorted(p.relative_to(folder) for p in folder.rglob("*") if p.is_file())


def damages(path):
    """Yield seven functions without arguments, each of which damages the file `path` in a different way."""
    whole = path.read_bytes()
    yield lambda: path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    yield lambda: path.write_bytes(whole[: len(whole) // 2])
    yield lambda: path.write_bytes(b"")
    yield lambda: path.write_bytes(whole + b"\0")
    yield path.unlink
    yield lambda: (path.unlink(), path.mkdir())
    yield lambda: (path.unlink(), path.symlink_to(path.parent.parent))


def test_row_21_any_damaged_file_restores_the_step_before(copied, tmp_path, caplog):
    folder, states = copied
    mine = trainer(folder)
    count = 0
    for file in files_of(folder / "6"):
        for number in range(7):
            shutil.copytree(folder, tmp_path / "again")
            list(damages(tmp_path / "again" / "6" / file))[number]()
            mine._checkpoints.folder = Folder(tmp_path / "again")
            mine.restore()
            assert_equal(state(mine), states[4])
            assert names_in(tmp_path / "again") == ["2", "4", "6.damaged"], file
            shutil.rmtree(tmp_path / "again")
            count += 1
    assert count > 70 and "checkpoint 6 is damaged" in caplog.text


def test_row_21_foreign_file_sets_the_checkpoint_aside(copied):
    folder, states = copied
    (folder / "6" / "arrays" / "notes.txt").write_text("mine")
    assert_equal(state(trainer(folder)), states[4])
    assert (folder / "6.damaged" / "arrays" / "notes.txt").exists()


def test_row_21_every_flipped_byte_is_noticed(copied):
    folder, _ = copied
    step, flips = folder / "6", 0
    for file in files_of(step):
        whole = (step / file).read_bytes()
        for position in range(0, len(whole), STRIDE):
            (step / file).write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
            assert integrity.flaw(step), f"{file} {position}"
            flips += 1
        (step / file).write_bytes(whole)
    assert integrity.flaw(step) is None and flips > 50


def test_row_22_foreign_entries_are_kept(copied):
    folder, states = copied
    (folder / "7").mkdir()
    (folder / "8.bak").mkdir()
    (folder / "09").mkdir()
    (folder / "notes.txt").write_text("mine")
    (folder / "10").mkdir()
    (folder / "10" / "model.npz").write_bytes(b"mine")
    (folder / "11").symlink_to(folder / "6")
    (folder / "12.writing").symlink_to(folder / "6")
    before = names_in(folder)
    resumed = trainer(folder)
    assert_equal(state(resumed), states[6])
    assert names_in(folder) == before
    resumed.train(arrays(), num_epochs=2)
    assert set(before) - {"2"} <= set(names_in(folder)) | {"4"} and (folder / "10" / "model.npz").exists()


def test_row_23_all_damaged_checkpoints_raise_at_construction(copied):
    folder, _ = copied
    for step in ("2", "4", "6"):
        (folder / step / "meta.json").write_text("{}")
    for _ in range(2):  # the second Trainer raises the same error as the first
        with pytest.raises(errors.CheckpointError, match="no checkpoint .* is whole") as caught:
            trainer(folder)
        for step in (2, 4, 6):
            assert f"{step}: meta.json is not what was written" in str(caught.value)
    assert names_in(folder) == ["2", "4", "6"]
    for step in ("2", "4", "6"):
        os.rename(folder / step, folder / f"{step}.damaged")
    with pytest.raises(errors.CheckpointError, match="6.damaged: set aside"):
        trainer(folder)


def wider():
    return {"loss": fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=2))}


wider.__name__ = "small"


@pytest.mark.parametrize(
    "function, optimizer, listed",
    [
        (wider, None, r"fc_0.w_0: found float32\[4, 1\], expected float32\[4, 2\]"),
        (program, None, "missing: batch_norm_0.w_0"),
        (small, fluid.optimizer.SGD(0.1), "extra: @slots/small/0"),
        (small, fluid.optimizer.Momentum(0.1, 0.9), "missing: @slots/small/0"),
    ],
)
def test_row_24_another_program_or_optimizer_raises(function, optimizer, listed, copied):
    folder, _ = copied
    (folder / "6" / "extra").write_text("damage, to be set aside by a program that fits")
    with pytest.raises(errors.ParameterError, match=listed) as caught:
        trainer(folder, function, optimizer)
    assert len(str(caught.value).splitlines()) < 25
    assert names_in(folder) == ["2", "4", "6"]


def test_row_25_failed_save_is_reported_and_next_save_works(tmp_path, caplog, monkeypatch):
    write, broken = Folder.write, [4, 6]

    def writing(self, step, arrays, meta):
        if step in broken:
            (self.path / f"{step}.writing").mkdir()
            raise OSError(5, "Input/output error")
        write(self, step, arrays, meta)

    monkeypatch.setattr(Folder, "write", writing)
    mine = trainer(tmp_path, config={"step_interval": 2, "max_num_checkpoints": 1})
    mine.train(arrays(), num_epochs=2)
    assert re.findall("checkpoint (.) failed: OSError: .*Input/output", caplog.text) == ["4", "6"]
    assert caplog.text.count("in writing") == 2  # the traceback of each failed save is logged
    assert names_in(tmp_path) == ["12", "4.writing", "6.writing"]
    trainer(tmp_path)
    assert names_in(tmp_path) == ["12"]


def test_row_25_late_writes_of_a_failed_save_are_removed(tmp_path, monkeypatch):
    folder, begun = Folder(tmp_path), []

    def fail(self, path, **options):
        begun.append(path.parent)
        path.mkdir()
        raise OSError(28, "No space left on device")

    # TensorStore may write a file to a folder while the folder is removed, and may create a removed folder again.
    def still_writing(path, **options):
        (begun[-1] / "late").touch()
        rmdir(path, **options)

    rmdir = os.rmdir
    with folder.locked():
        with monkeypatch.context() as patched:
            patched.setattr(orbax.checkpoint.Checkpointer, "save", fail)
            patched.setattr(os, "rmdir", still_writing)
            for _ in range(2):
                with pytest.raises(OSError, match="No space left"):
                    folder.write(4, {"w": np.ones(3)}, {})
        assert len(set(begun)) == 2  # each save has a new folder, which late writes of an older save do not reach
        assert [path.name for path in begun if path.exists()] == names_in(tmp_path) == [begun[1].name]
        folder.write(6, {"w": np.ones(3)}, {})
        assert names_in(tmp_path) == ["6"]
        begun[0].mkdir()
    assert names_in(tmp_path) == ["6"] and folder.flaw(6) is None


@pytest.mark.parametrize("method", ["sweep", "steps"])
def test_row_26_error_at_the_start_releases_the_lock(method, tmp_path, monkeypatch):
    mine = trainer(tmp_path)
    with monkeypatch.context() as broken, pytest.raises(PermissionError):
        broken.setattr(Folder, method, failing(PermissionError(13, "Permission denied")))
        mine.train(arrays())
    with Folder(tmp_path).locked():  # a process has one lock for each open file: another trainer finds this one free
        pass
    mine.train(arrays())
    assert names_in(tmp_path) == ["6"]


@pytest.mark.parametrize("kind", ["a file", "read-only", "below a file"])
def test_row_26_unusable_folder_raises_checkpoint_error(kind, tmp_path, monkeypatch):
    place = tmp_path / "place"
    if kind != "read-only":
        place.write_text("no folder")
    else:  # `open` is replaced, because the superuser can also write to a read-only folder

        def refuse(*_, **__):
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(pathlib.Path, "open", refuse)
    with pytest.raises(errors.CheckpointError, match="no checkpoints can be kept"):
        trainer(place / "deeper" if kind == "below a file" else place)


def test_row_26_vanished_folder_ends_training_at_next_save(tmp_path):
    mine, seen = trainer(tmp_path / "here", config={"step_interval": 2}), []

    def vanish():
        mine._checkpoints.wait()
        os.rename(tmp_path / "here", tmp_path / "there")

    with pytest.raises(errors.CheckpointError, match="has gone"):
        mine.train(arrays(), event_handler=seen_by(seen, 3, vanish))
    assert len(seen) == 4 and not (tmp_path / "here").exists()
    assert names_in(tmp_path / "there") == ["2"]


def test_row_27_failed_save_is_not_the_latest(tmp_path, monkeypatch):
    mine = trainer(tmp_path, config={"step_interval": 2})
    mine.train(arrays())
    good = state(mine)
    monkeypatch.setattr(Folder, "write", failing(OSError(28, "No space left on device")))
    with pytest.raises(errors.CheckpointError, match="checkpoint 12 in .* failed: OSError: .*No space left"):
        mine.train(arrays())
    monkeypatch.undo()
    assert_equal(state(trainer(tmp_path)), good)


def test_row_25_failed_final_save_raises_and_can_be_repeated(tmp_path, monkeypatch):
    mine = trainer(tmp_path, config={"step_interval": 2})
    monkeypatch.setattr(Folder, "write", failing(OSError(28, "No space left on device")))
    with pytest.raises(errors.CheckpointError, match="checkpoint 6 in .* failed: OSError: .*No space left") as caught:
        mine.train(arrays())
    assert isinstance(caught.value.__cause__, OSError)
    trained = state(mine)
    monkeypatch.undo()
    mine.train(arrays())
    assert_equal(state(mine), trained)
    assert names_in(tmp_path) == ["6"]
    assert_equal(state(trainer(tmp_path)), trained)
    mine.train(arrays(), num_epochs=1)
    assert names_in(tmp_path) == ["10", "12", "8"]


def test_row_25_failed_final_save_of_custom_loop_raises(tmp_path, monkeypatch):
    session = trainer().session
    monkeypatch.setattr(Folder, "write", failing(OSError(28, "No space left on device")))
    with pytest.raises(errors.CheckpointError, match="failed: OSError: .*No space left"):
        with fluid.Checkpoint(session, tmp_path) as checkpoint:
            session.step({"x": X[:4], "y": Y[:4]})
            checkpoint.after_step()
    assert int(session.scope.step) == 1


def test_row_28_saves_never_overlap_and_all_are_made(tmp_path, monkeypatch):
    write, running, most = Folder.write, [], []

    def writing(self, step, arrays, meta):
        running.append(step)
        most.append(len(running))
        write(self, step, arrays, meta)
        running.remove(step)

    monkeypatch.setattr(Folder, "write", writing)
    trainer(tmp_path, config={"step_interval": 1, "max_num_checkpoints": None}).train(arrays())
    assert max(most) == 1
    assert names_in(tmp_path) == ["1", "2", "3", "4", "5", "6"]


def test_row_29_best_and_newest_checkpoints_are_kept(tmp_path):
    def batches():
        for i, (x, y) in enumerate(arrays()):
            yield x, y + (0 if i == 2 else 50)  # the third minibatch has by far the smallest loss

    config = {"step_interval": 1, "max_num_checkpoints": 1, "keep_best": ("loss", "min")}
    mine = trainer(tmp_path, config=config)
    mine.train(batches)
    assert names_in(tmp_path) == ["3", "6"]
    again = trainer(tmp_path, config=config)
    again.train(batches, num_epochs=2)
    assert names_in(tmp_path) == ["12", "9"] or names_in(tmp_path) == ["12", "3"]
    again.restore("best")
    assert str(int(again.session.scope.step)) == next(n for n in names_in(tmp_path) if n != "12")


@pytest.mark.parametrize(
    "best, error, match",
    [
        (("los", "min"), errors.UnknownNameError, "Did you mean 'loss'"),
        ((7, "min"), errors.UnknownNameError, "no output 7"),
        (("prediction", "max"), errors.ArgumentError, "compares scalars"),
    ],
)
def test_row_29_keep_best_names_a_scalar_output(best, error, match, tmp_path):
    def outputs():
        x = fluid.layers.data("x", shape=[4])
        prediction = fluid.layers.fc(x, size=1)
        return {"loss": fluid.layers.mean(prediction), "prediction": prediction}

    with pytest.raises(error, match=match):
        trainer(tmp_path, outputs, config={"keep_best": best})


def test_row_29_score_is_mean_since_last_checkpoint(tmp_path):
    losses, sizes = [], [min(8, len(X) - first) for first in range(0, len(X), 8)] * 2
    mine = trainer(tmp_path, config={"step_interval": 3, "keep_best": (0, "max"), "max_num_checkpoints": None})
    on_end = lambda e: losses.append(float(e.metrics[0])) if isinstance(e, fluid.EndStepEvent) else None  # noqa: E731
    mine.train(arrays(), num_epochs=2, event_handler=on_end)
    for step in (3, 6, 9, 12):
        score = json.loads((tmp_path / str(step) / "meta.json").read_text())["score"]
        mean = np.average(losses[step - 3 : step], weights=sizes[step - 3 : step])
        assert score == {"output": 0, "mode": "max", "value": pytest.approx(mean)}


def test_row_30_going_back_sets_newer_steps_aside(copied, caplog):
    folder, states = copied
    mine = trainer(folder, config={"step_interval": 2})
    mine.restore(2)
    assert_equal(state(mine), states[2])
    assert names_in(folder) == ["2", "4", "6"]  # `restore` changes no file; only the next training does
    mine.train(arrays())
    assert names_in(folder) == ["2", "4", "4.undone", "6", "6.undone"]
    assert_equal(state(trainer(folder)), states[6])
    with pytest.raises(errors.CheckpointError, match="no checkpoint 5 .* 2, 4, 6"):
        mine.restore(5)
    (folder / "4" / "meta.json").write_text("{}")
    with pytest.raises(errors.CheckpointError, match="checkpoint 4 .* damaged"):
        mine.restore(4)
    assert_equal(state(mine), states[6])
    with pytest.raises(errors.CheckpointError, match="checkpoint_config"):
        trainer().restore()


def test_row_32_checkpoint_of_older_version_is_restored(tmp_path):
    """Check that a Trainer restores `tests/data/checkpoint`, which fluid 0.1 wrote (see tests/data/README.md)."""
    folder = shutil.copytree(ROOT / "data" / "checkpoint", tmp_path / "checkpoint")
    expected = np.load(ROOT / "data" / "checkpoint.npz")
    resumed = trainer(folder, program)
    assert_equal(state(resumed), {name: expected[name] for name in expected.files})
    resumed.train(arrays(), num_epochs=2)
    assert int(resumed.session.scope.step) == 12


def test_row_32_newer_format_raises_without_marking_damage(copied):
    folder, _ = copied
    text = (folder / "6" / integrity.NAME).read_text().replace("checkpoint 1", "checkpoint 2").rsplit("#", 1)[0]
    (folder / "6" / integrity.NAME).write_text(f"{text}# {integrity._digest_of(text)}\n")
    with pytest.raises(errors.CheckpointError, match="found '# fluid checkpoint 2'"):
        trainer(folder)
    assert names_in(folder) == ["2", "4", "6"]


def test_row_33_odd_arrays_round_trip(tmp_path):
    odd = {
        "empty": np.zeros((0, 3), "float32"),
        "scalar": np.float32(1.5),
        "bf16": np.asarray(jnp.array([1.0, 2.5], jnp.bfloat16)),
        "f8": np.asarray(jnp.array([1.0, 2.0], jnp.float8_e4m3fn)),
        "flag": np.array([True, False]),
        "large": np.array([2**64 - 1], "uint64"),
        "negative": np.array([-(2**63)], "int64"),
        "complex": np.array([1 + 2j], "complex64"),
        "key": np.asarray(jax.random.key_data(jax.random.key(3))),
        "a/b": np.ones(2, "float32"),
        "a": np.ones(1, "float16"),
        "a.b": np.ones(3, "float64"),
        "..": np.ones(1, "int8"),
        "ü % \u2028": np.ones(1, "uint8"),
    }
    folder = Folder(tmp_path)
    folder.write(0, {n: np.asarray(a) for n, a in odd.items()}, {})
    assert folder.flaw(0) is None
    assert_equal(folder.arrays(0), {n: np.asarray(a) for n, a in odd.items()})


def test_row_33_stateless_optimizer_round_trips(tmp_path):
    mine = trainer(tmp_path, small, fluid.optimizer.SGD(0.1))
    mine.train(arrays())
    resumed = trainer(tmp_path, small, fluid.optimizer.SGD(0.1))
    assert set(state(resumed)) == NAMES
    assert_equal(state(resumed), state(mine))


def test_fault_table_names_existing_tests():
    table = (ROOT / "FAULTS.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| ([0-9]+) \|.*\| (.*) \|$", table, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 68))
    for number, tests in rows:
        found = re.findall(r"`([a-z_/]+\.py)::(\w+)`", tests)
        assert found, f"row {number} has no test"
        for file, name in found:
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"row {number}: {name}"
            assert re.search(rf"row_(\d\d_and_)*{int(number):02d}_|_and_{int(number):02d}_", name), name


def test_security_table_names_existing_settings_and_tests():
    page = (ROOT.parent / "SECURITY.md").read_text(encoding="utf-8")
    known = {
        name: parameter.default
        for function in (Settings, fluid.OnlineTrainer, fluid.serve)
        for name, parameter in inspect.signature(function).parameters.items()
    }
    known["LINE_LIMIT"] = json_lines.LINE_LIMIT
    numbers = re.findall(r"`(\w+)` = ([0-9]+)", page)
    assert len(numbers) > 10 and all(known[name] == float(number) for name, number in numbers)
    assert {name for name, value in vars(Settings).items() if name.startswith("max_") and type(value) is int} <= {
        name for name, _ in numbers
    }
    head = re.search(
        "at most `max_header` .* at most ([0-9]+) headers.* at most ([0-9]+) bytes and .* ([0-9]+) req", page
    )
    limits = connection.MAX_HEADERS, connection.TURN, connection.TURN // connection.LEAST
    assert tuple(map(int, head.groups())) == limits
    rows = re.findall(r"^\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|([^|]*)\|$", page, re.MULTILINE)[2:]
    for *_, limits, tests in rows:
        assert set(re.findall("`([a-z_]+)`", limits)) <= known.keys()
        for file, name in re.findall(r"`([a-z_/]+\.py)::(\w+)`", tests):
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), name
