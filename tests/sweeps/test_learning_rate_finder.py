"""The learning rate finder: restored state, found losses, suggestions and plots."""

import struct

import numpy as np
import optax
import pytest

import fluid
from fluid import errors, layers
from fluid.sweeps.learning_rate_finder import RateSweep

RNG = np.random.default_rng(0)
X = RNG.normal(size=(64, 4)).astype("float32")
Y = (X @ [[1.0], [-2.0], [0.5], [3.0]]).astype("float32")


def program():
    x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
    hidden = layers.dropout(layers.batch_norm(layers.fc(x, size=8, act="tanh")), 0.2)
    return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1), y))


def linear():
    x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
    return layers.mean(layers.square_error_cost(layers.fc(x, size=1), y))


def data():
    return fluid.reader.arrays((X, Y), batch_size=16, shuffle=True, seed=2)


def arrays_of(trainer):
    return {n: np.array(v) for n, v in trainer.session.state().items()}


def assert_equal(found, wanted):
    assert found.keys() == wanted.keys()
    assert all(found[n].tobytes() == v.tobytes() and found[n].dtype == v.dtype for n, v in wanted.items())


def test_rate_finder_restores_all_state_bit_for_bit():
    ema = fluid.optimizer.ExponentialMovingAverage(0.9)
    trainers = [fluid.Trainer(program, ema.track(fluid.optimizer.Adam(0.1))) for _ in range(2)]
    readers = [data(), data()]
    for trainer, reader in zip(trainers, readers, strict=True):
        trainer.learning_rate = 0.02
        trainer.train(reader, 2)
    before = arrays_of(trainers[0])
    sweep = fluid.find_learning_rate(trainers[0], readers[0], steps=30)
    assert len(sweep.rates) > 10
    assert_equal(arrays_of(trainers[0]), before)
    # Further training is the same with and without the search for a learning rate.
    for trainer, reader in zip(trainers, readers, strict=True):
        trainer.train(reader, 1)
    assert_equal(arrays_of(trainers[0]), arrays_of(trainers[1]))
    assert len(trainers[0].session.compilations) == len(trainers[1].session.compilations) == 1


def test_all_state_is_restored_after_an_error():
    trainer = fluid.Trainer(linear, fluid.optimizer.SGD(0.1))
    before = arrays_of(trainer)
    broken = [[(x, y) for x, y in zip(X[:4], Y[:4], strict=True)], [(X[0],)]]
    with pytest.raises(errors.FeedError):
        fluid.find_learning_rate(trainer, broken)
    assert_equal(arrays_of(trainer), before)
    assert trainer.learning_rate == np.float32(0.1)


def test_losses_equal_gradient_descent_at_growing_rates():
    trainer = fluid.Trainer(linear, fluid.optimizer.SGD(0.1))
    weight, bias = np.asarray(trainer.params["fc_0.w_0"], "float64"), np.zeros(1)
    sweep = fluid.find_learning_rate(trainer, [(X, Y)], start=1e-3, end=1.0, steps=40)
    wanted = []
    for rate in sweep.rates:
        error = X @ weight + bias - Y
        wanted.append(np.mean(error**2))
        weight = weight - rate * 2 * X.T @ error / len(X)
        bias = bias - rate * 2 * error.mean(0)
    np.testing.assert_allclose(sweep.rates, np.geomspace(1e-3, 1.0, 40)[: len(sweep.rates)])
    np.testing.assert_allclose(sweep.losses, wanted, rtol=1e-4, atol=1e-9)
    # The suggested learning rate is the rate at which the loss falls fastest. It must be smaller than `limit`, because
    # gradient descent on this loss diverges at larger rates.
    limit = 2 / np.linalg.eigvalsh(2 * X.T @ X / len(X)).max()
    assert 1e-3 < sweep.suggestion < limit


def test_sweep_ends_early_when_the_loss_grows():
    sweep = fluid.find_learning_rate(linear, data(), fluid.optimizer.SGD(0.1), start=1e-4, end=1e6, steps=200)
    assert len(sweep.rates) == len(sweep.losses) < 200 and sweep.losses[-1] > sweep.losses.min()


def test_infinite_loss_ends_sweep_and_is_not_suggested():
    sweep = fluid.find_learning_rate(linear, data(), fluid.optimizer.SGD(0.1), start=1.0, end=1e30, steps=20)
    assert len(sweep.losses) < 20 and (sweep.suggestion is None or sweep.suggestion < 1e3)
    assert len(sweep.smoothed) == np.isfinite(sweep.losses).sum()


def test_the_suggestion_is_where_the_loss_falls_fastest():
    rates = np.geomspace(1e-6, 10.0, 201)
    for steepest in (1e-4, 1e-2):
        losses = 1 / (1 + rates / steepest) + (rates / steepest / 300) ** 2
        assert RateSweep(rates, losses).suggestion == pytest.approx(steepest, rel=0.15)
        noisy = losses + np.random.default_rng(0).normal(0, 0.01, size=201)
        assert RateSweep(rates, noisy).suggestion == pytest.approx(steepest, rel=1.0)


@pytest.mark.parametrize("losses", [np.linspace(1, 2, 30), np.ones(30), np.full(30, np.nan), np.ones(1)])
def test_loss_without_fall_suggests_no_rate(losses):
    assert RateSweep(np.geomspace(1e-3, 1, len(losses)), losses).suggestion is None


def test_rate_finder_plots_losses_on_log_scale(tmp_path):
    sweep = fluid.find_learning_rate(linear, data(), fluid.optimizer.SGD(0.1), steps=50)
    figure = sweep.plot(tmp_path / "rates.png")
    header = (tmp_path / "rates.png").read_bytes()[:24]
    assert header[:8] == b"\x89PNG\r\n\x1a\n" and min(struct.unpack(">II", header[16:])) > 100
    (axes,) = figure.axes
    assert axes.get_xscale() == "log" and len(axes.lines) == 3
    np.testing.assert_allclose(axes.lines[0].get_ydata(), sweep.losses[np.isfinite(sweep.losses)])
    assert len(RateSweep(np.ones(3), np.ones(3)).plot().axes[0].lines) == 2


def test_chosen_rate_of_several_is_swept_alone():
    def two():
        loss = linear()
        fluid.optimizer.SGD(0.4).minimize(loss, parameter_list=["fc_0.w_0"])
        fluid.optimizer.SGD(0.0).minimize(loss, parameter_list=["fc_0.b_0"])
        return loss

    trainer = fluid.Trainer(two)
    trainer.learning_rate = (None, 0.0)
    seen = []
    original = trainer.session.set_learning_rates
    trainer.session.set_learning_rates = lambda rates, of: (seen.append(rates), original(rates, of))
    fluid.find_learning_rate(trainer, data(), steps=3, start=1e-3, end=1e-1, which=1)
    assert [s[0] for s in seen] == [None] * 3 and [s[1] for s in seen] == pytest.approx([1e-3, 1e-2, 1e-1])
    assert trainer.learning_rate == (np.float32(0.4), 0.0)
    with pytest.raises(errors.ArgumentError, match="from 0 to 1"):
        fluid.find_learning_rate(trainer, data(), which=2)


@pytest.mark.parametrize(
    "arguments", [{"start": 0.0}, {"start": 1.0, "end": 0.1}, {"steps": 1}, {"diverged": 1.0}, {"end": float("inf")}]
)
def test_wrong_arguments_raise_argument_error(arguments):
    with pytest.raises(errors.ArgumentError, match="expected"):
        fluid.find_learning_rate(linear, data(), fluid.optimizer.SGD(0.1), **arguments)


def test_bare_optax_transformation_raises_with_the_class():
    with pytest.raises(errors.UnknownNameError, match="class Mine"):
        fluid.find_learning_rate(linear, data(), optax.sgd(0.1))


def test_sweep_does_not_change_padding_in_training():
    def words():
        ids = layers.data("ids", shape=[1], dtype="int64", lod_level=1)
        return layers.mean(layers.sequence_pool(layers.embedding(ids, [9, 2]), "sum"))

    rows = [[([1, 2],), ([3],)], [([1] * 30,), ([2, 2, 2],)]]
    trainers = [fluid.Trainer(words, fluid.optimizer.SGD(0.1)) for _ in range(2)]
    fluid.find_learning_rate(trainers[0], rows, steps=4)
    shapes = []
    for trainer in trainers:
        seen = []
        trainer.train(rows, event_handler=lambda e, s=seen: isinstance(e, fluid.BeginStepEvent) and s.append(e.feed))
        shapes.append([feed["ids"].shape for feed in seen])
    assert shapes[0] == shapes[1]
