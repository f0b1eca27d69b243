"""Golden cases: numbers of the original, as programs to run and arrays to compare; goldens/README.md says more."""

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

FOLDER = pathlib.Path(__file__).parent / "goldens"

# What the cases need and fluid does not have yet. A case that needs none of these must run, and its arrays must be in
# the folder; a test fails when one of these is there, so that the list stays true.
NOT_YET = {
    "layers.DynamicRNN",
    "layers.StaticRNN",
    "layers.add_position_encoding",
    "layers.chunk_eval",
    "layers.crf_decoding",
    "layers.ctc_greedy_decoder",
    "layers.dynamic_gru",
    "layers.dynamic_lstm",
    "layers.dynamic_lstmp",
    "layers.edit_distance",
    "layers.gru_unit",
    "layers.im2sequence",
    "layers.linear_chain_crf",
    "layers.lod_reset",
    "layers.lstm_unit",
    "layers.sequence_concat",
    "layers.sequence_conv",
    "layers.sequence_enumerate",
    "layers.sequence_expand",
    "layers.sequence_expand_as",
    "layers.sequence_last_step",
    "layers.sequence_pad",
    "layers.sequence_pool",
    "layers.sequence_reshape",
    "layers.sequence_scatter",
    "layers.sequence_softmax",
    "layers.warpctc",
    "nets.sequence_conv_pool",
}

# Cases that cannot run here at all.
IMPOSSIBLE = {
    "index/where": "the shape of its result depends on data, which a compiled program cannot have",
    "create/sequence_mask_max_float": "the size of its mask is the largest length, which is data",
}


@functools.cache
def index():
    """Read the index of all cases."""
    return json.loads((FOLDER / "index.json").read_text())


@functools.cache
def arrays_of(family):
    """Read the arrays of a family, by `CASE/KIND/VARIABLE`."""
    with np.load(FOLDER / f"{family}.npz") as file:
        return dict(file)


@dataclass(frozen=True)
class Case:
    """One case: its entry in the index, and its arrays by kind."""

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
        """Names of all functions of fluid that the case calls."""
        return set(_called(self.spec))

    def missing(self):
        """Those of them that are not there."""
        return sorted(name for name in self.needs() if find(name) is None)

    def tolerance(self, kind):
        return self.spec.get("tolerance") or index()["tolerance"][kind]

    def feeds(self, step):
        """What is fed at a step: arrays and SequenceBatches."""
        given = self.arrays("feed")
        return {name: _fed(feed, given[name], step) for name, feed in self.spec["feeds"].items()}

    def program(self, names=None):
        """Return the program function; `names` is filled with the names under which results are recorded."""

        def program():
            known = {name: _declare(name, feed) for name, feed in self.spec["feeds"].items()}
            for call in self.spec["calls"]:
                results = find(call["fn"])(**_resolve(call["args"], known))
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
    """List all cases."""
    return [Case(spec) for spec in index()["cases"]]


def find(name):
    """Find a function of fluid by its dotted name; None when it is not there."""
    value = fluid
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def flat(value):
    """Lay out a result as the goldens do: a sequence batch as its valid rows, one after the other."""
    if isinstance(value, core.SequenceBatch):
        return np.concatenate(value.rows()) if len(value.lengths) else np.asarray(value.data)
    return np.asarray(value)


def assert_close(got, want, tolerance, what):
    """Compare as the goldens demand: integers equal, floats within the tolerance, shapes up to dimensions of 1."""
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
    """Say of an initializer what the goldens say: the operation and its bounds, moments or value."""
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
    """Whether two such facts agree, up to the rounding of float32."""
    return got.keys() == want.keys() and all(
        got[k] == want[k] if isinstance(want[k], str) else math.isclose(got[k], want[k], rel_tol=1e-6, abs_tol=1e-7)
        for k in want
    )


def _declare(name, feed):
    if "lengths" in feed:
        return fluid.layers.data(name, feed["shape"][1:], feed["dtype"], lod_level=1)
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


def _called(value):
    if isinstance(value, list):
        return [name for v in value for name in _called(v)]
    if isinstance(value, dict):
        own = [key[1:] for key in value if key.startswith("$") and key != "$array"]
        return own + ([value["fn"]] if "fn" in value else []) + [name for v in value.values() for name in _called(v)]
    return []


def _at_this_step(value):
    """Evaluate a schedule, which is a function here and an array in the original, at the number of steps done."""
    if not callable(value):
        return value
    count = core.create_state("updates", [], "int32", fluid.initializer.Constant(0))
    core.set_state("updates", count + 1)
    return value(count)


def _recorded_name(value):
    frame = core.current_frame("tests")
    everything = frame.values | frame.parameters | frame.feeds
    return next((name for name, known in everything.items() if known is value), None)
