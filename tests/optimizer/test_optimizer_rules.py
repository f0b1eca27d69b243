"""Update rules of optimizers: each is compared with its formula in NumPy; properties of all rules are checked."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optimizer_by_numpy import GRADS, START, assert_close, norm, numpy_run, run

import fluid
from fluid import optimizer as opt

OPTIMIZERS = {
    "SGD": opt.SGD(0.1),
    "Momentum": opt.Momentum(0.1, 0.8),
    "Nesterov": opt.Momentum(0.1, 0.8, use_nesterov=True),
    "LarsMomentum": opt.LarsMomentum(0.5, 0.8, lars_coeff=0.1, lars_weight_decay=0.02),
    "Lion": opt.Lion(0.01, weight_decay=0.1),
    "Muon": opt.Muon(0.1, adam_learning_rate=0.1),
    "Adagrad": opt.Adagrad(0.1, 1e-3, 0.5),
    "DecayedAdagrad": opt.DecayedAdagrad(0.05, 0.7, 0.01),
    "Adadelta": opt.Adadelta(0.5, 0.01, 0.8),
    "RMSProp": opt.RMSProp(0.05, 0.9, 0.01),
    "RMSProp-momentum": opt.RMSProp(0.05, 0.9, 0.01, momentum=0.5),
    "RMSProp-centered": opt.RMSProp(0.05, 0.9, 0.01, momentum=0.5, centered=True),
    "Ftrl": opt.Ftrl(0.2, l1=0.3, l2=0.2),
    "Ftrl-power": opt.Ftrl(0.2, l1=0.3, l2=0.2, lr_power=-0.7),
    "Adam": opt.Adam(0.1, 0.5, 0.8, 0.01),
    "AdamW": opt.AdamW(0.1, 0.5, 0.8, 0.01, weight_decay=0.3),
    "Adamax": opt.Adamax(0.1, 0.5, 0.8, 0.01),
    "Lamb": opt.Lamb(0.1, 0.2, 0.5, 0.8, 0.01),
}
EACH = pytest.mark.parametrize("name", OPTIMIZERS)


def mean(m, key, decay, value, start=0.0):
    m[key] = decay * m.get(key, start) + (1 - decay) * value
    return m[key]


def momentum(n, p, g, m, t):
    m["v"] = 0.8 * m.get("v", 0) + g
    return p - 0.1 * m["v"]


def nesterov(n, p, g, m, t):
    m["v"] = 0.8 * m.get("v", 0) + g
    return p - 0.1 * (g + 0.8 * m["v"])


def lars(n, p, g, m, t):
    rate = 0.5 * 0.1 * norm(p) / (norm(g) + 0.02 * norm(p))
    m["v"] = 0.8 * m.get("v", 0) + rate * (g + 0.02 * p)
    return p - m["v"]


def lion(n, p, g, m, t):
    direction = np.sign(0.9 * m.get("m", 0) + 0.1 * g)
    mean(m, "m", 0.99, g)
    return p - 0.01 * (direction + 0.1 * p)


def muon(n, p, g, m, t):
    if p.ndim != 2:
        correction = np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
        return p - 0.1 * correction * mean(m, "m", 0.9, g) / (np.sqrt(mean(m, "v", 0.999, g * g)) + 1e-8)
    mean(m, "m", 0.95, g)
    x = 0.95 * m["m"] / (1 - 0.95 ** (t + 1)) + 0.05 * g / (1 - 0.95**t)
    x = x.T / (norm(x) + 1e-8)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return p - 0.1 * np.sqrt(max(1, p.shape[1] / p.shape[0])) * x.T


def adagrad(n, p, g, m, t):
    m["s"] = m.get("s", 0.5) + g * g
    return p - 0.1 * g / (np.sqrt(m["s"]) + 1e-3)


def decayed_adagrad(n, p, g, m, t):
    return p - 0.05 * g / (np.sqrt(mean(m, "s", 0.7, g * g)) + 0.01)


def adadelta(n, p, g, m, t):
    step = g * np.sqrt(m.get("u", 0) + 0.01) / np.sqrt(mean(m, "s", 0.8, g * g) + 0.01)
    mean(m, "u", 0.8, step * step)
    return p - 0.5 * step


def rmsprop(decay, centered):
    def rule(n, p, g, m, t):
        size = mean(m, "s", 0.9, g * g) - (mean(m, "a", 0.9, g) ** 2 if centered else 0)
        m["v"] = decay * m.get("v", 0) + 0.05 * g / np.sqrt(size + 0.01)
        return p - m["v"]

    return rule


def ftrl(power):
    def rule(n, p, g, m, t):
        old, m["n"] = m.get("n", np.zeros_like(p)), m.get("n", 0) + g * g
        m["z"] = m.get("z", 0) + g - (m["n"] ** power - old**power) / 0.2 * p
        return np.where(
            abs(m["z"]) > 0.3, (np.sign(m["z"]) * 0.3 - m["z"]) / (m["n"] ** power / 0.2 + 0.2), np.zeros_like(p)
        )

    return rule


def adam(n, p, g, m, t):
    correction = np.sqrt(1 - 0.8**t) / (1 - 0.5**t)
    return p - 0.1 * correction * mean(m, "m", 0.5, g) / (np.sqrt(mean(m, "v", 0.8, g * g)) + 0.01)


def adamw(n, p, g, m, t):
    first, second = mean(m, "m", 0.5, g) / (1 - 0.5**t), mean(m, "v", 0.8, g * g) / (1 - 0.8**t)
    return p - 0.1 * (first / (np.sqrt(second) + 0.01) + 0.3 * p)


def adamax(n, p, g, m, t):
    m["n"] = np.maximum(abs(g), 0.8 * m.get("n", 0) + 0.01)
    return p - 0.1 / (1 - 0.5**t) * mean(m, "m", 0.5, g) / m["n"]


def lamb(n, p, g, m, t):
    step = mean(m, "m", 0.5, g) / (np.sqrt(mean(m, "v", 0.8, g * g)) + 0.01) + 0.2 * p
    return p - 0.1 * norm(p) / norm(step) * step


RULES = {
    "SGD": lambda n, p, g, m, t: p - 0.1 * g,
    "Momentum": momentum,
    "Nesterov": nesterov,
    "LarsMomentum": lars,
    "Lion": lion,
    "Muon": muon,
    "Adagrad": adagrad,
    "DecayedAdagrad": decayed_adagrad,
    "Adadelta": adadelta,
    "RMSProp": rmsprop(0, False),
    "RMSProp-momentum": rmsprop(0.5, False),
    "RMSProp-centered": rmsprop(0.5, True),
    "Ftrl": ftrl(0.5),
    "Ftrl-power": ftrl(0.7),
    "Adam": adam,
    "AdamW": adamw,
    "Adamax": adamax,
    "Lamb": lamb,
}


def test_all_are_here():
    known = {type(o) for o in OPTIMIZERS.values()}
    base = opt.Optimizer  # opt loads its classes lazily, and the loop must not change vars(opt)
    rules = {v for v in vars(opt).values() if isinstance(v, type) and issubclass(v, base)}
    assert known == rules - {opt.Optimizer, opt.Optax}


@EACH
def test_rules_match_their_numpy_formula(name):
    # The Newton-Schulz iterations of Muon double a rounding error with each step, so its tolerance is larger.
    assert_close(run(OPTIMIZERS[name]), numpy_run(RULES[name]), **({"rtol": 1e-3} if name == "Muon" else {}))


def scaled(rate, factor):
    return (lambda count: factor * rate(count)) if callable(rate) else factor * rate


@EACH
def test_parameter_learning_rate_scales_the_global_rate(name):
    whole = OPTIMIZERS[name]
    rates = {
        f.name: scaled(getattr(whole, f.name), 0.5) for f in dataclasses.fields(whole) if "learning_rate" in f.name
    }
    half = run(dataclasses.replace(whole, **rates))
    found = run(whole, {"w": fluid.ParamAttr(learning_rate=0.5)})
    assert_close(found, {"w": half["w"], "b": run(whole)["b"]})


@EACH
def test_accumulated_gradients_equal_a_step_of_the_mean(name):
    one = OPTIMIZERS[name]
    means = [jax.tree.map(lambda *g: np.mean(g, 0), *GRADS[i : i + 3]) for i in (0, 3)]
    assert_close(run(dataclasses.replace(one, accumulate_steps=3)), run(one, grads=means))
    assert_close(run(dataclasses.replace(one, accumulate_steps=3), grads=GRADS[:2]), START)


@EACH
def test_a_constant_schedule_equals_a_fixed_rate(name):
    one = OPTIMIZERS[name]
    rates = {f.name: getattr(one, f.name) for f in dataclasses.fields(one) if "learning_rate" in f.name}
    assert_close(run(dataclasses.replace(one, **{n: lambda c, r=r: r for n, r in rates.items()})), run(one))


def at_rates(optimizer, rates):
    """Apply a compiled optimizer to the gradients `GRADS`, each with another rate; return parameters and state."""
    settings = dict.fromkeys(START)
    params = {n: jnp.asarray(v, "float32") for n, v in START.items()}
    state = optimizer.transformation(settings).init(params)

    def update(rate, *rest):
        return optimizer.at_rate(rate).transformation(settings).update(*rest)

    compiled = jax.jit(update, compiler_options={"xla_backend_optimization_level": 0})
    for rate, grads in zip(rates, GRADS, strict=True):
        grads = {n: jnp.asarray(g, "float32") for n, g in grads.items()}
        updates, state = compiled(rate, grads, state, params)
        params = optax.apply_updates(params, updates)
    return params, state


@pytest.mark.sample(3)
@EACH
def test_rates_set_per_update_equal_a_schedule(name):
    one = OPTIMIZERS[name]
    rates = [0.05, 0.02, 0.04, 0.0, 0.01, 0.3]
    schedule = dataclasses.replace(one, learning_rate=lambda count: jnp.asarray(rates, "float32")[count])
    set_for_each, state = at_rates(one, rates)
    assert_close(set_for_each, {n: np.asarray(v) for n, v in run(schedule).items()})
    ended, _ = at_rates(dataclasses.replace(one, learning_rate=lambda count: 0.7 + count), rates)
    assert_close(ended, {n: np.asarray(v) for n, v in set_for_each.items()})
    unset, _ = at_rates(schedule, [-1.0] * len(rates))
    assert_close(unset, {n: np.asarray(v) for n, v in set_for_each.items()})
    fresh = one.transformation(dict.fromkeys(START)).init(START)
    assert jax.tree.structure(fresh) == jax.tree.structure(state), "a checkpoint of the declared rate fits"


@EACH
def test_no_rate_no_gradient_no_harm(name):
    one = OPTIMIZERS[name]
    grads = [jax.tree.map(np.zeros_like, START), GRADS[0], jax.tree.map(np.zeros_like, START)]
    for start in (START, jax.tree.map(np.zeros_like, START)):
        found = run(one, start=start, grads=grads)
        assert all(np.isfinite(v).all() for v in found.values())
        assert all((v != start[n]).any() for n, v in found.items())
    warming = {f.name: lambda count: 0.1 * count for f in dataclasses.fields(one) if "learning_rate" in f.name}
    assert_close(run(dataclasses.replace(one, **warming), grads=GRADS[:1]), START)
    assert all(np.isfinite(v).all() for v in run(dataclasses.replace(one, **warming)).values())


@EACH
@pytest.mark.parametrize("steps", [1, 2])
def test_the_state_keeps_its_shapes(name, steps):
    """Check that an update of an optimizer keeps the shapes and dtypes of its state.

    Otherwise, the second training step would compile again.
    """
    tx = dataclasses.replace(OPTIMIZERS[name], accumulate_steps=steps).transformation({"w": None, "b": None})
    params = {n: jnp.asarray(v, "float32") for n, v in START.items()}
    updates, state = jax.eval_shape(tx.update, params, tx.init(params), params)
    before = jax.tree.map(lambda v: (v.shape, v.dtype), jax.eval_shape(tx.init, params))
    assert jax.tree.map(lambda v: (v.shape, v.dtype), state) == before
    assert jax.tree.map(lambda v: v.dtype, updates) == jax.tree.map(lambda v: v.dtype, params)


@EACH
def test_other_spelling(name):
    kind = type(OPTIMIZERS[name])
    assert getattr(opt, f"{kind.__name__}Optimizer") is kind


@EACH
def test_current_rate_is_the_next_update_rate(name):
    one = dataclasses.replace(OPTIMIZERS[name], learning_rate=lambda count: 1 / (count + 1), accumulate_steps=2)
    tx = one.transformation({n: None for n in START})
    params = {n: jnp.asarray(v, "float32") for n, v in START.items()}
    state, rates, update = tx.init(params), [], jax.jit(tx.update)
    for _ in range(5):
        rates.append(float(one.current_rate(state)))
        _, state = update(params, state, params)
    np.testing.assert_allclose(rates, [1, 1, 1 / 2, 1 / 2, 1 / 3], rtol=1e-6)
    assert float(OPTIMIZERS[name].current_rate(())) == np.float32(OPTIMIZERS[name].learning_rate)


def test_current_rate_of_plain_optax_is_unknown():
    with pytest.raises(fluid.errors.UnknownNameError, match="schedule"):
        opt.Optax(optax.sgd(0.1)).current_rate(optax.sgd(0.1).init(START))


def test_parameters_called_count_do_no_harm():
    one = opt.Momentum(lambda count: 1 / (count + 1))
    params = {"count": jnp.full(3, 7.0)}
    assert float(one.current_rate(one.transformation({"count": None}).init(params))) == 1


@pytest.mark.parametrize(
    ("kind", "decay"), [(opt.AdamW, "weight_decay"), (opt.Lion, "weight_decay"), (opt.Lamb, "lamb_weight_decay")]
)
def test_excluded_parameters_do_not_decay(kind, decay):
    seen = []

    def exclude(parameter):
        seen.append(parameter)
        return parameter.name == "b"

    found = run(kind(0.1, **{decay: 0.5}, exclude_from_weight_decay_fn=exclude))
    plain, decayed = run(kind(0.1, **{decay: 0.0})), run(kind(0.1, **{decay: 0.5}))
    assert_close(found, {"w": decayed["w"], "b": plain["b"]})
    assert ("w", (3, 2), "float32") in seen


def test_decoupled_decay_heeds_the_rate_of_a_parameter():
    still = [jax.tree.map(np.zeros_like, START)] * 2
    found = run(opt.AdamW(0.1, weight_decay=0.5), {"w": fluid.ParamAttr(learning_rate=0.5)}, grads=still)
    assert_close(found, {"w": START["w"] * 0.975**2, "b": START["b"] * 0.95**2})


def test_muon_leaves_named_matrices_to_adam():
    found = run(opt.Muon(0.5, adam_learning_rate=0.1, use_adam_fn=lambda p: p.name == "w"))
    want = run(opt.Adam(0.1))
    assert_close(found, {n: np.asarray(v) for n, v in want.items()})


def test_lamb_with_correction_is_optaxs():
    # Without weight decay, the bias correction multiplies the whole step of Lamb by a factor. Lamb divides the step by
    # its norm, so the factor cancels.
    found, want = run(opt.Lamb(0.1, 0.0, epsilon=1e-12)), run(opt.Optax(optax.lamb(0.1, eps=1e-12)))
    assert_close(found, {n: np.asarray(v) for n, v in want.items()}, rtol=1e-4)


def test_rules_over_whole_parameters_say_so():
    whole = {type(o).__name__ for o in OPTIMIZERS.values() if o.whole_tables}
    assert whole == {"LarsMomentum", "Muon", "Lamb"}
    assert all(optimizer.whole_tables for optimizer in WHOLE)


WHOLE = [
    opt.SGD(0.5, accumulate_steps=2),
    opt.Lookahead(opt.SGD(0.5), k=6),
    opt.ExponentialMovingAverage(0.5).track(opt.SGD(0.5)),
    opt.Ftrl(lambda count: 0.5 / (count + 1)),
    opt.LarsMomentum(0.5, lazy_mode=True),
]


@pytest.mark.parametrize("optimizer", WHOLE, ids=lambda o: type(o).__name__)
def test_sparse_tables_are_updated_like_dense_tables(optimizer):
    def program(is_sparse):
        ids = fluid.layers.data("ids", shape=[1], dtype="int64")
        loss = fluid.layers.mean(fluid.layers.square(fluid.layers.embedding(ids, [7, 3], is_sparse=is_sparse)))
        optimizer.minimize(loss)
        return loss

    dense = fluid.Session(lambda: program(False))
    with pytest.warns(fluid.errors.FluidWarning, match="need.* tables as a whole"):
        sparse = fluid.Session(lambda: program(True))
    for step in range(13):
        for session in (dense, sparse):
            session.run(feed={"ids": np.array([[step % 3], [step % 5]])})
    assert_close(dict(sparse.scope), {n: np.asarray(v) for n, v in dense.scope.items()}, rtol=1e-5)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, None])
def test_bad_accumulation_is_refused(steps):
    with pytest.raises(fluid.errors.ArgumentError, match="accumulate_steps"):
        opt.Adam(0.1, accumulate_steps=steps)
