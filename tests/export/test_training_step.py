"""Exported training steps: without fluid, a step updates the arrays like its Trainer, bit for bit."""

import json
import zipfile

import jax
import numpy as np
import pytest
from export.test_standalone import contents, python, run  # noqa: F401 - python is a fixture

import fluid
from fluid import errors, export, layers
from fluid.checkpoint import recognized
from fluid.export import standalone

RNG = np.random.default_rng(0)
IMAGES = RNG.normal(size=(20, 1, 8, 8)).astype("float32")
LABELS = RNG.integers(0, 5, (20, 1))
SENTENCES = [[1, 2, 3], [4], [5, 6, 7, 8, 9, 1], [2, 2]]


def digits():
    hidden = fluid.nets.simple_img_conv_pool(layers.data("image", shape=[1, 8, 8]), 4, 3, 2, 2, act="relu")
    guess = layers.fc(layers.dropout(layers.batch_norm(hidden), 0.3), size=5, act="softmax", name="guess")
    label = layers.data("label", shape=[1], dtype="int64")
    return {"loss": layers.mean(layers.cross_entropy(guess, label)), "guess": guess}


def sentiment():
    words = layers.data("words", shape=[1], dtype="int64", lod_level=1)
    embedded = layers.embedding(words, size=[10, 4], is_sparse=True)
    states = layers.dynamic_gru(layers.fc(embedded, size=9), size=3)
    score = layers.fc(layers.sequence_pool(states, "last"), size=2)
    return {"loss": layers.mean(layers.square(score)), "states": states}


def two_losses():
    x = layers.data("x", shape=[3])
    for name in ("a", "b"):
        loss = layers.mean(layers.square(layers.fc(x, size=2, name=name)))
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=[f"{name}.*"])
    return loss


def two_layers():
    hidden = layers.dropout(layers.fc(layers.data("x", shape=[3]), size=4, act="tanh"), 0.5)
    return layers.mean(layers.square(layers.fc(hidden, size=1)))


def images(rows):
    return {"image": IMAGES[:rows], "label": LABELS[:rows]}


def columns(rows):
    return {"x": IMAGES[:rows, 0, 0, :3]}


def padded(rows):
    lengths = np.array([len(row) for row in SENTENCES[:rows]], "int32")
    data = np.zeros((rows, 8, 1), "int32")
    for to, row in zip(data, SENTENCES, strict=False):
        to[: len(row), 0] = row
    return {"words": (data, lengths)}


SCHEDULE = layers.exponential_decay(0.05, decay_steps=2, decay_rate=0.5)
FIXED = {"batch_sizes": [4], "buckets": [8]}
# Each net: program, optimizer, options of the Trainer, function from a number of rows to a feed, options of the export.
NETS = {
    "convolutions, Adam on a schedule": (digits, fluid.optimizer.Adam(SCHEDULE), {}, images, {}),
    "sequences, a sparse table": (sentiment, fluid.optimizer.SGD(0.5), {"buckets": [8]}, padded, FIXED),
    "two losses": (two_losses, None, {}, columns, {}),
    "a float16 loss scale": (two_layers, fluid.optimizer.Momentum(0.1, 0.9), {"precision": "float16"}, columns, {}),
}
LARGE = list(NETS)[:2]  # tested with a single batch size, because each size is compiled twice


@pytest.mark.parametrize("net", NETS)
def test_exported_steps_have_the_bits_of_the_trainer(net, tmp_path):
    program, optimizer, options, feeds, sizes = NETS[net]
    trainer = fluid.Trainer(program, optimizer, **options)
    trainer.save_training_step(tmp_path / "step", **sizes)
    step = standalone.load(tmp_path / "step")
    first = {name: np.asarray(value) for name, value in step.arrays.items()}
    for rows in (4, 4) if net in LARGE else (3, 4, 4):
        feed = feeds(rows)
        given = {n: fluid.SequenceBatch(*v) if isinstance(v, tuple) else v for n, v in feed.items()}
        wanted = trainer.session.run(feed=given, mode="train")
        assert contents(jax.tree.leaves(list(wanted))) == contents(jax.tree.leaves(step(feed)))
    after = trainer.session.state()
    known = {name: value for name, value in step.arrays.items() if not name.startswith("@learning_rate/")}
    assert known.keys() | {"@root"} == after.keys()
    for name, value in known.items():
        np.testing.assert_array_equal(value, after[name], err_msg=name)
    assert any((np.asarray(step.arrays[name]) != first[name]).any() for name in trainer.params)


def test_rate_set_in_the_arrays_takes_effect(tmp_path):
    trainer = fluid.Trainer(two_losses)
    trainer.save_training_step(tmp_path / "step", platforms=["cpu"])
    step = standalone.load(tmp_path / "step")
    step.arrays["@learning_rate/two_losses/1"] = np.float32(0.0)
    step({"x": np.ones((2, 3))})
    moved = {name for name, value in trainer.params.items() if (value != np.asarray(step.arrays[name])).any()}
    assert moved == {"a.w_0", "a.b_0"}


def test_trained_arrays_go_back_into_a_trainer(tmp_path):
    trainer = fluid.Trainer(two_layers, fluid.optimizer.Adam(0.1))
    trainer.save_training_step(tmp_path / "step")
    step = standalone.load(tmp_path / "step")
    step(columns(4))
    trainer.load_params({n: a for n, a in step.arrays.items() if n[0] != "@"})
    np.testing.assert_array_equal(trainer.params["fc_0.w_0"], step.arrays["fc_0.w_0"])


WITHOUT_FLUID = """
import json, sys
import numpy as np
import standalone

try:
    import fluid
    raise SystemExit("fluid is here")
except ImportError:
    pass
step = standalone.load("step")
feed = {name: np.asarray(value, "float32") for name, value in json.load(sys.stdin).items()}
for _ in range(3):
    loss, = step(feed)
print(json.dumps({name: np.asarray(value).tobytes().hex() for name, value in step.arrays.items()}))
"""


def test_a_step_runs_with_jax_and_numpy_only(python, tmp_path):  # noqa: F811
    trainer = fluid.Trainer(two_layers, fluid.optimizer.Adam(0.1), seed=3)
    trainer.save_training_step(tmp_path / "step")
    with zipfile.ZipFile(tmp_path / "step") as file:
        file.extract("standalone.py", tmp_path)
    feed = {"x": IMAGES[:5, 0, 0, :3]}
    for _ in range(3):
        trainer.session.run(feed=feed, mode="train")
    text = json.dumps({name: value.tolist() for name, value in feed.items()})
    done = run(python, "-c", WITHOUT_FLUID, folder=tmp_path, text=text)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    for name, value in trainer.session.state().items():
        assert found[name] == np.asarray(value).tobytes().hex(), name


def test_training_step_is_distinguished_from_a_model(tmp_path):
    trainer = fluid.Trainer(two_losses)
    path = tmp_path / "step"
    trainer.save_training_step(path)
    assert recognized(path) == "training step"
    with pytest.raises(errors.ArtifactError, match=r"an exported training step.*standalone.load\("):
        fluid.Inferencer(param_path=path)
    with pytest.raises(errors.ParameterFileError, match=r"an exported training step.*standalone.load\("):
        trainer.load_params(path)


def test_equal_trainers_export_equal_bytes(tmp_path):
    for name in ("a", "b"):
        fluid.Trainer(two_layers, fluid.optimizer.Adam(0.1)).save_training_step(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_step_of_a_population_is_refused(tmp_path):
    population = fluid.Population(two_layers, fluid.optimizer.SGD(0.1), 2)
    with pytest.raises(errors.ArgumentError, match="one training on one device, found a population"):
        population.save_training_step(tmp_path / "step")
    assert not (tmp_path / "step").exists()


def test_step_that_reads_sizes_requires_batch_sizes(tmp_path):
    trainer = fluid.Trainer(sentiment, fluid.optimizer.SGD(0.5))
    with pytest.raises(
        errors.ArtifactError, match=r"neither for all sizes .*no sizes are named, as in batch_sizes=\[64\]"
    ):
        trainer.save_training_step(tmp_path / "step")
    trainer.save_training_step(tmp_path / "step", batch_sizes=[2], buckets=[8])
    with pytest.raises(ValueError, match="found the sizes .*3.*exported for"):
        standalone.load(tmp_path / "step")(padded(3))


def test_a_program_without_updates_has_no_step(tmp_path):
    session = fluid.Session(lambda: layers.data("x", shape=[3]))
    with pytest.raises(errors.ArgumentError, match="minimises nothing, expected optimizer.minimize"):
        export.save_step(tmp_path / "step", session, session.engine.find())
