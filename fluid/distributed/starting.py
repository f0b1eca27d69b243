"""initialize: join the other processes of a training."""

import logging
import os
import platform
import warnings
from typing import Any

import jax
import jaxlib.version
import numpy as np

from fluid import errors
from fluid.distributed.cluster import TIMEOUT, Membership, membership
from fluid.distributed.failing import end_together
from fluid.distributed.group import Group, group, join
from fluid.distributed.meeting import loopback, meet

log = logging.getLogger("fluid")


def initialize(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    *,
    timeout: float | None = None,
    heartbeat: int = 30,
) -> Group:
    """Join the other processes of this training, before JAX computes anything.

    `python -m fluid launch` has already called this function. Otherwise, a script calls it in its first lines, in each
    process. Without arguments, it reads the variables `FLUID_COORDINATOR`, `FLUID_PROCESSES` and `FLUID_PROCESS`, or
    the variables of SLURM, Open MPI, Kubernetes or a Cloud TPU. Without any of them there is one process, and nothing
    changes; so a script may always call it.

    After this call, the devices of all processes form one mesh: `fluid.Trainer(..., parallel=True)`. When one process
    fails, all processes end. Only process 0 logs.

    Args:
      coordinator: "host:port" at which process 0 can be reached; the port must be free there.
      processes: number of processes.
      process: index of this process, from 0.
      timeout: seconds for which a process waits for the others, here and in each later exchange; by default the
        variable `FLUID_TIMEOUT`, or 600.
      heartbeat: seconds without a sign of life after which a process counts as dead, and all others end.

    Returns:
      The Group of all processes.

    Raises:
      ArgumentError: only some of `coordinator`, `processes` and `process` are given, or one is invalid.
      DistributedError: a process does not arrive in time, two processes have one index, the port is in use, the
        processes have different versions, or JAX has already computed something.

    Example:
      >>> import fluid
      >>> fluid.distributed.initialize()  # in `python train.py`
      process 0 of 1
    """
    timeout = float(os.environ.get(TIMEOUT, 600)) if timeout is None else timeout
    place = membership(coordinator, processes, process)
    known = group()
    if known.size > 1:
        if place is not None and (place.process, place.processes) != (known.index, known.size):
            raise errors.DistributedError(f"this is {known!r} already, and cannot become another one")
        return known
    if place is None or place.processes == 1:
        return known
    _configure(place)
    meet(place, _versions(), timeout)
    found = join(Group(place.process, place.processes, _connect(place, timeout, heartbeat), timeout))
    end_together(found)
    if not found.is_first:
        _be_quiet()
    log.info("%r: all have come", found)
    return found


def _configure(place: Membership) -> None:
    """Set the options that JAX reads before it looks for devices."""
    if jax.distributed.is_initialized():
        raise errors.DistributedError(
            "jax.distributed.initialize() was called before; call fluid.distributed.initialize() instead of it"
        )
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # The Trainer handles SIGTERM, and ends between two steps; this service would intercept the signal.
    jax.config.update("jax_enable_preemption_service", False)
    if place.devices is not None:
        jax.config.update("jax_num_cpu_devices", len(place.devices))


def _connect(place: Membership, timeout: float, heartbeat: int) -> Any:
    """Start the coordination service, and return the client of this process."""
    from jax._src import distributed

    try:
        jax.distributed.initialize(
            place.coordinator,
            place.processes,
            place.process,
            list(place.devices) if place.devices is not None else None,
            cluster_detection_method="deactivate",
            initialization_timeout=int(timeout),
            heartbeat_timeout_seconds=heartbeat,
            shutdown_timeout_seconds=int(timeout),
            coordinator_bind_address=place.coordinator if loopback(place.coordinator) else None,
        )
    except RuntimeError as error:
        raise errors.DistributedError(
            f"process {place.process} cannot join the others: {error}; call fluid.distributed.initialize() before "
            f"anything is computed, and before a Trainer or a Session is made"
        ) from error
    return distributed.global_state.client


def _versions() -> dict[str, str]:
    """Return the versions that must be equal in all processes, so that they compile equal steps."""
    return {
        "the version of Python": ".".join(platform.python_version_tuple()[:2]),
        "the version of jax": jax.__version__,
        "the version of jaxlib": jaxlib.version.__version__,
        "the version of numpy": np.__version__,
    }


def _be_quiet() -> None:
    """Silence logs and warnings in this process, because process 0 reports them; errors are still shown."""
    log.setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=errors.FluidWarning)
