"""Equations: analysis of the jaxpr of a traced program, which finds gradients and mistakes that shapes do not show."""

import hashlib
import itertools
import os
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from fluid.core.frame import is_library

# `_FLAT`: primitives whose results have gradient 0 with respect to any input.
_FLAT = frozenset({"stop_gradient", "sign", "floor", "ceil", "round"})
# `_LAYOUT`: primitives that return the elements of their first input in another shape, order or dtype.
_LAYOUT = frozenset({"reshape", "broadcast_in_dim", "transpose", "squeeze", "convert_element_type", "copy"})
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
_SUMS = frozenset({"add", "sub", "add_any"})
# `_GROUPS`: primitives that only call a function. The function `digest`, a hash of equations, does not read such a
# call, but the equations of the called function.
_GROUPS = frozenset({"jit", "pjit", "closed_call", "checkpoint", "remat2"})
# `_COSTS`: loss layers whose result is smaller for a better network.
_COSTS = frozenset(
    "bpr_loss cross_entropy dice_loss hsigmoid huber_loss kldiv_loss linear_chain_crf log_loss margin_rank_loss "
    "mse_loss nce npair_loss rank_loss sampled_softmax_with_cross_entropy sigmoid_cross_entropy_with_logits "
    "sigmoid_focal_loss smooth_l1 softmax_with_cross_entropy square_error_cost ssd_loss warpctc yolov3_loss".split()
)
# `_LABEL`: the prefix of names that fluid writes into equations. Names that users write into equations, for
# `jax.checkpoint`, do not have this prefix.
_LABEL = "fluid:"
# `DEVICE`: the first part of the JAX name scope that `with fluid.device_guard(...)` writes into equations.
DEVICE = "device_guard("
DEFAULT = "default"  # in equations, the device name that means the device of the Session
_JAX = os.path.dirname(jax.__file__) + os.sep


def with_slope(jaxpr: Any, sources: Mapping[str, Any], target: Any, through_steps: bool = False) -> set[str]:
    """Return the names of the variables with respect to which a target has a gradient, according to the equations.

    For loops, branches and functions with custom derivatives, the function assumes a gradient for every input.

    Args:
      through_steps: also count dependence through integers, comparisons and rounding, which have no gradient; only
        `stop_gradient` ends the dependence.
    """
    flat = frozenset({"stop_gradient"}) if through_steps else _FLAT
    moving: dict[Any, frozenset[str]] = {}
    for name, variable in sources.items():
        moving[variable] = moving.get(variable, frozenset()) | {name}
    _spread(jaxpr, moving, flat, "" if through_steps else "bui")
    return set() if is_literal(target) else set(moving.get(target, ()))


def unneeded(function: Callable[..., Any], candidates: Mapping[str, Any], *rest: Any) -> set[str]:
    """Return the names of those arrays in `candidates` that do not affect the results of a function."""
    return unread(jax.make_jaxpr(function)(dict(candidates), *rest).jaxpr, candidates)


def unread(jaxpr: Any, candidates: Mapping[str, Any]) -> set[str]:
    """Return the names of those arrays in `candidates` that do not affect the results of a jaxpr."""
    live = {id(v) for v in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if any(id(v) in live for v in equation.outvars):
            live |= {id(v) for v in equation.invars}
    leaves = jax.tree_util.tree_leaves_with_path(dict(candidates))
    used = {path[0].key for (path, _), v in zip(leaves, jaxpr.invars, strict=False) if id(v) in live}
    return set(candidates) - used


def independent(jaxpr: Any) -> Any:
    """Return a copy of a jaxpr without equations that depend on its inputs but do not affect its results.

    Equations with side effects, such as printing by `layers.Print`, are removed too.

    Example:
      >>> def function(x):
      ...     jax.debug.print("{}", x)
      ...     return jnp.sin(1.0)
      >>> [str(equation.primitive) for equation in independent(jax.make_jaxpr(function)(2.0).jaxpr).eqns]
      ['sin']
    """
    needed = {id(equation) for equation in live_equations(jaxpr)}
    dependent = set(jaxpr.invars)
    kept = []
    for equation in jaxpr.eqns:
        depends = any(not is_literal(v) and v in dependent for v in equation.invars)
        dependent |= set(equation.outvars) if depends else set()
        if not depends or id(equation) in needed:
            kept.append(equation)
    return jaxpr.replace(eqns=kept)


def _spread(jaxpr: Any, moving: dict[Any, frozenset[str]], flat: Collection[str], kinds: str) -> None:
    """Add to `moving` each variable of a jaxpr that depends on source variables, with the names of these sources."""
    for equation in jaxpr.eqns:
        inputs = [frozenset() if is_literal(v) else moving.get(v, frozenset()) for v in equation.invars]
        inner = called(equation)
        if inner is not None:
            inside = dict(zip(inner.invars, inputs, strict=True))
            _spread(inner, inside, flat, kinds)
            results = [frozenset() if is_literal(v) else inside.get(v, frozenset()) for v in inner.outvars]
        else:
            together = frozenset() if equation.primitive.name in flat else frozenset().union(*inputs)
            results = [together] * len(equation.outvars)
        for variable, sources in zip(equation.outvars, results, strict=True):
            if sources and variable.aval.dtype.kind not in kinds:
                moving[variable] = moving.get(variable, frozenset()) | sources


def arrays_differ(constants: Sequence[Any], others: Sequence[Any]) -> bool:
    """Return whether two traces of a program took arrays from outside that have equal shapes and other numbers."""
    return len(constants) == len(others) and any(
        _is_array(first) and _is_array(second) and first.shape == second.shape and not np.array_equal(first, second)
        for first, second in zip(constants, others, strict=True)
    )


def fixed_noise(jaxpr: Any, moving: Collection[Any], batch: int) -> list[str]:
    """Return the user's source lines that draw random numbers for the batch from a key that is equal in every step.

    Constant keys from the argument `seed=` of layers, and random arrays of a fixed size, cause no report,
    because both may be intended.
    """
    found: dict[str, None] = {}
    moving = set(moving)
    for equation in jaxpr.eqns:
        if _draws_rows(equation, moving, batch):
            if is_called_by_user(equation):
                found[user_line(equation)] = None
        if any(not is_literal(v) and v in moving for v in equation.invars):
            moving |= {*equation.outvars}
    return list(found)


def is_called_by_user(equation: Any) -> bool:
    """Return whether the user's code has created an equation, directly or by a function of JAX, not a layer."""
    caller = next((f for f in frames(equation) if not f.file_name.startswith(_JAX)), None)
    return caller is not None and not is_library(caller.file_name)


def _draws_rows(equation: Any, moving: Collection[Any], batch: int) -> bool:
    """Return whether an equation draws random numbers with a batch dimension from a constant key."""
    inputs = [not is_literal(v) and v in moving for v in equation.invars]
    inner = called(equation)
    if inner is None:
        return equation.primitive.name == "random_bits" and not any(inputs) and batch in equation.outvars[0].aval.shape
    inside = {v for v, moves in zip(inner.invars, inputs, strict=True) if moves}
    for each in inner.eqns:
        if _draws_rows(each, inside, batch):
            return True
        if any(not is_literal(v) and v in inside for v in each.invars):
            inside |= {*each.outvars}
    return False


def negated_cost(jaxpr: Any, loss: Any) -> str | None:
    """Return the name of the loss layer, such as "cross_entropy", if a program minimises its negative; else None."""
    makers, negative = _Makers(jaxpr), False
    while len(origins := makers.origins(loss)) == 1:
        equation, makers = origins[0]
        scopes = str(equation.source_info.name_stack).split("/")
        layer = next((scope for scope in scopes if not scope.startswith(DEVICE)), "")
        if layer in _COSTS:
            return layer if negative else None
        name = equation.primitive.name
        values = [v for v in equation.invars if not is_literal(v)]
        known = ("neg", "reduce_sum", "div") if len(values) > 1 else ("neg", "reduce_sum", "div", "mul", "add", "sub")
        if name not in known or not values or name in ("div", "reduce_sum") and is_literal(equation.invars[0]):
            return None
        below = name in ("mul", "div") and any(is_literal(v) and v.val < 0 for v in equation.invars)
        negative ^= below or name == "neg" or name == "sub" and is_literal(equation.invars[0])
        loss = values[0]
    return None


def beyond(jaxpr: Any, unknown: Collection[int]) -> list[tuple[str, int, int]]:
    """Find constant indices that are out of range; return the user's source line, the index and the size for each.

    For a constant index in range, JAX uses `slice`. For an index out of range it uses `dynamic_slice`, which reads the
    nearest element without an error.
    """
    makers = {v: e for e in jaxpr.eqns for v in e.outvars}
    found: dict[tuple[str, int, int], None] = {}
    for equation in jaxpr.eqns:
        for inner in inner_jaxprs(equation):
            found |= dict.fromkeys(beyond(inner, unknown))
        if equation.primitive.name != "dynamic_slice":
            continue
        for start, size in zip(equation.invars[1:], equation.invars[0].aval.shape, strict=True):
            chosen = None if is_literal(start) else makers.get(start)
            if chosen is None or chosen.primitive.name != "select_n" or not is_literal(chosen.invars[1]):
                continue
            index = int(chosen.invars[1].val)
            if size not in unknown and not -size <= index < size:
                found[user_line(equation), index, size] = None
    return list(found)


def has_arrays(constants: Sequence[Any]) -> bool:
    """Return whether any constant of a trace is an array of several numbers, which may be random numbers of NumPy."""
    return any(map(_is_array, constants))


def _is_array(value: Any) -> bool:
    return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.size > 1


def maker_of(jaxpr: Any, variable: Any) -> str | None:
    """Return the kind of computation, such as "softmax", that computes a value."""
    makers = [_kind_of(*origin) for origin in _Makers(jaxpr).origins(variable)]
    if "product" in makers:
        return "product"
    return makers[0] if len(set(makers)) == 1 else None


def _kind_of(equation: Any, makers: "_Makers") -> str | None:
    """Return the kind of computation of one equation, such as "softmax", as `maker_of` does; None for other kinds."""
    name = equation.primitive.name
    terms = equation.invars if name in _SUMS else equation.outvars
    if any(_is_product(*origin) for term in terms for origin in makers.origins(term)):
        return "product"
    if name == "sub":  # a log_softmax is x - log(sum(exp(x)))
        logs = [origin for origin in makers.origins(equation.invars[1]) if origin[0].primitive.name == "log"]
        sums = [e.primitive.name for log, inside in logs for e, _ in inside.origins(log.invars[0])]
        return "log" if sums == ["reduce_sum"] else None
    if name == "div":  # a softmax divides exp(x) by the sum of the same exp(x)
        above, below = ([e for e, _ in makers.origins(v)] for v in equation.invars)
        is_softmax = len(above) == len(below) == 1 and below[0].primitive.name == "reduce_sum"
        return "softmax" if is_softmax and below[0].invars[0] in above[0].outvars else None
    if name == "custom_jvp_call":
        return "relu" if _is_relu(equation.params["call_jaxpr"].jaxpr) else None
    return {"logistic": "sigmoid", "tanh": "tanh", "log": "log"}.get(name)


def _is_product(equation: Any, makers: "_Makers") -> bool:
    """Return whether an equation is a matrix product or convolution whose result is not limited to probabilities.

    A product of a softmax with another softmax or with one-hot rows returns False, because its elements are
    probabilities again.
    """
    if equation.primitive.name not in _PRODUCTS:
        return False
    factors = [origin for v in equation.invars for origin in makers.origins(v)]
    return len(factors) < 2 or not all(e.primitive.name == "eq" or _kind_of(e, m) == "softmax" for e, m in factors)


def _is_relu(jaxpr: Any) -> bool:
    """Return whether a jaxpr with one input computes `max(x, 0)`."""
    if len(jaxpr.eqns) != 1:
        return False
    equation = jaxpr.eqns[0]
    inner = called(equation)
    if inner is not None:
        return _is_relu(inner)
    return equation.primitive.name == "max" and any(is_literal(v) and v.val == 0 for v in equation.invars)


def label(name: str, value: Any) -> None:
    """Write the name of a value into the traced equations, as an equation that computes nothing.

    A trace can return named values outside loops as results. It cannot return values inside a loop, so a label marks
    their variables in the equations.
    """
    checkpoint_name(jax.tree.leaves(value)[0], _LABEL + name)


def labelled(equation: Any) -> str | None:
    """Return the name of a value that `label` wrote into an equation; None for an equation without a label."""
    name = equation.params.get("name", "") if equation.primitive.name == "name" else ""
    return name.removeprefix(_LABEL) if name.startswith(_LABEL) else None


def device_in(equation: Any) -> str:
    """Return the device of the innermost `with fluid.device_guard(...)` around an equation, or "" without a guard.

    The result `DEFAULT` means the device of the Session.
    """
    _, found, rest = str(equation.source_info.name_stack).rpartition(DEVICE)
    return rest.partition(")")[0] if found else ""


def live_equations(jaxpr: Any, targets: Iterable[Any] | None = None) -> list[Any]:
    """Return the equations that affect the targets, in the order of the jaxpr."""
    live = {v for v in (jaxpr.outvars if targets is None else targets) if not is_literal(v)}
    found = []
    for equation in reversed(jaxpr.eqns):
        if any(v in live for v in equation.outvars):
            live |= {v for v in equation.invars if not is_literal(v)}
            found.append(equation)
    return found[::-1]


def needed_by(jaxpr: Any, targets: Iterable[Any]) -> set[Any]:
    """Return the variables in `targets` and all variables that affect them; printed values count as targets."""
    effects = [v for equation in jaxpr.eqns if equation.effects for v in equation.invars]
    wanted = [v for v in (*targets, *effects) if not is_literal(v)]
    read = (v for equation in live_equations(jaxpr, wanted) for v in equation.invars if not is_literal(v))
    return {*wanted, *read}


def inner_functions(equation: Any) -> list[Any]:
    """Return the jaxprs of the functions that an equation calls, closed if they are stored with their constants."""
    # Do not use `jax.extend.core.jaxprs_in_params`: importing `jax.extend.core` takes longer than importing `fluid`.
    values = (value if isinstance(value, tuple | list) else [value] for value in equation.params.values())
    return [v for v in itertools.chain.from_iterable(values) if hasattr(getattr(v, "jaxpr", v), "eqns")]


def inner_jaxprs(equation: Any) -> list[Any]:
    """Return the open jaxprs of the functions that an equation calls, such as loop bodies, branches and conditions."""
    return [getattr(function, "jaxpr", function) for function in inner_functions(equation)]


def count(jaxpr: Any) -> int:
    """Return the number of equations of a jaxpr and its inner functions; an equation in a loop counts once.

    Example:
      >>> count(jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(1.0).jaxpr)
      2
    """
    return sum(1 + sum(map(count, inner_jaxprs(equation))) for equation in jaxpr.eqns)


def digest(jaxpr: Any, targets: Sequence[Any]) -> str:
    """Return a checksum of the equations that affect the targets.

    All processes with equal JAX versions get equal checksums. Names, the numbers in constant arrays, and functions that
    only group equations, such as `jax.checkpoint`, do not change the checksum.

    Example:
      >>> jaxprs = [jax.make_jaxpr(f)(1.0).jaxpr for f in (jnp.sin, jax.checkpoint(jnp.sin), jnp.cos)]
      >>> first, grouped, other = (digest(jaxpr, jaxpr.outvars) for jaxpr in jaxprs)
      >>> first == grouped, first == other
      (True, False)
    """
    found = hashlib.blake2b(digest_size=16)
    for _, text in described(jaxpr, targets):
        found.update(text.encode())
    return found.hexdigest()


def described(jaxpr: Any, targets: Sequence[Any], numbers: Mapping[Any, str] = {}) -> Iterator[tuple[Any, str]]:  # noqa: B006
    """Yield each equation that affects the targets, and a text that is equal for equal equations of two traces.

    Names, and functions that only group equations, do not change the texts.
    """
    known: dict[Any, str] = dict(numbers)
    fresh = itertools.count()

    def number(variable: Any) -> str:
        if is_literal(variable):
            return str(variable.val) if np.ndim(variable.val) == 0 else str(variable.aval)
        # The checksum of a program includes no dtypes of variables, because dtypes are slow to convert to text. A
        # conversion to another dtype is an equation, which the checksum includes.
        if variable not in known:
            known[variable] = f"{next(fresh)} {getattr(variable.aval, 'shape', '')}"
        return known[variable]

    def texts(equations: Sequence[Any]) -> Iterator[tuple[Any, str]]:
        for equation in equations:
            inner = list(inner_jaxprs(equation))
            name = equation.primitive.name
            if name == "name":
                known[equation.outvars[0]] = number(equation.invars[0])
            elif name in _GROUPS and len(inner) == 1 and len(inner[0].invars) == len(equation.invars):
                known.update(zip(inner[0].invars, map(number, equation.invars), strict=True))
                yield from texts(live_equations(inner[0]))
                known.update(zip(equation.outvars, map(number, inner[0].outvars), strict=True))
            else:
                settings = [f"{key}={text}" for key, text in _settings(equation)]
                read = map(number, equation.invars)
                made = map(number, equation.outvars)
                yield equation, "\n".join([name, *settings, *read, *made, ""])
                for function in inner:
                    yield from texts(live_equations(function))

    return texts(live_equations(jaxpr, targets))


def checksums(jaxpr: Any, constants: Sequence[Any]) -> tuple[list[int], list[Any]]:
    """Return a checksum of each equation that affects the results of a trace, and the equations.

    Two traces of a program at equal sizes give equal checksums, unless an equation, a number in it or an array from
    outside differs.

    Example:
      >>> def of(function):
      ...     closed = jax.make_jaxpr(function)(1.0)
      ...     return checksums(closed.jaxpr, closed.consts)[0]
      >>> of(lambda x: jnp.sin(2 * x)) == of(lambda x: jnp.sin(2 * x))
      True
      >>> [a == b for a, b in zip(of(lambda x: jnp.sin(2 * x)), of(lambda x: jnp.sin(3 * x)))]
      [False, True, True]
    """
    arrays = {v: f"array {_checksum(c)}" for v, c in zip(jaxpr.constvars, constants, strict=True)}
    pairs = [(hash(text), equation) for equation, text in described(jaxpr, jaxpr.outvars, arrays)]
    # A result may be a number or an array from outside, which no equation computes.
    results = [hash(arrays.get(v, "") if not is_literal(v) else str(v.val)) for v in jaxpr.outvars]
    return [number for number, _ in pairs] + results, [equation for _, equation in pairs]


def _checksum(constant: Any) -> int:
    """Return a checksum of the numbers of a constant array; random keys and tracers count as equal."""
    if isinstance(constant, jax.core.Tracer) or jnp.issubdtype(constant.dtype, jax.dtypes.prng_key):
        return 0
    if isinstance(constant, jax.Array) and not constant.is_fully_addressable:
        return 0
    return zlib.crc32(np.ascontiguousarray(constant).tobytes())


def _settings(equation: Any) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a JAX equation as pairs (key, text), for a hash of the equations.

    Names, functions and memory addresses are left out, because the hash must not depend on them.
    """
    for key, value in equation.params.items():
        if callable(value) or "jaxpr" in key or key in ("branches", "name"):
            continue
        text = repr(sorted(map(str, value))) if isinstance(value, set | frozenset) else repr(value)
        if " at 0x" not in text:
            yield key, text


def uses(jaxpr: Any, primitive: str) -> bool:
    """Return whether a jaxpr or one of its inner functions has an equation with the primitive `primitive`.

    Example:
      >>> uses(jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(1.0).jaxpr, "sin")
      True
    """
    return any(e.primitive.name == primitive or any(uses(i, primitive) for i in inner_jaxprs(e)) for e in jaxpr.eqns)


def user_line(equation: Any) -> str:
    """Return the innermost source line of the user that created an equation, as `file:line in function`."""
    frame = next((f for f in frames(equation) if not is_library(f.file_name)), None)
    return "unknown line" if frame is None else f"{frame.file_name}:{frame.line_num} in {frame.function_name}"


class _Makers:
    """A map from each variable of a jaxpr to the equation that computes it, also inside called functions."""

    def __init__(self, jaxpr: Any, outer: "_Makers | None" = None, arguments: Mapping[Any, Any] | None = None):
        self._makers = {v: e for e in jaxpr.eqns for v in e.outvars}
        self._outer = outer
        self._arguments = arguments or {}

    def origins(self, variable: Any) -> list[tuple[Any, "_Makers"]]:
        """Return the JAX equations that compute the elements of a variable.

        Reshapes and other changes of layout are skipped. For a selection such as `where`, the result includes the
        equations of all its cases.
        """
        if is_literal(variable):
            return []
        if variable in self._arguments and self._outer is not None:
            return self._outer.origins(self._arguments[variable])
        equation = self._makers.get(variable)
        if equation is None:
            return []
        if equation.primitive.name in _LAYOUT:
            return self.origins(equation.invars[0])
        if equation.primitive.name == "select_n":
            return [origin for case in equation.invars[1:] for origin in self.origins(case)]
        inner = called(equation)
        if inner is None:
            return [(equation, self)]
        makers = _Makers(inner, self, dict(zip(inner.invars, equation.invars, strict=True)))
        return makers.origins(inner.outvars[equation.outvars.index(variable)])


def called(equation: Any) -> Any:
    """Return the jaxpr of the called function, if an equation is a plain call such as `jit`; else None."""
    inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit", "closed_call") else None
    return None if inner is None else inner.jaxpr


def call_of(equation: Any) -> tuple[Any, ...]:
    """Return the call outside of JAX that created an equation: its instruction, and the instruction of each caller."""
    traceback = equation.source_info.traceback
    if traceback is None:
        return ()
    codes, instructions = traceback.raw_frames()
    calls = zip(codes, instructions, strict=True)
    return tuple(itertools.dropwhile(lambda call: call[0].co_filename.startswith(_JAX), calls))


def frames(equation: Any) -> Sequence[Any]:
    """Return the frames of the call stack that created an equation, innermost frame first."""
    traceback = equation.source_info.traceback
    return [] if traceback is None else traceback.frames


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return the number of constants and the number of carried values among the inputs of a `jax.lax.scan` equation.

    The inputs are constants, then carried values, then arrays of which each iteration gets one slice. Only sliced
    inputs have one dimension less inside the loop. The function compares the numbers of dimensions, because some JAX
    versions do not store the two counts.
    """
    body = equation.params["jaxpr"].jaxpr
    carried = sum(len(v.aval.shape) == len(w.aval.shape) for v, w in zip(equation.outvars, body.outvars, strict=True))
    whole = sum(len(v.aval.shape) == len(w.aval.shape) for v, w in zip(equation.invars, body.invars, strict=True))
    return whole - carried, carried


def is_literal(variable: Any) -> bool:
    """Return whether an input of an equation is a literal (a constant number) and not a variable."""
    return hasattr(variable, "val")


def filled(jaxpr: Any) -> list[np.ndarray] | None:
    """Return the results of a jaxpr that only fills arrays with constants, as NumPy arrays; None for any other jaxpr.

    NumPy avoids the compilation that XLA needs for each new set of shapes.

    Example:
      >>> filled(jax.make_jaxpr(lambda x: (jnp.zeros_like(x), jnp.full(3, 7, "int32")))(jnp.ones(2)).jaxpr)
      [array([0., 0.], dtype=float32), array([7, 7, 7], dtype=int32)]
      >>> filled(jax.make_jaxpr(lambda x: 2 * x)(jnp.ones(2)).jaxpr) is None
      True
    """
    known: dict[Any, Any] = {}
    for equation in jaxpr.eqns:
        scalars = [v.val for v in equation.invars if is_literal(v)]
        if equation.primitive.name != "broadcast_in_dim" or len(scalars) != 1 or np.ndim(scalars[0]):
            return None
        known[equation.outvars[0]] = scalars[0]
    wanted = jaxpr.outvars
    if any(v.aval.weak_type or not (is_literal(v) or v in known) for v in wanted):
        return None
    return [np.full(v.aval.shape, v.val if is_literal(v) else known[v], v.aval.dtype) for v in wanted]
