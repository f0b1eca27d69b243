"""BoundStep: the jitted step of one program over the arrays of a Session."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fluid import errors
from fluid.core import Program, Scope, SequenceBatch
from fluid.session.interrupts import InterruptGuard
from fluid.session.results import Results
from fluid.session.step import Request, Rule, Step, unneeded


class Compilation(NamedTuple):
    """One compilation of a step: of which program, in which mode, and why."""

    program: str
    mode: str
    reason: str


class BoundStep:
    """A step of one program, jitted, over the arrays of its Session.

    Calling it runs one step. Made by `Session.step`; feeds are taken as they are, already checked.

    Args:
      program: the program.
      rules: how it updates parameters.
      request: what one step shall do.
      scope: the arrays.
      guard: keeps Ctrl-C out of the middle of a step.
      compilations: where every compilation is noted.
    """

    def __init__(
        self,
        program: Program,
        rules: Sequence[Rule],
        request: Request,
        scope: Scope,
        guard: InterruptGuard,
        compilations: list[Compilation],
    ):
        self._program, self._scope, self._guard, self._compilations = program, scope, guard, compilations
        self._step = Step(program, rules, request)
        self._names = program.output_names if request.fetch is None else request.fetch
        self._missing = [n for n in program.feeds if n not in request.feeds]
        self._checked = not self._missing
        self._shapes: list[str] = []
        self._train = jax.jit(self._traced(self._step.train), donate_argnums=0)
        self._test = jax.jit(self._traced(self._step.test))

    def __call__(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any] = {}) -> Results:  # noqa: B006
        """Run one step on the session's arrays and put the new ones in their place."""
        values = self.raw(feeds, overrides)
        return Results(values, self._names)

    def raw(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any] = {}) -> Any:  # noqa: B006
        """Run one step; returns what the jitted function returns, without names."""
        if not self._checked:
            self._check_missing(feeds, overrides)
        scope, step = self._scope, self._step
        kept = self._kept()
        if not step.training:
            return self._test(kept, feeds, overrides, scope.step if self._program.random else None)
        carry = self._carry()
        # The call takes the scope's buffers over, so an interrupt must not come before its results are in their place.
        with self._guard:
            after, results = self._train(carry, kept, feeds, overrides)
            scope.arrays.update(after["arrays"])
            scope.slots[self._program.name] = after["slots"]
            scope.step = after["step"]
        return results

    def _kept(self) -> dict[str, Any]:
        arrays = self._scope.arrays
        root = self._scope.root if self._program.random else None
        return {"arrays": {n: arrays[n] for n in self._step.kept}, "root": root}

    def _carry(self) -> dict[str, Any]:
        scope = self._scope
        arrays = {n: scope.arrays[n] for n in self._step.carried}
        return {"arrays": arrays, "slots": scope.slots[self._program.name], "step": scope.step}

    def _traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(first: Any, *rest: Any) -> Any:
            position = 1 if self._step.training else 0
            feeds = rest[position]
            self._record_compilation(feeds)
            filled = {**feeds, **self._stand_ins(feeds, rest[position + 1])}
            return function(first, *rest[:position], filled, *rest[position + 1 :])

        return call

    def _record_compilation(self, feeds: Mapping[str, Any]) -> None:
        shapes = ", ".join(f"{n} {list(v.shape)}" for n, v in feeds.items())
        name, mode = self._program.name, self._step.request.mode
        same = [c for c in self._compilations if (c.program, c.mode) == (name, mode)]
        reason = f"first {mode} run" if not same else "another fetch list, feed list or set of overrides"
        if self._shapes:
            reason = f"new feed shapes: {shapes}; before: {self._shapes[-1]}"
        self._shapes.append(shapes)
        self._compilations.append(Compilation(name, mode, reason))

    def _stand_ins(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
        batch = next((v.shape[0] for v in (*feeds.values(), *overrides.values()) if v.shape), 1)
        zeros: dict[str, Any] = {}
        for name in self._missing:
            spec = self._program.feeds[name]
            shape = [batch if d is None else d for d in spec.shape]
            zeros[name] = jnp.zeros(shape, spec.held)
            if spec.lod_level:
                zeros[name] = SequenceBatch(zeros[name][:, None], jnp.ones([batch], jnp.int32))
        return zeros

    def _check_missing(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
        step, kept = self._step, self._kept()

        def results(stand_ins: Mapping[str, Any], given: Mapping[str, Any], over: Mapping[str, Any]) -> Any:
            if step.training:
                return step.train(self._carry(), kept, {**given, **stand_ins}, over)
            return step.test(kept, {**given, **stand_ins}, over)

        stand_ins = self._stand_ins(feeds, overrides)
        needed = sorted(set(stand_ins) - unneeded(results, stand_ins, dict(feeds), dict(overrides)))
        if needed:
            spec = self._program.feeds[needed[0]]
            raise errors.FeedError(
                f"the program {self._program.name} needs the feed{'s' if len(needed) > 1 else ''} "
                f"{', '.join(map(repr, needed))}, which nobody gave; {needed[0]!r} is declared at {spec.site}: "
                f"feed={{{needed[0]!r}: array of {spec.dtype}, ...}}"
            )
        self._checked = True
