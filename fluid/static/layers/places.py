"""Blocks that programs of 2017 run on several devices: ParallelDo; here one device computes the whole batch."""

import contextlib
from typing import Any

from fluid import errors
from fluid.place import CPUPlace, CUDAPlace
from fluid.static.framework import cpu_places, cuda_places
from fluid.static.tape.variable import Variable


def get_places(device_count: int | None = None, device_type: str | None = None) -> list[CPUPlace] | list[CUDAPlace]:
    """Return places for `ParallelDo`, which computes the whole batch on the device of the Executor.

    Args:
      device_count: the number of places; by default one for a CPU, and one for each GPU.
      device_type: "CPU" or "CUDA"; by default "CUDA" if there is a GPU.

    Raises:
      ArgumentError: `device_type` is neither.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.layers.get_places(device_count=2, device_type="CPU")
      [CPUPlace(), CPUPlace()]
    """
    if device_type not in (None, "CPU", "CUDA"):
        raise errors.ArgumentError(f'get_places(device_type={device_type!r}): expected "CPU" or "CUDA"')
    if device_type == "CPU" or (device_type is None and not cuda_places()):
        return cpu_places(device_count)
    return cuda_places(range(device_count) if device_count else None)


class ParallelDo:
    """A block that Fluid computes on several devices; here one device computes the whole batch, with equal results.

    Args:
      places: accepted for programs written for Fluid, but has no effect.
      use_nccl: accepted for programs written for Fluid, but has no effect.
      name: accepted for programs written for Fluid, but has no effect.

    Returns:
      When called: the outputs of the block, one variable or a list of several.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()):
      ...     x = fluid.layers.data("x", shape=[4])
      ...     pd = fluid.layers.ParallelDo(fluid.layers.get_places())
      ...     with pd.do():
      ...         pd.write_output(fluid.layers.fc(pd.read_input(x), size=2))
      ...     pd().shape
      (-1, 2)
    """

    def __init__(self, places: Any = None, use_nccl: bool = False, name: str | None = None):
        del places, use_nccl, name
        self._outputs: list[Variable] = []

    def do(self) -> contextlib.AbstractContextManager[None]:
        """Return the context that records the block: `with pd.do():`."""
        return contextlib.nullcontext()

    def read_input(self, var: Variable) -> Variable:
        """Return the variable itself: the block sees all rows."""
        return var

    def write_output(self, var: Variable) -> None:
        """Declare a variable of the block as its result."""
        self._outputs.append(var)

    def __call__(self) -> Any:
        """Return the outputs.

        Raises:
          ProgramError: the block has no outputs.
        """
        if not self._outputs:
            raise errors.ProgramError("layers.ParallelDo has no outputs; in its block, call pd.write_output(loss)")
        return self._outputs[0] if len(self._outputs) == 1 else list(self._outputs)
