"""Loggers: custom loggers, and loggers for MLflow and Weights & Biases, whose files their packages read back."""

import pathlib
import struct

import numpy as np
import pytest

import fluid
from fluid import handlers as H

X = np.random.default_rng(0).normal(size=(24, 2)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def program():
    x, y = fluid.layers.data("x", shape=[2]), fluid.layers.data("y", shape=[1])
    return fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))


def make(folder=None):
    config = None if folder is None else fluid.CheckpointConfig(folder, epoch_interval=None, step_interval=2)
    return fluid.Trainer(program, fluid.optimizer.SGD(0.05), checkpoint_config=config)


def reader():
    return fluid.reader.arrays((X, Y), batch_size=4)


class Written(H.Logger):
    """A logger that records its calls, and the points `(step, value)` of each value."""

    def __init__(self, every=1):
        super().__init__(every)
        self.calls, self.points = [], {}

    def open(self, event):
        self.calls.append(f"open after {self.done}")

    def write(self, epoch, step, values):
        self.calls.append("write")
        for name, value in values.items():
            self.points.setdefault(name, []).append((step, value))

    def flush(self):
        self.calls.append("flush")

    def close(self, error):
        self.calls.append(f"close {type(error).__name__}")


class FailsAt(fluid.Handler):
    def __init__(self, epoch, step):
        self.place = (epoch, step)

    def begin_step(self, event):
        if (event.epoch, event.step) == self.place:
            raise ZeroDivisionError


class TestLogger:
    def test_values_are_written_once_between_open_and_close(self):
        logger, losses = Written(every=2), []

        def on_event(event):
            if isinstance(event, fluid.EndStepEvent):
                losses.append(float(event.metrics[0]))

        make().train(reader(), 2, on_event, handlers=[logger, H.LearningRateMonitor(every=3)])
        assert logger.calls == ["open after 0", *["write"] * (6 + 4), "close NoneType"]
        means = np.reshape(losses, (6, 2)).mean(axis=1)
        assert logger.points["loss"] == [(2 * i + 2, pytest.approx(mean)) for i, mean in enumerate(means)]
        assert [step for step, _ in logger.points["learning_rate_0"]] == [3, 6, 9, 12]
        assert all(isinstance(value, float) for points in logger.points.values() for _, value in points)

    def test_logger_flushes_before_checkpoints_and_closes_with_error(self, tmp_path):
        logger = Written()
        with pytest.raises(ZeroDivisionError):
            make(tmp_path).train(reader(), 2, handlers=[logger, FailsAt(0, 5)])
        assert logger.calls[-1] == "close ZeroDivisionError"
        assert logger.calls.count("flush") >= 2 and logger.calls.count("write") == 5
        for place in (i for i, call in enumerate(logger.calls) if call == "flush"):
            assert logger.calls[:place].count("write") in (2, 4, 5), "all steps before the checkpoint"
        logger = Written()
        make(tmp_path).train(reader(), 2, handlers=[logger])
        assert logger.calls[0] == "open after 4" and logger.calls[-1] == "close NoneType"

    def test_error_of_open_propagates_from_train(self):
        class Fails(Written):
            def open(self, event):
                raise PermissionError("no such place")

        logger = Fails()
        with pytest.raises(PermissionError, match="no such place"):
            make().train(reader(), handlers=[logger])
        assert logger.calls == []


@pytest.fixture
def store(tmp_path):
    return f"sqlite:///{tmp_path}/mlflow.db"


def points_of(client, run_id):
    names = client.get_run(run_id).data.metrics
    return {name: [(p.step, p.value) for p in client.get_metric_history(run_id, name)] for name in names}


# MLflow uses the deprecated loader strategy.
@pytest.mark.full
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
class TestMLflow:
    def test_mlflow_client_reads_the_written_points(self, store):
        from mlflow import MlflowClient

        written = Written(every=2)
        logger = H.MLflow("digits", store, "first", params={"rate": 0.05, "net": "line"}, every=2)
        others = [H.TestEvery(reader()), H.LearningRateMonitor(every=3)]
        make().train(reader(), 2, handlers=[logger, written, *others])
        client = MlflowClient(store)
        (run,) = client.search_runs([client.get_experiment_by_name("digits").experiment_id])
        assert (run.info.run_id, run.info.run_name, run.info.status) == (logger.run_id, "first", "FINISHED")
        assert run.data.params == {"rate": "0.05", "net": "line"}
        assert points_of(client, logger.run_id) == written.points
        assert set(written.points) == {"loss", "test_loss", "learning_rate_0"}

    def test_resumed_training_continues_its_run_without_doubled_points(self, store, tmp_path):
        from mlflow import MlflowClient

        whole = Written()
        make(tmp_path / "whole").train(reader(), 3, handlers=[whole])
        broken = H.MLflow("digits", store, every=1)
        with pytest.raises(ZeroDivisionError):
            make(tmp_path / "saved").train(reader(), 3, handlers=[broken, FailsAt(1, 3)])
        client = MlflowClient(store)
        assert client.get_run(broken.run_id).info.status == "FAILED"
        again = H.MLflow("digits", store, every=1)
        make(tmp_path / "saved").train(reader(), 3, handlers=[again])
        assert again.run_id == broken.run_id
        assert client.get_run(again.run_id).info.status == "FINISHED"
        assert points_of(client, again.run_id) == whole.points

    def test_each_trained_trainer_has_a_single_run(self, store):
        from mlflow import MlflowClient

        logger, trainer = H.MLflow("digits", store, every=1), make()
        trainer.train(reader(), 0, handlers=[logger])
        assert logger.run_id is None
        trainer.train(reader(), handlers=[logger])
        first = logger.run_id
        trainer.train(reader(), handlers=[logger])
        assert logger.run_id == first
        make().train(reader(), handlers=[logger])
        assert logger.run_id != first
        counts = {run: len(points_of(MlflowClient(store), run)["loss"]) for run in (first, logger.run_id)}
        assert counts == {first: 12, logger.run_id: 6}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """Make Weights & Biases write runs below a temporary folder and send nothing; yield the folder."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    yield tmp_path
    import wandb

    wandb.teardown()


def records(path):
    """Yield the records in a file of Weights & Biases: messages in the frames of a LevelDB log.

    A frame has a checksum, a length, a kind (whole, first, middle or last part of a message) and bytes. Frames are in
    blocks of 32 KiB; the first block begins with 7 bytes that identify the file type.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while place < len(data):
        left = -place % 32768
        if 0 < left < 7:
            place += left
            continue
        _, length, kind = struct.unpack("<IHB", data[place : place + 7])
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # this frame of the log holds a whole message, or the last part of a message
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def runs_of(folder):
    """Return `(run name, points, exit code)` for each run file below a folder, oldest first."""
    import wandb

    wandb.teardown()  # wandb writes its last records when its service process ends
    found = []
    for path in sorted(pathlib.Path(folder).glob("wandb/offline-run-*/*.wandb"), key=lambda p: p.stat().st_mtime_ns):
        points, name, code = {}, None, None
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                name = record.run.run_id
            if kind == "exit":
                code = record.exit.exit_code
            if kind == "history":
                items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                step = int(items.pop("_step", record.history.step.num))
                for key, value in items.items():
                    if not key.startswith("_"):
                        points.setdefault(key, []).append((step, float(value)))
        found.append((name, points, code))
    return found


@pytest.mark.full
class TestWandB:
    def test_offline_run_file_holds_the_written_points(self, offline):
        written, logger = Written(every=2), H.WandB("digits", every=2, name="first")
        make().train(reader(), 2, handlers=[logger, written, H.TestEvery(reader()), H.LearningRateMonitor(every=3)])
        ((name, points, code),) = runs_of(offline)
        assert (name, code) == (logger.run_id, 0)
        assert points == written.points and set(points) == {"loss", "test_loss", "learning_rate_0"}

    def test_resumed_training_continues_its_run(self, offline):
        broken = H.WandB("digits", every=1)
        with pytest.raises(ZeroDivisionError):
            make(offline / "saved").train(reader(), 3, handlers=[broken, FailsAt(1, 3)])
        again = H.WandB("digits", every=1)
        make(offline / "saved").train(reader(), 3, handlers=[again])
        assert again.run_id == broken.run_id
        first, second = runs_of(offline)
        assert first[0] == second[0] == broken.run_id and (first[2], second[2]) == (1, 0)
        assert [step for step, _ in first[1]["loss"]] == list(range(1, 10))
        assert [step for step, _ in second[1]["loss"]] == list(range(9, 19))
