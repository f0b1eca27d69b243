"""PaddlePaddle's classes for several devices, such as ParallelExecutor; they run programs on one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluid import errors
from fluid.place import CPUPlace, CUDAPlace
from fluid.static.executor import Executor, Feed, Fetched, check_processes, plain_program
from fluid.static.scope import Scope


class BuildStrategy:
    """PaddlePaddle's options for building a program; any attribute may be set, but has no effect.

    Example:
      >>> import fluid.static as fluid
      >>> strategy = fluid.BuildStrategy()
      >>> strategy.memory_optimize = True
      >>> strategy.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    """

    class ReduceStrategy:
        """PaddlePaddle's options for summing gradients of several devices; they have no effect."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy:
        """PaddlePaddle's options for scaling gradients of several devices; they have no effect."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2


class ExecutionStrategy:
    """PaddlePaddle's options for running a program; any attribute may be set, but has no effect.

    Example:
      >>> import fluid.static as fluid
      >>> strategy = fluid.ExecutionStrategy()
      >>> strategy.num_threads = 4
    """


class CompiledProgram:
    """A wrapper of a Program, which the Executor runs like the Program itself.

    Args:
      program_or_graph: the Program.
      build_strategy: accepted for programs written for Fluid, but has no effect.

    Example:
      >>> import fluid.static as fluid
      >>> main = fluid.Program()
      >>> fluid.CompiledProgram(main).with_data_parallel(loss_name="mean_0.tmp_0").program is main
      True
    """

    def __init__(self, program_or_graph: Any, build_strategy: BuildStrategy | None = None):
        del build_strategy
        self.program = plain_program(program_or_graph)

    def with_data_parallel(
        self,
        loss_name: str | None = None,
        build_strategy: BuildStrategy | None = None,
        exec_strategy: ExecutionStrategy | None = None,
        share_vars_from: Any = None,
        places: Any = None,
    ) -> CompiledProgram:
        """Return the CompiledProgram itself: one device computes the whole batch. The arguments have no effect."""
        del loss_name, build_strategy, exec_strategy, share_vars_from, places
        return self

    def with_inference_optimize(self, config: Any) -> CompiledProgram:
        """Return the CompiledProgram itself: XLA optimises every program."""
        del config
        return self


class ParallelExecutor:
    """An executor of one program. One device computes the whole batch; the results equal those on several devices.

    Args:
      use_cuda: True runs on a GPU.
      loss_name: accepted for programs written for Fluid, but has no effect.
      main_program: the program; by default the default main program.
      share_vars_from: accepted for programs written for Fluid, but has no effect: the scope shares values.
      exec_strategy: accepted for programs written for Fluid, but has no effect.
      build_strategy: accepted for programs written for Fluid, but has no effect.
      num_trainers: the number of processes that train the program; see `fluid.DistributeTranspiler`.
      trainer_id: accepted for programs written for Fluid, but has no effect.
      scope: the scope that stores values between runs; by default the global scope.

    Raises:
      DistributedError: the number of launched processes is not `num_trainers`.
      ProgramError: `num_trainers` is more than 1, but DistributeTranspiler has not prepared the program.

    Example:
      >>> import fluid.static as fluid, numpy as np
      >>> main = fluid.Program()
      >>> with fluid.program_guard(main, fluid.Program()):
      ...     y = fluid.layers.scale(fluid.layers.data("x", shape=[1]), scale=2.0)
      >>> pe = fluid.ParallelExecutor(use_cuda=False, main_program=main)
      >>> pe.run([y.name], feed={"x": np.ones((2, 1), "float32")})[0].tolist()
      [[2.0], [2.0]]
    """

    def __init__(
        self,
        use_cuda: bool,
        loss_name: str | None = None,
        main_program: Any = None,
        share_vars_from: Any = None,
        exec_strategy: ExecutionStrategy | None = None,
        build_strategy: BuildStrategy | None = None,
        num_trainers: int = 1,
        trainer_id: int = 0,
        scope: Scope | None = None,
    ):
        del loss_name, share_vars_from, exec_strategy, build_strategy, trainer_id
        self._program = plain_program(main_program)
        if num_trainers > 1:
            check_processes("ParallelExecutor", num_trainers)
            if not (self._program.collective or self._program.for_test):
                raise errors.ProgramError(
                    "ParallelExecutor(num_trainers=...): the program trains on one device; before the startup program "
                    "runs, call fluid.DistributeTranspiler(config=config).transpile(trainer_id, trainers=...) with "
                    'config.mode = "nccl2"'
                )
        self._scope = scope
        self._executor = Executor(CUDAPlace(0) if use_cuda else CPUPlace())

    @property
    def device_count(self) -> int:
        """Return 1, the number of devices that run the program."""
        return 1

    def run(
        self,
        fetch_list: Sequence[Fetched],
        feed: Feed = None,
        feed_dict: Feed = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run the program once; see `Executor.run`. A list of feeds is concatenated to one minibatch."""
        given = feed if feed is not None else feed_dict
        return self._executor.run(self._program, given, fetch_list, scope=self._scope, return_numpy=return_numpy)

    def drop_local_exe_scopes(self) -> None:
        """Do nothing: the executor has no local scopes (PaddlePaddle's per-device stores of values)."""
