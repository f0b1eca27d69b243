"""Parameters saved by PaddlePaddle: folders, combined files, and training from these values."""

import json

import numpy as np
import pytest
from paddle_programs import FOLDER, Written, serialized

import fluid
from fluid import errors

NETS = ["lenet", "sentiment"]
load = fluid.io.load_fluid_params


def facts(net):
    return json.loads((FOLDER / net / "io.json").read_text())


def assert_equal(first, second):
    assert list(first) == list(second)
    for name, array in first.items():
        assert array.dtype == second[name].dtype and np.array_equal(array, second[name])


@pytest.mark.parametrize("net", NETS)
def test_every_way_of_saving_gives_the_same_parameters(net):
    folder = FOLDER / net
    found = load(folder / "params")
    assert {name: list(array.shape) for name, array in found.items()} == facts(net)["parameters"]
    assert_equal(found, load(folder / "persistables"))
    assert_equal(found, load(folder / "combined.bin", names=facts(net)["persistables_sorted"]))
    assert_equal(found, load(folder / "inference"))


@pytest.mark.parametrize("net", NETS)
def test_optimizer_state_is_loaded_on_request(net):
    names = facts(net)["persistables_sorted"]
    found = load(FOLDER / net / "persistables", slots=True)
    assert sorted(found) == names
    assert_equal({n: found[n] for n in names}, load(FOLDER / net / "combined.bin", names[::-1], slots=True))
    weight = next(iter(facts(net)["parameters"]))
    assert found[f"{weight}_velocity_0"].shape == found[weight].shape and found["learning_rate_0"].shape == (1,)


def test_combined_file_is_the_concatenated_single_files():
    """Check that a combined file of PaddlePaddle is the concatenation of the files of single parameters.

    Other tests rely on this format.
    """
    for net in NETS:
        parts = [FOLDER / net / "persistables" / name for name in facts(net)["persistables_sorted"]]
        assert b"".join(p.read_bytes() for p in parts) == (FOLDER / net / "combined.bin").read_bytes()


def test_optimizer_state_is_recognized_by_its_parameter_name(tmp_path):
    kept = ["GRUCell/unit_0.w_0", "momentum_0", "w", "word_emb", "word_emb_fc_0"]
    slots = [
        "@LR_DECAY_COUNTER@", "GRUCell/unit_0.w_0_mean_square_0", "beta1_pow_acc_0", "learning_rate_3", "w__dgc_u__0",
        "w_mine_velocity_0", "w_moment1_0", "word_emb_fc_0_beta2_pow_acc_0", "word_emb_inf_norm_12",
    ]  # fmt: skip
    for name in [*kept, *slots]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(serialized(np.float32([1])))
    assert list(load(tmp_path)) == kept
    assert sorted(load(tmp_path, slots=True)) == sorted([*kept, *slots])
    assert list(load(tmp_path, names=["w", "w_moment1_0"])) == ["w"]


def test_single_variable_is_loaded_by_file_or_name(tmp_path):
    found = load(FOLDER / "lenet" / "params" / "fc_0.b_0")
    assert list(found) == ["fc_0.b_0"] and found["fc_0.b_0"].shape == (10,)
    assert list(load(FOLDER / "lenet" / "params", names=["fc_0.b_0"])) == ["fc_0.b_0"]


@pytest.mark.parametrize(
    ("path", "options", "message"),
    [
        ("lenet/combined.bin", {}, r"holds 19 variables without their names; say which: load_fluid_params\(.*names="),
        ("lenet/combined.bin", {"names": ["fc_0.w_0"]}, "goes on for 3200 bytes behind fc_0.w_0"),
        ("lenet/params", {"names": ["fc_0.w0"]}, "has no variable 'fc_0.w0'. Did you mean 'fc_0.w_0'"),
        ("lenet/inference", {"names": ["fc_0.w0"]}, "has no variable 'fc_0.w0'. Did you mean 'fc_0.w_0'"),
        ("lenet", {}, "combined.bin' goes on for 3200 bytes behind combined.bin; expected 1 variables"),
        ("nothing", {}, "cannot read"),
    ],
)
def test_unreadable_paths_raise_named_errors(path, options, message):
    with pytest.raises(errors.ParameterFileError, match=message):
        load(FOLDER / path, **options)


def test_an_empty_folder(tmp_path):
    with pytest.raises(errors.ParameterFileError, match="there are no files"):
        load(tmp_path)


def test_a_model_without_parameters(tmp_path):
    folder = Written().feed("x", (-1, 2)).op("relu", {"X": "x"}, {"Out": "y"}).fetch("y").save(tmp_path)
    assert load(folder) == {}


def lenet():
    image = fluid.layers.data("img", shape=[1, 12, 12])
    x = fluid.nets.simple_img_conv_pool(image, num_filters=4, filter_size=3, pool_size=2, pool_stride=2, act="relu")
    x = fluid.layers.batch_norm(x)
    x = fluid.nets.simple_img_conv_pool(x, num_filters=6, filter_size=3, pool_size=2, pool_stride=2, act="relu")
    return fluid.layers.fc(x, size=10, act="softmax")


def test_paddle_parameters_initialize_a_training():
    """Check that a net written in fluid loads PaddlePaddle's parameters: automatic names and outputs are equal."""

    def train_program():
        label = fluid.layers.data("label", shape=[1], dtype="int64")
        return fluid.layers.mean(fluid.layers.cross_entropy(lenet(), label))

    trainer = fluid.Trainer(train_program, fluid.optimizer.Momentum(0.01, 0.9))
    trainer.session.load_params(load(FOLDER / "lenet" / "persistables"))
    with np.load(FOLDER / "lenet" / "io.npz") as file:
        (got,) = fluid.Inferencer(lenet, params=trainer.params).infer({"img": file["in_img"]})
        np.testing.assert_allclose(got, file["out"], atol=1e-5)
