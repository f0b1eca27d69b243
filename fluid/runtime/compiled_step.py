"""CompiledStep: the jitted step of one program over the arrays of a Session."""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax

from fluid import errors
from fluid.core import TRAIN, Program, Scope
from fluid.core.equations import unneeded, unread
from fluid.core.explain import leak_in_own_words
from fluid.place import OneDevice
from fluid.reader.buckets import Buckets
from fluid.reader.stacked import Fed, Picks, Stack
from fluid.runtime import absent_feeds
from fluid.runtime.async_compile import Ahead
from fluid.runtime.custom_step import StepFunction
from fluid.runtime.freezing import Freezing
from fluid.runtime.interrupts import InterruptGuard
from fluid.runtime.learning_rates import Rates
from fluid.runtime.results import StepResults
from fluid.runtime.scanned import scanned
from fluid.runtime.seeds import Draw
from fluid.runtime.step import Request, Step
from fluid.runtime.update_rules import Rule

if TYPE_CHECKING:
    from fluid.parallel import OnMesh

_BATCHED = (Stack, Picks)


class Compilation(NamedTuple):
    """One compilation of a step: of which program, in which mode, and why."""

    program: str
    mode: str
    reason: str


class Compilations(list[Compilation]):
    """The compilations of a session in order, and who is told of them.

    Attributes:
      watchers: called with each compilation when it begins, and with None when it has ended.
    """

    def __init__(self) -> None:
        super().__init__()
        self.watchers: list[Callable[[Compilation | None], None]] = []

    def begin(self, compilation: Compilation) -> None:
        """Note a compilation, which begins now."""
        self.append(compilation)
        for watcher in self.watchers:
            watcher(compilation)

    def end(self) -> None:
        """Tell that the last compilation has ended."""
        for watcher in self.watchers:
            watcher(None)


class CompiledStep:
    """A step of one program, jitted, over the arrays of its Session.

    Calling it runs one step, or the steps of several minibatches. Made by `Session.bind`; feeds are taken as they are,
    already checked.

    Args:
      program: the program.
      rules: how it updates parameters.
      request: what one step shall do.
      scope: the arrays.
      rates: the learning rates.
      guard: keeps Ctrl-C out of the middle of a step.
      compilations: where every compilation is noted.
      buckets: to which sizes sequences are padded before they are fed.
      layout: where arrays lie.
      function: a training step of the user's own, or None.
      replaced: arrays that something else takes the place of for a while, by what that is; a step must not change them.
      freezing: what a training step leaves as it is.
    """

    def __init__(
        self,
        program: Program,
        rules: Sequence[Rule],
        request: Request,
        scope: Scope,
        rates: Rates,
        guard: InterruptGuard,
        compilations: Compilations,
        buckets: Buckets,
        *,
        layout: "OneDevice | OnMesh",
        replaced: Mapping[Hashable, Mapping[str, Any]],
        freezing: Freezing,
        function: StepFunction | None = None,
    ):
        self._program = program
        self._scope = scope
        self._rates = rates
        self._guard = guard
        self._compilations = compilations
        self.buckets = buckets
        self._replaced = replaced
        self._freezing = freezing
        self._mesh = None if isinstance(layout, OneDevice) else layout
        self._frozen = freezing.names
        self._make = functools.partial(Step, program, rules, request, function, mesh=self._mesh)
        self._step = self._make(self._frozen)
        self._names = program.output_names if request.fetch is None else request.fetch
        self._also = request.also
        self._missing = [n for n in program.feeds if n not in request.feeds]
        self._checked = not self._missing
        self._shapes: list[str] = []
        self._other_frozen = False
        self._fitted: dict[frozenset[str], Any] = {}
        self._compiling = False
        self._ahead = False
        self._alone = set(self._step.kept) == set(scope.arrays)
        scope.trained |= self._step.training
        self._train, self._test = self._jitted()
        self._several: Any = None

    @property
    def loss_output(self) -> int:
        """The position of the loss among the outputs."""
        return self._program.loss_output

    @property
    def compiled(self) -> int:
        """How often this step was compiled so far."""
        return len(self._shapes)

    def needed_feeds(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> set[str]:
        """The feeds that the results depend on, of those that the request does not give; what it gives is at hand."""
        return self._needed(feeds, overrides)

    def lowered(self, feeds: Mapping[str, Any] | Stack | Picks) -> jax.stages.Lowered:
        """The step for feeds of these shapes, which is not run: what to compile and to look at.

        Args:
          feeds: arrays, or `jax.ShapeDtypeStruct` in their places; or those of several steps in one call.
        """
        return self.traced(feeds).lower()

    def traced(self, feeds: Mapping[str, Any] | Stack | Picks) -> jax.stages.Traced:
        """Return the step for feeds of these shapes as equations; notes a compilation for new shapes.

        Args:
          feeds: as for `lowered`.
        """
        traced: jax.stages.Traced
        if isinstance(feeds, Stack | Picks):
            traced = self._together().trace(self._carry(), self._not_carried(), feeds)
        elif self._step.training:
            traced = self._train.trace(self._carry(), self._not_carried(), dict(feeds), {})
        else:
            traced = self._test.trace(self._kept(), dict(feeds), *self._rest({}))
        if self._compiling:
            self._end_compilation()
        return traced

    def compile_ahead(self, feeds: Mapping[str, Any]) -> None:
        """Begin to compile the training step, in a thread, for the first call with feeds of these shapes.

        That call waits for it, and notes the compilation; without such a call none is noted. The program is traced now.

        Args:
          feeds: arrays, or `jax.ShapeDtypeStruct` in their places, with their sharding where they will have one.

        Raises:
          Exception: whatever the program raises while it is traced; the step itself will raise it again.
        """
        if self._frozen is not self._freezing.names:
            self._fit()
        jitted = self._train
        if isinstance(jitted, Ahead) or not self._step.training:
            return

        def take(fed: Mapping[str, Any]) -> None:
            self._train = jitted
            self._record_compilation(dict(sorted(fed.items())))  # as JAX hands them to what it traces

        self._ahead = True
        try:
            with self._scope.lock:
                lowered = jitted.lower(self._carry(), self._not_carried(), dict(feeds), {})
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
            trained on one after another in one call. The results are those of one call for each minibatch.
          overrides: values that replace named values; only with one minibatch.
          draw: the random key of a run in test mode, see `Session.draw`; training ignores it. None for the key of the
            next training step, so that runs in test mode draw the same numbers until that step has run.
          count: number of minibatches if `feed` is a Stack or Picks.
        """
        found = self._run(feed, overrides, draw)
        if self._compiling:
            self._end_compilation()
        return StepResults(found, self._names, self._also, count)

    def _run(self, feed: Mapping[str, Any] | Fed, overrides: Mapping[str, Any], draw: Draw | None) -> Any:
        """Run the step; return its results."""
        if self._frozen is not self._freezing.names and self._step.request.mode == TRAIN:
            self._fit()
        if isinstance(feed, _BATCHED):
            return self._update(self._together(), feed)
        if not self._checked:
            self._check_missing(feed, overrides)
        if self._step.training:
            return self._update(self._train, feed, overrides)
        return self._evaluate(feed, overrides, draw)

    def _together(self) -> Any:
        """The function of several training steps."""
        if self._several is None:
            self._several = jax.jit(self._noted(scanned(self._functions(self._step)[0])), donate_argnums=0)
        return self._several

    def _evaluate(self, feed: Mapping[str, Any], overrides: Mapping[str, Any], draw: Draw | None) -> Any:
        """Call what changes nothing; return the results."""
        scope = self._scope
        try:
            if not scope.trained:
                return self._test(self._kept(), feed, *self._rest(overrides, draw))
            with scope.lock:  # a training step in another thread donates these arrays
                return self._test(self._kept(), feed, *self._rest(overrides, draw))
        except jax.errors.UnexpectedTracerError as error:
            raise leak_in_own_words(error, self._program.name) from None

    def _update(self, train: Callable[..., Any], *fed: Any) -> Any:
        """Call what trains on the arrays of the scope, and put the new ones in their place; return the results."""
        if self._replaced:
            self._check_replaced()
        scope = self._scope
        # The call takes the scope's buffers over, so neither an interrupt nor another thread must come before its
        # results are in their place.
        with scope.lock, self._guard:
            try:
                after, results = train(self._carry(), self._not_carried(), *fed)
            except jax.errors.UnexpectedTracerError as error:
                raise leak_in_own_words(error, self._program.name) from None
            scope.arrays.update(after["arrays"])
            scope.slots[self._program.name] = after["slots"]
            scope.step = after["step"]
        return results

    def _jitted(self) -> tuple[Any, Any]:
        """The training step, and the run that changes nothing, for what is frozen now."""
        step = self._step
        pure_train, pure_test = self._functions(step)
        train, test = self._traced(pure_train, 2), self._traced(pure_test, 1)
        if self._mesh is None:
            return jax.jit(train, donate_argnums=0), jax.jit(test)
        if not step.training:
            return train, self._mesh.taking(jax.jit(test, out_shardings=self._mesh.results))
        # What a step makes lies where that lay which it takes the place of.
        lie = self._mesh.shardings(self._carry())
        return jax.jit(train, donate_argnums=0, out_shardings=(lie, self._mesh.results)), test

    def _functions(self, step: Step) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Return the training step, and the step that changes nothing, as pure functions."""
        return step.train, step.test

    def _fit(self) -> None:
        """Take the step for what is frozen now: the one that was compiled for that before, or a new one."""
        self._fitted[self._frozen] = (self._step, self._train, self._test, self._several)
        self._frozen = self._freezing.names
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

    def _not_carried(self) -> dict[str, Any]:
        root = self._scope.root if self._step.draws else None
        return {"arrays": self._kept(), "root": root, "rates": self._rates.of(self._program.name)}

    def _rest(self, overrides: Mapping[str, Any], draw: Draw | None = None) -> tuple[Any, ...]:
        # A small net answers in microseconds, of which each argument takes its share, empty ones too.
        if self._program.random:
            return (overrides, *(draw or (self._scope.root, self._scope.step)))
        return (overrides,) if overrides else ()

    def _carry(self) -> dict[str, Any]:
        scope = self._scope
        arrays = {n: scope.arrays[n] for n in self._step.carried}
        return {"arrays": arrays, "slots": scope.slots[self._program.name], "step": scope.step}

    def _traced(self, function: Callable[..., Any], position: int) -> Callable[..., Any]:
        """The function, noting its compilations; its argument at the position are the feeds, then come overrides."""

        def call(*arguments: Any) -> Any:
            feeds, *rest = arguments[position:]
            self._record_compilation(feeds)
            if not self._missing:
                return function(*arguments[:position], feeds, *rest)
            stand_ins = self._stand_ins(feeds, rest[0] if rest else {})
            return absent_feeds.without(
                lambda zeros: function(*arguments[:position], {**feeds, **zeros}, *rest), stand_ins
            )

        return call if self._mesh is None else self._mesh.traced(call, position)

    def _noted(self, several: Callable[..., Any]) -> Callable[..., Any]:
        """The function of several steps, noting its compilations."""

        def call(carry: Any, kept: Any, fed: Fed) -> Any:
            self._record_compilation(jax.eval_shape(lambda: fed.feed(0)), "several steps in one call")
            return several(carry, kept, fed)

        return call

    def _record_compilation(self, feeds: Mapping[str, Any], how: str = "") -> None:
        if self._ahead:
            return
        shapes = ", ".join(f"{n} {list(v.shape)}" for n, v in feeds.items())
        name = self._program.name
        mode = self._step.request.mode
        reason = f"{how}: {shapes}" if how else self._reason(name, mode, shapes)
        self._other_frozen = False
        self._shapes.append(shapes)
        self._compiling = True
        self._compilations.begin(Compilation(name, mode, reason))

    def _reason(self, name: str, mode: str, shapes: str) -> str:
        """Why the step of a program in a mode is compiled, for feeds of such shapes."""
        same = [c for c in self._compilations if (c.program, c.mode) == (name, mode)]
        reason = f"first {mode} run" if not same else "another fetch list, feed list or set of overrides"
        if self._other_frozen:
            reason = f"other parameters are frozen: {len(self._frozen)} names"
        elif self._shapes:
            reason = f"new feed shapes: {shapes}; before: {self._shapes[-1]}"
        return reason

    def _end_compilation(self) -> None:
        self._compiling = False
        self._compilations.end()

    def _stand_ins(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        known = self._program.parameters.keys() | self._program.states.keys()
        with_rows = {name: value for name, value in overrides.items() if name not in known}
        return absent_feeds.stand_ins(self._program.feeds, self._missing, feeds, with_rows)

    def _check_replaced(self) -> None:
        for average, arrays in self._replaced.items():
            if name := next((name for name in self._step.updated if name in arrays), None):
                raise errors.ArgumentError(
                    f"{name!r} holds its average now, {average}, and what a training step makes of it would be undone "
                    f"when the parameter is put back; train behind the block `with average.apply(trainer):`, or after "
                    f"average.restore(trainer)"
                )

    def _check_missing(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
        try:
            needed = sorted(self._needed(feeds, overrides))
        except errors.FeedError:
            raise
        except Exception as error:
            needed = [] if overrides else sorted(self._needed_in_discovery())
            if not needed:
                names = ", ".join(map(repr, self._missing))
                error.add_note(f"not given: {names}, for which zeros stood in, as far as they are needed for shapes")
                raise
        if needed:
            spec = self._program.feeds[needed[0]]
            raise errors.FeedError(
                f"the program {self._program.name} needs the feed{'s' if len(needed) > 1 else ''} "
                f"{', '.join(map(repr, needed))}, which nobody gave; {needed[0]!r} is declared at {spec.site}: "
                f"feed={{{needed[0]!r}: array of {spec.dtype}, ...}}"
            )
        self._checked = True

    def _takes_its_size(self, name: str, value: Any) -> bool:
        """Whether an override is a scalar for a value that follows the batch, so that it depends on its feeds still."""
        known = self._program.values.get(self._program.aliases.get(name, name))
        return not value.shape and known is not None and None in known.shape

    def _needed(self, feeds: Mapping[str, Any], overrides: Mapping[str, Any]) -> set[str]:
        """The feeds that the results depend on, of those that the request does not give."""
        overrides = {n: v for n, v in overrides.items() if not self._takes_its_size(n, v)}
        stand_ins = self._stand_ins(feeds, overrides)
        closed, _, zeros = absent_feeds.traced(self._pure(), stand_ins, dict(feeds), overrides)
        return set(zeros) - unread(closed.jaxpr, zeros)

    def _needed_in_discovery(self) -> set[str]:
        """Return the missing feeds that the results depend on, found in the sizes of discovery; empty if these fail."""
        every = self._program.stand_ins()
        zeros = {name: every[name] for name in self._missing}
        rest = {name: value for name, value in every.items() if name not in zeros}
        try:
            return set(zeros) - unneeded(self._pure(), zeros, rest, {})
        except Exception:
            return set()

    def _pure(self) -> Callable[..., Any]:
        """Return the results of the step as a pure function of stand-ins, feeds and overrides."""
        step = self._step
        train, test = self._functions(step)
        kept = self._not_carried()

        def results(stand_ins: Mapping[str, Any], given: Mapping[str, Any], over: Mapping[str, Any]) -> Any:
            if step.training:
                return train(self._carry(), kept, {**given, **stand_ins}, over)
            return test(kept["arrays"], {**given, **stand_ins}, over, kept["root"], self._scope.step)

        return results
