"""The binary format of variables: files of PaddlePaddle, round trips, and damage of every kind."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paddle_programs import FOLDER, serialized

from fluid import errors
from fluid.compat.paddle_files.parameters import count_variables, read_file
from fluid.compat.paddle_files.program_desc import DTYPES

WEIGHT = FOLDER / "lenet" / "params" / "fc_0.w_0"


def read(tmp_path, *parts, names=None):
    path = tmp_path / "variables"
    path.write_bytes(b"".join(parts))
    names = [f"v{i}" for i in range(len(parts))] if names is None else names
    return list(read_file(path, names).values())


def test_paddle_file_is_read_and_rewritten_equally():
    array = read_file(WEIGHT, ["fc_0.w_0"])["fc_0.w_0"]
    assert array.shape == (6, 10) and array.dtype == "float32"
    with np.load(FOLDER / "lenet" / "io.npz") as file:
        assert file["out"].shape == (len(file["in_img"]), 10)
    content = WEIGHT.read_bytes()
    assert array.tobytes() == content[-240:] and serialized(array) == content, "the writer of these tests is the same"


@given(st.sampled_from(sorted(DTYPES.values())), st.lists(st.integers(1, 4), max_size=4))
def test_every_dtype_and_shape(tmp_path_factory, dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    (found,) = read(tmp_path_factory.mktemp("v"), serialized(array))
    assert found.dtype == array.dtype and found.shape == array.shape and np.array_equal(found, array)


def test_lod_levels_are_passed_over(tmp_path):
    array = np.ones((5, 2), "float32")
    assert np.array_equal(read(tmp_path, serialized(array, levels=[[0, 2], [0, 2, 5]]))[0], array)


def test_combined_file_returns_all_variables(tmp_path):
    arrays = [np.float32([1, 2]), np.int64([[3]]), np.zeros((), "float32")]
    for got, want in zip(read(tmp_path, *map(serialized, arrays)), arrays, strict=True):
        assert np.array_equal(got, want) and got.dtype == want.dtype
    assert count_variables(tmp_path / "variables") == 3


@pytest.mark.parametrize(
    ("names", "message"),
    [(["a"], r"for 32 bytes behind a; expected 1 variables"), (["a", "b", "c"], "behind 2 variables")],
)
def test_another_number_of_variables_than_names(names, message, tmp_path):
    part = serialized(np.float32([1, 2]))
    with pytest.raises(errors.ParameterFileError, match=message):
        read(tmp_path, part, part, names=names)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02}q\x00.", "looks like a pickle"),
        (b"hello, world", "version 1819043176, expected 0"),
        (bytes(4) + (1 << 60).to_bytes(8, "little"), "the size of a LoD level of 8 bytes, and 0 are left"),
        (bytes(4) + (1).to_bytes(8, "little") + (1 << 62).to_bytes(8, "little"), "LoD offsets of 46116860184"),
        (bytes(4) + (1).to_bytes(8, "little") + (7).to_bytes(8, "little"), "7 bytes, which are no offsets"),
        (bytes(12) + b"\1\0\0\0", "a tensor of version 1"),
        (bytes(16) + b"\xff\xff\xff\xff", "a message of 4294967295 bytes"),
        (bytes(16) + b"\2\0\0\0\x10\5", "data type 0, which is none of bool"),
        (bytes(16) + b"\2\0\0\0\x08\x07", "data type 7"),
        (bytes(16) + b"\2\0\0\0\xff\xff", "not a message of the kind Tensor"),
        (
            bytes(16) + b"\x0c\0\0\0\x08\5\x10\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            r"float32\[9223372036854775807\] of 36893488147419103228 bytes",
        ),
        (bytes(16) + b"\6\0\0\0\x08\5\x10\x08\x10\x02" + bytes(60), r"float32\[8, 2\] of 64 bytes, and 60 are left"),
    ],
)
def test_bad_fields_are_reported_with_their_byte(content, message, tmp_path):
    with pytest.raises(errors.ParameterFileError, match=rf"variable 'v0', before byte \d+, found .*{message}"):
        read(tmp_path, content)


@pytest.mark.parametrize(("size", "encoded"), [(-1, b"\xff" * 9 + b"\x01"), (0, b"\0")])
def test_sizes_are_positive(size, encoded, tmp_path):
    message = b"\x08\5\x10" + encoded
    with pytest.raises(errors.ParameterFileError, match=rf"sizes \[{size}\]"):
        read(tmp_path, bytes(16) + len(message).to_bytes(4, "little") + message)


def test_every_truncation_is_noticed(tmp_path):
    content = WEIGHT.read_bytes()
    for length in range(1, len(content)):
        with pytest.raises(errors.ParameterFileError):
            read(tmp_path, content[:length])


def test_every_flipped_bit_of_a_head_is_noticed(tmp_path):
    content = WEIGHT.read_bytes()
    for bit in range(8 * (len(content) - 240)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(errors.ParameterFileError):
            read(tmp_path, bytes(damaged))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_or_read_within_size(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("v") / "variables"
    for start in (b"", bytes(12), bytes(16)):
        path.write_bytes(start + content)
        try:
            array = read_file(path, ["v"])["v"]
        except errors.ParameterFileError:
            continue
        assert array.nbytes <= len(content)


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(errors.ParameterFileError, match="cannot read"):
        read_file(tmp_path / "nothing", ["v"])
    with pytest.raises(errors.ParameterFileError, match="cannot read"):
        read_file(tmp_path, ["v"])
