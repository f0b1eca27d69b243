"""The numbers, names and initial values of the original are reproduced."""

import golden_cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_cases import IMPOSSIBLE, NOT_YET, assert_close, cases, find, flat, initial_fact, same_fact

import fluid

BY_ID = {case.id: case for case in cases()}


def runnable():
    """One parameter for each case that fluid can run."""
    return [id for id, case in BY_ID.items() if not case.needs() & NOT_YET and id not in IMPOSSIBLE]


@pytest.fixture(autouse=True)
def full_precision():
    """Multiply in float32 on every device."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(params=runnable())
def case(request):
    return BY_ID[request.param]


def test_nothing_is_left_out_unawares():
    there = {name for name in NOT_YET if find(name) is not None}
    assert not there, "fluid has these now; take them out of NOT_YET"
    needed = {name for case in BY_ID.values() for name in case.needs()}
    assert needed >= NOT_YET, "no case needs these; take them out of NOT_YET"
    missing = {name for id, case in BY_ID.items() if id not in IMPOSSIBLE for name in case.missing()} - NOT_YET
    assert not missing, "the cases need these; write them, or put them into NOT_YET"
    assert set(IMPOSSIBLE) <= set(BY_ID)
    present = {path.stem for path in golden_cases.FOLDER.glob("*.npz")}
    used = {BY_ID[id].spec["family"] for id in runnable()}
    assert present <= used, "no case of these families runs; their arrays need not be here"


def test_names_shapes_and_initial_values(case):
    names = {}
    program = fluid.Program(case.program(names))
    wanted = case.spec["parameters"]
    specs = program.parameters | program.states
    assert [p["name"] for p in wanted if p["name"] in program.parameters] == list(program.parameters)
    for parameter in wanted:
        spec = specs[parameter["name"]]
        assert spec.shape == tuple(parameter["shape"])
        assert bool(spec.trainable) == parameter["trainable"]
        if "init" in parameter:
            assert same_fact(initial_fact(spec), parameter["init"]), (initial_fact(spec), parameter["init"])
    for name, variable in case.spec.get("variables", {}).items():
        assert names[name] == variable


def test_numbers(case):
    if "build_only" in case.spec:
        return
    if case.minimizes:
        check_training(case)
    else:
        check_steps(case)


def check_steps(case):
    program = fluid.Program(case.program())
    arrays = {name: jnp.asarray(value) for name, value in case.arrays("before").items()}
    steps = []
    for step in range(case.spec["steps"]):
        outputs, states = run_program(program, case, arrays, case.feeds(step))
        steps.append(outputs)
        if "defect" not in case.spec:
            check_gradients(case, program, arrays, case.feeds(step))
        arrays |= {name: states[name] for name in program.states}
    if "defect" in case.spec:
        return
    for name, want in case.arrays("out").items():
        got = np.stack([flat(outputs[name]) for outputs in steps])
        assert_close(got if case.spec["steps"] > 1 else got[0], want, case.tolerance("out"), name)
        lengths = case.spec["outputs"][name].get("lengths")
        if lengths is not None:
            assert [int(n) for n in steps[-1][name].lengths] == lengths
    for name, want in case.arrays("after").items():
        if name in program.states:
            assert_close(arrays[name], want, case.tolerance("after"), name)


def run_program(program, case, arrays, feeds):
    """Apply a program in train mode; return outputs by name, and states."""
    applied = program.apply(arrays, feeds, key=jax.random.key(0), mode="train")
    return dict(zip(case.spec["fetch"], applied.outputs, strict=True)), applied.states


def check_gradients(case, program, arrays, feeds):
    skipped = {*case.spec["no_gradient"], *case.spec.get("not_derivative", [])}
    wanted = {name: want for name, want in case.arrays("grad").items() if name not in skipped}
    weights = case.arrays("weight")

    def weighed(moved):
        given = {name: put_data(feeds[name], moved[name]) for name in feeds if name in moved}
        outputs, _ = run_program(program, case, arrays | {n: v for n, v in moved.items() if n in arrays}, feeds | given)
        return sum(weigh(outputs[name], weight) for name, weight in weights.items())

    if wanted:
        everything = arrays | feeds
        found = jax.grad(weighed)({name: jnp.asarray(data_of(everything[name])) for name in wanted})
        for name, want in wanted.items():
            assert_close(put_data(everything[name], found[name]), want, case.tolerance("grad"), f"gradient of {name}")


def data_of(value):
    return value.data if isinstance(value, fluid.SequenceBatch) else value


def put_data(value, data):
    return value.with_data(data) if isinstance(value, fluid.SequenceBatch) else data


def weigh(output, weight):
    """Sum what the cotangents weigh; those of a sequence batch are laid out as its valid rows."""
    if not isinstance(output, fluid.SequenceBatch):
        return jnp.sum(jnp.reshape(output, weight.shape) * weight)
    valid = np.asarray(output.mask)
    spread = np.zeros(output.shape, weight.dtype)
    spread[valid] = weight.reshape(-1, *output.shape[2:])
    return jnp.sum(output.data * spread)


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
