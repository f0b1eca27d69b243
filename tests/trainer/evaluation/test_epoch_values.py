"""The history of a training: its values equal NumPy and scikit-learn over the whole epoch, as in a test."""

import csv
import json

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import jaccard_score, precision_score, recall_score

import fluid
from fluid import errors, layers
from fluid.optimizer import SGD

RNG = np.random.default_rng(0)
SIZES = [5, 5, 5, 2, 1, 4, 3]
ROWS = sum(SIZES)
X = RNG.normal(size=(ROWS, 2)).astype("float32")
CHANCE = RNG.uniform(size=(ROWS, 1)).astype("float32")
LABEL = RNG.integers(0, 2, (ROWS, 1))
WEIGHT = RNG.uniform(0.1, 3, (ROWS, 1)).astype("float32")
WEIGHT[5:10] = 0  # a whole minibatch of weight 0
CHANCE[15:17] = 0.1  # a minibatch without a row that is predicted to be positive
GUESS, TRUTH = RNG.integers(0, 3, (2, ROWS, 1))
WORDS = [RNG.normal(size=(n, 1)).astype("float32") for n in RNG.integers(1, 6, ROWS)]


def measured(x):
    """Return outputs for which the mean over minibatches differs from the value over all rows."""
    chance, weight = layers.data("chance", shape=[1]), layers.data("weight", shape=[1])
    label = layers.data("label", shape=[1], dtype="int64")
    guess, truth = (layers.data(name, shape=[1], dtype="int64") for name in ("guess", "truth"))
    words = layers.data("words", shape=[1], lod_level=1)
    total, sums = jnp.sum(weight), jnp.sum(weight * chance)
    return {
        "weighted": layers.metric(sums / total, "mean", weight=total),
        "root": layers.metric(layers.mean(chance), jnp.sqrt),
        "ratio": layers.metric([sums, total], lambda a, b: a / b),
        "precision": layers.precision(chance, label),
        "recall": layers.recall(chance, label),
        "iou": layers.mean_iou(guess, truth, num_classes=3)[0],
        "of_steps": layers.mean(layers.square(words)),
        "most": layers.reduce_max(x),
        "sum": layers.reduce_sum(x),
    }


def program():
    x = layers.data("x", shape=[2])
    return {"loss": layers.mean(layers.square(layers.fc(x, size=1) - 1)), **measured(x)}


def minimized():
    outputs = program()
    SGD(0.1).minimize(outputs["loss"])
    return outputs


def want(rows=range(ROWS)):
    """Return what `measured` must be over all minibatches, by NumPy and scikit-learn on these rows."""
    chance, weight, positive = CHANCE[rows, 0], WEIGHT[rows, 0], CHANCE[rows, 0] >= 0.5
    return {
        "weighted": np.average(chance, weights=weight),
        "root": np.mean(chance) ** 0.5,
        "ratio": np.sum(chance * weight) / np.sum(weight),
        "precision": precision_score(LABEL[rows, 0], positive),
        "recall": recall_score(LABEL[rows, 0], positive),
        "iou": jaccard_score(TRUTH[rows, 0], GUESS[rows, 0], average="macro"),
        "of_steps": np.mean(np.concatenate([WORDS[i] for i in rows]) ** 2),
        "most": X[rows].max(),
        "sum": X[rows].sum(),
    }


COLUMNS = {"x": X, "chance": CHANCE, "weight": WEIGHT, "label": LABEL, "guess": GUESS, "truth": TRUTH, "words": WORDS}


def reader():
    ends = np.cumsum(SIZES)
    for begin, end in zip(ends - SIZES, ends, strict=True):
        yield {name: column[begin:end] for name, column in COLUMNS.items()}


def check(found, wanted=None):
    for name, value in (wanted or want()).items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


def custom(step):
    found = step.losses_and_gradients()
    return *step.update(found.gradients), found


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (SGD(0.1), {}),
        (SGD(0.1), {"steps_per_dispatch": 3}),
        (SGD(0.1, accumulate_steps=2), {}),
        (SGD(0.1), {"step": custom}),
    ],
)
def test_epoch_values_equal_a_test_of_all_rows(optimizer, options, tmp_path):
    """Check the history, tables, handlers that follow a value, checkpoints, events and a test of equal data."""
    config = fluid.CheckpointConfig(tmp_path / "made", keep_best=("iou", "max"))
    trainer, events = fluid.Trainer(program, optimizer, checkpoint_config=config, **options), []
    table = fluid.handlers.CSVLogger(tmp_path / "log.csv", every="epoch")
    followed = [fluid.handlers.EarlyStopping(name, mode="max") for name in want()]
    history = trainer.train(reader, 2, events.append, handlers=[table, *followed])
    for epoch in range(2):
        check({name: column[epoch] for name, column in history.items()})
    check({name: handler.best for name, handler in zip(want(), followed, strict=True)})
    last = next(e for e in reversed(events) if isinstance(e, fluid.EndEpochEvent))
    check({name: float(last.metrics[name]) for name in want()})
    with open(tmp_path / "log.csv") as file:
        check({name: float(value) for name, value in list(csv.DictReader(file))[-1].items() if name in want()})
    check(trainer.test(reader))
    made = [json.loads(path.read_text()) for path in (tmp_path / "made").glob("*/meta.json")]
    assert [meta["score"]["value"] for meta in made] == [pytest.approx(want()["iou"], rel=1e-5)] * 2


def test_resumed_epoch_has_the_values_of_all_rows(tmp_path):
    class Failure(Exception):
        pass

    def fail(event):
        if isinstance(event, fluid.EndStepEvent) and event.step == 4:
            raise Failure

    def make():
        return fluid.Trainer(
            program, SGD(0.1), checkpoint_config=fluid.CheckpointConfig(tmp_path / "made", step_interval=3)
        )

    with pytest.raises(Failure):
        make().train(reader, 1, fail)
    history = make().train(reader, 1)
    check({name: column[0] for name, column in history.items()})


def test_several_programs_have_their_own_epoch_values():
    def first():
        return minimized()

    def second():
        return minimized()

    turns = []

    def note(event):
        if isinstance(event, fluid.EndStepEvent):
            turns.append(event.program)

    history = fluid.Trainer([first, second]).train(reader, 1, note)
    batches = np.split(np.arange(ROWS), np.cumsum(SIZES)[:-1])
    for program_name in ("first", "second"):
        rows = np.concatenate([batches[i] for i, turn in enumerate(turns) if turn == program_name])
        check({name: history[f"{program_name}/{name}"][0] for name in want()}, want(rows))


def test_members_have_the_epoch_values_of_all_rows():
    population = fluid.Population(program, SGD(0.1), seeds=[3, 8])
    history = population.train(reader, 1)
    tested = population.test(reader)
    for member in range(2):
        check({name: history[name][0][member] for name in want()})
        check({name: tested[name][member] for name in want()})


def test_loop_has_the_epoch_values_of_all_rows():
    session = fluid.Session(minimized)
    with fluid.Loop(session, fluid.reader.prefetch(reader, session)) as loop:
        for feed in loop:
            loop.step(feed)
    check({name: column[0] for name, column in loop.history.items()})


@pytest.mark.parametrize("steps", [1, 3])
def test_epoch_of_many_steps_per_call(steps):
    trainer = fluid.Trainer(program, SGD(0.1), steps_per_dispatch=steps)
    history = trainer.train(lambda: (batch for _ in range(20) for batch in reader()), 1)
    check({name: column[0] for name, column in history.items()}, {**want(), "sum": 20 * X.sum()})


def test_history_that_keeps_many_rows_warns_once(monkeypatch):
    """Check a value that needs all rows of the epoch, here a median: it is exact, and said if it needs much memory."""

    def outputs():
        x = layers.data("x", shape=[2])
        return {"loss": layers.mean(layers.square(layers.fc(x, size=1) - 1)), "median": layers.metric(x, jnp.median)}

    monkeypatch.setattr("fluid.trainer.evaluation.means.MANY", 50)
    trainer = fluid.Trainer(outputs, SGD(0.1))
    with pytest.warns(errors.FluidWarning, match=r"rows of this epoch so far, .* 'median' \(\d+ B\)") as caught:
        history = trainer.train(fluid.reader.arrays({"x": X}, batch_size=7), 2)
        assert history["median"] == [pytest.approx(np.median(X))] * 2
    assert len(caught) == 1
