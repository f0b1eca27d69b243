"""Parameters that one program takes of what another one left: files, arrays and checkpoints."""

import json
import logging
import time
import zipfile

import numpy as np
import pytest

import fluid
from fluid import errors

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
    """A trained Trainer of the old program, its file, and its parameters as NumPy arrays."""
    trainer = fluid.Trainer(old_program, SGD(0.1))
    trainer.train(DATA, num_epochs=1, progress=False)
    trainer.save_params(tmp_path / "old.params")
    return trainer, tmp_path / "old.params", arrays(trainer)


def arrays(owner):
    return {name: np.array(value) for name, value in owner.session.params().items()}


def check_taken(got, before, old):
    """What was taken is that of the old program, and everything else as it was initialised."""
    for name in OLD:
        np.testing.assert_array_equal(got[f"new/{name}"], old[f"old/{name}"])
    for name in got.keys() - {f"new/{name}" for name in OLD}:
        np.testing.assert_array_equal(got[name], before[name])


def test_transfer_load_params_takes_a_part_by_other_names_and_reports(old):
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
def test_transfer_takes_the_same_wherever_it_is_asked_for(old, load):
    _, path, values = old
    check_taken(arrays(load(path, values)), arrays(fluid.Trainer(new_program, SGD(0.1), seed=3)), values)


def loaded(load):
    trainer = fluid.Trainer(new_program, SGD(0.1), seed=3)
    load(trainer)
    return trainer


def test_transfer_logs_what_is_missing_and_what_is_left_over(old, caplog):
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
def test_transfer_that_does_not_fit_changes_nothing_and_says_how(old, choices, error, message):
    trainer = fluid.Trainer(new_program, SGD(0.1))
    before = arrays(trainer)
    with pytest.raises(error, match=message):
        trainer.load_params(old[1], **choices)
    for name, value in arrays(trainer).items():
        np.testing.assert_array_equal(value, before[name])


def test_loading_a_file_that_shares_no_name_is_an_error(old, tmp_path):
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
        fluid.Inferencer(other, param_path=old[1], strict=False)


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


def test_globs_name_what_is_saved(old, tmp_path):
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


def test_inferencer_of_a_checkpoint_takes_the_newest_that_is_whole(tmp_path):
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
    assert (tmp_path / "kept" / "4").is_dir()  # looking sets nothing aside


def test_inferencer_of_no_checkpoint_says_so(tmp_path):
    with pytest.raises(errors.CheckpointError, match="there is no folder"):
        fluid.Inferencer(old_program, checkpoint=tmp_path / "none")
    with pytest.raises(errors.CheckpointError, match="it holds none"):
        fluid.Inferencer(old_program, checkpoint=tmp_path)
    with pytest.raises(errors.ArgumentTypeError, match="from one source"):
        fluid.Inferencer(old_program, checkpoint=tmp_path, param_path=tmp_path)


def test_a_session_of_another_program_says_what_to_check(old, tmp_path):
    old[0].session.save(tmp_path / "session")
    with pytest.raises(errors.ParameterError, match="check that the program function is the one that was trained"):
        fluid.Trainer(new_program, SGD(0.1)).session.load(tmp_path / "session")


# The origin of a parameter. In the whole net fc_0 belongs to the tower and fc_1 to the head, of the same shape.
NET = """
import fluid
def tower(x):
    return fluid.layers.fc(x, size=4, act="tanh")
def head(h):
    return fluid.layers.fc(h, size=4)
def whole():
    return head(tower(fluid.layers.data("x", shape=[4])))
def train():
    return fluid.layers.mean(fluid.layers.square(whole()))
def only_head():
    return head(fluid.layers.data("h", shape=[4]))
def only_tower():
    return tower(fluid.layers.data("x", shape=[4]))
"""


def module(folder, text, name="net.py"):
    """The functions of a file that holds a text."""
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    namespace = {}
    exec(compile(text, str(path), "exec"), namespace)
    return namespace


@pytest.fixture
def net(tmp_path):
    """The functions of NET, and the folder in which `net.params` and a checkpoint of its training lie."""
    made = module(tmp_path, NET)
    trainer = fluid.Trainer(made["train"], SGD(0.1), checkpoint_config=fluid.CheckpointConfig(tmp_path / "kept"))
    trainer.train(DATA, 1, progress=False)
    trainer.save_params(tmp_path / "net.params")
    trainer.save_params(tmp_path / "net.safetensors")
    return made, tmp_path


@pytest.mark.parametrize(
    "options", [{"param_path": "net.params"}, {"param_path": "net.safetensors"}, {"checkpoint": "kept"}]
)
def test_an_inferencer_of_a_part_does_not_take_another_layers_parameters(net, options):
    made, folder = net
    options = {key: folder / value for key, value in options.items()}
    with pytest.raises(
        errors.ParameterError, match=r"fc_0.w_0: made at net.py:4 in tower there, and at net.py:6 in head"
    ):
        fluid.Inferencer(made["only_head"], **options)
    fluid.Inferencer(made["only_tower"], **options)
    fluid.Inferencer(made["whole"], **options)


def test_the_message_about_another_layer_says_what_works(net, caplog):
    made, folder = net
    with pytest.raises(errors.ParameterError) as caught:
        fluid.Inferencer(made["only_head"], param_path=folder / "net.params")
    said = str(caught.value)
    rename = eval(said.partition("rename=")[2].partition("}")[0] + "}")
    found = fluid.Inferencer(made["only_head"], param_path=folder / "net.params", rename=rename)
    values = fluid.io.load_arrays(folder / "net.params")[0]
    h = np.random.default_rng(1).normal(size=(3, 4)).astype("float32")
    (got,) = found.infer({"h": h})
    np.testing.assert_allclose(got, h @ values["fc_1.w_0"] + values["fc_1.b_0"], rtol=1e-5)
    assert "strict=False" in said
    with caplog.at_level(logging.WARNING, "fluid"):
        fluid.Inferencer(made["only_head"], param_path=folder / "net.params", strict=False)
    assert "2 arrays seem to belong to other layers" in caplog.text


REFACTORED = {
    "the file moved": (NET, "elsewhere/other.py"),
    "lines shifted": (NET.replace("import fluid", "import fluid\n\n# a comment\n\n"), "net.py"),
    "spaces": (NET.replace("x, size=4", "x,  size = 4").replace("h, size=4", "h , size=4"), "net.py"),
    "reformatted": (NET.replace("fc(x, size=4,", "fc(\n        x,\n        size=4,\n       "), "net.py"),
    "another argument": (NET.replace('act="tanh"', 'act="sigmoid"'), "net.py"),
    "a variable renamed": (NET.replace("def tower(x)", "def tower(v)").replace("fc(x", "fc(v"), "net.py"),
    "a function renamed": (NET.replace("tower", "trunk"), "net.py"),
    "a layer inlined": (
        NET.replace("head(tower(", "head(fluid.layers.fc(").replace("[4])))\n", "[4]), size=4))\n", 1),
        "net.py",
    ),
    "called through another function": (NET.replace("return tower(", "return (lambda x: tower(x))("), "net.py"),
}


@pytest.mark.parametrize("change", REFACTORED)
@pytest.mark.parametrize("part", ["whole", "only_tower"])
def test_code_that_was_refactored_takes_its_parameters_without_an_alarm(net, change, part, caplog):
    text, name = REFACTORED[change]
    made = module(net[1], text, name)
    part = part if part in made else "only_trunk"
    with caplog.at_level(logging.WARNING, "fluid"):
        found = fluid.Inferencer(made[part], param_path=net[1] / "net.params")
    values = fluid.io.load_arrays(net[1] / "net.params")[0]
    np.testing.assert_array_equal(np.array(found.session.params()["fc_0.w_0"]), values["fc_0.w_0"])
    assert not caplog.text


def test_a_file_without_origins_loads_as_before(net):
    made, folder = net
    stripped = folder / "old.params"
    with zipfile.ZipFile(folder / "net.params") as before, zipfile.ZipFile(stripped, "w") as after:
        for entry in before.infolist():
            data = before.read(entry)
            if entry.filename == "manifest.json":
                manifest = json.loads(data)
                assert manifest.pop("origins")
                data = json.dumps(manifest).encode()
            after.writestr(entry, data)
    fluid.Inferencer(made["only_head"], param_path=stripped)
    fluid.Inferencer(made["whole"], param_path=stripped)


def test_files_with_origins_are_the_same_bytes_each_time_and_small(net, monkeypatch):
    made, folder = net
    for name, seconds in (("first", 1e9), ("second", 2e9)):
        date = time.gmtime(seconds)
        monkeypatch.setattr(time, "localtime", lambda *now, date=date: date)
        trainer = fluid.Trainer(made["train"], SGD(0.1))
        trainer.save_params(folder / name)
    monkeypatch.undo()
    assert (folder / "first").read_bytes() == (folder / "second").read_bytes()
    other = folder / "other"
    again = module(other, NET)  # the same program in another folder
    fluid.Trainer(again["train"], SGD(0.1)).save_params(folder / "third")
    assert (folder / "first").read_bytes() == (folder / "third").read_bytes()
    with zipfile.ZipFile(folder / "first") as archive:
        origins = json.loads(archive.read("manifest.json"))["origins"]
    assert len(json.dumps(origins)) < 300 * len(origins)
    assert str(folder) not in json.dumps(origins)


def test_names_given_by_the_user_have_no_origin(tmp_path):
    def named():
        x = fluid.layers.data("x", shape=[4])
        return fluid.layers.fc(x, size=4, name="a", bias_attr=fluid.ParamAttr(name="b"))

    fluid.Session(named).save_params(tmp_path / "named")
    with zipfile.ZipFile(tmp_path / "named") as archive:
        assert json.loads(archive.read("manifest.json"))["origins"] == {}


# Two heads of one shape on the same features: nothing but the lines tells them apart.
HEADS = """
import fluid
def features():
    return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=3, name="body")
def train():
    h = features()
    mean = fluid.layers.fc(h, size=2)
    scale = fluid.layers.fc(h, size=2)
    return fluid.layers.mean(fluid.layers.square(mean - scale))
def first():
    h = features()
    mean = fluid.layers.fc(h, size=2)
    return mean
def second():
    h = features()
    scale = fluid.layers.fc(h, size=2)
    return scale
def rewritten():
    return fluid.layers.fc(features(), size=2)
"""


def test_two_layers_in_one_place_are_told_apart_by_their_lines(tmp_path):
    made = module(tmp_path, HEADS)
    fluid.Trainer(made["train"], SGD(0.1)).save_params(tmp_path / "heads")
    fluid.Inferencer(made["first"], param_path=tmp_path / "heads")
    fluid.Inferencer(made["rewritten"], param_path=tmp_path / "heads")  # nothing says that it is not the first
    with pytest.raises(errors.ParameterError, match=r"fc_0.w_0: made at net.py:7 in train there.*fc_1.w_0 \(net.py:8"):
        fluid.Inferencer(made["second"], param_path=tmp_path / "heads")


# One line makes the layers of both towers, and of the whole stack; what they are computed from tells them apart.
TOWERS = """
import fluid
def tower(name):
    return fluid.layers.fc(fluid.layers.data(name, shape=[4]), size=4)
def train():
    user = tower("user")
    film = tower("film")
    return fluid.layers.mean(fluid.layers.square(user - film))
def of_users():
    return tower("user")
def of_films():
    return tower("film")
def stack(x, layers):
    for _ in range(layers):
        x = fluid.layers.fc(x, size=4)
    return x
def deep():
    return fluid.layers.mean(fluid.layers.square(stack(fluid.layers.data("x", shape=[4]), 4)))
"""


def test_two_towers_of_one_function_are_told_apart_by_their_feeds(tmp_path):
    made = module(tmp_path, TOWERS)
    fluid.Session(made["train"]).save_params(tmp_path / "towers")
    fluid.Inferencer(made["of_users"], param_path=tmp_path / "towers")
    with pytest.raises(errors.ParameterError, match=r"fc_0.w_0: .*what is meant may be fc_1.w_0 \(net.py:4 in tower\)"):
        fluid.Inferencer(made["of_films"], param_path=tmp_path / "towers")
    found = fluid.Inferencer(
        made["of_films"], param_path=tmp_path / "towers", rename={"fc_1.*": "fc_0.*", "fc_0.*": "fc_1.*"}
    )
    values = fluid.io.load_arrays(tmp_path / "towers")[0]
    np.testing.assert_array_equal(np.array(found.session.params()["fc_0.w_0"]), values["fc_1.w_0"])


@pytest.mark.parametrize(("begin", "end"), [(i, j) for i in range(4) for j in range(i + 1, 5)])
def test_a_part_of_a_stack_is_taken_from_its_beginning_only(tmp_path, begin, end):
    made = module(tmp_path, TOWERS)
    fluid.Session(made["deep"]).save_params(tmp_path / "deep")

    def part():
        return made["stack"](fluid.layers.data("h" if begin else "x", shape=[4]), end - begin)

    if begin == 0:
        fluid.Inferencer(part, param_path=tmp_path / "deep")
    else:
        with pytest.raises(errors.ParameterError, match="fc_0.w_0: .*, where it comes after other feeds or layers"):
            fluid.Inferencer(part, param_path=tmp_path / "deep")
