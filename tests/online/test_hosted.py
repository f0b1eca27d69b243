"""Trainers that a server hosts with their readers: HostedTrainer, `python -m fluid remote`, and RemoteTrainer."""

import itertools
import os
import signal
import types

import forked
import numpy as np
import pytest
from online.trainer_of_stream import line, make, points

import fluid
from fluid import errors
from fluid.cli.remote import made
from fluid.online.app import TrainerApp
from fluid.online.hosted import HostedTrainer
from fluid.serving import Settings
from fluid.serving.http import AccessPolicy, HttpRequest, Refusal

DATA = points(8)
MINIBATCHES = [list(zip(DATA["x"][i : i + 4], DATA["y"][i : i + 4], strict=True)) for i in (0, 4)]
FEEDS = [{name: column[i : i + 4] for name, column in DATA.items()} for i in (0, 4)]


def trainer():
    return fluid.Trainer(line, fluid.optimizer.SGD(0.1))


def endless():
    return itertools.cycle(MINIBATCHES)


def losses(count):
    """Return the losses of the first `count` steps of a Session on FEEDS."""
    session = trainer().session
    return [float(session.step(FEEDS[i % 2]).loss) for i in range(count)]


@pytest.fixture
def serve(tmp_path):
    servers = []

    def serve(reader, *test_reader):
        hosted = HostedTrainer(trainer(), reader, *test_reader, folder=tmp_path / "saved")
        servers.append((hosted, hosted.host("127.0.0.1", 0, None, False, Settings())))
        servers[-1][1].start()
        return fluid.RemoteTrainer(servers[-1][1].url)

    yield serve
    for hosted, server in servers:
        hosted.stop()
        server.close()


def of_steps(events):
    return [event["metrics"]["loss"] for event in events if event["event"] == "EndStepEvent"]


def test_a_remote_training_matches_a_session(serve, tmp_path):
    remote = serve(MINIBATCHES, MINIBATCHES)
    assert remote.status()["state"] == "stopped"
    remote.train(num_epochs=2)
    events = list(remote.events())
    np.testing.assert_allclose(of_steps(events), losses(4), rtol=1e-6)
    kinds = [event["event"] for event in events]
    epoch = ["BeginEpochEvent", "EndStepEvent", "EndStepEvent", "EndEpochEvent"]
    assert kinds == [*epoch, *epoch, "EndTrainEvent"]
    assert [event["step"] for event in events if "step" in event] == [0, 1, 0, 1]
    status = remote.status()
    assert (status["state"], status["steps"], status["error"]) == ("stopped", 4, None)
    local = fluid.Trainer(line, fluid.optimizer.SGD(0.1), param_path=tmp_path / "saved" / remote.save()["saved"])
    np.testing.assert_allclose(remote.test()["loss"], local.test(MINIBATCHES).loss, rtol=1e-6)
    remote.train()
    np.testing.assert_allclose(of_steps(remote.events()), losses(6)[4:], rtol=1e-6)
    assert "fluid_online_steps_total 6.0" in remote.metrics()


def test_a_paused_training_resumes_at_its_step(serve):
    remote = serve(endless, MINIBATCHES)
    remote.train()
    events = remote.events()
    seen = list(itertools.islice(events, 3))  # the trainer still trains during the calls below
    assert remote.test()["loss"] > 0
    assert remote.save()["saved"].startswith("step_")
    paused = remote.pause()
    assert (paused["state"], paused["steps"]) == ("paused", remote.status()["steps"])
    remote.resume()
    assert next(iter(remote.events()))["event"]
    stopped = remote.stop()
    assert stopped["state"] == "stopped" and stopped["steps"] >= paused["steps"]
    seen += fluid.RemoteTrainer(remote.url).events()
    steps = {event["step"]: event["metrics"]["loss"] for event in seen if "step" in event}
    assert sorted(steps) == list(range(stopped["steps"]))
    np.testing.assert_allclose([steps[i] for i in range(3)], losses(3), rtol=1e-6)


def test_a_stopped_pause_is_given_up(serve):
    remote = serve(endless)
    remote.train()
    next(remote.events())
    remote.pause()
    assert remote.stop()["state"] == "stopped"
    remote.train()
    first = [e for e in itertools.islice(remote.events(), 50) if e["event"] == "BeginEpochEvent"]
    assert [event["epoch"] for event in first] == [0]  # the events are from the second training
    remote.stop()


@pytest.mark.parametrize("number", ["9" * 19, "9" * 5000, "\u0661", "-1", "1,2", ""])
def test_paths_take_numbers_of_18_digits(number):
    app = TrainerApp(types.SimpleNamespace(status=dict, folders={}), Settings(), AccessPolicy())

    def method(path):
        return app.route(HttpRequest({"method": "GET", "path": path, "headers": []}, None))[0]

    for verb, expected in (("train", "POST"), ("events", "GET")):
        assert method(f"/{verb}/{'9' * 18}") == expected
        with pytest.raises(Refusal) as caught:
            method(f"/{verb}/{number}")
        assert caught.value.status == 404


def broken():
    yield MINIBATCHES[0]
    raise OSError("the disk is gone")


def test_a_failure_is_in_the_status(serve):
    remote = serve(broken)
    remote.train()
    assert of_steps(remote.events()) == pytest.approx(losses(1))
    status = remote.status()
    assert status["state"] == "failed" and "the disk is gone" in status["error"]


def test_calls_out_of_order_are_refused(serve):
    remote = serve(endless)
    for call, kind, words in [
        (remote.pause, errors.OnlineError, "is stopped, expected one that trains"),
        (remote.resume, errors.OnlineError, "expected a paused one"),
        (remote.test, errors.OnlineError, "expected a test reader"),
        (lambda: remote.send(DATA), errors.OnlineError, "trains on the rows of its own reader"),
        (lambda: remote.train(0), errors.ArgumentError, "num_epochs"),
        (remote.publish, errors.RemoteError, "there is nothing here; the paths are"),
        (lambda: (remote.train(), remote.train()), errors.OnlineError, "is training, expected a stopped one"),
    ]:
        with pytest.raises(kind, match=words):
            call()


def test_an_online_trainer_has_no_readers(tmp_path):
    with make(tmp_path / "online") as online, online.serve(port=0) as server:
        remote = fluid.RemoteTrainer(server.url)
        for call in (remote.train, remote.test, lambda: next(remote.events())):
            with pytest.raises(errors.OnlineError, match="has an OnlineTrainer, for which there is no"):
                call()


MODULE = """
import itertools
import numpy as np
import fluid

def program():
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))

def make_trainer():
    return fluid.Trainer(program, fluid.optimizer.SGD(0.1)), lambda: itertools.repeat([(np.ones(2, "float32"),)])

def wrong():
    return make_trainer()[0]
"""


def test_the_command_hosts_a_trainer(tmp_path):
    (tmp_path / "net.py").write_text(MODULE)
    process = forked.Process("-m", "fluid", "remote", "net.py:make_trainer", "--port", "0", cwd=tmp_path)
    try:
        remote = fluid.RemoteTrainer(process.stdout.readline().strip())
        remote.train()
        assert len(list(itertools.islice(remote.events(), 4))) == 4
        assert (tmp_path / remote.save()["saved"]).is_file()
        os.kill(process.pid, signal.SIGTERM)
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0 and "ended after" in said
    finally:
        process.kill()
        process.wait()


def test_the_command_refuses_a_wrong_return_value(tmp_path):
    (tmp_path / "other_net.py").write_text(MODULE)
    with pytest.raises(errors.ArgumentError, match=r"returned a Trainer, expected a Trainer and what it reads"):
        made(f"{tmp_path / 'other_net.py'}:wrong")
