"""The record of a traced program: source lines for error messages, names of values, and states."""

import dataclasses
import importlib.util
import pathlib
import warnings

import jax.numpy as jnp
import pytest

import fluid
from fluid import core, errors

PROGRAM = """
import fluid

def program():
    return fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=0)
"""


@pytest.mark.parametrize("folder", ["jax", "fluid", "mine"])
def test_user_folder_named_like_a_library_is_blamed(folder, tmp_path):
    path = tmp_path / folder / "net.py"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("net", path)
    net = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(net)
    with pytest.raises(errors.ArgumentError) as caught:
        fluid.Program(net.program)
    assert f"called at {path}:5 in program" in caught.value.__notes__[0]


def through_a_link(folder):
    """Return the code of `fluid/core/frame.py` for a package folder that is a symbolic link."""
    link = folder / "fluid"
    link.symlink_to(pathlib.Path(errors.__file__).parent, target_is_directory=True)
    return str(link / "core" / "frame.py")


def test_a_linked_package_folder_is_no_user_file(tmp_path):
    path = through_a_link(tmp_path)
    space = {"core": core}
    exec(compile("def ask(): return core.user_sites()", path, "exec"), space)  # fluid's own code, found by the link
    assert core.is_library(path)
    assert space["ask"]().startswith(f"{__file__}:")
    (tmp_path / "net.py").symlink_to(__file__)
    assert not core.is_library(str(tmp_path / "net.py"))


def test_generated_code_is_no_user_file():
    @dataclasses.dataclass
    class Head:
        site: str = dataclasses.field(default_factory=core.user_site)

    assert Head().site.startswith(f"{__file__}:")
    with pytest.warns(errors.FluidWarning) as caught:
        fluid.optimizer.Momentum(0, momentum=0.9)
    assert caught[0].filename == __file__


def test_typed_code_is_of_the_user():
    space = {"core": core}
    exec(compile("def ask(): return core.user_site()", "<stdin>", "exec"), space)
    assert space["ask"]() == "<stdin>:1 in ask"


@pytest.mark.parametrize("dense", [True, False])
def test_warnings_of_sparse_tables_point_at_the_user(dense):
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        table = fluid.ParamAttr(name="table")
        read = fluid.layers.embedding(ids, size=[5, 2], is_sparse=True, param_attr=table)
        if dense:
            read = read + fluid.layers.embedding(ids, size=[5, 2], param_attr=table)
        loss = fluid.layers.mean(read)
        (fluid.optimizer.SGD(0.1) if dense else fluid.optimizer.Adam(0.1)).minimize(loss)
        return loss

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fluid.Session(program)
    assert [w.filename for w in caught if "dense" in str(w.message)] == [__file__]


def test_layer_used_outside_a_program_is_named():
    kept = []

    def program():
        kept.append(fluid.layers.base.Layer("my_layer"))
        return fluid.layers.data("x", shape=[4])

    fluid.Program(program)
    with pytest.raises(errors.OutsideProgramError, match=r"fluid\.layers\.my_layer was called outside"):
        kept[0].output(jnp.zeros(3))


@pytest.mark.parametrize("value", [jnp.zeros([3, 1]), jnp.zeros([]), jnp.zeros([6])])
def test_a_state_keeps_its_shape(value):
    def program():
        core.create_state("mean", [3], "float32", fluid.initializer.Constant(0.0))
        core.set_state("mean", value)
        return fluid.layers.data("x", shape=[4])

    with pytest.raises(errors.ShapeError, match=r"'mean' is float32\[3\], .*reshape it to \[3\]"):
        fluid.Program(program)


def test_a_state_is_created_before_it_is_set():
    def program():
        core.create_state("mean", [3], "float32", fluid.initializer.Constant(0.0))
        core.set_state("means", jnp.zeros(3))
        return fluid.layers.data("x", shape=[4])

    with pytest.raises(errors.UnknownNameError, match=r"no state 'means', .*create_state.*'mean'"):
        fluid.Program(program)


def test_state_reads_return_the_last_write():
    def program():
        for _ in range(3):
            mean = core.create_state("mean", [3], "float32", fluid.initializer.Constant(0.0))
            core.set_state("mean", mean + 1)
        return core.create_state("mean", [3], "float32", fluid.initializer.Constant(0.0))

    session = fluid.Session(program)
    assert [session.run(program, {}, mode="train")[0].tolist() for _ in range(2)] == [[3.0] * 3, [6.0] * 3]


def test_automatic_names_start_after_reserved_names():
    def program():
        frame = core.current_frame("tests")
        for name in ("fc_3.w_0", "fc_1.b_0", "conv2d_0", "head", "_7", "fc_12345678901.w_0", "scale_x"):
            frame.reserve(name)
        x = fluid.layers.data("x", shape=[4])
        with fluid.name_scope("inner"):
            frame.reserve("fc_8.tmp_0")
            fluid.layers.fc(x, size=1)
        fluid.layers.relu(x)
        return fluid.layers.fc(x, size=2)

    made = fluid.Program(program)
    assert list(made.parameters) == ["inner/fc_9.w_0", "inner/fc_9.b_0", "fc_9.w_0", "fc_9.b_0"]
    assert "relu_0.tmp_0" in made.values


def test_unrecorded_layers_leave_names_to_the_caller():
    keys = []

    def program():
        x = fluid.layers.data("x", shape=[4])
        for number in range(2):
            with core.unrecorded(f"step_{number}"):
                x = fluid.layers.dropout(fluid.layers.relu(x), 0.5)
                keys.append(fluid.layers.base.Layer("dropout").name)
            x = fluid.layers.identity(x, name=f"kept_{number}")
        return fluid.layers.relu(x)

    made = fluid.Program(program)
    assert list(made.values) == ["kept_0", "kept_1", "relu_0.tmp_0"]
    assert list(made.sites) == ["kept_0", "kept_1", "relu_0.tmp_0"]
    assert keys[:2] == ["step_0/dropout_1", "step_1/dropout_1"], "random keys come from names, so these must differ"


def test_names_are_recorded_again_after_an_error():
    def program():
        x = fluid.layers.data("x", shape=[4])
        with pytest.raises(errors.ArgumentError), core.unrecorded("tried"):
            fluid.layers.fc(x, size=0)
        return fluid.layers.relu(x)

    assert list(fluid.Program(program).values) == ["relu_0.tmp_0"]
