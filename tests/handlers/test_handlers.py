"""Handlers: their results agree with independent readers of CSV, TensorBoard and PNG files, formulas and scripts."""

import csv
import gzip
import json
import math
import pathlib
import struct
import threading
import zlib

import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fluid
from fluid import errors
from fluid import handlers as H
from fluid.trainer.losses import Waits

HANDLERS = pathlib.Path(__file__).resolve().parents[2] / "docs" / "handlers.md"

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]] + 0.7).astype("float32")


def test_every_handler_is_on_the_page():
    text = HANDLERS.read_text(encoding="utf-8")
    handlers = set(H.__all__) - {"Handler", "NonFiniteReport"}
    assert [name for name in handlers if f"`{name}" not in text] == []


def train_program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    prediction = fluid.layers.fc(x, size=1)
    loss = fluid.layers.mean(fluid.layers.square_error_cost(prediction, y))
    return {"loss": loss, "prediction": prediction, "root": fluid.layers.metric(loss, reduce=jnp.sqrt)}


def make(optimizer=None, **options):
    return fluid.Trainer(train_program, optimizer or fluid.optimizer.SGD(0.1), **options)


def reader(batch_size=16):
    return fluid.reader.arrays((X, Y), batch_size=batch_size)


class Scripted(fluid.Handler):
    """A handler that announces `values[epoch]` at the end of each epoch."""

    def __init__(self, values, name="test_loss"):
        self.values, self.name = values, name

    def measures(self):
        return [self.name]

    def end_epoch(self, event):
        self.announce(event.epoch, event.steps - 1, {self.name: self.values[event.epoch]})


class Recording(fluid.Handler):
    """A handler that records all announced values and the loss of every step."""

    def __init__(self):
        self.measures_seen, self.losses = [], []

    def end_step(self, event):
        self.losses.append(float(event.metrics["loss"]))

    def measured(self, event):
        values = {name: float(event.metrics[name]) for name in event.metrics.names}
        self.measures_seen.append((event.epoch, event.step, values))


def table(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "every, steps, epochs",
    [
        (2, [2, 4, 6, 8, 10, 12], []),
        ("5 steps", [5, 10], []),
        ("step", list(range(1, 13)), []),
        ("epoch", [], [0, 1, 2, 3]),
        ("2 epochs", [], [1, 3]),
    ],
)
def test_test_every_runs_at_its_interval(every, steps, epochs):
    calls = []

    class Counted:
        def __iter__(self):
            calls.append(None)
            return iter(reader()())

    recording = Recording()
    make().train(reader(), num_epochs=4, handlers=[recording, H.TestEvery(Counted, every=every)])
    assert len(calls) == len(steps) + len(epochs)
    seen = [epoch * 3 + step + 1 for epoch, step, _ in recording.measures_seen]
    assert seen == (steps or [3 * (epoch + 1) for epoch in epochs])


@pytest.mark.parametrize("every", [0, -1, True, 1.5, "2", "0 epochs", "two epochs", "2  epochs", None, "minutes"])
def test_wrong_every_raises_argument_error(every):
    with pytest.raises(errors.ArgumentError, match=r'TestEvery\(every=.*write every=100, every="epoch"'):
        H.TestEvery(reader(), every=every)


def test_test_every_announces_the_results_of_test():
    trainer, recording, wanted = make(), Recording(), []

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            wanted.append(trainer.test(reader()))

    trainer.train(reader(), num_epochs=2, handlers=[recording, H.TestEvery(reader())], event_handler=on_event)
    found = [values for _, _, values in recording.measures_seen]
    assert found == [{"test_loss": float(w["loss"]), "test_root": float(w["root"])} for w in wanted]


def test_test_every_announces_metrics_under_its_name():
    def program():
        x, label = fluid.layers.data("x", shape=[4]), fluid.layers.data("label", shape=[1], dtype="int64")
        scores = fluid.layers.identity(fluid.layers.fc(x, size=2, act="softmax"), name="scores")
        return fluid.layers.mean(fluid.layers.cross_entropy(scores, label))

    labels = (Y > 0).astype("int64")
    data = fluid.reader.arrays((X, labels), batch_size=16)
    trainer, recording = fluid.Trainer(program, fluid.optimizer.SGD(0.1)), []
    testing = H.TestEvery(data, metrics={"auc": fluid.metrics.Auc().of(preds="scores", labels="label")}, name="dev")
    trainer.train(
        data,
        handlers=[testing],
        event_handler=lambda e: isinstance(e, fluid.MeasuredEvent) and recording.append(e.metrics),
    )
    want = trainer.test(data, metrics={"auc": fluid.metrics.Auc().of(preds="scores", labels="label")})["auc"]
    assert recording[0].names == ["dev_loss", "dev_auc"] and float(recording[0]["dev_auc"]) == float(want)


def tagger():
    """Build a program that counts the chunks in two feeds of tags; its loss reads no feed."""
    found = fluid.layers.data("found", shape=[1], dtype="int64", lod_level=1)
    right = fluid.layers.data("right", shape=[1], dtype="int64", lod_level=1)
    weight = fluid.layers.create_parameter([1], "float32", "w")
    fluid.layers.chunk_eval(found, right, chunk_scheme="IOB", num_chunk_types=2)
    return fluid.layers.mean(fluid.layers.square(weight))


CHUNKS = fluid.metrics.ChunkEvaluator().of(
    num_infer_chunks="chunk_eval_0.tmp_3",
    num_label_chunks="chunk_eval_0.tmp_4",
    num_correct_chunks="chunk_eval_0.tmp_5",
)
# Two of the three found chunks are correct, and two of the three labelled chunks are found.
TAGS = [{"found": [[0, 1, 2], [0, 4]], "right": [[0, 1, 2], [2, 4]]}]


def tagging(monitor, metrics=CHUNKS):
    """Train with EarlyStopping on the metric `monitor`; return the trainer, and the metrics of each test."""
    trainer = fluid.Trainer(tagger, fluid.optimizer.SGD(0.1))
    stopping = H.EarlyStopping(monitor, patience=2, mode="max")
    told = []

    def on_event(event):
        if isinstance(event, fluid.MeasuredEvent):
            told.append({name: float(value) for name, value in zip(event.metrics.names, event.metrics, strict=True)})

    testing = H.TestEvery(TAGS, metrics={"chunks": metrics})
    trainer.train(TAGS, num_epochs=9, handlers=[stopping, testing], event_handler=on_event)
    return trainer, told


def test_parts_of_a_metric_are_announced_and_monitored():
    trainer, told = tagging("test_chunks_f1")
    shares = {f"test_chunks_{part}": 2 / 3 for part in ("precision", "recall", "f1")}
    assert [{name: values[name] for name in values if name != "test_loss"} for values in told] == [
        pytest.approx(shares)
    ] * 3
    assert all(values["test_loss"] >= 0 for values in told)
    assert int(trainer.session.scope.step) == 3  # the first test is the best, and the two later tests do not improve


def test_monitoring_a_metric_with_parts_raises():
    with pytest.raises(errors.UnknownNameError, match="monitors 'test_chunks'.*Did you mean 'test_chunks_f1'"):
        tagging("test_chunks")


def test_metric_with_unnamed_parts_raises_argument_error():
    class Unnamed(fluid.metrics.ChunkEvaluator):
        parts = ()

    with pytest.raises(errors.ArgumentError, match=r"gave 3 numbers, expected 1: test_chunks\. .*parts = \("):
        tagging("test_chunks", Unnamed().of(**CHUNKS.inputs))


def test_unannounceable_metrics_raise_at_construction():
    inputs = {"preds": "scores", "labels": "label"}
    with pytest.raises(errors.ArgumentTypeError, match=r"metrics\['auc'\] is Auc\(\); .*\.of\("):
        H.TestEvery(reader(), metrics={"auc": fluid.metrics.Auc()})
    both = fluid.metrics.CompositeMetric()
    both.add_metric(fluid.metrics.Precision())
    both.add_metric(fluid.metrics.Precision())
    with pytest.raises(errors.ArgumentError, match="announce two numbers as 'both_Precision'"):
        H.TestEvery(reader(), metrics={"both": both.of(**inputs)})
    both.add_metric(fluid.metrics.Recall("precision"))
    with pytest.raises(errors.ArgumentError, match="announce two numbers as 'both_Precision'"):
        H.TestEvery(reader(), metrics={"recall": fluid.metrics.Recall().of(**inputs), "both": both.of(**inputs)})


def stops_after(values, patience, sign, min_delta):
    """Return the number of epochs until training stops, computed independently of EarlyStopping."""
    best, since = math.inf, 0
    for i, value in enumerate(values):
        since = 0 if sign * value < best - min_delta else since + 1
        best = sign * value if since == 0 else best
        if since == patience:
            return i + 1
    return len(values)


@pytest.mark.parametrize(
    "values, patience, mode, min_delta",
    [
        ([3, 2, 1, 1, 1, 1, 1], 2, "min", 0.0),
        ([3, 2, 2.5, 1, 2, 2, 2, 0], 3, "min", 0.0),
        ([3, 2.9, 2.8, 2.7, 2.6, 2.5], 2, "min", 0.5),
        ([1, 2, 3, 3, 4, 4, 4], 2, "max", 0.0),
        ([3, math.nan, math.nan, 1], 2, "min", 0.0),
        ([5, 4, 3, 2, 1], 1, "min", 0.0),
        ([1, 1, 1], 1, "max", 0.0),
    ],
)
@pytest.mark.parametrize("outside", [True, False])
def test_early_stopping_stops_after_its_patience(values, patience, mode, min_delta, outside):
    stopping = H.EarlyStopping("test_loss", patience=patience, mode=mode, min_delta=min_delta)
    rings = [stopping, Scripted(values)] if outside else [Scripted(values), stopping]
    trainer = make()
    trainer.train(reader(), num_epochs=len(values), handlers=rings)
    want = stops_after(values, patience, 1 if mode == "min" else -1, min_delta)
    assert int(trainer.session.scope.step) == 3 * want
    finite = [v for v in values[:want] if math.isfinite(v)]
    if not min_delta:
        assert stopping.best == (min(finite) if mode == "min" else max(finite))


def test_early_stopping_follows_the_epoch_mean():
    rates = [0.1, 0.1, 0.0, 0.0, 0.0, 0.0]  # with learning rate 0, the mean loss of later epochs does not change
    optimizer = fluid.optimizer.SGD(fluid.layers.piecewise_decay([3 * i for i in range(1, 6)], rates))
    trainer, recording = make(optimizer), Recording()
    stopping = H.EarlyStopping("loss", patience=2)
    trainer.train(reader(), num_epochs=6, handlers=[recording, stopping])
    means = np.asarray(recording.losses).reshape(-1, 3).mean(axis=1)
    assert len(means) == 5 and means[2] == means[3] == means[4] < means[1]
    assert stopping.best == pytest.approx(means.min(), rel=1e-12)


def test_early_stopping_resets_its_patience_per_call():
    stopping, trainer = H.EarlyStopping("test_loss", patience=2), make()
    for _ in range(2):
        trainer.train(reader(), num_epochs=9, handlers=[stopping, Scripted([1.0] * 9)])
    assert int(trainer.session.scope.step) == 3 * (3 + 2)


@pytest.mark.parametrize(
    "make_handler", [lambda m: H.EarlyStopping(m, mode="min"), lambda m: H.SaveBest("best.params", m, "min")]
)
@pytest.mark.parametrize("monitor, hint", [("tset_loss", "Did you mean 'test_loss'"), ("prediction", "Known names")])
def test_unmeasured_monitor_raises_before_the_first_step(make_handler, monitor, hint, in_tmp):
    trainer = make()
    with pytest.raises(errors.UnknownNameError, match=rf"monitors '{monitor}'.*{hint}"):
        trainer.train(reader(), handlers=[make_handler(monitor), H.TestEvery(reader())])
    assert int(trainer.session.scope.step) == 0


@pytest.mark.parametrize(
    "build, match",
    [
        (lambda: H.EarlyStopping("loss", mode="low"), 'expected "min", "max", or "auto"'),
        (lambda: H.EarlyStopping("loss", patience=0), "patience=0"),
        (lambda: H.EarlyStopping("loss", min_delta=-1), "min_delta=-1"),
        (lambda: H.SaveBest("p", "loss", mode=None), 'expected "min", "max", or "auto"'),
        (lambda: H.Profiler(steps=(5, 5)), r"steps=\(10, 13\)"),
        (lambda: H.Profiler(steps=(-1, 5)), r"steps=\(10, 13\)"),
    ],
)
def test_wrong_arguments_raise_argument_error(build, match):
    with pytest.raises(errors.ArgumentError, match=match):
        build()


@pytest.mark.parametrize("mode, values, best", [("min", [3, 1, 2, math.nan], 1), ("max", [3, 1, 5, 4], 2)])
def test_save_best_saves_the_best_epoch(mode, values, best, tmp_path):
    trainer, path, kept = make(), tmp_path / "best.params", []
    trainer.train(
        reader(),
        num_epochs=4,
        handlers=[H.SaveBest(path, "test_loss", mode=mode), Scripted(values)],
        event_handler=lambda e: isinstance(e, fluid.EndEpochEvent) and kept.append(trainer.params),
    )
    saved = make(param_path=path).params
    for name, value in kept[best].items():
        assert np.array_equal(saved[name], value)
    assert not np.array_equal(kept[-1]["fc_0.w_0"], saved["fc_0.w_0"])


def test_save_best_never_saves_nonfinite_parameters(tmp_path):
    trainer, path = make(), tmp_path / "best.params"

    def spoil(event):
        if isinstance(event, fluid.EndEpochEvent) and event.epoch == 1:
            trainer.session.scope["fc_0.b_0"] = [np.nan]

    with (
        pytest.warns(errors.FluidWarning, match="fc_0.b_0 holds NaN or infinity after this training"),
        pytest.warns(errors.FluidWarning, match=r"fc_0.b_0.* not finite; nothing was saved"),
    ):
        trainer.train(
            reader(), num_epochs=2, handlers=[H.SaveBest(path, "test_loss"), Scripted([2, 1])], event_handler=spoil
        )
    assert all(np.isfinite(value).all() for value in make(param_path=path).params.values())


def test_csv_has_means_and_tests_per_epoch(tmp_path):
    path, recording = tmp_path / "log.csv", Recording()
    make().train(
        reader(), num_epochs=3, handlers=[recording, H.TestEvery(reader()), H.CSVLogger(path)]
    )  # the logger gets the end of an epoch before the test of this epoch runs
    rows = table(path)
    assert list(rows[0]) == ["epoch", "step", "loss", "root", "test_loss", "test_root"]
    assert [(row["epoch"], row["step"]) for row in rows] == [("0", "3"), ("1", "6"), ("2", "9")]
    means = np.asarray(recording.losses).reshape(3, 3).mean(axis=1)
    np.testing.assert_allclose([float(row["loss"]) for row in rows], means, rtol=1e-8)
    tests = [values["test_loss"] for _, _, values in recording.measures_seen]
    assert np.float32([row["test_loss"] for row in rows]).tolist() == np.float32(tests).tolist()


def test_csv_by_steps_has_every_exact_loss(tmp_path):
    path, recording = tmp_path / "log.csv", Recording()
    handlers = [H.CSVLogger(path, every=1), recording, H.TestEvery(reader(), every="2 epochs")]
    make().train(reader(), num_epochs=2, handlers=handlers)
    rows = table(path)
    assert [int(row["step"]) for row in rows] == [1, 2, 3, 4, 5, 6]
    assert np.float32([row["loss"] for row in rows]).tolist() == recording.losses
    assert [bool(row["test_loss"]) for row in rows] == [False] * 5 + [True]


def test_the_csv_is_continued_without_repeated_rows(tmp_path):
    path, whole = tmp_path / "log.csv", tmp_path / "whole.csv"
    trainer = make()
    trainer.train(reader(), num_epochs=4, handlers=[H.CSVLogger(whole)])
    trainer = make()
    trainer.train(reader(), num_epochs=2, handlers=[H.CSVLogger(path)])
    trainer.session.save(tmp_path / "two")
    # The resumed training must remove the CSV rows of this epoch, because only the state after two epochs was saved.
    trainer.train(reader(), num_epochs=1, handlers=[H.CSVLogger(path)])
    with open(path, "a", encoding="utf-8") as file:
        file.write("3,12,0.")  # a process that is killed while it writes a row leaves an incomplete row
    trainer = make()
    trainer.session.load(tmp_path / "two")
    trainer.train(reader(), num_epochs=2, handlers=[H.CSVLogger(path)])
    # The column "epoch" is left out, because it counts the epochs within each call of `train`.
    numbers = [{k: v for k, v in row.items() if k != "epoch"} for row in table(path)]
    assert numbers == [{k: v for k, v in row.items() if k != "epoch"} for row in table(whole)]


def test_the_csv_of_another_training_is_moved_aside(tmp_path, caplog):
    path, whole = tmp_path / "logs" / "log.csv", []  # CSVLogger must create the folder `logs`
    for epochs in (1, 2, 3):
        make().train(reader(), epochs, handlers=[H.CSVLogger(path)])
        whole.append(table(path))
    assert [table(path.with_name(f"log.{i}.csv")) for i in (1, 2)] == whole[:2]
    assert [len(rows) for rows in whole] == [1, 2, 3]
    assert "log.csv held 2 rows of another training and is" in caplog.text and "log.2.csv now" in caplog.text
    assert sorted(file.name for file in path.parent.iterdir()) == ["log.1.csv", "log.2.csv", "log.csv"]


def test_csv_continues_after_resume_and_further_calls(tmp_path):
    path, config = tmp_path / "log.csv", fluid.CheckpointConfig(tmp_path / "c")
    for epochs in (1, 2):
        trainer = make(checkpoint_config=config)
        trainer.train(reader(), epochs, handlers=[H.CSVLogger(path)])
    trainer.train(reader(), 1, handlers=[H.CSVLogger(path)])
    assert [row["step"] for row in table(path)] == ["3", "6", "9"]
    assert [file.name for file in tmp_path.glob("*.csv")] == ["log.csv"]


@pytest.mark.parametrize("name", ["epoch", "step", "test_loss", "announced"])
def test_value_named_like_a_column_raises(name):
    def named():
        loss = train_program()["loss"]
        return {"loss": loss, "step" if name == "announced" else name: loss * 2}

    trainer = fluid.Trainer(train_program if name == "announced" else named, fluid.optimizer.SGD(0.1))
    handlers = [Scripted([1.0], "step")] if name == "announced" else []
    with pytest.raises(errors.ArgumentError, match="a value named '(epoch|step|test_loss)'.*another name"):
        trainer.train(reader(), handlers=handlers, test_reader=reader())
    assert int(trainer.session.scope.step) == 0


def test_a_csv_with_other_columns_is_refused(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("a,b\n1,2\n")
    trainer = make()
    with pytest.raises(errors.ArgumentError, match=r"has the columns \['a', 'b'\].*CSVLogger\(\"other.csv\"\)"):
        trainer.train(reader(), handlers=[H.CSVLogger(path)])
    assert path.read_text() == "a,b\n1,2\n"

    class Same(fluid.Handler):
        def measures(self):
            return ["loss"]

    with pytest.raises(errors.ArgumentError, match="value named 'loss'"):
        trainer.train(reader(), handlers=[H.CSVLogger(tmp_path / "x.csv"), Same()])


def test_handlers_announcing_the_same_name_raise():
    with pytest.raises(errors.ArgumentError, match=r"TestEvery and TestEvery both announce 'test_loss'.*name="):
        make().train(reader(), handlers=[H.TestEvery(reader()), H.TestEvery(reader())])
    with pytest.raises(errors.ArgumentTypeError, match=r"handlers=\[TestEvery\(\.\.\.\)\]"):
        make().train(reader(), handlers=[H.TestEvery])


def test_the_csv_holds_all_steps_before_an_error(tmp_path):
    path = tmp_path / "log.csv"

    def fail(event):
        if isinstance(event, fluid.BeginStepEvent) and event.epoch == 1 and event.step == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        make().train(reader(), num_epochs=2, handlers=[H.CSVLogger(path, every=1)], event_handler=fail)
    assert [int(row["step"]) for row in table(path)] == [1, 2, 3, 4]


def scalars(logdir):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(logdir), purge_orphaned_data=True)
    accumulator.Reload()
    tags = accumulator.Tags()["scalars"]
    return {tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in tags}


def test_tensorboard_reads_the_written_scalars(tmp_path):
    recording, threads = Recording(), threading.active_count()
    rings = [
        H.TensorBoard(tmp_path / "logs", every=2),
        recording,
        H.LearningRateMonitor(every=3),
        H.TestEvery(reader()),
    ]
    make().train(reader(), num_epochs=2, handlers=rings)
    found = scalars(tmp_path / "logs")
    assert set(found) == {"loss", "root", "learning_rate_0", "test_loss", "test_root"}
    means = np.asarray(recording.losses).reshape(3, 2).mean(axis=1)
    assert [step for step, _ in found["loss"]] == [2, 4, 6]
    np.testing.assert_allclose([value for _, value in found["loss"]], means, rtol=1e-6)
    assert found["learning_rate_0"] == [(3, np.float32(0.1)), (6, np.float32(0.1))]
    tests = [v["test_loss"] for _, _, v in recording.measures_seen if "test_loss" in v]
    assert [v for _, v in found["test_loss"]] == np.float32(tests).tolist()
    assert threading.active_count() == threads


def test_tensorboard_forgets_repeated_steps(tmp_path):
    trainer = make()
    trainer.train(reader(), handlers=[H.TensorBoard(tmp_path / "logs", every=1)])
    trainer.session.save(tmp_path / "saved")
    trainer.train(reader(), handlers=[H.TensorBoard(tmp_path / "logs", every=1)])
    assert [step for step, _ in scalars(tmp_path / "logs")["loss"]] == [1, 2, 3, 4, 5, 6]
    trainer.session.load(tmp_path / "saved")
    trainer.train(reader(8), handlers=[H.TensorBoard(tmp_path / "logs", every=1)])
    assert [step for step, _ in scalars(tmp_path / "logs")["loss"]] == list(range(1, 10))


@pytest.mark.parametrize(
    "build, package",
    [
        (lambda: H.TensorBoard("logs"), "tensorboard"),
        (lambda: H.LivePlot("p.png"), "matplotlib"),
        (lambda: H.MLflow(), "mlflow"),
        (lambda: H.WandB(), "wandb"),
    ],
)
def test_missing_optional_package_names_pip_install(build, package, monkeypatch):
    for module in ("tensorboard.compat.proto", "matplotlib.figure", "mlflow", "wandb"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(errors.ArgumentError, match=f"pip install {package}"):
        build()


def test_learning_rate_monitor_follows_the_schedule():
    rate = fluid.layers.noam_decay(d_model=64, warmup_steps=4)
    recording = Recording()
    make(fluid.optimizer.Adam(rate)).train(reader(), num_epochs=3, handlers=[recording, H.LearningRateMonitor()])
    found = [values["learning_rate_0"] for _, _, values in recording.measures_seen]
    n = np.arange(1, 10, dtype="float64")
    np.testing.assert_allclose(found, 64**-0.5 * np.minimum(n**-0.5, n * 4**-1.5), rtol=1e-6)


def test_monitoring_rate_of_bare_optax_raises():
    trainer = make(optax.sgd(0.1))
    with pytest.raises(errors.UnknownNameError, match="does not say its learning rate"):
        trainer.train(reader(), handlers=[H.LearningRateMonitor()])
    assert int(trainer.session.scope.step) == 0


def test_timer_splits_step_data_and_device_time(monkeypatch):
    """Check the metrics of the Timer handler by a fake clock: reading takes 3 s, a step 5 s, a device wait 2 s."""
    from fluid.handlers import timing

    now = 0.0
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    timer, announced = H.Timer(every=2), []
    waits = Waits()
    told = {"done": 0, "waits": waits, "__call__": lambda self, event: announced.append(event.metrics)}
    timer._notified_by = type("Told", (), told)()
    timer.begin_train(fluid.BeginTrainEvent(1))
    timer.begin_epoch(fluid.BeginEpochEvent(0))
    for step in range(6):
        now += 3.0 if step == 0 else 2.0  # the first minibatch is read before its step
        waits.device += 0.0 if step == 0 else 2.0
        waits.look(3.0 * (step + 1), idle=step % 2 == 1)
        timer.begin_step(fluid.BeginStepEvent(0, step, {}, seconds=3.0))
        now += 5.0
        timer._notified_by.done += 1
        timer.end_step(fluid.EndStepEvent(0, step, fluid.Results([0.0])))
    assert [dict(zip(m.names, m, strict=True)) for m in announced] == [
        {"step_ms": 7000.0, "data_ms": 3000.0, "data_wait_ms": wait, "device_ms": 2000.0}
        for wait in (3000.0, 1500.0, 1500.0)  # the announced times do not include the first step
    ]


def test_timer_announces_times_in_training():
    recording = Recording()
    make().train(reader(), num_epochs=4, handlers=[H.Timer(every=5), recording])
    assert len(recording.measures_seen) == 2
    for _, _, values in recording.measures_seen:
        assert values["step_ms"] > 0 and values["data_ms"] > 0 and values["device_ms"] >= 0
        assert 0 <= values["data_wait_ms"]


def test_the_profiler_writes_the_chosen_steps(tmp_path):
    make().train(reader(), num_epochs=3, handlers=[H.Profiler(steps=(4, 7), logdir=tmp_path)])
    (path,) = tmp_path.rglob("*.trace.json.gz")
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    steps = {int(e["args"]["step_num"]) for e in events if e.get("name") == "train" and "step_num" in e.get("args", {})}
    assert steps == {4, 5, 6}
    assert list(tmp_path.rglob("*.xplane.pb"))


@pytest.mark.parametrize("fails", [True, False])
def test_the_profiler_ends_with_the_training(tmp_path, fails):
    def fail(event):
        if fails and isinstance(event, fluid.EndStepEvent) and event.step == 1:
            raise ZeroDivisionError

    # JAX refuses a second trace while a trace still runs, so this loop fails if the first trace has not ended.
    for i in range(2):
        try:
            handlers = [H.Profiler(steps=(1, 100), logdir=tmp_path / str(i))]
            make().train(reader(), handlers=handlers, event_handler=fail)
        except ZeroDivisionError:
            assert fails
        assert list((tmp_path / str(i)).rglob("*.xplane.pb"))


def pixels(data):
    """Return the size of a PNG file, and the decompressed bytes of its pixels."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    place, parts, size = 8, [], None
    while place < len(data):
        (length,), kind = struct.unpack(">I", data[place : place + 4]), data[place + 4 : place + 8]
        body = data[place + 8 : place + 8 + length]
        if kind == b"IHDR":
            size = struct.unpack(">II", body[:8])
        elif kind == b"IDAT":
            parts.append(body)
        place += 12 + length
    return size, zlib.decompress(b"".join(parts))


def test_plot_changes_with_each_epoch(tmp_path):
    path, pictures = tmp_path / "curves.png", []

    def on_event(event):
        if isinstance(event, fluid.BeginEpochEvent) and path.exists():
            pictures.append(path.read_bytes())

    handlers = [H.LivePlot(path, every=1, interval=0), H.TestEvery(reader()), H.LearningRateMonitor()]
    make().train(reader(), num_epochs=3, handlers=handlers, event_handler=on_event)
    pictures.append(path.read_bytes())
    sizes, raw = zip(*map(pixels, pictures), strict=True)
    assert len(pictures) == 3 and len(set(raw)) == 3
    assert sizes[-1] == (1350, 300)  # three plots: loss with test_loss, root with test_root, learning rate
    assert not list(tmp_path.glob("*.partial"))


def test_plot_without_a_path_writes_training_png(in_tmp):
    make().train(reader(), handlers=[H.LivePlot()])
    size, raw = pixels((in_tmp / "training.png").read_bytes())
    assert size == (900, 300) and len(set(raw)) > 20


def test_notebook_plot_updates_a_single_output(monkeypatch, in_tmp):
    import IPython.display

    from fluid.handlers import plot

    shown, updated = [], []

    class Handle:
        def update(self, image):
            updated.append(image.data)

    def display(image, display_id):
        shown.append(image.data)
        return Handle()

    monkeypatch.setattr(plot, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", display)
    make().train(reader(), num_epochs=3, handlers=[H.LivePlot(every=1, interval=0)])
    assert len(shown) == 1 and len(updated) >= 2 and len({*shown, *updated}) >= 3
    assert not list(in_tmp.iterdir())


def test_measured_events_come_inside_end_step():
    seen, trainer = [], make()

    class Ring(fluid.Handler):
        def __init__(self, name):
            self.name = name

    for method in ("begin_train", "begin_epoch", "begin_step", "end_step", "end_epoch", "end_train", "measured"):
        setattr(Ring, method, lambda self, event, method=method: seen.append(f"{self.name} {method}"))
    trainer.train(reader(48), num_epochs=1, handlers=[Ring("a"), H.TestEvery(reader(), every=1), Ring("b")])
    begins = [f"{name} begin_{what}" for what in ("train", "epoch", "step") for name in "ab"]
    assert seen == [
        *begins,
        *["b end_step", "b measured", "a measured", "a end_step"],
        *[f"{name} end_{what}" for what in ("epoch", "train") for name in "ba"],
    ]


def test_no_handler_waits_for_steps_in_flight(tmp_path, monkeypatch):
    """Check that handlers read the values of a step only after the loop has waited for the step."""
    from fluid.runtime.in_flight import IN_FLIGHT
    from fluid.trainer.evaluation import means

    begun, read = [0], []
    on_host = means.on_host
    metrics_of = {}
    kept = []

    def reading(values):
        read.extend(begun[0] - metrics_of[id(value)] for value in values if id(value) in metrics_of)
        return on_host(values)

    monkeypatch.setattr(means, "on_host", reading)

    def on_event(event):
        if isinstance(event, fluid.BeginStepEvent):
            begun[0] += 1
        if isinstance(event, fluid.EndStepEvent):
            kept.append(event.metrics)
            metrics_of.update({id(v): begun[0] for v in event.metrics})

    lags = []
    handlers = [H.CSVLogger(tmp_path / "a.csv", every=3), H.EarlyStopping("loss"), H.TensorBoard(tmp_path, every=1)]

    def note(event):
        on_event(event)
        if isinstance(event, fluid.EndEpochEvent):
            lags.extend(read)

    def long():
        for _ in range(3):
            yield from reader(1)()

    make().train(long, num_epochs=1, handlers=handlers, event_handler=note)
    assert len(kept) == 3 * 48 and len(lags) > 48 and min(lags) >= IN_FLIGHT


def test_checkpoint_every_saves_at_its_interval(tmp_path):
    config = fluid.CheckpointConfig(tmp_path / "saved", None, epoch_interval=None, step_interval=None)
    trainer = make(checkpoint_config=config)
    trainer.train(reader(), num_epochs=4, handlers=[H.CheckpointEvery(every=5)])
    assert sorted(int(p.name) for p in (tmp_path / "saved").iterdir() if p.name.isdigit()) == [5, 10, 12]
    with pytest.raises(errors.CheckpointError, match="checkpoint_config=fluid.CheckpointConfig"):
        make().train(reader(), handlers=[H.CheckpointEvery()])
    with pytest.raises(errors.ArgumentError, match="is for handlers"):
        trainer.save_checkpoint()


def test_old_name_of_checkpoint_every_still_works(tmp_path):
    class Checkpoint(H.Checkpoint):
        """A handler of the old class name `Checkpoint` (now `CheckpointEvery`), with a state that checkpoints store."""

        steps = 0

        def end_step(self, event):
            self.steps += 1
            super().end_step(event)

        def state(self):
            return {"steps": self.steps}

        def restore(self, state):
            self.steps = state["steps"]

    class CheckpointEvery(Checkpoint):
        """A handler that has a new class name, but the same state as `Checkpoint`."""

    assert H.Checkpoint is H.CheckpointEvery
    config = fluid.CheckpointConfig(tmp_path, epoch_interval=None, step_interval=None)
    make(checkpoint_config=config).train(reader(), num_epochs=1, handlers=[Checkpoint()])
    for kind in (Checkpoint, CheckpointEvery):
        handler = kind()
        # The training continues from the last checkpoint, so it only restores the state and runs no step.
        make(checkpoint_config=config).train(reader(), num_epochs=1, handlers=[handler])
        assert handler.steps == 3, kind


def test_handlers_resume_with_the_training(tmp_path):
    """Check that an aborted and rerun training logs, stops and saves the best like an uninterrupted training."""

    def run(folder, breaks=None):
        config = fluid.CheckpointConfig(folder / "saved", epoch_interval=None, step_interval=2)
        stopping = H.EarlyStopping("test_loss", patience=3)
        saving = H.SaveBest(folder / "best.params", "root", "min")
        script = Scripted([5, 4, 4, 4, 4, 4, 4])

        def fail(event):
            if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == breaks:
                raise ZeroDivisionError

        trainer = make(checkpoint_config=config)
        handlers = [
            H.CSVLogger(folder / "log.csv"),
            H.CSVLogger(folder / "steps.csv", every=4),
            stopping,
            saving,
            script,
        ]
        trainer.train(reader(), num_epochs=7, handlers=handlers, event_handler=fail)
        return trainer, stopping.best, saving.best

    plain, broken = tmp_path / "plain", tmp_path / "broken"
    plain.mkdir()
    broken.mkdir()
    trainer, *want = run(plain)
    assert int(trainer.session.scope.step) == 15  # EarlyStopping ends the training after five epochs
    for breaks in ((1, 1), (2, 2), (4, 0)):
        with pytest.raises(ZeroDivisionError):
            run(broken, breaks)
    again, *found = run(broken)
    assert found == want and int(again.session.scope.step) == 15
    for name in ("log.csv", "steps.csv"):
        assert (broken / name).read_text() == (plain / name).read_text()
    best, other = (make(param_path=folder / "best.params").params for folder in (plain, broken))
    assert all(np.array_equal(best[name], other[name]) for name in best)
    finished, *_ = run(broken)  # a training that stopped early does not continue in a rerun
    assert int(finished.session.scope.step) == 15


def test_stopped_training_does_not_warn_of_unmeasured_value(tmp_path):
    trainer = make()

    def stop(event):
        if isinstance(event, fluid.EndStepEvent):
            trainer.stop()

    saving = H.SaveBest(tmp_path / "best.params", "test_loss")
    testing = H.TestEvery(reader(), every=1000)
    trainer.train(reader(), handlers=[saving, testing], event_handler=stop)  # a warning would fail this test
    assert saving.best is None
    with pytest.warns(errors.FluidWarning, match="SaveBest follows 'test_loss', .* in a training of 3 steps"):
        trainer.train(reader(), handlers=[saving, testing])


def test_comparing_an_event_with_a_class_raises():
    assert fluid.BeginEpochEvent(1) == fluid.BeginEpochEvent(1) != fluid.BeginEpochEvent(2)
    assert fluid.BeginEpochEvent(1) != 1 and hash(fluid.BeginEpochEvent(1)) == hash(fluid.BeginEpochEvent(1))
    with pytest.raises(errors.ArgumentTypeError, match=r"isinstance\(event, fluid.EndEpochEvent\)"):
        assert fluid.BeginEpochEvent(1) == fluid.EndEpochEvent
    with pytest.raises(errors.ArgumentTypeError, match=r"isinstance\(event, fluid.EndEpochEvent\)"):
        assert fluid.BeginEpochEvent(1) == "EndEpochEvent"
