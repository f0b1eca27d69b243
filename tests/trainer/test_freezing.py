"""Frozen parameters: globs in `parameter_list`, `trainer.freeze` and `unfreeze`, and `with fluid.frozen():`."""

import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fluid
from fluid import errors, optimizer

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 4)).astype("float32")
Y = RANDOM.normal(size=(24, 1)).astype("float32")
DATA = fluid.reader.arrays((X, Y), batch_size=4)
BODY = ["body/fc_0.w_0", "body/fc_0.b_0"]
HEAD = ["head/fc_0.w_0", "head/fc_0.b_0"]


def predicted():
    x = fluid.layers.data("x", shape=[4])
    with fluid.name_scope("body"):
        hidden = fluid.layers.fc(x, size=5, act="tanh")
    with fluid.name_scope("head"):
        return fluid.layers.fc(hidden, size=1)


def loss_of(guess):
    return fluid.layers.mean(fluid.layers.square(guess - fluid.layers.data("y", shape=[1])))


def net():
    return loss_of(predicted())


def minimising(rule, **options):
    """Return a program function that calls `rule.minimize` on the loss of `net`, with the arguments `options`."""

    def program():
        loss = net()
        rule.minimize(loss, **options)
        return loss

    return program


def arrays(trainer):
    return {name: np.array(value) for name, value in trainer.params.items()}


def train(trainer, num_epochs=1, **options):
    trainer.train(DATA, num_epochs, progress=False, **options)
    return arrays(trainer)


def assert_equal(got, expected, names):
    for name in names:
        np.testing.assert_array_equal(got[name], expected[name], err_msg=name)


def by_hand(x, y, parameters):
    """Return the loss of `net` for one minibatch, computed in plain JAX."""
    hidden = jnp.tanh(x @ parameters[BODY[0]] + parameters[BODY[1]])
    return jnp.mean(jnp.square(hidden @ parameters[HEAD[0]] + parameters[HEAD[1]] - y))


def steps_by_hand(rule, parameters, state, names, batches):
    """Train with optax, only the parameters `names` and their optimizer state; return all parameters and the state."""

    def only(tree):
        return jax.tree.map(
            lambda part: {n: part[n] for n in names} if isinstance(part, dict) else part,
            tree,
            is_leaf=lambda part: isinstance(part, dict),
        )

    for x, y in batches:
        mine = {n: parameters[n] for n in names}
        gradients = jax.grad(lambda chosen, x, y, rest: by_hand(x, y, {**rest, **chosen}))(mine, x, y, parameters)
        updates, part = rule.update(gradients, only(state), mine)
        parameters = {**parameters, **optax.apply_updates(mine, updates)}
        state = jax.tree.map(
            lambda old, new: {**old, **new} if isinstance(old, dict) else new,
            state,
            part,
            is_leaf=lambda leaf: isinstance(leaf, dict),
        )
    return parameters, state


BATCHES = [(X[i : i + 4], Y[i : i + 4]) for i in range(0, 24, 4)]


def test_freeze_and_unfreeze_keep_optimizer_state_like_optax():
    trainer = fluid.Trainer(net, optimizer.Adam(0.05))
    rule = optax.adam(0.05)
    expected = {n: jnp.asarray(v) for n, v in arrays(trainer).items()}
    state = rule.init(expected)
    for frozen, names in ((None, BODY + HEAD), ("body/*", HEAD), (None, BODY + HEAD), ("head/*", BODY)):
        trainer.unfreeze()
        if frozen is not None:
            assert trainer.freeze(frozen) == [n for n in trainer.session.scope.specs if n not in names]
        got = train(trainer)
        before = expected
        expected, state = steps_by_hand(rule, expected, state, names, BATCHES)
        for name in BODY + HEAD:
            np.testing.assert_allclose(got[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)
        for name in set(BODY + HEAD) - set(names):
            np.testing.assert_array_equal(expected[name], before[name])


RULES = {
    "sgd": optimizer.SGD(0.1),
    "momentum and decay": optimizer.Momentum(0.1, 0.9, regularization=fluid.regularizer.L2Decay(0.01)),
    "adam": optimizer.Adam(0.02),
    "adam with a schedule": optimizer.Adam(fluid.layers.exponential_decay(0.02, 3, 0.5)),
    "adamw of optax": optimizer.Optax(optax.adamw(0.02)),
    "rmsprop": optimizer.RMSProp(0.02),
    "lamb": optimizer.Lamb(0.02),
    "lars": optimizer.LarsMomentum(0.02, 0.9),
    "muon": optimizer.Muon(0.02),
    "ftrl": optimizer.Ftrl(0.02),
    "global norm": optimizer.Adam(0.02, grad_clip=fluid.clip.GradientClipByGlobalNorm(0.1)),
    "lookahead": optimizer.Lookahead(optimizer.Adam(0.02), k=2),
    "average": optimizer.ExponentialMovingAverage(0.9).track(optimizer.Adam(0.02)),
    "accumulation": optimizer.Adam(0.02, accumulate_steps=2),
}


@pytest.mark.sample(3)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("names", [HEAD, BODY], ids=["head", "body"])
def test_freezing_equals_an_optimizer_without_frozen_parameters(rule, names):
    frozen = [n for n in BODY + HEAD if n not in names]
    only = fluid.Trainer(minimising(rule, parameter_list=names))
    trainer = fluid.Trainer(minimising(rule))
    before = arrays(trainer)
    assert set(trainer.freeze(frozen)) == set(frozen)
    got = train(trainer)
    assert_equal(got, before, frozen)
    assert_equal(got, train(only), names)
    assert any((got[n] != before[n]).any() for n in names)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_unfrozen_parameters_train_with_every_optimizer(rule):
    trainer = fluid.Trainer(minimising(rule))
    trainer.freeze("body/*")
    first = train(trainer)
    trainer.unfreeze("body/*")
    for name, value in train(trainer).items():
        assert np.isfinite(value).all()
        # If the slow weights of Lookahead began at zero for an unfrozen parameter, they would pull it to zero.
        assert 0 < np.abs(value - first[name]).max() < 1, name


def test_averages_of_frozen_parameters_equal_the_parameters():
    average = optimizer.ExponentialMovingAverage(0.5)
    trainer = fluid.Trainer(net, average.track(optimizer.SGD(0.1)))
    trainer.freeze("body/*")
    got = train(trainer)
    for name in BODY:  # a frozen parameter does not change, so its average equals the parameter
        np.testing.assert_allclose(np.array(average.values(trainer)[name]), got[name], rtol=1e-6)


def test_optimizer_with_flattened_state_cannot_freeze():
    flat = optax.flatten(optax.adam(0.1))
    trainer = fluid.Trainer(net, flat)
    before = trainer.frozen
    with pytest.raises(errors.ArgumentError, match="belongs to all parameters together.*parameter_list"):
        trainer.freeze("body/*")
    assert trainer.frozen == before == []
    train(trainer)


def test_globs_in_parameter_list_select_parameters():
    (glob,) = fluid.Program(minimising(optimizer.SGD(0.1), parameter_list=["head/*"])).minimizes
    assert set(glob.parameters) == set(HEAD)
    (several,) = fluid.Program(minimising(optimizer.SGD(0.1), parameter_list=["head/*", "*.w_0"])).minimizes
    assert set(several.parameters) == {*HEAD, BODY[0]}
    (without,) = fluid.Program(minimising(optimizer.SGD(0.1), no_grad_set=["head/*"])).minimizes
    assert set(without.parameters) == set(BODY)
    (own,) = fluid.Program(minimising(optimizer.SGD(0.1, parameter_list=["body/*"]))).minimizes
    assert set(own.parameters) == set(BODY)
    for options in ({"parameter_list": ["haed/*"]}, {"no_grad_set": ["haed/*"]}):
        with pytest.raises(
            errors.UnknownNameError, match=r"minimize: 'haed/\*' matches no name. Did you mean 'head/\*'"
        ):
            fluid.Program(minimising(optimizer.SGD(0.1), **options))


def test_unmatched_pattern_raises_with_the_nearest_name():
    trainer = fluid.Trainer(net, optimizer.SGD(0.1))
    with pytest.raises(errors.UnknownNameError, match=r"freeze: 'bdy/\*' matches no name. Did you mean 'body/\*'"):
        trainer.freeze("bdy/*")
    with pytest.raises(errors.UnknownNameError, match=r"freeze: 'body/fc_0.w' is not the name .*'body/fc_0.w_0'"):
        trainer.freeze(["body/fc_0.w"])
    trainer.freeze("body/*")
    with pytest.raises(errors.UnknownNameError, match=r"unfreeze: 'head/\*' matches no name"):
        trainer.unfreeze("head/*")
    assert set(trainer.frozen) == set(BODY)


def test_freezing_all_parameters_is_an_error():
    trainer = fluid.Trainer(net, optimizer.SGD(0.1))
    with pytest.raises(errors.ArgumentError, match="nothing to train"):
        trainer.freeze("*")
    trainer.freeze("body/*")
    with pytest.raises(errors.ArgumentError, match="nothing to train"):
        trainer.freeze("head/*")
    assert set(trainer.frozen) == set(BODY)

    def whole():
        with fluid.frozen():
            return net()

    with pytest.raises(errors.ProgramError, match="no trainable parameter"):
        fluid.Trainer(whole, optimizer.SGD(0.1))


def test_freezing_compiles_once_per_set_of_names():
    trainer = fluid.Trainer(net, optimizer.SGD(0.1))
    train(trainer)
    counts = [len(trainer.session.compilations)]
    for act in (lambda: trainer.freeze("body/*"), lambda: None, trainer.unfreeze, lambda: trainer.freeze("body/*")):
        act()
        train(trainer)
        counts.append(len(trainer.session.compilations))
    assert counts == [1, 2, 2, 2, 2]
    assert trainer.session.compilations[1].reason == "other parameters are frozen: 2 names"


def test_handler_freezes_during_training():
    trainer = fluid.Trainer(net, optimizer.SGD(0.1))
    seen = []

    def at(event):
        if isinstance(event, fluid.EndStepEvent):
            seen.append(arrays(trainer))
            if event.step == 1:
                trainer.freeze("body/*")
            if event.step == 3:
                trainer.unfreeze()

    train(trainer, event_handler=at)
    moved = [(a[BODY[0]] != b[BODY[0]]).any() for a, b in itertools.pairwise(seen)]
    assert moved == [True, False, False, True, True]


# Tests of frozen batch normalisation.
def normalised():
    x = fluid.layers.data("x", shape=[4])
    with fluid.name_scope("body"):
        hidden = fluid.layers.batch_norm(fluid.layers.fc(x, size=5, bias_attr=False))
    with fluid.name_scope("head"):
        return loss_of(fluid.layers.fc(hidden, size=1))


def frozen_in_the_program():
    x = fluid.layers.data("x", shape=[4])
    with fluid.frozen(), fluid.name_scope("body"):
        hidden = fluid.layers.batch_norm(fluid.layers.fc(x, size=5, bias_attr=False))
    with fluid.name_scope("head"):
        return loss_of(fluid.layers.fc(hidden, size=1))


STATISTICS = ["body/batch_norm_0.w_1", "body/batch_norm_0.w_2"]


def with_moments(seed=0):
    """Return random parameters of `normalised`, whose moving statistics match no minibatch."""
    random = np.random.default_rng(seed)
    shapes = {n: s.shape for n, s in fluid.Session(normalised).scope.specs.items()}
    return {n: random.uniform(0.5, 1.5, size=shape).astype("float32") for n, shape in shapes.items()}


def by_numpy(p, x, y):
    """Compute the loss of a net whose batch norm uses moving averages; return it, and the last weight's gradient."""
    z = x @ p["body/fc_0.w_0"]
    z = (z - p[STATISTICS[0]]) / np.sqrt(p[STATISTICS[1]] + 1e-5) * p["body/batch_norm_0.w_0"] + p[
        "body/batch_norm_0.b_0"
    ]
    error = z @ p[HEAD[0]] + p[HEAD[1]] - y
    return np.mean(error**2), 2 * z.T @ error / len(x)


@pytest.mark.parametrize(
    ("program", "freeze"),
    [
        (normalised, "body/*"),
        (normalised, ["body/fc_0.w_0", "body/batch_norm_0.w_0", "body/batch_norm_0.b_0"]),
        (normalised, [*STATISTICS, "body/fc_0.*"]),
        (frozen_in_the_program, None),
    ],
    ids=["scope", "parameters", "statistics", "frozen()"],
)
def test_frozen_moving_statistics_are_constant_and_normalise(program, freeze):
    trainer = fluid.Trainer(program, optimizer.SGD(0.1), params=with_moments())
    if freeze is not None:
        trainer.freeze(freeze)
    before = arrays(trainer)
    losses = []
    one = fluid.reader.arrays((X[:8], Y[:8]), batch_size=8)
    trainer.train(one, 1, lambda e: losses.append(float(e.metrics[0])) if isinstance(e, fluid.EndStepEvent) else None)
    loss, gradient = by_numpy(before, X[:8], Y[:8])
    assert losses == pytest.approx([loss], rel=1e-5)
    after = arrays(trainer)
    np.testing.assert_allclose(after[HEAD[0]], before[HEAD[0]] - 0.1 * gradient, rtol=1e-4, atol=1e-5)
    assert_equal(after, before, [*STATISTICS, "body/fc_0.w_0"])
    if freeze != [*STATISTICS, "body/fc_0.*"]:
        assert_equal(after, before, ["body/batch_norm_0.w_0", "body/batch_norm_0.b_0"])


def test_moving_statistics_move_again_when_unfrozen():
    trainer = fluid.Trainer(normalised, optimizer.SGD(0.01))
    plain = fluid.Trainer(normalised, optimizer.SGD(0.01))
    trainer.freeze("body/*")
    assert set(trainer.unfreeze("body/*")) >= set(STATISTICS)
    assert_equal(train(trainer), train(plain), plain.params)
    trainer.freeze("body/*.w_0")
    before = arrays(trainer)
    after = train(trainer)
    # The statistics still change, because the bias of batch norm is not frozen.
    assert (after[STATISTICS[0]] != before[STATISTICS[0]]).any()
    trainer.freeze("body/*.b_0")
    with pytest.raises(errors.ArgumentError, match=r"trainer.unfreeze\('body/batch_norm_0.\*'\)"):
        trainer.unfreeze(STATISTICS)


def test_parameters_under_fluid_frozen_are_not_trained():
    (minimize,) = fluid.Trainer(frozen_in_the_program, optimizer.SGD(0.1)).program.minimizes
    assert set(minimize.parameters) == set(HEAD)
    assert not fluid.Program(frozen_in_the_program).parameters["body/fc_0.w_0"].trainable


def test_partly_frozen_shared_parameter_trains_by_unfrozen_use():
    shared = fluid.ParamAttr(name="shared")

    def program():
        x = fluid.layers.data("x", shape=[4])
        with fluid.frozen():
            constant = fluid.layers.fc(x, size=1, param_attr=shared, bias_attr=False)
        return fluid.layers.mean(constant * fluid.layers.fc(x, size=1, param_attr=shared, bias_attr=False))

    trainer = fluid.Trainer(program, optimizer.SGD(0.1))
    before = arrays(trainer)["shared"]
    trainer.train(fluid.reader.arrays((X[:4],), batch_size=4), 1, progress=False)
    # One of the two equal factors is frozen, so the gradient is half the gradient of a squared output.
    expected = before - 0.1 * X[:4].T @ (X[:4] @ before) / 4
    np.testing.assert_allclose(arrays(trainer)["shared"], expected, rtol=1e-5)


def test_frozen_sparse_tables_are_not_updated():
    def program():
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        first = fluid.layers.embedding(ids, size=[7, 3], is_sparse=True, param_attr="first")
        other = fluid.layers.embedding(ids, size=[7, 3], is_sparse=True, param_attr="other")
        with fluid.frozen():
            again = fluid.layers.embedding(ids, size=[7, 3], is_sparse=True, param_attr="other")
        return fluid.layers.mean(fluid.layers.square(first + other * again))

    trainer = fluid.Trainer(program, optimizer.Adagrad(0.1))
    before = arrays(trainer)
    trainer.freeze("first")
    trainer.train(fluid.reader.arrays((np.arange(4)[:, None],), batch_size=2), 2, progress=False)
    after = arrays(trainer)
    np.testing.assert_array_equal(after["first"], before["first"])
    assert (after["other"][:4] != before["other"][:4]).any(axis=1).all()
    np.testing.assert_array_equal(after["other"][4:], before["other"][4:])


def test_custom_step_keeps_frozen_parameters():
    def step(here):
        found = here.losses_and_gradients()
        parameters, slots = here.update(found.gradients)
        return parameters, slots, found

    own = fluid.Trainer(net, optimizer.Adam(0.02), step=step)
    plain = fluid.Trainer(net, optimizer.Adam(0.02))
    for trainer in (own, plain):
        trainer.freeze("body/*")
    before = arrays(own)
    got = train(own)
    assert_equal(got, before, BODY)
    for name, value in train(plain).items():
        np.testing.assert_allclose(got[name], value, rtol=1e-6)


def test_float16_training_keeps_frozen_parameters():
    trainer = fluid.Trainer(net, optimizer.Adam(0.02), precision="float16")
    trainer.freeze("body/*")
    before = arrays(trainer)
    got = train(trainer)
    assert_equal(got, before, BODY)
    assert all((got[n] != before[n]).any() for n in HEAD)


def test_layers_that_are_repeated_are_frozen_by_name():
    def program():
        x = fluid.layers.data("x", shape=[4])
        deep = fluid.layers.repeat(lambda h: fluid.layers.batch_norm(fluid.layers.fc(h, size=4)), 3, x, name="deep")
        return loss_of(fluid.layers.fc(deep, size=1, name="out"))

    trainer = fluid.Trainer(program, optimizer.SGD(0.1))
    trainer.freeze("deep/*")
    before = arrays(trainer)
    after = train(trainer)
    deep = [n for n in before if n.startswith("deep/")]
    assert len(deep) == 6
    assert_equal(after, before, deep)
    assert (after["out.w_0"] != before["out.w_0"]).any()


def test_a_frozen_module_runs_as_in_test_mode():
    import flax.linen as nn

    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, train):
            return nn.BatchNorm(use_running_average=not train)(nn.Dense(5)(x))

    def program():
        x = fluid.layers.data("x", shape=[4])
        return loss_of(
            fluid.layers.fc(fluid.layers.module(Body(), x, name="body", param_attr=True), size=1, name="out")
        )

    trainer = fluid.Trainer(program, optimizer.SGD(0.1))
    trainer.freeze("body/*")
    before = arrays(trainer)
    (tested,) = trainer.test(fluid.reader.arrays((X, Y), batch_size=24))
    losses = []
    one = fluid.reader.arrays((X, Y), batch_size=24)
    trainer.train(one, 1, lambda e: losses.append(float(e.metrics[0])) if isinstance(e, fluid.EndStepEvent) else None)
    assert losses == pytest.approx([float(tested)], rel=1e-6)
    body = [n for n in before if n.startswith("body/")]
    assert len(body) == 6
    assert_equal(arrays(trainer), before, body)


def test_frozen_custom_state_is_constant_and_reports_frozen():
    told = []

    def program():
        with fluid.name_scope("own"):
            count = fluid.layers.create_state([1])
            told.append(count.frozen)
            count.update(count.value + 1)
        return net()

    trainer = fluid.Trainer(program, optimizer.SGD(0.1))
    train(trainer)
    assert train(trainer)["own/create_state_0.w_0"] == [12]
    assert told[-1] is False
    trainer.freeze("own/*")
    assert train(trainer)["own/create_state_0.w_0"] == [12]
    assert told[-1] is True


# Tests of checkpoints with frozen parameters.
class Schedule(fluid.Handler):
    """A handler that unfreezes all frozen parameters after the first epoch, and stops training after `stop` steps."""

    def __init__(self, stop=None):
        self.stop = stop
        self.steps = 0

    def end_epoch(self, event):
        if event.epoch == 0:
            self.trainer.unfreeze()

    def end_step(self, event):
        self.steps += 1
        if self.steps == self.stop:
            self.trainer.stop()


def run(folder, stop=None):
    """Train like a script that a user reruns.

    The parameters `body/*` are frozen at first. The handler `Schedule` unfreezes them after the first epoch.
    """
    config = fluid.CheckpointConfig(folder, step_interval=2)
    trainer = fluid.Trainer(normalised, optimizer.Adam(0.02), checkpoint_config=config)
    trainer.freeze("body/*")
    train(trainer, 3, handlers=[Schedule(stop)])
    return trainer


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return the parameters after an uninterrupted training by `run`."""
    return arrays(run(tmp_path_factory.mktemp("whole")))


@pytest.mark.sample(2)
@pytest.mark.parametrize("stop", [2, 4, 6, 7, 9, 15])
def test_checkpoints_record_frozen_names_and_resume_exactly(tmp_path, stop, caplog, undisturbed):
    run(tmp_path, stop)
    with caplog.at_level(logging.WARNING, "fluid"):
        trainer = run(tmp_path)
    assert_equal(arrays(trainer), undisturbed, undisturbed)
    assert not trainer.frozen
    assert ("what was frozen when the checkpoint was written: nothing" in caplog.text) == (stop >= 6)


def test_restoring_a_checkpoint_restores_its_frozen_names(tmp_path):
    config = fluid.CheckpointConfig(tmp_path, step_interval=2, max_num_checkpoints=None)
    trainer = fluid.Trainer(normalised, optimizer.Adam(0.02), checkpoint_config=config)
    trainer.freeze("body/*")
    train(trainer, 2, handlers=[Schedule()])
    trainer.restore(4)
    assert {"body/fc_0.w_0", *STATISTICS} <= set(trainer.frozen)
    trainer.restore(8)
    assert trainer.frozen == []


def test_session_saves_and_loads_frozen_names(tmp_path):
    first = fluid.Trainer(normalised, optimizer.Adam(0.02))
    first.freeze("body/*")
    first.session.save(tmp_path / "session")
    other = fluid.Trainer(normalised, optimizer.Adam(0.02))
    other.session.load(tmp_path / "session")
    assert other.frozen == first.frozen
    first.unfreeze()
    first.session.save(tmp_path / "session")
    assert "@frozen" not in fluid.io.load_arrays(tmp_path / "session")[0]
    other.session.load(tmp_path / "session")
    assert other.frozen == []


def test_first_of_two_minimizes_may_be_fully_frozen():
    def program():
        loss = net()
        optimizer.Adam(0.1).minimize(loss, parameter_list=["body/*"])
        optimizer.Adam(0.1).minimize(loss, parameter_list=["head/*"])
        return loss

    session = fluid.Session(program)
    feed = {"x": X[:4], "y": Y[:4]}
    session.freeze("body/*")
    before = {n: np.array(v) for n, v in session.params().items()}
    norms = session.run(feed=feed, fetch=["grad_norm_0", "grad_norm_1", "update_ratio_0"])
    after = {n: np.array(v) for n, v in session.params().items()}
    assert [float(v) for v in norms][0::2] == [0.0, 0.0]
    assert float(norms[1]) > 0
    assert_equal(after, before, BODY)
    assert all((after[n] != before[n]).any() for n in HEAD)
    with pytest.raises(errors.ArgumentError, match="nothing to train"):
        session.freeze("head/*")


def test_frozen_outside_a_program_raises_outside_program_error():
    with pytest.raises(errors.OutsideProgramError, match=r"fluid.frozen was called outside"), fluid.frozen():
        pass


def test_nan_report_replays_the_step_with_frozen_layers():
    def program():
        with fluid.name_scope("body"):
            hidden = fluid.layers.batch_norm(fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=5))
        return loss_of(fluid.layers.fc(fluid.layers.log(hidden, name="logarithm"), size=1, name="out"))

    trainer = fluid.Trainer(program, optimizer.SGD(0.1))
    trainer.freeze("body/*")
    with pytest.raises(FloatingPointError, match="logarithm"):
        train(trainer, handlers=[fluid.handlers.TerminateOnNaN(report=True)])
