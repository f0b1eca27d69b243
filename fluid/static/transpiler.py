"""Transpilers of PaddlePaddle Fluid, which prepare programs for multi-process training or for inference."""

import logging
from typing import Any

from fluid import errors
from fluid.static.executor import check_processes, plain_program
from fluid.static.framework import memory_optimize, release_memory
from fluid.static.tape.program import Program

__all__ = [
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "InferenceTranspiler",
    "memory_optimize",
    "release_memory",
]

log = logging.getLogger("fluid")

_COLLECTIVE = ("nccl2", "collective")


class DistributeTranspilerConfig:
    """Options for multi-process training; any attribute may be set, but only `mode` has an effect.

    Attributes:
      mode: "nccl2" or "collective" for collective training; Fluid's default "pserver" raises an ArgumentError.

    Example:
      >>> import fluid.static as fluid
      >>> config = fluid.DistributeTranspilerConfig()
      >>> config.mode = "nccl2"
    """

    def __init__(self) -> None:
        self.mode = "pserver"
        self.slice_var_up = True
        self.split_method: Any = None
        self.min_block_size = 8192
        self.collective_mode: str | None = None
        self.nccl_comm_num = 1
        self.use_hierarchical_allreduce = False


class DistributeTranspiler:
    """A converter that prepares a program for multi-process training by collective communication.

    Start the script by `python -m fluid launch --processes N train.py`. Every process feeds its own rows, as in Fluid,
    and XLA computes the gradient over the rows of all processes. So all processes must run the same programs in the
    same order, and fetched values are computed from the rows of all processes.

    Args:
      config: a DistributeTranspilerConfig with `mode = "nccl2"`.

    Example:
      >>> import fluid.static as fluid
      >>> config = fluid.DistributeTranspilerConfig()
      >>> config.mode = "nccl2"
      >>> transpiler = fluid.DistributeTranspiler(config=config)
      >>> transpiler.transpile(trainer_id=0, program=fluid.Program(), trainers=1)
    """

    def __init__(self, config: DistributeTranspilerConfig | None = None):
        self._config = config or DistributeTranspilerConfig()
        self._program: Program | None = None

    def transpile(
        self,
        trainer_id: int,
        program: Any = None,
        pservers: str = "127.0.0.1:6174",
        trainers: int | str = 1,
        sync_mode: bool = True,
        startup_program: Any = None,
        current_endpoint: str = "127.0.0.1:6174",
    ) -> None:
        """Prepare a program for training in all launched processes; call `transpile` before the startup program runs.

        Args:
          trainer_id: accepted for programs written for Fluid, but has no effect: `fluid launch` numbers the processes.
          program: the program; by default the default main program.
          pservers: accepted for programs written for Fluid, but has no effect.
          trainers: the number of processes, or their addresses separated by commas.
          sync_mode: accepted for programs written for Fluid, but has no effect: training is always synchronous.
          startup_program: accepted for programs written for Fluid, but has no effect: the program already has one.
          current_endpoint: accepted for programs written for Fluid, but has no effect.

        Raises:
          ArgumentError: the mode is not collective.
          DistributedError: the number of launched processes is not `trainers`.
        """
        del trainer_id, pservers, sync_mode, startup_program, current_endpoint
        if self._config.mode not in _COLLECTIVE:
            raise _no_servers(f"mode={self._config.mode!r}")
        count = len(trainers.split(",")) if isinstance(trainers, str) else trainers
        check_processes("DistributeTranspiler.transpile", count)
        self._program = plain_program(program)
        self._program.collective = count > 1
        if count > 1:
            log.warning(
                "DistributeTranspiler: %d processes train together: each run takes the rows that all of them feed, and "
                "what is fetched belongs to all rows",
                count,
            )

    def get_trainer_program(self, wait_port: bool = True) -> Program:
        """Return the program that `transpile` has prepared.

        Raises:
          ProgramError: `transpile` was not called.
        """
        del wait_port
        if self._program is None:
            raise errors.ProgramError(
                "DistributeTranspiler: no program was transpiled; first transpile(trainer_id, trainers=...)"
            )
        return self._program

    def get_pserver_program(self, endpoint: str) -> Program:
        """Raise an ArgumentError: fluid has no parameter servers, only collective training."""
        raise _no_servers(f"get_pserver_program({endpoint!r})")

    def get_pserver_programs(self, endpoint: str) -> Program:
        """Raise an ArgumentError: fluid has no parameter servers, only collective training."""
        raise _no_servers(f"get_pserver_programs({endpoint!r})")

    def get_startup_program(self, endpoint: str, *args: Any, **kwargs: Any) -> Program:
        """Raise an ArgumentError: fluid has no parameter servers, only collective training."""
        raise _no_servers(f"get_startup_program({endpoint!r})")


class InferenceTranspiler:
    """PaddlePaddle's optimizer of programs for inference; it does nothing, because XLA fuses layers in every program.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.InferenceTranspiler().transpile(fluid.Program(), fluid.CPUPlace())
    """

    def transpile(self, program: Program, place: Any = None, scope: Any = None) -> None:
        """Do nothing: XLA fuses the layers of every program."""
        del program, place, scope


def _no_servers(what: str) -> errors.ArgumentError:
    return errors.ArgumentError(
        f"DistributeTranspiler: {what} needs parameter servers, which are not here; processes train the collective "
        f'way: config = fluid.DistributeTranspilerConfig(); config.mode = "nccl2"; '
        f"fluid.DistributeTranspiler(config=config).transpile(trainer_id, trainers=2), started by "
        f"python -m fluid launch --processes 2 train.py"
    )
