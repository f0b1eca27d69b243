"""The pure step of a program: forward, gradient, update, as one function of arrays that Session jits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import TEST, TRAIN, Applied, Program, data_of
from fluid.core.equations import last_values
from fluid.core.explain import step_in_own_words
from fluid.optimizer.loss_scale import scale_of, was_skipped
from fluid.optimizer.norms import norm, ratio
from fluid.runtime.custom_step import Machinery, StepFunction, TrainingStep, check_result
from fluid.runtime.fetch import GRAD, GRAD_NORM, LOSS_SCALE, RATE, UPDATE_RATIO, is_line
from fluid.runtime.sparse_update import merge
from fluid.runtime.update_rules import Rule

if TYPE_CHECKING:
    from fluid.parallel import OnMesh


@dataclass(frozen=True)
class Request:
    """What one compiled step shall do; equal requests share a compilation.

    Attributes:
      mode: "train" or "test".
      fetch: names of the values to return, or None for the program's outputs.
      feeds: names of the feeds that are given.
      overrides: names of the values that are replaced.
      parts: return what each output contributes to its value over several minibatches, and then the fetched values.
      also: names of values to return beside those.
      updates: False for a run in train mode that changes nothing: to see what layers do there.
    """

    mode: str
    fetch: tuple[str, ...] | None
    feeds: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    parts: bool = False
    also: tuple[str, ...] = ()
    updates: bool = True


def checked_mode(mode: str) -> str:
    """The same mode.

    Raises:
      ArgumentError: there is no such mode.
    """
    if mode not in (TRAIN, TEST):
        raise errors.ArgumentError(f'mode={mode!r}: expected "train" or "test"')
    return mode


class _Wanted(NamedTuple):
    """The names of a request that stand for something else than a value of the program, taken apart once.

    Attributes:
      gradients: the names of what a gradient is wanted of.
      lines: keys of `Program.lines`.
      of_rules: pairs of a kind, such as "grad_norm", and the index of a `minimize`.
    """

    gradients: tuple[str, ...]
    lines: tuple[str, ...]
    of_rules: frozenset[tuple[str, int]]

    @classmethod
    def of(cls, names: Sequence[str], rules: int) -> _Wanted:
        """Take the names of a request apart; `rules` is the number of `minimize` calls."""
        known = {f"{kind}_{i}": (kind, i) for kind in (RATE, GRAD_NORM, UPDATE_RATIO, LOSS_SCALE) for i in range(rules)}
        return cls(
            tuple(name.removesuffix(GRAD) for name in names if name.endswith(GRAD)),
            tuple(filter(is_line, names)),
            frozenset(known[name] for name in names if name in known),
        )


class _Done(NamedTuple):
    """The values that a training step has computed.

    Attributes:
      parameters: with their new values, by name.
      slots: one state for each rule.
      states: with their new values, by name.
      outputs: of the program.
      values: what can be fetched, by name.
      gradients: for the number of a rule, its gradients.
    """

    parameters: dict[str, Any]
    slots: list[Any]
    states: dict[str, Any]
    outputs: Sequence[Any]
    values: dict[str, Any]
    gradients: Callable[[int], Any]


class Step:
    """A program with the rules of its `minimize` records, as pure functions.

    Args:
      program: the program.
      rules: from `rules_of`.
      request: what shall be done.
      function: a training step of the user's own, see `TrainingStep`; None for one gradient and one update.
      frozen: names of parameters and states that training leaves as they are.
      mesh: where arrays lie on several devices; None for one.

    Raises:
      UnknownNameError: a gradient is to be fetched, and the function is the only one to know it.
    """

    def __init__(
        self,
        program: Program,
        rules: Sequence[Rule],
        request: Request,
        function: StepFunction | None = None,
        frozen: frozenset[str] = frozenset(),
        mesh: OnMesh | None = None,
    ):
        self._mesh = mesh
        self.program = program
        self.request = request
        self.training = request.mode == TRAIN and request.updates
        self.frozen = frozen if request.mode == TRAIN else frozenset()
        self.rules = [rule.without(frozen) for rule in rules] if self.training else []
        self.updated = tuple(dict.fromkeys(n for r in self.rules for n in r.parameters))
        self.carried = (*self.updated, *program.states) if self.training else ()
        self.kept = tuple(n for n in (*program.parameters, *program.states) if n not in self.carried)
        self._asked = (*(request.fetch or ()), *request.also)
        self._wanted = _Wanted.of(self._asked, len(self.rules))
        self._tables = tuple(dict.fromkeys(n for r in self.rules for n in r.tables))
        self._function = function if self.rules else None
        self._keys = program.output_names or ()
        self._is_partial = any(name not in request.feeds for name in program.feeds)
        self.draws = program.random or self._function is not None
        if self._function is not None:
            self._check_fetched()

    def train(
        self, carry: Mapping[str, Any], kept: Mapping[str, Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        """One training step.

        Args:
          carry: what changes: arrays, slots, step.
          kept: what does not: arrays, root, and the rates from `Rates.of`.
          feeds: by name.
          overrides: values that replace named values.

        Returns:
          What `carry` is after it, and the results of the request.
        """
        arrays = {**kept["arrays"], **carry["arrays"]}
        key = step_key(kept["root"], carry["step"])
        if self._function is None:
            applied, gradients = self.gradients(arrays, carry["slots"], feeds, overrides, key)
            done = self.update(arrays, carry["slots"], kept["rates"], applied, gradients)
        else:
            done = self._own_step(carry, arrays, kept["rates"], feeds, overrides, key)
        new = {**done.parameters, **self._states(carry, done)}
        after = {"arrays": new, "slots": done.slots, "step": carry["step"] + 1}
        values = {**self._rates_and_scales(carry["slots"], kept["rates"]), **done.values, **new}
        return after, self._results(done.outputs, (), values, done.gradients)

    def forward(
        self, variables: Mapping[str, Any], arrays: Mapping[str, Any], feeds: Any, overrides: Any, key: Any
    ) -> Applied:
        """Run the program.

        Args:
          variables: arrays that take the place of others, and zeros that are added to values, see `_variables`.
          arrays: parameters and states, by name.
          feeds: by name.
          overrides: values that replace named values.
          key: the random key of the step; None for a program that draws nothing.
        """

        def apply(variables: Mapping[str, Any]) -> Applied:
            every = {**arrays, **variables.get("arrays", {})}
            return self.program.apply(
                every if self._mesh is None else self._mesh.gather(every),
                feeds,
                key=key,
                mode=self.request.mode,
                overrides=overrides,
                perturbations=variables.get("nudges"),
                row_perturbations=variables.get("rows"),
                parts=self.request.parts,
                frozen=self.frozen,
                gather=None if self._mesh is None else self._mesh.gather_one,
                until=self._until(),
            )

        return with_lines(apply, variables, self._wanted.lines) if self._wanted.lines else apply(variables)

    def gradients(
        self,
        arrays: Mapping[str, Any],
        slots: Sequence[Any],
        feeds: Mapping[str, Any],
        overrides: Mapping[str, Any],
        key: Any,
    ) -> tuple[Applied, Callable[[int], Any]]:
        """Run the program forwards and backwards; return its values, and a function from a loss to its gradients.

        Args:
          arrays: as for `forward`, and so are `feeds`, `overrides` and `key`.
          slots: the states of the optimizers, which may scale the loss.
          feeds: see there.
          overrides: see there.
          key: see there.
        """

        def forward(variables: Mapping[str, Any]) -> Applied:
            return self.forward(variables, arrays, feeds, overrides, key)

        variables = self._variables(arrays, forward)
        if variables is None:
            return forward({}), lambda i: {}

        def losses(variables: Mapping[str, Any]) -> tuple[list[Any], Any]:
            applied = forward(variables)
            first = data_of(applied.outputs[self.program.loss_output])
            return applied.losses or [jnp.reshape(first, ())], applied

        function = losses if self._mesh is None else self._mesh.gathering_again(losses)
        found, pull, applied = jax.vjp(function, variables, has_aux=True)

        def gradients(i: int) -> Any:
            scaled = i < len(self.rules) and self.rules[i].scaled
            scale = scale_of(slots[i]) if scaled else 1.0
            pulled = pull([jnp.asarray(scale if j == i else 0.0, v.dtype) for j, v in enumerate(found)])[0]
            return jax.tree.map(lambda g: _unscaled(g, scale), pulled) if scaled else pulled

        return applied, _memoized(gradients)

    def update(
        self,
        arrays: Mapping[str, Any],
        slots: Sequence[Any],
        rates: Sequence[Any],
        applied: Applied,
        gradients: Callable[[int], Any],
    ) -> _Done:
        """Update parameters and slots by the gradients: once for each rule, in the order of the program.

        Args:
          arrays: parameters and states, by name.
          slots: the states of the optimizers.
          rates: the learning rate of each rule.
          applied: the values of the program.
          gradients: from the index of a rule to its gradients.
        """
        parameters = {n: arrays[n] for n in self.updated}
        slots = list(slots)
        measured: dict[str, Any] = {}
        wanted = self._wanted.of_rules
        for i, rule in enumerate(self.rules):
            rate = rates[i] if applied.rates[i] is None else applied.rates[i]
            if applied.rates[i] is not None and (RATE, i) in wanted:
                measured[f"{RATE}_{i}"] = rate
            mine = gradients(i)
            dense = {n: mine["arrays"][n] for n in rule.parameters if n not in rule.tables}
            rows = {n: merge(applied.lookups[n], mine["rows"][n], arrays[n].shape[0], self._mesh) for n in rule.tables}
            before = {n: parameters[n] for n in rule.parameters}
            still = {n: arrays[n] for n in rule.frozen}
            changed, slots[i] = rule.update(rate, dense, rows, slots[i], {**before, **still}, self._mesh)
            parameters |= changed
            if (GRAD_NORM, i) in wanted:
                measured[f"{GRAD_NORM}_{i}"] = norm({**dense, **{n: found.values for n, found in rows.items()}})
            if (UPDATE_RATIO, i) in wanted:
                measured[f"{UPDATE_RATIO}_{i}"] = ratio(before, changed)
        return _Done(parameters, slots, applied.states, applied.outputs, {**measured, **applied.values}, gradients)

    def test(
        self,
        arrays: Mapping[str, Any],
        feeds: Mapping[str, Any],
        overrides: Mapping[str, Any] = {},  # noqa: B006
        root: Any = None,
        step: Any = 0,
    ) -> Any:
        """One evaluation: nothing changes."""
        return self.evaluate(arrays, feeds, overrides, step_key(root, step))

    def evaluate(
        self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any], key: Any
    ) -> Any:
        """One evaluation with the random key of its step; None for a program that needs none."""
        applied, gradients = self.gradients(arrays, (), feeds, overrides, key)
        states = {n: arrays[n] for n in self.program.states}
        return self._results(applied.outputs, applied.parts, {**applied.values, **states}, gradients)

    def _own_step(
        self, carry: Mapping[str, Any], arrays: Any, rates: Any, feeds: Any, overrides: Any, key: Any
    ) -> _Done:
        """Run the user's own step function."""
        assert self._function is not None

        def apply(chosen: Mapping[str, Any], feeds: Mapping[str, Any], key: Any) -> Applied:
            return self.forward({"arrays": chosen}, arrays, feeds, overrides, key)

        parameters = {n: arrays[n] for n in self.updated}
        states = {n: arrays[n] for n in self.program.states}
        fetched = [self._canonical(n) for n in self._asked]
        frozen = {n: arrays[n] for rule in self.rules for n in rule.frozen}
        machinery = Machinery(self.rules, rates, apply, fetched, frozen)
        step = TrainingStep(parameters, list(carry["slots"]), states, dict(feeds), key, carry["step"], machinery)
        after, slots, evaluation = check_result(self._called(step), step)
        values = dict(evaluation.values)
        for i, rule in enumerate(self.rules):
            if (UPDATE_RATIO, i) in self._wanted.of_rules:
                before, changed = ({n: found[n] for n in rule.parameters} for found in (parameters, after))
                values[f"{UPDATE_RATIO}_{i}"] = ratio(before, changed)
        return _Done(after, slots, evaluation.states, evaluation.outputs, values, lambda i: {})

    def _called(self, step: TrainingStep) -> Any:
        """Call the user's step function."""
        assert self._function is not None
        try:
            return self._function(step)
        except Exception as error:
            explained = step_in_own_words(error)
            if explained is None:
                raise
            raise explained from None

    def _states(self, carry: Mapping[str, Any], done: _Done) -> dict[str, Any]:
        """The states after a step: with an update that was left out, those of before."""
        skipped = [
            was_skipped(before, after)
            for rule, before, after in zip(self.rules, carry["slots"], done.slots, strict=True)
            if rule.scaled
        ]
        if not skipped:
            return done.states
        any_skipped = jnp.stack(skipped).any()
        return {n: jnp.where(any_skipped, carry["arrays"][n], state) for n, state in done.states.items()}

    def _until(self) -> frozenset[str] | None:
        """Return the names of the values after which the program function may end; None to run all of it.

        All of it runs if every feed is given, as in training and tests, so that effects such as `layers.Print` happen.
        """
        request = self.request
        if request.mode != TEST or request.parts or request.fetch is None or not self._is_partial:
            return None
        if self._wanted.gradients or self._wanted.lines:
            return None
        program = self.program
        names = {self._value(name) for name in self._asked}
        known = {*program.feeds, *program.parameters, *program.states}
        return None if None in names else frozenset(name for name in names if name) - known

    def _value(self, name: str) -> str | None:
        """Return the name of the value that a requested name means in test mode; None for an unnamed output."""
        return self.program.returned.get(name) if name in self._keys else self._canonical(name)

    def _variables(self, arrays: Mapping[str, Any], forward: Callable[[Any], Applied]) -> dict[str, Any] | None:
        """What to differentiate with respect to: parameters, looked-up rows, and zeros added to named values."""
        wanted = [self._canonical(name) for name in self._wanted.gradients]
        whole = [n for n in self.updated if n not in self._tables]
        names = dict.fromkeys((*whole, *(n for n in wanted if n in self.program.parameters)))
        inner = [n for n in wanted if n not in self.program.parameters]
        if not names and not inner and not self._tables:
            return None

        def shapes() -> Any:
            applied = forward({})
            rows = {
                n: [jnp.zeros((*i.shape, arrays[n].shape[1]), arrays[n].dtype) for i in applied.lookups[n]]
                for n in self._tables
            }
            return {"nudges": {n: applied.values[n] for n in inner}, "rows": rows}

        zeros: dict[str, Any] = {"nudges": {}, "rows": {}}
        if inner or self._tables:
            zeros = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), jax.eval_shape(shapes))
        return {"arrays": {n: arrays[n] for n in names}, **zeros}

    def _results(self, outputs: Any, parts: Any, values: Mapping[str, Any], gradients: Callable[[int], Any]) -> Any:
        """Return the values of `Request.fetch`, the values of `Request.also`, and with `Request.parts` the parts."""
        named = {} if outputs else {n: values[self.program.returned[n]] for n in self._asked if n in self._keys}
        known = {**values, **named, **dict(zip(self._keys, outputs, strict=False))}

        def value(name: str) -> Any:
            if name.endswith(GRAD):
                return self._gradient(self._canonical(name.removesuffix(GRAD)), gradients, values)
            return known[name if name in known else self._canonical(name)]

        request = self.request
        unnamed = () if request.parts else tuple(outputs)
        found = unnamed if request.fetch is None else tuple(map(value, request.fetch))
        return found, tuple(map(value, request.also)), tuple(parts) if request.parts else ()

    def _canonical(self, name: str) -> str:
        """The name under which a value is recorded: that of its alias, or itself."""
        return self.program.aliases.get(name, name)

    def _rates_and_scales(self, slots: Sequence[Any], rates: Sequence[Any]) -> dict[str, Any]:
        """The learning rates and loss scales of this step, as far as they are asked for."""
        found: dict[str, Any] = {}
        for i, (rule, state) in enumerate(zip(self.rules, slots, strict=True)):
            if (RATE, i) in self._wanted.of_rules:
                found[f"{RATE}_{i}"] = rule.rate(rates[i], state)
            if (LOSS_SCALE, i) in self._wanted.of_rules:
                found[f"{LOSS_SCALE}_{i}"] = scale_of(state)
        return found

    def _check_fetched(self) -> None:
        """Refuse to fetch what only the user's own step function knows."""
        for name in self._asked:
            if name.endswith(GRAD) or name.startswith(f"{GRAD_NORM}_"):
                raise errors.UnknownNameError(
                    f"{name!r} cannot be fetched from a training step with step=, which may compute several gradients, "
                    f"or none; fetch it in test mode, or return it among the outputs: "
                    f"dataclasses.replace(here, outputs=[...])"
                )

    def _gradient(self, name: str, gradients: Callable[[int], Any], values: Mapping[str, Any]) -> Any:
        mine = [i for i, m in enumerate(self.program.minimizes) if name in m.parameters]
        found = gradients(mine[0] if mine else 0)
        if name in found["arrays"]:
            return found["arrays"][name]
        gradient = found["nudges"][name]
        value = values[name]
        # Lengths have no gradient; those of the value say which steps of it are real.
        return gradient if gradient is data_of(gradient) else value.with_data(gradient.data)


def with_lines(apply: Callable[[Any], Applied], variables: Any, lines: Sequence[str]) -> Applied:
    """Apply a program, and name the last values that some of its lines make.

    Args:
      apply: pure.
      variables: its argument.
      lines: keys of `Program.lines`.

    Returns:
      What it returns, with the values of the lines among the named values.
    """
    closed, shapes = jax.make_jaxpr(apply, return_shape=True)(variables)
    made = last_values(closed.jaxpr)
    longer = closed.jaxpr.replace(outvars=[*closed.jaxpr.outvars, *(made[line] for line in lines)])
    # Evaluated equation by equation inside the trace that is going on, which differentiates and compiles them.
    results = jax.core.eval_jaxpr(longer, closed.consts, *jax.tree.leaves(variables))
    applied = jax.tree.unflatten(jax.tree.structure(shapes), results[: -len(lines)])
    return replace(applied, values={**applied.values, **dict(zip(lines, results[-len(lines) :], strict=True))})


def step_key(root: Any, step: Any) -> Any:
    """The random root of a step; None for a program that draws nothing."""
    return None if root is None else jax.random.fold_in(jax.random.wrap_key_data(root), step)


def _unscaled(gradient: Any, scale: Any) -> Any:
    """A gradient divided by a scale, in float32, where what would vanish in half precision does not.

    The lengths of sequences, among the leaves of a gradient, have none.
    """
    floating = jnp.issubdtype(gradient.dtype, jnp.floating)
    return gradient.astype(jnp.promote_types(gradient.dtype, jnp.float32)) / scale if floating else gradient


def _memoized(function: Callable[[int], Any]) -> Callable[[int], Any]:
    known: dict[int, Any] = {}

    def call(i: int) -> Any:
        if i not in known:
            known[i] = function(i)
        return known[i]

    return call
