"""The identity of parameters: automatic names and the calls that created them."""

import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import fluid
from fluid import errors, layers

X = {"x": np.ones((2, 4), "float32")}


def block(x):
    return layers.fc(x, 4)


def normed(x):
    return layers.batch_norm(x, param_attr=False, bias_attr=False)


def auxiliary_first(make):
    def program():
        x = layers.data("x", shape=[4])
        loss = layers.mean(make(x) * 0.5) if layers.is_training() else 0.0
        return loss + layers.mean(make(x))

    return program


def test_a_helper_of_one_mode_is_refused():
    program = auxiliary_first(block)
    session = fluid.Session(program)
    session.run(program, X, mode="train")
    with pytest.raises(errors.ParameterError, match=r"'fc_0.w_0' of test mode.*the name here is 'fc_1.w_0'.*shared"):
        session.run(program, X, mode="test")


def test_a_helper_in_one_line_is_refused():
    def program():
        x = layers.data("x", shape=[4])
        return layers.mean((block(x) if layers.is_training() else x) + block(x))

    session = fluid.Session(program)
    with pytest.raises(errors.ParameterError, match="of test mode would be that of another layer"):
        session.run(program, X, mode="test")


def test_moving_averages_of_one_mode_are_refused():
    program = auxiliary_first(normed)
    with pytest.raises(errors.ParameterError, match="'batch_norm_0.w_0' of test mode"):
        fluid.Session(program).run(program, X, mode="test")


def test_a_layer_for_each_mode_is_refused():
    def program():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.fc(x, 3) if layers.is_training() else layers.fc(layers.relu(x), 3))

    with pytest.raises(errors.ParameterError, match="'fc_0.w_0' of test mode"):
        fluid.Session(program).run(program, X, mode="test")


def trained_on_helper():
    def program():
        x = layers.data("x", shape=[4])
        aux = block(x) * 0.1 if layers.is_training() else 0.0
        return layers.mean(layers.square(block(x) + aux))

    return program


def test_trainer_test_refuses_the_helper():
    trainer = fluid.Trainer(trained_on_helper(), fluid.optimizer.SGD(0.1))
    trainer.train([[(row,) for row in X["x"]]])
    with pytest.raises(errors.ParameterError, match="of test mode would be that of another layer"):
        trainer.test([[(row,) for row in X["x"]]])


def test_export_refuses_the_helper(tmp_path):
    trainer = fluid.Trainer(trained_on_helper(), fluid.optimizer.SGD(0.1))
    with pytest.raises(errors.ParameterError, match="of test mode would be that of another layer"):
        trainer.save_inference_model(tmp_path / "model")


def test_a_named_or_shared_helper_is_accepted():
    net = fluid.shared(block, name="net")

    def program():
        x = layers.data("x", shape=[4])
        aux = layers.fc(net(x), 4, name="auxiliary") if layers.is_training() else x
        return layers.mean(aux) + layers.mean(net(x))

    session = fluid.Session(program)
    session.run(program, X, mode="train")
    weight, bias = session.scope["net/fc_0.w_0"], session.scope["net/fc_0.b_0"]
    expected = 1 + np.mean(X["x"] @ np.asarray(weight) + np.asarray(bias))
    np.testing.assert_allclose(session.run(program, X, mode="test")[0], expected, rtol=1e-6)


def test_loops_and_branches_of_equal_calls_are_accepted():
    def program():
        h = layers.data("x", shape=[4])
        for _ in range(3):
            h = layers.dropout(normed(block(h)), 0.5)
        h = layers.repeat(block, 2, h)
        return layers.mean(h)

    session = fluid.Session(program)
    for mode in ("train", "test", "train"):
        session.run(program, X, mode=mode)


NET = """
    import warnings
    import numpy as np
    import fluid
    from fluid import layers

    def block(x):
        return layers.fc(x, 4)

    def program():
        x = layers.data("x", shape=[4])
        loss = layers.mean(block(x)) if layers.is_training() else 0.0
        return loss + layers.mean(block(x))

    session = fluid.Session(program)
    print(session.scope.specs["fc_1.w_0"].site)
    try:
        session.run(program, {"x": np.ones((2, 4), "float32")}, mode="test")
    except fluid.errors.ParameterError as error:
        print("refused", error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fluid.optimizer.SGD(0)
    print(caught[0].filename)
"""


def test_a_linked_package_names_the_users_lines(tmp_path):
    (tmp_path / "packages").mkdir()
    (tmp_path / "packages" / "fluid").symlink_to(pathlib.Path(fluid.__file__).resolve().parent)
    script = tmp_path / "net.py"
    script.write_text(textwrap.dedent(NET))
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "packages"), "JAX_PLATFORMS": "cpu"}
    found = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    line, refused, warned = found.stdout.splitlines()
    assert line.startswith(f"{script}:8 in block")
    assert refused.startswith(f"refused {script}:8 in block: the parameter 'fc_0.w_0' of test mode")
    assert warned == str(script)


def net(x):
    return block(layers.relu(block(x)))


def training(first):
    def train():
        x = layers.data("x", shape=[4])
        return layers.mean(first(x) + net(x))

    return train


def inference():
    return net(layers.data("x", shape=[4]))


def sources(trainer, folder):
    """Return the parameters of a Trainer in all forms that an Inferencer loads."""
    trainer.save_params(folder / "net.params")
    trainer.save_params(folder / "net.safetensors")
    return [
        {"params": trainer.params},
        {"param_path": str(folder / "net.params")},
        {"param_path": str(folder / "net.safetensors")},
    ]


def loaded(train, infer, folder, **options):
    """Return the answers of Inferencers that load the parameters of `train` in each form."""
    trainer = fluid.Trainer(train, fluid.optimizer.SGD(0.1), seed=3)
    return [fluid.Inferencer(infer, **s, **options).infer(X)[0] for s in sources(trainer, folder)], trainer.params


def answer(params, *numbers):
    """Return what `net` computes with the weights of the layers of these numbers."""
    h = X["x"]
    for place, number in enumerate(numbers):
        h = np.maximum(h, 0) if place else h
        h = h @ np.asarray(params[f"fc_{number}.w_0"]) + np.asarray(params[f"fc_{number}.b_0"])
    return h


def test_an_extra_layer_before_the_net_is_said(tmp_path):
    train = training(block)
    for form in sources(fluid.Trainer(train, fluid.optimizer.SGD(0.1)), tmp_path):
        with pytest.raises(
            errors.ParameterError, match=r"block in train there.*block in net in inference.*rename="
        ) as e:
            fluid.Inferencer(inference, **form)
        assert '"fc_1.w_0": "fc_0.w_0"' in str(e.value)
        assert '"fc_2.w_0": "fc_1.w_0"' in str(e.value)


def test_rename_takes_the_layers_of_the_net(tmp_path):
    rename = {"fc_2.*": "fc_1.*", "fc_1.*": "fc_0.*", "fc_0.*": "fc_2.*"}
    answers, params = loaded(training(block), inference, tmp_path, rename=rename)
    for found in answers:
        np.testing.assert_allclose(found, answer(params, 1, 2), rtol=1e-5)


def test_rename_of_equal_names_takes_equal_names(tmp_path):
    answers, params = loaded(training(block), inference, tmp_path, rename={"*": "*"})
    for found in answers:
        np.testing.assert_allclose(found, answer(params, 0, 1), rtol=1e-5)


def head_a(x):
    return layers.fc(x, 4)


def head_b(x):
    return layers.fc(x, 4)


def test_heads_in_the_other_order_are_said(tmp_path):
    def train():
        x = layers.data("x", shape=[4])
        return layers.mean(head_a(x)), head_b(x)

    def infer():
        x = layers.data("x", shape=[4])
        return head_b(x), head_a(x)

    for form in sources(fluid.Trainer(train, fluid.optimizer.SGD(0.1)), tmp_path):
        with pytest.raises(errors.ParameterError, match="'fc_1.w_0' was created in head_b in .*train"):
            fluid.Inferencer(infer, **form)


def staged(*stages):
    def train():
        h = layers.data("x", shape=[4])
        for stage in stages:
            h = stage(h)
        return layers.mean(h)

    return train


def minimizing(*stages):
    def train():
        loss = staged(*stages)()
        fluid.optimizer.Momentum(0.1, momentum=0.9).minimize(loss)
        return loss

    return train


def test_a_session_file_of_another_order_is_said(tmp_path):
    fluid.Session(minimizing(head_a, head_b)).save(tmp_path / "net.session")
    other = fluid.Session(minimizing(head_b, head_a))
    with pytest.raises(errors.ParameterError, match="'fc_0.b_0' was created in head_a"):
        other.load(tmp_path / "net.session")
    other.load(tmp_path / "net.session", rename={"fc_{n}.*": "fc_{n}.*"})
    fluid.Session(minimizing(renamed_block, head_b)).load(tmp_path / "net.session")


def test_resuming_with_another_order_is_said(tmp_path):
    def train(*stages):
        config = fluid.CheckpointConfig(str(tmp_path / "checkpoints"), epoch_interval=1)
        trainer = fluid.Trainer(staged(*stages), fluid.optimizer.SGD(0.1), checkpoint_config=config)
        trainer.train([[(row,) for row in X["x"]]])

    train(head_a, head_b)
    with pytest.raises(errors.ParameterError, match="'fc_0.b_0' was created in head_a"):
        train(head_b, head_a)


def test_a_block_left_out_is_said():
    params = fluid.Trainer(staged(head_a, block, head_b), fluid.optimizer.SGD(0.1)).params
    with pytest.raises(errors.ParameterError, match="'fc_2.w_0'"):
        fluid.Inferencer(staged(head_a, head_b), params=params)


def test_a_layer_that_only_inference_has_is_said():
    params = fluid.Trainer(staged(net), fluid.optimizer.SGD(0.1)).params
    with pytest.raises(errors.ParameterError, match="in the program, 'fc_2.._0' is created in block in net"):
        fluid.Trainer(staged(head_a, net), fluid.optimizer.SGD(0.1), params=params, strict=False)


def copied():
    h = layers.data("x", shape=[4])
    return layers.fc(layers.relu(layers.fc(h, 4)), 4)


def renamed_block(x):
    return layers.fc(x, 4)


@pytest.mark.parametrize(
    "infer",
    [
        copied,
        staged(block, layers.relu, renamed_block),
        staged(renamed_block, layers.relu, block),
        staged(renamed_block, layers.relu, renamed_block),
        staged(lambda x: block(layers.relu(block(x)))),
    ],
)
def test_copied_and_renamed_functions_are_accepted(infer, tmp_path):
    def train():
        return layers.mean(net(layers.data("x", shape=[4])))

    answers, params = loaded(train, infer, tmp_path)
    expected = answer(params, 0, 1)
    for found in answers:
        np.testing.assert_allclose(found, expected if found.shape else expected.mean(), rtol=1e-5)


def test_a_loop_of_equal_blocks_is_accepted(tmp_path):
    def looped():
        h = layers.data("x", shape=[4])
        for number in range(3):
            h = layers.relu(block(h)) if number else block(h)
        return layers.mean(h)

    answers, _ = loaded(looped, looped, tmp_path)
    fluid.Trainer(looped, fluid.optimizer.SGD(0.1), params=fluid.Trainer(looped, fluid.optimizer.SGD(0.1)).params)
    assert answers[0] == answers[1] == answers[2]


def test_a_file_without_paths_loads_by_names(tmp_path):
    trainer = fluid.Trainer(training(block), fluid.optimizer.SGD(0.1))
    fluid.checkpoint.save_arrays(tmp_path / "old.params", trainer.params)
    for form in ({"params": dict(trainer.params)}, {"param_path": str(tmp_path / "old.params")}):
        found = fluid.Inferencer(inference, **form).infer(X)[0]
        np.testing.assert_allclose(found, answer(trainer.params, 0, 1), rtol=1e-5)


def test_a_checkpoint_of_another_program_is_said(tmp_path):
    config = fluid.CheckpointConfig(str(tmp_path / "checkpoints"), epoch_interval=1)
    trainer = fluid.Trainer(training(block), fluid.optimizer.SGD(0.1), checkpoint_config=config)
    trainer.train([[(row,) for row in X["x"]]])
    with pytest.raises(errors.ParameterError, match="block in train there"):
        fluid.Inferencer(inference, checkpoint=str(tmp_path / "checkpoints"))


@pytest.mark.parametrize("make", [fluid.Session, lambda a, b: fluid.Trainer(a, fluid.optimizer.SGD(0.1), infer_func=b)])
def test_programs_of_one_session_share_what_equal_calls_made(make):
    with pytest.raises(errors.ParameterError, match=r"share 'fc_0.w_0' by its automatic name.*fluid.shared"):
        make(training(block), inference)
    make(training(layers.relu), inference)


@pytest.mark.parametrize("settings", [{"name": "@head"}, {"param_attr": "@weight"}])
def test_names_of_saved_state_are_refused(settings):
    with pytest.raises(errors.ParameterError, match="begins with '@'"):
        fluid.Program(lambda: layers.fc(layers.data("x", shape=[4]), 1, **settings))


def test_outputs_are_not_called_like_methods_of_results():
    methods = sorted(name for name in dir(fluid.Results) if not name.startswith("_"))
    assert methods == ["count", "get", "index", "items", "keys", "names", "values"]
    for name in methods:
        with pytest.raises(errors.ProgramError, match=f"output '{name}', which is a method"):
            fluid.Program(lambda name=name: {name: layers.mean(layers.data("x", shape=[4]))})
