"""The names of PaddlePaddle's `fluid.framework` that programs use, such as Program and name_scope."""

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from fluid import core, errors
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
    "require_version",
    "shared",
]

_VERSION = "1.8.5"  # `fluid.static` imitates the API of this PaddlePaddle version.


@contextlib.contextmanager
def name_scope(prefix: str | None = None) -> Iterator[None]:
    """Do nothing: as in PaddlePaddle Fluid, names of parameters and variables have no prefix.

    Args:
      prefix: accepted but unused; PaddlePaddle shows the prefix only when it prints a program.

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
    """Make every call of a function use the same parameters and states; see `fluid.shared`.

    Args:
      function: a function that calls layers, and takes and returns variables. The function must not assign to
        variables that were created outside of it.
      name: prefix of the names of the parameters; by default the name of the function.

    Returns:
      The shared function; without `function`, a decorator.

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
    """Call a shared function (its calls share parameters) while a program runs.

    In the function's result, replace each variable by its current value."""
    return outer_environment(net.name).read(net(*args, **kwargs))


def _get_var(name: str, program: Program | None = None) -> Variable:
    return (program or default_main_program()).var(name)


def require_version(min_version: str, max_version: str | None = None) -> None:
    """Check that a program was written for a PaddlePaddle version that `fluid.static` imitates: 1.8.5 or earlier.

    Args:
      min_version: the first version of PaddlePaddle that the program runs with, such as `"1.6.0"`.
      max_version: the last version that the program runs with; by default any version.

    Raises:
      ArgumentError: the program needs a later version than 1.8.5, or an earlier one; or a version has a part that is
        not a number.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.require_version("1.6.0")
    """
    first, last, here = (_numbers(v) for v in (min_version, max_version or _VERSION, _VERSION))
    if not first <= here <= last:
        span = f"{min_version} to {max_version}" if max_version else f"{min_version} or later"
        raise errors.ArgumentError(
            f"the program asks for PaddlePaddle {span}, and fluid.static has the names of {_VERSION}; take the version "
            f"of the program that was written for PaddlePaddle 1.x, or try without fluid.require_version(...)"
        )


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")
    if not 1 <= len(parts) <= 4 or not all(part.isdigit() for part in parts):
        raise errors.ArgumentError(f"found {version!r}, expected the numbers of a version: require_version('1.6.0')")
    return tuple(int(part) for part in parts + ["0"] * (4 - len(parts)))


def cpu_places(device_count: int | None = None) -> list[CPUPlace]:
    """Return a list of `device_count` CPUPlaces; one by default.

    Example:
      >>> import fluid.static as fluid
      >>> len(fluid.cpu_places(2))
      2
    """
    return [CPUPlace()] * (device_count or 1)


def cuda_places(device_ids: Sequence[int] | None = None) -> list[CUDAPlace]:
    """Return a CUDAPlace for each GPU index in `device_ids`; by default for all GPUs.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.cuda_places([1])
      [CUDAPlace(device_id=1)]
    """
    every = [i for i, device in enumerate(jax.devices()) if device.platform == "gpu"]
    return [CUDAPlace(i) for i in (every if device_ids is None else device_ids)]


def in_dygraph_mode() -> bool:
    """Return False: fluid has no dygraph mode (PaddlePaddle's eager execution).

    Example:
      >>> import fluid.static as fluid
      >>> fluid.in_dygraph_mode()
      False
    """
    return False


def memory_optimize(input_program: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing: XLA already reuses memory in every program.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.memory_optimize(fluid.default_main_program())
    """


def release_memory(input_program: Any, *args: Any, **kwargs: Any) -> None:
    """Do nothing: XLA already releases unused memory in every program.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.release_memory(fluid.default_main_program())
    """
