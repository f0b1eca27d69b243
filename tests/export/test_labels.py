"""The default export of a Trainer: it exports `infer_func`, or else the outputs that do not depend on labels."""

import logging

import numpy as np
import pytest

import fluid
import fluid.layers.loss.metrics as metrics_module
from fluid import errors, export, layers
from fluid.export.labels import JUDGES, unlabelled
from fluid.layers.loss import classification, cross_entropy, regression, sampled

SGD = fluid.optimizer.SGD(0.1)
X = np.ones((2, 2), "float32")


def label():
    return layers.data("y", shape=[1], dtype="int64")


def net():
    return layers.fc(layers.data("x", shape=[2]), size=3, act="softmax", name="guess")


def classifier():
    prediction, y = net(), label()
    loss = layers.mean(layers.cross_entropy(prediction, y))
    return loss, layers.accuracy(prediction, y), prediction


def label_first():
    y = label()
    prediction = net()
    return {"accuracy": layers.accuracy(prediction, y), "loss": layers.mean(layers.cross_entropy(prediction, y))}


def own_loss():
    x, y = layers.data("x", shape=[2]), layers.data("y", shape=[1])
    return layers.mean((layers.fc(x, size=1, name="guess") - y) ** 2)


def weighted():
    x, y, weight = layers.data("x", shape=[2]), layers.data("y", shape=[1]), layers.data("weight", shape=[1])
    cost = layers.square_error_cost(layers.fc(x, size=1, name="guess"), y)
    return {"loss": layers.mean(cost * weight), "error": layers.mean(cost)}


def autoencoder():
    x = layers.data("x", shape=[2])
    code = layers.fc(x, size=1, name="code")
    return {"loss": layers.mean(layers.square_error_cost(layers.fc(code, size=2), x)), "code": code}


def two_heads():
    a, b = layers.data("a", shape=[2]), layers.data("b", shape=[2])
    first = layers.fc(a, size=1)
    loss = layers.mean(layers.square_error_cost(first, layers.data("ya", shape=[1])))
    second = layers.fc([a, b], size=1)
    loss += layers.mean(layers.square_error_cost(second, layers.data("yb", shape=[1])))
    return {"loss": loss, "first": first, "second": second}


def siamese():
    a, b = layers.data("a", shape=[2]), layers.data("b", shape=[2])
    shared = {"size": 2, "param_attr": "w", "bias_attr": False}
    first = layers.fc(a, **shared)
    return {"loss": layers.mean(layers.square(first - layers.fc(b, **shared))), "first": first}


def tagger():
    words = layers.data("w", shape=[1], dtype="int64", lod_level=1)
    tags = layers.data("tags", shape=[1], dtype="int64", lod_level=1)
    emission = layers.fc(layers.embedding(words, size=[10, 4]), size=5, name="emission")
    transitions = fluid.ParamAttr(name="transitions")
    loss = layers.mean(layers.Print(layers.linear_chain_crf(emission, tags, param_attr=transitions)))
    return {"loss": loss, "path": layers.crf_decoding(emission, param_attr=transitions)}


@pytest.mark.parametrize(
    ("program", "fetch", "feeds", "labels"),
    [
        (classifier, ("guess",), ("x",), ("y",)),
        (label_first, ("guess",), ("x",), ("y",)),
        (own_loss, ("guess",), ("x",), ("y",)),
        (weighted, ("guess",), ("x",), ("y", "weight")),
        (autoencoder, None, ("x",), ()),
        (two_heads, ("first", "second"), ("a", "b"), ("ya", "yb")),
        (siamese, None, ("a", "b"), ()),
        (tagger, ("path",), ("w",), ("tags",)),
    ],
)
def test_outputs_without_labels_are_found(program, fetch, feeds, labels):
    assert unlabelled(fluid.Trainer(program, SGD).program) == (fetch, feeds, labels)


def test_trainer_exports_unlabelled_outputs_and_logs_once(tmp_path, caplog):
    trainer = fluid.Trainer(classifier, SGD)
    with caplog.at_level(logging.WARNING, "fluid"):
        for _ in range(2):
            trainer.save_inference_model(tmp_path / "m", platforms=["cpu"])
    assert caplog.text.count("exported: 'guess', computed from 'x', without 'y'; fetch=[...] or Trainer(infer_") == 1
    found = fluid.Inferencer(param_path=tmp_path / "m").infer({"x": X})
    np.testing.assert_allclose(found["guess"], trainer.run({"x": X}, fetch="guess")[0], rtol=1e-6)


@pytest.mark.parametrize("fetch", [None, "path", ["emission", "path"]])
def test_a_tagger_is_exported_without_its_tags(fetch, tmp_path):
    trainer = fluid.Trainer(tagger, SGD)
    trainer.save_inference_model(tmp_path / "m", fetch=fetch, platforms=["cpu"])
    found = export.load(tmp_path / "m").program()
    assert list(found.feeds) == ["w"]
    for rows in ([[1, 2, 3], [4]], [[1, 2, 3, 4, 5, 6, 7]]):
        got = fluid.Inferencer(param_path=tmp_path / "m").infer({"w": rows})
        want = fluid.Inferencer(tagger, params=trainer.params).infer({"w": rows}, fetch=list(got.names))
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a.data, b.data, rtol=1e-5, atol=1e-6)


def test_all_outputs_with_labels_error_proposes_names(tmp_path):
    def program():
        hidden = layers.fc(layers.data("x", shape=[2]), size=2, name="hidden")
        y = layers.data("y", shape=[2])
        mixed = layers.elementwise_add(hidden, layers.relu(y))
        return {"loss": layers.mean(layers.square(layers.fc(mixed, size=1) - y)), "mixed": mixed}

    trainer = fluid.Trainer(program, SGD)
    expected = r"every output of program depends on 'y'.*fetch=\['mixed'\], or fetch=\['hidden'\].* needs 'x' only"
    with pytest.raises(errors.ArgumentError, match=expected):
        trainer.save_inference_model(tmp_path / "m")
    trainer.save_inference_model(tmp_path / "m", fetch=["hidden"], platforms=["cpu"])
    assert list(export.load(tmp_path / "m").program().feeds) == ["x"]


def test_inference_function_exports_with_shared_parameters(tmp_path):
    trainer = fluid.Trainer(classifier, SGD, infer_func=net)
    trainer.save_inference_model(tmp_path / "m", platforms=["cpu"])
    exported = fluid.Inferencer(param_path=tmp_path / "m")
    assert exported.program.output_names is None
    np.testing.assert_allclose(exported.infer({"x": X})[0], trainer.run({"x": X}, fetch="guess")[0], rtol=1e-6)
    for program in ("net", net):
        trainer.save_inference_model(tmp_path / "n", program=program, platforms=["cpu"])
        assert (tmp_path / "n").read_bytes() == (tmp_path / "m").read_bytes()
    trainer.save_inference_model(tmp_path / "n", program="classifier", fetch=["guess"], platforms=["cpu"])
    assert fluid.Inferencer(param_path=tmp_path / "n").program.output_names == ("guess",)
    trainer.save_inference_model(tmp_path / "n", fetch=["guess.tmp_0"], platforms=["cpu"])
    assert fluid.Inferencer(param_path=tmp_path / "n").program.output_names == ("guess.tmp_0",)


def test_inference_function_with_new_parameters_is_refused():
    def other_name():
        return layers.fc(layers.data("x", shape=[2]), size=3, name="gues")

    def other_size():
        return layers.fc(layers.data("x", shape=[2]), size=4, name="guess")

    with pytest.raises(errors.ParameterError, match=r"'gues\.w_0', created at .* lacks.*Did you mean 'guess\.w_0'"):
        fluid.Trainer(classifier, SGD, infer_func=other_name)
    with pytest.raises(errors.ParameterError, match=r"'guess\.w_0' of shape \[2, 4\].*of shape \[2, 3\]"):
        fluid.Trainer(classifier, SGD, infer_func=other_size)
    with pytest.warns(errors.FluidWarning, match="share parameters that different lines make"):
        fluid.Trainer(own_numbers, SGD, infer_func=lambda: layers.fc(layers.data("x", shape=[2]), size=1))


def own_numbers():
    return layers.mean(layers.fc(layers.data("x", shape=[2]), size=1))


def test_named_feeds_export_all_outputs(tmp_path):
    trainer = fluid.Trainer(label_first, SGD)
    trainer.save_inference_model(tmp_path / "m", feed=["x", "y"], platforms=["cpu"])
    assert fluid.Inferencer(param_path=tmp_path / "m").program.output_names == ("accuracy", "loss")


def test_every_loss_and_metric_is_known():
    modules = (classification, cross_entropy, regression, sampled, metrics_module)
    public = {name for module in modules for name, value in vars(module).items() if hasattr(layers, name)}
    known = {n for n in public if getattr(getattr(layers, n), "__module__", "").startswith("fluid.layers.loss")}
    assert known - {"label_smooth"} <= JUDGES
    assert all(hasattr(layers, name) for name in JUDGES)


@pytest.mark.parametrize("given", [str, export.load])
def test_function_reads_parameters_of_an_exported_model(given, tmp_path):
    trainer = fluid.Trainer(classifier, SGD, infer_func=net)
    trainer.save_inference_model(tmp_path / "m", platforms=["cpu"])
    found = fluid.Inferencer(net, param_path=given(tmp_path / "m"))
    assert found.program.function is net
    np.testing.assert_array_equal(found.infer({"x": X})[0], trainer.run({"x": X}, fetch="guess")[0])


def test_function_with_absent_parameters_is_refused(tmp_path):
    fluid.Trainer(classifier, SGD, infer_func=net).save_inference_model(tmp_path / "m", platforms=["cpu"])
    with pytest.raises(errors.ParameterError, match=r"missing: other.w_0.*created at test_labels.py:\d+ in <lambda>"):
        fluid.Inferencer(
            lambda: layers.fc(layers.data("x", shape=[2]), size=3, name="other"), param_path=tmp_path / "m"
        )
