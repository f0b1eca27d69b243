"""Layout: the devices of the arrays of a Session. The Session and the input pipeline use every layout in one way.

`fluid.place.OneDevice` is the layout on one device, `fluid.parallel.OnMesh` the layout on a mesh of devices, and
`fluid.parallel.OnDevices` the layout with layers on different devices.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import jax

from fluid.core.program import Program


class TableRows(Protocol):
    """A reader and writer of rows of a table, or of its optimizer state, inside a compiled step.

    The ids `[n]` of the rows are ascending and unique, then padding that equals the number of rows.
    """

    def read(self, array: Any, ids: Any) -> Any:
        """Return rows of a table `[count, ...]`."""

    def beside(self, values: Any) -> Any:
        """Return values `[n, ...]` of the rows in the shape of the result of `read`."""

    def write(self, array: Any, ids: Any, rows: Any) -> Any:
        """Return the table with new rows, which have the shape of the result of `read`."""


class Gathering(Protocol):
    """Reads of sharded arrays inside a compiled step."""

    def gather(self, name: str, array: Any) -> Any:
        """Return a parameter that is not sharded over "fsdp"; a stack of blocks stays sharded until a block reads it.

        Args:
          name: the name of the parameter.
          array: the parameter, or the slice of a stack for one block.
        """

    def gathering_again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, whose backward pass gathers parameters again instead of keeping whole copies."""

    def replicate(self, value: Any) -> Any:
        """Replicate the arrays of a tree on every device."""

    def table(self, name: str) -> TableRows | None:
        """Return the reader and writer of a table with divided rows; None if each device has all rows."""


class Layout(Protocol):
    """The devices of the arrays of a Session."""

    @property
    def device(self) -> jax.Device:
        """The device of the arrays; with several devices, one of this process."""

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The mesh of devices; None without a mesh."""

    @property
    def in_parts(self) -> bool:
        """True if each device compiles the part of a step that it runs."""

    @property
    def gathering(self) -> Gathering | None:
        """Reads sharded arrays inside a compiled step; None without a mesh."""

    def add(self, program: Program) -> None:
        """Register a program before its arrays are created.

        Raises:
          ArgumentError: a parameter cannot be divided as its rule says.
        """

    def check(self, names: Collection[str]) -> None:
        """Check the names in the user's `shardings`, once all programs are known.

        Args:
          names: the names of all arrays.

        Raises:
          UnknownNameError: a rule matches no name.
        """

    def place(self, value: Any) -> Any:
        """Put a tree of arrays on the device; with a mesh, a whole copy on every device."""

    def replace(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of arrays, placed like the arrays that they replace.

        Args:
          new: the new arrays by name, on the host or a device.
          old: the replaced arrays by name.
        """

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Copy a feed from the caller's memory to the devices, or to host memory if a step reads it faster there.

        Steps run asynchronously. Without the copy, a reader that reuses its buffer would change the data of a step in
        flight.
        """

    def feed_sharding(self, name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding | None:
        """Return the sharding of a feed's array after `take`; None for host memory."""

    def rows_here(self, count: int) -> Collection[int]:
        """Return the indices of the rows, of a minibatch of `count` rows, that are on devices of this process."""

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """Return the initial values of a program's parameters and states, by name; zeros if `root` is None."""

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the initial optimizer state of an update rule for `parameters`."""

    def jit_train(self, step: Callable[..., Any], state: Any) -> Any:
        """Compile a pure training step `step(state, constants, feeds, overrides)`, which donates the arrays of `state`.

        Args:
          step: returns the new state and results.
          state: the arrays of the first call; the new state is placed like them.
        """

    def jit_test(self, step: Callable[..., Any]) -> Any:
        """Compile a pure step `step(arrays, feeds, *rest)`, which changes no arrays."""
