"""NonFiniteReport: a report about the first non-finite value of a training step, also inside loops and branches."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fluid.core import TRAIN, NestedSequenceBatch, Program, SequenceBatch, filled
from fluid.core.equations import inner_jaxprs, is_literal, labelled, live_equations, scan_counts
from fluid.runtime import Request, Session
from fluid.runtime.fetch import GRAD, rate_names
from fluid.runtime.step import Step, TrainingState, step_key


class Inside(NamedTuple):
    """A named value inside a loop or a branch of a program.

    Attributes:
      name: the name of the value.
      times: the index of the loop iteration that computed the value, from 0; one index for each nested loop, outermost
        first. For `layers.rnn` and similar layers, the index is the position in the sequence.
      value: the array.
    """

    name: str
    times: tuple[int, ...]
    value: Any


def first_inside(closed: Any, arguments: Sequence[Any], target: Any, rows: np.ndarray | None) -> Inside | None:
    """Return the first non-finite named value inside the loops and branches that a target depends on.

    The function runs loops one iteration at a time. If an iteration computes a new non-finite value, the function
    checks all named values of the iteration.

    Args:
      rows: bool `[batch]`: the rows of the minibatch to check; None for all.
    """
    search = _NonFiniteSearch(rows)
    level = search.level(closed.jaxpr, closed.consts, [target])
    return search.search(level, level.run(arguments)[1])


class _FunctionEquations:
    """The compiled JAX equations of a program, loop body or branch, to find the first non-finite value.

    Attributes:
      events: the equations to check, in program order: labels, which name a value, and equations that contain labels,
        such as loops.
    """

    def __init__(self, jaxpr: Any, consts: Sequence[Any], targets: Sequence[Any] | None = None):
        behind = None if targets is None else {id(e) for e in live_equations(jaxpr, targets)}
        self.events = [
            e
            for e in jaxpr.eqns
            if labelled(e) is not None or (_holds_labels(e) and (behind is None or id(e) in behind))
        ]
        self._read = list(dict.fromkeys(v for e in self.events for v in e.invars if not is_literal(v)))
        self._outputs = len(jaxpr.outvars)
        longer = jaxpr.replace(outvars=[*jaxpr.outvars, *self._read])
        self._compiled = jax.jit(functools.partial(jax.core.eval_jaxpr, longer, consts))

    def run(self, arguments: Sequence[Any]) -> tuple[list[Any], Callable[[Any], Any]]:
        """Run the compiled JAX equations on `arguments`."""
        found = self._compiled(*arguments)
        values = dict(zip(self._read, found[self._outputs :], strict=True))
        return found[: self._outputs], lambda v: v.val if is_literal(v) else values[v]


class _NonFiniteSearch:
    """A search for a non-finite named value: first in the outermost function, then inside its loops and branches.

    Args:
      rows: bool `[batch]`: the rows to check; None for all.
    """

    def __init__(self, rows: np.ndarray | None):
        self._rows = rows
        self._levels: dict[int, tuple[Any, _FunctionEquations]] = {}

    def level(self, jaxpr: Any, consts: Sequence[Any], targets: Sequence[Any] | None = None) -> _FunctionEquations:
        if id(jaxpr) not in self._levels:
            self._levels[id(jaxpr)] = (jaxpr, _FunctionEquations(jaxpr, consts, targets))
        return self._levels[id(jaxpr)][1]

    def search(self, level: _FunctionEquations, read: Callable[[Any], Any]) -> Inside | None:
        """Return the first non-finite named value in a function and its loops and branches; None if there is none."""
        for event in level.events:
            name = labelled(event)
            values = [read(v) for v in event.invars]
            if name is None:
                found = self._inside(event, values)
            else:
                found = Inside(name, (), values[0]) if self._bad(values[0]).any() else None
            if found is not None:
                return found
        return None

    def _inside(self, equation: Any, values: list[Any]) -> Inside | None:
        kind = equation.primitive.name
        params = equation.params
        if kind == "scan":
            return self._loop(params["jaxpr"], *_steps_of_scan(equation, values), scan_counts(equation)[1])
        if kind == "while":
            return self._while(params, values)
        if kind == "cond":
            branch = params["branches"][int(np.clip(values[0], 0, len(params["branches"]) - 1))]
            return self._call(branch, values[1:])
        inner = [e for e in inner_jaxprs(equation) if len(e.invars) == len(values)]
        return self._call(inner[0], values) if inner else None

    def _call(self, function: Any, values: list[Any]) -> Inside | None:
        level = self.level(*_opened(function))
        return self.search(level, level.run(values)[1])

    def _loop(
        self, body: Any, consts: list[Any], carry: list[Any], steps: Iterator[tuple[int, list[Any]]], carried: int
    ) -> Inside | None:
        """Run a loop up to the first iteration with a non-finite named value; return this value, None if there is none.

        Args:
          body: the jaxpr of one iteration, with arguments `[*consts, *carry, *slices]`.
        """
        level = self.level(*_opened(body))
        for number, slices in steps:
            outputs, read = level.run([*consts, *carry, *slices])
            if self._spoils(carry, outputs):
                found = self.search(level, read)
                if found is not None:
                    return found._replace(times=(number, *found.times))
            carry = outputs[:carried]
        return None

    def _while(self, params: Any, values: list[Any]) -> Inside | None:
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]
        condition = self.level(*_opened(params["cond_jaxpr"]))
        level = self.level(*_opened(params["body_jaxpr"]))
        carry = values[second:]
        number = 0
        while bool(condition.run([*values[:first], *carry])[0][0]):
            outputs, read = level.run([*values[first:second], *carry])
            if self._spoils(carry, outputs):
                found = self.search(level, read)
                if found is not None:
                    return found._replace(times=(number, *found.times))
            carry = outputs
            number += 1
        return None

    def _spoils(self, before: list[Any], after: list[Any]) -> bool:
        """Return whether an iteration of a loop makes a finite element non-finite, or has a non-finite output."""
        kept = zip(before, after[: len(before)], strict=True)
        if any((self._bad(new) & ~self._bad(old)).any() for old, new in kept):
            return True
        return any(self._bad(value).any() for value in after[len(before) :])

    def _bad(self, value: Any) -> np.ndarray:
        """Return a bool mask of the non-finite elements of a value.

        If axis 0 of the value is the batch, the mask has only the rows that this search checks.
        """
        if not jnp.issubdtype(value.dtype, jnp.inexact):
            return np.zeros((), bool)
        bad = ~np.asarray(jnp.isfinite(value))  # np.isfinite does not support bfloat16
        return bad[self._rows] if self._rows is not None and bad.shape[:1] == self._rows.shape else bad


def _steps_of_scan(equation: Any, values: list[Any]) -> tuple[list[Any], list[Any], Iterator[tuple[int, list[Any]]]]:
    """Split the input values of a `scan` equation."""
    consts, carried = scan_counts(equation)
    carried += consts
    numbers = range(equation.params["length"])
    order = reversed(numbers) if equation.params["reverse"] else numbers
    return values[:consts], values[consts:carried], ((i, [v[i] for v in values[carried:]]) for i in order)


def _opened(function: Any) -> tuple[Any, Sequence[Any]]:
    return getattr(function, "jaxpr", function), getattr(function, "consts", ())


def _holds_labels(equation: Any) -> bool:
    inside = (e for jaxpr in inner_jaxprs(equation) for e in jaxpr.eqns)
    return any(labelled(e) is not None or _holds_labels(e) for e in inside)


# The search for the rows that cause a non-finite value repeats the training step at most this number of times.
_TRIALS = 64


@dataclass(frozen=True)
class NonFiniteReport:
    """A report about a training step with a non-finite value; `str(report)` returns a readable text.

    Attributes:
      epoch: the index of the epoch, from 0.
      step: the index of the step within the epoch, from 0.
      kind: the kind of the non-finite value: "feed", "value", "gradient" or "update"; "unknown" if no value was found.
      name: the name of the first non-finite feed, value (in program order), gradient (from the loss backwards) or
        parameter.
      layer: the name of the layer that computed the value, such as `fc_0`; or None.
      site: the source line in the user's program, as `file:line in function`.
      found: a text with the numbers of infinities and NaNs, and the index of the first of them.
      rows: the indices of the rows of the minibatch that cause the value; empty if no single row does.
      batch: the number of rows of the minibatch.
      outer: for a value inside a loop or a branch, the named value outside that depends on it; else empty.
      times: the index of the loop iteration that computed the value, from 0; one index for each nested loop, outermost
        first. In `layers.rnn`, `DynamicRNN` and `StaticRNN`, the index is the position in the sequence.

    Example:
      >>> report = NonFiniteReport(0, 7, "value", "log_0.tmp_0", "log_0", "net.py:3 in net", "1 of 8: -inf", (2,), 8)
      >>> print(report)
      step 7 of epoch 0 is not finite. The first such value is 'log_0.tmp_0' of the layer log_0:
        made at net.py:3 in net
        holds 1 of 8: -inf
        because of row 2 of the 8 of the minibatch
        All named values before it are finite. The parameters are those before this step.
    """

    epoch: int
    step: int
    kind: str
    name: str
    layer: str | None
    site: str
    found: str
    rows: tuple[int, ...] = ()
    batch: int = 0
    outer: str = ""
    times: tuple[int, ...] = ()

    def __str__(self) -> str:
        opening, closing = _STORIES[self.kind]
        layer = f" of the layer {self.layer}" if self.layer else ""
        lines = [f"step {self.step} of epoch {self.epoch} is not finite. {opening.format(name=self.name, layer=layer)}"]
        if self.site:
            lines.append(f"  {'declared' if self.kind == 'feed' else 'made'} at {self.site}")
        if self.outer:
            lines.append(f"  {self._where_inside()}")
        if self.found:
            lines.append(f"  holds {self.found}")
        if self.rows:
            shown = ", ".join(map(str, self.rows[:10])) + (", ..." if len(self.rows) > 10 else "")
            rows = "row" if len(self.rows) == 1 else "rows" if len(self.rows) < self.batch else "all rows:"
            lines.append(f"  because of {rows} {shown} of the {self.batch} of the minibatch")
        elif self.kind in ("value", "gradient"):
            lines.append("  because of no single row of the minibatch")
        return "\n".join([*lines, f"  {closing} The parameters are those before this step."])

    def _where_inside(self) -> str:
        if not self.times:
            return f"in the branch that gives {self.outer!r}"
        if len(self.times) == 1:
            return f"in step {self.times[0]}, counted from 0, of the loop that gives {self.outer!r}"
        return f"in the steps {list(self.times)}, the outermost first, of the loops that give {self.outer!r}"


_STORIES = {
    "feed": ("The data itself is not finite, in the feed {name!r}:", "No layer made it so."),
    "value": ("The first such value is {name!r}{layer}:", "All named values before it are finite."),
    "gradient": (
        "The loss is finite, and the gradient with respect to {name!r}{layer} is not:",
        "All named values are finite, and so are the gradients of those after it: what is computed from it has no "
        "slope there, as sqrt(x) at 0.",
    ),
    "update": (
        "The loss and all gradients are finite, and the update made the parameter {name!r} infinite or NaN:",
        "The learning rate may be too large, or the optimizer divide by zero.",
    ),
    "unknown": ("The cause was not found: with every named value computed, all are finite.", ""),
}


def investigate(
    session: Session, program: Program, before: TrainingState, feed: Mapping[str, Any], epoch: int, step: int
) -> NonFiniteReport:
    """Repeat a training step, fetch every named value, and return a report about the first non-finite value."""
    replay = _Replay(session, program, before, feed)
    for find in (_in_feeds, _in_values, _in_gradients, _in_update):
        found = find(replay)
        if found is not None:
            return NonFiniteReport(epoch, step, batch=replay.batch, **found)
    return NonFiniteReport(epoch, step, "unknown", "", None, "", "", batch=replay.batch)


class _Replay:
    """A repeated run of a training step that found a non-finite value, to return the values inside the step.

    The repeated run changes no array of the Session.
    """

    def __init__(self, session: Session, program: Program, before: TrainingState, feed: Mapping[str, Any]):
        self.session = session
        self.program = program
        self.before = before
        self.feed = dict(feed)
        self.batch = max((v.shape[0] for v in self.feed.values() if v.shape), default=0)
        self.values = [n for n, v in program.values.items() if jnp.issubdtype(jnp.dtype(v.dtype), jnp.inexact)]

    def fetching(self, names: list[str]) -> Callable[[Mapping[str, Any]], tuple[dict[str, Any], dict[str, Any]]]:
        """Return a compiled function that runs the step on a feed.

        Without fetches, it runs the custom step function of the Session, if there is one, to check its update. With
        fetches, it computes values and gradients from the program.
        """
        program = self.program
        before = self.before
        session = self.session
        request = Request(TRAIN, tuple(names), tuple(program.feeds))
        function = None if names else session.engine.function
        step = Step(program, session.engine.rules[program.name], request, function, session.engine.freezing.names)
        state = before._replace(arrays={n: before.arrays[n] for n in step.carried})
        _, constants = session.engine.arguments(step)
        compiled = jax.jit(step.train)

        def run(feed: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
            after, found = compiled(state, constants, dict(feed), {})
            return dict(after.arrays), dict(zip(names, found.fetched, strict=True))

        return run

    def rows(self, fetch: str, value: Any, follows_batch: bool) -> tuple[int, ...]:
        """Return the indices of the minibatch rows that make a value non-finite; empty if no single row does."""
        if follows_batch and _is_batch(value, self.batch):
            bad = _bad_rows(value)
            # If all rows are non-finite, one row may have spread to all rows, for example in a batch norm. Then search
            # for the row by trial runs.
            if not bad.all():
                return tuple(np.flatnonzero(bad).tolist())
        return self._rows_by_trial(fetch)

    def inside(self, name: str, value: Any) -> Inside | None:
        """Return the first non-finite value in loops and branches that `name` depends on; None if all are finite."""
        program = self.program
        scope = self.session.scope
        every = {**scope.arrays, **self.before.arrays}
        arrays = {n: every[n] for n in (*program.parameters, *program.states)}
        key = step_key(scope.root if program.random else None, self.before.step)

        def forward(arrays: Mapping[str, Any], feed: Mapping[str, Any]) -> dict[str, Any]:
            return program.apply(arrays, feed, key=key, mode=TRAIN, labelling=True, plain=True).values

        closed, shapes = jax.make_jaxpr(forward, return_shape=True)(arrays, self.feed)
        variables = jax.tree.unflatten(jax.tree.structure(shapes), closed.jaxpr.outvars)
        rows = _bad_rows(value) if _is_batch(value, self.batch) else None
        return first_inside(closed, jax.tree.leaves((arrays, self.feed)), jax.tree.leaves(variables[name])[0], rows)

    def _rows_by_trial(self, fetch: str) -> tuple[int, ...]:
        """Find the minibatch rows that make a fetched value non-finite by binary search, and return their indices.

        Each trial repeats the step with a minibatch that contains only some of the rows, repeated to the original size.
        The number of trials is limited; after the last trial, all untested rows count as a cause.
        """
        run = self.fetching([fetch])
        trials = 0

        def bad(rows: np.ndarray) -> bool:
            nonlocal trials
            trials += 1
            chosen = np.resize(rows, self.batch)
            part = {
                name: jax.tree.map(lambda v: np.asarray(v)[chosen], value) if _is_batch(value, self.batch) else value
                for name, value in self.feed.items()
            }
            return _spoilt(run(part)[1][fetch])

        def search(rows: np.ndarray) -> list[int]:
            if trials >= _TRIALS:
                # The limit of test runs is reached: report all untested rows as rows that cause the non-finite value.
                return rows.tolist()
            if not bad(rows):
                return []
            if len(rows) == 1:
                return rows.tolist()
            return [*search(rows[: len(rows) // 2]), *search(rows[len(rows) // 2 :])]

        return tuple(search(np.arange(self.batch)))


def _bad_rows(value: Any) -> np.ndarray:
    """Return a bool mask `[batch]`, True for rows of a value with at least one non-finite element."""
    array = _real(value)
    return ~np.isfinite(array).reshape(array.shape[0], -1).all(axis=1)


def _in_feeds(replay: _Replay) -> dict[str, Any] | None:
    for name, value in replay.feed.items():
        if jnp.issubdtype(value.dtype, jnp.inexact) and _spoilt(value):
            rows = tuple(np.flatnonzero(_bad_rows(value)).tolist()) if _is_batch(value, replay.batch) else ()
            site = replay.program.feeds[name].site
            return {"kind": "feed", "name": name, "layer": None, "site": site, "found": _told(value), "rows": rows}
    return None


def _in_values(replay: _Replay) -> dict[str, Any] | None:
    _, values = replay.fetching(replay.values)(replay.feed)
    first = next((name for name in replay.values if _spoilt(values[name])), None)
    if first is None:
        return None
    described = _described(replay, "value", first, first, values[first])
    inside = replay.inside(first, values[first])
    if inside is None:
        return described
    layer = inside.name.rpartition(".")[0] or None
    site = replay.program.sites.get(inside.name, "")
    named = {"name": inside.name, "layer": layer, "site": site, "found": _told(inside.value)}
    return {**described, **named, "outer": first, "times": inside.times}


def _in_gradients(replay: _Replay) -> dict[str, Any] | None:
    names = [*reversed(replay.values), *(n for m in replay.program.minimizes for n in m.parameters)]
    _, gradients = replay.fetching([n + GRAD for n in names])(replay.feed)
    first = next((name for name in names if _spoilt(gradients[name + GRAD])), None)
    return None if first is None else _described(replay, "gradient", first, first + GRAD, gradients[first + GRAD])


def _in_update(replay: _Replay) -> dict[str, Any] | None:
    after, _ = replay.fetching([])(replay.feed)
    specs = replay.program.parameters | replay.program.states
    name = next((name for name in specs if name in after and _spoilt(after[name])), None)
    if name is None:
        return None
    found = _told(after[name])
    if any(name in m.parameters for m in replay.program.minimizes):
        _, values = replay.fetching([name + GRAD])(replay.feed)
        found += f"; its gradient is at most {float(jnp.abs(values[name + GRAD]).max()):.3g}"
        found += _rates(replay)
    return {"kind": "update", "name": name, "layer": None, "site": specs[name].site, "found": found}


def _rates(replay: _Replay) -> str:
    """Return a text with the learning rates of the step; it leaves out optax optimizers, which hide their rates."""
    parts = []
    session = replay.session
    program = replay.program.name
    every = zip(session.engine.rules[program], session.engine.rates.of(program), replay.before.slots, strict=True)
    for name, (rule, rate, slots) in zip(rate_names(replay.program), every, strict=True):
        try:
            parts.append(f", {name} {float(rule.rate(rate, slots)):.3g}")
        except KeyError:  # an optax transformation does not expose its learning rate
            continue
    return "".join(parts)


def _described(replay: _Replay, kind: str, name: str, fetch: str, value: Any) -> dict[str, Any]:
    program = replay.program
    known = program.values.get(name)
    site = program.sites.get(name) or getattr(program.parameters.get(name), "site", "")
    layer = name.rpartition(".")[0] or None
    follows = known is not None and known.shape[:1] == (None,)
    rows = replay.rows(fetch, value, follows)
    return {"kind": kind, "name": name, "layer": layer, "site": site, "found": _told(value), "rows": rows}


def _is_batch(value: Any, batch: int) -> bool:
    return value.shape[:1] == (batch,)


def _real(value: Any) -> np.ndarray:
    """Return a value as a float NumPy array; the padding of sequences is set to zeros."""
    if isinstance(value, SequenceBatch | NestedSequenceBatch):
        value = filled(value, 0)
    array = np.asarray(value)
    return array if array.dtype.kind == "f" else array.astype(np.float32)  # np.isfinite does not support bfloat16


def _spoilt(value: Any) -> bool:
    return not np.isfinite(_real(value)).all()


def _told(value: Any) -> str:
    """Return a text with the counts of infinities and NaNs in a value, and the index of the first of them."""
    array = _real(value)
    bad = ~np.isfinite(array)
    kinds = {"nan": np.isnan(array), "inf": np.isposinf(array), "-inf": np.isneginf(array)}
    counted = ", ".join(f"{mask.sum()} {kind}" for kind, mask in kinds.items() if mask.any())
    place = f", first at {[int(i) for i in np.argwhere(bad)[0]]}" if array.ndim else ""
    return f"{counted} among {array.size} numbers {value.dtype}{list(array.shape)}{place}"
