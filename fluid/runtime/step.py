"""The pure step of a program: `train` computes outputs, gradients and update; `test` computes outputs.

`train` maps a `TrainingState` and `Constants` to the next state; `test` maps arrays to results. CompiledStep jits both
functions. A `Request` fixes the mode, the names of the results, the feeds and the overrides. For the gradient with
respect to a named value, the step adds zeros to the value, and differentiates with respect to these zeros. Arrays of
zeros also replace omitted feeds, on which no result depends.

A strategy runs the step for one model, or at the same time for all models of a population.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import TRAIN, Applied, Gathering, ParameterSpec, Program, data_of
from fluid.core.explain import explained_step
from fluid.optimizer.optax_chain import norm, ratio, scale_of, was_skipped
from fluid.reader.on_device import Fed, Picks
from fluid.runtime.custom_step import Machinery, StepFunction, TrainingStep, check_result
from fluid.runtime.fetch import GRAD_NORM, LOSS_SCALE, RATE, UPDATE_RATIO
from fluid.runtime.parameter_updates import Rates, Rule
from fluid.runtime.request import Found, Request, RequestedValues, with_inner
from fluid.runtime.seeds import Draw, root_of
from fluid.runtime.sparse_update import merge


class TrainingState(NamedTuple):
    """The arrays that a training step takes as argument and returns updated.

    Attributes:
      arrays: the parameters that are trained, and all states, by name.
      slots: the optimizer state of each `minimize` call.
      step: number of completed training steps, int32 `[]`.
    """

    arrays: Mapping[str, Any]
    slots: Sequence[Any]
    step: Any


class Constants(NamedTuple):
    """The arrays that a training step takes as argument and does not change.

    Attributes:
      arrays: parameters that are not trained, by name.
      root: random key of the session, from which each step derives its key; None for a program that draws nothing.
      rates: the learning rate of each `minimize` call, from `Rates.of`.
      members: the values that differ among the models of a population; None for a single model.
    """

    arrays: Mapping[str, Any]
    root: Any
    rates: Sequence[Any]
    members: Any = None


class Variables(NamedTuple):
    """The inputs with respect to which losses are differentiated, or the gradients of a loss with respect to them.

    Attributes:
      arrays: parameters by name.
      perturbations: zeros that are added to named values.
      row_perturbations: by the name of each sparse table, a list of zeros that are added to the looked-up rows, one
        array for each look-up, in order.
    """

    arrays: Mapping[str, Any]
    perturbations: Mapping[str, Any]
    row_perturbations: Mapping[str, Any]


_NONE = Variables({}, {}, {})


class _Update(NamedTuple):
    """The result of one training step: parameters, states, outputs and other values after the update.

    Attributes:
      parameters: new values of the parameters, by name.
      slots: the new optimizer state of each rule.
      states: new values of the states, by name.
      outputs: the outputs of the program.
      parts: with `Request.parts`, what each output contributes to its value over several steps, see `Applied`.
      values: the values that can be fetched, by name.
      gradients_of: a function that maps the index of a rule to the gradients of its loss.
    """

    parameters: dict[str, Any]
    slots: list[Any]
    states: dict[str, Any]
    outputs: Sequence[Any]
    parts: Sequence[Any]
    values: dict[str, Any]
    gradients_of: Callable[[int], Variables]


class Step:
    """A program with the update rules of its `minimize` calls, as pure functions.

    Attributes:
      program: the program.
      training: True if a step changes parameters and states.
      rules: the update rules, without the frozen parameters; none in test mode.
      updated: names of the parameters that an update rule changes.
      carried: names of the arrays in TrainingState.
      kept: names of the arrays in Constants.
      draws: True if a step draws random numbers.

    Raises:
      UnknownNameError: a gradient is requested, but the step has a custom function.
    """

    def __init__(
        self,
        program: Program,
        rules: Sequence[Rule],
        request: Request,
        function: StepFunction | None = None,
        frozen: frozenset[str] = frozenset(),
        gathering: Gathering | None = None,
    ):
        self.program = program
        self.training = request.trains
        self.rules = [rule.without(frozen) for rule in rules] if self.training else []
        self.updated = tuple(dict.fromkeys(n for r in self.rules for n in r.parameters))
        self.carried = (*self.updated, *program.states) if self.training else ()
        self.kept = tuple(n for n in (*program.parameters, *program.states) if n not in self.carried)
        self._request = request
        self._requested = RequestedValues(program, request, len(self.rules))
        self._tables = tuple(dict.fromkeys(n for r in self.rules for n in r.tables))
        # If the moving statistics of a batch_norm layer are frozen, the layer normalises with them. So in train mode,
        # layers need the names of frozen states, even in a run that updates no parameter.
        self._frozen = frozen if request.mode == TRAIN else frozenset()
        self._function = function if self.rules else None
        self._gathering = gathering
        self.draws = program.random or self._function is not None
        if self._function is not None:
            self._requested.check_custom_step()

    def train(
        self, state: TrainingState, constants: Constants, feeds: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> tuple[TrainingState, Found]:
        """Run one training step."""
        arrays = {**constants.arrays, **state.arrays}
        key = step_key(constants.root, state.step)
        if self._function is None:
            applied, gradients_of = self.gradients(arrays, state.slots, feeds, overrides, key)
            done = self.update(arrays, state.slots, constants.rates, applied, gradients_of)
        else:
            done = self._custom_update(state, arrays, constants.rates, feeds, overrides, key)
        new = {**done.parameters, **self._states_after(state, done)}
        # These values can be fetched by name. A learning rate that the program computes replaces the declared rate, and
        # the parameters after the update replace the parameters before it.
        values = {**self._rates_and_scales(state.slots, constants.rates), **done.values, **new}
        found = self._requested.found(done.outputs, done.parts, values, done.gradients_of)
        return TrainingState(new, done.slots, state.step + 1), found

    def forward(self, variables: Variables, arrays: Mapping[str, Any], feeds: Any, overrides: Any, key: Any) -> Applied:
        """Run the forward pass of the program, and return its values.

        Args:
          variables: the values to differentiate: parameters that replace arrays of equal names; and zeros that are
            added to named values, so that the gradient of a zero is the gradient of the value.
        """
        gather = None if self._gathering is None else self._gathering.gather
        requested = self._requested
        overrides = {requested.inside(name): value for name, value in overrides.items()}

        def apply(variables: Variables) -> Applied:
            every = {**arrays, **variables.arrays}
            return self.program.apply(
                every if gather is None else {n: gather(n, array) for n, array in every.items()},
                feeds,
                key=key,
                mode=self._request.mode,
                overrides=overrides,
                perturbations=variables.perturbations,
                row_perturbations=variables.row_perturbations,
                parts=self._request.parts,
                labelling=bool(requested.inner),
                frozen=self._frozen,
                gather=gather,
                until=requested.last_needed(),
            )

        if not requested.inner:
            return apply(variables)
        return with_inner(apply, variables, self.program, requested.inner)

    def gradients(
        self, arrays: Mapping[str, Any], slots: Sequence[Any], feeds: Any, overrides: Any, key: Any
    ) -> tuple[Applied, Callable[[int], Variables]]:
        """Run the forward pass of the program, and prepare the backward pass of each loss.

        The backward pass of a loss runs when its gradients are first needed. All backward passes use the parameters
        before the step.
        """

        def run(variables: Variables) -> Applied:
            return self.forward(variables, arrays, feeds, overrides, key)

        variables = self._variables(arrays, run)
        if variables is None:
            return run(_NONE), lambda index: _NONE

        def losses(variables: Variables) -> tuple[list[Any], Applied]:
            applied = run(variables)
            if applied.losses:  # one loss for each `minimize` call, in order
                return applied.losses, applied
            loss = data_of(applied.outputs[self.program.loss_output])
            return [jnp.reshape(loss, ())], applied

        # On a mesh, the backward pass gathers sharded parameters again, so that no device stores the full parameters.
        function = losses if self._gathering is None else self._gathering.gathering_again(losses)
        values, pull, applied = jax.vjp(function, variables, has_aux=True)

        @functools.cache
        def gradients_of(index: int) -> Variables:
            # in test mode, the list of update rules is empty, so no loss is scaled
            scaled = index < len(self.rules) and self.rules[index].scaled
            scale = scale_of(slots[index]) if scaled else 1.0
            cotangents = [jnp.asarray(scale if i == index else 0.0, v.dtype) for i, v in enumerate(values)]
            (pulled,) = pull(cotangents)
            return jax.tree.map(lambda gradient: _unscaled(gradient, scale), pulled) if scaled else pulled

        return applied, gradients_of

    def _variables(self, arrays: Mapping[str, Any], run: Callable[[Variables], Applied]) -> Variables | None:
        """Return the inputs with respect to which the losses are differentiated; None if no gradient is needed."""
        requested = self._requested.gradients
        dense = [n for n in self.updated if n not in self._tables]
        names = dict.fromkeys((*dense, *(n for n in requested if n in self.program.parameters)))
        inner = [n for n in requested if n not in self.program.parameters]
        if not names and not inner and not self._tables:
            return None

        def values() -> tuple[Any, Any]:
            applied = run(_NONE)
            rows = {
                n: [jnp.zeros((*i.shape, arrays[n].shape[1]), arrays[n].dtype) for i in applied.lookups[n]]
                for n in self._tables
            }
            return {n: applied.values[n] for n in inner}, rows

        zeros: tuple[Any, Any] = ({}, {})
        # The step differentiates with respect to zeros that are added to values and looked-up rows. Trace the program
        # once more to find the shapes of these zeros.
        if inner or self._tables:
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(values))
        return Variables({n: arrays[n] for n in names}, *zeros)

    def update(
        self,
        arrays: Mapping[str, Any],
        slots: Sequence[Any],
        rates: Sequence[Any],
        applied: Applied,
        gradients_of: Callable[[int], Variables],
    ) -> _Update:
        """Apply each update rule once, in the order of the program, to its parameters and optimizer state."""
        parameters = {n: arrays[n] for n in self.updated}
        slots = list(slots)
        measured: dict[str, Any] = {}
        wanted = self._requested.of_rules
        for i, rule in enumerate(self.rules):
            rate = rates[i]
            if applied.rates[i] is not None:
                rate = applied.rates[i]
                measured |= {f"{RATE}_{i}": rate} if (RATE, i) in wanted else {}
            found = gradients_of(i)
            dense = {n: found.arrays[n] for n in rule.parameters if n not in rule.tables}
            rows = {
                n: merge(applied.lookups[n], found.row_perturbations[n], arrays[n].shape[0], self._gathering)
                for n in rule.tables
            }
            before = {n: parameters[n] for n in rule.parameters}
            frozen = {n: arrays[n] for n in rule.frozen}
            changed, slots[i] = rule.update(rate, dense, rows, slots[i], {**before, **frozen}, self._gathering)
            parameters |= changed
            if (GRAD_NORM, i) in wanted:
                measured[f"{GRAD_NORM}_{i}"] = norm({**dense, **{n: of_rows.values for n, of_rows in rows.items()}})
            if (UPDATE_RATIO, i) in wanted:
                measured[f"{UPDATE_RATIO}_{i}"] = ratio(before, changed)
        values = {**measured, **applied.values}
        return _Update(parameters, slots, applied.states, applied.outputs, applied.parts, values, gradients_of)

    def _states_after(self, state: TrainingState, done: _Update) -> dict[str, Any]:
        """Return the states, such as moving averages, after a step.

        If the gradients of a scaled loss overflow, the update of its parameters is skipped, and the result is the
        states before the step.
        """
        skipped = [
            was_skipped(before, after)
            for rule, before, after in zip(self.rules, state.slots, done.slots, strict=True)
            if rule.scaled
        ]
        if not skipped:
            return done.states
        any_skipped = jnp.stack(skipped).any()
        return {n: jnp.where(any_skipped, state.arrays[n], new) for n, new in done.states.items()}

    def _rates_and_scales(self, slots: Sequence[Any], rates: Sequence[Any]) -> dict[str, Any]:
        """Return those learning rates and loss scales of this step that the request names."""
        found: dict[str, Any] = {}
        for i, (rule, state) in enumerate(zip(self.rules, slots, strict=True)):
            if (RATE, i) in self._requested.of_rules:
                found[f"{RATE}_{i}"] = rule.rate(rates[i], state)
            if (LOSS_SCALE, i) in self._requested.of_rules:
                found[f"{LOSS_SCALE}_{i}"] = scale_of(state)
        return found

    def test(
        self,
        arrays: Mapping[str, Any],
        feeds: Mapping[str, Any],
        overrides: Mapping[str, Any] = {},  # noqa: B006
        root: Any = None,
        step: Any = 0,
    ) -> Found:
        """Run the program in test mode, with the random key of step number `step`; return the requested values."""
        return self.evaluate(arrays, feeds, overrides, step_key(root, step))

    def evaluate(
        self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any], key: Any
    ) -> Found:
        """Run the program with a random key and without an update; return the requested values."""
        applied, gradients_of = self.gradients(arrays, (), feeds, overrides, key)
        states = {n: arrays[n] for n in self.program.states}
        return self._requested.found(applied.outputs, applied.parts, {**applied.values, **states}, gradients_of)

    def _custom_update(
        self, state: TrainingState, arrays: Any, rates: Any, feeds: Any, overrides: Any, key: Any
    ) -> _Update:
        """Run the user's custom step function, which replaces `gradients` and `update`, and check its result."""
        assert self._function is not None

        def apply(chosen: Mapping[str, Any], feeds: Mapping[str, Any], key: Any) -> Applied:
            return self.forward(_NONE._replace(arrays=chosen), arrays, feeds, overrides, key)

        parameters = {n: arrays[n] for n in self.updated}
        states = {n: arrays[n] for n in self.program.states}
        frozen = {n: arrays[n] for rule in self.rules for n in rule.frozen}
        machinery = Machinery(self.rules, rates, apply, self._requested.names, frozen)
        step = TrainingStep(parameters, list(state.slots), states, dict(feeds), key, state.step, machinery)
        try:
            returned = self._function(step)
        except Exception as error:
            explained = explained_step(error)
            if explained is None:
                raise
            raise explained from None
        after, slots, evaluation = check_result(returned, step)
        values = dict(evaluation.values)
        for i, rule in enumerate(self.rules):
            if (UPDATE_RATIO, i) in self._requested.of_rules:
                before = {n: parameters[n] for n in rule.parameters}
                values[f"{UPDATE_RATIO}_{i}"] = ratio(before, {n: after[n] for n in rule.parameters})
        parts = step._parts_of(evaluation.outputs) if self._request.parts else ()
        return _Update(after, slots, evaluation.states, evaluation.outputs, parts, values, lambda index: _NONE)


def step_key(root: Any, step: Any) -> Any:
    """Return the random key of step number `step`, from the session's random key `root`; None if `root` is None."""
    return None if root is None else jax.random.fold_in(jax.random.wrap_key_data(root), step)


def _unscaled(gradient: Any, scale: Any) -> Any:
    """Divide a gradient by its loss scale, in float32 or wider: in float16, small gradients would become 0.

    Integer arrays, such as the lengths of sequences, have no gradient, and are returned unchanged.
    """
    if not jnp.issubdtype(gradient.dtype, jnp.floating):
        return gradient
    return gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32)) / scale


class OneTraining:
    """The strategy (way to run a step) for one model; `fluid.sweeps.Members` is the strategy for many models.

    Attributes:
      size: number of models, whose arrays are stacked along a first axis; None for one model without this axis.
      arguments: the values that differ among the models: by name, one value for each model; empty for one model.
      variant: the reason for another compilation of the step, for messages; empty for the first one.
    """

    size: int | None = None
    arguments: Mapping[str, Any] = {}
    variant: str = ""

    def functions(self, step: Step) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the training step and the test-mode step as pure functions."""
        return step.train, step.test

    def constants(self) -> Any:
        """Return the values that differ among the models of a population; None for a single model."""
        return None

    def specs(self, specs: Mapping[str, ParameterSpec]) -> Mapping[str, ParameterSpec]:
        """Convert declarations of arrays to declarations of stacked arrays; for one model, return them unchanged."""
        return specs

    def draw(self, seed: int) -> Draw:
        """Return the root of all random keys of a test-mode run with this seed, and a step number, as NumPy arrays."""
        return root_of(seed), np.int32(0)

    def learning_rates(self, rates: Rates, program: str, rules: Sequence[Rule], slots: Any) -> list[jax.Array]:
        """Return the learning rates of the next training step, on the device."""
        return rates.current(program, slots)

    def move(self, place: Callable[[Any], Any]) -> None:
        """Move the arrays of this strategy to another device, by calling the function `place`.

        The strategy for a single model has no arrays, so its method does nothing.
        """


def scanned(train: Callable[..., tuple[Any, Any]]) -> Callable[[TrainingState, Constants, Fed], tuple[Any, Any]]:
    """Return a function for `jax.jit` that runs several training steps in a loop.

    The number of steps, `count`, is an argument of the compiled function, and not part of a shape. So one compilation
    serves any number of steps up to the capacity: the size of the first axis of the stacked minibatches.
    """

    def several(state: TrainingState, constants: Constants, fed: Fed) -> tuple[Any, Any]:
        capacity = jax.tree.leaves(fed.rows if isinstance(fed, Picks) else fed.feeds)[0].shape[0]
        shapes = jax.eval_shape(lambda: train(state, constants, fed.feed(0), {})[1])
        empty = jax.tree.map(lambda shape: jnp.zeros((capacity, *shape.shape), shape.dtype), shapes)

        def step(number: Any, so_far: tuple[Any, Any]) -> tuple[Any, Any]:
            before, stacked = so_far
            after, results = train(before, constants, fed.feed(number), {})
            write = lambda every, one: jax.lax.dynamic_update_index_in_dim(every, one, number, 0)  # noqa: E731
            return after, jax.tree.map(write, stacked, results)

        after, stacked = jax.lax.fori_loop(0, fed.count, step, (state, empty))
        return after, [jax.tree.map(lambda every: every[number], stacked) for number in range(capacity)]  # noqa: B023

    return several
