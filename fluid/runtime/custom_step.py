"""TrainingStep: the argument of a custom step function, and the checks of its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import Applied, Array, warn
from fluid.optimizer.optax_chain import scale_of
from fluid.runtime.parameter_updates import Rule


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Evaluation:
    """The results of one run of a program inside a custom training step.

    Attributes:
      losses: one scalar for each `minimize` call of the program; only one for a Trainer with an optimizer.
      outputs: the return values of the program function, in order.
      states: every state, such as a moving average, with its value for the next step, by name.
      gradients: gradients of one loss for the parameters of its `minimize` call, by name; empty if not requested.
      values: the requested named values, by name.
    """

    losses: list[Any]
    outputs: list[Any]
    states: dict[str, Any]
    gradients: dict[str, Any]
    values: dict[str, Any]


StepFunction = Callable[["TrainingStep"], tuple[Mapping[str, Any], Sequence[Any], Evaluation]]
"""The type of a custom step function, the argument `step=` of a Trainer.

The function maps a TrainingStep to the new parameters, the new optimizer states and an Evaluation.
"""


class Machinery(NamedTuple):
    """The functions and update rules with which a TrainingStep computes.

    Attributes:
      rules: the update rule of each `minimize` call of the program.
      rates: the learning rate of each `minimize` call, a scalar that may be traced; from `Rates.of`.
      apply: a function that runs the program on parameters and states by name, feeds and a key.
      fetched: names of the requested values.
      frozen: the frozen parameters, by name; no step changes them.
    """

    rules: Sequence[Rule]
    rates: Sequence[Any]
    apply: Callable[[Mapping[str, Any], Mapping[str, Any], Any], Applied]
    fetched: Sequence[str]
    frozen: Mapping[str, Any]


@dataclass(frozen=True)
class TrainingStep:
    """One training step, the argument of a custom step function: `fluid.Trainer(..., step=function)`.

    The step function is traced and becomes one compiled step. The methods are pure: they return new values and change
    nothing. So they may be called several times, and inside `jax.grad`, `jax.vmap` or `jax.lax.cond`.

    A custom step function returns three values: the new parameters, the new optimizer state, and an Evaluation. The
    outputs of the Evaluation are the metrics of this step. The states of the Evaluation are the states for the next
    step.

    Attributes:
      parameters: the parameters that some `minimize` call changes, by name, before the step.
      slots: the optimizer states, one for each `minimize` call.
      states: states such as moving averages, by name.
      feeds: the minibatch, by name.
      key: random key of this step; layers draw from it, and `jax.random.fold_in(key, 1)` is an independent key.
      number: number of training steps before this one, int32 `[]`.

    Example:
      >>> import fluid, jax, numpy as np
      >>> def program():
      ...     return fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1))
      >>> def halved(step):
      ...     here = step.losses_and_gradients()
      ...     gradients = jax.tree.map(lambda g: 0.5 * g, here.gradients)
      ...     parameters, slots = step.update(gradients)
      ...     return parameters, slots, here
      >>> trainer = fluid.Trainer(program, fluid.optimizer.SGD(1.0), step=halved)
      >>> history = trainer.train(fluid.reader.arrays((np.ones((4, 2), "float32"),), batch_size=4))
      >>> trainer.params["fc_0.b_0"].tolist()
      [-0.5]
    """

    parameters: dict[str, Any]
    slots: list[Any]
    states: dict[str, Any]
    feeds: dict[str, Any]
    key: Any
    number: Any
    _machinery: Machinery = field(repr=False)
    # The optimizer states that each call of `update` has returned. If a step function calls `update`, but returns the
    # old optimizer states, fluid warns.
    _updates: list[list[Any]] = field(default_factory=list, repr=False)
    # The outputs of each evaluation, and what each output contributes to its value over several steps.
    _evaluated: list[tuple[list[Any], list[Any]]] = field(default_factory=list, repr=False)

    def evaluate(
        self,
        parameters: Mapping[str, Any] | None = None,
        feeds: Mapping[str, Any] | None = None,
        states: Mapping[str, Any] | None = None,
        key: Any = None,
    ) -> Evaluation:
        """Run the program forward, in train mode.

        Args:
          parameters: some or all parameters, by name; missing ones have their values before the step.
          feeds: some or all feeds, by name; missing ones come from the minibatch.
          states: some or all states, by name; missing ones have their values before the step.
          key: a random key; None for the key of the step, which draws equal random numbers in each evaluation.

        Returns:
          An Evaluation without gradients.

        Raises:
          UnknownNameError: a name belongs to no parameter, feed or state of the step.
        """
        evaluation, parts = self._evaluate(parameters, feeds, states, key)
        self._evaluated.append((evaluation.outputs, parts))
        return evaluation

    def _evaluate(
        self,
        parameters: Mapping[str, Any] | None,
        feeds: Mapping[str, Any] | None,
        states: Mapping[str, Any] | None,
        key: Any,
    ) -> tuple[Evaluation, list[Any]]:
        """Return the result of `evaluate`, and what each output contributes to its value over several steps."""
        arrays = {
            **_merged("parameter", self.parameters, parameters),
            **_merged("state", self.states, states),
        }
        applied = self._machinery.apply(arrays, _merged("feed", self.feeds, feeds), self.key if key is None else key)
        values = {name: applied.values[name] for name in self._machinery.fetched if name in applied.values}
        return Evaluation(applied.losses, applied.outputs, applied.states, {}, values), applied.parts

    def _parts_of(self, outputs: Sequence[Any]) -> list[Any]:
        """Return what each output contributes to its value over several steps, see `Applied.parts`.

        The result is None for an output that the step function has computed itself: its values are averaged over
        steps with the number of examples as weight.
        """
        known = [pair for made, parts in self._evaluated for pair in zip(made, parts, strict=False)]
        return [next((part for output, part in known if output is returned), None) for returned in outputs]

    def losses_and_gradients(
        self,
        parameters: Mapping[str, Any] | None = None,
        feeds: Mapping[str, Any] | None = None,
        states: Mapping[str, Any] | None = None,
        key: Any = None,
        which: int = 0,
    ) -> Evaluation:
        """Run the program forward and backward.

        Args:
          parameters: some or all parameters, by name; missing ones have their values before the step.
          feeds: some or all feeds, by name; missing ones come from the minibatch.
          states: some or all states, by name; missing ones have their values before the step.
          key: a random key; None for the key of the step, which draws equal random numbers in each evaluation.
          which: index of the `minimize` call whose loss and parameters are used, in the order of the program.

        Returns:
          An Evaluation with the gradients.
        """
        rule = self._rule(which)
        start = _merged("parameter", self.parameters, parameters)
        scale = scale_of(self.slots[which])

        def loss(chosen: Mapping[str, Any]) -> tuple[Any, tuple[Evaluation, list[Any]]]:
            found, parts = self._evaluate({**start, **chosen}, feeds, states, key)
            return found.losses[which] * scale, (found, parts)

        gradients, (found, parts) = jax.grad(loss, has_aux=True)({n: start[n] for n in rule.parameters})
        self._evaluated.append((found.outputs, parts))
        if rule.scaled:
            gradients = jax.tree.map(lambda g: g / scale, gradients)
        return Evaluation(found.losses, found.outputs, found.states, gradients, found.values)

    def update(
        self,
        gradients: Mapping[str, Any],
        slots: Sequence[Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        which: int = 0,
    ) -> tuple[dict[str, Any], list[Any]]:
        """Update parameters with an optimizer.

        Args:
          gradients: one for each parameter of the `minimize` call, by name.
          slots: optimizer states; by default their values before the step.
          parameters: the parameters to update, by name; missing ones have their values before the step.
          which: index of the `minimize` call, in the order of the program.

        Returns:
          All parameters and all optimizer states; only the entries of this `minimize` call have changed.

        Raises:
          UnknownNameError: a gradient is missing, or belongs to no parameter of the `minimize` call.
        """
        rule = self._rule(which)
        _check_gradients(gradients, rule.parameters)
        start = _merged("parameter", self.parameters, parameters)
        after = list(self.slots if slots is None else slots)
        mine = {name: start[name] for name in rule.parameters} | {n: self._machinery.frozen[n] for n in rule.frozen}
        changed, after[which] = rule.update(self._machinery.rates[which], gradients, {}, after[which], mine)
        self._updates.append(after)
        return {**start, **changed}, after

    def _rule(self, which: int) -> Rule:
        if isinstance(which, bool) or not isinstance(which, int) or not 0 <= which < len(self._machinery.rules):
            raise errors.ArgumentError(
                f"which={which!r}: the program calls minimize {len(self._machinery.rules)} times, expected 0 to "
                f"{len(self._machinery.rules) - 1}, as in step.update(gradients, which=0)"
            )
        return self._machinery.rules[which]


def check_function(step: Any) -> None:
    """Check that a custom step is a function or None.

    Raises:
      ArgumentTypeError: the custom step is something else.
    """
    if step is not None and not callable(step):
        raise errors.ArgumentTypeError(
            f"step={step!r}: expected a function of one fluid.TrainingStep: def step(s): ..."
        )


def check_tables(rules: Sequence[Rule]) -> None:
    """Raise an error if an embedding table is updated row by row: a custom step computes only dense gradients.

    Raises:
      ArgumentError: an update rule updates an embedding table row by row.
    """
    tables = [table for rule in rules for table in rule.tables]
    if tables:
        raise errors.ArgumentError(
            f"step= computes gradients of whole parameters, and {', '.join(tables)} would be updated by the rows that "
            f"were looked up; write layers.embedding(..., is_sparse=False)"
        )


def check_result(result: Any, step: TrainingStep) -> tuple[dict[str, Any], list[Any], Evaluation]:
    """Return the checked result of a custom step function.

    Raises:
      ProgramError: the result is not a tuple of parameters, optimizer states and Evaluation; or an array has another
        name, shape or dtype than before the step.
    """
    if not isinstance(result, tuple) or len(result) != 3 or not isinstance(result[2], Evaluation):
        found = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
        raise errors.ProgramError(
            f"the step function returned {found}, expected the new parameters, the new slots and an Evaluation: "
            f"here = step.losses_and_gradients(); parameters, slots = step.update(here.gradients); "
            f"return parameters, slots, here"
        )
    evaluation = result[2]
    parameters = dict(result[0])
    slots = list(result[1])
    _warn_of_forgotten(step, parameters, slots)
    for what, before, after in (
        ("parameters", step.parameters, parameters),
        ("slots", step.slots, slots),
        ("states", step.states, evaluation.states),
    ):
        if complaint := _difference(before, after):
            raise errors.ProgramError(
                f"the {what} that the step function returned are not like those before the step: {complaint}; take "
                f"them from step.update(...) and step.evaluate(), or make them of step.{what}"
            )
    return _strong(parameters), _strong(slots), evaluation


def _warn_of_forgotten(step: TrainingStep, parameters: Mapping[str, Any], slots: Sequence[Any]) -> None:
    """Warn if a step function calls `step.update`, but returns the old parameters or optimizer states."""
    if not step._updates:
        return
    call = "write parameters, slots = step.update(gradients) and return both"
    if _same(step.parameters, parameters):
        warn(
            f"the step function calls step.update and returns step.parameters, so that training changes nothing; {call}"
        )
    elif _same(step.slots, slots) and not any(_same(step.slots, after) for after in step._updates):
        warn(
            f"the step function calls step.update and returns step.slots, the states of the optimizer as they were, so "
            f"that momentum and averages never change; {call}"
        )


def _same(before: Any, after: Any) -> bool:
    olds, news = jax.tree.leaves(before), jax.tree.leaves(after)
    return len(olds) == len(news) and all(old is new for old, new in zip(olds, news, strict=True))


def _strong(tree: Any) -> Any:
    return jax.tree.map(lambda value: jnp.asarray(value, jnp.result_type(value)), tree)


def _difference(before: Any, after: Any) -> str | None:
    """Describe the first difference between two trees of arrays in structure, shape or dtype; None if they agree."""
    structure: Any = jax.tree.structure(before)
    if structure != jax.tree.structure(after):
        return "other names, or another structure"
    for (path, old), new in zip(jax.tree_util.tree_leaves_with_path(before), jax.tree.leaves(after), strict=True):
        wanted = Array(jnp.shape(old), str(jnp.result_type(old)))
        found = Array(jnp.shape(new), str(jnp.result_type(new)))
        if wanted != found:
            return f"{jax.tree_util.keystr(path, simple=True, separator='/')} is {found}, expected {wanted}"
    return None


def _merged(kind: str, known: Mapping[str, Any], given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the dict `known`, in which arrays of `given` replace the arrays of equal names."""
    for name in given or {}:
        if name not in known:
            raise errors.UnknownNameError(f"a training step has no {kind} {name!r} here. {errors.nearest(name, known)}")
    return {**known, **(given or {})}


def _check_gradients(gradients: Mapping[str, Any], names: Sequence[str]) -> None:
    wrong = sorted(set(gradients) ^ set(names))
    if wrong:
        what = "is missing" if wrong[0] in names else "is not of this minimize"
        raise errors.UnknownNameError(
            f"step.update: the gradient of {wrong[0]!r} {what}; expected one for each of {', '.join(names)}, as "
            f"step.losses_and_gradients() gives them. For a parameter that shall stay give zeros"
        )
