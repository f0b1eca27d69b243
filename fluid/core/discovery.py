"""Discovery: one traced run of a program function on dummy data, its results, and warnings about likely mistakes.

One of the warnings is for two successive weights that both start as zeros: the units (outputs) of the first weight stay
equal to each other during training.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid.core.equations import (
    beyond,
    called,
    fixed_noise,
    is_literal,
    maker_of,
    needed_by,
    negated_cost,
    with_slope,
)
from fluid.core.explain import explained_error, shape_text, traced_as
from fluid.core.frame import TRAIN, Array, Frame, ParameterSpec, begins_path, current_frame, running, warn
from fluid.core.reduction import Reduction, said_of
from fluid.core.rows import paired_rows
from fluid.core.sequence import NestedSequenceBatch, SequenceBatch, data_of
from fluid.core.updates import check_not_changed

_LAYOUT = frozenset({"reshape", "transpose", "squeeze", "convert_element_type", "copy"})
# The public attributes of fluid.Results, which would hide outputs of equal names.
_OF_RESULTS = frozenset({"count", "get", "index", "items", "keys", "names", "unread", "values"})
_WEIGHT, _DEAD, _ALIVE = "weight", "dead", ("alive", "")


def stacked_zeros(
    jaxpr: Any, parameters: Mapping[str, Any], specs: Mapping[str, ParameterSpec], moving: Collection[Any]
) -> tuple[str, str] | None:
    """Return the names of two successive weights that both start as zeros; None if there are none.

    Successive means that the data reaches the second weight only through the first. Then the first weight has no
    gradient while the second weight is 0, and later the units (outputs) of the first weight stay equal to each other. A
    zero weight at the end of a residual block is harmless, because the data also takes the other path.
    """
    constant = {n: v for n, v in parameters.items() if _is_constant(specs[n])}
    matrices = [n for n in constant if specs[n].trainable and len(specs[n].shape) > 1 and _is_zero(specs[n])]
    if len(matrices) < 2:
        return None
    kinds = {v: _ALIVE for v in set(moving) - set(constant.values())}
    return _found(jaxpr, kinds | {constant[n]: (_WEIGHT, n) for n in matrices}, specs)


def _found(jaxpr: Any, kinds: dict[Any, tuple[str, str]], specs: Mapping[str, ParameterSpec]) -> tuple[str, str] | None:
    """Return the names of the first two successive zero weights, in the order of the equations; None if there are none.

    Args:
      kinds: for each variable its kind and the name of a weight. "weight" is a zero weight, perhaps reshaped or
        transposed. "dead" is a variable that depends on the data only through the named zero weight. "alive" is any
        other variable. The function adds the kinds of the results of the equations.
    """
    for equation in jaxpr.eqns:
        inputs = [None if is_literal(v) else kinds.get(v) for v in equation.invars]
        known = [kind for kind in inputs if kind is not None]
        weight, before = (next((name for kind, name in known if kind == each), None) for each in (_WEIGHT, _DEAD))
        primitive = equation.primitive.name
        inner = called(equation)
        result: tuple[str, str] | None = None
        # Several equations may call one inner function, and its variables are the same objects in each call. So each
        # call needs a separate dict from variables to kinds.
        if inner is not None:
            inside = {v: kind for v, kind in zip(inner.invars, inputs, strict=True) if kind is not None}
            if pair := _found(inner, inside, specs):
                return pair
            results = [None if is_literal(v) else inside.get(v) for v in inner.outvars]
            kinds |= {v: kind for v, kind in zip(equation.outvars, results, strict=True) if kind is not None}
        elif weight is not None and primitive in ("dot_general", "conv_general_dilated"):
            if before is not None and _units(specs[before]) > 1:
                return before, weight
            result = (_DEAD, weight)
        elif _ALIVE in known:
            result = _ALIVE
        elif before is not None:
            result = (_DEAD, before)
        elif weight is not None and primitive in _LAYOUT:
            result = (_WEIGHT, weight)
        if result is not None:
            kinds |= dict.fromkeys(equation.outvars, result)
    return None


def _units(spec: ParameterSpec) -> int:
    """Return the number of output units of a weight `[in, out]`, or of output channels of a filter `[out, in, ...]`."""
    return spec.shape[1] if len(spec.shape) == 2 else spec.shape[0]


def _is_constant(spec: ParameterSpec) -> bool:
    return np.ndim(getattr(spec.initializer, "value", np.zeros(2))) == 0 or _is_zero(spec)


def _is_zero(spec: ParameterSpec) -> bool:
    value = getattr(spec.initializer, "value", None)
    return spec.initializer is jax.nn.initializers.zeros or (value is not None and not np.any(value))


# `_KINDS` describes the kinds of values that layers expect, such as probabilities or logits. Each entry has the name of
# the kind in messages, and the computations (keys of `_MAKERS`) whose results are most likely of another kind. For
# example, a layer that expects logits should not get the result of a sigmoid.
_KINDS = {
    "probabilities": ("probabilities", {"product", "relu", "tanh", "log", "dropout", "norm"}),
    "shares": (
        "probabilities of classes, which add up to 1 in each row",
        {"product", "relu", "tanh", "log", "dropout", "norm", "sigmoid"},
    ),
    "logarithms": ("logarithms of probabilities", {"sigmoid", "softmax", "relu", "tanh", "product", "dropout"}),
    "logits": ("logits, which may be any numbers", {"sigmoid", "softmax", "relu", "tanh"}),
    "labels": ("labels", {"product", "sigmoid", "softmax", "relu", "tanh", "log"}),
    "scores": ("scores, which may be any numbers", {"sigmoid", "softmax"}),
}
# `_MAKERS`: for each kind of computation that `maker_of` finds, such as "product", the words for its result in
# messages.
_MAKERS = {
    "product": "a matrix product or convolution, which may be any numbers",
    "sigmoid": "a sigmoid, which is between 0 and 1",
    "softmax": "a softmax, which is between 0 and 1",
    "relu": "a relu, which is never negative",
    "tanh": "a tanh, which is between -1 and 1",
    "log": "a logarithm, as that of log_softmax",
    "norm": "a batch_norm, which may be any numbers",
    "dropout": "a dropout, which sets some of them to 0 and belongs before the activation",
}


@dataclass(frozen=True)
class Discovery:
    """The results of one traced run of a program function.

    Attributes:
      frame: the Frame (state) of the run; its arrays are tracers, which cannot be used after the run.
      outputs: shape and dtype of each output, in order.
      output_names: the keys of the outputs if the function returned a dict, else None.
      loss_output: the index of the loss among the outputs; see `Program`.
      aliases: additional names of named values; see `Program`.
      jaxpr: the equations of the run.
      constants: arrays from outside the function that the equations use.
      results: the variables of each output; a sequence batch has several variables.
      losses: the variable of each minimised loss.
      kept: the variables of values that users named and of custom states. They can be fetched, even if nothing else
        uses them.
      feeds: the variables of each feed, by name.
      parameters: the variables of the parameters, by name, without parameters that only loops and branches use.
      expected: the variables of values of which a layer expects a kind, such as labels; `frame.made.expected` has the
        records of the layers, in equal order.
      moving: the variables whose values change from step to step: feeds, parameters, states and the random key.
      reductions: for each output the rule that combines its values over minibatches; None if layers recorded no rule.
    """

    frame: Frame
    outputs: list[Any]
    output_names: tuple[str, ...] | None
    loss_output: int
    aliases: dict[str, str]
    jaxpr: Any
    constants: list[Any]
    results: list[Any]
    losses: list[Any]
    kept: list[Any]
    feeds: dict[str, list[Any]]
    parameters: dict[str, Any]
    expected: list[Any]
    moving: set[Any]
    reductions: list[Reduction | None]


class Shapes(NamedTuple):
    """The shape and dtype of each output of a program, and of every named value in order of creation."""

    outputs: list[Array]
    values: dict[str, Array]

    def marked(self, other: "Shapes") -> "Shapes":
        """Return a copy of these shapes of outputs and values, with None for dimensions that depend on the batch size.

        `other` has the shapes of a run with another batch size: dimensions that differ depend on the batch size. Named
        values that are not in `other` are left out.
        """
        outputs = [marked(mine, its) for mine, its in zip(self.outputs, other.outputs, strict=True)]
        return Shapes(outputs, {n: marked(a, other.values[n]) for n, a in self.values.items() if n in other.values})


def shapes_of(found: Discovery) -> Shapes:
    """Return the shapes of the outputs and named values of one traced run of a program function."""
    values = {name: array_of(value) for name, value in found.frame.made.values.items()}
    return Shapes([array_of(value) for value in found.outputs], values)


def array_of(value: Any) -> Array:
    """Return the shape and dtype of an array, or of the data array of a sequence batch."""
    data = data_of(value)
    return Array(tuple(data.shape), str(data.dtype))


def marked(first: Array, second: Array) -> Array:
    """Return the shape `first` with None for each size that differs in `second`; unchanged if the ranks differ."""
    if len(first.shape) != len(second.shape):
        return first
    return Array(tuple(a if a == b else None for a, b in zip(first.shape, second.shape, strict=True)), first.dtype)


def discover(
    function: Callable[[], Any], name: str, precision: str | None, batch: int, feeds: Mapping[str, Sequence[int]]
) -> Discovery:
    """Trace a program function once, in train mode, without computing any array.

    Raises:
      ProgramError: the function returns nothing, or a value that is not an array.
      FluidError: a layer finds a mistake.
    """
    frame = Frame(mode=TRAIN, precision=precision, placeholder_batch=batch)
    names: tuple[str, ...] | None = None
    aliases: dict[str, str] = {}
    loss_output = 0
    notes: list[str] = []
    explained: errors.FluidError | None = None
    reductions: list[Reduction | None] = []

    @traced_as(function, name)
    @begins_path
    def trace() -> Any:
        nonlocal names, loss_output, explained
        frame.given.key = jax.random.key(0)
        frame.given.feeds = {feed: jnp.zeros(shape) for feed, shape in feeds.items()}
        try:
            with running(frame):
                outputs, names = flatten_outputs(name, function())
                for output in outputs:
                    check_not_changed(frame, output)
        except Exception as error:
            notes.extend(getattr(error, "__notes__", ()))
            # Explain the error here, because JAX later removes frames from the traceback.
            explained = explained_error(error, name, batch)
            raise
        aliases.update(_aliases(frame, outputs, names))
        loss_output = _loss_output(frame, outputs, names)
        reductions.extend(said_of(frame, value) for value in outputs)
        losses = [m.loss for m in frame.made.minimizations]
        parameters = {n: v for n, v in frame.given.parameters.items() if isinstance(v, jax.core.Tracer)}
        fed = {n: jax.tree.leaves(v) for n, v in frame.given.feeds.items()}
        states = [v for v in frame.given.states.values() if isinstance(v, jax.core.Tracer)]
        kept = jax.tree.leaves(_kept(frame))
        expected = [jnp.asarray(e.value) for e in frame.made.expected]
        return outputs, losses, kept, fed, parameters, expected, [frame.given.key, *states]

    try:
        closed, shapes = jax.make_jaxpr(trace, return_shape=True)()
        _check_leaks(name, frame, closed.consts, batch)
    except Exception as error:
        error.__notes__ = notes  # remove JAX's own note about hidden traceback frames
        if explained is not None:
            explained.__notes__ = notes
            raise explained from None
        if not isinstance(error, errors.FluidError):
            error.add_note(f"while tracing the program {name}; in shapes, {batch} stands for the batch size")
        raise
    results, losses, kept, fed, parameters, expected, moving = jax.tree.unflatten(
        jax.tree.structure(shapes), closed.jaxpr.outvars
    )
    outputs = shapes[0]
    return Discovery(
        frame=frame,
        outputs=outputs,
        output_names=names,
        loss_output=loss_output,
        aliases=aliases,
        jaxpr=closed.jaxpr,
        constants=closed.consts,
        results=[jax.tree.leaves(result) for result in results],
        losses=losses,
        kept=kept,
        feeds=fed,
        parameters=parameters,
        expected=expected,
        moving={v for v in jax.tree.leaves((fed, parameters, moving)) if not is_literal(v)},
        reductions=reductions,
    )


def flatten_outputs(program: str, result: Any) -> tuple[list[Any], tuple[str, ...] | None]:
    """Return the list of outputs of a program function, and their dict keys; None as keys if the result is no dict.

    Raises:
      ProgramError: there is no output, or an output is neither an array nor a number.
    """
    names = None
    if isinstance(result, Mapping):
        names, values = tuple(str(k) for k in result), list(result.values())
    elif isinstance(result, list | tuple):
        values = list(result)
    else:
        values = [result]
    if not values or any(v is None for v in values):
        found = "nothing" if result is None or not values else "None among its outputs"
        raise errors.ProgramError(
            f"the program function {program} returned {found}; return its result, the loss first: return loss, accuracy"
        )
    for position, value in enumerate(values):
        if not hasattr(value, "dtype") and not isinstance(value, int | float):
            which = repr(names[position]) if names else f"number {position}"
            raise errors.ProgramError(
                f"the program function {program} returned a {type(value).__name__} among its outputs, as output {which}"
                f"{_first_of(value, names[position] if names else None)}; "
                f"return arrays made by layers, in one flat list, tuple or dict"
            )
    hidden = next((name for name in names or () if name in _OF_RESULTS), None)
    if hidden is not None:
        raise errors.ProgramError(
            f"the program function {program} returns an output {hidden!r}, which is a method of fluid.Results, so that "
            f"results.{hidden} would be this method; give the output another name: return {{'{hidden}_value': ...}}"
        )
    # Arrays are returned unconverted: `Frame.note` stores facts by object identity, and a converted copy loses them.
    kept = SequenceBatch | NestedSequenceBatch | jax.Array
    return [v if isinstance(v, kept) else jnp.asarray(v) for v in values], names


def _first_of(value: Any, name: str | None) -> str:
    """Return advice for the error message if an output is a tuple of arrays, as `layers.auc` returns; else ""."""
    if not isinstance(value, tuple | list) or not value or not hasattr(value[0], "dtype"):
        return ""
    what = f"{name}[0]" if name and name.isidentifier() else "result[0]"
    frame = current_frame("layers.auc")
    site = next((frame.declared.sites[n] for n, v in frame.made.values.items() if v is value[0]), "")
    return (
        f". Layers such as layers.auc and layers.mean_iou return several values, of which the first is the result: "
        f"layers.auc(...)[0], here {what}{', made at ' if site else ''}{site}"
    )


def _kept(frame: Frame) -> list[Any]:
    """Return the values that users named, and the states that do not belong to layers with parameters.

    Users can fetch these values and states, even if the program does not return them.

    The moving averages of `batch_norm`, for example, belong to a layer with parameters, and are left out.
    """
    declared = frame.declared.arrays
    trained = {spec.layer for spec in declared.values() if spec.trainable is not None} - {""}
    kinds = frame.declared.kinds
    automatic = {n for n in frame.made.values if re.search(rf"(^|/){re.escape(kinds.get(n, ''))}_\d+\.tmp_\d+$", n)}
    named = [value for name, value in frame.made.values.items() if name not in automatic]
    return [named, [value for name, value in frame.made.states.items() if declared[name].layer not in trained]]


def _loss_output(frame: Frame, outputs: Sequence[Any], names: Sequence[str] | None) -> int:
    """Return the index of the output that is the loss.

    The loss is the output that the first `minimize` call minimises, else the output named "loss", else output 0.
    """
    minimized = [m.value for m in frame.made.minimizations[:1]]
    found = [i for i, output in enumerate(outputs) if any(output is value for value in minimized)]
    named = [i for i, name in enumerate(names or ()) if name == "loss"]
    return (*found, *named, 0)[0]


def _aliases(frame: Frame, outputs: Sequence[Any], names: Sequence[str] | None) -> dict[str, str]:
    """Return a dict from additional names (aliases) of values to the recorded names.

    The name of a layer is an alias of its last result. The dict key of an output is an alias of the output. Aliases
    that equal the name of another value, array or feed are left out.
    """
    aliases = {name.rpartition(".tmp_")[0]: name for name in frame.made.values if ".tmp_" in name}
    recorded = {id(value): name for name, value in frame.made.values.items()}
    aliases |= {key: recorded[id(v)] for key, v in zip(names or (), outputs, strict=False) if id(v) in recorded}
    taken = {**frame.made.values, **frame.declared.arrays, **frame.declared.feeds}
    return {alias: name for alias, name in aliases.items() if alias not in taken}


def check_losses(program: str, found: Discovery, minimized: Sequence[tuple[str, ...]]) -> frozenset[str]:
    """Raise an error for a loss that training cannot change; warn of parameters without a gradient and negated losses.

    Raises:
      ProgramError: a loss has no parameters to train, or no gradient with respect to any of its parameters.
    """
    sloped: set[str] = set()
    for loss, names in zip(found.losses, minimized, strict=True):
        if not names:
            known = [n for n, s in found.frame.declared.arrays.items() if s.trainable is not None]
            which = f"it has {', '.join(known[:5])}, none of them trainable here" if known else "it has none"
            raise errors.ProgramError(
                f"the program {program} minimises a loss, but has no trainable parameter: {which}; parameters come "
                f"from layers such as layers.fc, and ParamAttr(trainable=True) is their default"
            )
        every = {n for n, s in found.frame.declared.arrays.items() if s.trainable is not None}
        # Do not warn if the loss trains only some parameters: a GAN, for example, maximises a cost on purpose.
        if set(names) == every and (cost := negated_cost(found.jaxpr, loss)):
            warn(
                f"the program {program} minimises the negative of layers.{cost}, which is a cost already, smaller for "
                f"a better net, so that training makes the net worse; return it without the minus: "
                f"layers.mean(layers.{cost}(...))"
            )
        tracked = {n: found.parameters[n] for n in names if n in found.parameters}
        moved = with_slope(found.jaxpr, tracked, loss)
        sloped |= moved | (set(names) - set(tracked))
        if len(tracked) == len(names) and not moved:
            raise errors.ProgramError(
                f"the loss that the program {program} minimises has no gradient with respect to any of its parameters "
                f"({', '.join(names[:5])}{', ...' if len(names) > 5 else ''}), so training would change nothing; "
                f'return the loss first, or in a dict under "loss": return {{"loss": loss, "accuracy": accuracy}}'
            )
        cut = {name: variable for name, variable in tracked.items() if name not in moved}
        if cut and (without := sorted(with_slope(found.jaxpr, cut, loss, through_steps=True))):
            warn(
                f"the loss of the program {program} depends on {', '.join(without[:5])}"
                f"{', ...' if len(without) > 5 else ''} only through whole numbers, comparisons or rounding, as those "
                f"of argmax, sign and round, which have no gradient, so that training does not change them; use "
                f"layers.softmax in place of argmax, or let the gradient pass: "
                f"y = x + jax.lax.stop_gradient(layers.round(x) - x)"
            )
    return frozenset(sloped)


def unused_parameters(found: Discovery, trained: Sequence[str]) -> tuple[str, ...]:
    """Return the names in `trained` of parameters that affect no output, no loss and no value named by the user."""
    needed = needed_by(found.jaxpr, [*found.losses, *jax.tree.leaves(found.results), *found.kept])
    return tuple(n for n in trained if n in found.parameters and found.parameters[n] not in needed)


def _warn_of_other_losses(program: str, found: Discovery) -> None:
    """Warn if a program returns a dict of several losses without the key "loss": a Trainer minimises only the first."""
    minimizations = found.frame.made.minimizations
    if len(minimizations) != 1 or not found.frame.fact(minimizations[0].value, "first_of_dict"):
        return
    needed = needed_by(found.jaxpr, found.losses)
    others = [
        name
        for name, variables in zip(found.output_names or (), found.results, strict=True)
        if {"loss", "losses", "cost"} & set(name.lower().split("_")) and len(variables) == 1
        if variables[0].aval.shape in ((), (1,)) and variables[0] not in needed
        if with_slope(found.jaxpr, found.parameters, variables[0])
    ]
    if others:
        first = (found.output_names or ())[found.loss_output]
        warn(
            f'the program {program} returns a dict without "loss", so that its first value, {first!r}, is minimised, '
            f"and {' and '.join(map(repr, others))} not; return the sum as well: "
            f'return {{"loss": {" + ".join([first, *others])}, ...}}, or name the one that counts "loss"'
        )


def warn_of_likely_mistakes(
    program: str, found: Discovery, batch: int, other: Callable[[], tuple[Discovery | None, int]]
) -> None:
    """Warn of computations in a program that are legal but most likely mistakes."""
    lines = _pairs_of_rows(found, batch)
    if lines:  # a size of the program may equal the batch size of one run, not of both
        second, rows = other()
        lines = [line for line in lines if second is None or line in _pairs_of_rows(second, rows)]
    for line in lines:
        warn(
            f"{line}: arithmetic lays a column [batch, 1] and values [batch] out to [batch, batch], and the loss of "
            f"the program {program}, or another of its results, depends on that; give both one shape: "
            f"layers.reshape(y, [-1, 1]), or declare layers.data(..., shape=[1]). If every pair is meant, write "
            f"x[:, None] - y[None, :]"
        )
    for line in fixed_noise(found.jaxpr, found.moving, batch) if found.losses else ():
        warn(
            f"{line}: random numbers are drawn from a key that never changes, as jax.random.PRNGKey(0) is, so every "
            f'step of the program {program} has the same ones; another key in each step is layers.random_key("noise"): '
            f'jax.random.normal(layers.random_key("noise"), x.shape)'
        )
    _warn_of_other_losses(program, found)
    declared = found.frame.declared.arrays
    if found.losses and (pair := stacked_zeros(found.jaxpr, found.parameters, declared, found.moving)):
        warn(
            f"{declared[pair[1]].site}: {pair[0]!r} and {pair[1]!r} both start as zeros, and {pair[1]!r} sees the data "
            f"through {pair[0]!r} alone, so that neither of them learns what tells examples apart; let one start with "
            f"random numbers, which is the default of layers, or fluid.initializer.Normal(0.0, 0.02)"
        )
    levels = {name: spec.lod_level for name, spec in found.frame.declared.feeds.items()}
    steps = (size for name, level in levels.items() for size in found.feeds[name][0].aval.shape[1 : 1 + level])
    for line, index, size in beyond(found.jaxpr, {batch, *steps}):
        warn(
            f"{line}: the index {index} does not exist in a dimension of size {size}, and JAX takes the nearest one in "
            f"its place; expected {-size} to {size - 1}"
        )
    made = found.frame.made
    if made.late_clip:
        warn(
            f"{made.late_clip}: set_gradient_clip after minimize clips nothing, since it holds for "
            f"the calls of minimize that follow; call it before optimizer.minimize(loss)"
        )
    for doubt in dict.fromkeys([*made.doubts, *(made.training_doubts if found.losses else ())]):
        warn(doubt)
    for expected, variable in zip(made.expected, found.expected, strict=True):
        takes, wrong = _KINDS[expected.kind]
        if maker := next((m for m in (maker_of(found.jaxpr, variable), expected.made) if m in wrong), None):
            warn(
                f"{expected.layer} at {expected.site} takes {takes}, and is given the result of {_MAKERS[maker]}; "
                f"{expected.instead}"
            )


def _pairs_of_rows(found: Discovery, batch: int) -> list[str]:
    scalars = [v for v in jax.tree.leaves(found.results) if v.aval.shape in ((), (1,)) and not is_literal(v)]
    return paired_rows(found.jaxpr, batch, [*found.losses, *scalars])


def _check_leaks(program: str, frame: Frame, constants: Sequence[Any], batch: int) -> None:
    """Raise an error if a program uses a value of another program, or a value from inside a loop outside the loop."""
    for value in constants:
        if isinstance(value, jax.core.Tracer):
            made = next((n for n, v in (frame.given.parameters | frame.given.states).items() if v is value), None)
            if made is not None:
                raise errors.ProgramError(
                    f"{frame.declared.arrays[made].site}: the parameter {made!r} is created inside of a function that "
                    f"JAX traces by itself, as jax.lax.scan, fori_loop, while_loop, cond, jax.jit and jax.checkpoint "
                    f"do, so that the program {program} cannot hold it; write layers.scan (one set of parameters), "
                    f"layers.repeat (a set for each repetition), layers.while_loop, layers.cond or layers.remat, or "
                    f"create it outside: w = layers.create_parameter(shape=[...])"
                )
            raise errors.ProgramError(
                f"the program {program} uses a value {value.dtype}{shape_text(value.shape, batch)} outside the loop or "
                f"block, or the program, that computes it. Hand it out of a loop or block first: rnn.output(h) inside "
                f"and h = rnn() behind it, or as a result of the function that layers.rnn was given. Programs share "
                f"functions and parameters, never values: call the function that computes it in both"
            )
