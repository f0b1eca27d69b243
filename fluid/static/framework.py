"""Names of `fluid.framework` that PaddlePaddle Fluid programs use."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from fluid import core
from fluid.place import CPUPlace, CUDAPlace
from fluid.static.tape.calls import outer_environment
from fluid.static.tape.program import Program, default_main_program, default_startup_program, program_guard
from fluid.static.tape.variable import Persistent as Parameter
from fluid.static.tape.variable import Variable

__all__ = [
    "Parameter",
    "Program",
    "Variable",
    "cpu_places",
    "cuda_places",
    "default_main_program",
    "default_startup_program",
    "in_dygraph_mode",
    "memory_optimize",
    "name_scope",
    "program_guard",
    "release_memory",
    "shared",
]


@contextlib.contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Do nothing: as in PaddlePaddle Fluid, names of parameters and variables have no prefix.

    Args:
      prefix: shown in PaddlePaddle's listing of a program only.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     with fluid.name_scope("encoder"):
      ...         fluid.layers.fc(fluid.layers.data("x", shape=[2]), size=1)
      Variable(fc_0.tmp_1: float32[-1, 1])
    """
    del prefix
    yield


def shared(function: Callable[..., Any] | None = None, *, name: str | None = None) -> Any:
    """Make every call of a function use the same parameters and states, as `fluid.shared` does in program functions.

    Args:
      function: calls layers; takes and returns variables. It must not assign to variables from outside.
      name: prefix of the parameters; by default the name of the function.

    Returns:
      The function, shared; or a decorator, without `function`.

    Example:
      >>> import fluid.static as fluid
      >>> @fluid.shared
      ... def encoder(x):
      ...     return fluid.layers.fc(x, size=3)
      >>> with fluid.program_guard(fluid.Program(), fluid.Program()), fluid.unique_name.guard():
      ...     both = encoder(fluid.layers.data("a", shape=[4])) - encoder(fluid.layers.data("b", shape=[4]))
      ...     [v.name for v in fluid.default_main_program().all_parameters()]
      ['encoder/fc_0.w_0', 'encoder/fc_0.b_0']
    """
    if function is None:
        return functools.partial(shared, name=name)
    net = core.shared(function, name=name)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return default_main_program().apply(_call_shared, (net, *args), kwargs)

    return call


def _call_shared(net: core.Shared, *args: Any, **kwargs: Any) -> Any:
    """Call a shared function inside a run; replace variables among its results by their values."""
    return outer_environment(net.name).read(net(*args, **kwargs))


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Return one CPUPlace for each of `device_count` processors, one by default.

    Example:
      >>> import fluid.static as fluid
      >>> len(fluid.cpu_places(2))
      2
    """
    return [CPUPlace()] * (device_count or 1)


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """Return the places of the GPUs with these numbers; of all GPUs by default.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.cuda_places([1])
      [CUDAPlace(device_id=1)]
    """
    every = [i for i, device in enumerate(jax.devices()) if device.platform == "gpu"]
    return [CUDAPlace(i) for i in (every if device_ids is None else device_ids)]


def in_dygraph_mode() -> bool:
    """Return False: layers are recorded, or called in a program function.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.in_dygraph_mode()
      False
    """
    return False


def memory_optimize(input_program: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing: XLA shares memory in every program.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.memory_optimize(fluid.default_main_program())
    """


def release_memory(input_program: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing, like `memory_optimize`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.release_memory(fluid.default_main_program())
    """
