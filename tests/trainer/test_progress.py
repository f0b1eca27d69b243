"""The progress of a training: a bar on a terminal, and a single table in a notebook."""

import atexit
import builtins
import logging
import os
import re
import signal
import sys
import threading

import numpy as np
import pytest
from training_notebook import Table

import fluid
from fluid.runtime.in_flight import IN_FLIGHT

X = np.random.default_rng(0).normal(size=(24, 2)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def program():
    x, y = fluid.layers.data("x", shape=[2]), fluid.layers.data("y", shape=[1])
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))
    return {"loss": loss, "tenfold": loss * 10.0}


def make():
    return fluid.Trainer(program, fluid.optimizer.SGD(0.05))


def reader(batch_size=4):
    return fluid.reader.arrays((X, Y), batch_size=batch_size)


class Losses(fluid.Handler):
    """A handler that records the losses of all steps: `of[epoch]` is the list of an epoch."""

    def __init__(self):
        self.of = {}

    def end_step(self, event):
        self.of.setdefault(event.epoch, []).append(float(event.metrics["loss"]))


def drawn(text):
    """Return all lines that a progress bar has drawn in the terminal output `text`, in order."""
    return [line.strip() for line in text.replace("\r", "\n").splitlines() if line.strip()]


def drawing():
    """Return the live threads of fluid that redraw a progress bar while XLA compiles, without the thread of tqdm."""
    return [thread for thread in threading.enumerate() if thread.name == "fluid-progress"]


class Shell:
    """An IPython shell with a fake kernel, as in a notebook; it records the outputs of its cells.

    Attributes:
      publisher: sends messages to the front end.
      published: all messages to the front end, as dicts; `update` is True if a message replaces an earlier output.
    """

    def __init__(self, shell):
        self._shell = shell
        self.publisher = shell.display_pub
        self.published = shell.display_pub.outputs

    def run(self, cell, **names):
        """Run a notebook cell in the shell; return the error of the cell, or None."""
        self._shell.user_ns.update(names)
        result = self._shell.run_cell(cell, store_history=False)
        return result.error_before_exec or result.error_in_exec

    @property
    def outputs(self):
        """Return the final outputs of a notebook cell as Jupyter shows them: the newest data of each output."""
        shown = {}
        for message in self.published:
            name = message["transient"]["display_id"]
            assert message["update"] == (name in shown)
            shown[name] = message["data"]
        return list(shown.values())


@pytest.fixture
def shell(monkeypatch, in_tmp):
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    monkeypatch.setenv("IPYTHONDIR", str(in_tmp / "ipython"))
    hooks, names = (sys.excepthook, sys.displayhook), dict(vars(builtins))
    config = Config()
    config.HistoryManager.enabled = False
    made = InteractiveShell.instance(config=config)
    made.display_pub = CapturingDisplayPublisher()
    made.kernel = object()  # fluid detects a notebook by the kernel of its shell
    try:
        yield Shell(made)
    finally:
        atexit.unregister(made.atexit_operations)
        InteractiveShell.clear_instance()
        sys.excepthook, sys.displayhook = hooks
        for name in set(vars(builtins)) - set(names):
            delattr(builtins, name)


class TestNotebook:
    def test_long_training_updates_a_single_output(self, shell, capfd):
        losses = Losses()
        bar = fluid.ProgressBar(interval=0)
        cell = "history = trainer.train(reader, 30, handlers=[bar, losses], test_reader=reader)"
        assert shell.run(cell, trainer=make(), reader=reader(), bar=bar, losses=losses) is None
        assert capfd.readouterr() == ("", "")
        assert len(shell.published) > 30 * 6
        (output,) = shell.outputs
        table = Table(output["text/html"])
        assert table.rows[0] == ["epoch", "steps", "loss", "tenfold", "test_loss", "test_tenfold"]
        assert [row[0] for row in table.rows[1:]] == [str(epoch) for epoch in range(11, 31)]
        assert "10 earlier epochs are in trainer.history" in table.text
        assert [float(row[2]) for row in table.rows[1:]] == pytest.approx(
            [np.mean(losses.of[epoch]) for epoch in range(10, 30)], rel=1e-3
        )
        assert all(row[1] == "6" for row in table.rows[1:])
        assert re.fullmatch(r"epoch 30/30: 100%.* 180/180 \[00:\d\d<00:00, .*step/s\]", table.text[0])
        assert output["text/plain"] == table.text[0]

    def test_the_table_has_the_tests_of_each_epoch(self, shell):
        trainer = make()
        shell.run("history = trainer.train(reader, 3, test_reader=reader)", trainer=trainer, reader=reader())
        (output,) = shell.outputs
        rows = Table(output["text/html"]).rows
        found = [float(row[rows[0].index("test_loss")]) for row in rows[1:]]
        assert found == pytest.approx(trainer.history["test_loss"], rel=1e-3)

    def test_a_row_has_no_numbers_of_another_epoch(self, shell):
        losses = Losses()
        bar = fluid.ProgressBar(interval=0)
        cell = "history = trainer.train(reader, 3, handlers=[bar, losses], test_reader=reader)"
        shell.run(cell, trainer=make(), reader=reader(1), bar=bar, losses=losses)
        second = [Table(message["data"]["text/html"]).rows for message in shell.published]
        second = [dict(zip(rows[0], rows[2], strict=True)) for rows in second if len(rows) == 3 and len(rows[2]) > 2]
        assert len(second) > 12
        for row in second[:-1]:
            means = [np.mean(losses.of[1][:count]) for count in range(1, int(row["steps"]) + 1)]
            assert row["loss"] == "" or any(float(row["loss"]) == pytest.approx(mean, rel=1e-3) for mean in means)
            assert row["test_loss"] == "" or row["steps"] == "24"

    def test_line_above_shows_progress_and_time(self, shell):
        bar = fluid.ProgressBar(interval=0)
        shell.run("history = trainer.train(reader, 2, handlers=[bar])", trainer=make(), reader=reader(), bar=bar)
        lines = [message["data"]["text/plain"] for message in shell.published]
        assert lines[0].startswith("epoch 1/2: 0step")
        third = next(line for line in lines if ": 3step" in line)
        assert re.fullmatch(r"epoch 1/2: 3step \[00:\d\d, +[\d.]+step/s\]", third)
        left = [line for line in lines if "9/12" in line]
        assert left and re.fullmatch(r"epoch 2/2:  75%.* 9/12 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+step/s\]", left[0])

    def test_table_shows_compilation_only_while_running(self, shell):
        shell.run("history = trainer.train(reader, 1, test_reader=reader)", trainer=make(), reader=reader())
        lines = [message["data"]["text/plain"] for message in shell.published]
        places = [i for i, line in enumerate(lines) if "compiling" in line]
        seen = dict.fromkeys(re.sub(r"\d+ s: .*?(\d+)step .*", r"? s, \1 steps", lines[i]) for i in places)
        assert list(seen) == [
            "epoch 1/1, compiling ? s, 0 steps",  # the training step is compiled
            "epoch 1/1, compiling ? s, 6 steps",  # the test step is compiled
        ]
        assert any("compiling" not in line for line in lines[places[0] : places[-1]]) and "compiling" not in lines[-1]

    def test_compilation_shows_its_seconds(self, shell, monkeypatch):
        compiling, publish, second = threading.Event(), shell.publisher.publish, threading.Event()

        def slow():
            if compiling.is_set():
                second.wait(60)
            return program()

        def watched(data, *rest, **options):
            publish(data, *rest, **options)
            if "compiling 1 s" in data["text/plain"]:
                second.set()

        monkeypatch.setattr(shell.publisher, "publish", watched)
        trainer = fluid.Trainer(slow, fluid.optimizer.SGD(0.05))
        compiling.set()
        # A plain function as reader declares no batch size, so fluid compiles only after reading the first minibatch.
        shell.run("history = trainer.train(reader, 1)", trainer=trainer, reader=lambda: iter([(X, Y)]))
        assert second.is_set()

    def test_table_of_interrupted_training_says_how_to_continue(self, shell, capfd):
        def interrupt(event):
            if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (1, 2):
                os.kill(os.getpid(), signal.SIGINT)

        cell = "trainer.train(reader, 5, on_event)"
        names = {"trainer": make(), "reader": reader(), "on_event": interrupt}
        assert isinstance(shell.run(cell, **names), KeyboardInterrupt)
        assert capfd.readouterr().err == ""
        (output,) = shell.outputs
        table = Table(output["text/html"])
        assert table.text[0].startswith("epoch 2/5, KeyboardInterrupt:  30%") and "9/30" in table.text[0]
        assert [row[:2] for row in table.rows[1:]] == [["1", "6"], ["2", "3"]]
        assert any("interrupted after 1 epoch and 3 steps; the next train() with the" in text for text in table.text)

        shell.published.clear()
        assert shell.run("history = trainer.train(reader, 5)") is None
        (output,) = shell.outputs
        table = Table(output["text/html"])
        assert "training continues after 1 epoch and 3 steps" in table.text
        assert [row[:2] for row in table.rows[1:]] == [["2", "6"], ["3", "6"], ["4", "6"], ["5", "6"]]
        assert capfd.readouterr().err == ""

    def test_row_of_interrupted_epoch_has_its_means(self, shell):
        losses = Losses()

        def interrupt(event):
            if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (1, 19):
                os.kill(os.getpid(), signal.SIGINT)

        names = {"trainer": make(), "reader": reader(1), "on_event": interrupt, "losses": losses}
        shell.run("trainer.train(reader, 5, on_event, handlers=[losses])", **names)
        (output,) = shell.outputs
        row = Table(output["text/html"]).rows[-1]
        known = [np.mean(losses.of[1][:count]) for count in range(20 - IN_FLIGHT - 1, 21)]
        assert row[:2] == ["2", "20"] and any(float(row[2]) == pytest.approx(mean, rel=1e-3) for mean in known)

    def test_call_without_epochs_left_says_nothing_to_train(self, shell, capfd):
        def interrupt(event):
            if isinstance(event, fluid.EndEpochEvent) and event.epoch == 2:
                os.kill(os.getpid(), signal.SIGINT)

        names = {"trainer": make(), "reader": reader(), "on_event": interrupt}
        shell.run("trainer.train(reader, 5, on_event)", **names)
        shell.published.clear()
        assert shell.run("history = trainer.train(reader, 2)") is None
        (output,) = shell.outputs
        assert "nothing to train: 3 epochs are done" in output["text/plain"]
        assert "nothing to train: 3 epochs are done" in output["text/html"]
        assert capfd.readouterr().err == ""

    def test_an_error_is_named(self, shell):
        def fail(event):
            if isinstance(event, fluid.EndStepEvent):
                raise ZeroDivisionError

        names = {"trainer": make(), "reader": reader(), "on_event": fail}
        assert isinstance(shell.run("trainer.train(reader, 5, on_event)", **names), ZeroDivisionError)
        (output,) = shell.outputs
        assert output["text/plain"].startswith("epoch 1/5, ZeroDivisionError: ")
        assert not logging.getLogger("fluid").handlers and not names["trainer"].session.compilations.watchers

    def test_names_cannot_be_html(self, shell):
        def named():
            return {"<b>loss": program()["loss"]}

        trainer = fluid.Trainer(named, fluid.optimizer.SGD(0.05))
        shell.run("history = trainer.train(reader)", trainer=trainer, reader=reader())
        (output,) = shell.outputs
        assert "&lt;b&gt;loss" in output["text/html"] and "<b>" not in output["text/html"]

    def test_two_trainers_have_a_table_each(self, shell):
        cell = "histories = first.train(reader, 2), second.train(reader, 3)"
        shell.run(cell, first=make(), second=make(), reader=reader())
        first, second = shell.outputs
        assert "epoch 2/2: 100%" in first["text/plain"] and "epoch 3/3: 100%" in second["text/plain"]

    def test_messages_also_reach_the_users_log(self, shell, caplog):
        def stop(event):
            if isinstance(event, fluid.EndStepEvent):
                os.kill(os.getpid(), signal.SIGINT)

        shell.run("trainer.train(reader, 5, on_event)", trainer=make(), reader=reader(), on_event=stop)
        assert "interrupted after 1 step;" in caplog.text


class TestTerminal:
    def test_bar_shows_running_means_of_all_scalars(self, capsys):
        losses = Losses()
        bar = fluid.ProgressBar(show=True, interval=0)
        make().train(reader(1), 2, handlers=[bar, losses])
        shown = drawn(capsys.readouterr().err)
        running = [
            re.search(r"epoch (\d)/2.*? (\d+)(?:step|/24) .*loss ([\d.e+-]+), tenfold ([\d.e+-]+)", s) for s in shown
        ]
        found = [(int(m[1]) - 1, int(m[2]), float(m[3]), float(m[4])) for m in running if m]
        assert len(found) > 2 * 12
        for epoch, steps, loss, tenfold in found:
            # The mean may lack the newest losses, because their steps are still in flight.
            means = [np.mean(losses.of[epoch][:count]) for count in range(1, steps + 1)]
            assert any(loss == pytest.approx(mean, rel=1e-3) for mean in means)
            assert tenfold == pytest.approx(10 * loss, rel=2e-3)
        for epoch in (0, 1):
            last = [line for line in shown if f"epoch {epoch + 1}/2" in line][-1]
            assert f"loss {np.mean(losses.of[epoch]):.4g}, tenfold" in last

    def test_bar_shows_compilation_only_while_running(self, capsys):
        make().train(reader(), 1, progress=True)
        shown = drawn(capsys.readouterr().err)
        compiling = [i for i, line in enumerate(shown) if "epoch 1/1, compiling" in line]
        assert compiling and "compiling" not in shown[compiling[-1] + 1] and "compiling" not in shown[-1]

    def test_messages_stay_in_the_log(self, capsys):
        bar = fluid.ProgressBar(show=True)
        with bar.listening():
            assert not logging.getLogger("fluid").handlers


def fail(compilation):
    raise ZeroDivisionError


class TestAnErrorWhileCompiling:
    def test_leaves_no_thread(self):
        bar = fluid.ProgressBar(show=True)

        class FailsWhenCompiled(fluid.Handler):
            def begin_train(self, event):
                self.trainer.session.compilations.watchers.append(fail)

        with pytest.raises(ZeroDivisionError):
            make().train(reader(), handlers=[bar, FailsWhenCompiled()])
        assert not drawing()

    def test_caught_in_a_handler_training_continues(self, capsys):
        class Catches(fluid.Handler):
            def end_step(self, event):
                if (event.epoch, event.step) == (0, 5):
                    watchers = self.trainer.session.compilations.watchers
                    watchers.append(fail)
                    with pytest.raises(ZeroDivisionError):
                        self.trainer.test(reader())
                    watchers.remove(fail)

        make().train(reader(), 2, handlers=[fluid.ProgressBar(show=True), Catches()])
        assert not drawing() and "epoch 2/2: 100%" in capsys.readouterr().err
