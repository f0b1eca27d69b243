"""Variables: placeholders for arrays in recorded programs; and their values in a run.

A value is an array, a batch of sequences, or a TensorArray that a loop writes. The functions below the classes read and
convert values of every kind.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors, layers
from fluid.layers.control.tensor_array import TensorArray
from fluid.layers.structured.beam import Beams

# A Program; the module of Program imports this module, so the class is not known here.
Owner = Any


class Variable:
    """A value of a recorded program, which is an array, a sequence batch or a TensorArray in each run.

    Layers return variables, and operators and `[...]` on variables are layers too. Layers that assign, for example
    `layers.assign(x, output=y)`, change the value of a variable.

    Args:
      program: the Program of the variable.
      name: the name by which the value can be fetched and replaced.
      structs: the shape of the value at each of the two trial batch sizes.
      block: the block of the program that computes the variable.

    Attributes:
      stop_gradient: True if no gradient flows through the variable.
      persistable: True if the value is kept between runs: `global_scope().find_var(name)` returns the value.
      constant: the number that all elements equal, if known.
      unassigned: True if the variable was created without a value, for a later assignment.
      declared: the shape that an unassigned variable shows, at each of the two trial batch sizes; empty if unknown.
      lengths_of: the feed whose sequences have the lengths of this variable, if known; else "".
      fed_steps: the number of steps of that feed in one step of this variable; more than 1 after `sequence_reshape`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program()), fluid.unique_name.guard():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     h = fluid.layers.fc(x, size=2) * 2.0
      >>> h.shape, h.dtype
      ((-1, 2), 'float32')
    """

    # An array on the left of an operator defers to this class.
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
        self.declared: tuple[Any, ...] = ()
        self.lengths_of = ""
        self.fed_steps = 1

    @property
    def block(self) -> Owner:
        """Return the program, which is its own global block."""
        return self.program

    @property
    def is_global(self) -> bool:
        """Return whether a layer outside loops and branches computes the variable."""
        return self.made_in is not None and self.made_in.outer is None

    @property
    def follows_batch(self) -> bool:
        """Return whether the first dimension of the value follows the batch size."""
        return len({dense_of(struct).shape[:1] for struct in self.structs if is_value(struct)}) == 2

    @property
    def lod_level(self) -> int:
        """Return 0 for arrays, 1 for sequences, 2 for sequences of sequences."""
        kinds = {core.SequenceBatch: 1, core.NestedSequenceBatch: 2}
        return kinds.get(type(self._struct()), 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape, with -1 for sizes that follow the batch size.

        For sequences, the steps of all sequences count as rows: steps of 8 elements have the shape `(-1, 8)`.
        """
        first, second = (dense_of(struct).shape[self._leading() :] for struct in self._both())
        sizes = [a if a == b else -1 for a, b in zip(first, second, strict=True)]
        return (-1, *sizes) if self.lod_level else tuple(sizes)

    @property
    def dtype(self) -> str:
        """Return the name of the dtype."""
        return str(dense_of(self._struct()).dtype)

    def astype(self, dtype: Any) -> "Variable":
        """Convert the variable to another dtype."""
        return self.program.apply(layers.cast, (self, dtype))

    def check(self) -> None:
        """Check that the variable is complete, before its program runs; subclasses raise errors."""

    def check_assigned(self) -> None:
        """Check that the variable has a value: it was created with one, or has been assigned.

        Raises:
          ProgramError: the variable has no value.
        """
        if not self.structs:
            raise errors.ProgramError(f"the variable {self.name!r} holds nothing yet; assign something to it first")

    def check_assignable(self) -> None:
        """Check that layers may assign the variable; subclasses raise errors."""

    def held(self) -> Any:
        """Return the value of the variable before the program assigns it, inside a run.

        Raises:
          ProgramError: the variable is not kept between runs.
        """
        raise errors.ProgramError(
            f"the variable {self.name!r} has no value here: its layer stands in a block that is over, or in another "
            f"program; make it before the block, and give it its value there: layers.assign(x, output=variable)"
        )

    def _leading(self) -> int:
        """Return the number of first dimensions of the padded array that `shape` shows as rows: batch and steps."""
        return 1 + self.lod_level if self.lod_level else 0

    def _both(self) -> tuple[Any, ...]:
        if not self.declared:
            self.check_assigned()
        return self.structs or self.declared

    def _struct(self) -> Any:
        return self._both()[0]

    def __getitem__(self, index: Any) -> "Variable":
        return self.program.apply(operator.getitem, (self, index))

    def __len__(self) -> int:
        raise errors.ArgumentTypeError(f"{self!r} has no length while it is written down; use layers.shape(x)")

    def __iter__(self) -> Any:
        raise errors.ArgumentTypeError(f"{self!r} cannot be gone through; use layers.unstack(x) or layers.split(x, 2)")

    def __bool__(self) -> bool:
        """Return True: as in Fluid, `if attn_bias:` asks whether there is a variable; comparisons raise an error."""
        if self.dtype != "bool":
            return True
        raise errors.ArgumentTypeError(
            f"{self!r} is neither true nor false while it is written down; choose in the program: layers.Switch(), "
            f"layers.cond(...) or layers.where(...)"
        )

    def __repr__(self) -> str:
        both = self.structs or self.declared
        shown = f"{self.dtype}{list(self.shape)}" if both and is_value(both[0]) else "no array"
        return f"Variable({self.name}: {shown})"


class Persistent(Variable):
    """A variable whose value is kept between runs: a parameter, a moving average, a counter.

    Args:
      program: the Program of the variable.
      spec: its declaration.

    Attributes:
      spec: its declaration.
      counts: True if runs in test mode change the value as well, as for the counts of an evaluator.

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
        self.counts = False

    @property
    def trainable(self) -> bool:
        """Return whether optimizers may change the variable."""
        return bool(self.spec.trainable)

    @property
    def is_parameter(self) -> bool:
        """Return whether the variable is a parameter, and not a state that layers update."""
        return self.spec.trainable is not None

    @property
    def is_original_parameter(self) -> bool:
        """Return whether Fluid counts the variable as a parameter: also states of layers, such as a moving mean."""
        return self.is_parameter or bool(self.spec.layer)

    def held(self) -> Any:
        """Return the value from the Scope; declare the parameter or state in the running program."""
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


SEQUENCES = (core.SequenceBatch, core.NestedSequenceBatch)


def is_leaf(value: Any) -> bool:
    """Return whether a value belongs to one variable as a whole, although JAX sees a tree of arrays."""
    return isinstance(value, (*SEQUENCES, TensorArray, Beams))


def is_value(value: Any) -> bool:
    """Return whether a value can be fetched, which arrays, SequenceBatches and NestedSequenceBatches can."""
    return isinstance(value, SEQUENCES) or (hasattr(value, "dtype") and hasattr(value, "shape"))


def leaves(tree: Any) -> list[Any]:
    """Return the values in a layer's result, in order."""
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def dense_of(value: Any) -> Any:
    """Return the padded array of a batch of sequences; return an array unchanged. Shapes are treated as arrays."""
    return value.data if isinstance(value, SEQUENCES) else value


def single_steps(tree: Any) -> Any:
    """Replace sequences of one step in a tree by rows.

    A sequence of any other length becomes a row of NaN, of the smallest integer, or of False.
    """

    def rows(value: Any) -> Any:
        if not isinstance(value, core.SequenceBatch):
            return value
        first = core.filled(value, 0)[:, 0]
        is_single = (value.lengths == 1).reshape(-1, *[1] * (first.ndim - 1))
        if first.dtype == bool:
            return first & is_single
        nothing = jnp.nan if jnp.issubdtype(first.dtype, jnp.inexact) else jnp.iinfo(first.dtype).min
        return jnp.where(is_single, first, nothing)

    return jax.tree.map(rows, tree, is_leaf=is_leaf)


def with_known_sizes(tree: Any, unknown: int) -> Any:
    """Resize arrays in a tree: an inner size of `unknown` becomes the known size of another array in this dimension.

    Args:
      tree: arrays; only arrays of the same rank are compared.
      unknown: the trial batch size, which stands for unknown sizes.
    """
    arrays = [value for value in leaves(tree) if is_value(value)]

    def size(i: int, own: int, rank: int) -> int:
        known = [a.shape[i] for a in arrays if a.ndim == rank and a.shape[i] not in (1, unknown)]
        return known[0] if i and own == unknown and known else own

    def resized(value: Any) -> Any:
        if not is_value(value):
            return value
        return jnp.resize(value, tuple(size(i, own, value.ndim) for i, own in enumerate(value.shape)))

    return jax.tree.map(resized, tree, is_leaf=is_leaf)


def at_batch(first: Any, second: Any, batches: tuple[int, int], batch: int) -> Any:
    """Return the shape of a value at another batch size than the two trial batch sizes.

    Args:
      first: the shape at the first trial batch size.
      second: the shape at the second trial batch size.
      batches: the two trial batch sizes.
      batch: the other batch size, which may be symbolic.
    """

    def size(a: int, b: int) -> Any:
        slope = (b - a) // (batches[1] - batches[0])
        return a + slope * (batch - batches[0]) if slope else a

    def struct(a: Any, b: Any) -> Any:
        return jax.ShapeDtypeStruct(tuple(map(size, a.shape, b.shape)), a.dtype)

    return jax.tree.map(struct, first, second)
