"""Parameter files: round trips, damage, and mismatches."""

import io as stdio
import json
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, io

ARRAYS = {
    "fc_0.w_0": np.arange(6, dtype="float32").reshape(2, 3),
    "generator/fc_0.b_0": np.array([1.5, -2.0], "float32"),
    "scalar": np.array(3, "int32"),
    "empty": np.zeros((0, 4), "float32"),
    "half": np.asarray(jnp.array([1.0, 2.5], jnp.bfloat16)),
    "flag": np.array([True, False]),
}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "all.params"
    io.save_arrays(path, ARRAYS)
    return path


def test_arrays_round_trip(saved):
    found, kind = io.load_arrays(saved)
    assert kind == "parameters"
    assert list(found) == list(ARRAYS)
    for name, value in ARRAYS.items():
        assert found[name].dtype == value.dtype and found[name].shape == value.shape
        assert np.array_equal(found[name], value)


def test_numpy_alone_reads_the_file(saved):
    with zipfile.ZipFile(saved) as archive:
        array = np.load(stdio.BytesIO(archive.read("fc_0.w_0.npy")), allow_pickle=False)
    assert np.array_equal(array, ARRAYS["fc_0.w_0"])


def test_a_directory_holds_the_file(tmp_path):
    io.save_arrays(tmp_path, {"w": np.ones(2, "float32")})
    assert io.load_arrays(tmp_path)[0]["w"].tolist() == [1, 1]


def test_saving_again_replaces_and_leaves_nothing_else(saved):
    io.save_arrays(saved, {"w": np.ones(2, "float32")})
    assert list(io.load_arrays(saved)[0]) == ["w"]
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_a_failing_save_keeps_the_old_file(saved):
    class Unreadable:
        def __array__(self, *_, **__):
            raise MemoryError

    before = saved.read_bytes()
    with pytest.raises(MemoryError):
        io.save_arrays(saved, {"w": Unreadable()})
    with pytest.raises(errors.ArgumentTypeError, match="numbers"):
        io.save_arrays(saved, {"w": np.array([object()])})
    assert saved.read_bytes() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_a_path_that_does_not_exist(tmp_path):
    with pytest.raises(errors.ParameterFileError, match="no parameter file.*save_params"):
        io.load_arrays(tmp_path / "nothing")
    with pytest.raises(OSError):
        io.save_arrays(tmp_path / "no" / "folder", ARRAYS)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", b"PK\x05\x06" + b"\0" * 18])
def test_a_file_that_holds_something_else(tmp_path, content):
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(errors.ParameterFileError, match="no parameter file of fluid"):
        io.load_arrays(path)


def test_an_npz_without_manifest_is_something_else(tmp_path):
    np.savez(tmp_path / "x.npz", w=np.ones(3))
    with pytest.raises(errors.ParameterFileError):
        io.load_arrays(tmp_path / "x.npz")


def test_every_flipped_byte_is_noticed_or_harmless(saved):
    content = saved.read_bytes()
    for position in range(0, len(content), 7):
        damaged = bytearray(content)
        damaged[position] ^= 0x10
        saved.write_bytes(damaged)
        try:
            found, _ = io.load_arrays(saved)
        except errors.ParameterFileError:
            continue
        for name, value in found.items():  # damage that raises no error leaves every array unchanged
            assert name in ARRAYS and np.array_equal(value, ARRAYS[name]), position


def test_every_truncation_is_noticed(saved):
    content = saved.read_bytes()
    for length in range(0, len(content), 31):
        saved.write_bytes(content[:length])
        with pytest.raises(errors.ParameterFileError):
            io.load_arrays(saved)


def test_a_newer_version_is_refused(saved):
    rewrite(saved, version=99)
    with pytest.raises(errors.ParameterFileError, match="version 99"):
        io.load_arrays(saved)


def test_wrong_declared_size_is_refused_before_reading(saved):
    rewrite(saved, arrays={"fc_0.w_0": {"shape": [1], "dtype": "float32"}})
    with pytest.raises(errors.ParameterFileError, match="fc_0.w_0"):
        io.load_arrays(saved)


def rewrite(path, **changes):
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(entries["manifest.json"]) | changes
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (entries | {"manifest.json": json.dumps(manifest).encode()}).items():
            archive.writestr(name, data)


def test_mismatched_arrays_are_listed_with_the_nearest_name():
    found = {"fc_0.w0": np.ones((2, 2), "float32"), "b": np.ones(3, "float64"), "c": np.ones(1, "float32")}
    wanted = {"fc_0.w_0": ((2, 2), "float32"), "b": ((3,), "float32"), "c": ((2,), "float32")}
    with pytest.raises(errors.ParameterError) as caught:
        io.check_match(found, wanted, "here")
    text = str(caught.value)
    assert "missing: fc_0.w_0" in text and "Did you mean 'fc_0.w0'?" in text
    assert "b: found float64[3], expected float32[3]" in text
    assert "c: found float32[1], expected float32[2]" in text
    assert "extra: fc_0.w0" in text


def test_at_most_twenty_differences_are_listed():
    with pytest.raises(errors.ParameterError, match="and 30 more"):
        io.check_match({}, {f"w{i}": ((1,), "float32") for i in range(50)}, "here")


def predicting():
    return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)


def training():
    loss = fluid.layers.mean(predicting())
    fluid.optimizer.Adam(0.1).minimize(loss)
    return loss


def test_save_params_and_load_params_round_trip(tmp_path):
    session, other = fluid.Session(predicting, seed=1), fluid.Session(predicting, seed=2)
    fluid.io.save_params(session, tmp_path / "deep" / "er")
    fluid.io.load_params(other, tmp_path / "deep" / "er")
    assert np.array_equal(other.scope["fc_0.w_0"], session.scope["fc_0.w_0"])
    third = fluid.Session(predicting, seed=3)
    before = np.asarray(third.scope["fc_0.b_0"])
    fluid.io.save_params(session, tmp_path, filename="w", names=["fc_0.w_0"])
    third.scope["fc_0.b_0"] = [7.0]
    fluid.io.load_params(third, tmp_path, filename="w")
    assert np.array_equal(third.scope["fc_0.w_0"], session.scope["fc_0.w_0"]) and before == 0
    assert third.scope["fc_0.b_0"].tolist() == [7.0]


def test_main_program_selects_the_params_of_a_program(tmp_path):
    def second():
        return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=3, param_attr="other", bias_attr=False)

    session = fluid.Session(predicting, second, seed=1)
    fluid.io.save_params(session, tmp_path, main_program=session.programs["second"])
    assert list(io.load_arrays(tmp_path)[0]) == ["other"]
    other = fluid.Session(predicting, second, seed=2)
    fluid.io.load_params(other, tmp_path, main_program=other.programs["second"])
    assert np.array_equal(other.scope["other"], session.scope["other"])
    with pytest.raises(errors.ParameterError, match="missing: fc_0.w_0"):
        fluid.io.load_params(other, tmp_path, main_program=other.programs["predicting"])


def test_persistables_include_the_optimizer_state(tmp_path):
    session, other = fluid.Session(training, seed=1), fluid.Session(training, seed=2)
    feed = {"x": np.ones((4, 2), "float32")}
    session.run(feed=feed)
    fluid.io.save_persistables(session, tmp_path)
    fluid.io.load_persistables(other, tmp_path)
    for mine in (session, other):
        mine.run(feed=feed)
    assert {n: np.asarray(v).tobytes() for n, v in session.state().items()} == {
        n: np.asarray(v).tobytes() for n, v in other.state().items()
    }


def test_wrong_executors_and_folders_are_refused(tmp_path):
    with pytest.raises(errors.ArgumentTypeError, match="expected a Session or a Trainer"):
        fluid.io.save_params(predicting, tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.ParameterFileError, match="expected a folder"):
        fluid.io.save_persistables(fluid.Session(predicting), tmp_path / "file")


def test_unnamed_output_is_fetched_by_its_value_name(tmp_path):
    def net():
        return fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1, name="guess")

    session = fluid.Session(net)
    fluid.io.save_inference_model(tmp_path / "model.fluid", net, session.params())
    program, feeds, targets = fluid.io.load_inference_model(tmp_path / "model.fluid")
    assert (feeds, targets) == (["x"], ["guess.tmp_1"])
    (found,) = fluid.Session(program).run(feed={"x": [[1, 2]]}, fetch=targets)
    np.testing.assert_array_equal(found, session.run(feed={"x": [[1, 2]]})[0])


@pytest.mark.parametrize("folder", [False, True])
def test_saved_inference_model_loads_with_equal_outputs(folder, tmp_path):
    def program():
        x = fluid.layers.data("x", shape=[4])
        return {"out": fluid.layers.fc(x, size=2), "twice": x * 2}

    session = fluid.Session(program)
    path = tmp_path if folder else tmp_path / "net.fluid"
    fluid.io.save_inference_model(path, program, session.params())
    other = fluid.Session(lambda: fluid.layers.data("other", shape=[1]))
    found, feeds, targets = fluid.io.load_inference_model(path, other)
    assert (feeds, targets) == (["x"], ["out", "twice"])
    x = np.arange(8, dtype="float32").reshape(2, 4)
    want = session.run(feed={"x": x}, fetch=targets)
    for result in (other.run(found, {"x": x}, fetch=targets), fluid.Session(found).run(feed={"x": x}, fetch=targets)):
        for name in targets:
            np.testing.assert_allclose(result[name], want[name], rtol=1e-6)
