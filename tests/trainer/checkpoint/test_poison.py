"""A row of huge finite numbers makes parameters NaN: no training loses a finite checkpoint, or trains a row twice."""

import re

import numpy as np
import pytest
from resumed_programs import X, Y, assert_equal, program, small, state

import fluid
from fluid import errors
from fluid.checkpoint.folder import Folder


def averaged():
    loss = small()["loss"]
    fluid.optimizer.Momentum(0.05, momentum=0.9).minimize(loss)
    fluid.optimizer.ExponentialMovingAverage(0.9).update()
    return {"loss": loss}


def minimized(optimizer, loss):
    optimizer.minimize(loss)
    return loss


def guess():
    x, y = fluid.layers.data("x", shape=[4]), fluid.layers.data("y", shape=[1])
    hidden = fluid.layers.fc(x, size=3, name="shared")
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=1, name="guess"), y))
    return minimized(fluid.optimizer.SGD(0.01), loss)


def other():
    x = fluid.layers.data("x", shape=[4])
    hidden = fluid.layers.fc(x, size=3, name="shared")
    loss = fluid.layers.mean(fluid.layers.square_error_cost(fluid.layers.fc(hidden, size=4, name="back"), x))
    return minimized(fluid.optimizer.Adam(0.01), loss)


# For each kind of training, a function that makes the Trainer from its other options.
PLAIN = {
    "population": lambda **o: fluid.Population(
        small, fluid.optimizer.Adam(), seeds=[0, 1], vary={"learning_rate": [0.1, 0.01]}, **o
    ),
    "plain": lambda **o: fluid.Trainer(program, fluid.optimizer.Adam(0.1), **o),
    "several": lambda **o: fluid.Trainer([guess, other], **o),
    "averages": lambda **o: fluid.Trainer(averaged, None, **o),
}
ONLINE = {"online": (small, fluid.optimizer.Adam(0.1)), "online averages": (averaged, None)}
KINDS = ["online averages", "population", "several", "plain", "averages", "online"]


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.full) if s > 2 else s for s in range(30)])
@pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")
def test_row_04_poison_loses_no_checkpoint_and_no_row(seed, tmp_path):
    random, kind = np.random.default_rng(seed), KINDS[seed % len(KINDS)]
    poisoned = {"x": X.copy(), "y": Y.copy()}
    for row in random.choice(len(X), size=random.integers(1, 3), replace=False):
        poisoned["x"][row], poisoned["y"][row] = 3e38, -3e38
    (online if kind in ONLINE else plain)(kind, poisoned, random, tmp_path)


def plain(kind, poisoned, random, tmp_path):
    """Train on poisoned rows twice; then continue with the corrected rows, as if there had been no poison."""
    config = fluid.CheckpointConfig(tmp_path / "kept", step_interval=int(random.integers(1, 4)), max_num_checkpoints=2)
    batch, shuffled = int(random.integers(2, 9)), int(random.integers(100))

    def reader(columns):
        return fluid.reader.arrays(columns, batch_size=batch, shuffle=True, seed=shuffled)

    trainer = PLAIN[kind](checkpoint_config=config)
    with pytest.raises(errors.CheckpointError, match="was refused"):
        trainer.train(reader(poisoned), num_epochs=2, progress=False)
    saved = finite_steps(tmp_path / "kept")
    for _ in range(2):
        with pytest.raises(errors.CheckpointError, match="was refused"):
            trainer.train(reader(poisoned), num_epochs=3, progress=False)
        assert finite_steps(tmp_path / "kept") == saved
    good = {"x": X, "y": Y}
    steps = []
    resumed, whole = PLAIN[kind](checkpoint_config=config), PLAIN[kind]()
    for one, into in ((resumed, steps), (whole, [])):
        one.train(reader(good), num_epochs=2, progress=False, event_handler=recorder(into))
    assert len(steps) == int(whole.session.scope.step) - max(saved, default=0)
    assert_equal(state(resumed), state(whole))


def recorder(steps):
    return lambda event: steps.append(event.step) if type(event) is fluid.EndStepEvent else None


def online(kind, poisoned, random, tmp_path):
    """Skip the poisoned rows that each failed minibatch names; then a stream without these rows gives equal arrays."""
    function, optimizer = ONLINE[kind]
    options = {"batch_size": int(random.integers(4, 9)), "test_every": int(random.integers(2, 6)), "seed": 3}
    options |= {"checkpoint_every": int(random.integers(1, 4))}
    publishing = {"publish_to": tmp_path / "models", "publish_every": 3, "export": {"platforms": ["cpu"]}}
    skipped, first = [], 0
    with fluid.OnlineTrainer(function, optimizer, tmp_path / "kept", **options, **publishing) as mine:
        while first < len(X):
            end = first + int(random.integers(1, 20))
            mine.send({name: column[first:end] for name, column in poisoned.items()})
            first = end
        while (status := settled(mine))["state"] == "failed":
            low, high = map(int, re.search(r"the rows (\d+) to (\d+) of the journal", status["error"]).groups())
            bad = [row for row in range(low, high + 1) if abs(poisoned["y"][row]) > 1e38]
            assert set(bad) - set(skipped) and status["saved"] == max(finite_steps(tmp_path / "kept"), default=None)
            skipped += bad
            mine.skip(bad)
            mine.start()
        assert status["accepted"] == len(X) and status["skipped"] == len(set(skipped))
    with fluid.OnlineTrainer(function, optimizer, tmp_path / "whole", **options) as whole:
        whole.send({name: np.delete(column, skipped, axis=0) for name, column in poisoned.items()})
        assert settled(whole)["steps"] == status["steps"]
    folders = [Folder(tmp_path / name / "checkpoints", read_only=True) for name in ("kept", "whole")]
    assert_equal(*(folder.arrays(status["steps"]) for folder in folders))
    assert finite_steps(tmp_path / "kept")[-1] == status["steps"]
    for version in (tmp_path / "models").glob("*"):
        (answer, *_) = fluid.Inferencer(param_path=version / "model.fluid").infer({"x": X[:2]})
        assert np.isfinite(answer).all()


def settled(online):
    """Wait until an OnlineTrainer has trained on all whole minibatches, or has failed; return its status."""
    while True:
        try:
            if (status := online.save())["state"] != "training":
                return status
        except errors.OnlineError:
            online._control._thread.join()
            return online.status()


def finite_steps(path):
    """Return the steps of all checkpoints, whose arrays are all finite."""
    folder = Folder(path / "checkpoints" if (path / "checkpoints").exists() else path, read_only=True)
    for step in folder.steps():
        for name, array in folder.arrays(step).items():
            assert array.dtype.kind != "f" or np.isfinite(array).all(), (step, name)
    return folder.steps()
