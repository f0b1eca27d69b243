"""Membership in a multi-process training: index of this process, number of processes, and address of process 0."""

import functools
import os
from collections.abc import Mapping
from typing import NamedTuple

from fluid import errors
from fluid.core import warn
from fluid.distributed.group import group

COORDINATOR = "FLUID_COORDINATOR"
PROCESSES = "FLUID_PROCESSES"
PROCESS = "FLUID_PROCESS"
DEVICES = "FLUID_DEVICES"
TIMEOUT = "FLUID_TIMEOUT"
_FIX = f"{COORDINATOR}=host:port, {PROCESSES}=4 and {PROCESS}=0, 1, 2, 3"


class Membership(NamedTuple):
    """The membership of this process in a multi-process training.

    Attributes:
      coordinator: "host:port" at which process 0 listens.
      processes: number of processes.
      process: index of this process, from 0.
      devices: indices of the devices of this machine that belong to this process; None for all.
    """

    coordinator: str
    processes: int
    process: int
    devices: tuple[int, ...] | None = None


def membership(
    coordinator: str | None = None,
    processes: int | None = None,
    process: int | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Membership | None:
    """Return the Membership of this process, from arguments, variables `FLUID_*`, or the variables of a cluster.

    JAX reads the environment variables of SLURM, Open MPI, Kubernetes and Cloud TPUs.

    Raises:
      ArgumentError: only some of coordinator, number of processes and index are known, or one of them is invalid.

    Example:
      >>> membership(environment={"FLUID_COORDINATOR": "node0:8476", "FLUID_PROCESSES": "4", "FLUID_PROCESS": "1"})
      Membership(coordinator='node0:8476', processes=4, process=1, devices=None)
      >>> membership(environment={}) is None
      True
    """
    coordinator = coordinator if coordinator is not None else environment.get(COORDINATOR)
    processes = processes if processes is not None else _number(environment, PROCESSES)
    process = process if process is not None else _number(environment, PROCESS)
    devices = environment.get(DEVICES)
    if coordinator is None and processes is None and process is None:
        return _of_cluster() if environment is os.environ else None
    if coordinator is None or processes is None or process is None:
        raise errors.ArgumentError(
            f"several processes need to know three things: found coordinator={coordinator!r}, processes={processes}, "
            f"process={process}; give all of them, or set {_FIX}"
        )
    host, _, port = coordinator.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise errors.ArgumentError(
            f"coordinator={coordinator!r}: expected the address of process 0, 'host:port': set {_FIX}"
        )
    if processes < 1 or not 0 <= process < processes:
        raise errors.ArgumentError(
            f"process={process} of processes={processes}: expected a number from 0 to {max(processes, 1) - 1}: {_FIX}"
        )
    numbers = None if devices is None else tuple(int(number) for number in devices.split(","))
    return Membership(coordinator, processes, process, numbers)


def warn_if_alone(environment: Mapping[str, str] = os.environ) -> None:
    """Warn, once, if environment variables describe several processes, but this process has not joined the others."""
    variable = next((name for name in (COORDINATOR, PROCESSES) if environment.get(name)), None)
    if variable and environment.get(PROCESSES) != "1" and group().size == 1:
        _warn_of(variable, environment[variable])


@functools.cache
def _warn_of(variable: str, value: str) -> None:
    warn(
        f"{variable}={value} is set, but this process has not joined the others and trains alone, found a "
        f"group of 1; call fluid.distributed.initialize() in the first lines of the script, or start it by "
        f"python -m fluid launch; to train alone, unset {variable}"
    )


def _of_cluster() -> Membership | None:
    """Return the Membership that JAX detects from the environment variables of a cluster; None outside a cluster."""
    from jax._src import clusters

    found = clusters.ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, 300)
    coordinator, processes, process, devices = found
    if coordinator is None or processes is None or process is None:
        return None
    return Membership(coordinator, processes, process, None if devices is None else tuple(devices))


def _number(environment: Mapping[str, str], name: str) -> int | None:
    value = environment.get(name)
    if value is not None and not value.isdigit():
        raise errors.ArgumentError(f"{name}={value!r}: expected a number: set {_FIX}")
    return None if value is None else int(value)
