"""Values that handlers fetch from a training step: any value of the program, gradient norms and update ratios."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from handlers.line_fitting import X, Y, make, reader, table, train_program

import fluid
from fluid import errors
from fluid import handlers as H
from fluid.runtime.compiled_step import bind


class Fetching(fluid.Handler):
    """A handler that records the fetched values of each step."""

    def __init__(self, *names):
        self.names, self.seen, self.kept = names, [], []

    def fetches(self):
        return self.names

    def end_step(self, event):
        self.seen.append({name: np.array(event.fetched[name]) for name in event.fetched.names})
        self.kept.append(event)


def norms_by_hand(optimizer, steps):
    """Compute, in float64, the gradient norm and update ratio of each training step of a linear model."""
    params = {"w": np.asarray(make().params["fc_0.w_0"], "float64"), "b": np.zeros(1)}
    state = optimizer.init(params)
    found = []
    for step in range(steps):
        x, y = (v[16 * (step % 3) :][:16].astype("float64") for v in (X, Y))
        error = 2 * (x @ params["w"] + params["b"] - y) / len(x)
        gradients = {"w": x.T @ error, "b": error.sum(0)}
        updates, state = optimizer.update(gradients, state, params)
        after = optax.apply_updates(params, updates)
        size = lambda tree: np.sqrt(sum(np.sum(np.square(v)) for v in jax.tree.leaves(tree)))  # noqa: E731
        moved = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), after, params)
        found.append((size(gradients), size(moved) / size(params)))
        params = after
    return found


def test_gradient_norms_are_logged_within_the_training_step(tmp_path):
    trainer = make(fluid.optimizer.Momentum(0.1, 0.9))
    path = tmp_path / "log.csv"
    trainer.train(reader(), 2, handlers=[H.CSVLogger(path, every=1), H.GradientMonitor()])
    found = [(float(row["grad_norm_0"]), float(row["update_ratio_0"])) for row in table(path)]
    np.testing.assert_allclose(found, norms_by_hand(optax.sgd(0.1, 0.9), 6), rtol=1e-4)
    assert [c.mode for c in trainer.session.compilations] == ["train"]


def test_session_fetches_norms_from_a_training_step():
    session = make().session
    names = ["grad_norm_0", "update_ratio_0", "learning_rate_0", "fc_0.w_0@GRAD", "fc_0.b_0@GRAD", "loss"]
    norm, _, rate, *gradients, _ = session.run(feed={"x": X[:16], "y": Y[:16]}, fetch=names, mode="train")
    assert float(rate) == np.float32(0.1)
    np.testing.assert_allclose(norm, np.sqrt(sum(float(jnp.sum(g**2)) for g in gradients)), rtol=1e-6)
    assert len(session.compilations) == 1


@pytest.mark.parametrize("mode", ["train", "test"])
def test_unavailable_norm_raises_unknown_name(mode):
    session = make().session
    name = "grad_norm_1" if mode == "train" else "grad_norm_0"
    with pytest.raises(errors.UnknownNameError, match=name if mode == "train" else f"'{name}' .* mode=\"train\""):
        session.run(feed={"x": X, "y": Y}, fetch=[name], mode=mode)


def test_norm_precedes_clipping_and_ratio_follows_clipping():
    clip = fluid.clip.GradientClipByGlobalNorm(1e-3)
    fetching = Fetching("grad_norm_0", "update_ratio_0")
    make(fluid.optimizer.SGD(0.1, grad_clip=clip)).train(reader(48), handlers=[fetching])
    start = {n: np.asarray(v) for n, v in make().params.items()}
    size = np.sqrt(sum(np.sum(v**2) for v in start.values()))
    assert fetching.seen[0]["grad_norm_0"] > 1
    np.testing.assert_allclose(fetching.seen[0]["update_ratio_0"], 1e-4 / size, rtol=1e-3)


def test_each_minimize_has_norms_counting_rows_once():
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        rows = fluid.layers.embedding(ids, size=[5, 2], is_sparse=True, param_attr="table")
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.fc(rows, size=1, param_attr="w")))
        fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["table"])
        fluid.optimizer.SGD(0.2).minimize(loss, parameter_list=["w"])
        return loss

    sparse = fluid.Session(program)
    feed = {"ids": [[3], [1], [3]]}
    names = ["grad_norm_0", "grad_norm_1", "update_ratio_0", "table@GRAD", "w@GRAD"]
    before = np.asarray(sparse.scope["table"])
    gradient = np.asarray(sparse.run(feed=feed, fetch=["table@GRAD"], mode="test")[0])
    first, second, ratio, _, other = sparse.run(feed=feed, fetch=names)
    after = np.asarray(sparse.scope["table"])
    np.testing.assert_allclose(first, np.linalg.norm(gradient), rtol=1e-5)
    np.testing.assert_allclose(second, np.linalg.norm(other), rtol=1e-5)
    np.testing.assert_allclose(ratio, np.linalg.norm(after - before) / np.linalg.norm(before), rtol=1e-4)


def test_handlers_fetch_step_values_on_the_device():
    fetching, again = Fetching("fc_0.tmp_0", "fc_0.w_0@GRAD"), Fetching("fc_0.w_0@GRAD", "learning_rate_0")
    plain = Fetching()
    trainer = make()
    trainer.train(reader(), handlers=[fetching, again, plain])
    names = ("fc_0.tmp_0", "fc_0.w_0@GRAD", "learning_rate_0")
    assert all(tuple(event.fetched.names) == names for event in plain.kept)
    assert all(isinstance(value, jax.Array) for event in plain.kept for value in event.fetched)
    assert fetching.seen[0]["fc_0.tmp_0"].shape == (16, 1)
    other = make()
    want = other.session.run(feed={"x": X[:16], "y": Y[:16]}, fetch=["fc_0.w_0@GRAD"])[0]
    np.testing.assert_allclose(fetching.seen[0]["fc_0.w_0@GRAD"], want, rtol=1e-6)


def test_handler_without_fetches_compiles_nothing_more():
    plain = Fetching()
    trainer = make()
    trainer.train(reader(), handlers=[plain])
    assert all(len(event.fetched) == 0 for event in plain.kept)
    program = trainer.program
    request = fluid.runtime.Request("train", None, tuple(program.feeds))
    assert bind(trainer.session.engine, program, request).compiled == 1, "the step is the same as without handlers"


def test_fetching_changes_nothing_that_is_trained():
    trainers = [make(fluid.optimizer.Adam(0.1)) for _ in range(2)]
    for trainer, handlers in zip(trainers, ([], [H.GradientMonitor(every=2)]), strict=True):
        trainer.train(reader(), 2, handlers=handlers)
    for name, value in trainers[0].params.items():
        np.testing.assert_allclose(trainers[1].params[name], value, rtol=1e-6)


def test_unknown_fetch_raises_before_the_first_step():
    trainer = make()
    with pytest.raises(errors.UnknownNameError, match="Did you mean 'grad_norm_0'"):
        trainer.train(reader(), handlers=[Fetching("grad_norm")])
    assert int(trainer.session.scope.step) == 0


def test_every_sets_the_logging_interval(tmp_path):
    path = tmp_path / "log.csv"
    make().train(reader(), 2, handlers=[H.CSVLogger(path, every=1), H.GradientMonitor(every=4)])
    assert [bool(row["grad_norm_0"]) for row in table(path)] == [False, False, False, True, False, False]


def test_a_bare_optax_transformation_has_norms_too():
    fetching = Fetching("grad_norm_0", "update_ratio_0")
    fluid.Trainer(train_program, optax.sgd(0.1)).train(reader(), handlers=[H.GradientMonitor(), fetching])
    np.testing.assert_allclose(
        [(s["grad_norm_0"], s["update_ratio_0"]) for s in fetching.seen], norms_by_hand(optax.sgd(0.1), 3), rtol=1e-4
    )
