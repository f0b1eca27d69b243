"""The class Program, a list of recorded layer calls; and the default programs, which record the user's calls."""

import contextlib
import functools
import inspect
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import jax
import numpy as np

from fluid import core, errors, layers
from fluid.core.rows import BATCHES
from fluid.param_attr import ParamAttr
from fluid.static import unique_name
from fluid.static.tape.calls import (
    Block,
    Call,
    Later,
    Tape,
    Trial,
    assignments_after_updates,
    changes,
    minimized,
    running,
)
from fluid.static.tape.variable import Persistent, Variable, is_value


class Program:
    """A list of recorded layer calls: layers that a user calls are recorded, and run later.

    `fluid.Executor` runs a Program. `fluid.Session` can also run it directly, because a Program can be called like a
    function that calls layers. Layer calls inside the function of a `fluid.Program` run at once and are not recorded.

    Attributes:
      random_seed: the seed of initial values and random layers.
      variables: the variables by name.
      arrays: the declarations of parameters and states, by name.
      shared: the functions with shared parameters (see `fluid.shared`) that the program has called, by name.
      feeds: the declarations of the feeds by name, as FeedSpec.
      mains: for a startup program, the programs whose parameters it initializes.
      for_test: True if the program runs in test mode.
      first: the loss of the last `append_backward`. If no optimizer minimises a loss, the gradients `NAME@GRAD` of
        `first` can be fetched.
      clip: the gradient clip that `fluid.clip.set_gradient_clip` has set, or None.
      rates: a dict from the name of a learning rate to the indices of the `minimize` calls that use it.
      readers: the readers that feed the program, from `layers.py_reader`.
      single_steps: requirements on fed sequences that layers combine with dense rows. The key is the name of the feed
        and the number of steps that each fed sequence must have. The value is the reason, for the error message.
      collective: True if several processes train the program together, see `fluid.DistributeTranspiler`.
      precision: the dtype of the computation, see `fluid.Program`; None for float32.

    Example:
      >>> import fluid.static as fluid
      >>> main, startup = fluid.Program(), fluid.Program()
      >>> with fluid.program_guard(main, startup), fluid.unique_name.guard():
      ...     y = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=2)
      >>> [v.name for v in main.all_parameters()]
      ['fc_0.w_0', 'fc_0.b_0']
    """

    def __init__(self) -> None:
        self.random_seed = 0
        self.variables: dict[str, Variable] = {}
        self.arrays: dict[str, core.ParameterSpec] = {}
        self.shared: dict[str, core.SharedFunction] = {}
        self.feeds: dict[str, core.FeedSpec] = {}
        self.mains: list[Program] = []
        self.for_test = False
        self.first: Variable | None = None
        self.clip: Any = None
        self.rates: dict[str, tuple[int, ...]] = {}
        self.readers: list[Any] = []
        self.single_steps: dict[tuple[str, int], str] = {}
        self.collective = False
        self.precision: str | None = None
        self._global = Block()
        self._current = self._global
        self._changes = 0

    def __call__(self) -> dict[str, Any]:
        """Run the recorded calls; return a dict of the final values of all variables outside loops and branches."""
        return self.snapshot()()

    def __repr__(self) -> str:
        calls = "\n".join(f"  {', '.join(v.name for v in call.outputs)} = {call.type}" for call in self._global.calls)
        return f"Program({len(self._global.calls)} calls)\n{calls}".rstrip()

    def to_string(self, throw_on_error: bool = False, with_details: bool = False) -> str:
        """Return the recorded calls as text, one call a line; the arguments have no effect."""
        del throw_on_error, with_details
        return repr(self)

    def global_block(self) -> "Program":
        """Return the program itself: here a program also serves as its block, a list of layer calls."""
        return self

    def current_block(self) -> "Program":
        """Return the program itself: here a program also serves as its block, a list of layer calls."""
        return self

    def block(self, index: int) -> "Program":
        """Return the program itself: here a program also serves as its block, a list of layer calls."""
        del index
        return self

    @property
    def program(self) -> "Program":
        """Return the program itself: here a program also serves as its block, a list of layer calls."""
        return self

    @property
    def ops(self) -> list[Call]:
        """Return the recorded calls of the program, without the calls inside loops and branches."""
        return list(self._global.calls)

    @property
    def vars(self) -> dict[str, Variable]:
        """Return a dict of the program's variables by name."""
        return self.variables

    def var(self, name: str) -> Variable:
        """Return the variable `name` of the program.

        Raises:
          UnknownNameError: the program has no variable of this name.
        """
        if name not in self.variables:
            raise errors.UnknownNameError(
                f"the program has no variable {name!r}. {errors.nearest(name, self.variables)}"
            )
        return self.variables[name]

    def create_var(
        self,
        name: str | None = None,
        shape: Sequence[int] | None = None,
        dtype: Any = "float32",
        persistable: bool = False,
        stop_gradient: bool = False,
        **others: Any,
    ) -> Variable:
        """Return a new variable without a value, for a later assignment: `layers.assign(x, output=variable)`.

        Args:
          name: the name of the variable; automatic by default.
          shape: the shape that the variable shows before the assignment, with -1 for the batch size.
          dtype: the dtype that the variable shows before the assignment.
          persistable: True to let `global_scope().find_var(name)` return the value of the last run.
          stop_gradient: True if no gradient flows through the variable.
          others: `type`, `lod_level` and others are accepted for programs written for Fluid, but have no effect: the
            assigned value determines them.
        """
        del others
        variable = self.new_variable(name)
        variable.persistable, variable.stop_gradient = persistable, stop_gradient
        if shape is not None and dtype is not None:
            kept = core.FeedSpec(variable.name, (), str(dtype)).held
            sizes = [tuple(batch if size == -1 else size for size in shape) for batch in BATCHES]
            variable.declared = tuple(jax.ShapeDtypeStruct(size, kept) for size in sizes)
        return variable

    def create_parameter(
        self,
        shape: Sequence[int],
        dtype: Any = "float32",
        name: str | None = None,
        initializer: Any = None,
        trainable: bool = True,
        regularizer: Any = None,
        optimize_attr: Mapping[str, float] = MappingProxyType({"learning_rate": 1.0}),
    ) -> Persistent:
        """Create a parameter of the program, as `layers.create_parameter` does.

        Args:
          shape: the shape of the parameter.
          dtype: the dtype of the parameter.
          name: the name of the parameter; automatic by default.
          initializer: an initializer of `fluid.initializer`; Xavier by default.
          trainable: False to keep the initial value.
          regularizer: a regularizer of `fluid.regularizer`.
          optimize_attr: `{"learning_rate": factor}`, a factor of the learning rate.
        """
        attr = ParamAttr(name, initializer, optimize_attr["learning_rate"], regularizer, trainable)
        made: Persistent = self.apply(layers.create_parameter, (list(shape), str(dtype)), {"attr": attr})
        return made

    def prune(self, targets: Variable | str | Sequence[Variable | str]) -> "Program":
        """Return a copy of the program with only the calls that `targets` depend on, without the optimizer's updates.

        Args:
          targets: variables or their names.
        """
        listed = [targets] if isinstance(targets, Variable | str) else targets
        needed = {item if isinstance(item, Variable) else self.var(item) for item in listed}
        new = self.clone()
        calls = []
        for call in reversed(self._global.calls):
            if not needed.isdisjoint(call.outputs):
                calls.append(call)
                captured = getattr(call.function, "captures", ())
                needed |= {*call.outputs, *(self.list_vars() if call.sees_all else [*call.variables(), *captured])}
        new._global.calls = calls[::-1]
        new.variables = {n: v for n, v in self.variables.items() if v in needed}
        new.feeds = {n: spec for n, spec in self.feeds.items() if n in new.variables}
        new.readers = [reader for reader in self.readers if new.variables.keys() & set(reader.names)]
        return new

    _prune = prune

    def has_var(self, name: str) -> bool:
        """Return whether the program has a variable called `name`."""
        return name in self.variables

    def list_vars(self) -> list[Variable]:
        """Return a list of all variables of the program."""
        return list(self.variables.values())

    def all_parameters(self) -> list[Persistent]:
        """Return the parameters in order of creation, with the moving statistics of layers, as in PaddlePaddle."""
        return [v for v in self.variables.values() if isinstance(v, Persistent) and v.is_original_parameter]

    def append_op(
        self,
        type: str,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        attrs: Mapping[str, Any] | None = None,
        stop_gradient: bool = False,
    ) -> Call:
        """Record an op by its PaddlePaddle type; fluid's functions for ops of PaddlePaddle model files compute it.

        Args:
          type: the type of the op, for example "scale".
          inputs: a dict from an input slot (argument of the op) to a variable, its name, or a list of these.
          outputs: a dict from an output slot to the variables that receive its results. Slots of intermediate results,
            for example "XShape", are ignored.
          attrs: numbers, strings and lists by name.
          stop_gradient: True to let no gradient flow through the outputs.

        Returns:
          The recorded call.

        Raises:
          ProgramError: no op of this type can be appended, or the op does not take an input, output or attribute.

        Example:
          >>> import fluid.static as fluid
          >>> main = fluid.Program()
          >>> with fluid.program_guard(main, fluid.Program()):
          ...     x = fluid.layers.fill_constant([2], "float32", 3.0)
          ...     y = main.global_block().create_var(name="y")
          ...     op = main.global_block().append_op("scale", {"X": x}, {"Out": y}, {"scale": 2.0})
          >>> op.type, fluid.Executor().run(main, fetch_list=[y])[0].tolist()
          ('scale', [6.0, 6.0])
        """
        from fluid.static.tape.appended_ops import append  # Imported here, because this import loads all layers.

        call = append(self, type, inputs or {}, outputs or {}, attrs or {})
        for variable in call.outputs:
            variable.stop_gradient = variable.stop_gradient or stop_gradient
        return call

    def clone(self, for_test: bool = False) -> "Program":
        """Return a copy of the program with the calls recorded until now.

        Args:
          for_test: True returns a program in test mode: the program does not update parameters, dropout drops
            nothing, and batch normalisation uses its moving statistics.
        """
        new = Program()
        new.__dict__.update(self.__dict__, mains=[], readers=list(self.readers))
        new.variables = dict(self.variables)
        new.arrays = dict(self.arrays)
        new.shared = dict(self.shared)
        new.feeds = dict(self.feeds)
        new.rates = dict(self.rates)
        new.single_steps = dict(self.single_steps)
        new._global = Block()
        later = assignments_after_updates(self._global.calls) if for_test else []
        kept = [c for c in self._global.calls if not (for_test and (c.function is minimized or c in later))]
        new._global.calls = kept
        new._current = new._global
        new.for_test = for_test or self.for_test
        return new

    def apply(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        into: list[Variable] | None = None,
        blocks: tuple[Block, ...] = (),
    ) -> Any:
        """Record a call of a layer; but while a program runs, call the layer at once.

        Args:
          function: the layer.
          args: the positional arguments, with variables in place of values.
          kwargs: the keyword arguments, with variables in place of values.
          into: variables to assign the results to; by default new variables. A parameter or state of another program,
            in `into` or among the arguments, is replaced by the variable of the same name in this program, which is
            created if necessary.
          blocks: the recorded blocks that the function runs, for loops and branches.

        Returns:
          The result of the layer, with variables in place of values.

        Raises:
          ProgramError: a function that the program calls, for example a branch of `layers.cond`, assigns to a variable.
        """
        environment = running()
        if environment is not None and into is not None:
            raise errors.ProgramError(
                f"{', '.join(v.name for v in into)} cannot be given a value in a function that a layer calls; return "
                f"the value from the function, or write the block of a layers.Switch or layers.While instead"
            )
        if environment is not None:
            return function(*environment.read(args), **environment.read(kwargs or {}))
        # `jax.tree.map` also copies lists and dicts, so later changes by the user do not change the recorded call.
        args, kwargs, into = jax.tree.map(self._own, (args, dict(kwargs or {}), into))
        site, prefix = core.user_site(), unique_name.prefix()
        call = Call(function, args, kwargs, prefix=prefix, assigns=into is not None, site=site, blocks=blocks)
        return self._record(call, into)

    def guarded(self) -> "Program":
        """Return the program of the surrounding `program_guard`, which records operators too; without one, `self`."""
        return self if _programs.get() is _DEFAULTS else default_main_program()

    def new_variable(self, name: str | None, structs: tuple[Any, ...] = ()) -> Variable:
        """Create and return a variable of the current block; without `name`, the variable gets an automatic name."""
        variable = Variable(self, name or unique_name.generate("tmp"), structs, self._current)
        if variable.name in self.variables:
            raise errors.ProgramError(
                f"the name {variable.name!r} is used twice in one program, now at {core.user_site()}; give the second "
                f"one another name="
            )
        self.variables[variable.name] = variable
        return variable

    def persistent(self, spec: core.ParameterSpec) -> Persistent:
        """Return the variable of the parameter or state that `spec` declares; create the variable if it is new.

        Raises:
          ParameterError: the name is declared with another shape or dtype.
        """
        known = self.arrays.setdefault(spec.name, spec)
        if (known.shape, known.dtype) != (spec.shape, spec.dtype):
            raise errors.ParameterError(
                f"{spec.name!r} is {known.dtype}{list(known.shape)}, and is declared as {spec.dtype}{list(spec.shape)} "
                f"at {core.user_site()}; give the second another name"
            )
        self._create(spec.name)
        found = self.variables[spec.name]
        assert isinstance(found, Persistent)
        return found

    @contextlib.contextmanager
    def _lr_schedule_guard(self, is_with_opt: bool = False) -> Iterator[None]:
        del is_with_opt
        yield

    @contextlib.contextmanager
    def _optimized_guard(self, param_and_grads: Any) -> Iterator[None]:
        del param_and_grads
        yield

    @property
    def present_block(self) -> Block:
        """Return the Block (list of calls) into which layer calls are currently recorded."""
        return self._current

    @contextlib.contextmanager
    def writing(self, loop: Any = None) -> Iterator[Block]:
        """Record the layer calls within a `with` block into a new Block, the body of a loop or branch.

        For a loop, `loop` holds known facts such as its condition; see `layers.arrays.Entered`.
        """
        outer = self._current
        self._current = Block(outer, loop)
        try:
            yield self._current
        finally:
            self._current = outer

    @contextlib.contextmanager
    def before_block(self) -> Iterator[None]:
        """Record layer calls before the current loop or branch, in the surrounding block, while a `with` block runs."""
        inner = self._current
        if inner.outer is None:
            raise errors.ProgramError("this belongs inside the block of a loop: with decoder.block():")
        self._current = inner.outer
        try:
            yield
        finally:
            self._current = inner

    def replace_optimizers(self, change: Callable[[Any], Any]) -> None:
        """Replace the optimizers in all recorded `minimize` calls.

        Args:
          change: a function that takes an optimizer and returns its replacement.

        Raises:
          ProgramError: the program minimises no loss yet.
        """
        calls = self._global.calls
        places = [i for i, call in enumerate(calls) if call.function is minimized]
        if not places:
            raise errors.ProgramError(
                "nothing is minimised of which to keep an average; first optimizer.minimize(loss)"
            )
        for i in places:
            calls[i] = replace(calls[i], args=(change(calls[i].args[0]), *calls[i].args[1:]))
        self._changes += 1

    @property
    def inside_block(self) -> bool:
        """Return whether the program is recording the body of a loop or branch."""
        return self._current is not self._global

    def differentiated(self, name: str) -> Variable | None:
        """Return the loss whose gradient with respect to the parameter `name` can be fetched.

        The result is the loss of the first recorded `minimize` that changes the parameter. If no `minimize` does, the
        result is the loss of the last `append_backward`, or None without an `append_backward`.
        """
        losses = [call.args[1] for call in self._global.calls if call.function is minimized and changes(call, name)]
        return losses[0] if losses else self.first

    def write_behind(self, block: Block) -> None:
        """Append the calls of `block` to the current block, and move the variables of `block` to the current block."""
        for variable in self.variables.values():
            if variable.made_in is block:
                variable.made_in = self._current
        self._current.calls += block.calls

    def snapshot(self) -> "Tape":
        """Return a function without arguments that runs the layer calls recorded in this program until now."""
        return self._snapshot(list(self._global.calls))

    def _snapshot(self, calls: list[Call]) -> "Tape":
        return Tape(self, calls, [v for v in self.variables.values() if v.is_global])

    def later(self) -> Later | None:
        """Return the calls that run after the optimizer's update in a training step.

        Return None if no recorded call assigns a parameter after the last `minimize`."""
        return Later(self._global.calls) if assignments_after_updates(self._global.calls) else None

    def discovered(self) -> core.Program:
        """Return a `core.Program` of the calls recorded until now, except assignments after an optimizer's update."""
        assigned = assignments_after_updates(self._global.calls)
        calls = [call for call in self._global.calls if call not in assigned]
        return core.Program(self._snapshot(calls), name="main_program", precision=self.precision)

    def outliving(self) -> list[Variable]:
        """Return the variables whose values every run stores for later runs.

        These are the parameters that calls assign, the counters of evaluators, and variables with `persistable = True`.
        """
        later = {v for call in assignments_after_updates(self._global.calls) for v in call.outputs}
        assigned = [v for v in self._global.assigned() if isinstance(v, Persistent) and v not in later]
        parameters = [v for v in assigned if v.is_parameter or v.counts]
        asked = [v for v in self.variables.values() if v.persistable and v.is_global]
        return [*parameters, *asked]

    def read(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arrays of the next minibatch of each reader by name; skip readers whose feeds are all in `given`.

        Raises:
          EOFException: a reader has no more minibatches.
        """
        needed = [reader for reader in self.readers if any(name not in given for name in reader.names)]
        return {name: value for reader in needed for name, value in reader.read().items()}

    def _own(self, leaf: Any) -> Any:
        """Convert an argument of a layer call before the call is recorded.

        Copy a NumPy array. Replace another program's parameter or state by this program's variable of equal name. Fix
        the variables of enclosing functions that a function reads, such as a branch of `layers.cond`.
        """
        if isinstance(leaf, Persistent) and self.variables.get(leaf.name) is not leaf:
            return self.persistent(leaf.spec)
        if inspect.isfunction(leaf):
            return core.with_fixed_closure(leaf)
        return leaf.copy() if isinstance(leaf, np.ndarray) else leaf

    @property
    def version(self) -> int:
        """Return the version of the program: a number that grows with each recorded call or change."""
        return len(self._global.calls) + self._changes

    @property
    def content(self) -> Hashable:
        """Return a key of everything that decides what a run computes; another key needs another discovery.

        The key has the version, and settings that the user may assign at any time: `precision`, and the `stop_gradient`
        and `persistable` of each variable.
        """
        variables = self.variables.items()
        marked = frozenset(
            (n, v.stop_gradient, v.persistable) for n, v in variables if v.stop_gradient or v.persistable
        )
        return self.version, self.precision, self.first and self.first.name, marked

    def _record(self, call: Call, into: list[Variable] | None) -> Any:
        """Evaluate a call's result shapes, create the output variables, and append the call to the current block."""
        for variable in into or ():
            self._check_own(call, variable)
            variable.check_assignable()
        known = set(self.arrays)
        declared_before = unique_name.counters()
        call, first, second = self._tried(call)
        counters = first.naming.counters
        self.feeds |= first.feeds
        self.arrays = first.arrays
        call.counters = {n: declared_before.get(n, 0) for n, c in counters.items() if declared_before.get(n, 0) != c}
        unique_name.counters().update(counters)
        for name in [n for n in self.arrays if n not in known]:
            self._create(name)
        structs = list(zip(first.structs, second.structs, strict=True))
        call.outputs = self._outputs(call, first.names, structs) if into is None else into
        for variable, both in zip(call.outputs, structs, strict=True):
            variable.structs = both
            variable.constant = None
        for variable, source in zip(call.outputs, first.lengths, strict=True):
            fed = variable.name if variable.name in self.feeds else ""
            variable.lengths_of = fed if source is None else source.lengths_of
            variable.fed_steps = 1 if source is None else source.fed_steps
        if call.type == "sequence_reshape":
            _note_fed_steps(call)
        self._current.calls.append(call)
        return jax.tree.unflatten(first.tree, call.outputs) if into is None else into

    def _tried(self, call: Call) -> tuple[Call, Trial, Trial]:
        """Evaluate the result shapes of a call at both trial batch sizes.

        If the shapes do not fit, evaluate the call a second time: with sequences of one step as rows of a dense array,
        or with known sizes in place of unknown sizes of an array.
        """
        given = self._visible(call)

        def trials(call: Call) -> tuple[Call, Trial, Trial]:
            first, second = (Trial(call, given, self.arrays, self.shared, batch) for batch in BATCHES)
            return call, first, second

        try:
            return trials(call)
        except (errors.ShapeError, TypeError) as error:
            feeds = _met_by_rows(call)
            if not feeds and not _has_unknown_inner_size(call):
                raise
            try:
                found = trials(call.on_single_steps() if feeds else call.on_known_sizes())
            # If the second evaluation of shapes fails too, raise the first error, which describes the user's mistake.
            except Exception:
                raise error from None
            reasons = dict.fromkeys(feeds, f"{error} (written down at {call.site})")
            self.single_steps = reasons | self.single_steps
            return found

    def _check_own(self, call: Call, variable: Variable) -> None:
        if self.variables.get(variable.name) is not variable:
            raise errors.ProgramError(
                f"layers.{call.type}: {variable!r} belongs to another program; programs share parameters by name, "
                f'ParamAttr(name="shared"), and values through feed= and fetch_list='
            )

    def _create(self, name: str) -> None:
        """Create a variable for the new parameter or state `name`; the current startup program will initialize it."""
        self.variables.setdefault(name, Persistent(self, self.arrays[name]))
        startup = default_startup_program()
        if self not in startup.mains:
            startup.mains.append(self)

    def _outputs(self, call: Call, names: list[str | None], structs: list[tuple[Any, ...]]) -> list[Variable]:
        """Return a variable for each result of a recorded layer call.

        If a result is a parameter or a feed that already has a variable, this variable is returned; else a new one.
        """
        call.nameless = frozenset(i for i, name in enumerate(names) if name is None and is_value(structs[i][0]))
        made: list[Variable] = []
        for name, both in zip(names, structs, strict=True):
            known = self.variables.get(name) if name is not None else None
            if isinstance(known, Persistent):
                made.append(known)
            elif known is not None and call.type == "data" and known.structs == both:
                made.append(known)
            else:
                made.append(self.new_variable(name, both))
        return made

    def _visible(self, call: Call) -> list[Variable]:
        """Return the variables that a recorded layer call may read.

        A call of a loop, a branch or a user's function may read every visible variable. Another call may read only its
        arguments, and variables that its function uses.
        """
        open_blocks = self._current.open_blocks()
        found = list(dict.fromkeys(call.variables()))
        for variable in found:
            if variable.made_in is None and not isinstance(variable, Persistent):
                variable.held()  # `held` raises a ProgramError here, because no layer computes the variable.
            variable.check_assigned()
            self._check_own(call, variable)
            if not isinstance(variable, Persistent) and not (variable.is_global or variable.made_in in open_blocks):
                variable.held()
        if not call.sees_all:
            captured = [v for v in getattr(call.function, "captures", ()) if v.structs]
            return [v for v in (*found, *captured) if not isinstance(v, Persistent)]
        every = [v for v in self.variables.values() if v.structs and not isinstance(v, Persistent)]
        return [v for v in every if v.is_global or v.made_in in open_blocks]


_DEFAULTS = (Program(), Program())
_programs: ContextVar[tuple[Program, Program]] = ContextVar("fluid_static_programs", default=_DEFAULTS)


def default_main_program() -> Program:
    """Return the default main program, into which layers are recorded.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main):
      ...     fluid.default_main_program() is main
      True
    """
    return _programs.get()[0]


def default_startup_program() -> Program:
    """Return the default startup program, which initializes parameters when it runs.

    Example:
      >>> import fluid.static as fluid
      >>> startup = fluid.Program()
      >>> with fluid.program_guard(fluid.Program(), startup):
      ...     fluid.default_startup_program() is startup
      True
    """
    return _programs.get()[1]


def _note_fed_steps(call: Call) -> None:
    """Set `fed_steps` of the output of a `sequence_reshape`: the number of fed time steps that become one output step.

    Also copy `lengths_of`, the name of the feed, from the input. Do nothing if the number is not an integer.
    """
    [before], [after] = call.variables(), call.outputs
    steps, rest = divmod(before.fed_steps * after.shape[-1], math.prod(before.shape[1:]))
    if before.lod_level == 1 and not rest:
        after.lengths_of, after.fed_steps = before.lengths_of, steps


def _has_unknown_inner_size(call: Call) -> bool:
    """Return whether a call reads an array whose batch size is fixed and another size unknown, such as `[4, -1, 1]`."""
    shapes = [v.shape for v in call.variables() if v.structs and not v.lod_level]
    return any(-1 in shape[1:] and shape[0] != -1 for shape in shapes)


def _met_by_rows(call: Call) -> list[tuple[str, int]]:
    """Return the feeds of the sequences that a call combines with a dense array of one row for each example.

    The result has a pair `(name of the feed, number of fed steps that make one step)` for each batch of sequences. The
    result is empty if the call reads no dense array of rows, or if the lengths of a sequence do not come from a feed.
    """
    read = call.variables()
    sequences = [v for v in read if v.lod_level]
    meet = any(v.follows_batch for v in read if not v.lod_level)
    known = all(v.lod_level == 1 and v.lengths_of for v in sequences)
    return [(v.lengths_of, v.fed_steps) for v in sequences] if meet and known else []


@contextlib.contextmanager
def program_guard(main_program: Program, startup_program: Program | None = None) -> Iterator[None]:
    """Record the layers that are called within a `with` block into a program.

    Args:
      main_program: the program that receives the calls.
      startup_program: the program that initializes the parameters; by default the current startup program.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[4])
      >>> x.program is main
      True
    """
    token = _programs.set((main_program, startup_program or default_startup_program()))
    try:
        yield
    finally:
        _programs.reset(token)


# Arguments of PaddlePaddle layers that do not change results. An argument that fluid's layer does not take is dropped.
_WITHOUT_INFLUENCE = frozenset(
    {"force_cpu", "fuse_with_relu", "is_test", "need_clip", "persistable", "startup_program", "stop_gradient"}
    | {"use_cudnn", "use_mkldnn"}
)


def in_a_function() -> bool:
    """Return whether layer calls run at once, because a function of a `fluid.Program` runs; else they are recorded."""
    return core.present_frame() is not None


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a layer so that its calls are recorded in the default main program.

    While the function of a `fluid.Program` runs, the layer is called at once. If the user passes a variable for the
    result, for example `out=`, the recorded call assigns its result to this variable.
    """
    signature = inspect.signature(function)
    known = signature.parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in known.values())
    stores = getattr(function, "assigns", ())
    keyword = next(iter(stores)) if len(stores) == 1 else None

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not open_ended:
            kwargs = {n: v for n, v in kwargs.items() if n in known or n not in _WITHOUT_INFLUENCE}
        if in_a_function() and running() is None:
            with core.as_fluid():
                return function(*args, **kwargs)
        if keyword is not None:
            given = signature.bind(*args, **kwargs)
            target = given.arguments.pop(keyword, None)
            if target is not None:
                return assigned(target, function, *given.args, **given.kwargs)
        if "inplace" in known:
            args, kwargs, changed = _in_place(signature.bind(*args, **kwargs))
            if changed is not None:
                return assigned(changed, function, *args, **kwargs)
        return default_main_program().apply(function, args, kwargs)

    return call


@functools.cache
def recorded_layer(name: str) -> Any:
    """Return the layer or other public object `name` of `fluid.layers`; wrap a layer so that its calls are recorded.

    Raises:
      AttributeError: `fluid.layers` has no public name `name`.
    """
    if name.startswith("_"):
        raise AttributeError(name)
    found = getattr(layers, name)
    return recorded(found) if inspect.isfunction(found) else found


def _in_place(given: inspect.BoundArguments) -> tuple[tuple[Any, ...], dict[str, Any], Variable | None]:
    """Remove `inplace` from a layer's arguments; return positional arguments, keyword arguments, and a variable.

    The variable is the first argument `x`, if the call must assign its result to `x`; else it is None. For example,
    as in PaddlePaddle, `reshape(x, shape, inplace=True)` changes the shape of `x` itself, but never of a parameter.
    """
    x = next(iter(given.arguments.values()))
    in_place = given.arguments.pop("inplace", False) and isinstance(x, Variable) and running() is None
    changed = in_place and not isinstance(x, Persistent) and given.arguments.get("act") is None
    return given.args, given.kwargs, x if changed else None


def assigned(target: Variable, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Variable:
    """Record a call of a layer, and assign the result to the variable `target`; return `target`.

    Raises:
      ArgumentTypeError: `target` is not a variable.
    """
    if not isinstance(target, Variable):
        raise errors.ArgumentTypeError(
            f"found {type(target).__name__}, expected a variable to give the result of {function.__name__} to, as in "
            f"layers.less_than(x, y, cond=cond)"
        )
    default_main_program().apply(function, args, kwargs, into=[target])
    return target
