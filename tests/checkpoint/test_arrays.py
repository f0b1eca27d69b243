"""Files of parameters: arrays round-trip, and declared sizes are verified before reading."""

import io
import json
import os
import tracemalloc
import zipfile

import hypothesis.extra.numpy as some
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluid import checkpoint, errors

DTYPES = ["float32", "float64", "float16", "int32", "int64", "uint8", "bool", "complex64"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda d: some.arrays(d, some.array_shapes(min_dims=0, max_dims=3, min_side=0))
)


@given(array=ARRAYS, by_columns=st.booleans())
def test_arrays_come_back(array, by_columns, tmp_path_factory):
    path = tmp_path_factory.mktemp("files") / "a.params"
    checkpoint.save_arrays(path, {"w": np.asfortranarray(array) if by_columns and array.ndim else array})
    (found,) = checkpoint.load_arrays(path)[0].values()
    assert found.dtype == array.dtype and found.shape == array.shape and found.flags.writeable
    np.testing.assert_array_equal(found, array)


def test_bfloat16_comes_back(tmp_path):
    array = np.linspace(-3, 3, 8).astype(ml_dtypes.bfloat16).reshape(2, 4)
    checkpoint.save_arrays(tmp_path / "a.params", {"w": array})
    found = checkpoint.load_arrays(tmp_path / "a.params")[0]["w"]
    assert found.dtype == array.dtype and found.tobytes() == array.tobytes()


def forged(path, array, shape=(4,), dtype="float32", content=None, compression=zipfile.ZIP_STORED, times=1):
    """Write a parameter file whose array may differ from the shape and dtype in its manifest."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, allow_pickle=False)
    listing = {"w": {"shape": list(shape), "dtype": dtype}}
    manifest = {"format": "fluid-arrays", "version": 1, "kind": "parameters", "arrays": listing, "sites": {}}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest), compress_type=compression)
        for _ in range(times):
            archive.writestr("w.npy", content or file.getvalue())


@pytest.mark.parametrize("dtype", ["int32", "uint32", ">f4", "U1", "S4", [("a", "f4")], "2i2"])
def test_numbers_of_another_dtype_are_not_reinterpreted(tmp_path, dtype):
    forged(tmp_path / "a.params", np.zeros(4, dtype))
    with pytest.raises(errors.ParameterFileError, match=r"declared as float32\[4\]|no array of numbers"):
        checkpoint.load_arrays(tmp_path / "a.params")


def header(shape):
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"shape": shape, "fortran_order": False, "descr": "<f4"})
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"shape": [10**12], "content": header((10**12,))}, "takes more"),
        ({"content": header((4,)) + bytes(12)}, "ends early|takes more"),
        ({"content": header((4,)) + bytes(20)}, "goes on behind its last number"),
        ({"compression": zipfile.ZIP_DEFLATED}, "manifest is compressed"),
        ({"times": 2}, "two of its entries have one name"),
    ],
)
def test_forged_file_is_refused_without_large_allocation(tmp_path, options, why):
    forged(tmp_path / "a.params", np.zeros(4, "float32"), **options)
    tracemalloc.start()
    try:
        with pytest.raises(errors.ParameterFileError, match=why):
            checkpoint.load_arrays(tmp_path / "a.params")
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.skipif(os.name != "posix", reason="umask is of POSIX")
@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_file_permissions_follow_the_umask(tmp_path, umask):
    before = os.umask(umask)
    try:
        checkpoint.save_arrays(tmp_path / "a.params", {"w": np.ones(3)})
    finally:
        os.umask(before)
    assert (tmp_path / "a.params").stat().st_mode & 0o777 == 0o666 & ~umask
