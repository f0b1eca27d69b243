"""PaddlePaddle Fluid's profiler functions; JAX records profiles for TensorBoard's plugin, XProf or Perfetto."""

import contextlib
import math
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any

import jax

from fluid import errors
from fluid._util.paths import PathLike, local_path
from fluid.place import Mesh
from fluid.static.executor import plain_program

__all__ = ["cuda_profiler", "memory_usage", "profiler", "reset_profiler", "start_profiler", "stop_profiler"]

# A list with one item, the temporary folder of the running profile; empty if no profile runs.
_running: list[str] = []


@contextlib.contextmanager
def profiler(
    state: str = "All",
    sorted_key: str | None = None,
    profile_path: PathLike = "profile",
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Record a profile of the code in a `with` block.

    Args:
      state: accepted for programs written for Fluid, but has no effect: JAX always records the host and its devices.
      sorted_key: accepted for programs written for Fluid, but has no effect: the viewer sorts.
      profile_path: the directory for the profile.
      tracer_option: accepted for programs written for Fluid, but has no effect: the viewer shows all levels.

    Raises:
      ArgumentError: another profile is running.

    Example:
      >>> import pathlib
      >>> import fluid.static as fluid
      >>> with fluid.profiler.profiler("CPU", "total", "profiles"):
      ...     results = fluid.Executor(fluid.CPUPlace()).run(fluid.Program())
      >>> any(pathlib.Path("profiles").rglob("*.xplane.pb"))
      True
    """
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


@contextlib.contextmanager
def cuda_profiler(output_file: PathLike, output_mode: str | None = None, config: Any = None) -> Iterator[None]:
    """Record a profile of the code in a `with` block into the directory `output_file`; other arguments have no effect.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.profiler.cuda_profiler("profiles"):
      ...     results = fluid.Executor(fluid.CPUPlace()).run(fluid.Program())
    """
    del output_mode, config
    with profiler(profile_path=output_file):
        yield


def start_profiler(state: str = "All", tracer_option: str = "Default") -> None:
    """Start to record a profile until `stop_profiler`; the arguments have no effect.

    Raises:
      ArgumentError: another profile is running.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.profiler.start_profiler("All")
      >>> fluid.profiler.stop_profiler("total", "profiles")
    """
    del state, tracer_option
    if _running:
        raise errors.ArgumentError("start_profiler: a profile is recorded already; end it first: stop_profiler()")
    folder = tempfile.mkdtemp()
    jax.profiler.start_trace(folder)
    _running.append(folder)


def stop_profiler(sorted_key: str | None = None, profile_path: PathLike = "profile") -> None:
    """Stop recording, and write the profile into the directory `profile_path`; `sorted_key` has no effect.

    Raises:
      ArgumentError: no profile is running.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.profiler.stop_profiler()
      Traceback (most recent call last):
        ...
      fluid.errors.ArgumentError: stop_profiler: no profile is recorded; begin with start_profiler()
    """
    del sorted_key
    if not _running:
        raise errors.ArgumentError("stop_profiler: no profile is recorded; begin with start_profiler()")
    folder = _running.pop()
    jax.profiler.stop_trace()
    shutil.copytree(folder, local_path(profile_path), dirs_exist_ok=True)
    shutil.rmtree(folder)


def reset_profiler() -> None:
    """Discard the data of the running profile, and start a new profile; do nothing without a running profile.

    Example:
      >>> import fluid.static as fluid
      >>> with fluid.profiler.profiler("CPU", "total", "profiles"):
      ...     fluid.profiler.reset_profiler()
    """
    if _running:
        jax.profiler.stop_trace()
        shutil.rmtree(_running.pop())
        start_profiler()


_UNITS = ("B", "KB", "MB", "GB")


def memory_usage(program: Any, batch_size: int) -> tuple[float, float, str]:
    """Return a lower and an upper bound of the memory that a training step of a program needs.

    The function compiles the training step, but creates no arrays; see `fluid.plan`.

    Args:
      program: the program, which minimises a loss.
      batch_size: the number of rows of a minibatch.

    Returns:
      The memory of parameters, optimizer state and minibatch; the memory at the peak, with all intermediate values; and
      the unit of both, for example "MB".

    Raises:
      ArgumentTypeError: the program minimises no loss.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     loss = fluid.layers.mean(fluid.layers.fc(fluid.layers.data("x", shape=[64]), size=128))
      ...     pairs = fluid.optimizer.Adam(1e-3).minimize(loss)
      >>> lower, upper, unit = fluid.contrib.memory_usage(main, batch_size=32)
      >>> lower <= upper, unit
      (True, 'KB')
    """
    from fluid.parallel.planner import plan  # Imported here, because few programs estimate memory.

    found = plain_program(program)
    (step,) = plan(found.snapshot(), None, batch_size, Mesh(data=1), precision=found.precision).candidates
    lower = step.parameters + step.slots + step.feed
    power = min(int(math.log(max(step.peak, 1), 1024)), len(_UNITS) - 1)
    return lower / 1024**power, step.peak / 1024**power, _UNITS[power]
