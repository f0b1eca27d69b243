"""Layout: the interface through which a Session and the input pipeline put arrays on devices.

`fluid.place.OneDevice` is the layout on one device, `fluid.parallel.OnMesh` the layout on a mesh of devices, and
`fluid.parallel.OnDevices` the layout with layers on different devices.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

import jax

from fluid.core.program import Program


class TableRows(Protocol):
    """A reader and writer of some rows of an embedding table, or of its optimizer state, inside a compiled step.

    The row ids `[n]` are ascending and unique. Padding ids at the end equal the number of rows of the table.
    """

    def read(self, array: Any, ids: Any) -> Any:
        """Return the rows with the indices `ids` `[n]` of an embedding table `array` `[count, ...]`."""

    def beside(self, values: Any) -> Any:
        """Convert values for rows of a table, such as gradients, to the shape and sharding of the rows.

        The argument `values`, `[n, ...]`, has one value for each row that the method `read` returns.
        """

    def write(self, array: Any, ids: Any, rows: Any) -> Any:
        """Return the table `array` with the rows `ids` replaced by `rows`, which have the shape that `read` returns."""


class Gathering(Protocol):
    """An interface through which a compiled step collects the shards of an array on each device, to compute with it."""

    def gather(self, name: str, array: Any) -> Any:
        """Gather a parameter that is sharded over the mesh axis "fsdp", so that each device has all of it.

        Parameters of repeated blocks, which are stacked in one array, stay sharded until a block reads its slice.
        """

    def gathering_again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` with a backward pass that gathers sharded parameters again.

        This saves memory: gathered parameters of the forward pass are not stored for the backward pass.
        """

    def replicate(self, value: Any) -> Any:
        """Replicate all arrays of the pytree `value` on every device."""

    def table(self, name: str) -> TableRows | None:
        """Return an object that accesses the sharded rows of an embedding table; None if each device has all rows."""


class Layout(Protocol):
    """An interface that puts the arrays of a Session on devices and compiles steps for these devices."""

    @property
    def device(self) -> jax.Device:
        """The device of the arrays; with several devices, one device of this process."""

    @property
    def mesh(self) -> jax.sharding.Mesh | None:
        """The device mesh over which arrays are sharded; None on one device or with layers on different devices."""

    @property
    def in_parts(self) -> bool:
        """True if layers are on different devices, so that a step is compiled in parts, one for each device."""

    @property
    def gathering(self) -> Gathering | None:
        """An object that gathers sharded arrays in a compiled step, before layers read them; None without a mesh."""

    def add(self, program: Program) -> None:
        """Register a program and check the shardings of its parameters, before its arrays are created.

        Raises:
          ArgumentError: a parameter cannot be divided as its sharding rule requires.
        """

    def check(self, names: Collection[str]) -> None:
        """Raise an error if one of the user's sharding rules matches no array; all programs must be registered before.

        Raises:
          UnknownNameError: a sharding rule matches no name.
        """

    def place(self, value: Any) -> Any:
        """Put a pytree of arrays on the device; with a device mesh, put a full copy on every device."""

    def replace(self, new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
        """Return copies of the arrays `new`, each with the device and sharding of the array in `old` of equal name."""

    def take(self, feed: Mapping[str, Any]) -> dict[str, Any]:
        """Copy the input arrays of a step to the devices, or to host memory if the step reads them faster there.

        Steps run asynchronously. Without the copy, a data reader that reuses its buffer would change the data of a
        step in flight.
        """

    def feed_sharding(self, name: str, shape: tuple[int, ...]) -> jax.sharding.Sharding | None:
        """Return the sharding that the method `take` gives to an input array when it copies the array to the devices.

        None stands for an array that stays in host memory.
        """

    def rows_here(self, count: int) -> Collection[int]:
        """Return the indices of the rows of a minibatch that devices of this process hold."""

    def initial(self, program: Program, root: jax.Array | None) -> dict[str, Any]:
        """Return the initial parameters and states of a program, by name."""

    def slots(self, rule: Any, parameters: Mapping[str, Any]) -> Any:
        """Return the initial optimizer state for `parameters`; `rule` is the update rule of an optimizer."""

    def jit_train(self, step: Callable[..., Any], state: Any) -> Any:
        """Compile a pure training step `step(state, constants, feeds, overrides)`, which donates `state`."""

    def jit_test(self, step: Callable[..., Any]) -> Any:
        """Compile an inference step, a pure function `step(arrays, feeds, *rest)` that changes no parameters."""
