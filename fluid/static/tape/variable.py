"""Variables: placeholders for arrays in recorded programs; and functions for the values of variables in a run.

A value is an array, a batch of sequences, or a TensorArray (a list of arrays that a loop writes). The functions of this
module read and convert values of all three kinds.
"""

import operator
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fluid import core, errors, layers
from fluid.layers.control.tensor_array import TensorArray
from fluid.layers.structured.beam import Beams

# The type of a Program. This module cannot import the class, because program.py imports this module.
Owner = Any


class Variable:
    """A placeholder for a value of a recorded program: for an array, a batch of sequences or a TensorArray.

    Layers return variables, and operators and `[...]` on variables are layers too. Layers that assign, for example
    `layers.assign(x, output=y)`, change the value of a variable.

    Args:
      program: the Program of the variable.
      name: the name by which the value can be fetched and replaced.
      structs: the shape and dtype of the value, evaluated at two trial batch sizes.
      block: the Block whose call computes the variable.

    Attributes:
      stop_gradient: True if no gradient flows through the variable.
      persistable: True if the scope stores the value between runs: `global_scope().find_var(name)` returns the value.
      constant: the number that all elements equal; None if unknown.
      unassigned: True if the variable was created without a value, for a later assignment.
      declared: the shape that an unassigned variable shows, at two trial batch sizes; empty if unknown.
      lengths_of: the name of the feed whose sequence lengths this variable has; "" if unknown.
      fed_steps: the number of time steps of the feed `lengths_of` that make one step of this variable; above 1 after
        `sequence_reshape`.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program()), fluid.unique_name.guard():
      ...     x = fluid.layers.data("x", shape=[4])
      ...     h = fluid.layers.fc(x, size=2) * 2.0
      >>> h.shape, h.dtype
      ((-1, 2), 'float32')
    """

    # None makes NumPy arrays defer to `Variable`: `array * variable` calls `Variable.__rmul__`.
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
        """Return the program of the variable, because a program serves as its own block (list of calls)."""
        return self.program

    @property
    def is_global(self) -> bool:
        """Return whether a layer outside all loops and branches computes the variable."""
        return self.made_in is not None and self.made_in.outer is None

    @property
    def follows_batch(self) -> bool:
        """Return whether the first dimension of the value grows with the batch size."""
        return len({dense_of(struct).shape[:1] for struct in self.structs if is_value(struct)}) == 2

    @property
    def lod_level(self) -> int:
        """Return the LoD level: 0 for arrays, 1 for sequences, 2 for sequences of sequences."""
        kinds = {core.SequenceBatch: 1, core.NestedSequenceBatch: 2}
        return kinds.get(type(self._struct()), 0)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the variable, with -1 for each size that depends on the batch size.

        For sequences, the steps of all sequences count as rows: steps of 8 elements have the shape `(-1, 8)`.
        """
        first, second = (dense_of(struct).shape[self._leading() :] for struct in self._both())
        sizes = [a if a == b else -1 for a, b in zip(first, second, strict=True)]
        return (-1, *sizes) if self.lod_level else tuple(sizes)

    @property
    def dtype(self) -> str:
        """Return the name of the dtype, for example "float32"."""
        return str(dense_of(self._struct()).dtype)

    def astype(self, dtype: Any) -> "Variable":
        """Return the variable converted to `dtype`, by `layers.cast`."""
        return self.program.guarded().apply(layers.cast, (self, dtype))

    def check(self) -> None:
        """Do nothing; subclasses raise an error before a run if, for example, the capacity of an array is unknown."""

    def check_assigned(self) -> None:
        """Check that the variable has a value, from its creation or from an assignment.

        Raises:
          ProgramError: the variable has no value.
        """
        if not self.structs:
            raise errors.ProgramError(f"the variable {self.name!r} holds nothing yet; assign something to it first")

    def check_assignable(self) -> None:
        """Do nothing: layers may assign the variable; subclasses that layers may not assign raise an error."""

    def held(self) -> Any:
        """Return the value of the variable that is stored between runs of the program.

        A run reads this value if no recorded call has assigned the variable yet.

        Raises:
          ProgramError: always, unless a subclass such as Persistent overrides the method.
        """
        raise errors.ProgramError(
            f"the variable {self.name!r} has no value here: its layer stands in a block that is over, or in another "
            f"program; make it before the block, and give it its value there: layers.assign(x, output=variable)"
        )

    def _leading(self) -> int:
        return 1 + self.lod_level if self.lod_level else 0

    def _both(self) -> tuple[Any, ...]:
        if not self.declared:
            self.check_assigned()
        return self.structs or self.declared

    def _struct(self) -> Any:
        return self._both()[0]

    def __getitem__(self, index: Any) -> "Variable":
        return self.program.guarded().apply(operator.getitem, (self, index))

    def __len__(self) -> int:
        raise errors.ArgumentTypeError(f"{self!r} has no length while it is written down; use layers.shape(x)")

    def __iter__(self) -> Any:
        raise errors.ArgumentTypeError(f"{self!r} cannot be gone through; use layers.unstack(x) or layers.split(x, 2)")

    def __bool__(self) -> bool:
        """Return True, so `if attn_bias:` checks for None, as in PaddlePaddle; raise an error for a bool variable."""
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
    """A variable whose value the scope stores between runs: a parameter, a moving average, a counter.

    Args:
      program: the Program of the variable.
      spec: the declaration of the parameter or state.

    Attributes:
      spec: the declaration of the parameter or state.
      counts: True if runs in test mode also change the value, for example the counters of an evaluator.

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
        """Return whether optimizers may update the variable."""
        return bool(self.spec.trainable)

    @property
    def is_parameter(self) -> bool:
        """Return whether the variable is a parameter; False for a state that layers update."""
        return self.spec.trainable is not None

    @property
    def is_original_parameter(self) -> bool:
        """Return whether PaddlePaddle treats the variable as a parameter: also True for a layer's moving mean."""
        return self.is_parameter or bool(self.spec.layer)

    def held(self) -> Any:
        """Declare this variable as a parameter or state of the running program, and return its stored value."""
        spec = self.spec
        if spec.trainable is None:
            return core.create_state(spec.name, spec.shape, spec.dtype, spec.initializer)
        return core.create_parameter(spec.name, spec.shape, spec.dtype, spec.initializer, spec.trainable, spec.settings)


def _binary(function: Callable[[Any, Any], Any], swapped: bool) -> Callable[[Variable, Any], Variable]:
    def method(self: Variable, other: Any) -> Variable:
        return self.program.guarded().apply(function, (other, self) if swapped else (self, other))

    return method


def _unary(function: Callable[[Any], Any]) -> Callable[[Variable], Variable]:
    def method(self: Variable) -> Variable:
        return self.program.guarded().apply(function, (self,))

    return method


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(Variable, f"__{_name}__", _binary(getattr(operator, _name), swapped=False))
    setattr(Variable, f"__r{_name}__", _binary(getattr(operator, _name), swapped=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(Variable, f"__{_name}__", _binary(getattr(operator, _name), swapped=False))
setattr(Variable, "__neg__", _unary(operator.neg))  # noqa: B010


SEQUENCES = (core.SequenceBatch, core.NestedSequenceBatch)


def is_leaf(value: Any) -> bool:
    """Return whether `value` is a container of arrays that one variable holds, for example a SequenceBatch."""
    return isinstance(value, (*SEQUENCES, TensorArray, Beams))


def is_value(value: Any) -> bool:
    """Return whether a value can be fetched: True for arrays, SequenceBatches and NestedSequenceBatches."""
    return isinstance(value, SEQUENCES) or (hasattr(value, "dtype") and hasattr(value, "shape"))


def leaves(tree: Any) -> list[Any]:
    """Return the values in a layer's result as a flat list; a SequenceBatch or TensorArray is one value."""
    return jax.tree.leaves(tree, is_leaf=is_leaf)


def dense_of(value: Any) -> Any:
    """Return the padded array of a batch of sequences; return an array or ShapeDtypeStruct unchanged."""
    return value.data if isinstance(value, SEQUENCES) else value


def single_steps(tree: Any) -> Any:
    """Replace each batch of sequences in a pytree by a dense array, whose rows are the first steps of the sequences.

    A sequence whose length is not 1 becomes a row of NaN, of the smallest integer, or of False.
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
    """Replace unknown sizes in the shapes of arrays by known sizes of other arrays in the pytree.

    A size is unknown if it equals `unknown`. The new size comes from an array of equal rank, whose size in this
    dimension is known. The first size of each shape stays unchanged.
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
    """Return the shape of a value at the batch size `batch`, computed from its shapes at two trial batch sizes."""

    def size(a: int, b: int) -> Any:
        slope = (b - a) // (batches[1] - batches[0])
        return a + slope * (batch - batches[0]) if slope else a

    def struct(a: Any, b: Any) -> Any:
        return jax.ShapeDtypeStruct(tuple(map(size, a.shape, b.shape)), a.dtype)

    return jax.tree.map(struct, first, second)
