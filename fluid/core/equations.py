"""Equations: analysis of the jaxpr of a traced program, for gradients and for mistakes that shapes do not show."""

import hashlib
import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from fluid.core.frame import is_library

# Floating-point results of these primitives have gradient 0, for any inputs.
_FLAT = frozenset({"stop_gradient", "sign", "floor", "ceil", "round"})
# These primitives return the numbers of their first array input unchanged, in another shape, order or dtype.
_LAYOUT = frozenset({"reshape", "broadcast_in_dim", "transpose", "squeeze", "convert_element_type", "copy"})
_PRODUCTS = frozenset({"dot_general", "conv_general_dilated"})
_SUMS = frozenset({"add", "sub", "add_any"})
# Equations that only call a function: the equations of this function are read in place of the call.
_GROUPS = frozenset({"jit", "pjit", "closed_call", "checkpoint", "remat2"})
# Loss layers whose result is smaller for a better net.
_COSTS = frozenset(
    "bpr_loss cross_entropy dice_loss hsigmoid huber_loss kldiv_loss linear_chain_crf log_loss margin_rank_loss "
    "mse_loss nce npair_loss rank_loss sampled_softmax_with_cross_entropy sigmoid_cross_entropy_with_logits "
    "sigmoid_focal_loss smooth_l1 softmax_with_cross_entropy square_error_cost ssd_loss warpctc yolov3_loss".split()
)
# The prefix of the names that `label` writes; names that users write for policies of `jax.checkpoint` lack it.
_LABEL = "fluid:"
# The beginning of the name scope of `with fluid.device_guard(...)`, which JAX writes into the equations inside.
DEVICE = "device_guard("
DEFAULT = "default"  # the device of the Session
_JAX = os.path.dirname(jax.__file__) + os.sep


def with_slope(jaxpr: Any, sources: Mapping[str, Any], target: Any, through_steps: bool = False) -> set[str]:
    """Return the names of the sources with respect to which a target has a gradient, as far as equations can tell.

    Loops, branches and functions with custom derivatives count as having a gradient with respect to all their inputs.

    Args:
      jaxpr: the equations.
      sources: variables by name.
      target: a variable, or a literal.
      through_steps: also count dependence through values without a gradient, such as whole numbers and rounded values;
        only `stop_gradient` ends it.
    """
    flat = frozenset({"stop_gradient"}) if through_steps else _FLAT
    moving: dict[Any, frozenset[str]] = {}
    for name, variable in sources.items():
        moving[variable] = moving.get(variable, frozenset()) | {name}
    _spread(jaxpr, moving, flat, "" if through_steps else "bui")
    return set() if is_literal(target) else set(moving.get(target, ()))


def unneeded(function: Callable[..., Any], candidates: Mapping[str, Any], *rest: Any) -> set[str]:
    """Return the names of the candidates that the results of a function do not depend on.

    Args:
      function: traced with `candidates` and `rest` as arguments.
      candidates: arrays by name.
      rest: further arguments.
    """
    return unread(jax.make_jaxpr(function)(dict(candidates), *rest).jaxpr, candidates)


def unread(jaxpr: Any, candidates: Mapping[str, Any]) -> set[str]:
    """Return the names of the candidates that the results of a jaxpr do not depend on.

    Args:
      jaxpr: the equations, whose first inputs are the leaves of the candidates.
      candidates: arrays by name.
    """
    live = {id(v) for v in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if any(id(v) in live for v in equation.outvars):
            live |= {id(v) for v in equation.invars}
    leaves = jax.tree_util.tree_leaves_with_path(dict(candidates))
    used = {path[0].key for (path, _), v in zip(leaves, jaxpr.invars, strict=False) if id(v) in live}
    return set(candidates) - used


def independent(jaxpr: Any) -> Any:
    """Return a jaxpr without the equations that depend on its inputs and that its results do not need.

    Equations with effects, such as the equations of `layers.Print`, are left out too.

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
    """Add to `moving`, for each variable of a jaxpr, the names of the sources that it depends on.

    Results of primitives in `flat`, and results whose dtype kind is in `kinds`, depend on no source.
    """
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


def squared_batches(jaxpr: Any, batch: int, targets: Collection[Any]) -> list[str]:
    """Return the user's lines where arithmetic broadcast `[batch, 1]` and `[batch]` to `[batch, batch]`.

    Broadcasting does this without a warning, and it is mostly a mistake. Code that writes both dimensions down, as in
    `x[:, None] - y[None, :]`, is intended, and is left out.

    Args:
      jaxpr: the equations.
      batch: the stand-in for the batch size.
      targets: variables; only equations that a target depends on count.
    """
    makers = {v: e for e in jaxpr.eqns for v in e.outvars}
    found: dict[str, None] = {}
    for equation in _behind(targets, makers):
        if list(equation.outvars[0].aval.shape).count(batch) < 2:
            continue
        makings = [makers[v] for v in equation.invars if not is_literal(v) and v in makers]
        if any(m.primitive.name == "broadcast_in_dim" and _one_call(m, equation) for m in makings):
            if all(list(v.aval.shape).count(batch) < 2 for v in equation.invars):
                found[user_line(equation)] = None
    return list(found)


def unsteady(jaxpr: Any, constants: Sequence[Any], others: Sequence[Any]) -> list[str]:
    """Return the user's lines that use an array whose numbers differ between two traces of a program.

    Args:
      jaxpr: the equations of the first trace.
      constants: the arrays that the first trace took from outside, in the order of its constant variables.
      others: the arrays that the second trace took from outside.
    """
    if len(constants) != len(others):
        return []
    differing = {
        variable
        for variable, first, second in zip(jaxpr.constvars, constants, others, strict=True)
        if _is_array(first) and _is_array(second) and first.shape == second.shape and not np.array_equal(first, second)
    }
    used = (e for e in jaxpr.eqns if any(not is_literal(v) and v in differing for v in e.invars))
    return list(dict.fromkeys(user_line(equation) for equation in used))


def fixed_noise(jaxpr: Any, moving: Collection[Any], batch: int) -> list[str]:
    """Return the user's lines that draw random numbers for each row of the batch from a key that never changes.

    Constant keys of layers, from their argument `seed=`, and arrays of a fixed size are left out, as both may be
    intended.

    Args:
      jaxpr: the equations.
      moving: the variables that differ from step to step, such as feeds and the key of the step.
      batch: the stand-in for the batch size.
    """
    found: dict[str, None] = {}
    moving = set(moving)
    for equation in jaxpr.eqns:
        if _draws_rows(equation, moving, batch):
            caller = next((f for f in frames(equation) if not f.file_name.startswith(_JAX)), None)
            if caller is not None and not is_library(caller.file_name):
                found[user_line(equation)] = None
        if any(not is_literal(v) and v in moving for v in equation.invars):
            moving |= {*equation.outvars}
    return list(found)


def _draws_rows(equation: Any, moving: Collection[Any], batch: int) -> bool:
    """Return whether an equation draws random numbers for each row of the batch from a constant key."""
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
    """Return the name of the loss layer, such as "cross_entropy", if a program minimises its negative; else None.

    Args:
      jaxpr: the equations.
      loss: the variable that is minimised.
    """
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
    """Return the user's line, the index and the size for each constant index that is out of range.

    JAX reads an element in range by `slice`, and one out of range by `dynamic_slice`, which reads the nearest element.

    Args:
      jaxpr: the equations.
      unknown: sizes that are stand-ins, such as the batch size.
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
    """Return whether an array that a trace took from outside has several numbers, so that `unsteady` may find it."""
    return any(map(_is_array, constants))


def _is_array(value: Any) -> bool:
    """Return whether a constant is an array of several numbers; a single number may depend on the batch size."""
    return not jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and value.size > 1


def maker_of(jaxpr: Any, variable: Any) -> str | None:
    """Return the kind of computation that made a value.

    Args:
      jaxpr: the equations.
      variable: the value.

    Returns:
      "product" for a matrix product or a convolution, with or without a bias; "sigmoid", "softmax", "relu" or "tanh";
      "log" for a logarithm or a log_softmax; None for every other computation.
    """
    makers = [_kind_of(*origin) for origin in _Makers(jaxpr).origins(variable)]
    if "product" in makers:
        return "product"
    return makers[0] if len(set(makers)) == 1 else None


def _kind_of(equation: Any, makers: "_Makers") -> str | None:
    """Return the kind of computation of one equation, as `maker_of` does for a value.

    Args:
      equation: the equation.
      makers: the _Makers that know the inputs of the equation.
    """
    name = equation.primitive.name
    terms = equation.invars if name in _SUMS else equation.outvars
    if any(_is_product(*origin) for term in terms for origin in makers.origins(term)):
        return "product"
    if name == "sub":  # a log_softmax is x - log(sum(exp(x)))
        logs = [origin for origin in makers.origins(equation.invars[1]) if origin[0].primitive.name == "log"]
        sums = [e.primitive.name for log, inside in logs for e, _ in inside.origins(log.invars[0])]
        return "log" if sums == ["reduce_sum"] else None
    if name == "div":  # a softmax is exp(x) / sum(exp(x)), with one exponential for both
        above, below = ([e for e, _ in makers.origins(v)] for v in equation.invars)
        is_softmax = len(above) == len(below) == 1 and below[0].primitive.name == "reduce_sum"
        return "softmax" if is_softmax and below[0].invars[0] in above[0].outvars else None
    if name == "custom_jvp_call":
        return "relu" if _is_relu(equation.params["call_jaxpr"].jaxpr) else None
    return {"logistic": "sigmoid", "tanh": "tanh", "log": "log"}.get(name)


def _is_product(equation: Any, makers: "_Makers") -> bool:
    """Return whether an equation is a matrix product whose result may be any numbers.

    Products of softmaxes with each other or with one-hot rows do not count, because they mix or pick probabilities.
    """
    if equation.primitive.name not in _PRODUCTS:
        return False
    factors = [origin for v in equation.invars for origin in makers.origins(v)]
    return len(factors) < 2 or not all(e.primitive.name == "eq" or _kind_of(e, m) == "softmax" for e, m in factors)


def _is_relu(jaxpr: Any) -> bool:
    """Return whether a function of one array is `max(x, 0)`."""
    if len(jaxpr.eqns) != 1:
        return False
    equation = jaxpr.eqns[0]
    inner = called(equation)
    if inner is not None:
        return _is_relu(inner)
    return equation.primitive.name == "max" and any(is_literal(v) and v.val == 0 for v in equation.invars)


def last_values(jaxpr: Any) -> dict[str, Any]:
    """Return the variable of the last value that each line of the user computes, by `file:line`."""
    lines = ((user_line(e).rpartition(" in ")[0], e.outvars[-1]) for e in jaxpr.eqns if e.outvars)
    return {line: variable for line, variable in lines if line}


def label(name: str, value: Any) -> None:
    """Write the name of a value into the equations that are being traced. The label computes nothing.

    A named value outside of loops is a result of the trace. A named value inside a loop is not, so a label marks its
    variable in the equations.
    """
    checkpoint_name(jax.tree.leaves(value)[0], _LABEL + name)


def labelled(equation: Any) -> str | None:
    """Return the name that `label` wrote into an equation; None for other equations."""
    name = equation.params.get("name", "") if equation.primitive.name == "name" else ""
    return name.removeprefix(_LABEL) if name.startswith(_LABEL) else None


def device_in(equation: Any) -> str:
    """Return the device of the innermost `with fluid.device_guard(...)` around an equation; "" outside.

    `DEFAULT` stands for the device of the Session.
    """
    _, found, rest = str(equation.source_info.name_stack).rpartition(DEVICE)
    return rest.partition(")")[0] if found else ""


def live_equations(jaxpr: Any, targets: Iterable[Any] | None = None) -> list[Any]:
    """Return the equations that the targets depend on, in order.

    Args:
      jaxpr: the equations.
      targets: variables; by default all results of the jaxpr.
    """
    live = {v for v in (jaxpr.outvars if targets is None else targets) if not is_literal(v)}
    found = []
    for equation in reversed(jaxpr.eqns):
        if any(v in live for v in equation.outvars):
            live |= {v for v in equation.invars if not is_literal(v)}
            found.append(equation)
    return found[::-1]


def needed_by(jaxpr: Any, targets: Iterable[Any]) -> set[Any]:
    """Return the targets and all variables that they are computed from. Printed values count as targets."""
    effects = [v for equation in jaxpr.eqns if equation.effects for v in equation.invars]
    wanted = [v for v in (*targets, *effects) if not is_literal(v)]
    read = (v for equation in live_equations(jaxpr, wanted) for v in equation.invars if not is_literal(v))
    return {*wanted, *read}


def inner_jaxprs(equation: Any) -> Iterator[Any]:
    """Yield the functions that an equation calls: bodies, branches and conditions."""
    # `jax.extend.core` has a function for this, but its import takes longer than the import of this whole package.
    for value in equation.params.values():
        for item in value if isinstance(value, tuple | list) else [value]:
            inner = getattr(item, "jaxpr", item)
            if hasattr(inner, "eqns"):
                yield inner


def count(jaxpr: Any) -> int:
    """Return the number of equations, inner functions included; an equation in a loop counts once.

    Example:
      >>> count(jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(1.0).jaxpr)
      2
    """
    return sum(1 + sum(map(count, inner_jaxprs(equation))) for equation in jaxpr.eqns)


def digest(jaxpr: Any, targets: Sequence[Any]) -> str:
    """Return a checksum of the equations that targets are computed from.

    All processes with one version of JAX get one checksum. Names, arrays from Python, and functions that only group
    equations, such as `jax.checkpoint`, do not change the checksum.

    Args:
      jaxpr: the equations.
      targets: variables, or literals.

    Example:
      >>> jaxprs = [jax.make_jaxpr(f)(1.0).jaxpr for f in (jnp.sin, jax.checkpoint(jnp.sin), jnp.cos)]
      >>> first, grouped, other = (digest(jaxpr, jaxpr.outvars) for jaxpr in jaxprs)
      >>> first == grouped, first == other
      (True, False)
    """
    found = hashlib.blake2b(digest_size=16)
    numbers: dict[Any, str] = {}
    fresh = itertools.count()

    def number(variable: Any) -> str:
        if is_literal(variable):
            return str(variable.val) if np.ndim(variable.val) == 0 else str(variable.aval)
        if variable not in numbers:  # without the dtype: slow to write, and equations that convert show it
            numbers[variable] = f"{next(fresh)} {getattr(variable.aval, 'shape', '')}"
        return numbers[variable]

    def add(equations: Sequence[Any]) -> None:
        for equation in equations:
            inner = list(inner_jaxprs(equation))
            name = equation.primitive.name
            if name == "name":
                numbers[equation.outvars[0]] = number(equation.invars[0])
            elif name in _GROUPS and len(inner) == 1 and len(inner[0].invars) == len(equation.invars):
                numbers.update(zip(inner[0].invars, map(number, equation.invars), strict=True))
                add(live_equations(inner[0]))
                numbers.update(zip(equation.outvars, map(number, inner[0].outvars), strict=True))
            else:
                settings = [f"{key}={text}" for key, text in _settings(equation)]
                read = map(number, equation.invars)
                made = map(number, equation.outvars)
                found.update("\n".join([name, *settings, *read, *made, ""]).encode())
                for function in inner:
                    add(live_equations(function))

    add(live_equations(jaxpr, targets))
    return found.hexdigest()


def _settings(equation: Any) -> Iterator[tuple[str, str]]:
    """Yield the parameters of an equation as text, without names, functions, and texts with a memory address."""
    for key, value in equation.params.items():
        if callable(value) or "jaxpr" in key or key in ("branches", "name"):
            continue
        text = repr(sorted(map(str, value))) if isinstance(value, set | frozenset) else repr(value)
        if " at 0x" not in text:
            yield key, text


def uses(jaxpr: Any, primitive: str) -> bool:
    """Return whether an equation of a jaxpr, or of an inner function, has the primitive with this name.

    Example:
      >>> uses(jax.make_jaxpr(lambda x: jnp.sin(x) + 1)(1.0).jaxpr, "sin")
      True
    """
    return any(e.primitive.name == primitive or any(uses(i, primitive) for i in inner_jaxprs(e)) for e in jaxpr.eqns)


def user_line(equation: Any) -> str:
    """Return the user's innermost line that made an equation, as `file:line in function`."""
    frame = next((f for f in frames(equation) if not is_library(f.file_name)), None)
    return "unknown line" if frame is None else f"{frame.file_name}:{frame.line_num} in {frame.function_name}"


class _Makers:
    """A map from each variable to its maker, the equation that computes it. Called functions are searched too.

    Args:
      jaxpr: the equations.
      outer: the _Makers of the equations that call this function; None for the outermost equations.
      arguments: by each argument variable of a called function, the variable that the call passes.
    """

    def __init__(self, jaxpr: Any, outer: "_Makers | None" = None, arguments: Mapping[Any, Any] | None = None):
        self._makers = {v: e for e in jaxpr.eqns for v in e.outvars}
        self._outer = outer
        self._arguments = arguments or {}

    def origins(self, variable: Any) -> list[tuple[Any, "_Makers"]]:
        """Return the equations that compute the numbers in a variable; several, if a selection chooses among them.

        Changes of layout, such as a reshape, are skipped. A selection has the origins of all its cases.

        Returns:
          Pairs of an equation, and the _Makers of the variables that the equation reads.
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


def _behind(targets: Collection[Any], makers: Mapping[Any, Any]) -> Iterator[Any]:
    """Yield each equation that the targets depend on, once; `makers` holds the equation that computes a variable."""
    waiting = [v for v in targets if not is_literal(v)]
    seen: set[int] = set()
    while waiting:
        equation = makers.get(waiting.pop())
        if equation is not None and id(equation) not in seen:
            seen.add(id(equation))
            waiting += [v for v in equation.invars if not is_literal(v)]
            yield equation


def called(equation: Any) -> Any:
    """Return the jaxpr of the called function, if the equation is only a call; else None."""
    inner = equation.params.get("jaxpr") if equation.primitive.name in ("jit", "pjit", "closed_call") else None
    return None if inner is None else inner.jaxpr


def _one_call(first: Any, second: Any) -> bool:
    """Return whether two equations have equal call stacks, so that one call by the user made both."""
    return _places(first) == _places(second)


def _places(equation: Any) -> Sequence[tuple[str, int]]:
    return [(f.file_name, f.line_num) for f in frames(equation)]


def frames(equation: Any) -> Sequence[Any]:
    """Return the call stack that made an equation, innermost first."""
    traceback = equation.source_info.traceback
    return [] if traceback is None else traceback.frames


def scan_counts(equation: Any) -> tuple[int, int]:
    """Return the number of constants of a scan, and the number of values that the scan carries.

    Constants come first among the inputs, then carried values. The other inputs are read step by step, so a step sees
    one dimension less. Some releases of JAX do not write the two numbers into the equation.

    Args:
      equation: the equation of a scan.
    """
    body = equation.params["jaxpr"].jaxpr
    carried = sum(len(v.aval.shape) == len(w.aval.shape) for v, w in zip(equation.outvars, body.outvars, strict=True))
    whole = sum(len(v.aval.shape) == len(w.aval.shape) for v, w in zip(equation.invars, body.invars, strict=True))
    return whole - carried, carried


def is_literal(variable: Any) -> bool:
    """Return whether an input of an equation is a literal, not a variable."""
    return hasattr(variable, "val")


def filled(jaxpr: Any) -> list[np.ndarray] | None:
    """Return the results of equations that only fill arrays with constants, as NumPy arrays; else None.

    With XLA, each set of shapes would need a compilation.

    Args:
      jaxpr: the equations.

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
