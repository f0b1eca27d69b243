"""Every op of PaddlePaddle that fluid can load: programs and results that PaddlePaddle wrote, run by fluid."""

import jax
import numpy as np
import paddle_programs
import pytest
from paddle_programs import Written, case, recorded

import fluid
from fluid.compat import paddle_files
from fluid.compat.paddle_files.op import Op
from fluid.compat.paddle_files.ops import arithmetic, image, loss, sequence, shape
from fluid.compat.paddle_files.program import ROWS

FAMILIES = [arithmetic, image, loss, sequence, shape]
TOLERANCE = 1e-5
# Random numbers of fluid and PaddlePaddle differ, so the test compares lowest and highest number, mean and deviation.
DRAWN = {
    "random/gaussian_random": (-12, 14, 1, 2),
    "random/gaussian_random_batch_size_like": (-12, 14, 1, 2),
    "random/uniform_random": (-2, 3, 0.5, 1.443),
    "random/uniform_random_batch_size_like": (-2, 3, 0.5, 1.443),
}
# Ops that PaddlePaddle 1.8.5 lacks on a CPU, so no results are recorded. A NumPy function computes the result for x.
ELSEWHERE = {
    "log_softmax": lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True)),
    "max_pool3d_with_index": lambda x: x.max((2, 3), keepdims=True),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sync_batch_norm": lambda x: (x - [0.5, 1.0]) / np.sqrt(np.array([4.0, 9.0]) + 1e-5) * [2.0, 3.0] + [0.0, 1.0],
}


# For each op of PaddlePaddle, the attributes that fluid does not read, for one of three reasons. The attribute has no
# effect in fluid; or fluid refuses an op that sets it; or it is for another dtype or number of dimensions.
UNREAD = {
    **dict.fromkeys(["equal", "greater_equal", "greater_than", "less_equal", "less_than", "not_equal"], {"axis"}),
    **dict.fromkeys(["softmax", "sequence_softmax", "transpose", "transpose2"], {"data_format"}),
    **dict.fromkeys(["bilinear_interp", "nearest_interp"], {"interp_method", "out_d"}),
    **dict.fromkeys(["uniform_random", "uniform_random_batch_size_like"], {"diag_num", "diag_step", "diag_val"}),
    "assign_value": {"bool_values", "int64_values"},
    "ctc_align": {"padding_value"},
    "matmul": {"fused_reshape_Out", "fused_transpose_Out"},
    "trilinear_interp": {"interp_method"},
}


@pytest.fixture(autouse=True)
def full_precision():
    """Multiply matrices in full float32 precision on every device."""
    with jax.default_matmul_precision("highest"):
        yield


def run(written, feeds, folder):
    """Save a program, load it, and compute its outputs."""
    program, _, fetches = paddle_files.load_inference_model(written.save(folder))
    with fluid.Session(program) as session:
        results = session.run(feed=feeds)
        assert len(results) == len(fetches)
        return [flat(value) for value in results]


def flat(value):
    """Convert a sequence batch to PaddlePaddle's layout, which concatenates the steps of all rows."""
    return np.asarray(value.data)[np.asarray(value.mask)] if hasattr(value, "mask") else np.asarray(value)


@pytest.mark.filterwarnings("ignore:feed .* found NaN")  # some recorded programs get NaN in a feed
@pytest.mark.parametrize("name", recorded()["cases"])
def test_recorded_program_equals_its_paddle_outputs(name, tmp_path):
    written, feeds, wanted = case(name)
    for got, want in zip(run(written, feeds, tmp_path), wanted, strict=True):
        assert got.shape == want.shape
        if name in DRAWN:
            low, high, mean, deviation = DRAWN[name]
            assert low <= got.min() and got.max() <= high
            assert abs(got.mean() - mean) < 0.2 and abs(got.std() - deviation) < 0.2
        else:
            np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("type", ELSEWHERE)
def test_unrecorded_op_equals_numpy(type, tmp_path):
    x = np.linspace(-2, 2, 12, dtype="float32").reshape(3, 4)
    written = Written().feed("x", (-1, 4)).fetch("y")
    if type == "sync_batch_norm":
        x = x.reshape(6, 2)
        written = Written().feed("x", (-1, 2)).fetch("y")
        for name, values in {"s": [2, 3], "b": [0, 1], "m": [0.5, 1], "v": [4, 9]}.items():
            written.param(name, np.array(values, "float32"))
        slots = {"Scale": "s", "Bias": "b", "Mean": "m", "Variance": "v"}
        written.op(type, {"X": "x", **slots}, {"Y": "y", "MeanOut": "m", "VarianceOut": "v"})
    elif type == "max_pool3d_with_index":
        x = x.reshape(3, 1, 2, 2, 1)
        written = Written().feed("x", (-1, 1, 2, 2, 1)).fetch("y")
        written.op(type, {"X": "x"}, {"Out": "y", "Mask": "mask"}, ksize=[2, 2, 1], strides=[2, 2, 1])
    else:
        written.op(type, {"X": "x"}, {"Out": "y"})
    (got,) = run(written, {"x": x}, tmp_path)
    np.testing.assert_allclose(got, ELSEWHERE[type](x), rtol=TOLERANCE, atol=TOLERANCE)


def test_every_row_is_exercised():
    in_cases = {op[0] for entry in recorded()["cases"].values() for op in entry["ops"]}
    assert set(ROWS) == in_cases | set(ELSEWHERE)
    assert len(ROWS) == sum(len(family.ROWS) for family in FAMILIES), "two families have a row for one op"


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    """Return, by `(op, attribute)`, the default value of each attribute that fluid reads from the recorded programs."""
    found = {}
    attr = Op.attr

    def noted(self, name, default):
        found[self.desc.type, name] = default
        return attr(self, name, default)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Op, "attr", noted)
        for name in recorded()["cases"]:
            program, *_ = paddle_files.load_inference_model(case(name)[0].save(tmp_path_factory.mktemp("case")))
            fluid.Program(program)
    return found


@pytest.mark.sample(3)
def test_every_attribute_is_read(read):
    unread = {
        type_: {name for name in attributes if (type_, name) not in read}
        for type_, attributes in recorded()["defaults"].items()
        if type_ not in ELSEWHERE
    }
    assert {type_: names for type_, names in unread.items() if names} == UNREAD


def test_defaults_of_absent_attributes_equal_paddles_defaults(read):
    """Compare defaults with PaddlePaddle's, because files of earlier versions lack attributes that were added later."""
    wrong = {}
    for (type_, name), default in read.items():
        defaults = paddle_programs.recorded()["defaults"].get(type_, {})
        if isinstance(default, type):
            right = name not in defaults  # a type means that fluid and PaddlePaddle both require the attribute
        else:
            right = name in defaults and same(default, defaults[name])
        if not right:
            wrong[type_, name] = (default, defaults.get(name, "demanded"))
    assert not wrong, "\n".join(map(str, wrong.items()))


def same(default, recorded):
    """Return whether a default equals the recorded default, which was stored in float32."""
    if default in ("NCHW", "NCDHW"):  # PaddlePaddle's "AnyLayout" also means channels first
        return not recorded.endswith("C")
    if isinstance(default, float):
        return np.float32(default) == np.float32(recorded)
    return default == recorded
