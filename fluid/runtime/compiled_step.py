"""CompiledStep: the jitted step of one program over the arrays of a Session."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.core.explain import leak_in_own_words
from fluid.place import OneDevice
from fluid.reader.stacked import Fed, Picks, Stack
from fluid.runtime.absent_feeds import AbsentFeeds, without
from fluid.runtime.async_compile import Ahead
from fluid.runtime.engine import Compilation, Engine
from fluid.runtime.request import Request
from fluid.runtime.results import StepResults
from fluid.runtime.seeds import Draw
from fluid.runtime.step import Constants, Step, TrainingState
from fluid.runtime.strategies import scanned

_BATCHED = (Stack, Picks)


def bind(engine: Engine, program: Program, request: Request) -> "CompiledStep":
    """Return the compiled step for a request; equal requests share one step."""
    known: CompiledStep | None = engine.steps.get((program.name, request))
    if known is None:
        known = engine.steps[program.name, request] = CompiledStep(engine, program, request)
    return known


class CompiledStep:
    """A jitted step of one program over the arrays of a Session.

    A call runs one step, or one step for each of several minibatches. `bind` creates it; feeds are already checked.

    Args:
      engine: the arrays, and all state that steps share.
      program: the program.
      request: mode, fetched values, feeds and overrides of the step.

    Attributes:
      engine: the arrays, and all state that steps share.
      request: mode, fetched values, feeds and overrides of the step.
      buckets: the sizes to which sequences are padded before they are fed.
    """

    def __init__(self, engine: Engine, program: Program, request: Request):
        self.engine = engine
        self.request = request
        self._program = program
        self._scope = engine.scope
        self.buckets = engine.buckets(program)
        self._mesh = None if isinstance(engine.layout, OneDevice) else engine.layout
        self._frozen = engine.freezing.names
        rules = engine.rules.get(program.name, ())
        self._make = functools.partial(Step, program, rules, request, engine.function, mesh=self._mesh)
        self._step = self._make(self._frozen)
        self._names = program.output_names if request.fetch is None else request.fetch
        self._also = request.also
        self._absent = AbsentFeeds(program, request.feeds)
        self._checked = not self._absent.names
        self._shapes: list[str] = []
        self._other_frozen = False
        self._variant = ""
        self._fitted: dict[frozenset[str], Any] = {}
        self._compiling = False
        self._ahead = False
        self._alone = set(self._step.kept) == set(self._scope.arrays)
        self._scope.trained |= self._step.training
        self._train, self._test = self._jitted()
        self._several: Any = None

    @property
    def compiled(self) -> int:
        """Number of compilations of this step so far."""
        return len(self._shapes)

    def needed_feeds(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> set[str]:
        """Return the names of feeds that the results depend on and that the request does not give."""
        return self._absent.needed(self._pure(), feeds, overrides)

    def lowered(self, feeds: Mapping[str, Any] | Stack | Picks) -> jax.stages.Lowered:
        """Return the lowered step for feeds of these shapes, without running it.

        Args:
          feeds: arrays or `jax.ShapeDtypeStruct`, by name; or a Stack or Picks of several minibatches.
        """
        return self.traced(feeds).lower()

    def traced(self, feeds: Mapping[str, Any] | Stack | Picks) -> jax.stages.Traced:
        """Return the step for feeds of these shapes as equations; records a compilation for new shapes.

        Args:
          feeds: as for `lowered`.
        """
        traced: jax.stages.Traced
        if isinstance(feeds, Stack | Picks):
            traced = self._together().trace(self._state(), self._constants(), feeds)
        elif self._step.training:
            traced = self._train.trace(self._state(), self._constants(), dict(feeds), {})
        else:
            traced = self._test.trace(self._kept(), dict(feeds), *self._rest({}))
        if self._compiling:
            self._end_compilation()
        return traced

    def compile_ahead(self, feeds: Mapping[str, Any]) -> None:
        """Begin to compile the training step in a thread, for the first call with feeds of these shapes.

        The call waits for the compilation and records it; without a call, none is recorded. The program is traced now.

        Args:
          feeds: arrays, or `jax.ShapeDtypeStruct` with the sharding of the later feeds, by name.

        Raises:
          Exception: any error of the program while it is traced; the step itself will raise the error again.
        """
        if self._frozen is not self.engine.freezing.names:
            self._fit()
        jitted = self._train
        if isinstance(jitted, Ahead) or not self._step.training:
            return

        def take(fed: Mapping[str, Any]) -> None:
            self._train = jitted
            self._record_compilation(dict(sorted(fed.items())))  # in the order of JAX

        self._ahead = True
        try:
            with self._scope.lock:
                lowered = jitted.lower(self._state(), self._constants(), dict(feeds), {})
        finally:
            self._ahead = False
        self._train = Ahead(jitted, lowered, feeds, take)

    def __call__(
        self,
        feed: Mapping[str, Any] | Stack | Picks,
        overrides: Mapping[str, Any] = {},  # noqa: B006
        draw: Draw | None = None,
        count: int | None = None,
    ) -> StepResults:
        """Run the compiled step, and store the updated arrays in the session.

        Args:
          feed: arrays by name for one minibatch; or a Stack or Picks of several minibatches on the device, which are
            trained on one after another in one call. The results equal one call for each minibatch.
          overrides: values that replace named values; only with one minibatch.
          draw: the random key of a test-mode run, see `Session.draw`; training ignores it. None for the key of the
            next training step, so that test-mode runs before that step draw equal numbers.
          count: number of minibatches if `feed` is a Stack or Picks.
        """
        found = self._run(feed, overrides, draw)
        if self._compiling:
            self._end_compilation()
        return StepResults(found, self._names, self._also, count)

    def _run(self, feed: Mapping[str, Any] | Fed, overrides: Mapping[str, Any], draw: Draw | None) -> Any:
        """Run the step; return its results."""
        if self._frozen is not self.engine.freezing.names and self.request.mode == TRAIN:
            self._fit()
        if isinstance(feed, _BATCHED):
            return self._update(self._together(), feed)
        if not self._checked:
            self._absent.check(self._pure(), feed, overrides)
            self._checked = True
        if self._step.training:
            return self._update(self._train, feed, overrides)
        return self._evaluate(feed, overrides, draw)

    def _together(self) -> Any:
        """Return the jitted function that trains on several minibatches in one call."""
        if self._several is None:
            train, _ = self.engine.strategy.functions(self._step)
            self._several = jax.jit(self._noted(scanned(train)), donate_argnums=0)
        return self._several

    def _evaluate(self, feed: Mapping[str, Any], overrides: Mapping[str, Any], draw: Draw | None) -> Any:
        """Call the function that changes no arrays; return the results."""
        scope = self._scope
        try:
            if not scope.trained:
                return self._test(self._kept(), feed, *self._rest(overrides, draw))
            with scope.lock:  # a training step in another thread donates these arrays
                return self._test(self._kept(), feed, *self._rest(overrides, draw))
        except jax.errors.UnexpectedTracerError as error:
            raise leak_in_own_words(error, self._program.name) from None

    def _update(self, train: Callable[..., Any], *fed: Any) -> Any:
        """Call a training function on the arrays of the scope, and store the new arrays; return the results."""
        if self.engine.replaced:
            self._check_replaced()
        scope = self._scope
        # The call donates the scope's buffers, so neither an interrupt nor another thread may come before its results
        # are stored.
        with scope.lock, self.engine.guard:
            try:
                after, results = train(self._state(), self._constants(), *fed)
            except jax.errors.UnexpectedTracerError as error:
                raise leak_in_own_words(error, self._program.name) from None
            scope.arrays.update(after.arrays)
            scope.slots[self._program.name] = after.slots
            scope.step = after.step
        return results

    def _jitted(self) -> tuple[Any, Any]:
        """Return the jitted training step and the jitted test-mode step for the current frozen parameters."""
        step = self._step
        pure_train, pure_test = self.engine.strategy.functions(step)
        train, test = self._traced(pure_train, 2), self._traced(pure_test, 1)
        if self._mesh is None:
            return jax.jit(train, donate_argnums=0), jax.jit(test)
        if not step.training:
            return train, self._mesh.taking(jax.jit(test, out_shardings=self._mesh.results))
        # Each result of a step has the sharding of the array that it replaces.
        lie = self._mesh.shardings(self._state())
        return jax.jit(train, donate_argnums=0, out_shardings=(lie, self._mesh.results)), test

    def _fit(self) -> None:
        """Switch to the step for the current frozen parameters: a known one, or a new one."""
        self._fitted[self._frozen] = (self._step, self._train, self._test, self._several)
        self._frozen = self.engine.freezing.names
        known = self._fitted.get(self._frozen)
        if known is not None:
            self._step, self._train, self._test, self._several = known
            return
        self._step = self._make(self._frozen)
        self._train, self._test = self._jitted()
        self._several = None
        self._other_frozen = True

    def _kept(self) -> dict[str, Any]:
        arrays = self._scope.arrays
        return arrays if self._alone else {n: arrays[n] for n in self._step.kept}

    def _constants(self) -> Constants:
        """Return the arguments of a training step that the step does not update."""
        root = self._scope.root if self._step.draws else None
        rates = self.engine.rates.of(self._program.name)
        return Constants(self._kept(), root, rates, self.engine.strategy.constants())

    def _rest(self, overrides: Mapping[str, Any], draw: Draw | None = None) -> tuple[Any, ...]:
        # A small net answers in microseconds, and each argument takes time, even an empty one.
        arguments = self.engine.strategy.arguments
        if self._program.random or arguments:
            drawn = draw or (self._scope.root, self._scope.step)
            return (overrides, *drawn, arguments) if arguments else (overrides, *drawn)
        return (overrides,) if overrides else ()

    def _state(self) -> TrainingState:
        """Return the arguments of a training step that the step updates, and whose buffers are donated."""
        scope = self._scope
        arrays = {n: scope.arrays[n] for n in self._step.carried}
        return TrainingState(arrays, scope.slots[self._program.name], scope.step)

    def _traced(self, function: Callable[..., Any], position: int) -> Callable[..., Any]:
        """Return `function`, which now records compilations; `position` is the index of the feeds, before overrides."""

        def call(*arguments: Any) -> Any:
            feeds, *rest = arguments[position:]
            self._record_compilation(feeds)
            if not self._absent.names:
                return function(*arguments[:position], feeds, *rest)
            stand_ins = self._absent.stand_ins(feeds, rest[0] if rest else {})
            return without(lambda zeros: function(*arguments[:position], {**feeds, **zeros}, *rest), stand_ins)

        return call if self._mesh is None else self._mesh.traced(call, position)

    def _noted(self, several: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function of several steps, which records its compilations."""

        def call(state: TrainingState, constants: Constants, fed: Fed) -> Any:
            self._record_compilation(jax.eval_shape(lambda: fed.feed(0)), "several steps in one call")
            return several(state, constants, fed)

        return call

    def _record_compilation(self, feeds: Mapping[str, Any], how: str = "") -> None:
        if self._ahead:
            return
        shapes = ", ".join(f"{n} {list(v.shape)}" for n, v in feeds.items())
        name = self._program.name
        mode = self.request.mode
        reason = f"{how}: {shapes}" if how else self._reason(name, mode, shapes)
        self._other_frozen = False
        self._variant = self.engine.strategy.variant or self._variant
        self._shapes.append(shapes)
        self._compiling = True
        self.engine.compilations.begin(Compilation(name, mode, reason))

    def _reason(self, name: str, mode: str, shapes: str) -> str:
        """Return the reason for a compilation of the step of a program in a mode, for feeds of these shapes."""
        same = [c for c in self.engine.compilations if (c.program, c.mode) == (name, mode)]
        reason = f"first {mode} run" if not same else "another fetch list, feed list or set of overrides"
        variant = self.engine.strategy.variant if self._step.training else ""
        if self._shapes and variant and variant != self._variant:
            reason = variant
        elif self._other_frozen:
            reason = f"other parameters are frozen: {len(self._frozen)} names"
        elif self._shapes:
            reason = f"new feed shapes: {shapes}; before: {self._shapes[-1]}"
        return reason

    def _end_compilation(self) -> None:
        self._compiling = False
        self.engine.compilations.end()

    def _check_replaced(self) -> None:
        for average, arrays in self.engine.replaced.items():
            if name := next((name for name in self._step.updated if name in arrays), None):
                raise errors.ArgumentError(
                    f"{name!r} holds its average now, {average}, and what a training step makes of it would be undone "
                    f"when the parameter is put back; train behind the block `with average.apply(trainer):`, or after "
                    f"average.restore(trainer)"
                )

    def _pure(self) -> Callable[..., Any]:
        """Return the results of the step as a pure function of stand-ins, feeds and overrides."""
        step = self._step
        train, test = self.engine.strategy.functions(step)
        constants = self._constants()

        def results(stand_ins: Mapping[str, Any], given: Mapping[str, Any], over: Mapping[str, Any]) -> Any:
            if step.training:
                return train(self._state(), constants, {**given, **stand_ins}, over)
            return test(constants.arrays, {**given, **stand_ins}, over, constants.root, self._scope.step)

        return results
