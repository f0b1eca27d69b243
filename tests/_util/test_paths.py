"""Path arguments: a URL never becomes a local folder, and files of the wrong kind are recognized."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from mistakes.common import READER, X, Y, regression

import fluid
from fluid import errors, layers, static
from fluid.__main__ import main
from fluid._util.paths import local_path

ADDRESS = "memory://bucket/here"
ADAM = fluid.optimizer.Adam(0.1)


def net():
    return layers.fc(layers.data("x", shape=[4]), size=1)


@pytest.fixture
def trainer(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return fluid.Trainer(regression, ADAM)


TAKERS = {
    "save_params": lambda t: t.save_params(ADDRESS),
    "load_params": lambda t: t.load_params(ADDRESS),
    "save_inference_model": lambda t: t.save_inference_model(ADDRESS, fetch=["fc_0"]),
    "Session.save": lambda t: t.session.save(ADDRESS),
    "Session.load": lambda t: t.session.load(ADDRESS),
    "Inferencer": lambda t: fluid.Inferencer(net, param_path=ADDRESS),
    "Inferencer of an exported model": lambda t: fluid.Inferencer(param_path=ADDRESS),
    "serve": lambda t: fluid.serve(ADDRESS, port=0),
    "io.save_params": lambda t: fluid.io.save_params(t, ADDRESS),
    "io.load_params": lambda t: fluid.io.load_params(t, ADDRESS),
    "io.save_persistables": lambda t: fluid.io.save_persistables(t, ADDRESS),
    "io.load_persistables": lambda t: fluid.io.load_persistables(t, ADDRESS),
    "io.save_arrays": lambda t: fluid.io.save_arrays(ADDRESS, {}),
    "io.load_inference_model": lambda t: fluid.io.load_inference_model(ADDRESS),
    "io.load_fluid_params": lambda t: fluid.io.load_fluid_params(ADDRESS),
    "static.io.save_params": lambda t: static.io.save_params(static.Executor(), ADDRESS, static.Program()),
    "static.io.load_inference_model": lambda t: static.io.load_inference_model(ADDRESS, static.Executor()),
    "OnlineTrainer": lambda t: fluid.OnlineTrainer(regression, ADAM, ADDRESS),
    "publish_to": lambda t: fluid.OnlineTrainer(regression, ADAM, "online", publish_to=ADDRESS),
    "CSVLogger": lambda t: fluid.handlers.CSVLogger(ADDRESS),
    "LivePlot": lambda t: fluid.handlers.LivePlot(ADDRESS),
    "Profiler": lambda t: fluid.handlers.Profiler(logdir=ADDRESS),
    "SaveBest": lambda t: fluid.handlers.SaveBest(ADDRESS, "loss", mode="min"),
    "History.plot": lambda t: t.train(READER).plot(ADDRESS),
    "Drawing.save": lambda t: fluid.draw(net).save(ADDRESS),
    "set_compilation_cache": lambda t: fluid.set_compilation_cache(ADDRESS),
}


@pytest.mark.parametrize("taker", TAKERS)
def test_address_instead_of_a_local_path_is_refused(taker, trainer):
    with pytest.raises(errors.FluidError, match=r"'memory://bucket/here' is an address, and a local path") as caught:
        TAKERS[taker](trainer)
    assert "fluid.CheckpointConfig(address)" in str(caught.value)
    assert not [name for name in os.listdir() if ":" in name]


@pytest.mark.parametrize("command", [["convert", "old", ADDRESS], ["convert", ADDRESS, "new"], ["serve", ADDRESS]])
def test_commands_refuse_addresses(command, trainer, capsys):
    assert main(command) == 1
    assert "address" in capsys.readouterr().err or command[1] == "old"
    assert not [name for name in os.listdir() if ":" in name]


def test_an_address_of_this_machine_says_the_path():
    with pytest.raises(errors.ArgumentError, match="needed here: '/data/net.params'"):
        local_path("file:///data/net.params")
    with pytest.raises(errors.ArgumentTypeError, match="found int, expected the path"):
        local_path(3)


def test_params_and_persistables_files_load_either_way(trainer):
    os.mkdir("fluid")
    trainer.save_params("fluid")
    with static.scope_guard(static.Scope()), static.program_guard(static.Program(), static.Program()):
        with static.unique_name.guard():
            guess = static.layers.fc(static.layers.data("x", shape=[4]), size=1)
            y = static.layers.data("y", shape=[1])
            static.optimizer.Adam(0.1).minimize(static.layers.mean(static.layers.square_error_cost(guess, y)))
        executor = static.Executor(static.CPUPlace())
        executor.run(static.default_startup_program())
        static.io.load_persistables(executor, "fluid")
        found = np.asarray(static.global_scope().find_var("fc_0.w_0").get_tensor())
        np.testing.assert_array_equal(found, trainer.params["fc_0.w_0"])
        static.io.save_persistables(executor, "static")
    for load in (trainer.load_params, lambda path: fluid.io.load_params(trainer, path)):
        assert load("static").taken == ("fc_0.w_0", "fc_0.b_0")
    fluid.io.load_persistables(trainer, "static")
    fluid.io.load_persistables(trainer, "fluid")


def _named(name):
    def regression():
        guess = layers.fc(layers.data("x", shape=[4]), size=1, name=name)
        return layers.mean(layers.square_error_cost(guess, layers.data("y", shape=[1])))

    return regression


def _state(trainer):
    return {name: np.asarray(a) for name, a in trainer.session.state().items() if name != "@root"}


def test_renamed_session_loads_with_its_optimizer_state(trainer):
    old = fluid.Trainer(_named("old"), ADAM)
    old.train(READER)
    old.session.save("all.session")
    new = fluid.Trainer(_named("new"), ADAM)
    with pytest.raises(errors.ParameterError, match="missing: new.w_0"):
        new.session.load("all.session")
    new.session.load("all.session", rename={"old.*": "new.*"})
    found = _state(new)
    for name, array in _state(old).items():
        np.testing.assert_array_equal(found[name.replace("old", "new")], array)


def test_a_skipped_parameter_keeps_its_optimizer_states(tmp_path):
    momentum = fluid.optimizer.Momentum(0.1, momentum=0.9)
    saved, other = fluid.Trainer(regression, momentum), fluid.Trainer(regression, momentum, seed=1)
    saved.train(READER)
    saved.session.save(tmp_path / "all.session")
    before = _state(other)
    other.session.load(tmp_path / "all.session", skip=["*.b_0"])
    for name, array in _state(other).items():
        expected = before if name.endswith("fc_0.b_0") else _state(saved)
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_incomplete_session_loads_only_without_strict(trainer):
    trainer.train(READER)
    trainer.session.save("all.session")
    other = fluid.Trainer(regression, fluid.optimizer.SGD(0.1))
    with pytest.raises(errors.ParameterError, match="extra: @slots"):
        other.session.load("all.session")
    other.session.load("all.session", strict=False)
    np.testing.assert_array_equal(other.params["fc_0.w_0"], trainer.params["fc_0.w_0"])
    assert int(other.session.scope.step) == int(trainer.session.scope.step)


def test_load_params_reads_a_session_file(trainer):
    trainer.session.save("all.session")
    assert fluid.Trainer(regression, fluid.optimizer.SGD(0.1)).load_params("all.session").complete


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("net.npy", b"\x93NUMPY" + bytes(20), "without a name"),
        ("net.pt", b"\x80\x02." + bytes(20), "torch.load('net.pt')"),
        ("net.pkl", b"\x80\x05." + bytes(20), "pickle"),
        ("net.bin", (30).to_bytes(8, "little") + b"{" + bytes(60), "net.safetensors"),
        ("net.pdparams", bytes(16) + bytes([4, 0, 0, 0]) + bytes(20), "fluid.io.load_fluid_params('net.pdparams')"),
        ("notes.txt", b"learning rate 0.1", "or is damaged"),
        ("empty", b"", "or is damaged"),
    ],
)
def test_files_of_other_libraries_are_recognized(name, content, says, trainer):
    pathlib.Path(name).write_bytes(content)
    with pytest.raises(errors.ParameterFileError, match="no parameter file of fluid") as caught:
        trainer.load_params(name)
    assert says in str(caught.value)


def test_recommended_loading_of_checkpoint_and_export_works(trainer):
    config = fluid.CheckpointConfig("saved", step_interval=1)
    trained = fluid.Trainer(regression, ADAM, checkpoint_config=config)
    trained.train(fluid.reader.arrays({"x": X, "y": Y}, batch_size=8))
    trainer.load_params(fluid.Inferencer(net, checkpoint="saved").session.params())
    trained.save_inference_model("net.fluid", fetch=["fc_0"])
    trainer.load_params(fluid.Inferencer(param_path="net.fluid").session.params())
    np.testing.assert_array_equal(trainer.params["fc_0.w_0"], trained.params["fc_0.w_0"])


def test_head_ends_a_command_without_a_traceback(trainer):
    trainer.save_params("net.params")
    command = f"{sys.executable} -m fluid inspect net.params | head -c 0"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert done.stderr == ""
