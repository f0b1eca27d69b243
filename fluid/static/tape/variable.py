"""Variables: what programs that are written down hold in the place of arrays."""

import operator
from collections.abc import Callable
from typing import Any

import jax

from fluid import core, errors, layers
from fluid.static.tape import values

# The programs that variables belong to; opaque here.
Owner = Any


class Variable:
    """A place in a program that is written down, which holds an array, a sequence batch or a TensorArray in each run.

    Layers return variables, and operators and `[...]` on them are layers too. A variable can be given another value by
    layers that assign, such as `layers.assign(x, output=y)`.

    Args:
      program: the Program it belongs to.
      name: under which it can be fetched and replaced.
      structs: what it holds when the program runs with either of the two stand-ins for the batch size.
      block: the block of the program that makes it.

    Attributes:
      stop_gradient: whether gradients end here.
      persistable: whether its value outlives a run: `global_scope().find_var(name)` has it.
      constant: the number that all its elements have, where that is known.
      unassigned: whether it was made without a value, to be given one.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program()), fluid.unique_name.guard():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     h = fluid.layers.fc(x, size=2) * 2.0
      >>> h.shape, h.dtype
      ((-1, 2), 'float32')
    """

    # Arrays on the left of an operator leave it to this class.
    __array_ufunc__ = None

    def __init__(self, program: Owner, name: str, structs: tuple[Any, ...] = (), block: Any = None):
        self.program = program
        self.name = name
        self.structs = structs
        self.made_in = block
        self.stop_gradient = False
        self.persistable = False
        self.constant: float | None = None
        self.unassigned = not structs

    @property
    def block(self) -> Owner:
        """The program, which is its own global block."""
        return self.program

    @property
    def is_global(self) -> bool:
        """Whether a layer outside of loops and branches makes it."""
        return self.made_in is not None and self.made_in.outer is None

    @property
    def lod_level(self) -> int:
        """0 for arrays, 1 for sequences, 2 for sequences of sequences."""
        kinds = {core.SequenceBatch: 1, core.NestedSequenceBatch: 2}
        return kinds.get(type(self._struct()), 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes, -1 for one that follows the batch; the steps of sequences are rows, as in `[-1, 8]`."""
        first, second = (values.dense_of(struct).shape[self._leading() :] for struct in self._both())
        sizes = [a if a == b else -1 for a, b in zip(first, second, strict=True)]
        return (-1, *sizes) if self.lod_level else tuple(sizes)

    @property
    def dtype(self) -> str:
        """The name of its dtype."""
        return str(values.dense_of(self._struct()).dtype)

    def astype(self, dtype: Any) -> "Variable":
        """The same numbers in another dtype."""
        return self.program.apply(layers.cast, (self, dtype))

    def check(self) -> None:
        """Refuse what is not whole, once all of the program is written down."""

    def check_assigned(self) -> None:
        """Refuse to read what was made without a value, and was given none yet.

        Raises:
          ProgramError: it is that.
        """
        if not self.structs:
            raise errors.ProgramError(f"the variable {self.name!r} holds nothing yet; assign something to it first")

    def held(self) -> Any:
        """What it holds before the program gives it a value, inside a run.

        Raises:
          ProgramError: it is nothing that outlives a run.
        """
        raise errors.ProgramError(
            f"the variable {self.name!r} has no value here: its layer stands in a block that is over, or in another "
            f"program; make it before the block, and give it its value there: layers.assign(x, output=variable)"
        )

    def _leading(self) -> int:
        """How many dimensions of the padded array the rows of a sequence are."""
        return 1 + self.lod_level if self.lod_level else 0

    def _both(self) -> tuple[Any, ...]:
        self.check_assigned()
        return self.structs

    def _struct(self) -> Any:
        return self._both()[0]

    def __getitem__(self, index: Any) -> "Variable":
        return self.program.apply(operator.getitem, (self, index))

    def __len__(self) -> int:
        raise errors.ArgumentTypeError(f"{self!r} has no length while it is written down; use layers.shape(x)")

    def __iter__(self) -> Any:
        raise errors.ArgumentTypeError(f"{self!r} cannot be gone through; use layers.unstack(x) or layers.split(x, 2)")

    def __bool__(self) -> bool:
        raise errors.ArgumentTypeError(
            f"{self!r} is neither true nor false while it is written down; choose in the program: layers.Switch(), "
            f"layers.cond(...) or layers.where(...)"
        )

    def __repr__(self) -> str:
        shown = f"{self.dtype}{list(self.shape)}" if self.structs and values.is_value(self.structs[0]) else "no array"
        return f"Variable({self.name}: {shown})"


class Persistent(Variable):
    """A variable whose value outlives a run: a parameter, a moving average, a counter.

    Args:
      program: the Program it belongs to.
      spec: what was declared.

    Attributes:
      spec: the same.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program()), fluid.unique_name.guard():
      ...     h = fluid.layers.fc(fluid.layers.data("x", shape=[4]), size=2)
      ...     weight = fluid.default_main_program().global_block().var("fc_0.w_0")
      >>> weight.shape, weight.trainable
      ((4, 2), True)
    """

    def __init__(self, program: Owner, spec: core.ParameterSpec):
        struct = jax.ShapeDtypeStruct(spec.shape, spec.dtype)
        super().__init__(program, spec.name, (struct, struct))
        self.spec = spec
        self.persistable = True

    @property
    def trainable(self) -> bool:
        """Whether optimizers may change it."""
        return bool(self.spec.trainable)

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter, rather than a value that layers themselves write."""
        return self.spec.trainable is not None

    def held(self) -> Any:
        """What the Scope holds of it."""
        spec = self.spec
        if spec.trainable is None:
            return core.create_state(spec.name, spec.shape, spec.dtype, spec.initializer)
        return core.create_parameter(spec.name, spec.shape, spec.dtype, spec.initializer, spec.trainable, spec.settings)


def _binary(function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Variable, Any], Variable]:
    def method(self: Variable, other: Any) -> Variable:
        return self.program.apply(function, (other, self) if swapped else (self, other))

    return method


def _unary(function: Callable[[Any], Any]) -> Callable[[Variable], Variable]:
    def method(self: Variable) -> Variable:
        return self.program.apply(function, (self,))

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(Variable, f"__{_name}__", _binary(getattr(operator, _name), swapped=False))
    setattr(Variable, f"__r{_name}__", _binary(getattr(operator, _name), swapped=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Variable, f"__{_name}__", _binary(getattr(operator, _name), swapped=False))
setattr(Variable, "__neg__", _unary(operator.neg))  # noqa: B010
