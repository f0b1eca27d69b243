"""OnlineTrainer in a single process: the rows that it trains on, methods such as pause and stop, and errors."""

import json
import os
import re
import threading
import tracemalloc
import urllib.error
import urllib.request

import numpy as np
import pytest
from online.trainer_of_stream import divided, line, make, points

import fluid
from fluid import errors
from fluid.online.rows import RowFormat
from fluid.serving import protocol


@pytest.fixture
def opened(tmp_path):
    """Return a function that makes an OnlineTrainer, as in `opened(test_every=None)`; close all trainers at the end."""
    made = []

    def open_one(folder="online", **options):
        made.append(make(tmp_path / folder, **options))
        return made[-1]

    yield open_one
    for online in made:
        online.close()


def rows_of(columns):
    return list(zip(columns["x"], columns["y"], strict=True))


def trained_on(online):
    """Start an OnlineTrainer, wait until it has trained on all whole minibatches, and return its status."""
    online.start()
    while online.save()["state"] == "training":
        pass
    return online.save()  # this call of `save` writes a checkpoint of the last trained steps


def weights(online):
    """Return the parameters in the newest checkpoint of an OnlineTrainer, by name."""
    config = fluid.CheckpointConfig(online._path / "checkpoints")
    trainer = fluid.Trainer(line, fluid.optimizer.SGD(0.1), checkpoint_config=config)
    return {name: np.asarray(value) for name, value in trainer.params.items()}


def test_stream_rows_are_trained_or_tested_by_position(opened):
    data = points(31)
    online = opened(test_window=2)
    online.send({name: column[:20] for name, column in data.items()})
    online.send(rows_of({name: column[20:] for name, column in data.items()}))
    status = trained_on(online)
    online.stop()
    # Of the rows 0 to 30, the rows 4, 9, ..., 29 are test rows. Six minibatches of 4 rows end at row 28, so the test
    # row 29 and the row 30 wait.
    expected = {"accepted": 31, "trained": 24, "tested": 5, "waiting": 2, "steps": 6, "saved": 6, "published": None}
    assert {name: status[name] for name in expected} == expected
    assert status["state"] == "waiting" and status["error"] is None
    weight, bias, tests = 0.0, 0.0, []
    start = fluid.Trainer(line, fluid.optimizer.SGD(0.1)).params
    weight, bias = (float(np.ravel(start[name])[0]) for name in ("guess.w_0", "guess.b_0"))
    held_out = {0: [], 1: [4], 2: [9], 3: [14], 4: [19], 5: [24]}  # the test rows that come before each minibatch
    x, y = data["x"][:, 0].astype("float64"), data["y"][:, 0].astype("float64")
    for number, batch in enumerate(divided(list(range(31)))):
        tests += [(weight * x[row] + bias - y[row]) ** 2 for row in held_out[number]]
        error = weight * x[batch] + bias - y[batch]
        weight, bias = weight - 0.1 * 2 * np.mean(error * x[batch]), bias - 0.1 * 2 * np.mean(error)
    found = weights(online)
    assert np.allclose(found["guess.w_0"], weight, rtol=1e-5) and np.allclose(found["guess.b_0"], bias, rtol=1e-5)
    assert status["test"]["loss"] == pytest.approx(np.mean(tests[-2:]), rel=1e-4)
    assert status["last"]["loss"] == pytest.approx(np.mean(error**2), rel=1e-4)


@pytest.mark.skipif(os.name != "posix", reason="modes are those of POSIX")
def test_files_are_private_to_the_user(opened, tmp_path):
    (tmp_path / "online").mkdir()
    (tmp_path / "online").chmod(0o777)
    opened().send(points(3))
    modes = {
        path.name: oct(path.stat().st_mode & 0o777) for path in [tmp_path / "online", *(tmp_path / "online").iterdir()]
    }
    assert modes.pop("online") == "0o755" and modes.pop("checkpoints") == "0o700"
    assert len(modes) == 3 and set(modes.values()) == {"0o600"}


def test_pause_stop_and_start_do_not_change_training(opened):
    data = points(60)
    whole = opened("whole", checkpoint_every=100)
    whole.send(data)
    trained_on(whole)
    whole.stop()
    online = opened(max_rows=20)
    online.start()
    for low in range(0, 60, 3):
        online.send({name: column[low : low + 3] for name, column in data.items()}, wait=60)
        if low % 9 == 0:
            assert online.pause()["state"] == "paused" == online.pause()["state"]
            steps = online.status()["steps"]
            assert online.resume()["steps"] - steps in (0, 1) and online.resume()["state"] != "paused"
        if low % 12 == 0:
            assert online.stop()["state"] == "stopped" == online.stop()["state"]
            assert online.start()["state"] != "stopped" and online.start()["state"] != "stopped"
    status = trained_on(online)
    online.stop()
    assert status["steps"] == 12 and status["tested"] == whole.status()["tested"]
    assert status["test"] == whole.status()["test"]
    for name, value in weights(whole).items():
        assert value.tobytes() == weights(online)[name].tobytes(), name


def test_paused_and_stopped_trainers_only_accept_rows(opened):
    online = opened()
    online.start()
    online.pause()
    online.send(points(20))
    assert online.save()["steps"] == 0 == online.stop()["steps"]
    online.send(points(5))
    assert online.status()["accepted"] == 25 and online.status()["state"] == "stopped"
    assert trained_on(online)["steps"] == 5


def test_reopened_trainers_continue_at_their_step(opened, tmp_path):
    first = opened()
    first.send(points(30), key="all")
    steps = trained_on(first)["steps"]
    first.close()
    again = opened()
    assert again.status()["state"] == "stopped" and again.status()["steps"] == steps == again.status()["saved"]
    assert again.send(points(30), key="all") == 0, "they were accepted by the process before"
    again.send(points(30, seed=1))
    assert trained_on(again)["steps"] == 12


def test_rows_that_no_checkpoint_needs_are_dropped(opened):
    online = opened()
    for seed in range(12):
        online.send(points(5, seed))
        trained_on(online)
    saved = sorted(int(name) for name in os.listdir(online._path / "checkpoints") if name.isdigit())
    # Three checkpoints are kept. A trainer that continues from the oldest rereads the minibatch before the checkpoint.
    needed = online._split.start(saved[0] - 1)
    assert len(saved) == 3 and needed - 5 < online._journal.held <= needed
    online.stop()
    newest = online._path / "checkpoints" / str(saved[-1])
    (newest / "meta.json").write_text("{}")
    assert trained_on(online)["steps"] == 12, "a damaged checkpoint is left out, and the rows since are still there"


def test_versions_are_published(opened, tmp_path):
    online = opened(publish_to=tmp_path / "models", fetch=["guess"], export={"platforms": ["cpu"]})
    online.send(points(30))
    trained_on(online)
    (tmp_path / "models" / ".3.writing").mkdir(parents=True)  # a process killed during publishing leaves such a folder
    assert online.publish()["published"] == 6 == online.publish()["published"]
    assert sorted(os.listdir(tmp_path / "models")) == ["6"]
    online.stop()
    (guess,) = fluid.Inferencer(param_path=str(tmp_path / "models" / "6" / "model.fluid")).infer({"x": [[2.0]]})
    found = weights(online)
    assert np.allclose(guess, found["guess.w_0"] * 2 + found["guess.b_0"])
    (tmp_path / "models" / "6").rename(tmp_path / "models" / "100")
    online.start()
    with pytest.raises(errors.OnlineError, match="has the version 100, and versions count training steps, of which 6"):
        online.publish()


def test_published_versions_need_no_labels_by_default(opened, tmp_path):
    online = opened(publish_to=tmp_path / "models", export={"platforms": ["cpu"]})
    online.send(points(8))
    trained_on(online)
    version = online.publish()["published"]
    model = fluid.Inferencer(param_path=tmp_path / "models" / str(version) / "model.fluid").program
    assert list(model.feeds) == ["x"] and model.output_names == ("guess",)


def test_versions_are_published_automatically(opened, tmp_path, caplog):
    online = opened(publish_to=tmp_path / "models", publish_every=2, fetch=["guess"], export={"platforms": ["cpu"]})
    online.send(points(25))
    assert trained_on(online)["steps"] == 5
    # The trainer publishes versions after steps 2 and 4, but first it finishes a minibatch that it has already read.
    first, second = sorted(map(int, os.listdir(tmp_path / "models")))
    assert first in (2, 3) and second in (4, 5)
    (tmp_path / "models").rename(tmp_path / "moved")
    (tmp_path / "models").write_text("in the way")
    online.send(points(5))
    assert trained_on(online)["steps"] == 6
    online.stop()  # this call waits until all work after the last step is done
    assert "nothing was published after 6 steps" in caplog.text


def test_rows_of_a_reader_are_accepted_once(opened):
    data = points(24)
    reader = fluid.reader.arrays(data, batch_size=5)
    online = opened()
    online.start()
    assert online.send_all(reader) == 24
    assert trained_on(online)["accepted"] == 24
    online.close()
    again = opened(max_rows=7)
    again.start()
    longer = fluid.reader.arrays(data, batch_size=5)
    assert again.send_all(longer) == 0, "the pass was complete"
    assert again.send_all(lambda: iter([rows_of(points(3)), rows_of(points(4))]), name="other") == 7
    with pytest.raises(errors.ArgumentError, match="this position was taken from another reader"):
        again.send_all(fluid.reader.arrays(data, batch_size=4))
    again.stop()
    with pytest.raises(errors.OnlineError, match="nothing is trained now"):
        again.send_all(fluid.reader.arrays(points(30), batch_size=5), name="more than there is room for")


def test_a_failed_reader_resumes_after_accepted_rows(opened):
    data = rows_of(points(12))

    def broken():
        yield data[:4]
        yield data[4:8]
        raise OSError("the network is gone")

    online = opened()
    with pytest.raises(OSError, match="gone"):
        online.send_all(broken)
    assert online.send_all(lambda: iter([data[:4], data[4:8], data[8:]])) == 4
    assert online.status()["accepted"] == 12


def test_waiting_senders_succeed_after_rows_are_trained(opened):
    online = opened(max_rows=8)
    online.send(points(8))
    with pytest.raises(errors.JournalFullError):
        online.send(points(4))
    sent = threading.Thread(target=online.send, args=(points(4),), kwargs={"wait": 60})
    sent.start()
    online.start()
    sent.join()
    assert online.status()["accepted"] == 12


def test_start_resumes_after_a_handler_error(opened):
    class Breaks(fluid.Handler):
        broken = False

        def end_step(self, event):
            if event.step == 3 and not self.broken:
                self.broken = True
                raise ValueError("a handler broke")

    online = opened(handlers=[Breaks()])
    online.send(points(30))
    online.start()
    online._control._thread.join()
    status = online.status()
    assert status["state"] == "failed" and status["error"] == "a handler broke"
    with pytest.raises(errors.OnlineError, match="the training has failed: a handler broke"):
        online.save()
    assert online.stop()["state"] == "failed"
    status = trained_on(online)
    assert status["steps"] == 6 and status["tested"] == 5 and status["error"] is None


def infinite_row(count):
    """Return `count` points, of which row 11 has finite numbers whose squared error is infinite."""
    data = points(count)
    data["x"][11], data["y"][11] = 3e38, -3e38
    return data


def test_row_04_poisoned_rows_end_the_training(opened, tmp_path):
    online = opened(publish_to=tmp_path / "models", publish_every=1, fetch=["guess"])
    online.send(points(10))
    trained_on(online)
    online.publish()
    before = weights(online)
    sent = threading.Thread(target=online.send, args=({n: c[10:] for n, c in infinite_row(60).items()},))
    sent.start()
    online._control._thread.join()
    sent.join()
    status = online.status()
    # The rows 10, 11, 12 and 13 form the minibatch of index 2; the test rows are 4, 9, 14 and so on.
    assert status["state"] == "failed" and status["steps"] == 2 and status["saved"] == 2 == status["published"]
    assert "not finite after a step on the rows 10 to 13" in status["error"]
    for verb in (online.save, online.publish):
        with pytest.raises(errors.OnlineError, match="rows 10 to 13 of the journal"):
            verb()
    with online.serve(port=0) as server, pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(f"{server.url}/health/ready")
    assert caught.value.code == 503 and json.load(caught.value) == {"ready": False, "state": "failed"}
    online.start()
    online._control._thread.join()
    assert online.status()["state"] == "failed"
    assert {"2"} <= {path.name for path in (tmp_path / "models").iterdir()} <= {"1", "2"}
    after = weights(online)
    assert all(before[name].tobytes() == after[name].tobytes() for name in before)


def test_row_04_skipped_rows_leave_each_other_row_once(opened, tmp_path):
    """Skip poisoned rows; a stream without these rows gives equal parameters, bit for bit."""
    bad = [11, 13]
    data = infinite_row(60)
    data["y"][13] = 3e38
    online = opened(checkpoint_every=1)
    online.send(data)
    online.start()
    online._control._thread.join()
    status = online.status()
    assert status["state"] == "failed" and "skip([...])" in status["error"] and status["saved"] == 2
    with pytest.raises(errors.OnlineError, match="cannot skip row 7: .* includes the rows before 9"):
        online.skip([11, 7])
    with pytest.raises(errors.OnlineError, match="expected rows from 9 to 59"):
        online.skip([60])
    with pytest.raises(errors.ArgumentError, match="rows='11'"):
        online.skip(["11"])
    assert online.status()["skipped"] == 0
    with online.serve(port=0) as server:
        remote = fluid.RemoteTrainer(server.url)
        assert remote.skip(bad)["skipped"] == 2
        remote.start()
        with pytest.raises(errors.OnlineError, match="expected a stopped one: call stop"):
            remote.skip([20])
    status = trained_on(online)
    assert status["state"] == "waiting" and status["accepted"] == 60 and status["error"] is None
    assert status["trained"] + status["tested"] + status["waiting"] == 58
    online.close()
    again = opened()
    assert again.skip(bad)["skipped"] == 2 and again.status()["waiting"] == status["waiting"]
    again.send(points(20))
    steps = trained_on(again)["steps"]
    plain = opened("plain")
    plain.send({name: np.delete(column, bad, axis=0) for name, column in data.items()})
    plain.send(points(20))
    assert trained_on(plain)["steps"] == steps
    found, expected = weights(again), {name: np.asarray(v) for name, v in plain._control._prepared().params.items()}
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_row_04_skipped_rows_never_fill_the_journal(opened):
    online = opened(max_rows=6)
    online.send(points(6))
    online.skip(range(4))
    assert online.status()["waiting"] == 2
    online.send(points(4))
    assert trained_on(online)["steps"] == 1


def rooted():
    """Build a linear model whose loss is finite and has a NaN gradient for a row with y = 0."""
    x, y = fluid.layers.data("x", shape=[1]), fluid.layers.data("y", shape=[1])
    guess = fluid.layers.fc(x, size=1, name="guess")
    return {"loss": fluid.layers.mean(fluid.layers.sqrt(fluid.layers.square(guess * y)))}


@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
@pytest.mark.parametrize("small", [0, 1 << 20])
def test_row_04_large_arrays_are_checked_before_tasks(opened, tmp_path, monkeypatch, small):
    monkeypatch.setattr("fluid.online.training_thread._SMALL", small)
    online = opened(function=rooted, publish_to=tmp_path / "models", fetch=["guess"], checkpoint_every=100)
    data = points(20)
    data["y"][11] = 0
    online.send(data)
    online.start()
    with pytest.raises(errors.OnlineError):
        while online.publish():
            pass
    online._control._thread.join()
    status = online.status()
    assert status["state"] == "failed" and "not finite after" in status["error"]
    low, high = map(int, re.search(r"rows (\d+) to (\d+) of", status["error"]).groups())
    assert low <= 11 <= high and (small == 0 or (low, high) == (10, 13))
    assert not any(int(path.name) > 2 for path in (tmp_path / "models").glob("*"))


def test_a_handler_may_end_the_training(opened):
    def stop(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 2:
            asked.append(pytest.raises(errors.OnlineError, online.save))
            online.stop()

    asked = []
    online = opened(handlers=[stop])
    online.send(points(30))
    online.start()
    online._control._thread.join()
    assert online.status()["state"] == "stopped" and online.status()["saved"] in (3, 4)
    assert "a handler asked for what is done between two steps" in str(asked[0].value)


def test_unwritable_checkpoints_raise_on_save(opened, monkeypatch):
    online = opened()
    online.send(points(10))
    online.start()
    monkeypatch.setattr(
        "fluid.checkpoint.folder.Folder.write", lambda *arguments: (_ for _ in ()).throw(OSError("full"))
    )
    online.send(points(10))
    with pytest.raises(errors.CheckpointError, match="was not written; the log says why"):
        while online.save():
            pass
    monkeypatch.undo()
    assert trained_on(online)["steps"] == 4


@pytest.mark.parametrize(
    ("rows", "kind", "why"),
    [
        ([(1.0,)], errors.FeedError, "found 1 fields, expected at least 2"),
        ([], errors.FeedError, "found an empty minibatch"),
        ([("a", 1.0)], errors.FeedError, "feed 'x'"),
        ({"x": [[1.0]], "z": [[1.0]]}, errors.UnknownNameError, "found 'z', which the program does not declare"),
        ({"x": [[1.0]], "y": [[1.0], [2.0]]}, errors.FeedError, "different numbers of samples"),
        ([(float("nan"), 1.0)], errors.FeedError, "feed 'x': found NaN or an infinity, expected numbers"),
        ([(1.0, float("inf"))], errors.FeedError, "feed 'y': found NaN or an infinity"),
    ],
)
def test_row_50_bad_rows_refuse_the_whole_request(opened, rows, kind, why):
    online = opened()
    with pytest.raises(kind, match=why):
        online.send([(1.0, 1.0), *rows] if isinstance(rows, list) and rows else rows)
    assert online.status()["accepted"] == 0


@pytest.mark.parametrize("key", ["", "k" * 129, "ключ", "two\nlines"])
def test_bad_keys(opened, key):
    with pytest.raises(errors.ArgumentError, match="a key has 1 to 128 ASCII characters"):
        opened().send(points(1), key)


def test_sequences_have_a_limit(opened):
    def words():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64", lod_level=1)
        pooled = fluid.layers.sequence_pool(fluid.layers.embedding(ids, size=[5, 2]), "sum")
        return fluid.layers.mean(fluid.layers.fc(pooled, size=1))

    online = opened(function=words, max_steps=3)
    with pytest.raises(errors.FeedError, match="found a sequence of 4 steps, expected at most 3"):
        online.send([([1, 2, 3, 4],)])
    with pytest.raises(errors.FeedError, match="ids"):
        online.send([([5],)])  # the table has only the words 0 to 4
    online.send([([1, 2],), ([3],)])
    tracemalloc.start()
    try:
        with pytest.raises(errors.FeedError, match="found a sequence of 20000 steps, expected at most 3"):
            online.send([([1] * 20_000,), *[([1],)] * 2_500])
        assert tracemalloc.get_traced_memory()[1] < 20_000_000  # padded to 20,000 steps, the rows would take 400 MB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("lengths", [[1_000_000], [-1], [-5], [2, 2], [], [[2]]])
def test_lengths_beyond_the_padded_data_are_refused(lengths):
    rows = RowFormat({"ids": fluid.core.FeedSpec("ids", (None, 1), "int64", lod_level=1)})
    tensors = [("ids", np.ones((1, 4, 1), "int64")), ("ids.lengths", np.array(lengths, "int32"))]
    body, head = protocol.write_request(protocol.InferRequest([protocol.MessageTensor(*tensor) for tensor in tensors]))
    with pytest.raises(errors.ProtocolError, match=r"'ids.lengths' has the shape.*numbers from 0 to 4"):
        rows.unpack(body, head)


def any_size():
    x = fluid.layers.data("x", shape=[-1, -1], append_batch_size=False)
    return fluid.layers.mean(x * fluid.layers.create_parameter([1], "float32", name="scale"))


def without_feeds():
    return fluid.layers.mean(fluid.layers.create_parameter([1], "float32", name="scale"))


@pytest.mark.parametrize(
    ("options", "kind", "why"),
    [
        ({"batch_size": 0}, errors.ArgumentError, "batch_size=0"),
        ({"max_rows": 5}, errors.ArgumentError, "max_rows=5"),
        ({"fetch": ["guess"]}, errors.ArgumentError, "publish_to= where"),
        ({"publish_every": 5}, errors.ArgumentError, "publish_to= where"),
        ({"function": without_feeds}, errors.ProgramError, "the program has no feeds"),
        (
            {"function": any_size},
            errors.ProgramError,
            r"the feed 'x' has the shape \[None, None\], expected rows of one",
        ),
        ({"batch_size": 8}, errors.JournalError, "holds the rows of a stream with"),
        ({"test_every": None}, errors.JournalError, "holds the rows of a stream with"),
    ],
)
def test_wrong_options_raise_named_errors(opened, options, kind, why):
    opened().close()
    with pytest.raises(kind, match=why):
        opened(**options)


def test_verbs_without_a_training(opened):
    online = opened()
    for verb in (online.save, online.pause, online.resume):
        with pytest.raises(errors.OnlineError, match=r"nothing is trained now; start\(\) begins"):
            verb()
    online.start()
    with pytest.raises(errors.OnlineError, match="there is nowhere to publish to"):
        online.publish()


def test_nothing_is_published_before_the_first_step(opened, tmp_path):
    online = opened(publish_to=tmp_path / "models")
    online.start()
    with pytest.raises(errors.OnlineError, match="nothing was trained yet"):
        online.publish()


def test_row_51_unrelated_journal_and_checkpoints_are_refused(opened, tmp_path):
    online = opened()
    online.send(points(30))
    trained_on(online)
    online.close()
    (tmp_path / "online" / "journal.db").unlink()
    with pytest.raises(errors.JournalError, match="the rows 0 to 29 were acknowledged and are not in"):
        opened()
    (tmp_path / "online" / "journal.last").unlink()
    with pytest.raises(errors.JournalError, match="has gone through 29 rows and needs those from 24 on"):
        opened()


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.JournalError, match="no journal can be kept in"):
        make(tmp_path / "file")
