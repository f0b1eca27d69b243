"""Populations: each member ends with the numbers of a separate Trainer with the same seed and settings."""

import functools

import numpy as np
import pytest

import fluid

SEEDS = [3, 8]
RATES = [0.002, 0.03]
DROPOUTS = [0.1, 0.6]
X = np.random.default_rng(0).normal(size=(44, 6)).astype("float32")
DATA = {"x": X, "y": X[:, :1] * X[:, 1:2]}


def body(dropout=0.5):
    x = fluid.layers.data("x", shape=[6])
    hidden = fluid.layers.batch_norm(fluid.layers.fc(x, size=8, act="tanh", name="hidden"))
    hidden = fluid.layers.dropout(hidden, dropout, dropout_implementation="upscale_in_train")
    return fluid.layers.fc(hidden, size=1, name="guess")


def program(dropout=0.5):
    guess = body(dropout)
    y = fluid.layers.data("y", shape=[1])
    loss = fluid.layers.mean(fluid.layers.square_error_cost(guess, y))
    return {"guess": guess, "loss": loss}


def line():
    """Build a linear regression, which compiles quickly."""
    x, y = fluid.layers.data("x", shape=[6]), fluid.layers.data("y", shape=[1])
    return {"loss": fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(x, size=1), y))}


def reader(seed=0, batch_size=16):
    """Return a shuffled reader; by default its minibatches have 16, 16 and 12 rows."""
    return fluid.reader.arrays(DATA, batch_size=batch_size, shuffle=True, seed=seed)


TESTED = fluid.reader.arrays(DATA, batch_size=30)
WHOLE = fluid.reader.arrays(DATA, batch_size=44)


def equal(population, member, trainer, tolerance=1e-5):
    mine, its = population[member], trainer.params
    assert mine.keys() == its.keys()
    for name, array in its.items():
        np.testing.assert_allclose(np.asarray(mine[name]), np.asarray(array), rtol=tolerance, atol=tolerance)


def same_bits(first, second):
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert np.asarray(array).tobytes() == np.asarray(second[name]).tobytes(), name


class Off(fluid.metrics.MetricBase):
    """A metric with the largest absolute error of a guess."""

    def reset(self):
        self.most = 0.0

    def update(self, guess, y):
        self.most = max(self.most, float(np.abs(guess - y).max()))

    def eval(self):
        return self.most


@pytest.fixture(scope="module")
def trained():
    """Return a fluid.Population that has trained two members in one program, and the events of the training."""
    vary = {"learning_rate": RATES, "dropout": DROPOUTS}
    population = fluid.Population(program, fluid.optimizer.Adam(), seeds=SEEDS, vary=vary)
    events = []
    population.train(reader(0, 22), num_epochs=2, event_handler=events.append, test_reader=WHOLE)
    return population, events


@pytest.fixture(scope="module")
def alone():
    """Return a list: for each member of the population, a separate Trainer with equal settings, trained equally."""
    trainers = []
    for seed, rate, dropout in zip(SEEDS, RATES, DROPOUTS, strict=True):
        trainer = fluid.Trainer(functools.partial(program, dropout), fluid.optimizer.Adam(rate), seed=seed)
        trainer.train(reader(0, 22), num_epochs=2, test_reader=WHOLE)
        trainers.append(trainer)
    return trainers


def test_each_member_equals_its_separate_trainer(trained, alone):
    population, _ = trained
    assert len(population) == 2
    for member, trainer in enumerate(alone):
        equal(population, member, trainer)
        for column in ("loss", "test_loss"):
            of_member = [values[member] for values in population.history[column]]
            np.testing.assert_allclose(of_member, trainer.history[column], rtol=1e-5)


def test_metrics_have_a_number_for_each_member(trained, alone):
    population, events = trained
    steps = [event for event in events if isinstance(event, fluid.EndStepEvent)]
    assert [(event.metrics["loss"].shape, event.examples) for event in steps] == 4 * [((2,), 22)]
    measured = [event for event in events if isinstance(event, fluid.MeasuredEvent)]
    assert [event.metrics["test_loss"].shape for event in measured] == [(2,), (2,)]
    ends = [event for event in events if isinstance(event, fluid.EndEpochEvent)]
    assert ends[1].metrics["loss"].tolist() == population.history["loss"][1].tolist()
    found = population.test(WHOLE, metrics={"off": Off().of(guess="guess", y="y")})
    assert found.keys() == ["guess", "loss", "off"]
    np.testing.assert_allclose(found["loss"], [trainer.history["test_loss"][-1] for trainer in alone], rtol=1e-5)
    by_hand = np.abs(found["guess"] - DATA["y"]).max(axis=(1, 2))
    np.testing.assert_allclose(found["off"], by_hand, rtol=1e-6)
    assert population.best("loss") == int(np.argmin(found["loss"])) != population.best("loss", mode="max")
    ran = population.run({"x": X[:3]}, fetch="guess")
    np.testing.assert_allclose(ran[0][1], alone[1].run({"x": X[:3]}, fetch="guess")[0], rtol=1e-5, atol=1e-6)
    in_order = fluid.reader.arrays(DATA, batch_size=22)
    assert [results[0].shape for results in population.predict(in_order, fetch="guess")] == 2 * [(2, 22, 1)]


def test_ensemble_returns_the_mean_or_each_member(trained):
    population, _ = trained
    each = [fluid.Inferencer(body, params=member).infer({"x": X[:5]})[0] for member in population]
    mean = fluid.Inferencer(body, params=population)
    np.testing.assert_allclose(mean.infer({"x": X[:5]})[0], np.mean(each, axis=0), rtol=1e-5, atol=1e-7)
    assert [results[0].shape for results in mean.predict(fluid.reader.arrays({"x": X}, batch_size=30))][-1] == (14, 1)
    found = fluid.Inferencer(body, params=population.each).infer({"x": X[:5]})[0]
    np.testing.assert_allclose(found, np.stack(each, axis=1), rtol=1e-6)

    def choice():
        return fluid.layers.argmax(body(), axis=1)

    with pytest.raises(
        fluid.errors.ArgumentError, match="mean of what its members compute, found int.*population.each"
    ):
        fluid.Inferencer(choice, params=population).infer({"x": X[:5]})
    with pytest.raises(fluid.errors.ArgumentTypeError, match="an ensemble lies on one device"):
        fluid.Inferencer(body, params=population, rename={"a": "b"})


def test_members_and_trainers_exchange_starting_parameters(trained):
    population, _ = trained
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), params=population[1])
    same_bits(population[1], trainer.params)
    shared = fluid.Population(program, fluid.optimizer.SGD(0.1), size=2, params=trainer.params)
    for member in shared:
        same_bits(member, trainer.params)
    again = fluid.Population(program, fluid.optimizer.SGD(0.1), size=2, params=population.params)
    for member in range(2):
        same_bits(again[member], population[member])
    with pytest.raises(
        fluid.errors.ArgumentError, match=r"population\(member=2\): expected a whole number from -2 to 1"
    ):
        population[2]


def rated(size=3, **settings):
    """Return a population of trainings, one for each learning rate.

    The first rate is 0, so the test loss of the first training never improves.
    """
    vary = {"learning_rate": [0.0, 0.02, 0.2][:size]}
    return fluid.Population(line, fluid.optimizer.SGD(), seeds=[1] * size, vary=vary, **settings)


def stopping():
    return fluid.handlers.EarlyStopping("test_loss", patience=2, min_delta=0.02)


def test_members_stop_early_like_separate_trainers():
    population, handler = rated(), stopping()
    active = []

    def on_event(event):
        if isinstance(event, fluid.BeginEpochEvent):
            active.append(population.active.tolist())

    population.train(reader(), 60, on_event, handlers=[handler], test_reader=TESTED)
    trainers = []
    for rate in (0.0, 0.02, 0.2):
        trainers.append(fluid.Trainer(line, fluid.optimizer.SGD(rate), seed=1))
        trainers[-1].train(reader(), 60, handlers=[stopping()], test_reader=TESTED)
    epochs = [len(trainer.history["epoch"]) for trainer in trainers]
    assert [sum(of_epoch[member] for of_epoch in active) for member in range(3)] == epochs
    assert len(population.history["epoch"]) == max(epochs) < 60 and len(set(epochs)) == 3
    for member, trainer in enumerate(trainers):
        equal(population, member, trainer)
        # The last minibatch of each epoch has fewer rows, so its loss counts less in the mean of the epoch.
        for column in ("loss", "test_loss"):
            of_member = [values[member] for values in population.history[column]][: epochs[member]]
            np.testing.assert_allclose(of_member, trainer.history[column], rtol=1e-5)
    assert not population.active.any() and handler.best.shape == (3,)
    population.train(reader(), 1)
    assert population.active.all()


class Break(fluid.Handler):
    """A handler that raises an error after `done` steps; like a kill, the error saves no checkpoint."""

    def __init__(self, done):
        self._done = done

    def end_step(self, event):
        if self.done == self._done:
            raise ZeroDivisionError


def test_aborted_population_resumes_to_the_same_bits(in_tmp):
    def run(folder, *handlers):
        population = rated(checkpoint_config=fluid.CheckpointConfig(folder, step_interval=4))
        population.train(reader(), 6, handlers=[stopping(), *handlers], test_reader=TESTED)
        return population

    whole = run("whole")
    # Member 0 of the population stops early, after epoch 3, which ends at step 9. The test aborts the whole training at
    # step 14, when this member has already stopped.
    assert not whole.active[0] and whole.active.any()
    with pytest.raises(ZeroDivisionError):
        run("broken", Break(14))  # a checkpoint is saved every 4 steps, so the last one is of step 12
    resumed = run("broken")
    same_bits(resumed.session.state(), whole.session.state())
    assert [v.tolist() for v in resumed.history["test_loss"]] == [v.tolist() for v in whole.history["test_loss"]]
    other = {"learning_rate": [0.0, 0.02, 0.3]}
    with pytest.raises(
        fluid.errors.ParameterError, match="learning_rate.*found .* in what was saved, expected the same"
    ):
        config = fluid.CheckpointConfig("broken")
        fluid.Population(line, fluid.optimizer.SGD(), seeds=[1] * 3, vary=other, checkpoint_config=config)


def test_lost_member_is_named_and_the_rest_saved(in_tmp):
    vary = {"learning_rate": [0.01, 1e30]}
    config = fluid.CheckpointConfig("here", epoch_interval=1)
    population = fluid.Population(line, fluid.optimizer.SGD(), vary=vary, checkpoint_config=config)
    with pytest.warns(fluid.errors.FluidWarning, match="the loss of member 1 is .* others go on"):
        population.train(reader(), 3)
    population.test(reader())
    assert population.best() == 0 == population.best(mode="max")
    saved = fluid.Population(line, fluid.optimizer.SGD(), vary=vary, checkpoint_config=config)
    same_bits(saved[0], population[0])
    assert int(saved.session.scope.step) == 9


def test_each_lost_member_is_named_once():
    spoilt = iter([2, 0, 2])

    def on_event(event):
        if isinstance(event, fluid.EndEpochEvent) and event.epoch < 3:
            weights = np.array(population.session.scope["fc_0.w_0"])
            weights[next(spoilt)] = np.nan
            population.session.scope["fc_0.w_0"] = weights

    population = fluid.Population(line, fluid.optimizer.SGD(0.01), seeds=[1, 2, 3, 4])
    with pytest.warns(fluid.errors.FluidWarning) as caught:
        population.train(reader(), 5, on_event)
    lost = [str(warning.message) for warning in caught if "the loss of member" in str(warning.message)]
    assert [text.partition(" is ")[0][-1] for text in lost] == ["2", "0"]
    assert "in step 0 of epoch 1" in lost[0] and "in step 0 of epoch 2" in lost[1]


def text():
    words = fluid.layers.data("words", shape=[1], dtype="int64", lod_level=1)
    rows = fluid.layers.embedding(words, size=[9, 3])
    return fluid.layers.mean(fluid.layers.fc(fluid.layers.sequence_pool(rows, "sum"), size=1))


def test_members_read_separate_minibatches():
    population = fluid.Population(line, fluid.optimizer.Momentum(0.05), seeds=SEEDS)
    population.train(fluid.Population.separate([reader(5), reader(6)]), num_epochs=2)
    for member, seed in enumerate((5, 6)):
        trainer = fluid.Trainer(line, fluid.optimizer.Momentum(0.05), seed=SEEDS[member])
        trainer.train(reader(seed), num_epochs=2)
        equal(population, member, trainer)
        np.testing.assert_allclose([v[member] for v in population.history["loss"]], trainer.history["loss"], rtol=1e-5)
    short = fluid.reader.arrays({name: column[:32] for name, column in DATA.items()}, batch_size=16)
    with pytest.raises(fluid.errors.ReaderError, match="the reader of member 1 has ended"):
        population.train(fluid.Population.separate([reader(), short]))
    with pytest.raises(fluid.errors.FeedError, match="is of 1 readers, expected one for each of the 2 members"):
        population.train(fluid.Population.separate([reader()]))
    words = fluid.Population(text, fluid.optimizer.SGD(0.1), size=2)
    with pytest.raises(fluid.errors.FeedError, match="'words' has rows of any length"):
        words.train(fluid.Population.separate(2 * [lambda: [[([1, 2, 3],)]]]))
    small = fluid.reader.arrays(DATA, batch_size=15)
    with pytest.raises(fluid.errors.FeedError, match=r"'x' of batch 0 has the shapes \[\(15, 6\), \(16, 6\)\]"):
        population.train(fluid.Population.separate([reader(), small]))


def looked_up(penalty=0.0):
    ids = fluid.layers.data("ids", shape=[2, 1], dtype="int64")
    rows = fluid.layers.embedding(ids, size=[9, 3], is_sparse=True)
    guess = fluid.layers.fc(rows, size=1, num_flatten_dims=1)
    y = fluid.layers.data("y", shape=[1])
    return fluid.layers.mean(fluid.layers.square_error_cost(guess, y)) + penalty * fluid.layers.mean(
        fluid.layers.square(guess)
    )


@pytest.mark.parametrize(
    ("make", "name", "values"),
    [
        # Each member of a population has its value of a number. A learning rate of a member multiplies the schedule,
        # and any other number of a member replaces the number of the optimizer.
        pytest.param(
            lambda rate: fluid.optimizer.Adagrad(lambda done: rate / (1 + done)),
            "learning_rate",
            [0.1, 0.4],
            marks=pytest.mark.full,
        ),
        (lambda decay: fluid.optimizer.AdamW(0.05, weight_decay=decay, lazy_mode=True), "weight_decay", [0.0, 0.3]),
        (lambda alpha: fluid.optimizer.Lookahead(fluid.optimizer.SGD(0.1), alpha=alpha, k=2), "alpha", [0.2, 0.8]),
    ],
)
# Lookahead updates the sparse table densely, as intended here.
@pytest.mark.filterwarnings("ignore:Lookahead .* needs tables as a whole")
def test_varied_optimizer_numbers_work_with_sparse_tables(make, name, values):
    rng = np.random.default_rng(1)
    data = {"ids": rng.integers(0, 9, (16, 2)), "y": rng.normal(size=(16, 1)).astype("float32")}
    population = fluid.Population(looked_up, make(1.0), vary={name: values, "penalty": [0.5, 0.0]})
    population.train(fluid.reader.arrays(data, batch_size=8), num_epochs=3)
    for member, penalty in enumerate((0.5, 0.0)):
        trainer = fluid.Trainer(functools.partial(looked_up, penalty), make(values[member]), seed=member)
        trainer.train(fluid.reader.arrays(data, batch_size=8), num_epochs=3)
        equal(population, member, trainer)
    if name == "learning_rate":
        np.testing.assert_allclose(population.learning_rate, [0.1 / 7, 0.4 / 7], rtol=1e-6)


@pytest.mark.full
def test_freezing_averages_and_norms_hold_per_member(in_tmp):
    ema = fluid.optimizer.ExponentialMovingAverage(0.5)

    def train(make, **settings):
        trainer = make(line, ema.track(fluid.optimizer.Adam(0.1)), **settings)
        trainer.freeze("fc_0.b_0")
        handlers = [fluid.handlers.GradientMonitor(), fluid.handlers.TestEvery(TESTED, average=ema)]
        return trainer, trainer.train(reader(), 2, handlers=handlers)

    population, found = train(fluid.Population, seeds=SEEDS)
    trainer, expected = train(fluid.Trainer, seed=SEEDS[1])
    equal(population, 1, trainer)
    for name in ("test_loss", "grad_norm_0", "update_ratio_0"):
        np.testing.assert_allclose([values[1] for values in found[name]], expected[name], rtol=1e-5)
    found.plot("here.png")
    found.to_pandas()


def sized(size=3, dropout=0.5, unused=1.0, epsilon=0.1):
    x = fluid.layers.data("x", shape=[6])
    return fluid.layers.mean(fluid.layers.dropout(fluid.layers.fc(x, size=size), dropout)) + epsilon


WRONG = [
    (
        {"droput": [0.1, 0.2]},
        fluid.errors.UnknownNameError,
        "'droput' is neither an argument .* Did you mean 'dropout'",
    ),
    ({"beta_1": [0.1, 0.2]}, fluid.errors.UnknownNameError, "a number of Adam, .* Did you mean 'beta1'"),
    (
        {"dropout": [0.1, 0.2, 0.3]},
        fluid.errors.ArgumentError,
        "found 3 values, expected one for each of the 2 members",
    ),
    ({"dropout": 0.1}, fluid.errors.ArgumentTypeError, "expected a list of 2 numbers"),
    ({"dropout": ["a", "b"]}, fluid.errors.ArgumentError, "expected numbers"),
    ({"dropout": [0.1, 1.2]}, fluid.errors.ArgumentError, "dropout_0: dropout_prob=1.2"),
    ({"unused": [0.1, 0.2]}, fluid.errors.ArgumentError, "a training step does not depend on it"),
    ({"size": [3, 4]}, fluid.errors.ArgumentError, "the value of 'size' decides the structure .*partial.sized, size=3"),
    ({"learning_rate": [0.1, -1]}, fluid.errors.ArgumentError, "expected a number from 0 on"),
    ({"beta1": [0.9, 1.0]}, fluid.errors.ArgumentError, "expected a decay from 0 to below 1"),
    ({"epsilon": [0.1, 0.2]}, fluid.errors.ArgumentError, "found an argument of the program function and a number"),
    ([0.1, 0.2], fluid.errors.ArgumentTypeError, "expected lists by name"),
]


@pytest.mark.parametrize(("vary", "error", "said"), WRONG)
def test_wrong_vary_raises_named_error(vary, error, said):
    with pytest.raises(error, match=said):
        fluid.Population(sized, fluid.optimizer.Adam(), size=2, vary=vary)


def test_unsupported_population_calls_raise_named_errors(in_tmp):
    adam = fluid.optimizer.Adam()
    make = functools.partial(fluid.Population, line, adam)
    for settings, said in [
        ({}, "how many members there are is not said"),
        ({"size": 1}, "expected a whole number from 2 on"),
        ({"size": 3, "seeds": [1, 2]}, "found 2 seeds, expected one for each of the 3 members"),
        ({"size": 2, "checkpoint_config": fluid.CheckpointConfig("c", keep_best=("loss", "min"))}, "keep_best=None"),
    ]:
        with pytest.raises(fluid.errors.ArgumentError, match=said):
            make(**settings)
    with pytest.raises(fluid.errors.ArgumentTypeError, match="trains one program function"):
        fluid.Population([(line, adam)], size=2)
    population = make(size=2)
    with pytest.raises(fluid.errors.ArgumentError, match="compares the results of the last test, and there is none"):
        population.best()
    with pytest.raises(fluid.errors.ArgumentError, match="CSVLogger follows the numbers of one training"):
        population.train(reader(), handlers=[fluid.handlers.CSVLogger("log.csv")])
    with pytest.raises(fluid.errors.ArgumentError, match="restore_best=True"):
        population.train(reader(), test_reader=TESTED, restore_best=True)
    with pytest.raises(fluid.errors.ArgumentError, match="holds one model"):
        population.save_inference_model("model.fluid")
    with pytest.raises(fluid.errors.ArgumentTypeError, match="unexpected keyword argument 'seed'"):
        make(size=2, seed=1)
