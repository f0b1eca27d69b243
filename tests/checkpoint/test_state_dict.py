"""The function `fluid.io.load_state_dict`: it loads weights of other libraries by a table of names."""

import sys
import types
import zipfile

import jax.numpy as jnp
import numpy as np
import pytest

import fluid
from fluid import errors, layers
from fluid._util import npy

TABLE = {"layer.{n}.weight": ("block_{n}/fc_0.w_0", "transpose"), "layer.{n}.bias": "block_{n}/fc_0.b_0"}


def program():
    x = layers.data("x", shape=[2])
    for n in range(2):
        with fluid.name_scope(f"block_{n}"):
            x = layers.fc(x, size=3)
    return x


def weights(**more):
    rng = np.random.default_rng(0)
    shapes = {"layer.0.weight": (3, 2), "layer.0.bias": (3,), "layer.1.weight": (3, 3), "layer.1.bias": (3,)}
    return {n: rng.normal(size=shape).astype("float32") for n, shape in shapes.items()} | more


@pytest.fixture
def session():
    with fluid.Session(program) as session:
        yield session


def message(session, source, table=TABLE, ignore=()):
    before = session.params()
    with pytest.raises(errors.ParameterError) as caught:
        fluid.io.load_state_dict(session, source, table, ignore)
    assert all((before[n] == value).all() for n, value in session.params().items())
    return str(caught.value)


def write_npz(path, arrays):
    np.savez(path, **arrays)


def write_safetensors(path, arrays):
    from safetensors.numpy import save_file

    save_file({n: np.ascontiguousarray(array) for n, array in arrays.items()}, path)


@pytest.mark.parametrize(("name", "write"), [("w.npz", write_npz), ("w.safetensors", write_safetensors)])
def test_file_gives_output_of_its_weights(tmp_path, session, name, write):
    w = weights()
    write(tmp_path / name, w)
    report = fluid.io.load_state_dict(session, tmp_path / name, TABLE)
    x = np.random.default_rng(1).normal(size=(4, 2)).astype("float32")
    hidden = x @ w["layer.0.weight"].T + w["layer.0.bias"]
    expected = hidden @ w["layer.1.weight"].T + w["layer.1.bias"]
    np.testing.assert_allclose(session.run(feed={"x": x})[0], expected, rtol=1e-5, atol=1e-6)
    assert report.taken["block_1/fc_0.w_0"] == "layer.1.weight" and len(report.taken) == 4


def test_report_is_a_table_by_rows(session):
    text = repr(fluid.io.load_state_dict(session, weights(extra=np.ones(2)), TABLE, ignore=["ext*"]))
    lines = [line.split() for line in text.splitlines()]
    assert lines[0][:2] == ["4", "arrays"]
    assert lines[1][:6] == ["layer.{n}.weight", "->", "block_{n}/fc_0.w_0", "transpose", "2", "arrays"]
    assert lines[2] == ["layer.{n}.bias", "->", "block_{n}/fc_0.b_0", "2", "arrays", "float32[3]"]
    assert lines[3] == ["ignored", "there:", "extra"]


def test_saved_params_file_is_read(tmp_path, session):
    session.save_params(tmp_path / "own.params")
    fluid.io.load_state_dict(session, tmp_path / "own.params", {"*": "*"})


def test_fused_weight_splits_after_transposition():
    def attention():
        return layers.multi_head_attention(layers.data("x", shape=[5, 4]), num_heads=2, bias_attr=False, name="a")

    fused = np.arange(48, dtype="float32").reshape(12, 4)  # the layout of in_proj_weight in PyTorch
    with fluid.Session(attention) as session:
        table = {"in": (["a.w_0", "a.w_1", "a.w_2"], "transpose"), "out": "a.w_3"}
        fluid.io.load_state_dict(session, {"in": fused, "out": np.eye(4, dtype="float32")}, table)
        for i in range(3):
            np.testing.assert_array_equal(session.scope[f"a.w_{i}"], fused[4 * i : 4 * i + 4].T)


def test_axes_reorder_a_convolution():
    kernel = np.random.default_rng(0).normal(size=(3, 2, 1, 4)).astype("float32")  # the layout of Keras

    def convolve():
        return layers.conv2d(layers.data("x", shape=[1, 8, 8]), 4, (3, 2), bias_attr=False)

    with fluid.Session(convolve) as session:
        fluid.io.load_state_dict(session, {"kernel": kernel}, {"kernel": ("conv2d_0.w_0", (3, 2, 0, 1))})
        np.testing.assert_array_equal(session.scope["conv2d_0.w_0"], kernel.transpose(3, 2, 0, 1))


def test_half_precision_becomes_float32(session):
    half = {n: jnp.asarray(w, "bfloat16") for n, w in weights().items()}
    report = fluid.io.load_state_dict(session, half, TABLE)
    assert "from bfloat16" in repr(report)
    np.testing.assert_array_equal(session.scope["block_0/fc_0.b_0"], np.float32(half["layer.0.bias"]))


def test_array_without_row_is_an_error(session):
    text = message(session, weights(**{"layer.0.biass": np.ones(3, "float32")}))
    assert "no row takes layer.0.biass float32[3]  (Did you mean 'layer.{n}.bias'?)" in text


def test_parameter_without_array_is_an_error(session):
    w = weights()
    del w["layer.1.bias"]
    assert "nothing sets block_1/fc_0.b_0 float32[3]" in message(session, w)
    report = fluid.io.load_state_dict(session, w, TABLE, ignore=["block_1/*.b_0"])
    assert report.kept == ("block_1/fc_0.b_0",) and "not changed here: block_1/fc_0.b_0" in repr(report)


def test_row_without_array_names_the_nearest(session):
    text = message(session, weights(), TABLE | {"layers.0.bias": "block_0/fc_0.b_0"})
    assert "the row 'layers.0.bias' fits no name there  (Did you mean 'layer.0.bias'?)" in text


def test_unknown_target_names_the_nearest(session):
    text = message(session, weights(), TABLE | {"layer.{n}.bias": "block_{n}/fc_0.b_1"})
    assert "layer.0.bias goes to block_0/fc_0.b_1, which the program lacks  (Did you mean 'block_0/fc_0.b_0'?)" in text


def test_missing_transposition_is_suggested(session):
    text = message(session, weights(), TABLE | {"layer.{n}.weight": "block_{n}/fc_0.w_0"})
    assert "layer.0.weight gives block_0/fc_0.w_0 float32[3, 2], expected float32[2, 3]; " in text
    assert '("block_0/fc_0.w_0", "transpose") fits'.replace('"block_0/fc_0.w_0"', "'block_0/fc_0.w_0'") in text


def test_two_arrays_for_a_parameter_are_an_error(session):
    text = message(session, weights(), TABLE | {"layer.{n}.bias": "block_0/fc_0.b_0"})
    assert "layer.0.bias and layer.1.bias both go to block_0/fc_0.b_0" in text


def test_axes_of_another_rank_are_an_error(session):
    text = message(session, weights(), TABLE | {"layer.{n}.bias": ("block_{n}/fc_0.b_0", (1, 0))})
    assert "layer.0.bias float32[3] to block_{n}/fc_0.b_0, axes (1, 0): axes don't match array" in text


def test_integers_do_not_become_floats(session):
    text = message(session, weights(**{"layer.0.bias": np.ones(3, "int64")}))
    assert "layer.0.bias gives block_0/fc_0.b_0 int64[3], expected float32[3]" in text


@pytest.mark.parametrize(
    "target", [3, [], ("a", "turn"), ("a", "transpose", 1), (["a", 1], "transpose"), ("a", (1.5,))]
)
def test_row_of_another_form_is_refused(session, target):
    with pytest.raises(errors.ArgumentTypeError, match='expected a name, a list of names, or a pair with "transpose"'):
        fluid.io.load_state_dict(session, weights(), {"*": target})


def test_unreadable_files_are_refused(tmp_path):
    with pytest.raises(errors.ParameterFileError, match="no file at"):
        fluid.io.read_state_dict(tmp_path / "absent.pt")
    (tmp_path / "text.pt").write_text("not weights, but a text that is long enough")
    with pytest.raises(errors.ParameterFileError, match="holds no weights that fluid can read"):
        fluid.io.read_state_dict(tmp_path / "text.pt")
    np.savez(tmp_path / "objects.npz", w=np.array([{}]))
    with pytest.raises(errors.ParameterFileError, match="expected arrays of numbers"):
        fluid.io.read_state_dict(tmp_path / "objects.npz")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["a"]), "text, dates and records are no weights"),
        (np.array(["2020-01-01"], "datetime64[D]"), "text, dates and records are no weights"),
        (np.zeros(2, [("w", "f4")]), "no array of numbers"),
    ],
)
def test_arrays_without_numbers_are_refused(tmp_path, array, message):
    np.savez(tmp_path / "w.npz", good=np.ones(2), w=array)
    with pytest.raises(errors.ParameterFileError, match=message):
        fluid.io.read_state_dict(tmp_path / "w.npz")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_arrays_of_one_name_are_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive:
        for _ in range(2):
            with archive.open("w.npy", "w") as entry:
                np.save(entry, np.ones(2))
    with pytest.raises(errors.ParameterFileError, match="two of its entries have one name"):
        fluid.io.read_state_dict(tmp_path / "w.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damaged_archives_raise_errors_of_fluid(tmp_path, save):
    save(tmp_path / "w.npz", w=np.ones((3, 2), "float32"), b=np.zeros(2, "float32"))
    whole, refused = (tmp_path / "w.npz").read_bytes(), 0
    for place in range(len(whole)):
        (tmp_path / "w.npz").write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            fluid.io.read_state_dict(tmp_path / "w.npz")
        except errors.ParameterFileError:
            refused += 1
    assert refused > len(whole) / 4


def test_unwanted_shapes_are_refused_before_data_is_read(tmp_path, session, monkeypatch):
    np.savez_compressed(tmp_path / "w.npz", **weights(**{"layer.0.bias": np.zeros(4_000_000, "float32")}))
    with monkeypatch.context() as patched:
        patched.setattr(npy, "read_array", None)
        assert "expected float32[3]" in message(session, tmp_path / "w.npz")
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive, archive.open("layer.0.bias.npy", "w") as entry:
        header = {"descr": "<f4", "fortran_order": False, "shape": (10**12,)}
        np.lib.format.write_array_header_1_0(entry, header)
    with pytest.raises(errors.ParameterFileError, match="its header declares 40000000001"):
        fluid.io.read_state_dict(tmp_path / "w.npz")


@pytest.mark.parametrize("dtype", ["(1000000000,)f4", "f4,f4", "unknown"])
def test_forged_dtypes_are_refused(tmp_path, dtype):
    with zipfile.ZipFile(tmp_path / "w.npz", "w") as archive, archive.open("w.npy", "w") as entry:
        header = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': (1,), }}".encode()
        entry.write(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(8))
    with pytest.raises(errors.ParameterFileError, match="no array of numbers"):
        fluid.io.read_state_dict(tmp_path / "w.npz")


def test_pytorch_that_can_run_code_is_refused(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(__version__="2.5.1+cpu"))
    (tmp_path / "w.pt").write_bytes(b"\x80\x02}q\x00." * 4)
    with pytest.raises(errors.ParameterFileError, match=r"needs PyTorch 2\.6 or newer, found 2\.5\.1"):
        fluid.io.read_state_dict(tmp_path / "w.pt")


def test_a_file_of_zeros_is_damaged(tmp_path):
    (tmp_path / "w.params").write_bytes(bytes(1000))
    with pytest.raises(errors.ParameterFileError, match="or is damaged"):
        fluid.io.load_arrays(tmp_path / "w.params")


def test_pickle_is_not_run(tmp_path):
    import pickle

    (tmp_path / "w.bin").write_bytes(pickle.dumps({"w": 1}, protocol=4))
    with pytest.raises(errors.ParameterFileError, match="pickle file, which may run anything"):
        fluid.io.read_state_dict(tmp_path / "w.bin")


@pytest.mark.parametrize(
    ("library", "head", "advice"),
    [
        ("h5py", b"\x89HDF\r\n\x1a\n", r"pip install 'fluid-jax\[keras\]'"),
        ("torch", b"\x80\x02}q\x00.", "pip install torch; or convert the file"),
    ],
)
def test_absent_library_is_named(tmp_path, monkeypatch, library, head, advice):
    monkeypatch.setitem(sys.modules, library, None)
    (tmp_path / "weights").write_bytes(head + bytes(20))
    with pytest.raises(errors.ParameterFileError, match=advice):
        fluid.io.read_state_dict(tmp_path / "weights")
