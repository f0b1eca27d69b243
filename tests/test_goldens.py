"""Golden cases, which are recorded results of PaddlePaddle Fluid: fluid has equal numbers, names, initial values."""

import functools

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_cases import IMPOSSIBLE, STATES, assert_close, cases, flat, initial_fact, same_fact

import fluid

# PaddlePaddle updates some sparse tables densely, and truncates some factors to integers. fluid does the same, with a
# warning.
pytestmark = pytest.mark.filterwarnings("ignore::fluid.errors.FluidWarning")

BY_ID = {case.id: case for case in cases()}


def runnable():
    """List the ids of all golden cases that fluid can run."""
    return [id for id in BY_ID if id not in IMPOSSIBLE]


@pytest.fixture(autouse=True)
def full_precision():
    """Compute matrix products in full float32, because some devices use fewer bits by default."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(params=runnable())
def case(request):
    return BY_ID[request.param]


def test_nothing_is_left_out_unawares():
    missing = {name for id, case in BY_ID.items() if id not in IMPOSSIBLE for name in case.missing()}
    assert not missing, "the cases need these"
    assert IMPOSSIBLE.keys() | STATES <= set(BY_ID)
    present = {path.stem for path in golden_cases.FOLDER.glob("*.npz")}
    used = {BY_ID[id].spec["family"] for id in runnable() if "build_only" not in BY_ID[id].spec}
    assert present == used, "the arrays of the families that run must be here, and no others"


def test_names_shapes_and_initial_values(case):
    names = {}
    program = fluid.Program(case.program(names))
    wanted = case.spec["parameters"]
    specs = program.parameters | program.states
    assert [p["name"] for p in wanted if p["name"] in program.parameters] == list(program.parameters)
    for parameter in wanted:
        spec = specs[parameter["name"]]
        assert spec.shape == tuple(parameter["shape"])
        assert bool(spec.trainable) == (parameter["trainable"] and case.id not in STATES)
        if "init" in parameter:
            assert same_fact(initial_fact(spec), parameter["init"]), (initial_fact(spec), parameter["init"])
    for name, variable in case.spec.get("variables", {}).items():
        assert names[name] == variable


def test_outputs_and_gradients_equal_the_recorded_numbers(case):
    if "build_only" in case.spec:
        return
    if case.minimizes:
        check_training(case)
    else:
        check_steps(case)


def check_steps(case):
    program = fluid.Program(case.program())
    wanted = case.arrays("grad")
    for name in (*case.spec.get("no_gradient", []), *case.spec.get("not_derivative", [])):
        wanted.pop(name, None)
    step = jax.jit(functools.partial(run_step, program, case, list(wanted)))
    arrays = {name: jnp.zeros(spec.shape, spec.dtype) for name, spec in program.states.items()}
    arrays |= {name: jnp.asarray(value) for name, value in case.arrays("before").items()}
    steps = []
    for number in range(case.spec["steps"]):
        feeds = case.feeds(number)
        outputs, states, gradients = step(arrays, feeds)
        steps.append(outputs)
        arrays |= {name: states[name] for name in program.states}
    if "defect" in case.spec:
        return
    for name, want in case.arrays("out").items():
        got = np.stack([flat(outputs[name]) for outputs in steps])
        assert_close(got if case.spec["steps"] > 1 else got[0], want, case.tolerance("out"), name)
        lengths = case.spec["outputs"][name].get("lengths")
        if lengths is not None:
            assert lengths_of(steps[-1][name]) == lengths
    for name, want in case.arrays("after").items():
        if name in program.states:
            assert_close(arrays[name], want, case.tolerance("after"), name)
    for name, want in wanted.items():
        got = put_data(feeds.get(name), gradients[name])
        assert_close(got, want, case.tolerance("grad"), f"gradient of {name}")


def run_step(program, case, differentiated, arrays, feeds):
    """Apply a program in train mode; return outputs by name, states, and gradients of the weighted sum of outputs."""
    weights = case.arrays("weight")

    def weighed(moved):
        given = feeds | {n: put_data(feeds[n], v) for n, v in moved.items() if n in feeds}
        changed = arrays | {n: v for n, v in moved.items() if n in arrays}
        applied = program.apply(changed, given, key=jax.random.key(0), mode="train")
        outputs = dict(zip(case.spec["fetch"], applied.outputs, strict=True))
        total = sum((weigh(outputs[name], weight, case) for name, weight in weights.items()), jnp.float32(0))
        return total, (outputs, applied.states)

    everything = arrays | feeds
    moved = {name: data_of(everything[name]) for name in differentiated}
    gradients, (outputs, states) = jax.grad(weighed, has_aux=True)(moved)
    return outputs, states, gradients


def lengths_of(batch):
    """Return the length of each sequence, or of each inner sequence of a nested batch."""
    nested = isinstance(batch, fluid.NestedSequenceBatch)
    return [len(row) for row in (sum(batch.rows(), []) if nested else batch.rows())]


def data_of(value):
    return value.data if isinstance(value, fluid.SequenceBatch) else value


def put_data(value, data):
    return value.with_data(data) if isinstance(value, fluid.SequenceBatch) else data


def weigh(output, weight, case):
    """Return the sum of an output times `weight`; for a sequence batch, `weight` has one row for each valid step."""
    if not isinstance(output, fluid.SequenceBatch | fluid.NestedSequenceBatch):
        return jnp.sum(jnp.reshape(output, weight.shape) * weight)
    mask = output.mask
    place = jnp.cumsum(mask).reshape(mask.shape) - 1
    spread = jnp.asarray(weight).reshape(-1, *output.shape[mask.ndim :])[place]
    return jnp.sum(output.data * spread, where=mask.reshape(*mask.shape, *[1] * (output.data.ndim - mask.ndim)))


def check_training(case):
    session = fluid.Session(case.program())
    for name, value in case.arrays("before").items():
        if name in session.scope:
            session.scope[name] = value
    outputs, trajectory = [], []
    for step in range(case.spec["steps"]):
        results = session.run("program", feed=case.feeds(step))
        outputs.append([np.asarray(r) for r in results])
        trajectory.append({name: np.asarray(session.scope[name]) for name in case.arrays("trajectory")})
    if "defect" in case.spec:
        return
    for position, name in enumerate(case.spec["fetch"]):
        want = case.arrays("out")[name]
        got = np.stack([step[position].reshape(want.shape[1:]) for step in outputs])
        assert_close(got, want, case.tolerance("out"), name)
    for name, want in case.arrays("trajectory").items():
        got = np.stack([step[name] for step in trajectory])
        assert_close(got, want, case.tolerance("trajectory"), f"trajectory of {name}")
