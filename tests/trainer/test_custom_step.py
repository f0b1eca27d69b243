"""Custom steps: SAM, gradient penalty, gradient noise and alternating updates equal loops in plain JAX and optax."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import resumed_programs

import fluid
from fluid import errors, layers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 4)).astype("float32")
Y = np.sin(X @ [[1.0], [-2.0], [0.5], [3.0]]).astype("float32")
RADIUS = 0.05
PENALTY = 0.3


def program():
    x, y = layers.data("x", shape=[4]), layers.data("y", shape=[1])
    hidden = layers.fc(x, size=5, act="tanh", param_attr="w1", bias_attr="b1")
    return layers.mean(layers.square_error_cost(layers.fc(hidden, size=1, param_attr="w2", bias_attr="b2"), y))


def loss_by_hand(parameters, x, y):
    hidden = jnp.tanh(x @ parameters["w1"] + parameters["b1"])
    return jnp.mean(jnp.square(hidden @ parameters["w2"] + parameters["b2"] - y))


def data():
    return fluid.reader.arrays((X, Y), batch_size=8)


def batches(epochs):
    for _ in range(epochs):
        for low in range(0, len(X), 8):
            yield X[low : low + 8], Y[low : low + 8]


def sharpness_aware(step):
    here = step.losses_and_gradients()
    length = optax.tree.norm(here.gradients)
    uphill = {n: p + RADIUS * here.gradients[n] / length for n, p in step.parameters.items()}
    there = step.losses_and_gradients(uphill)
    parameters, slots = step.update(there.gradients)
    return parameters, slots, here


def penalized(step):
    def loss(parameters):
        def of_inputs(x):
            return step.evaluate(parameters, {"x": x}).losses[0]

        slope = jax.grad(of_inputs)(step.feeds["x"])
        here = step.evaluate(parameters)
        return here.losses[0] + PENALTY * jnp.sum(jnp.square(slope)), here

    gradients, here = jax.grad(loss, has_aux=True)(step.parameters)
    parameters, slots = step.update(gradients)
    return parameters, slots, here


def noisy(step):
    here = step.losses_and_gradients()
    scale = 0.01 / jnp.sqrt(1.0 + step.number)
    keys = dict(zip(sorted(here.gradients), jax.random.split(step.key, len(here.gradients)), strict=True))
    noise = {n: scale * jax.random.normal(keys[n], g.shape) for n, g in here.gradients.items()}
    parameters, slots = step.update({n: g + noise[n] for n, g in here.gradients.items()})
    return parameters, slots, here


def by_hand(start, transformation, gradients, epochs=3, seed=0):
    """Train with optax, with gradients that the function `gradients` computes; return losses and final parameters."""
    parameters, state = dict(start), transformation.init(dict(start))
    losses = []

    @jax.jit
    def step(parameters, state, x, y, key, number):
        updates, state = transformation.update(gradients(parameters, x, y, key, number), state, parameters)
        return optax.apply_updates(parameters, updates), state, loss_by_hand(parameters, x, y)

    for number, (x, y) in enumerate(batches(epochs)):
        key = jax.random.fold_in(jax.random.key(seed), number)
        parameters, state, loss = step(parameters, state, x, y, key, number)
        losses.append(float(loss))
    return losses, parameters


def sharpness_aware_by_hand(parameters, x, y, key, number):
    here = jax.grad(loss_by_hand)(parameters, x, y)
    length = optax.tree.norm(here)
    uphill = jax.tree.map(lambda p, g: p + RADIUS * g / length, parameters, here)
    return jax.grad(loss_by_hand)(uphill, x, y)


def penalized_by_hand(parameters, x, y, key, number):
    def loss(parameters):
        slope = jax.grad(loss_by_hand, argnums=1)(parameters, x, y)
        return loss_by_hand(parameters, x, y) + PENALTY * jnp.sum(jnp.square(slope))

    return jax.grad(loss)(parameters)


def noisy_by_hand(parameters, x, y, key, number):
    here = jax.grad(loss_by_hand)(parameters, x, y)
    keys = dict(zip(sorted(here), jax.random.split(key, len(here)), strict=True))
    return {n: g + 0.01 / jnp.sqrt(1.0 + number) * jax.random.normal(keys[n], g.shape) for n, g in here.items()}


STEPS = {
    "SAM": (sharpness_aware, sharpness_aware_by_hand),
    "gradient penalty": (penalized, penalized_by_hand),
    "gradient noise": (noisy, noisy_by_hand),
}


class Recording(fluid.Handler):
    def __init__(self):
        self.order, self.losses = [], []

    def begin_epoch(self, event):
        self.order.append("epoch")

    def end_step(self, event):
        self.order.append("step")
        self.losses.append(float(event.metrics[0]))

    def end_epoch(self, event):
        self.order.append("end")


@pytest.mark.parametrize("name", STEPS)
def test_custom_step_matches_optax_and_keeps_event_order(name):
    step, gradients = STEPS[name]
    trainer = fluid.Trainer(program, fluid.optimizer.Momentum(0.05, 0.9), step=step)
    start = trainer.params
    recording = Recording()
    trainer.train(data(), 3, handlers=[recording])
    losses, parameters = by_hand(start, optax.sgd(0.05, 0.9), gradients)
    np.testing.assert_allclose(recording.losses, losses, rtol=1e-5)
    for parameter, value in trainer.params.items():
        np.testing.assert_allclose(value, parameters[parameter], rtol=1e-6, atol=1e-6)
    assert recording.order == ["epoch", "step", "step", "step", "end"] * 3
    assert len(trainer.session.compilations) == 1 and int(trainer.session.scope.step) == 9


def plain(step):
    here = step.losses_and_gradients()
    parameters, slots = step.update(here.gradients)
    return parameters, slots, here


def test_plain_custom_step_equals_the_default_step():
    function = resumed_programs.program  # a program with dropout and batch norm
    trainers = [fluid.Trainer(function, fluid.optimizer.Adam(0.1), seed=3, step=step) for step in (None, plain)]
    for trainer in trainers:
        trainer.train(resumed_programs.arrays(), 2)
    first, second = (trainer.session.state() for trainer in trainers)
    assert first.keys() == second.keys()
    for name, value in first.items():
        np.testing.assert_allclose(second[name], value, rtol=2e-6, atol=1e-7, err_msg=name)


def grouped():
    loss = program()
    fluid.optimizer.Adam(0.05).minimize(loss, parameter_list=["w1", "b1"])
    fluid.optimizer.SGD(0.1).minimize(loss, parameter_list=["w2", "b2"])
    return loss


def alternating(step):
    """Train the first group of parameters in two of every three steps, and the second group in the third step."""
    here = step.evaluate()

    def phase(which):
        return lambda: step.update(step.losses_and_gradients(which=which).gradients, which=which)

    parameters, slots = jax.lax.cond(step.number % 3 < 2, phase(0), phase(1))
    return parameters, slots, here


def test_alternating_step_trains_parameter_groups_in_turn():
    trainer = fluid.Trainer(grouped, step=alternating)
    groups = [("w1", "b1"), ("w2", "b2")]
    rules = [fluid.optimizer.Adam(0.05).transformation(dict.fromkeys(groups[0])), optax.sgd(0.1)]
    parameters = trainer.params
    states = [rule.init({n: parameters[n] for n in group}) for rule, group in zip(rules, groups, strict=True)]
    for number, (x, y) in enumerate(batches(2)):
        which = 0 if number % 3 < 2 else 1
        gradients = jax.grad(loss_by_hand)(parameters, x, y)
        part = {n: gradients[n] for n in groups[which]}
        updates, states[which] = rules[which].update(part, states[which], {n: parameters[n] for n in groups[which]})
        parameters = {**parameters, **{n: parameters[n] + u for n, u in updates.items()}}
    trainer.train(data(), 2)
    for name, value in trainer.params.items():
        np.testing.assert_allclose(value, parameters[name], rtol=1e-6, atol=1e-6)


class Killed(BaseException):
    pass


@pytest.mark.sample(2)
@pytest.mark.parametrize("step", [noisy, sharpness_aware])
def test_killed_custom_step_resumes_to_the_same_bits(step, tmp_path):
    def make(folder):
        config = fluid.CheckpointConfig(tmp_path / folder, step_interval=1)
        optimizer = fluid.optimizer.Adam(0.1)
        return fluid.Trainer(resumed_programs.program, optimizer, seed=3, step=step, checkpoint_config=config)

    def kill(event):
        if isinstance(event, fluid.EndStepEvent) and (event.epoch, event.step) == (1, 2):
            raise Killed

    whole = make("whole")
    whole.train(resumed_programs.arrays(), 3)
    with pytest.raises(Killed):
        make("cut").train(resumed_programs.arrays(), 3, event_handler=kill)
    resumed = make("cut")
    assert 6 < int(resumed.session.scope.step) < 10
    resumed.train(resumed_programs.arrays(), 3)
    resumed_programs.assert_equal(resumed_programs.state(resumed), resumed_programs.state(whole))


def test_custom_step_follows_set_rate_and_reports_ratio():
    fetched = []

    class Setting(fluid.handlers.GradientMonitor):
        def begin_step(self, event):
            self.trainer.learning_rate = [0.1, 0.0, 0.1][event.step]

        def end_step(self, event):
            fetched.append({n: float(event.fetched[n]) for n in event.fetched.names})

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.5), step=sharpness_aware)
    trainer.train(data(), handlers=[Setting()])
    assert all(f.keys() == {"update_ratio_0"} for f in fetched)
    assert [f["update_ratio_0"] > 0 for f in fetched] == [True, False, True]


def test_custom_step_supports_averages_accumulation_and_bfloat16():
    ema = fluid.optimizer.ExponentialMovingAverage(0.5)
    optimizer = ema.track(fluid.optimizer.Adam(0.1, accumulate_steps=3))
    trainers = [fluid.Trainer(program, optimizer, step=step, precision="bfloat16") for step in (None, plain)]
    for trainer in trainers:
        trainer.train(data(), 2)
    for name, value in ema.values(trainers[0]).items():
        np.testing.assert_allclose(ema.values(trainers[1])[name], value, rtol=1e-5, atol=1e-6)


def test_replaced_outputs_of_a_step_are_reported():
    def doubled(step):
        parameters, slots, here = plain(step)
        return parameters, slots, dataclasses.replace(here, outputs=[2 * here.losses[0]])

    trainers = [fluid.Trainer(program, fluid.optimizer.SGD(0.1), step=step) for step in (plain, doubled)]
    feed = {"x": X[:8], "y": Y[:8]}
    once, twice = (float(trainer.run(feed, mode="train")[0]) for trainer in trainers)
    assert twice == 2 * once
    (hidden,) = trainers[0].session.run(feed=feed, fetch=["fc_0.tmp_2"], mode="train")
    assert hidden.shape == (8, 5)


def test_custom_key_draws_other_random_numbers():
    seen = []

    def drawing(step):
        here = step.losses_and_gradients()
        same = step.evaluate()
        other = step.evaluate(key=jax.random.fold_in(step.key, 1))
        seen.append(True)
        parameters, slots = step.update(here.gradients)
        return (
            parameters,
            slots,
            dataclasses.replace(here, outputs=[jnp.stack([e.losses[0] for e in (here, same, other)])]),
        )

    def dropped():
        x = layers.data("x", shape=[4])
        return layers.mean(layers.dropout(layers.fc(x, size=5), 0.5))

    session = fluid.Session(lambda: minimized(dropped()), step=drawing)
    here, same, other = np.asarray(session.run(feed={"x": X})[0])
    assert seen and here == same and here != other


def minimized(loss):
    fluid.optimizer.SGD(0.1).minimize(loss)
    return loss


def test_testing_ignores_the_custom_step():
    trainers = [fluid.Trainer(program, fluid.optimizer.SGD(0.1), step=step) for step in (None, noisy)]
    first, second = (float(trainer.test(data())[0]) for trainer in trainers)
    assert first == second
    gradient = trainers[1].session.run(feed={"x": X, "y": Y}, fetch=["w1@GRAD"], mode="test")[0]
    by_hand = jax.grad(loss_by_hand)(trainers[1].params, X, Y)["w1"]
    np.testing.assert_allclose(gradient, by_hand, rtol=1e-5, atol=1e-7)


def test_nan_report_covers_the_custom_step():
    def exploding(step):
        parameters, slots, here = plain(step)
        return {n: p / jnp.where(step.number == 1, 0.0, 1.0) for n, p in parameters.items()}, slots, here

    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), step=exploding)
    with pytest.raises(errors.NonFiniteError, match=r"step 1 .*made the parameter 'w1' infinite"):
        trainer.train(data(), handlers=[fluid.handlers.TerminateOnNaN(report=True)])
    assert all(np.isfinite(v).all() for v in trainer.params.values())


# Tests of custom training steps that return wrong values.


def returning(change):
    return lambda step: change(*plain(step), step)


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (lambda step: None, "NoneType, expected the new parameters"),
        (returning(lambda p, s, e, step: (p, s)), r"\['dict', 'list'\]"),
        (returning(lambda p, s, e, step: (p, s, e.losses[0])), "an Evaluation"),
        (returning(lambda p, s, e, step: ({"w1": p["w1"]}, s, e)), "parameters .* other names"),
        (returning(lambda p, s, e, step: ({**p, "w1": p["w1"][:1]}, s, e)), r"w1 is float32\[1, 5\].* float32\[4, 5\]"),
        (returning(lambda p, s, e, step: ({**p, "b1": p["b1"].astype("int32")}, s, e)), "b1 is int32"),
        (returning(lambda p, s, e, step: (p, [], e)), "slots .* another structure"),
        (returning(lambda p, s, e, step: (p, s, dataclasses.replace(e, states={"a": 1.0}))), "states .* other names"),
    ],
)
def test_wrong_step_result_raises_program_error(step, match):
    trainer = fluid.Trainer(program, fluid.optimizer.Momentum(0.1), step=step)
    with pytest.raises(errors.ProgramError, match=match):
        trainer.train(data())
    assert int(trainer.session.scope.step) == 0


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda step: step.losses_and_gradients({"w": 1.0}), errors.UnknownNameError, "no parameter 'w'"),
        (lambda step: step.evaluate(feeds={"z": 1.0}), errors.UnknownNameError, "no feed 'z'"),
        (lambda step: step.evaluate(states={"z": 1.0}), errors.UnknownNameError, "no state 'z'"),
        (lambda step: step.update({}), errors.UnknownNameError, "gradient of 'b1' is missing"),
        (lambda step: step.update({**step.parameters, "w": 1.0}), errors.UnknownNameError, "'w' is not of this"),
        (lambda step: step.update(step.parameters, which=1), errors.ArgumentError, "expected 0 to 0"),
        (lambda step: step.losses_and_gradients(which=-1), errors.ArgumentError, "expected 0 to 0"),
    ],
)
def test_wrong_calls_in_a_step_raise_named_errors(call, error, match):
    trainer = fluid.Trainer(program, fluid.optimizer.SGD(0.1), step=call)
    with pytest.raises(error, match=match):
        trainer.train(data())


def test_sparse_table_with_custom_step_raises_at_construction():
    def looked_up():
        ids = layers.data("ids", shape=[1], dtype="int64")
        return layers.mean(layers.embedding(ids, size=[9, 2], is_sparse=True, param_attr="table"))

    with pytest.raises(errors.ArgumentError, match="table would be updated by the rows .*is_sparse=False"):
        fluid.Trainer(looked_up, fluid.optimizer.SGD(0.1), step=plain)


@pytest.mark.parametrize("step", [3, "sam"])
def test_non_function_step_raises_argument_type_error(step):
    with pytest.raises(errors.ArgumentTypeError, match=r"def step\(s\)"):
        fluid.Trainer(program, fluid.optimizer.SGD(0.1), step=step)


@pytest.mark.parametrize("name", ["w1@GRAD", "grad_norm_0"])
def test_fetching_gradients_of_a_custom_step_raises(name):
    session = fluid.Trainer(program, fluid.optimizer.SGD(0.1), step=plain).session
    with pytest.raises(errors.UnknownNameError, match="may compute several gradients"):
        session.run(feed={"x": X, "y": Y}, fetch=[name], mode="train")


def extragradient(step):
    ahead, _ = step.update(step.losses_and_gradients().gradients)
    here = step.losses_and_gradients(ahead)
    parameters, slots = step.update(here.gradients)
    return parameters, slots, here


def without_the_optimizer(step):
    here = step.losses_and_gradients()
    return {n: p - 0.1 * here.gradients[n] for n, p in step.parameters.items()}, step.slots, here


@pytest.mark.parametrize("step", [extragradient, without_the_optimizer], ids=lambda step: step.__name__)
def test_deliberately_unused_update_is_not_warned_of(step):
    trainer = fluid.Trainer(program, fluid.optimizer.Adam(0.01), step=step)
    trainer.train(batches(1), num_epochs=1)
