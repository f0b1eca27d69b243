"""Golden cases: recorded results of PaddlePaddle Fluid.

Each case has a program to run with fluid, and arrays to compare with; see goldens/README.md.
"""

import functools
import json
import math
import pathlib
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

import fluid
from fluid import core

FOLDER = pathlib.Path(__file__).resolve().parents[1] / "goldens"

# Cases that fluid cannot run, and the reasons.
IMPOSSIBLE = {
    "index/where": "the shape of its result depends on data, which a compiled program cannot have",
    "create/sequence_mask_max_float": "the size of its mask is the largest length, which is data",
}


# Golden cases with arrays that no optimizer updates. PaddlePaddle counts these arrays as parameters, fluid as states.
STATES = {
    "names/center_loss",
    "names/center_loss_fixed",
    "names/data_norm_default",
    "names/data_norm_statistics",
}


@functools.cache
def index():
    """Return the content of goldens/index.json: the list of cases, and the default tolerances."""
    return json.loads((FOLDER / "index.json").read_text())


@functools.cache
def arrays_of(family):
    """Return the arrays that PaddlePaddle Fluid computed for the test cases of `family`, by `CASE/KIND/VARIABLE`."""
    with np.load(FOLDER / f"{family}.npz") as file:
        return dict(file)


@dataclass(frozen=True)
class Case:
    """A golden case (a recorded result of PaddlePaddle Fluid): its description `spec`, and its recorded arrays."""

    spec: dict

    @property
    def id(self):
        return f"{self.spec['family']}/{self.spec['name']}"

    @property
    def minimizes(self):
        return "minimize" in self.spec and "build_only" not in self.spec

    def arrays(self, kind):
        prefix = f"{self.spec['name']}/{kind}/"
        return {k.removeprefix(prefix): v for k, v in arrays_of(self.spec["family"]).items() if k.startswith(prefix)}

    def needs(self):
        """Return the names of all functions of fluid that this recorded program of PaddlePaddle calls."""
        return set(_called(self.spec))

    def missing(self):
        """Return the sorted names of functions that this golden case calls, but that fluid does not have."""
        return sorted(name for name in self.needs() if find(name) is None)

    def tolerance(self, kind):
        return self.spec.get("tolerance") or index()["tolerance"][kind]

    def feeds(self, step):
        """Return the feeds of the training step `step` by name: arrays and SequenceBatches."""
        given = self.arrays("feed")
        return {name: _fed(feed, given[name], step) for name, feed in self.spec["feeds"].items()}

    def program(self, names=None, functional=False, declare=None):
        """Return a program function that makes the recorded calls of this golden case, and returns the results.

        Args:
          names: a dict in which the program stores the name of each feed and result in fluid, or None without a name.
          functional: True writes a recurrence as a call of `layers.rnn`, False as a StaticRNN or DynamicRNN block.
          declare: a function that declares a feed; by default, the feed has the sizes of its recorded array.
        """

        def program():
            rows = next((len(f["lengths"]) for f in self.spec["feeds"].values() if "lengths" in f), None)
            known = {name: (declare or _declare)(name, feed, rows) for name, feed in self.spec["feeds"].items()}
            for call in self.spec["calls"]:
                results = _made(call, known, functional)
                results = list(results) if isinstance(results, list | tuple) else [results]
                known |= {n: r for n, r in zip(call["out"], results, strict=False) if n is not None}
            if names is not None:
                names.update({name: _recorded_name(value) for name, value in known.items()})
            if self.minimizes:
                minimize = self.spec["minimize"]
                _resolve(minimize["optimizer"], known).minimize(_resolve(minimize["loss"], known))
            return [_at_this_step(known[name]) for name in self.spec["fetch"]]

        return program


def cases():
    """Return all golden cases."""
    return [Case(spec) for spec in index()["cases"]]


def find(name):
    """Find a function of fluid by its dotted name; return None if there is none."""
    value = fluid
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def flat(value):
    """Convert a result to an array in the recorded layout: a sequence batch becomes its concatenated valid steps."""
    if isinstance(value, core.SequenceBatch | core.NestedSequenceBatch):
        return np.asarray(value.data)[np.asarray(value.mask)]
    return np.asarray(value)


def assert_close(got, want, tolerance, what):
    """Check that a result equals a recorded array.

    Integers must be equal, floats must agree within the tolerance, and dimensions of size 1 are ignored.
    """
    got = flat(got)
    assert got.size == want.size and [d for d in got.shape if d != 1] == [d for d in want.shape if d != 1], (
        f"{what}: shape {got.shape}, expected {want.shape}"
    )
    got = got.reshape(want.shape)
    if not np.issubdtype(want.dtype, np.floating):
        np.testing.assert_array_equal(got, want, err_msg=what)
    else:
        relative, absolute = tolerance
        np.testing.assert_allclose(got, want, rtol=relative, atol=absolute, err_msg=what)


def initial_fact(spec):
    """Describe an initializer as recorded programs of PaddlePaddle do: its operation, and bounds, moments or value."""
    init = fluid.initializer
    made = spec.initializer
    if isinstance(made, init.Constant):
        return {"op": "fill_constant", "value": made.value}
    if isinstance(made, init.Bilinear | init.NumpyArray):
        return {"op": "assign_value"}
    if isinstance(made, init.Uniform):
        return {"op": "uniform_random", "min": made.low, "max": made.high}
    if isinstance(made, init.Normal | init.TruncatedNormal):
        op = "gaussian_random" if isinstance(made, init.Normal) else "truncated_gaussian_random"
        return {"op": op, "mean": made.loc, "std": made.scale}
    first, second = made.limits(spec.shape)
    if made.uniform:
        return {"op": "uniform_random", "min": first, "max": second}
    return {"op": "gaussian_random", "mean": first, "std": second}


def same_fact(got, want):
    """Return whether two descriptions of initializers agree, up to the rounding of float32."""
    return got.keys() == want.keys() and all(
        got[k] == want[k] if isinstance(want[k], str) else math.isclose(got[k], want[k], rel_tol=1e-6, abs_tol=1e-7)
        for k in want
    )


def _declare(name, feed, rows):
    """Declare a feed of a golden case (a recorded result of PaddlePaddle) with the recorded sizes.

    The batch dimension may have any size if the feed is a sequence batch, or an array with `rows` items.
    """
    if "lengths" in feed or (feed["shape"][0] == rows and not feed.get("per_step")):
        return fluid.layers.data(name, feed["shape"][1:], feed["dtype"], lod_level=int("lengths" in feed))
    shape = feed["shape"][1:] if feed.get("per_step") else feed["shape"]
    return fluid.layers.data(name, shape, feed["dtype"], append_batch_size=False)


def _fed(feed, array, step):
    array = array[step] if feed.get("per_step") else array
    array = array.astype(jax.dtypes.canonicalize_dtype(array.dtype))
    if "lengths" not in feed:
        return array
    ends = np.cumsum(feed["lengths"])
    rows = [array[end - n : end] for end, n in zip(ends, feed["lengths"], strict=True)]
    batch = core.SequenceBatch.from_rows(rows)
    return core.SequenceBatch(jnp.asarray(batch.data), jnp.asarray(batch.lengths))


def _resolve(value, known):
    if isinstance(value, str) and value.startswith("@"):
        return known[value[1:]]
    if isinstance(value, list):
        return [_resolve(v, known) for v in value]
    if isinstance(value, dict):
        if "$array" in value:
            return np.array(value["$array"]["data"], value["$array"]["dtype"])
        for key, arguments in value.items():
            if key.startswith("$"):
                return find(key[1:])(**_resolve(arguments, known))
        return {k: _resolve(v, known) for k, v in value.items()}
    return value


def _made(call, known, functional=False):
    """Make a recorded call of a golden case, and return the results of the call.

    A recurrence becomes a StaticRNN or DynamicRNN block or, if `functional`, a call of `layers.rnn`.
    """
    if "step_inputs" not in call:
        return find(call["fn"])(**_resolve(call["args"], known))
    return (_recurrence if functional else _block)(call, known)


def _inside(call, known):
    """Call the recorded layers in the loop body of a recurrent net; return the new states by name, and the outputs."""
    for each in call["body"]:
        results = _made(each, known)
        known |= dict(zip(each["out"], results if isinstance(results, list | tuple) else [results], strict=False))
    return {name: _resolve(new, known) for name, new in call["update"].items()}, _resolve(call["outputs"], known)


def _block(call, known):
    rnn = find(call["fn"])()
    with rnn.step() if call["fn"] == "layers.StaticRNN" else rnn.block():
        inside = known | {name: rnn.step_input(_resolve(x, known)) for name, x in call["step_inputs"].items()}
        inside |= {name: rnn.static_input(_resolve(x, known)) for name, x in call["static_inputs"].items()}
        inside |= {name: rnn.memory(**_resolve(m, inside)) for name, m in call["memories"].items()}
        new, outputs = _inside(call, inside)
        for name, value in new.items():
            rnn.update_memory(inside[name], value)
        rnn.output(*outputs)
    return rnn()


def _recurrence(call, known):
    static = call["fn"] == "layers.StaticRNN"
    x = {name: _resolve(value, known) for name, value in call["step_inputs"].items()}
    context = {name: _resolve(value, known) for name, value in call["static_inputs"].items()}
    rows = next(iter(x.values())).shape[1 if static else 0]
    starts = {name: _start(_resolve(memory, known | x), rows) for name, memory in call["memories"].items()}

    def cell(x, states):
        new, outputs = _inside(call, known | context | x | states)
        return outputs, new

    return fluid.layers.rnn(cell, x, starts, time_major=static)[0]


def _start(memory, rows):
    if "init" in memory:
        return memory["init"]
    sizes = [size for size in memory["shape"] if size != -1]
    return jnp.full([rows, *sizes], memory.get("value", memory.get("init_value")), "float32")


def _called(value):
    if isinstance(value, list):
        return [name for v in value for name in _called(v)]
    if isinstance(value, dict):
        own = [key[1:] for key in value if key.startswith("$") and key != "$array"]
        return own + ([value["fn"]] if "fn" in value else []) + [name for v in value.values() for name in _called(v)]
    return []


def _at_this_step(value):
    """Return the value of a learning rate: a number, or a schedule (a function) at the current step."""
    if not callable(value):
        return value
    count = core.create_state("updates", [], "int32", fluid.initializer.Constant(0))
    core.set_state("updates", count + 1)
    return value(count)


def _recorded_name(value):
    frame = core.current_frame("tests")
    everything = frame.made.values | frame.given.parameters | frame.given.feeds
    return next((name for name, known in everything.items() if known is value), None)
