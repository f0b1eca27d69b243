"""The pure step of a program: forward, gradient, update, as one function of arrays that Session jits."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import TRAIN, Applied, NestedSequenceBatch, Program, SequenceBatch
from fluid.core.equations import last_values
from fluid.lazy import optax
from fluid.session.names import GRAD, is_line, rate_names
from fluid.session.rows import keeps_other_rows, merge, update


@dataclass(frozen=True)
class Request:
    """What one compiled step shall do; equal requests share a compilation.

    Attributes:
      mode: "train" or "test".
      fetch: names of the values to return, or None for the program's outputs.
      feeds: names of the feeds that are given.
      overrides: names of the values that are replaced.
      parts: return what each output contributes to its value over several minibatches, and then the fetched values.
    """

    mode: str
    fetch: tuple[str, ...] | None
    feeds: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    parts: bool = False


class Rule(NamedTuple):
    """How one `minimize` updates its parameters.

    Attributes:
      transformation: of optax, over a dict of all these parameters.
      parameters: their names.
      tables: those among them that are updated by the rows that were looked up.
    """

    transformation: optax.GradientTransformation
    parameters: tuple[str, ...]
    tables: tuple[str, ...]


def rules_of(program: Program) -> list[Rule]:
    """One Rule for each `minimize` of a program.

    Warns when a table that was declared sparse has to be updated densely.
    """
    rules = []
    for minimize in program.minimizes:
        settings = {n: program.parameters[n].settings for n in minimize.parameters}
        looked_up = [n for n in minimize.parameters if n in program.lookups]
        shared = [n for n in looked_up if n in program.dense_uses]
        tables = [n for n in looked_up if n not in shared]
        if shared:
            warnings.warn(
                f"the tables {shared} of {program.name} are used as a whole too, so their updates are dense; "
                f"give every embedding of them is_sparse=True",
                errors.FluidWarning,
                stacklevel=2,
            )
        if tables and (why := _needs_all_rows(minimize.optimizer)):
            warnings.warn(
                f"{type(minimize.optimizer).__name__} {why}, so the updates of {tables} are dense, "
                f"as they must be to be exact",
                errors.FluidWarning,
                stacklevel=2,
            )
            tables = []
        rules.append(Rule(minimize.optimizer.transformation(settings), minimize.parameters, tuple(tables)))
    return rules


def _needs_all_rows(optimizer: Any) -> str | None:
    if optimizer.whole_tables:
        return "(with its accumulate_steps, norms, averages or schedule) needs tables as a whole"
    if optimizer.lazy_mode or keeps_other_rows(optimizer.rule()):
        return None
    return "changes rows that have no gradient (lazy_mode=True would leave those alone)"


class Step:
    """A program with the rules of its `minimize` records, as pure functions.

    Args:
      program: the program.
      rules: from `rules_of`.
      request: what shall be done.
    """

    def __init__(self, program: Program, rules: Sequence[Rule], request: Request):
        self.program = program
        self.request = request
        self.training = request.mode == TRAIN
        self.rules = list(rules) if self.training else []
        self.updated = tuple(dict.fromkeys(n for r in self.rules for n in r.parameters))
        self.carried = (*self.updated, *program.states) if self.training else ()
        self.kept = tuple(n for n in (*program.parameters, *program.states) if n not in self.carried)
        self.gradients = tuple(n for n in request.fetch or () if n.endswith(GRAD))
        self._lines = tuple(n for n in request.fetch or () if is_line(n))
        self._tables = tuple(dict.fromkeys(n for r in self.rules for n in r.tables))

    def train(
        self, carry: Mapping[str, Any], kept: Mapping[str, Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any]
    ) -> tuple[dict[str, Any], Any]:
        """One training step: `carry` holds what changes (arrays, slots, step), `kept` what does not."""
        key = _step_key(kept["root"], carry["step"])
        arrays = {**kept["arrays"], **carry["arrays"]}
        applied, gradients = self._differentiate(arrays, feeds, overrides, key)
        new, slots = dict(carry["arrays"]), list(carry["slots"])
        for i, rule in enumerate(self.rules):
            mine = gradients(i)
            dense = {n: mine["arrays"][n] for n in rule.parameters if n not in rule.tables}
            rows = {n: merge(applied.lookups[n], mine["rows"][n], arrays[n].shape[0]) for n in rule.tables}
            params = {n: new[n] for n in rule.parameters}
            changed, slots[i] = update(rule.transformation, dense, rows, slots[i], params)
            new |= changed
        new |= applied.states
        after = {"arrays": new, "slots": slots, "step": carry["step"] + 1}
        return after, self._results(applied, {**self._rates(carry["slots"]), **applied.values, **new}, gradients)

    def test(
        self,
        arrays: Mapping[str, Any],
        feeds: Mapping[str, Any],
        overrides: Mapping[str, Any] = {},  # noqa: B006
        root: Any = None,
        step: Any = 0,
    ) -> Any:
        """One evaluation: nothing changes."""
        applied, gradients = self._differentiate(arrays, feeds, overrides, _step_key(root, step))
        return self._results(applied, {**applied.values, **applied.states}, gradients)

    def _differentiate(
        self, arrays: Mapping[str, Any], feeds: Mapping[str, Any], overrides: Mapping[str, Any], key: Any
    ) -> tuple[Applied, Callable[[int], Any]]:
        def forward(variables: Mapping[str, Any]) -> Applied:
            return with_lines(apply, variables, self._lines) if self._lines else apply(variables)

        def apply(variables: Mapping[str, Any]) -> Applied:
            return self.program.apply(
                {**arrays, **variables.get("arrays", {})},
                feeds,
                key=key,
                mode=self.request.mode,
                overrides=overrides,
                perturbations=variables.get("nudges"),
                row_perturbations=variables.get("rows"),
                parts=self.request.parts,
            )

        variables = self._variables(arrays, forward)
        if variables is None:
            return forward({}), lambda i: {}

        def losses(variables: Mapping[str, Any]) -> tuple[list[Any], Any]:
            applied = forward(variables)
            return applied.losses or [jnp.reshape(_data(applied.outputs[0]), ())], applied

        found, pull, applied = jax.vjp(losses, variables, has_aux=True)
        cotangents = [jnp.ones((), v.dtype) for v in found]

        def gradients(i: int) -> Any:
            return pull([c if j == i else jnp.zeros_like(c) for j, c in enumerate(cotangents)])[0]

        return applied, _memoized(gradients)

    def _variables(self, arrays: Mapping[str, Any], forward: Callable[[Any], Applied]) -> dict[str, Any] | None:
        """What to differentiate with respect to: parameters, looked-up rows, and zeros added to named values."""
        wanted = [self._canonical(n.removesuffix(GRAD)) for n in self.gradients]
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

    def _results(self, applied: Applied, values: Mapping[str, Any], gradients: Callable[[int], Any]) -> Any:
        if self.request.fetch is None:
            return (tuple(applied.parts), ()) if self.request.parts else tuple(applied.outputs)
        known = {**values, **dict(zip(self.program.output_names or (), applied.outputs, strict=False))}
        found = tuple(
            self._gradient(self._canonical(name.removesuffix(GRAD)), gradients, values)
            if name.endswith(GRAD)
            else known[name if name in known else self._canonical(name)]
            for name in self.request.fetch
        )
        return (tuple(applied.parts), found) if self.request.parts else found

    def _canonical(self, name: str) -> str:
        """The name under which a value is recorded: that of its alias, or itself."""
        return self.program.aliases.get(name, name)

    def _rates(self, slots: Sequence[Any]) -> dict[str, Any]:
        every = zip(rate_names(self.program), self.program.minimizes, slots, strict=True)
        asked = self.request.fetch or ()
        return {name: m.optimizer.current_rate(state) for name, m, state in every if name in asked}

    def _gradient(self, name: str, gradients: Callable[[int], Any], values: Mapping[str, Any]) -> Any:
        mine = [i for i, m in enumerate(self.program.minimizes) if name in m.parameters]
        found = gradients(mine[0] if mine else 0)
        if name in found["arrays"]:
            return found["arrays"][name]
        gradient, value = found["nudges"][name], values[name]
        # Lengths have no gradient; those of the value say which steps of it are real.
        return gradient if gradient is _data(gradient) else value.with_data(gradient.data)


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


def _step_key(root: Any, step: Any) -> Any:
    return None if root is None else jax.random.fold_in(jax.random.wrap_key_data(root), step)


def unneeded(function: Callable[..., Any], candidates: Mapping[str, Any], *rest: Any) -> set[str]:
    """Which of the candidates the results of a function do not depend on.

    Args:
      function: called with the candidates and the rest, traced only.
      candidates: arrays by name.
      rest: further arguments.
    """
    jaxpr = jax.make_jaxpr(function)(dict(candidates), *rest).jaxpr
    live = {id(v) for v in jaxpr.outvars}
    for equation in reversed(jaxpr.eqns):
        if any(id(v) in live for v in equation.outvars):
            live |= {id(v) for v in equation.invars}
    leaves = jax.tree_util.tree_leaves_with_path(dict(candidates))
    used = {path[0].key for (path, _), v in zip(leaves, jaxpr.invars, strict=False) if id(v) in live}
    return set(candidates) - used


def _memoized(function: Callable[[int], Any]) -> Callable[[int], Any]:
    known: dict[int, Any] = {}

    def call(i: int) -> Any:
        if i not in known:
            known[i] = function(i)
        return known[i]

    return call


def _data(value: Any) -> Any:
    return value.data if isinstance(value, SequenceBatch | NestedSequenceBatch) else value
