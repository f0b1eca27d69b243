"""Update rules: the parameter update and the learning rate of each `minimize` call of a program.

Only `Rule.update` applies an optimizer to gradients. The learning rate is an input of the compiled step, a scalar, so a
new rate needs no compilation: while JAX traces the step, `Rule.update` creates the optax transformation from a copy of
the optimizer with this scalar as `learning_rate`. If the optimizer declares a schedule, the copy has a schedule too,
because the state of an optax optimizer with a schedule has another structure than with a number.

Learning rates that a user has set are saved with the optimizer state, as `@learning_rate/PROGRAM/0`. A file without
these entries restores the declared rates. The scalars are weakly typed, as Python numbers are, so that parameters of
half precision keep their dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid import errors
from fluid._util.lazy import load_optax_ahead, optax
from fluid.core import Gathering, ParameterSpec, Program, decide, warn
from fluid.core.equations import filled, unneeded
from fluid.optimizer.base import innermost
from fluid.optimizer.momentum import SGD, Momentum
from fluid.optimizer.optax_chain import replaced, skip_overflows
from fluid.param_attr import ParamAttr
from fluid.regularizer import L2Decay
from fluid.runtime.sparse_update import RowGradients, keeps_other_rows, update

# Maximum size, in bytes, of an initial optimizer state that NumPy computes. A larger one is created on the device, so
# that it need not be transferred.
_MOST_BY_NUMPY = 1 << 26
# Modules whose learning rate schedules may be constant on purpose; a constant schedule from them causes no warning.
_SCHEDULES = ("optax.", "fluid.")


class Rule(NamedTuple):
    """The update rule of one `minimize` call of a program: an optimizer and the parameters that it updates.

    Attributes:
      optimizer: the optimizer of the `minimize` call.
      settings: the ParamAttr of each parameter, or None, by the parameter's name.
      parameters: names of the parameters.
      tables: names of embedding tables of which only the looked-up rows are updated.
      scaled: True if the loss is scaled, and updates with overflowed gradients are skipped.
      frozen: names of parameters that are not updated, but have entries in the optimizer state.
    """

    optimizer: Any
    settings: dict[str, Any]
    parameters: tuple[str, ...]
    tables: tuple[str, ...]
    scaled: bool = False
    frozen: tuple[str, ...] = ()

    def without(self, names: frozenset[str]) -> Rule:
        """Return a copy of this update rule that leaves the frozen parameters, which `names` lists, unchanged."""
        frozen = tuple(n for n in self.parameters if n in names)
        if not frozen:
            return self
        attrs = {n: replace(self.settings[n] or ParamAttr(), trainable=False) for n in frozen}
        return self._replace(
            settings={**self.settings, **attrs},
            parameters=tuple(n for n in self.parameters if n not in names),
            tables=tuple(n for n in self.tables if n not in names),
            frozen=frozen,
        )

    def check(self, parameters: Mapping[str, Any], slots: Any, members: int | None = None) -> None:
        """Check that the optimizer can update parameters of these shapes, without computing an update.

        Args:
          members: number of models whose arrays are stacked, `[members, ...]`; None for one model.

        Raises:
          ArgumentError: the optimizer cannot leave out a frozen parameter.
        """
        update = self._transformation(self.optimizer).update
        jax.eval_shape(update if members is None else jax.vmap(update), dict(parameters), slots, dict(parameters))

    def init(self, parameters: Mapping[str, Any]) -> Any:
        """Return the initial optimizer state for a dict of parameters; JAX can trace this method."""
        return self._transformation(self.optimizer).init(dict(parameters))

    def first_slots(self, parameters: Mapping[str, Any], members: int | None = None) -> Any:
        """Return the initial optimizer state as arrays. NumPy computes small constant states, XLA computes all others.

        Args:
          members: number of models whose parameters and states are stacked, `[members, ...]`; None for one model.
        """
        arrays = dict(parameters)
        one = arrays if members is None else jax.eval_shape(lambda: {n: a[0] for n, a in arrays.items()})
        closed, shapes = jax.make_jaxpr(self.init, return_shape=True)(one)
        leaves, structure = jax.tree.flatten(shapes)
        small = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) * (members or 1) <= _MOST_BY_NUMPY
        values = filled(closed.jaxpr) if small else None
        if values is None:
            return jax.jit(self.init if members is None else jax.vmap(self.init))(arrays)
        if members is not None:
            values = [np.repeat(value[np.newaxis], members, axis=0) for value in values]
        return jax.tree.unflatten(structure, values)

    def rate(self, rate: Any, slots: Any) -> Any:
        """Return the learning rate of the next update, a scalar.

        Raises:
          UnknownNameError: the learning rate of the optimizer is unknown.
        """
        return self._at(rate).current_rate(slots)

    def update(
        self,
        rate: Any,
        gradients: Mapping[str, Any],
        rows: Mapping[str, RowGradients],
        slots: Any,
        parameters: Mapping[str, Any],
        gathering: Gathering | None = None,
    ) -> tuple[dict[str, Any], Any]:
        """Update the parameters. All optimizer updates go through this method."""
        still = {n: jnp.zeros_like(parameters[n]) for n in self.frozen}
        every = {**gradients, **still}
        changed, slots = update(self._transformation(self._at(rate)), every, rows, slots, parameters, gathering)
        return {n: changed[n] for n in self.parameters}, slots

    def _at(self, rate: Any) -> Any:
        return self.optimizer if self.optimizer.declared_rate is None else self.optimizer.at_rate(rate)

    def _transformation(self, optimizer: Any) -> optax.GradientTransformation:
        found = optimizer.transformation(self.settings)
        return skip_overflows(found) if self.scaled else found


def rules_of(program: Program) -> list[Rule]:
    """Return one Rule (an optimizer and the parameters that it updates) for each `minimize` call of a program.

    Warns of questionable settings: for example a constant schedule, or a sparse table that needs dense updates.
    """
    if program.minimizes:
        load_optax_ahead()  # start to import optax in a thread, while initial values are computed
    rules = []
    for minimize in program.minimizes:
        _check_schedule(minimize.optimizer)
        settings = {n: program.parameters[n].settings for n in minimize.parameters}
        _check_decay(innermost(minimize.optimizer), settings)
        _check_excluded(innermost(minimize.optimizer), [program.parameters[n] for n in minimize.parameters])
        tables = _tables_of(program, minimize.optimizer, minimize.parameters)
        rules.append(Rule(minimize.optimizer, settings, minimize.parameters, tables, program.precision == "float16"))
    _check_clipped(program)
    return rules


def _tables_of(program: Program, optimizer: Any, parameters: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of those embedding tables of which an optimizer updates only the looked-up rows.

    Warns of a table that is declared sparse (`is_sparse=True`) but needs dense updates.
    """
    looked_up = [n for n in parameters if n in program.lookups]
    shared = [n for n in looked_up if n in program.dense_uses]
    tables = [n for n in looked_up if n not in shared]
    if shared:
        warn(
            f"the tables {shared} of {program.name} are used as a whole too, so their updates are dense; "
            f"give every embedding of them is_sparse=True"
        )
    if tables and (why := needs_all_rows(optimizer)):
        warn(f"{type(optimizer).__name__} {why}, so the updates of {tables} are dense, as they must be to be exact")
        tables = []
    return tuple(tables)


def needs_all_rows(optimizer: Any) -> str | None:
    """Return the reason why an optimizer must update all rows of an embedding table; None if it need not."""
    if optimizer.whole_tables:
        return "(with its accumulate_steps, norms, averages or schedule) needs tables as a whole"
    if optimizer.lazy_mode or keeps_other_rows(optimizer.rule()):
        return None
    return "changes rows that have no gradient (lazy_mode=True would leave those alone)"


def _check_schedule(optimizer: Any) -> None:
    """Warn of a learning rate function that does not depend on its argument, the number of updates."""
    schedule = optimizer.declared_rate
    if not callable(schedule):
        return
    shown = f"learning_rate={getattr(schedule, '__name__', type(schedule).__name__)}"

    def rate(given: Mapping[str, Any]) -> Any:
        found = schedule(given["count"])
        is_array = isinstance(found, np.ndarray | np.generic | jax.Array)
        dtype = found.dtype if is_array else np.dtype(type(found) if isinstance(found, int | float) else object)
        if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)) or jnp.shape(found):
            what = f"a rate of {dtype} and shape {list(found.shape)}" if is_array else repr(found)
            raise errors.ArgumentError(
                f"{shown}: the function returned {what}, expected one number for an update, as in "
                f"learning_rate=lambda updates_done: 0.1 * 0.99**updates_done"
            )
        return found

    try:
        constant = bool(unneeded(rate, {"count": jax.ShapeDtypeStruct((), jnp.int32)}))
    except jax.errors.JAXTypeError as error:
        raise errors.ArgumentError(
            f"{shown}: the function is compiled into the step, so that it has no number of updates to look at, but a "
            f"value that stands for every such number. Use jax.numpy: jnp.where(updates_done < 1000, 0.1, 0.01), or "
            f"fluid.layers.piecewise_decay([1000], [0.1, 0.01])"
        ) from error
    if constant and not getattr(schedule, "__module__", "").startswith(_SCHEDULES):
        warn(
            f"{shown} does not depend on its argument, the number of updates done: it is called while a step is "
            f"compiled, and what it gives then is the rate of all steps. To change the rate while training goes on, "
            f"write trainer.learning_rate = 0.01 between two steps, or give a function of the number of updates: "
            f"learning_rate=lambda updates_done: 0.1 * 0.99**updates_done"
        )


def _check_decay(optimizer: Any, settings: Mapping[str, Any]) -> None:
    """Warn of a weight decay so large that weights grow: each step multiplies them by a number of -1 or below."""
    rate = optimizer.declared_rate
    if not isinstance(rate, Real):
        return
    kind = type(optimizer).__name__
    most = 2 * (1 + getattr(optimizer, "momentum", 0))
    for name, attr in settings.items():
        attr = attr or ParamAttr()
        decay = attr.regularizer or optimizer.regularization
        # Only SGD and Momentum apply L2Decay unscaled; adaptive optimizers divide the decay by the size of the
        # gradients.
        if type(optimizer) in (SGD, Momentum) and isinstance(decay, L2Decay):
            coefficient, shown, limit = decay.regularization_coeff, f"regularization={decay!r}", most
        else:
            coefficient, limit = getattr(optimizer, "weight_decay", 0), 2
            shown = f"weight_decay={coefficient!r}"
        if isinstance(coefficient, Real) and rate * attr.learning_rate * coefficient >= limit:
            warn(
                f"{kind}(learning_rate={rate:g}, {shown}): each step subtracts {rate * attr.learning_rate:g} * "
                f"{coefficient:g} of {name} from it, more than it is, so that it grows without bound; a usual decay is "
                f"0.0001"
            )
            return


def _check_excluded(optimizer: Any, specs: Sequence[ParameterSpec]) -> None:
    """Warn of an `exclude_from_weight_decay_fn` that excludes no parameter, or every parameter."""
    argument = "exclude_from_weight_decay_fn"
    exclude = getattr(optimizer, argument, None)
    if exclude is None:
        return
    excluded = [decide(argument, exclude, spec.name, spec) for spec in specs]
    names = ", ".join(spec.name for spec in specs[:4]) + (", ..." if len(specs) > 4 else "")
    # Users normally exclude vectors and decay matrices. So "excludes none" is no warning for a net without vectors, and
    # "excludes every parameter" is no warning for a net without matrices.
    if not any(excluded) and any(len(spec.shape) < 2 for spec in specs):
        found = "excludes none of the parameters"
    elif all(excluded) and any(len(spec.shape) > 1 for spec in specs):
        found = "excludes every parameter, so that there is no decay"
    else:
        return
    warn(
        f"{argument} {found}: {names}. It gets a parameter with its name, shape and dtype; to exclude biases and "
        f"scales: {argument}=lambda parameter: len(parameter.shape) < 2"
    )


def _check_clipped(program: Program) -> None:
    """Warn of a gradient clip whose `need_clip` is True for no parameter of the program."""
    clipped: dict[int, tuple[Any, bool]] = {}
    for minimize in program.minimizes:
        need_clip = getattr(getattr(innermost(minimize.optimizer), "grad_clip", None), "need_clip", None)
        if need_clip is not None:
            specs = [program.parameters[n] for n in minimize.parameters]
            before = clipped.get(id(need_clip), (None, False))[1]
            clipped[id(need_clip)] = need_clip, before or any(decide("need_clip", need_clip, s.name, s) for s in specs)
    if not all(found for _, found in clipped.values()):
        names = list(program.parameters)
        warn(
            f"need_clip holds for none of the parameters of the program {program.name}, so that nothing is clipped: "
            f"{', '.join(names[:4])}{', ...' if len(names) > 4 else ''}. It gets a parameter with its name, shape and "
            f'dtype: need_clip=lambda parameter: parameter.name.startswith("fc_0")'
        )


PREFIX = "@learning_rate/"
# A compiled step gets this number instead of a learning rate, if the optimizer uses its configured schedule, or if its
# learning rate is unknown. Real learning rates are never negative.
_AS_DECLARED = -1.0


class Rates:
    """The learning rates of a session: scalars on the device, which users can set between two training steps.

    A rate that is set replaces the number or schedule of the optimizer, until it is set to None.

    Example:
      >>> import fluid
      >>> from fluid.runtime.parameter_updates import rules_of
      >>> def program():
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      ...     fluid.optimizer.SGD(0.5).minimize(loss)
      ...     return loss
      >>> rates = Rates(place=lambda value: value)
      >>> rates.add("program", rules_of(fluid.Program(program)))
      >>> rates.set("program", [0.25])
      >>> rates.of("program"), list(rates.state())
      ([0.25], ['@learning_rate/program/0'])
    """

    def __init__(self, place: Callable[[Any], Any]):
        self._place = place
        self._rules: dict[str, list[Rule]] = {}
        self._functions: dict[str, Callable[..., list[jax.Array]]] = {}
        self._set: dict[str, list[float | None]] = {}
        self._scalars: dict[str, list[Any]] = {}

    def add(self, program: str, rules: Sequence[Rule]) -> None:
        """Register a program, so that the session knows its learning rates; at first, these are the declared ones."""
        self._rules[program] = list(rules)
        # The function that computes the learning rates is jitted, because a training handler may call it at each step.
        self._functions[program] = jax.jit(
            lambda rates, slots: [rule.rate(r, s) for rule, r, s in zip(rules, rates, slots, strict=True)]
        )
        self.put(program, [None] * len(rules))

    def current(self, program: str, slots: Any) -> list[jax.Array]:
        """Return the learning rates of the next update, as scalars on the device.

        Raises:
          UnknownNameError: the learning rate of an optimizer is unknown.
        """
        return self._functions[program](self.of(program), slots)

    def read(self, program: str, slots: Any) -> tuple[float, ...]:
        """Return the learning rates of the next update as floats; wait for the device only if a rate is a schedule."""
        pairs = zip(self._set[program], self._rules[program], strict=True)
        known = [rule.optimizer.declared_rate if value is None else value for value, rule in pairs]
        if all(isinstance(value, int | float) for value in known):
            return tuple(map(float, known))
        return tuple(map(_number, self.current(program, slots)))

    def of(self, program: str) -> list[Any]:
        """Return the inputs of a compiled step for its learning rates: a device scalar for each `minimize` call."""
        return self._scalars[program]

    def given(self, program: str) -> list[float | None]:
        """Return the learning rates that a user has set, one for each `minimize` call; None for a declared rate."""
        return list(self._set[program])

    def put(self, program: str, values: Sequence[float | None]) -> None:
        """Set the learning rate of each `minimize` call of a program, unchecked; None stands for the declared rate."""
        self._set[program] = list(values)
        declared = [rule.optimizer.declared_rate for rule in self._rules[program]]
        pairs = zip(values, declared, strict=True)
        self._scalars[program] = [self._scalar(rate if value is None else value) for value, rate in pairs]

    def set(self, program: str, values: Sequence[float | None]) -> None:
        """Set the learning rates of a program, one for each `minimize` call; None restores the rate in the program.

        Raises:
          ArgumentError: a rate is negative or not finite, or there are not as many rates as `minimize` calls.
          UnknownNameError: an optimizer has no learning rate that can be set.
        """
        rules = self._rules[program]
        if len(values) != len(rules):
            raise errors.ArgumentError(
                f"learning_rate = {list(values)!r}: the program {program} calls minimize {len(rules)} times, so it has "
                f"{len(rules)} learning rates; write learning_rate = {[0.01] * len(rules)}, with None for one that "
                f"shall be as declared"
            )
        rates = [_checked(value) for value in values]
        for rule, rate in zip(rules, rates, strict=True):
            if rate is not None:
                # Check that the learning rate of the optimizer can be set: otherwise `at_rate` raises an error. The
                # copy that `at_rate` returns is not needed.
                rule.optimizer.at_rate(rate)
                _warn_of_rows(rule)
        self.put(program, rates)

    def state(self) -> dict[str, Any]:
        """Return the learning rates that a user has set, by name: `@learning_rate/PROGRAM/0`.

        Each entry holds the eight bytes of a float64. A float32 would round the rate, and a handler that multiplies
        the rate would then compute other rates after a restore.
        """
        return {name: self._place(_bytes(rate)) for name, rate in self._named().items() if rate is not None}

    def optional(self, found: Mapping[str, Any]) -> dict[str, tuple[tuple[int, ...], str]]:
        """Return the expected shape and dtype of the learning rates of this session that occur in `found`.

        Args:
          found: the arrays of a file by name. Older files hold scalars of float32 instead of bytes.
        """
        names = [name for name in found if name in self._named()]
        return {name: ((8,), "uint8") if len(found[name].shape) else ((), "float32") for name in names}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore learning rates from the dict that `state` returned; a missing rate becomes the declared rate."""
        for program, rules in self._rules.items():
            found = [state.get(f"{PREFIX}{program}/{i}") for i in range(len(rules))]
            self.put(program, [None if value is None else _rate(value) for value in found])

    def _named(self) -> dict[str, float | None]:
        return {f"{PREFIX}{program}/{i}": rate for program, its in self._set.items() for i, rate in enumerate(its)}

    def _scalar(self, rate: Any) -> jax.Array:
        # A Python number becomes a weakly typed scalar, with which half-precision parameters keep their dtype.
        number = _AS_DECLARED if rate is None or callable(rate) else float(rate)
        return self._place(number)


def _bytes(rate: float) -> np.ndarray:
    return np.frombuffer(np.array(rate, "<f8").tobytes(), np.uint8)


def _rate(saved: Any) -> float:
    array = np.asarray(saved)
    return float(array.view("<f8")[0]) if array.ndim else _number(array)


def _number(scalar: Any) -> float:
    return float(str(np.float32(scalar)))


def _checked(value: Any) -> float | None:
    """Return the learning rate of a user as a float, or None; refuse other values."""
    if value is None:
        return None
    number = value.item() if isinstance(value, jax.Array | np.ndarray | np.generic) and value.ndim == 0 else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
        raise errors.ArgumentError(
            f"learning_rate = {value!r}: expected a number from 0 on, or None for the rate as it was declared; a "
            f"schedule is given to the optimizer: fluid.optimizer.Adam(learning_rate=schedule)"
        )
    return float(number)


def _warn_of_rows(rule: Rule) -> None:
    """Warn if row-by-row updates of an embedding table become inexact when the learning rate changes."""
    changing = replaced(rule.optimizer, learning_rate=lambda count: 0.0)
    if rule.tables and changing.whole_tables:
        warn(
            f"the learning rate of {type(rule.optimizer).__name__} is a part of each weight, and "
            f"{', '.join(rule.tables)} are updated by rows: a row has the new rate from its next look-up on. To be "
            f"exact give the optimizer a schedule, which makes the updates dense"
        )
