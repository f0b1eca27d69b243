"""Validation during training: tests, averages, best parameters and history agree with events and custom loops."""

import inspect
import json
import signal
from functools import partial

import numpy as np
import pytest
from compile_counts import counted

import fluid
from fluid import errors
from fluid import handlers as H
from fluid.optimizer import SGD, ExponentialMovingAverage

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]] + 0.7).astype("float32")
EMA = ExponentialMovingAverage(0.8)


def program():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    guess = fluid.layers.identity(fluid.layers.fc(x, size=1), name="guess")
    error = guess - y
    loss = fluid.layers.mean(fluid.layers.square(error))
    worst = fluid.layers.reduce_max(fluid.layers.abs(error))
    return {"loss": loss, "worst": worst, "guess": guess, "off": fluid.layers.reduce_sum(error)}


def make(optimizer=None, **options):
    return fluid.Trainer(program, optimizer or SGD(0.1), **options)


def reader(batch_size=16):  # the last minibatch has 2 of the 50 rows
    return fluid.reader.arrays((X, Y), batch_size=batch_size)


def test_reader():
    return fluid.reader.arrays((X[:21] + 0.1, Y[:21]), batch_size=8)


test_reader.__test__ = False


class Scripted(fluid.Handler):
    """A handler that announces `values[epoch]` under `name` at the end of each epoch."""

    def __init__(self, values, name="score"):
        self.values, self.name = values, name

    def measures(self):
        return [self.name]

    def end_epoch(self, event):
        self.announce(event.epoch, event.steps - 1, {self.name: self.values[event.epoch]})


class Bias(fluid.metrics.MetricBase):
    """A metric that computes the mean of `guesses - truths` over all rows."""

    def reset(self):
        self.total, self.count = 0.0, 0

    def update(self, guesses, truths):
        self.total += float(np.sum(guesses - truths, dtype="float64"))
        self.count += len(guesses)

    def eval(self):
        return self.total / self.count


BIAS = Bias().of(guesses="guess", truths="y")


def by_hand(num_epochs, batch_size=16):
    """Train step by step with `session.run`; return a dict of columns with one number per epoch.

    The columns have the mean loss weighted by examples, the maximum and the sum over the steps of the epoch, and the
    results of a test after the epoch.
    """
    trainer, columns = make(), {name: [] for name in ("loss", "worst", "off", "test_loss", "test_worst", "test_off")}
    for _ in range(num_epochs):
        steps = []
        for start in range(0, len(X), batch_size):
            feed = {"x": X[start : start + batch_size], "y": Y[start : start + batch_size]}
            found = trainer.session.run("program", feed, mode="train")
            steps.append((len(feed["x"]), *(float(found[name]) for name in ("loss", "worst", "off"))))
        sizes, losses, worsts, offs = np.array(steps).T
        tested = trainer.test(test_reader())
        values = (
            np.average(losses, weights=sizes),
            worsts.max(),
            offs.sum(),
            *(tested[n] for n in ("loss", "worst", "off")),
        )
        for column, value in zip(columns.values(), values, strict=True):
            column.append(value)
    return columns


def test_validation_history_equals_single_steps_by_hand():
    want, trainer = by_hand(3), make()
    history = trainer.train(reader(), 3, test_reader=test_reader(), metrics={"bias": BIAS})
    assert list(history) == ["epoch", "step", *list(want)[:3], *list(want)[3:], "test_bias"]
    assert history["epoch"] == [0, 1, 2] and history["step"] == [4, 8, 12]
    for name, column in want.items():
        np.testing.assert_allclose(history[name], column, rtol=1e-5)
    assert history["test_bias"][-1] == pytest.approx(trainer.test(test_reader(), metrics={"bias": BIAS})["bias"])
    assert trainer.history is history


def test_metrics_and_losses_share_a_single_pass():
    passes = []

    def counted_reader():
        passes.append(None)
        yield from test_reader()()

    told = []
    make().train(
        reader(),
        2,
        test_reader=counted_reader,
        metrics={"bias": BIAS},
        event_handler=lambda e: isinstance(e, fluid.MeasuredEvent) and told.append(e.metrics.names),
    )
    assert told == [["test_loss", "test_worst", "test_off", "test_bias"]] * 2 and len(passes) == 2


def test_test_every_runs_tests_at_its_step_interval():
    trainer, told = make(), []
    on_event = lambda e: isinstance(e, fluid.MeasuredEvent) and told.append((e.epoch, e.step))  # noqa: E731
    history = trainer.train(reader(), 2, on_event, test_reader=test_reader(), test_every=3)
    assert told == [(0, 2), (1, 1)]
    assert len(history["test_loss"]) == 2 and not np.isnan(history["test_loss"]).any()


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"metrics": {"bias": BIAS}}, errors.ArgumentError, r"needs what to test on: train\(\.\.\., test_reader="),
        ({"restore_best": True}, errors.UnknownNameError, "monitors 'test_loss', which nothing here measures"),
        ({"restore_best": ("loss", "low")}, errors.ArgumentError, 'restore_best=\\("test_accuracy", "max"\\)'),
        ({"test_reader": [], "metrics": {"loss": BIAS}}, errors.ArgumentError, "'loss' has the name of an output"),
        ({"test_reader": [], "test_every": "day"}, errors.ArgumentError, "every='day'"),
        (
            {"test_reader": [], "metrics": {"b": Bias().of(guesses="gess", truths="y")}},
            errors.UnknownNameError,
            "no value 'gess'",
        ),
    ],
)
def test_wrong_validation_arguments_raise_before_the_first_step(options, error, match):
    trainer = make()
    with pytest.raises(error, match=match):
        trainer.train(reader(), **options)
    assert int(trainer.session.scope.step) == 0


def test_fluid_train_passes_validation_arguments():
    trainer = fluid.train(program, reader(), 2, SGD(0.1), test_reader=test_reader(), restore_best=True)
    assert trainer.test(test_reader())["loss"] == min(trainer.history["test_loss"])


def kept_by(trainer, into):
    """Return an event handler that appends a copy of the parameters to `into` at the end of each epoch."""
    return lambda e: (
        isinstance(e, fluid.EndEpochEvent)
        and into.append({name: np.array(value) for name, value in trainer.params.items()})
    )


def assert_same(found, wanted):
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value)


@pytest.mark.parametrize(
    ("best", "values", "place"),
    [
        (("score", "max"), [1, 5, 2, 3], 1),
        (("score", "min"), [3, 2, 1, 4], 2),
        (("score", "min"), [1, np.nan, 2, 0.5], 3),
    ],
)
def test_the_best_parameters_are_restored(best, values, place):
    trainer, kept = make(), []
    trainer.train(reader(), 4, kept_by(trainer, kept), handlers=[Scripted(values)], restore_best=best)
    assert_same(trainer.params, kept[place])
    assert trainer.session.scope.step == 16  # `restore_best` restores parameters, and leaves the step counter unchanged


def test_early_stopping_combines_with_restore_best():
    # After step 8 the learning rate is negative, so the loss rises again.
    trainer = make(SGD(fluid.layers.piecewise_decay([8], [0.1, -0.3])))
    stopping = H.EarlyStopping("test_loss", patience=2)
    history = trainer.train(reader(), 50, handlers=[stopping], test_reader=test_reader(), restore_best=True)
    assert history["test_loss"].index(min(history["test_loss"])) == len(history["test_loss"]) - 3
    assert trainer.test(test_reader())["loss"] == min(history["test_loss"]) == stopping.best


def test_an_error_leaves_the_last_parameters():
    trainer, kept = make(), []

    def on_event(event):
        kept_by(trainer, kept)(event)
        if isinstance(event, fluid.EndEpochEvent) and event.epoch == 1:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trainer.train(reader(), 3, on_event, handlers=[Scripted([1, 2, 3])], restore_best=("score", "min"))
    assert_same(trainer.params, kept[1])


def interrupted(trainer, epoch, step, **options):
    """Train for 4 epochs, interrupted by SIGINT at the end of step `step` of epoch `epoch`; return the reader."""

    def on_event(event):
        if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (epoch, step):
            signal.raise_signal(signal.SIGINT)

    source = reader()
    with pytest.raises(KeyboardInterrupt):
        trainer.train(source, 4, on_event, **options)
    return source


def test_best_before_an_interruption_is_restored_after_resume():
    values, wanted, kept = [3, 1, 2, 4], make(), []
    wanted.train(reader(), 4, kept_by(wanted, kept), handlers=[Scripted(values)], restore_best=("score", "min"))
    trainer = make()
    source = interrupted(trainer, 2, 1, handlers=[Scripted(values)], restore_best=("score", "min"))
    trainer.train(source, 4, handlers=[Scripted(values)], restore_best=("score", "min"))
    assert_same(trainer.params, kept[1])
    again = trainer.train(
        source, 4, handlers=[Scripted([9, 8, 9, 9])], restore_best=("score", "min")
    )  # this call begins a new training, so the best value of the previous training no longer counts
    assert again["score"] == [9, 8, 9, 9]
    assert not np.array_equal(trainer.params["fc_0.w_0"], kept[1]["fc_0.w_0"])


def test_best_before_a_kill_is_restored_after_resume(tmp_path):
    def run(folder, fails=None):
        config = fluid.CheckpointConfig(tmp_path / folder, step_interval=2)
        trainer = make(checkpoint_config=config)

        def fail(event):
            if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == fails:
                raise ZeroDivisionError

        options = {"handlers": [Scripted([3, 1, 2, 4])], "restore_best": ("score", "min"), "test_reader": test_reader()}
        return trainer, trainer.train(reader(), 4, fail, **options)

    plain, history = run("plain")
    with pytest.raises(ZeroDivisionError):
        run("broken", (2, 3))
    broken, resumed = run("broken")
    assert_same(broken.params, {n: np.array(v) for n, v in plain.params.items()})
    assert dict(resumed) == dict(history)
    finished, again = run("broken")  # a third run trains no epoch, and its Trainer has the best parameters
    assert_same(finished.params, {n: np.array(v) for n, v in plain.params.items()})
    assert dict(again) == dict(history)


def test_the_best_in_memory_cannot_survive_a_process(tmp_path):
    config = fluid.CheckpointConfig(tmp_path)
    saving = lambda: H.SaveBest(None, "loss", restore=True)  # noqa: E731
    make(checkpoint_config=config).train(reader(), 1, handlers=[saving()])
    with pytest.raises(errors.ArgumentError, match=r'SaveBest\("best.params", ...\)'):
        make(checkpoint_config=config).train(reader(), 2, handlers=[saving()])
    with pytest.raises(errors.ArgumentError, match="would save nowhere"):
        H.SaveBest(None, "loss")


def averaged(trainer):
    with EMA.apply(trainer):
        return {name: np.array(value) for name, value in trainer.params.items()}


def test_save_best_saves_the_tested_average(tmp_path):
    trainer, path, kept, told = make(EMA.track(SGD(0.1))), tmp_path / "best.params", [], []

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            kept.append(averaged(trainer))
        if isinstance(event, fluid.MeasuredEvent):
            told.append(event.metrics["test_loss"])

    handlers = [H.SaveBest(path, "test_loss"), H.TestEvery(test_reader(), average=EMA)]
    history = trainer.train(reader(), 3, on_event, handlers=handlers)
    best = int(np.argmin(told))
    saved = make(param_path=path)
    assert_same(saved.params, kept[best])
    assert saved.test(test_reader())["loss"] == told[best] == history["test_loss"][best]
    assert not trainer.session.engine.replaced
    # TestEvery replaces the parameters by their averages, but only during its tests. So this test uses the parameters.
    assert trainer.test(test_reader())["loss"] != told[-1]


def test_restore_best_restores_the_tested_average():
    trainer = make(EMA.track(SGD(0.1)))
    handlers = [H.TestEvery(test_reader(), average=EMA)]
    history = trainer.train(reader(), 3, handlers=handlers, restore_best=True)
    assert trainer.test(test_reader())["loss"] == min(history["test_loss"])


@pytest.mark.parametrize("inside", [True, False])
def test_value_announced_for_an_average_saves_the_average(inside, tmp_path):
    class Mine(fluid.Handler):
        def measures(self):
            return ["mine", "norm"]

        def end_epoch(self, event):
            with EMA.apply(self.trainer):
                loss = self.trainer.test(test_reader())["loss"]
                if inside:
                    self.announce(event.epoch, event.steps - 1, {"mine": loss})
            if not inside:
                self.announce(event.epoch, event.steps - 1, {"mine": loss})
            self.announce(event.epoch, event.steps - 1, {"norm": -float(self.trainer.session.scope.step)})

    trainer = make(EMA.track(SGD(0.1)))
    tested, other = tmp_path / "tested.params", tmp_path / "other.params"
    trainer.train(reader(), 1, handlers=[H.SaveBest(tested, "mine", "min"), H.SaveBest(other, "norm", "min"), Mine()])
    assert_same(make(param_path=tested).params, averaged(trainer))
    # The handler announces "norm" without a test of the averages, so SaveBest saves the current parameters.
    assert_same(make(param_path=other).params, {n: np.array(v) for n, v in trainer.params.items()})


def test_training_inside_ema_apply_raises():
    trainer = make(EMA.track(SGD(0.1)))
    trainer.train(reader(), 1)
    before = {name: np.array(value) for name, value in trainer.session.state().items()}
    feed = {"x": X[:8], "y": Y[:8]}
    for step in (lambda: trainer.train(reader(), 1), lambda: trainer.session.run("program", feed, mode="train")):
        with EMA.apply(trainer), pytest.raises(errors.ArgumentError, match="holds its average now.*behind the block"):
            step()
    with EMA.apply(trainer, need_restore=False):
        pass
    with pytest.raises(errors.ArgumentError, match=r"after average.restore\(trainer\)"):
        trainer.train(reader(), 1)
    EMA.restore(trainer)
    for name, value in trainer.session.state().items():
        np.testing.assert_array_equal(value, before[name])
    trainer.train(reader(), 1)


def test_programs_without_averaged_parameters_train_inside_apply():
    def first():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1, name="first"))
        SGD(0.1).minimize(loss)
        EMA.update()
        return loss

    def second():
        loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1, name="second"))
        SGD(0.1).minimize(loss)
        return loss

    session = fluid.Session(first, second)
    session.run(first, {"x": X})
    with EMA.apply(session):
        session.run(second, {"x": X})
        with pytest.raises(errors.ArgumentError, match="'first.w_0' holds its average"):
            session.run(first, {"x": X})


def test_untracked_average_raises_before_the_first_step():
    trainer = make()
    with pytest.raises(errors.ArgumentError, match="no program here keeps"):
        trainer.train(reader(), handlers=[H.TestEvery(test_reader(), average=EMA)])
    with pytest.raises(errors.ArgumentTypeError, match="average=0.9"):
        H.TestEvery(test_reader(), average=0.9)
    assert int(trainer.session.scope.step) == 0


def test_keep_best_keeps_checkpoint_of_best_measured_value(tmp_path):
    config = fluid.CheckpointConfig(
        tmp_path, max_num_checkpoints=1, epoch_interval=None, step_interval=None, keep_best=("test_loss", "min")
    )
    trainer = make(EMA.track(SGD(0.1)), checkpoint_config=config)
    kept = []

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent):
            kept.append({name: np.array(value) for name, value in trainer.session.state().items()})

    rates = fluid.layers.piecewise_decay([8], [0.1, -0.2])
    trainer = make(EMA.track(SGD(rates)), checkpoint_config=config)
    history = trainer.train(reader(), 5, on_event, handlers=[H.TestEvery(test_reader(), average=EMA)])
    best = int(np.argmin(history["test_loss"]))
    assert 0 < best < 4
    steps = sorted(int(p.name) for p in tmp_path.iterdir() if p.name.isdigit())
    assert steps == [history["step"][best], 20]
    score = json.loads((tmp_path / str(steps[0]) / "meta.json").read_text())["score"]
    assert score == {"output": "test_loss", "mode": "min", "value": history["test_loss"][best]}
    trainer.restore("best")
    assert_same({n: np.array(v) for n, v in trainer.session.state().items()}, kept[best])
    with EMA.apply(trainer):
        assert trainer.test(test_reader())["loss"] == history["test_loss"][best]


def test_keep_best_of_unmeasured_value_raises_unknown_name(tmp_path):
    trainer = make(checkpoint_config=fluid.CheckpointConfig(tmp_path, keep_best=("test_los", "min")))
    with pytest.raises(
        errors.UnknownNameError, match="'test_los', which nothing here measures. Did you mean 'test_loss'"
    ):
        trainer.train(reader(), test_reader=test_reader())
    assert int(trainer.session.scope.step) == 0


MAKERS = {
    "EarlyStopping": lambda folder: H.EarlyStopping("score", mode="min", patience=2),
    "EarlyStopping on an output": lambda folder: H.EarlyStopping("loss", patience=2, mode="max"),
    "SaveBest": lambda folder: H.SaveBest(folder / "best.params", "score", "min"),
    "SaveBest in memory": lambda folder: H.SaveBest(None, "score", "min", restore=True),
    "CSVLogger": lambda folder: H.CSVLogger(folder / "log.csv", every=3),
    "TensorBoard": lambda folder: H.TensorBoard(folder / "logs", every=3),
    "LivePlot": lambda folder: H.LivePlot(folder / "plot.png", every=8),
    "Timer": lambda folder: H.Timer(every=3),
    "Profiler": lambda folder: H.Profiler(steps=(1, 2), logdir=folder / "profile"),
    "LearningRateMonitor": lambda folder: H.LearningRateMonitor(),
    "TerminateOnNaN": lambda folder: H.TerminateOnNaN(every=3),
    "TestEvery": lambda folder: H.TestEvery(test_reader(), every=3),
    "CheckpointEvery": lambda folder: H.CheckpointEvery(every=3),
    "ProgressBar": lambda folder: fluid.ProgressBar(show=True),
    "GradientMonitor": lambda folder: H.GradientMonitor(every=3),
    "ReduceLROnPlateau": lambda folder: H.ReduceLROnPlateau("score", mode="min", factor=0.5, patience=2),
    "MLflow": lambda folder: H.MLflow("digits", f"sqlite:///{folder.parent}/mlflow.db", every=3),
    "WandB": lambda folder: H.WandB("digits", every=3, mode="offline", dir=folder),
    "every": lambda folder: H.every(3)(partial(append_step, folder / "steps.csv")),
    "once": lambda folder: H.once("2 epochs")(partial(append_step, folder / "steps.csv")),
}
SLOW = ("MLflow", "WandB")


def append_step(path, event):
    """Append the epoch of an event, and its step if there is one, to a file."""
    with open(path, "a", encoding="utf-8") as file:
        print(event.epoch, getattr(event, "step", None), file=file)


def test_table_of_fresh_starts_has_every_handler():
    kinds = {name for name in H.__all__ if not (inspect.isclass(getattr(H, name)) and name in ("Handler", "Logger"))}
    kinds -= {"NonFiniteReport"}
    assert kinds == {name.split()[0] for name in MAKERS}


def seen_of(handler, folder, trainer):
    """Train with `handler`; return the results of the training and of the handler, to compare two handlers.

    The results are the announced metrics, the number of steps, the parameters, the best value and the files.
    """
    told = []
    trainer.train(
        reader(),
        4,
        lambda e: isinstance(e, fluid.MeasuredEvent) and told.append((e.epoch, e.step, list(e.metrics.names))),
        handlers=[handler, Scripted([4, 3, 3, 3])],
    )
    params = {name: np.array(value).tolist() for name, value in trainer.params.items()}
    best = getattr(handler, "best", None)
    text = {p.name: p.read_bytes() for p in folder.glob("*.csv")}
    saved = {p.name: make(param_path=p).params["fc_0.w_0"].tolist() for p in folder.glob("*.params")}
    return told, int(trainer.session.scope.step), params, best, text, saved


# The ignored warning comes from MLflow.
@pytest.mark.sample(3)
@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy is deprecated")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full) if n in SLOW else n for n in MAKERS])
def test_reused_handler_starts_fresh_in_another_trainer(name, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    folders = [tmp_path / part for part in ("used", "new", "a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    used = MAKERS[name](folders[0])

    def trained(folder):
        return make(SGD(0.05), checkpoint_config=fluid.CheckpointConfig(folder, step_interval=None))

    first = trained(folders[2])
    # A handler that kept the best value 0.5 would find no better value in the next training (values 4 and 3).
    first.train(reader(), 2, handlers=[used, Scripted([0.5, 0.5])])
    for path in folders[0].glob("*.*"):  # deletes files of the first training; only the second is compared
        path.unlink() if path.is_file() else None
    found = seen_of(used, folders[0], trained(folders[3]))
    assert found == seen_of(MAKERS[name](folders[1]), folders[1], trained(folders[4]))


def test_reused_early_stopping_forgets_the_first_trainers_best():
    stopping = H.EarlyStopping("score", mode="min", patience=1)
    make().train(reader(), 3, handlers=[stopping, Scripted([0.1, 0.2, 0.3])])
    second = make()
    second.train(reader(), 3, handlers=[stopping, Scripted([3.0, 2.0, 1.0])])
    assert int(second.session.scope.step) == 12 and stopping.best == 1.0


def test_a_history_is_read_like_a_dict():
    history = make().train(reader(), 2)
    assert dict(history)["epoch"] == [0, 1] and "loss" in history and "los" not in history and len(history) == 5
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'loss'"):
        history["los"]
    assert repr(history).startswith("History(2 epochs: loss ") and "\n" not in repr(history)
    history["loss"].clear()
    assert len(history["loss"]) == 2
    assert repr(make().train(reader(), 0)) == "History(0 epochs)"


def test_history_converts_to_a_pandas_table():
    history = make().train(reader(), 3, test_reader=test_reader(), test_every="2 epochs")
    table = history.to_pandas()
    assert table.index.tolist() == [0, 1, 2] and table.columns.tolist() == list(history)[1:]
    assert table["loss"].tolist() == history["loss"]
    assert table["test_loss"].isna().tolist() == [True, False, True]


def test_history_plots_to_a_png_file(in_tmp):
    history = make().train(reader(), 3, test_reader=test_reader(), test_every="2 epochs")
    history.plot()
    history.plot("mine.png")
    pictures = [(in_tmp / name).read_bytes() for name in ("history.png", "mine.png")]
    assert pictures[0] == pictures[1] and pictures[0].startswith(b"\x89PNG")


@pytest.mark.parametrize(("call", "module"), [("to_pandas", "pandas"), ("plot", "matplotlib.figure")])
def test_missing_package_names_the_pip_command(call, module, monkeypatch):
    history = make().train(reader(), 1)
    monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(errors.ArgumentError, match=f"pip install {module.partition('.')[0]}"):
        getattr(history, call)()


def test_stopped_epoch_has_a_row_with_late_values():
    class Late(fluid.Handler):
        def measures(self):
            return ["late"]

        def end_train(self, event):
            self.announce(1, 1, {"late": 7.0})

    trainer = make()
    stop = lambda e: isinstance(e, fluid.EndStepEvent) and (e.epoch, e.step) == (1, 1) and trainer.stop()  # noqa: E731
    history = trainer.train(reader(), 3, stop, handlers=[Late()])
    assert history["step"] == [4, 6]
    np.testing.assert_equal(history["late"], [np.nan, 7.0])


def test_history_continues_after_ctrl_c():
    plain, trainer = make().train(reader(), 4, test_reader=test_reader()), make()
    source = interrupted(trainer, 1, 2, test_reader=test_reader())
    assert trainer.history["epoch"] == [0]
    history = trainer.train(source, 4, test_reader=test_reader())
    assert dict(history) == dict(plain)


def test_end_epoch_event_has_the_epoch_metrics():
    want, found = by_hand(2), []
    make().train(reader(), 2, lambda e: isinstance(e, fluid.EndEpochEvent) and found.append(e.metrics))
    assert found[0].names == ["loss", "worst", "off"]
    for name in ("loss", "worst", "off"):
        np.testing.assert_allclose([float(metrics[name]) for metrics in found], want[name], rtol=1e-5)
    assert fluid.EndEpochEvent(0, 3).metrics.names == []


def long():
    for _ in range(60):
        yield from reader()()


def test_long_epoch_means_are_exact_with_bounded_memory():
    from fluid.trainer.evaluation.means import TrainingMeans

    losses, worsts, offs, sizes, waiting = [], [], [], [], []

    class Watching(fluid.Handler):
        def end_step(self, event):
            losses.append(float(event.metrics["loss"]))
            worsts.append(float(event.metrics["worst"]))
            offs.append(float(event.metrics["off"]))
            sizes.append(event.examples)
            means = next(v for v in vars(self._dispatcher._handlers[0]).values() if isinstance(v, TrainingMeans))._only
            waiting.append(len(means._unread))

    history = make(SGD(1e-3)).train(long, 1, handlers=[Watching()])
    assert len(losses) == 240 and max(waiting) < 80 and set(sizes) == {16, 2}
    assert history["loss"] == [pytest.approx(np.average(np.float64(losses), weights=sizes), rel=1e-12)]
    assert history["worst"] == [max(worsts)]
    assert history["off"] == [pytest.approx(np.sum(offs), rel=1e-9)]


def test_history_of_interrupted_long_epoch_equals_uninterrupted(tmp_path):
    """Check that means over an epoch continue from a checkpoint within the epoch, so the history does not change."""

    def run(folder, fails=None):
        trainer = make(checkpoint_config=fluid.CheckpointConfig(tmp_path / folder, step_interval=50))

        def fail(event):
            if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == fails:
                raise ZeroDivisionError

        return trainer.train(lambda: long(), 2, fail)

    plain = run("plain")
    for fails in ((0, 120), (1, 220)):
        with pytest.raises(ZeroDivisionError):
            run("broken", fails)
    resumed = run("broken")
    for name in plain:
        np.testing.assert_allclose(resumed[name], plain[name], rtol=1e-12)


def test_unread_epoch_metrics_do_not_block_the_step(monkeypatch):
    """Check that training does not wait for metrics: it reads a metric only IN_FLIGHT or more steps later.

    The means of each epoch must still be right.
    """
    from fluid.runtime.in_flight import IN_FLIGHT
    from fluid.trainer.evaluation import means

    begun, lags, made, kept = [0], [], {}, []
    on_host = means.on_host

    def reading(values):
        lags.extend(begun[0] - made[id(value)] for value in values if id(value) in made)
        return on_host(values)

    def on_event(event):
        begun[0] += isinstance(event, fluid.BeginStepEvent)
        if isinstance(event, fluid.EndStepEvent):
            kept.append(event.metrics)
            made.update({id(value): begun[0] for value in event.metrics})
        if isinstance(event, fluid.EndTrainEvent):
            assert len(lags) > 12 and min(lags) >= IN_FLIGHT

    wanted = make(SGD(1e-3)).train(long, 2)
    monkeypatch.setattr(means, "on_host", reading)
    make().train(reader(), 30, on_event)
    lags.clear()  # at the end of a training, the last metrics are read without a lag
    found = make(SGD(1e-3)).train(long, 2, on_event)
    for name, column in wanted.items():
        np.testing.assert_allclose(found[name], column, rtol=1e-12)


def test_gathering_compiles_nothing():
    trainer = make()
    trainer.train(reader(), 1)
    with counted() as compiled:
        trainer.train(long, 2)
    assert compiled == []


def test_test_keeping_many_rows_warns_once_with_fix(monkeypatch):
    monkeypatch.setattr("fluid.trainer.evaluation.evaluate.MANY", 50)
    trainer = make()
    with pytest.warns(errors.FluidWarning, match=r"rows of 'guess' \(\d+ B\) so far") as found:
        kept = trainer.test(test_reader())["guess"]
    assert "trainer.test(reader, fetch=['loss', 'worst', 'off'])" in str(found[0].message)
    assert len(kept) == 21
    # pytest would turn a second warning of the same Trainer into an error.
    np.testing.assert_array_equal(trainer.test(test_reader())["guess"], kept)
    scalars = make().test(test_reader(), fetch=["loss", "worst", "off"])
    assert list(scalars.keys()) == ["loss", "worst", "off"]
    assert len(make().test(test_reader(), fetch=["guess"])[0]) == 21  # no warning, because the user fetches these rows
    make().train(reader(), 1, test_reader=test_reader(), restore_best=True)  # a test during training keeps no rows


def test_population_keeping_many_rows_warns_once(monkeypatch):
    monkeypatch.setattr("fluid.trainer.evaluation.evaluate.MANY", 50)
    population = fluid.Population(program, SGD(0.1), size=2)
    with pytest.warns(errors.FluidWarning, match="rows of 'guess'"):
        population.test(test_reader())
