"""Export to ONNX: a program that jax2onnx supports gives the same results in ONNX Runtime as in an Inferencer."""

import importlib.util

import numpy as np
import pytest
from export.programs import examples

import fluid
from fluid import errors, export, layers
from fluid.__main__ import main

HERE = all(importlib.util.find_spec(name) for name in ("jax2onnx", "onnxruntime"))
needs_onnx = pytest.mark.skipif(not HERE, reason="jax2onnx or onnxruntime is absent, see docs/onnx.md")
EXAMPLES = ["fit_a_line", "recognize_digits.conv", "word2vec", "understand_sentiment.conv", "run_a_2018_model"]


@needs_onnx
@pytest.mark.full
@pytest.mark.parametrize("name", EXAMPLES)
def test_onnx_answers_as_the_inferencer(name, tmp_path):
    import onnxruntime

    (model,) = [m for m in examples() if m.id == f"examples/{name}"]
    inputs = export.save_onnx(tmp_path / "net.onnx", model.function, model.params())
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    feed = model.feed(7, 8)
    given = {}
    for n in (n for n in inputs if not n.endswith(".lengths")):
        spec = model.program.feeds[n]
        if spec.lod_level == 0:
            given[n] = np.asarray(feed[n], spec.held)
            continue
        given[f"{n}.lengths"] = np.array([len(row) for row in feed[n]], "int32")
        given[n] = np.zeros((7, 8, *spec.shape[1:]), spec.held)
        for to, row in zip(given[n], feed[n], strict=True):
            to[: len(row)] = np.asarray(row).reshape(len(row), *spec.shape[1:])
    found = session.run(None, given)
    wanted = fluid.Inferencer(model.function, params=model.params()).infer(feed)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * np.abs(b).max())


@needs_onnx
@pytest.mark.full
def test_a_program_that_jax2onnx_lacks_names_other_ways(tmp_path):
    (model,) = [m for m in examples() if m.id == "examples/understand_sentiment.lstm"]
    with pytest.raises(errors.ArtifactError, match="jax2onnx cannot convert this program: .*--to stablehlo"):
        export.save_onnx(tmp_path / "net.onnx", model.function, model.params())
    assert not (tmp_path / "net.onnx").exists()


def line():
    return layers.fc(layers.data("x", shape=[2]), size=1)


@pytest.mark.skipif(HERE, reason="jax2onnx is here")
def test_missing_jax2onnx_error_names_the_package(tmp_path):
    params = fluid.Session(line).params()
    with pytest.raises(errors.ArtifactError, match="jax2onnx cannot be imported .*pip install --no-deps jax2onnx"):
        export.save_onnx(tmp_path / "net.onnx", line, params)


def test_a_program_that_draws_numbers_has_no_onnx(tmp_path):
    def noise():
        return layers.uniform_random_batch_size_like(layers.data("x", shape=[2]), shape=[-1, 2])

    with pytest.raises(errors.ArtifactError, match="draws random numbers"):
        export.save_onnx(tmp_path / "net.onnx", noise, {})


def test_onnx_of_an_exported_model_names_the_call(tmp_path, capsys):
    fluid.Trainer(lambda: layers.mean(line()), fluid.optimizer.SGD(0.1)).save_inference_model(tmp_path / "m")
    assert main(["convert", str(tmp_path / "m"), "new.onnx", "--to", "onnx"]) == 1
    assert "python -m fluid export FILE.py:FUNCTION --to onnx" in capsys.readouterr().err
