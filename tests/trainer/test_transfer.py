"""Parameter transfer: a program takes parameters of another program from files, arrays and checkpoints."""

import json
import logging
import time
import zipfile

import numpy as np
import pytest

import fluid
from fluid import errors
from fluid.__main__ import main

SGD = fluid.optimizer.SGD
DATA = fluid.reader.arrays((np.random.default_rng(0).normal(size=(16, 4)).astype("float32"),), batch_size=4)


def backbone(scope):
    with fluid.name_scope(scope):
        hidden = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=6, act="relu")
        return fluid.layers.batch_norm(fluid.layers.fc(hidden, size=5))


def old_program():
    features = backbone("old")
    with fluid.name_scope("head"):
        return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(features, size=3)))


def new_program():
    features = backbone("new")
    with fluid.name_scope("head"):
        guess = fluid.layers.fc(features, size=2)
    with fluid.name_scope("more"):
        return fluid.layers.mean(fluid.layers.square(fluid.layers.fc(guess, size=1)))


OLD = [f"{layer}.{kind}" for layer in ("fc_0", "fc_1") for kind in ("w_0", "b_0")]
OLD += [f"batch_norm_0.{kind}" for kind in ("w_0", "b_0", "w_1", "w_2")]
MISSING = {"more/fc_0.w_0", "more/fc_0.b_0"}
CHOICES = {"strict": False, "rename": {"old/*": "new/*"}, "skip": ["head/*"]}


@pytest.fixture
def old(tmp_path):
    """Train the program that gives parameters to a new program; return its Trainer, parameter file and NumPy arrays."""
    trainer = fluid.Trainer(old_program, SGD(0.1))
    trainer.train(DATA, num_epochs=1, progress=False)
    trainer.save_params(tmp_path / "old.params")
    return trainer, tmp_path / "old.params", arrays(trainer)


def arrays(owner):
    return {name: np.array(value) for name, value in owner.session.params().items()}


def check_taken(got, before, old):
    """Check a transfer of parameters from an old program to a new program.

    The layers of `backbone`, which both programs have, now have equal parameters. The other parameters of the new
    program are unchanged.
    """
    for name in OLD:
        np.testing.assert_array_equal(got[f"new/{name}"], old[f"old/{name}"])
    for name in got.keys() - {f"new/{name}" for name in OLD}:
        np.testing.assert_array_equal(got[name], before[name])


def test_transfer_load_params_takes_renamed_part_with_report(old):
    _, path, values = old
    trainer = fluid.Trainer(new_program, SGD(0.1), seed=3)
    before = arrays(trainer)
    report = trainer.load_params(path, **CHOICES)
    check_taken(arrays(trainer), before, values)
    assert set(report.taken) == {f"new/{name}" for name in OLD}
    assert set(report.missing) == MISSING
    assert set(report.skipped) == {"head/fc_0.w_0", "head/fc_0.b_0"}
    assert report.skipped["head/fc_0.w_0"] == "float32[5, 3] (here float32[5, 2])"
    assert not report.extra
    assert not report.complete
    assert repr(report).splitlines()[0] == f"8 arrays taken from {path}"
    assert "keep their values: more/fc_0.w_0 float32[2, 1], more/fc_0.b_0 float32[1]" in repr(report)
    assert "skipped: head/fc_0.w_0 float32[5, 3] (here float32[5, 2])" in repr(report)


@pytest.mark.parametrize(
    "load",
    [
        lambda path, values: fluid.Trainer(new_program, SGD(0.1), param_path=path, seed=3, **CHOICES),
        lambda path, values: fluid.Trainer(new_program, SGD(0.1), params=values, seed=3, **CHOICES),
        lambda path, values: loaded(lambda t: t.session.load_params(path, **CHOICES)),
        lambda path, values: loaded(lambda t: fluid.io.load_params(t, path.parent, filename=path.name, **CHOICES)),
        lambda path, values: loaded(
            lambda t: fluid.io.load_params(t, path.parent, t.program, filename=path.name, **CHOICES)
        ),
    ],
    ids=["param_path", "params", "session", "io", "io of a program"],
)
def test_transfer_takes_the_same_by_every_call(old, load):
    _, path, values = old
    check_taken(arrays(load(path, values)), arrays(fluid.Trainer(new_program, SGD(0.1), seed=3)), values)


def loaded(load):
    trainer = fluid.Trainer(new_program, SGD(0.1), seed=3)
    load(trainer)
    return trainer


def test_transfer_logs_missing_and_extra_arrays(old, caplog):
    trainer = fluid.Trainer(new_program, SGD(0.1))
    with caplog.at_level(logging.WARNING, "fluid"):
        report = trainer.load_params(old[1], strict=False, rename={"old/*": "new/*", "head/*": "former/*"})
    assert set(report.extra) == {"former/fc_0.w_0", "former/fc_0.b_0"}
    assert "2 arrays there not used: former/fc_0.b_0 float32[3], former/fc_0.w_0 float32[5, 3]" in caplog.text
    assert "4 arrays keep their values: head/fc_0.w_0 float32[5, 2]" in caplog.text


def test_transfer_of_all_says_nothing_but_is_complete(old, caplog):
    trainer = fluid.Trainer(old_program, SGD(0.1), seed=5)
    with caplog.at_level(logging.WARNING, "fluid"):
        assert trainer.load_params(old[1]).complete
        assert trainer.load_params(old[1], strict=False).complete
    assert not caplog.text
    for name, value in arrays(trainer).items():
        np.testing.assert_array_equal(value, old[2][name])


@pytest.mark.parametrize(
    ("choices", "error", "message"),
    [
        ({}, errors.ParameterError, r"missing: new/fc_0.w_0 float32\[4, 6\]  \(Did you mean 'old/fc_0.w_0'\?\)"),
        ({"rename": {"old/*": "new/*"}}, errors.ParameterError, r"skip=\[\"head/\*\"\]"),
        (
            {"strict": False, "rename": {"old/*": "new/*"}},
            errors.ParameterError,
            r"head/fc_0.w_0: found float32\[5, 3\]",
        ),
        (
            {**CHOICES, "skip": ["haed/*"]},
            errors.UnknownNameError,
            r"'haed/\*' matches no name. Did you mean 'head/\*'",
        ),
        ({**CHOICES, "rename": {"odl/*": "new/*"}}, errors.ParameterError, "fits no name"),
        ({**CHOICES, "skip": ["*"]}, errors.ParameterError, "nothing would be taken"),
    ],
)
def test_transfer_mismatch_changes_nothing_and_names_the_fix(old, choices, error, message):
    trainer = fluid.Trainer(new_program, SGD(0.1))
    before = arrays(trainer)
    with pytest.raises(error, match=message):
        trainer.load_params(old[1], **choices)
    for name, value in arrays(trainer).items():
        np.testing.assert_array_equal(value, before[name])


def test_loading_without_common_names_raises_parameter_error(old, tmp_path):
    def other():
        return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1, name="alone"))

    for load in (
        lambda strict: fluid.Trainer(other, SGD(0.1), param_path=old[1], strict=strict),
        lambda strict: fluid.Session(other).load_params(old[1], strict=strict),
        lambda strict: fluid.io.load_params(fluid.Session(other), tmp_path, filename="old.params", strict=strict),
    ):
        with pytest.raises(
            errors.ParameterError, match="nothing would be taken from .*old.params: it has head/fc_0.b_0"
        ):
            load(False)
        with pytest.raises(errors.ParameterError):
            load(True)
    with pytest.raises(errors.ParameterError, match="missing: alone.w_0"):
        fluid.Inferencer(other, param_path=old[1])


def test_saving_no_names_is_an_error(old, tmp_path):
    for save in (
        lambda: old[0].save_params(tmp_path / "none", names=[]),
        lambda: old[0].session.save_params(tmp_path / "none", names=()),
        lambda: fluid.io.save_params(old[0], tmp_path, filename="none", names=[]),
    ):
        with pytest.raises(errors.ArgumentError, match=r"names=\[\].*nothing in it"):
            save()
    assert not (tmp_path / "none").exists()
    with pytest.raises(errors.UnknownNameError, match=r"'odl/\*' matches no name. Did you mean 'old/\*'"):
        old[0].save_params(tmp_path / "none", names=["odl/*"])


def test_save_params_selects_names_by_glob(old, tmp_path):
    old[0].save_params(tmp_path / "backbone", names=["old/*"])
    assert set(fluid.io.load_arrays(tmp_path / "backbone")[0]) == {f"old/{name}" for name in OLD}


def test_trainer_params_are_arrays_by_name(old):
    again = fluid.Trainer(old_program, SGD(0.1), params=old[0].params, seed=9)
    for name, value in arrays(again).items():
        np.testing.assert_array_equal(value, old[2][name])
    with pytest.raises(errors.ArgumentTypeError, match="one source of parameters"):
        fluid.Trainer(old_program, SGD(0.1), param_path=old[1], params=old[2])
    with pytest.raises(errors.ArgumentTypeError, match="param_path="):
        fluid.Trainer(old_program, SGD(0.1), skip=["head/*"])


def test_inferencer_loads_the_newest_undamaged_checkpoint(tmp_path):
    def line():
        return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=1)

    config = fluid.CheckpointConfig(tmp_path / "kept", step_interval=2, max_num_checkpoints=None)
    seen = []
    trainer = fluid.Trainer(lambda: fluid.layers.mean(line()), SGD(0.1), checkpoint_config=config)
    trainer.train(
        DATA, 1, lambda event: seen.append(arrays(trainer)) if isinstance(event, fluid.EndStepEvent) else None
    )
    x = np.ones((2, 4), "float32")

    def expected(step):
        return x @ seen[step - 1]["fc_0.w_0"] + seen[step - 1]["fc_0.b_0"]

    (got,) = fluid.Inferencer(line, checkpoint=tmp_path / "kept").infer({"x": x})
    np.testing.assert_allclose(got, expected(4), rtol=1e-5)
    damaged = tmp_path / "kept" / "4" / "meta.json"
    damaged.write_text(damaged.read_text(encoding="utf-8") + " ", encoding="utf-8")
    (got,) = fluid.Inferencer(line, checkpoint=tmp_path / "kept").infer({"x": x})
    np.testing.assert_allclose(got, expected(2), rtol=1e-5)
    assert (tmp_path / "kept" / "4").is_dir()  # an Inferencer does not rename a damaged checkpoint


def test_inferencer_of_no_checkpoint_says_so(tmp_path):
    with pytest.raises(errors.CheckpointError, match="there is no folder"):
        fluid.Inferencer(old_program, checkpoint=tmp_path / "none")
    with pytest.raises(errors.CheckpointError, match="it holds none"):
        fluid.Inferencer(old_program, checkpoint=tmp_path)
    with pytest.raises(errors.ArgumentTypeError, match="from one source"):
        fluid.Inferencer(old_program, checkpoint=tmp_path, param_path=tmp_path)


def test_session_of_another_program_raises_parameter_error(old, tmp_path):
    old[0].session.save(tmp_path / "session")
    with pytest.raises(errors.ParameterError, match="check that the program function is the one that was trained"):
        fluid.Trainer(new_program, SGD(0.1)).session.load(tmp_path / "session")


# The weights of the `fc` layers in `tower` and `head` have the same shape. The layer of `tower` has the name `fc_0`, as
# has the layer in a program that calls only `head`. So this program would take the parameters of `tower` by name.
NET = """
import fluid
def tower(x):
    return fluid.layers.fc(x, size=4, act="tanh")
def head(h, size=4):
    return fluid.layers.batch_norm(fluid.layers.fc(h, size=size))
def whole():
    return head(tower(fluid.layers.data("x", shape=[4])))
def train():
    return fluid.layers.mean(fluid.layers.square(whole()))
def only_head(size=4):
    return head(fluid.layers.data("h", shape=[4]), size)
"""


def module(folder, text, name="net.py"):
    """Write `text` to a file, execute the file, and return its functions by name."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    namespace = {}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace


@pytest.fixture
def net(tmp_path):
    """Train the program NET; return its functions, and the folder with its parameter files and its checkpoint."""
    made = module(tmp_path, NET)
    trainer = fluid.Trainer(made["train"], SGD(0.1), checkpoint_config=fluid.CheckpointConfig(tmp_path / "kept"))
    trainer.train(DATA, 1, progress=False)
    trainer.save_params(tmp_path / "net.params")
    trainer.save_params(tmp_path / "net.safetensors")
    trainer.session.save(tmp_path / "net.session")
    return made, tmp_path


@pytest.mark.parametrize(
    "options",
    [
        {"param_path": "net.params"},
        {"param_path": "net.safetensors"},
        {"param_path": "net.session"},
        {"checkpoint": "kept"},
    ],
)
def test_mismatch_message_names_the_creating_lines(net, options):
    made, folder = net
    options = {key: folder / value for key, value in options.items()}
    fluid.Inferencer(made["whole"], **options)
    with pytest.raises(errors.ParameterError) as caught:
        fluid.Inferencer(lambda: made["only_head"](3), **options)
    assert (
        "fc_0.w_0: found float32[4, 4], expected float32[4, 3]; created at net.py:4 in tower there, and at net.py:6 in "
        "head here\n"
    ) in str(caught.value)
    missing = "batch_norm_1.w_1 float32[4]; created at net.py:6 in head here\n"
    with pytest.raises(errors.ParameterError) as caught:
        fluid.Inferencer(lambda: made["head"](made["whole"]()), **options)
    assert f"missing: {missing}" in str(caught.value)


def test_extra_names_are_shown_with_their_lines(net):
    made, folder = net
    extra = "extra: fc_1.w_0 float32[4, 4]; created at net.py:6 in head there"
    for load in (
        lambda part: fluid.Trainer(part, SGD(0.1)).load_params(folder / "net.params"),
        lambda part: fluid.Trainer(part, SGD(0.1)).session.load(folder / "net.session"),
        lambda part: fluid.Trainer(part, SGD(0.1), checkpoint_config=fluid.CheckpointConfig(folder / "kept")),
    ):
        with pytest.raises(errors.ParameterError) as caught:
            load(lambda: fluid.layers.mean(made["only_head"]()))
        assert extra in str(caught.value)


def test_a_part_takes_its_parameters_by_other_names(net):
    made, folder = net
    rename = {"fc_1.*": "fc_0.*", "fc_0.*": "fc_1.*"}
    found = fluid.Inferencer(made["only_head"], param_path=folder / "net.params", rename=rename)
    values = fluid.io.load_arrays(folder / "net.params")[0]
    np.testing.assert_array_equal(np.array(found.session.params()["fc_0.w_0"]), values["fc_1.w_0"])
    with pytest.raises(errors.ParameterError, match="created at net.py:6 in head there, and at net.py:6 in head here"):
        fluid.Inferencer(lambda: made["only_head"](3), param_path=folder / "net.params", rename=rename)


# The entry of a parameter file in which earlier versions recorded where a parameter was created.
OLD_NOTE = {"fc_0.w_0": {"kind": "fc", "site": "net.py:4 in tower", "lines": ["tower:8f2a91c0"], "place": None}}


@pytest.mark.parametrize("origins", [None, OLD_NOTE])
def test_files_of_earlier_versions_load(net, origins):
    made, folder = net
    old = folder / "old.params"
    with zipfile.ZipFile(folder / "net.params") as before, zipfile.ZipFile(old, "w") as after:
        for entry in before.infolist():
            data = before.read(entry)
            if entry.filename == "manifest.json":
                manifest = json.loads(data)
                assert manifest.pop("sites")
                data = json.dumps(manifest | ({} if origins is None else {"origins": origins})).encode()
            after.writestr(entry, data)
    fluid.Inferencer(made["whole"], param_path=old)
    with pytest.raises(errors.ParameterError, match="expected float32.4, 3.; created at net.py:6 in head here\n"):
        fluid.Inferencer(lambda: made["only_head"](3), param_path=old)


def test_parameter_files_are_reproducible_without_folder_names(net, monkeypatch):
    made, folder = net
    for name, seconds in (("first", 1e9), ("second", 2e9)):
        date = time.gmtime(seconds)
        monkeypatch.setattr(time, "localtime", lambda *now, date=date: date)
        trainer = fluid.Trainer(made["train"], SGD(0.1))
        trainer.save_params(folder / name)
    monkeypatch.undo()
    assert (folder / "first").read_bytes() == (folder / "second").read_bytes()
    other = folder / "other"
    again = module(other, NET)  # this module has the same program, but in another folder
    fluid.Trainer(again["train"], SGD(0.1)).save_params(folder / "third")
    assert (folder / "first").read_bytes() == (folder / "third").read_bytes()
    with zipfile.ZipFile(folder / "first") as archive:
        manifest = json.loads(archive.read("manifest.json"))
    assert manifest["sites"].keys() == manifest["arrays"].keys()
    assert manifest["sites"]["fc_0.w_0"] == "net.py:4 in tower"


@pytest.mark.parametrize(
    "load",
    [
        lambda path, options: fluid.Trainer(new_program, SGD(0.1), param_path=path, seed=3, **options),
        lambda path, options: loaded(lambda t: t.load_params(path, **options)),
        lambda path, options: loaded(lambda t: t.session.load_params(path, **options)),
        lambda path, options: loaded(lambda t: t.session.load(path, **options)),
        lambda path, options: loaded(lambda t: fluid.io.load_params(t, path.parent, filename=path.name, **options)),
        lambda path, options: loaded(
            lambda t: fluid.io.load_persistables(t, path.parent, filename=path.name, **options)
        ),
    ],
    ids=["param_path", "trainer", "session", "session.load", "io", "persistables"],
)
def test_names_load_a_part_and_keep_the_rest(old, load):
    _, path, values = old
    loaded_by = load(path, {"names": "new/*", "rename": {"old/*": "new/*"}})
    check_taken(arrays(loaded_by), arrays(fluid.Trainer(new_program, SGD(0.1), seed=3)), values)


def test_names_leave_the_rest_of_an_inferencer_initial(old):
    _, path, values = old
    options = {"names": ["new/*"], "rename": {"old/*": "new/*"}}
    found = fluid.Inferencer(new_program, param_path=path, **options)
    check_taken(arrays(found), arrays(fluid.Trainer(new_program, SGD(0.1))), values)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"names": []}, errors.ArgumentError, "names=\\[\\] takes nothing"),
        ({"names": "odl/*"}, errors.UnknownNameError, r"names: 'odl/\*' matches no name. Did you mean 'old/\*'"),
        ({"names": "more/*"}, errors.ParameterError, "nothing would be taken from"),
        ({"names": "old/*"}, errors.ParameterError, "nothing would be taken from"),
        ({"names": ["head/*"]}, errors.ParameterError, r"head/fc_0.w_0: found float32\[5, 3\]"),
        ({"names": ["new/*", "more/*"], "rename": {"old/*": "new/*"}}, errors.ParameterError, "missing: more/fc_0.w_0"),
    ],
)
def test_names_that_do_not_fit_change_nothing(old, options, error, message):
    trainer = fluid.Trainer(new_program, SGD(0.1))
    before = arrays(trainer)
    with pytest.raises(error, match=message):
        trainer.load_params(old[1], **options)
    for name, value in arrays(trainer).items():
        np.testing.assert_array_equal(value, before[name])


def test_names_of_a_session_take_optimizer_state_along(tmp_path):
    first = fluid.Trainer(old_program, fluid.optimizer.Momentum(0.1, momentum=0.9))
    first.train(DATA, num_epochs=1, progress=False)
    first.session.save(tmp_path / "all")
    second = fluid.Trainer(old_program, fluid.optimizer.Momentum(0.1, momentum=0.9), seed=1)
    before = {name: np.array(value) for name, value in second.session.state().items()}
    second.session.load(tmp_path / "all", names=["old/fc_*"])
    there, after = first.session.state(), second.session.state()
    taken = {name for name in after if "old/fc_" in name}
    assert any(name.startswith("@slots/") for name in taken) and {"@step", "@root"} <= after.keys() - taken
    for name, value in after.items():
        np.testing.assert_array_equal(value, there[name] if name in taken else before[name])


def test_names_of_an_exported_model_are_refused(tmp_path):
    fluid.Trainer(old_program, SGD(0.1)).save_inference_model(tmp_path / "m", platforms=["cpu"])
    with pytest.raises(errors.ArgumentTypeError, match="names="):
        fluid.Inferencer(param_path=tmp_path / "m", names=["old/*"])


def test_inspecting_different_files_names_lines_of_both(net, capsys):
    made, folder = net
    other = fluid.Trainer(lambda: fluid.layers.mean(made["only_head"](3)), SGD(0.1))
    other.save_params(folder / "head.params")
    assert main(["inspect", str(folder / "net.params"), str(folder / "head.params")]) == 1
    said = capsys.readouterr().err
    assert f"net.params' does not match '{folder}/head.params':" in said
    assert (
        "fc_0.w_0: found float32[4, 4], expected float32[4, 3]; created at net.py:4 in tower there, and at net.py:6 in "
        "head here\n"
    ) in said
    assert "extra: fc_1.w_0 float32[4, 4]; created at net.py:6 in head there" in said


def test_two_files_with_other_numbers_are_compared(net, capsys):
    made, folder = net
    arrays, _ = fluid.io.load_arrays(folder / "net.params")
    trainer = fluid.Trainer(made["train"], SGD(0.1), params=arrays | {"fc_1.b_0": arrays["fc_1.b_0"] + 0.5})
    trainer.save_params(folder / "moved.params")
    files = str(folder / "net.params"), str(folder / "moved.params")
    assert main(["inspect", files[0], files[0]]) == 0
    assert "and 0 of them other numbers" in capsys.readouterr().out
    assert main(["inspect", *files]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("and 1 of them other numbers")
    assert said[-1].split() == ["fc_1.b_0", "0.5", "net.py:6", "in", "head"]


def test_a_dtype_that_differs_names_the_lines(net):
    made, folder = net
    arrays, _ = fluid.io.load_arrays(folder / "net.params")
    changed = arrays | {"fc_0.w_0": arrays["fc_0.w_0"].astype("float64")}
    with pytest.raises(errors.ParameterError, match=r"astype\('float32'\); created at net.py:4 in tower here"):
        fluid.Trainer(made["train"], SGD(0.1)).load_params(changed)
