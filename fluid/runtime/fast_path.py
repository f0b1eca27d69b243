"""Fast path: one example through a small net on a CPU, in about the time of the bare jitted call.

A `FastStep` takes its arrays from a cache: filters in the axis order of XLA on a CPU, and small vectors concatenated.
The cache is valid as long as the arrays of the Scope are the same objects. A `FastPath` runs NumPy arrays without
checks if arrays of these names, shapes and dtypes have passed the checks before. Only the Inferencer uses this module.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fluid.core import NestedSequenceBatch, Program, Scope, SequenceBatch
from fluid.reader.columns import batch_size
from fluid.runtime.compiled_step import CompiledStep, bind
from fluid.runtime.engine import Engine
from fluid.runtime.prediction import Plan
from fluid.runtime.request import Request
from fluid.runtime.results import Results, StepResults
from fluid.runtime.seeds import Draw

# Vectors of up to this number of elements are concatenated. A copy of small vectors costs little memory.
_SMALL = 4096

_Answer = Callable[[Mapping[str, Any]], Results | None]


class FastPath:
    """Fast results for NumPy arrays whose names, shapes and dtypes have passed every check in an earlier call.

    The arithmetic of a net displaces Python from the caches of a CPU, so the checks of one call take longer than in a
    loop without the net: 5 to 8 percent of the time of LeNet for one image.

    Example:
      >>> path = FastPath()
      >>> path({"x": np.zeros(2)}) is None
      True
    """

    def __init__(self) -> None:
        self._answers: dict[Any, _Answer] = {}

    def __call__(self, feed: Any) -> Results | None:
        """Return the results of a feed; None for a feed that needs checks or conversions."""
        if type(feed) is not dict:
            return None
        key: list[Any] = []
        for name, value in feed.items():
            if type(value) is not np.ndarray:
                return None
            key += name, value.shape, value.dtype
        answer = self._answers.get(tuple(key))
        return None if answer is None else answer(feed)

    def learn(self, plan: Plan, feed: Mapping[str, Any], checked: Mapping[str, Any], values: Sequence[Any]) -> None:
        """Answer feeds with the names, shapes and dtypes of this feed without checks from now on.

        Nothing is learned if the program needs a check or a conversion of each feed.

        Args:
          plan: the plan of the call.
          feed: the feed from the user.
          checked: the feed after checks and conversions.
          values: the results.
        """
        if not isinstance(plan.step, FastStep) or any(spec.limits is not None for _, spec in plan.feeds):
            return
        if _is_eager():  # inside `fluid.debug.eager` the step is not prepared
            return
        if any(type(value) is not np.ndarray or checked.get(name) is not value for name, value in feed.items()):
            return
        if any(isinstance(value, SequenceBatch | NestedSequenceBatch) for value in values):
            return
        if plan.padded and plan.padded_size(size := batch_size(checked)) != size:
            return
        key = [part for name, value in feed.items() for part in (name, value.shape, value.dtype)]
        self._answers[tuple(key)] = plan.step.answer(plan.names)


def fast_step(engine: Engine, program: Program, request: Request) -> "CompiledStep | FastStep":
    """Return the test-mode step of a request: a FastStep for dense feeds on one CPU, else a CompiledStep.

    Args:
      engine: the engine that runs the program.
      program: a program of the engine.
      request: a request in test mode.
    """
    step = bind(engine, program, request)
    one_cpu = (
        engine.layout.mesh is None
        and not engine.layout.in_parts
        and engine.device.platform == "cpu"
        and engine.members is None
    )
    dense = not any(spec.lod_level for spec in program.feeds.values())
    pure = not program.random and not request.overrides and len(request.feeds) == len(program.feeds)
    return FastStep(step, engine.scope) if one_cpu and dense and pure else step


class FastStep:
    """A test-mode step that gets its arrays in the memory layout in which a CPU computes.

    XLA on a CPU copies the filters `[filters, channels, height, width]` of a convolution to
    `[height, width, channels, filters]` in each call, 8 to 10 percent of the time of LeNet for one image. Copies in
    that order are cached here; the compiled function transposes them back, which XLA cancels. Each argument of a call
    takes time too, so small vectors, such as biases, are concatenated: 2 to 4 percent. Results do not change by a bit.
    Figures: `python benchmarks/run.py inference` with and without, jax 0.10.2, 2 cores.

    A new array in the scope is a new object, and the next call converts it.

    Args:
      step: a CompiledStep over the arrays of the scope; it runs instead as soon as a training step may donate them.
      scope: the arrays.

    Example:
      >>> import fluid
      >>> session = fluid.Session(lambda: 2 * fluid.layers.data("x", shape=[2]))
      >>> step = fast_step(session.engine, session.engine.find(), Request("test", None, ("x",)))
      >>> step({"x": np.float32([[1, 2]])}).values[0].tolist()
      [[2.0, 4.0]]
    """

    def __init__(self, step: CompiledStep, scope: Scope):
        self._step, self._scope = step, scope
        self._shapes: dict[str, tuple[int, ...]] | None = None  # of the traced step's arguments, in order
        self._axes: dict[str, tuple[int, ...]] = {}  # the order of axes of each filter that is transposed
        self._single: list[str] = []
        self._joined: list[list[str]] = []
        # The arrays of the scope in the last call, and the arguments that were computed from them.
        self._cached: tuple[Mapping[str, Any] | None, Sequence[Any]] = (None, ())
        self._jitted = jax.jit(self._call)

    def __call__(
        self,
        feeds: Mapping[str, Any],
        overrides: Mapping[str, Any] = {},  # noqa: B006
        draw: Draw | None = None,
    ) -> StepResults:
        """Run the step, like a CompiledStep."""
        if not self._scope.trained:
            try:
                if self._shapes is None:
                    if _is_eager():  # `fluid.debug.eager`
                        return self._step(feeds, overrides, draw)
                    self._prepare(feeds)
                return StepResults(self._jitted(self._arguments(), feeds))
            except jax.errors.UnexpectedTracerError:  # the CompiledStep fails too, with an error that explains the leak
                pass
        return self._step(feeds, overrides, draw)

    def answer(self, names: Sequence[str] | None) -> _Answer:
        """Return a function from checked feeds to NumPy results. The step must have been called once before.

        The function returns None as soon as a training step may donate the arrays.

        Args:
          names: names of the results, or None.
        """
        jitted, scope, as_numpy = self._jitted, self._scope, np.asarray

        def call(feeds: Mapping[str, Any]) -> Results | None:
            if scope.trained:
                return None
            found = jitted(self._cached[1], feeds)
            # While the device computes: prepare the results, and look for arrays that were replaced before the call.
            values: list[Any] = []
            results = Results(values, names)
            if not self._is_current():
                found = jitted(self._arguments(), feeds)
            values.extend(map(as_numpy, found[0]))
            return results

        return call

    def _prepare(self, feeds: Mapping[str, Any]) -> None:
        """Choose the layout of each array: a separate argument or a part of a vector, and the axis order of filters."""
        traced = self._step.traced(feeds)
        arrays = traced.args_info[0][0]
        self._axes = _filter_axes(traced.jaxpr.jaxpr, list(arrays))
        vectors: dict[Any, list[str]] = {}
        for name, array in arrays.items():
            if len(array.shape) <= 1 and math.prod(array.shape) <= _SMALL:
                vectors.setdefault(array.dtype, []).append(name)
        self._joined = [names for names in vectors.values() if len(names) > 1]
        self._single = [name for name in arrays if not any(name in names for names in self._joined)]
        self._shapes = {name: array.shape for name, array in arrays.items()}

    def _arguments(self) -> Sequence[Any]:
        """Return the arrays of the scope in the layout for the compiled function."""
        if self._is_current():
            return self._cached[1]
        known = {name: self._scope.arrays[name] for name in self._shapes or ()}
        single = [_transposed(known[name], self._axes.get(name)) for name in self._single]
        joined = [_concatenated([known[name] for name in names]) for names in self._joined]
        arguments = (*single, *joined)
        self._cached = (known, arguments)  # one assignment, so that other threads see a consistent pair
        return arguments

    def _is_current(self) -> bool:
        """Return True if the arrays of the scope are still the arrays of the last call."""
        known = self._cached[0]
        return known is not None and all(map(operator.is_, known.values(), map(self._scope.arrays.__getitem__, known)))

    def _call(self, arguments: Sequence[Any], feeds: Mapping[str, Any]) -> Any:
        """Return the results of the step, as a pure function that JAX traces."""
        if _is_eager():  # `fluid.debug.eager`: the program function itself gets the numbers
            found = self._step(feeds)
            return found.values, (), found.parts
        shapes = self._shapes or {}
        arrays: dict[str, Any] = {}
        for name, array in zip(self._single, arguments, strict=False):
            axes = self._axes.get(name)
            arrays[name] = array if axes is None else array.transpose(np.argsort(axes))
        for names, vector in zip(self._joined, arguments[len(self._single) :], strict=True):
            ends = np.cumsum([math.prod(shapes[name]) for name in names])
            parts = jax.numpy.split(vector, ends[:-1])
            arrays |= {name: part.reshape(shapes[name]) for name, part in zip(names, parts, strict=True)}
        traced = self._step.traced({n: jax.ShapeDtypeStruct(v.shape, v.dtype) for n, v in feeds.items()})
        leaves = [*map(arrays.__getitem__, shapes), *jax.tree.leaves(feeds)]
        results = jax.core.eval_jaxpr(traced.jaxpr.jaxpr, traced.jaxpr.consts, *leaves)
        return jax.tree.unflatten(traced.out_tree, results)


def _is_eager() -> bool:
    """Return whether this call runs inside `fluid.debug.eager`."""
    return bool(jax.config.jax_disable_jit)  # type: ignore[attr-defined]


def _filter_axes(jaxpr: Any, names: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Return the order of axes in which XLA on a CPU convolves with each array of filters, by name.

    Args:
      jaxpr: the equations of a program.
      names: names of its first arguments.
    """
    known = dict(zip(jaxpr.invars, names, strict=False))
    axes: dict[str, tuple[int, ...]] = {}
    for equation in jaxpr.eqns:
        if equation.primitive is jax.lax.conv_general_dilated_p and (filters := equation.invars[1]) in known:
            outputs, inputs, *pixels = equation.params["dimension_numbers"].rhs_spec
            axes.setdefault(known[filters], (*pixels, inputs, outputs))
        elif equation.primitive is jax.lax.convert_element_type_p and equation.invars[0] in known:
            known[equation.outvars[0]] = known[equation.invars[0]]
    return axes


def _transposed(array: Any, axes: Sequence[int] | None) -> Any:
    """Return an array with its axes in this order; None for no change."""
    if axes is None:
        return array
    # NumPy does this, because XLA would compile a program for each shape.
    return jax.device_put(np.ascontiguousarray(np.asarray(array).transpose(axes)), array.sharding)


def _concatenated(arrays: Sequence[Any]) -> Any:
    """Return one vector of the elements of vectors and scalars."""
    return jax.device_put(np.concatenate([np.asarray(array).ravel() for array in arrays]), arrays[0].sharding)
