"""Parameters in the safetensors format: files of fluid, of the library, and of another framework."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy
from flax import linen

import fluid
from fluid import errors, io

ARRAYS = {
    "fc_0.w_0": np.arange(6, dtype="float32").reshape(2, 3),
    "generator/fc_0.b_0": np.array([1.5, -2.0], "float32"),
    "scalar": np.array(3, "int32"),
    "empty": np.zeros((0, 4), "float32"),
    "half": np.asarray(jnp.array([1.0, 2.5], jnp.bfloat16)),
    "flag": np.array([True, False]),
    "turned": np.arange(6, dtype="float32").reshape(2, 3).T,
    "big-endian": np.arange(3, dtype=">f4"),
}


def program():
    hidden = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=8, act="relu")
    return fluid.layers.fc(hidden, size=2)


def test_arrays_round_trip(tmp_path):
    io.save_arrays(tmp_path / "x.safetensors", ARRAYS, kind="mine")
    found, kind = io.load_arrays(tmp_path / "x.safetensors")
    assert kind == "mine" and found.keys() == ARRAYS.keys()
    for name, value in ARRAYS.items():
        assert found[name].dtype == value.dtype.newbyteorder("=") and found[name].shape == value.shape
        assert np.array_equal(found[name], value)
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_safetensors_library_reads_parameters_of_a_trainer(tmp_path):
    trainer = fluid.Trainer(lambda: fluid.layers.mean(program()), fluid.optimizer.SGD(0.1))
    trainer.save_params(tmp_path / "x.safetensors")
    found = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    assert {n: v.tobytes() for n, v in found.items()} == {n: np.asarray(v).tobytes() for n, v in trainer.params.items()}
    feed = {"x": np.ones((3, 4), "float32")}
    by_file = fluid.Inferencer(program, param_path=tmp_path / "x.safetensors").infer(feed)[0]
    assert by_file.tobytes() == fluid.Inferencer(program, params=trainer.params).infer(feed)[0].tobytes()


def test_the_same_arrays_make_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        io.save_arrays(tmp_path / f"{name}.safetensors", ARRAYS)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


class Net(linen.Module):
    """The net of `program`, written in Flax; its parameters have names such as `params.Dense_0.kernel`."""

    @linen.compact
    def __call__(self, x):
        hidden = linen.relu(linen.Dense(8)(x))
        return linen.Dense(2)(hidden)


@pytest.fixture
def foreign(tmp_path):
    """Write the parameters of a Flax net to a safetensors file; return the path, an input, and the net's output."""
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    net = Net()
    variables = net.init(jax.random.key(3), x)
    flat = {
        ".".join(key.key for key in path): np.asarray(value)
        for path, value in jax.tree_util.tree_leaves_with_path(variables)
    }
    safetensors.numpy.save_file(flat, tmp_path / "net.safetensors")
    return tmp_path / "net.safetensors", x, np.asarray(net.apply(variables, x))


RENAME = {"params.Dense_{n}.kernel": "fc_{n}.w_0", "params.Dense_{n}.bias": "fc_{n}.b_0"}


def test_a_file_of_another_framework(foreign):
    path, x, want = foreign
    inferencer = fluid.Inferencer(program, param_path=path, rename=RENAME)
    np.testing.assert_allclose(inferencer.infer({"x": x})[0], want, rtol=1e-5, atol=1e-6)
    session = fluid.Session(program)
    session.load_params(path, rename=RENAME)
    np.testing.assert_allclose(session.run(feed={"x": x})[0], want, rtol=1e-5, atol=1e-6)
    other = fluid.Session(program, seed=1)
    fluid.io.load_params(other, path, rename=RENAME)
    assert np.array_equal(other.scope["fc_1.w_0"], session.scope["fc_1.w_0"])


def test_without_new_names_the_error_lists_both(foreign):
    with pytest.raises(errors.ParameterError, match=r"missing: fc_0.w_0 float32\[4, 8\]"):
        fluid.Session(program).load_params(foreign[0])


def test_save_params_and_load_params_use_safetensors(tmp_path):
    session, other = fluid.Session(program, seed=1), fluid.Session(program, seed=2)
    fluid.io.save_params(session, tmp_path / "x.safetensors")
    fluid.io.load_params(other, tmp_path / "x.safetensors")
    assert np.array_equal(other.scope["fc_0.w_0"], session.scope["fc_0.w_0"])


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x04K\x01.", b"PK\x05\x06" + b"\0" * 18, b"\xff" * 64])
def test_a_file_that_holds_something_else(tmp_path, content):
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(errors.ParameterFileError, match="no safetensors file"):
        io.load_arrays(path)


def test_every_truncation_is_noticed(tmp_path):
    path = tmp_path / "x.safetensors"
    io.save_arrays(path, ARRAYS)
    content = path.read_bytes()
    for length in range(0, len(content), 31):
        path.write_bytes(content[:length])
        with pytest.raises(errors.ParameterFileError):
            io.load_arrays(path)


def test_complex_arrays_are_refused_without_a_file(tmp_path):
    with pytest.raises(errors.ArgumentTypeError, match="complex128.*own format"):
        io.save_arrays(tmp_path / "x.safetensors", {"x": np.ones(2, "complex128")})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(errors.ParameterFileError, match="no parameter file"):
        io.load_arrays(tmp_path / "x.safetensors")


def test_missing_library_error_names_the_package(tmp_path, monkeypatch):
    io.save_arrays(tmp_path / "x.safetensors", ARRAYS)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    for act in (io.load_arrays, lambda path: io.save_arrays(path, ARRAYS)):
        with pytest.raises(errors.ParameterFileError, match=r"pip install 'fluid-jax\[safetensors\]'"):
            act(tmp_path / "x.safetensors")
