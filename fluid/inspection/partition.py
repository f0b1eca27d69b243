"""The parts of a traced program: layers, feeds and lines of operators, each with its JAX equations and its cost.

One forward pass is traced over stand-in data of chosen sizes. In the JAX equations of the trace, `partition` finds the
layers by the names of values. The trace does not return values inside loops, so `core.equations.label` writes the names
of these values into the equations. The cost is counted in operations and bytes, as XLA counts them.
"""

import functools
import itertools
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax

from fluid import errors
from fluid.core import TEST, Applied, FeedSpec, NestedSequenceBatch, Program, SequenceBatch, data_of, stand_in
from fluid.core.equations import frames, inner_jaxprs, is_literal, labelled, live_equations, user_line
from fluid.core.explain import explained_prints
from fluid.core.frame import is_library

# The cache of costs has the text of JAX equations as keys. Memory addresses, which do not change costs, are removed
# from this text, so that equal equations have equal keys.
_ADDRESS = re.compile(r"0x[0-9a-f]+")


class Cost(NamedTuple):
    """The cost of running some JAX equations once.

    Attributes:
      flops: the number of floating-point and integer operations; a multiplication and an addition are two. Functions
        such as `exp` and `tanh` are not counted.
      bytes: the number of bytes that all operations read and write, each operation alone. XLA fuses operations, so
        this is an upper bound of the bytes that the device moves.
      partial: True if the equations contain a loop whose number of steps depends on the data. Then only one step of
        this loop is counted.

    Example:
      >>> Cost(96, 184) + Cost(4, 16).times(3)
      Cost(flops=108, bytes=232, partial=False)
    """

    flops: float = 0
    bytes: float = 0
    partial: bool = False

    def __add__(self, other: Any) -> "Cost":
        return Cost(self.flops + other.flops, self.bytes + other.bytes, self.partial or other.partial)

    def times(self, count: int) -> "Cost":
        """Return the cost of running the JAX equations `count` times."""
        return Cost(self.flops * count, self.bytes * count, self.partial)


class Counter:
    """A counter of the FLOPs and bytes of JAX equations, with a cache: XLA analyses equal equations only once."""

    def __init__(self) -> None:
        self._known: dict[str, Cost] = {}
        self._empty = jax.make_jaxpr(lambda: ())().jaxpr

    def cost(self, equations: Iterable[Any]) -> Cost:
        """Return the cost of some JAX equations, all from one function.

        XLA counts one step of each loop. So the cost of a loop is computed here: the number of its steps times the cost
        that XLA counts for the body.
        """
        total = Cost()
        plain = []
        for equation in equations:
            if _has_loop(equation):
                total += self._nested(equation)
            elif labelled(equation) is None and not equation.effects:
                plain.append(equation)
        return total + self._counted(plain) if plain else total

    def _nested(self, equation: Any) -> Cost:
        inner = [self.cost(live_equations(jaxpr)) for jaxpr in inner_jaxprs(equation)]
        kind = equation.primitive.name
        if kind == "scan":
            return inner[0].times(equation.params["length"])
        if kind == "cond":
            return max(inner)
        total = sum(inner, Cost())
        return total._replace(partial=True) if kind == "while" else total

    def _counted(self, equations: Sequence[Any]) -> Cost:
        """Return the cost (operations and bytes) of JAX equations without loops, as XLA counts it."""
        made = {variable for equation in equations for variable in equation.outvars}
        read = {v: None for e in equations for v in e.invars if not is_literal(v)}
        inputs = [v for v in read if v not in made]
        results = [v for e in equations for v in e.outvars if v not in read]
        jaxpr = self._empty.replace(invars=inputs, outvars=results, eqns=list(equations))
        key = _ADDRESS.sub("", str(jaxpr))
        if key not in self._known:
            shapes = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in inputs]
            lowered = jax.jit(functools.partial(jax.core.eval_jaxpr, jaxpr, ())).lower(*shapes)
            try:
                found = lowered.cost_analysis() or {}
            except jax.errors.JaxRuntimeError:  # an exported function has no known sizes before compilation
                found = lowered.compile().cost_analysis() or {}
            self._known[key] = Cost(found.get("flops", 0), found.get("bytes accessed", 0))
        return self._known[key]


def _has_loop(equation: Any) -> bool:
    if equation.primitive.name in ("scan", "while"):
        return True
    return any(_has_loop(e) for jaxpr in inner_jaxprs(equation) for e in jaxpr.eqns)


# The default number of steps of sequences in the stand-in data of a trace. The usual strides and window sizes divide 16
# without a remainder.
STEPS = 16


class Sizes(NamedTuple):
    """The sizes of the stand-in data with which a program is traced.

    Attributes:
      batch: number of examples.
      outer: in programs with nested sequences, number of sequences in each example.
      inner: number of steps in each sequence.
    """

    batch: int
    outer: int
    inner: int


class TracedForward(NamedTuple):
    """The JAX equations of one forward pass.

    Attributes:
      jaxpr: the equations.
      applied: the result of `Program.apply`, with the variables of the equations instead of arrays.
      arrays: the variables of parameters and states, by name.
      names: the names of feeds and named values, in the order of the program.
    """

    jaxpr: Any
    applied: Applied
    arrays: dict[str, Any]
    names: list[str]


def trace(program: Program, sizes: Sizes) -> TracedForward:
    """Trace one forward pass of a program in test mode, and return its JAX equations; nothing is computed."""
    arrays = {n: jax.ShapeDtypeStruct(s.shape, s.dtype) for n, s in (program.parameters | program.states).items()}
    arguments = (arrays, stand_ins(program, sizes), jax.eval_shape(lambda: jax.random.key(0)))
    names: list[str] = []

    def forward(arrays: Mapping[str, Any], feeds: Mapping[str, Any], key: jax.Array) -> Applied:
        applied = program.apply(arrays, feeds, key=key, mode=TEST, labelling=True, plain=True)
        # Record the order of the values here, because JAX sorts the returned dict by name: first the feeds, then the
        # values of the program.
        names.extend(n for n in dict.fromkeys((*program.feeds, *applied.values)) if n not in arrays)
        return applied

    with explained_prints(sizes.batch, again=True):
        closed, shapes = jax.make_jaxpr(forward, return_shape=True)(*arguments)
    applied = jax.tree.unflatten(jax.tree.structure(shapes), closed.jaxpr.outvars)
    variables, *_ = jax.tree.unflatten(jax.tree.structure(arguments), closed.jaxpr.invars)
    return TracedForward(closed.jaxpr, applied, variables, names)


def stand_ins(program: Program, sizes: Sizes) -> dict[str, Any]:
    """Return the shapes and dtypes of the stand-in data for a trace, by feed name."""
    return {name: _stand_in(spec, program.sample_shapes.get(name), sizes) for name, spec in program.feeds.items()}


def _stand_in(spec: FeedSpec, sample: Sequence[int] | None, sizes: Sizes) -> Any:
    batch, *steps = sizes
    if sample is None:
        return jax.eval_shape(lambda: stand_in(spec, batch, steps))
    if not spec.lod_level:
        return jax.ShapeDtypeStruct(tuple(sample), spec.held)
    steps = [*steps, *sample[1 : 1 + spec.lod_level]][-2:]
    return jax.eval_shape(lambda: stand_in(spec, sample[0], steps))


_LAYERS = os.path.join(os.path.dirname(errors.__file__), "layers")


class PartEquations(NamedTuple):
    """Some JAX equations of one layer, and the number of times that one run of the program runs them.

    Attributes:
      equations: the equations.
      times: the number of runs.
      partial: whether `times` is only a lower bound, because the data decides the number of steps of a loop.
    """

    equations: list[Any]
    times: int
    partial: bool


@dataclass(eq=False)
class Part:
    """A part of a program: a feed, a layer, or the operators (such as `+`) in one line of the user's code.

    Attributes:
      name: the name of the feed or layer; for operators, the line, as in "net.py:12".
      kind: "data" for a feed; for a layer its kind, such as "fc"; for a line of operators its last operation.
      site: the user's source line that created the part.
      operators: True if the part is a line of operators.
      values: the names of the results of the part.
      variable: the variable of the final result in the traced equations; None if the part has no result.
      live: True if an output of the program depends on the part.
      equations: the equations that belong to the part, also if no output of the program depends on them. The equations
        in the body of a loop are not included.
      arrays: the names of the parameters and states that the part reads, in order.
      pieces: the equations of the part from which its cost is counted: outputs of the program depend on them. The
        equations in the body of a loop are included, unless they belong to a part in `inside`.
      inside: the parts in the body of the loop that this part runs; empty without a loop.
      steps: the number of steps of that loop; None if the data decides the number, or if there are no parts inside.
    """

    name: str
    kind: str
    site: str
    operators: bool = False
    values: list[str] = field(default_factory=list)
    variable: Any = None
    live: bool = False
    equations: list[Any] = field(default_factory=list)
    arrays: dict[str, None] = field(default_factory=dict)
    pieces: list[PartEquations] = field(default_factory=list)
    inside: list["Part"] = field(default_factory=list)
    steps: int | None = None

    def cost(self, counter: Counter) -> Cost:
        """Return the cost of this part (such as a layer) in one run of the program.

        For a loop, the costs of the parts inside the loop are not included.
        """
        counted = (counter.cost(p.equations).times(p.times)._replace(partial=p.partial) for p in self.pieces)
        return sum(counted, Cost())

    def walk(self, depth: int = 0) -> Iterator[tuple["Part", int]]:
        """Yield this part of the program, such as a layer or a loop, and all parts inside it.

        Each part comes in a pair with its depth, the number of loops around it.
        """
        yield self, depth
        for part in self.inside:
            yield from part.walk(depth + 1)


@dataclass
class Partition:
    """The parts (such as layers) of a program, and the connections between the variables of its JAX equations.

    Attributes:
      parts: the parts in the order of the program, feeds first.
      owners: the part that each equation belongs to, by the `id` of the equation.
      makers: the equation that computes each variable, including variables inside loops.
      outer: for each input variable of the body of a loop, the variable outside the loop that the body receives.
      inner: for each result variable of a loop, the variable inside the body that holds this result.
      lengths: the variables that hold the lengths of sequences.
    """

    parts: list[Part] = field(default_factory=list)
    owners: dict[int, Part] = field(default_factory=dict)
    makers: dict[Any, Any] = field(default_factory=dict)
    outer: dict[Any, Any] = field(default_factory=dict)
    inner: dict[Any, Any] = field(default_factory=dict)
    lengths: set[Any] = field(default_factory=set)


def partition(program: Program, traced: TracedForward) -> Partition:
    """Divide the traced JAX equations of a program among its layers.

    An equation belongs to the layer of the first named value that needs this equation. Equations that come from
    operators in lines of the user's code are an exception: each of these lines is a separate part.
    """
    found = Partition()
    named = [(name, traced.applied.values[name]) for name in traced.names]
    for _, value in named:
        found.lengths |= set(_lengths(value))
    outputs = [data_of(v) for v in traced.applied.outputs]
    arrays = {variable: name for name, variable in traced.arrays.items()}
    level = _Level(program, found, traced.jaxpr, 1, False)
    level.name([(n, data_of(v)) for n, v in named])
    level.rest(outputs, foreign=True)
    found.parts = level.parts(arrays, {v for v in outputs if not is_literal(v)})
    _give_unread(program, found.parts)
    return found


class _Level:
    """The JAX equations of the program, or of one loop body, and their division into parts (such as layers)."""

    def __init__(self, program: Program, found: Partition, jaxpr: Any, times: int, partial: bool):
        self._program = program
        self._found = found
        self._jaxpr = jaxpr
        self._times = times
        self._partial = partial
        self._parts: dict[str, Part] = {}
        self._lines: list[Part] = []
        self._places = {id(equation): place for place, equation in enumerate(jaxpr.eqns)}
        found.makers |= {v: e for e in jaxpr.eqns for v in e.outvars}

    def name(self, named: Iterable[tuple[str, Any]]) -> None:
        """Find the JAX equations that each layer of the program owns: the equations that compute its named values."""
        program = self._program
        for name, variable in named:
            layer = name.rpartition(".tmp_")[0] or name
            feed = program.feeds.get(name)
            site = feed.site if feed else program.sites.get(name, "")
            kind = "data" if feed else program.kinds.get(name, "")
            part = self._parts.setdefault(layer, Part(layer, kind, site))
            part.values.append(name)
            part.variable = variable
            own, operators = _sorted_out(self._free([variable]))
            runs = _runs(operators)
            # the layer computes nothing: it only names a result of operators in the user's code
            if not own and runs and len(part.values) == 1:
                own = runs.pop()
                part.kind = _operation(own[-1])
            self._add_lines(runs)
            self._own(part, own)

    def rest(self, targets: Iterable[Any], foreign: bool) -> None:
        """Create a part of the program for each line of code with JAX equations that belong to no layer.

        Only the equations that compute `targets` count.

        Args:
          foreign: True to create parts also for equations that do not come from operators in the user's code. If False,
            these equations belong to no part.
        """
        left = self._free(targets)
        self._add_lines(_runs(left if foreign else _sorted_out(left)[1]))

    def parts(self, arrays: Mapping[Any, str], results: set[Any]) -> list[Part]:
        """Return the complete parts (such as layers), in the order of the program."""
        live = {id(e) for e in live_equations(self._jaxpr, results)}
        used = results | {v for e in self._jaxpr.eqns if id(e) in live for v in e.invars if not is_literal(v)}
        mine: dict[int, list[Any]] = {}
        for equation in self._jaxpr.eqns:
            owner = self._found.owners.get(id(equation))
            if owner is not None:
                mine.setdefault(id(owner), []).append(equation)
        parts = sorted([*self._parts.values(), *self._lines], key=lambda p: self._place(p, mine.get(id(p), ())))
        for part in parts:
            part.equations = mine.get(id(part), [])
            part.live = any(id(e) in live for e in part.equations) or _hashable(part.variable) in used
            self._complete(part, part.equations, live, arrays)
        return parts

    def unowned(self) -> list[Any]:
        return [e for e in self._jaxpr.eqns if id(e) not in self._found.owners]

    def _free(self, targets: Iterable[Any]) -> list[Any]:
        """Return the JAX equations that `targets` depend on and that belong to no part (layer) yet, in order."""
        waiting = [v for v in targets if not is_literal(v)]
        found: dict[int, Any] = {}
        while waiting:
            equation = self._found.makers.get(waiting.pop())
            place = self._places.get(id(equation))
            if place is not None and place not in found and id(equation) not in self._found.owners:
                found[place] = self._jaxpr.eqns[place]
                waiting += [v for v in found[place].invars if not is_literal(v)]
        return [found[place] for place in sorted(found)]

    def _add_lines(self, runs: Iterable[Sequence[Any]]) -> None:
        """Create a part for each list of JAX equations, which come from the operators in one line of user code."""
        for run in runs:
            site = user_line(run[0])
            line = pathlib.Path(site.rpartition(" in ")[0] or site).name
            part = Part(line, _operation(run[-1]), site, operators=True, variable=run[-1].outvars[-1])
            self._lines.append(part)
            self._own(part, run)

    def _own(self, part: Part, equations: Iterable[Any]) -> None:
        self._found.owners |= {id(e): part for e in equations}

    def _place(self, part: Part, equations: Sequence[Any]) -> float:
        if part.kind == "data":
            return -1
        if equations:
            return self._places[id(equations[-1])]
        # A part (such as a layer) without equations only gives a second name to a value. In the order of parts, such
        # a part is after the equation that computes the value, and before the equations that use the value.
        return self._places.get(id(self._found.makers.get(_hashable(part.variable))), -1) + 0.5

    def _complete(self, part: Part, equations: list[Any], live: set[int], arrays: Mapping[Any, str]) -> None:
        """Complete a part of the program, such as a layer: divide the loops in `equations` into inner parts.

        Record in `part` the other equations, and the parameters and states that they read.
        """
        own = []
        for equation in equations:
            if _holds_labels(equation):
                self._look_into(part, equation, id(equation) in live, arrays)
            else:
                own.append(equation)
                part.arrays |= {arrays[v]: None for v in equation.invars if _hashable(v) in arrays}
        part.pieces.append(PartEquations([e for e in own if id(e) in live], self._times, self._partial))

    def _look_into(self, part: Part, equation: Any, used: bool, arrays: Mapping[Any, str]) -> None:
        """Divide a loop body into parts (layers); equations of no layer belong to `part`, which runs the loop."""
        found = self._found
        kind = equation.primitive.name
        for inner, inputs in _calls(equation):
            outside = dict(zip(inner.invars, inputs, strict=True))
            found.outer |= outside
            found.inner |= dict(zip(equation.outvars, inner.outvars, strict=False))
            known = {v: arrays[_hashable(o)] for v, o in outside.items() if _hashable(o) in arrays}
            times = self._times * (equation.params["length"] if kind == "scan" else 1)
            level = _Level(self._program, found, inner, times, self._partial or kind == "while")
            level.name((name, e.invars[0]) for e in inner.eqns if (name := labelled(e)) is not None)
            level.rest(inner.outvars, foreign=False)
            results = {v for v in inner.outvars if used and not is_literal(v)}
            part.inside += level.parts(known, results)
            left = level.unowned()
            level._own(part, left)
            level._complete(part, left, {id(e) for e in live_equations(inner, results)}, known)
        if kind == "scan":
            part.steps = equation.params["length"]


def _give_unread(program: Program, parts: list[Part]) -> None:
    """Assign parameters and states that no layer reads in test mode to layers by name: `fc_0.w_0` to `fc_0`."""
    every = [part for top in parts for part, _ in top.walk()]
    read = {name for part in every for name in part.arrays}
    for name, spec in (program.parameters | program.states).items():
        if name not in read:
            owner = next((part for part in every if name.startswith(f"{part.name}.")), None)
            if owner is None:
                owner = Part(name, "parameter", spec.site)
                parts.append(owner)
            owner.arrays[name] = None


def _calls(equation: Any) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Iterate over the jaxprs of functions that a JAX equation calls, each with the variables of its inputs."""
    if equation.primitive.name != "while":
        for inner in inner_jaxprs(equation):
            yield inner, equation.invars
        return
    params = equation.params
    first = params["cond_nconsts"]
    second = params["body_nconsts"]
    carried = equation.invars[first + second :]
    yield params["cond_jaxpr"].jaxpr, [*equation.invars[:first], *carried]
    yield params["body_jaxpr"].jaxpr, [*equation.invars[first : first + second], *carried]


def _holds_labels(equation: Any) -> bool:
    """Return whether functions that a JAX equation calls contain named values; False for a `cond` equation."""
    if equation.primitive.name == "cond":
        return False
    inside = [e for jaxpr in inner_jaxprs(equation) for e in jaxpr.eqns]
    return any(labelled(e) is not None or _holds_labels(e) for e in inside)


def _sorted_out(equations: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Divide JAX equations into two lists: equations of layers, and equations of operators in the user's code."""
    layers: list[Any] = []
    operators: list[Any] = []
    for equation in equations:
        (operators if _is_operator(equation) else layers).append(equation)
    return layers, operators


def _runs(equations: Iterable[Any]) -> list[list[Any]]:
    return [list(run) for _, run in itertools.groupby(equations, user_line)]


def _is_operator(equation: Any) -> bool:
    """Return whether a JAX equation comes from an operator in the user's code, and not from a layer."""
    files = [frame.file_name for frame in frames(equation)]
    within = list(itertools.takewhile(is_library, files))
    if len(within) == len(files) or any(file.startswith(_LAYERS) for file in within):
        return False
    # If a layer calls a function of the user or of another library, the equations of this function belong to the layer,
    # and are no operators.
    return not (str(equation.source_info.name_stack) and any(file.startswith(_LAYERS) for file in files))


def _operation(equation: Any) -> str:
    kind = equation.primitive.name
    return str(equation.params.get("name", kind)).strip("_") if kind in ("jit", "pjit") else kind


def _lengths(value: Any) -> list[Any]:
    if isinstance(value, NestedSequenceBatch):
        return [value.lengths, value.inner_lengths]
    return [value.lengths] if isinstance(value, SequenceBatch) else []


def _hashable(variable: Any) -> Any:
    return None if variable is None or is_literal(variable) else variable
