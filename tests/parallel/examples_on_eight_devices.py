"""Training examples on eight devices; `test_eight_devices.py` runs this file in a process with eight devices."""

import collections
import contextlib
import functools
import inspect
import itertools
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
from test_examples import EXAMPLES, load

import fluid
from fluid import layers
from fluid.parallel import sharding_rules

MESHES = {
    "data": True,
    "fsdp": "fsdp",
    "4x2": fluid.Mesh(data=4, model=2),
    "2x2x2": fluid.Mesh(data=2, fsdp=2, model=2),
}
STEPS, ROWS = 20, 16
RANDOM = np.random.default_rng(0)


class Row(NamedTuple):
    """An example of `examples/`, with settings that make it small but keep all of its layers.

    Attributes:
      arguments: the arguments of the function `main` of the example.
      constants: values by name that replace constants in the module of the example.
      call: a function that gets the module and runs instead of `main`, for examples without a Trainer.
      number: the index of the tested training among the trainings of the example, from 0.
      longest: the padded length of sequences, so that a single shape is compiled.
      dtype: the dtype of the computation. In twenty steps, nets with maxima amplify the rounding of float32 beyond
        every useful tolerance.
      optimized: whether XLA optimises fully; without this, large convolutions in double precision are too slow.
    """

    arguments: dict[str, Any] = {}
    constants: dict[str, Any] = {}
    call: Callable[[Any], Any] | None = None
    number: int = 0
    longest: int | None = None
    dtype: str = "float64"
    optimized: bool = False


def by_reinforce(example):
    """Train the policy of policy_gradient on episodes of random play."""
    played = example.Player().play(lambda seen: np.full((len(seen), 2), 0.5), ROWS // 4)
    feed = example.as_feed(*(values[:4] for values in played))
    fluid.Trainer(example.learn).train([feed])


def on_a_stream(example):
    """Train the program of online_recommender in this process; the example itself trains it in a separate process."""
    people = example.People(0)
    fluid.Trainer(example.train_program, example.optimizer()).train([people.rate(ROWS) for _ in range(4)])


def on_texts(example):
    """Train the GPT of plan_gpt, which the example only plans, in a small size."""
    program = functools.partial(example.gpt, count=50, length=16, layers=2, size=16, heads=2, hidden=24)
    texts = RANDOM.integers(0, 50, (2, ROWS, 17, 1))
    fluid.Trainer(program, fluid.optimizer.Adam(1e-3)).train([{"text": text} for text in texts])


def by_adapters(example):
    """Train low-rank adapters as the example low_rank_digits does, but beside random instead of trained weights."""
    program = functools.partial(example.train_program, ["*.low_rank_?", "head.*"], fluid.LowRankParamAttr(4))
    fluid.Trainer(program).train(example.readers(example.load_digits(), 5)[0])


def by_gradients_alone(example):
    """Run an example with SGD, because Adam turns rounding errors of gradients near 0 into large updates."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fluid.optimizer, "Adam", fluid.optimizer.SGD)
        example.main()


TRAININGS = {
    "fit_a_line": Row(),
    "recognize_digits": Row({"net": "conv"}),
    "image_classification-resnet": Row({"net": "resnet", "count": 64, "width": 0.25}, {"BLOCKS": 1}, optimized=True),
    "image_classification-vgg": Row({"net": "vgg", "count": 64, "width": 0.0625}, optimized=True),
    "word2vec": Row({"max_paragraphs": 200}),
    "recommender_system": Row({"users": 50, "movies": 60, "ratings": 400}),
    "understand_sentiment-conv": Row({"net": "conv", "count": 100}, {"WIDTH": 8}, longest=64),
    "understand_sentiment-lstm": Row({"net": "lstm", "count": 100}, {"WIDTH": 8}, longest=64),
    "understand_sentiment-rnn": Row({"net": "rnn", "count": 100}, {"WIDTH": 8}, longest=64),
    "language_model": Row({"layers": 2, "size": 32, "max_paragraphs": 200}, {"WINDOW": 32}),
    "write_characters": Row({"size": 16}, {"WINDOW": 16}, longest=16),
    "ctc_digits": Row({"strips": 40}, longest=112, optimized=True),
    "machine_translation": Row({"count": 40}, {"WIDTH": 8}, longest=16),
    "label_semantic_roles": Row({"sentences": 40, "depth": 2, "hidden": 8}, longest=32),
    "detect_shapes": Row({"count": 40}, optimized=True),
    "gan_digits": Row({"num_epochs": 1}, {"HIDDEN": 32}),
    "shared_tower": Row({"num_epochs": 1}, number=1),
    "population_digits": Row(),
    "serve_digits": Row(),
    "run_a_2018_model": Row(call=by_gradients_alone, dtype="float32"),  # the saved model is in float32
    "policy_gradient": Row(call=by_reinforce),
    "online_recommender": Row(call=on_a_stream),
    "plan_gpt": Row(call=on_texts),
    "bert_classifier": Row({"rows": 64}, longest=32),
    "low_rank_digits": Row(call=by_adapters),
}

# For an example, the device meshes on which it takes only seconds; `make soak` also runs the slow other meshes.
QUICK = {
    "fit_a_line": list(MESHES),
    "recognize_digits": ["data", "2x2x2"],
    "online_recommender": ["fsdp"],
    "shared_tower": ["4x2"],
    "policy_gradient": ["2x2x2"],
    "plan_gpt": ["2x2x2"],
    "low_rank_digits": ["fsdp"],
}
CASES = [
    pytest.param(name, mesh, marks=pytest.mark.full if mesh in QUICK.get(name, []) else pytest.mark.soak)
    for name in TRAININGS
    for mesh in MESHES
]


def test_every_example_that_trains_is_here():
    there = {path.stem for path in EXAMPLES.glob("*.py")}
    # seq2seq_2018 uses an Executor, which runs on a single device, as documented in `fluid.static`. gpt2 and resnet50
    # do not train.
    assert there - {"seq2seq_2018", "gpt2", "resnet50"} == {name.partition("-")[0] for name in TRAININGS}


class Known(Exception):
    """The exception that ends an example once its training is recorded."""


class Training:
    """A class that replaces Trainer and Population in an example, and records the arguments of the training.

    Args:
      trainings: a list of the trainings of the example, to which `train` appends this training.
      number: the index of the training that a test needs; `train` records this training and then raises Known.
      programs: the program functions; the further arguments are the arguments of a Trainer or Population, too.
    """

    program = types.SimpleNamespace(parameters={})

    def __init__(self, trainings, number, programs, optimizer=None, *, seeds=None, vary=None, **options):
        self.programs = programs
        self.optimizer = optimizer
        self.options = options
        self._trainings = trainings
        self._number = number

    def train(self, reader, num_epochs=1, event_handler=None, feed_order=None, **_):
        self.reader = reader
        self.feed_order = feed_order
        self._trainings.append(self)
        if len(self._trainings) > self._number:
            raise Known
        return collections.defaultdict(lambda: [0.0])

    def test(self, reader):
        return [0.0]


def taken(name):
    """Run the example `name` until it trains; return the recorded Training, and minibatches for STEPS steps."""
    row = TRAININGS[name]
    trainings = []
    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(Known):
        patched.setattr(fluid, "Trainer", functools.partial(Training, trainings, row.number))
        patched.setattr(fluid, "Population", functools.partial(Training, trainings, row.number))
        example = load(name.partition("-")[0])
        for constant, value in row.constants.items():
            patched.setattr(example, constant, value)
        (row.call or example.main)(*[example] * (row.call is not None), **row.arguments)
    training = trainings[row.number]
    if row.longest is not None:
        training.options["buckets"] = [row.longest]
    if isinstance(training.reader, dict):
        return training, {program: minibatches(reader) for program, reader in training.reader.items()}
    return training, minibatches(training.reader)


def minibatches(reader):
    """Return STEPS minibatches: the first three of a reader, cut to ROWS rows and repeated in turn."""
    found = itertools.islice(reader() if callable(reader) else reader, 3)
    return list(itertools.islice(itertools.cycle([first_rows(batch) for batch in found]), STEPS))


def first_rows(batch):
    if not isinstance(batch, dict):
        return batch[:ROWS]
    return {name: noisy(np.asarray(column)[:ROWS]) for name, column in batch.items()}


def noisy(column):
    """Add noise to images, so that few inputs of relu are 0; return other arrays unchanged.

    The derivative of relu jumps at 0, so a rounding error near 0 would decide between its two values.
    """
    return column if column.ndim < 4 else column + RANDOM.normal(0, 0.1, column.shape)


def trained(training, data, **settings):
    """Train for STEPS steps; return the scalar metrics of each step, and the final arrays."""
    said = []
    trainer = fluid.Trainer(training.programs, training.optimizer, **training.options, **settings)

    def keep(event):
        if isinstance(event, fluid.EndStepEvent):
            values = event.metrics.values() if isinstance(event.metrics, dict) else event.metrics
            said.append([float(value) for value in values if np.ndim(value) == 0])
            if len(said) == STEPS:
                trainer.stop()

    trainer.train(data, STEPS, keep, training.feed_order, progress=False)
    assert len(said) == STEPS
    return said, {name: np.asarray(value) for name, value in trainer.params.items()}


@functools.cache
def alone(name):
    """Train an example on a single device; return the arguments of its Trainer, its data, and the results."""
    training, data = taken(name)
    return training, data, trained(training, data)


def by_columns(arrays):
    """Return shardings over the mesh axis `model`: for matrices by columns, for filters by output channels, if even."""
    found = {name: {2: (None, "model"), 4: ("model",)}.get(value.ndim) for name, value in arrays.items()}
    return {n: s for n, s in found.items() if s is not None and arrays[n].shape[s.index("model")] % 2 == 0}


def computing_in(dtype, layer):
    """Wrap a layer to use another dtype instead of single precision."""
    signature = inspect.signature(layer)

    def call(*arguments, **more):
        bound = signature.bind(*arguments, **more)
        if bound.arguments.get("dtype", "float32") == "float32":
            bound.arguments["dtype"] = dtype
        return layer(*bound.args, **bound.kwargs)

    return call


@pytest.fixture(autouse=True)
def small_and_exact(request, monkeypatch, in_tmp):
    """Prepare a test: shard small arrays, too, and set the dtype and compiler options for the tested example."""
    monkeypatch.setattr(sharding_rules, "_SMALL", 64)
    row = TRAININGS[request.getfixturevalue("name")] if "name" in request.fixturenames else Row()
    for layer in ("data", "embedding", "gaussian_random_batch_size_like"):
        monkeypatch.setattr(layers, layer, computing_in(row.dtype, getattr(layers, layer)))
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", not row.optimized)
    with jax.enable_x64(row.dtype == "float64"):
        yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize(("name", "mesh"), CASES)
def test_an_example_on_a_mesh(name, mesh):
    """Check that a mesh and a single device agree in the metrics of twenty steps and in the final parameters."""
    training, data, (said, arrays) = alone(name)
    settings = {"parallel": MESHES[mesh]}
    # The example `plan_gpt` declares the shardings of its parameters, so it needs none here.
    if "model" in getattr(MESHES[mesh], "axes", ()) and name != "plan_gpt":
        settings["shardings"] = by_columns(arrays)
    found, found_arrays = trained(training, data, **settings)
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(said), rtol=1e-5)
    for array, value in arrays.items():
        scale = np.abs(value).max() + 1e-2
        np.testing.assert_allclose(found_arrays[array], value, rtol=0, atol=1e-5 * scale, err_msg=array)
