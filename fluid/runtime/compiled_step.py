"""CompiledStep: the jitted step of one program over the arrays of a Session.

A CompiledStep counts its compilations: its Python function runs once per trace. A training step donates the buffers of
the arrays that it replaces, and stores the new arrays in the Scope, which holds all arrays of the session.
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from fluid import errors
from fluid.core import TRAIN, Program
from fluid.core.explain import explained_leak, traced_as
from fluid.reader.on_device import Fed
from fluid.runtime.absent_feeds import AbsentFeeds, without
from fluid.runtime.engine import Compilation, Engine
from fluid.runtime.request import Request
from fluid.runtime.results import StepResults
from fluid.runtime.seeds import Draw
from fluid.runtime.step import Constants, Step, TrainingState, scanned


def bind(engine: Engine, program: Program, request: Request) -> "CompiledStep":
    """Return the CompiledStep for a Request (mode, results and feeds); equal requests share one CompiledStep."""
    known: CompiledStep | None = engine.steps.get((program.name, request))
    if known is None:
        known = engine.steps[program.name, request] = CompiledStep(engine, program, request)
    return known


@dataclass
class _Form:
    """The pure and the jitted functions of one step, for one set of frozen parameters.

    Attributes:
      step: the pure step.
      run: the jitted step.
      several: the jitted function of several training steps per call; None until it is needed.
    """

    step: Step
    run: Any
    several: Any = None


class _Log:
    """A recorder of the compilations of one step (training or inference) of a program, and of their reasons.

    Attributes:
      shapes: the shapes of the feeds of each compilation, as text.
      cause: the reason for the next compilation, such as other frozen parameters; empty for the shapes of the feeds.
    """

    def __init__(self, engine: Engine, program: Program, request: Request):
        self._engine = engine
        self._program = program.name
        self._request = request
        self._variant = ""
        self._open = False
        self.shapes: list[str] = []
        self.cause = ""

    def begin(self, feeds: Mapping[str, Any], how: str = "") -> None:
        """Record the start of a compilation for the shapes of `feeds`; `how`, if not empty, is the reason to record."""
        shapes = ", ".join(f"{n} {list(v.shape)}" for n, v in feeds.items())
        reason = f"{how}: {shapes}" if how else self._reason(shapes)
        self.cause = ""
        self._variant = self._engine.strategy.variant or self._variant
        self.shapes.append(shapes)
        self._open = True
        self._engine.compilations.begin(Compilation(self._program, self._request.mode, reason))

    def end(self) -> None:
        if self._open:
            self._open = False
            self._engine.compilations.end()

    def _reason(self, shapes: str) -> str:
        """Return a text with the reason for the next compilation, such as "first train run" or "new feed shapes"."""
        mode = self._request.mode
        same = [c for c in self._engine.compilations if (c.program, c.mode) == (self._program, mode)]
        reason = f"first {mode} run" if not same else "another fetch list, feed list or set of overrides"
        variant = self._engine.strategy.variant if self._request.trains else ""
        if self.shapes and variant and variant != self._variant:
            reason = variant
        elif self.cause:
            reason = self.cause
        elif self.shapes:
            reason = f"new feed shapes: {shapes}; before: {self.shapes[-1]}"
        return reason


class CompiledStep:
    """A jitted step of one program over the arrays of a Session.

    `bind` creates it. A call takes checked feeds, and runs one step, or one step for each of several minibatches.

    Attributes:
      engine: the engine of the Session, with the arrays and all state that steps share.
      request: mode, fetched values, feeds and overrides of the step.
      buckets: the sizes to which sequences are padded before they are fed.
    """

    def __init__(self, engine: Engine, program: Program, request: Request):
        self.engine = engine
        self.request = request
        self.buckets = engine.buckets(program)
        self._program = program
        self._scope = engine.scope
        self._names = program.output_names if request.fetch is None else request.fetch
        self._absent = AbsentFeeds(program, request.feeds)
        # The user may replace an array by a scalar, and the shape of this array may depend on feeds. So the check for
        # omitted feeds is repeated for each new set of replaced arrays. The sets that have passed the check are cached,
        # as sets of names.
        self._checked: set[frozenset[str]] = set()
        self._needed: dict[frozenset[str], set[str]] = {}
        self._log = _Log(engine, program, request)
        self._frozen = engine.freezing.names
        self._forms: dict[frozenset[str], _Form] = {}
        self._form = self._forms[self._frozen] = self._new_form()
        self._constants: tuple[dict[str, Any], Any] | None = None  # arrays by name, and the step that compiles them in
        self._scope.trained |= request.trains

    def __call__(
        self,
        feed: Mapping[str, Any] | Fed,
        overrides: Mapping[str, Any] = {},  # noqa: B006
        draw: Draw | None = None,
        count: int | None = None,
    ) -> StepResults:
        """Run the compiled step, and store the updated arrays in the session.

        Args:
          feed: arrays by name for one minibatch; or StackedFeeds or Picks, which hold several minibatches on the
            device. One call then trains on one minibatch after another; the results equal one call for each minibatch.
          draw: the random key of a test-mode run, see `Engine.draw`. None for the key of the next training step:
            test-mode runs between two training steps then all draw equal numbers. A training step ignores `draw`.
        """
        self._follow_freezing()
        try:
            if isinstance(feed, Fed):
                each = self._update(self._several(), feed)[:count]
            else:
                if self._absent.names:
                    self._check_absent(feed, overrides)
                if self.request.trains:
                    each = [self._update(self._form.run, feed, overrides)]
                else:
                    each = [self._evaluate(feed, overrides, draw)]
        finally:
            self._log.end()
        return StepResults(each, self._names, self.request.also)

    def _check_absent(self, feed: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
        """Check that the results depend on no feed that is missing in the call.

        An override is an array that replaces a value of the program. The check runs again only if other values are
        replaced by scalars.
        """
        scalars = frozenset(name for name, value in overrides.items() if not value.shape)
        if scalars not in self._checked:
            self._absent.check(self._pure(), feed, overrides)
            self._checked.add(scalars)

    def _update(self, train: Callable[..., Any], *fed: Any) -> Any:
        """Run a training function on the arrays of the session, store the new arrays, and return the results."""
        if self.engine.replaced:
            self._check_replaced()
        scope = self._scope
        # `train` donates the scope's buffers. Until the results are stored, the scope has no valid arrays, so the lock
        # excludes other threads, and the guard delays Ctrl-C.
        with scope.lock, self.engine.guard:
            try:
                after, results = train(*self.engine.arguments(self._form.step), *fed)
            except jax.errors.UnexpectedTracerError as error:
                raise explained_leak(error, self._program.name) from None
            scope.arrays.update(after.arrays)
            scope.slots[self._program.name] = after.slots
            scope.step = after.step
        return results

    def _evaluate(self, feed: Mapping[str, Any], overrides: Mapping[str, Any], draw: Draw | None) -> Any:
        """Run the jitted test-mode step, which changes no arrays, and return its results."""
        scope, test = self._scope, self._form.run
        try:
            if not scope.trained:
                rest = self._test_arguments(overrides, draw)
                constant = self._with_constants() if self.engine.constants and not rest else None
                return test(self._kept(), feed, *rest) if constant is None else constant(feed)
            # During the test-mode step, no training step of another thread may donate (reuse the memory of) the arrays.
            with scope.lock:
                return test(self._kept(), feed, *self._test_arguments(overrides, draw))
        except jax.errors.UnexpectedTracerError as error:
            raise explained_leak(error, self._program.name) from None

    def _kept(self) -> dict[str, Any]:
        arrays, kept = self._scope.arrays, self._form.step.kept
        return arrays if len(arrays) == len(kept) else {n: arrays[n] for n in kept}

    def _with_constants(self) -> Any:
        """Return the jitted step that has the arrays of the session as constants; None after an array was replaced.

        A program that replaces arrays in a loop would otherwise compile in each turn.
        """
        if (made := self._constants) is None:
            arrays, test = dict(self._kept()), self._new_form().run
            made = self._constants = arrays, jax.jit(lambda feed: test(arrays, feed))
        known, constant = made
        if all(map(operator.is_, known.values(), map(self._scope.arrays.__getitem__, known))):
            return constant
        self.engine.constants = False
        self._constants = None
        self._log.cause = "a parameter was replaced"
        return None

    def _test_arguments(self, overrides: Mapping[str, Any], draw: Draw | None = None) -> tuple[Any, ...]:
        """Return the arguments that follow the feeds in a test-mode call.

        Arguments that the program does not need are left out, because each argument of a jitted call takes time.
        """
        arguments = self.engine.strategy.arguments
        if self._program.random or arguments:
            drawn = draw or (self._scope.root, self._scope.step)
            return (overrides, *drawn, arguments) if arguments else (overrides, *drawn)
        return (overrides,) if overrides else ()

    def _follow_freezing(self) -> None:
        """Select the jitted functions for the parameters that are frozen now; do nothing in test mode."""
        frozen = self.engine.freezing.names
        if frozen is self._frozen or self.request.mode != TRAIN:
            return
        self._frozen = frozen
        known = self._forms.get(frozen)
        if known is None:
            known = self._forms[frozen] = self._new_form()
            self._log.cause = f"other parameters are frozen: {len(frozen)} names"
        self._form = known

    def _new_form(self) -> _Form:
        """Create the function of this step and its compiled form, for the parameters that are frozen at present."""
        engine, layout = self.engine, self.engine.layout
        rules = engine.rules.get(self._program.name, ())
        step = Step(self._program, rules, self.request, engine.function, self._frozen, layout.gathering)
        train, test = engine.strategy.functions(step)
        if not step.training:
            return _Form(step, layout.jit_test(self._recording(test, 1)))
        state, _ = engine.arguments(step)
        return _Form(step, layout.jit_train(self._recording(train, 2), state))

    def _several(self) -> Any:
        """Return the jitted function that trains on several minibatches in one call."""
        form = self._form
        if form.several is None:
            train, _ = self.engine.strategy.functions(form.step)
            several = scanned(train)

            @traced_as(self._program.function, self._program.name)
            def call(state: TrainingState, constants: Constants, fed: Fed) -> Any:
                self._log.begin(jax.eval_shape(lambda: fed.feed(0)), "several steps in one call")
                return several(state, constants, fed)

            form.several = jax.jit(call, donate_argnums=0)
        return form.several

    def _recording(self, function: Callable[..., Any], position: int) -> Callable[..., Any]:
        """Wrap a pure step: record a compilation at each trace, and add zeros for feeds that the call omits."""

        @traced_as(self._program.function, self._program.name)
        def call(*arguments: Any) -> Any:
            before, (feeds, *rest) = arguments[:position], arguments[position:]
            self._log.begin(feeds)
            if not self._absent.names:
                return function(*before, feeds, *rest)
            stand_ins = self._absent.stand_ins(feeds, rest[0] if rest else {})
            return without(lambda zeros: function(*before, {**feeds, **zeros}, *rest), stand_ins)

        return call

    def _check_replaced(self) -> None:
        for average, arrays in self.engine.replaced.items():
            if name := next((name for name in self._form.step.updated if name in arrays), None):
                raise errors.ArgumentError(
                    f"{name!r} holds its average now, {average}, and what a training step makes of it would be undone "
                    f"when the parameter is put back; train behind the block `with average.apply(trainer):`, or after "
                    f"average.restore(trainer)"
                )

    @property
    def compiled(self) -> int:
        """Number of compilations of this step so far."""
        return len(self._log.shapes)

    def lowered(self, feeds: Mapping[str, Any] | Fed) -> jax.stages.Lowered:
        """Trace and lower the step for feeds of these shapes, but neither compile nor run it."""
        return self.traced(feeds).lower()

    def traced(self, feeds: Mapping[str, Any] | Fed) -> jax.stages.Traced:
        """Return the trace of the step for feeds of these shapes; new shapes are recorded as a compilation."""
        self._follow_freezing()
        if self.engine.layout.in_parts:
            raise errors.ArgumentError(
                f"the step of {self._program.name} has one compiled function for each device, expected one function: "
                f"leave out device_guard, and shardings= with devices"
            )
        step, run = self._form.step, self._form.run
        traced: jax.stages.Traced
        try:
            if isinstance(feeds, Fed):
                traced = self._several().trace(*self.engine.arguments(step), feeds)
            elif self.request.trains:
                traced = run.trace(*self.engine.arguments(step), dict(feeds), {})
            else:
                traced = run.trace(self._kept(), dict(feeds), *self._test_arguments({}))
        finally:
            self._log.end()
        return traced

    def needed_feeds(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> set[str]:
        """Return the names of those feeds that the request omits, but on which its results depend."""
        scalars = frozenset(name for name, value in overrides.items() if not value.shape)
        if scalars not in self._needed:
            self._needed[scalars] = self._absent.needed(self._pure(), feeds, overrides)
        return self._needed[scalars]

    def _pure(self) -> Callable[..., Any]:
        """Return the step as a pure function of three dicts: zeros for omitted feeds, given feeds, overrides."""
        step = self._form.step
        train, test = self.engine.strategy.functions(step)

        def results(stand_ins: Mapping[str, Any], given: Mapping[str, Any], over: Mapping[str, Any]) -> Any:
            feeds = {**given, **stand_ins}
            if self.request.trains:
                return train(*self.engine.arguments(step), feeds, over)
            return test(self._kept(), feeds, over, self._scope.root if step.draws else None, self._scope.step)

        return results
