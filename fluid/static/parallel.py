"""What runs programs on several devices in Fluid: accepted, and run as the Executor runs them."""

from collections.abc import Sequence
from typing import Any

from fluid.place import CPUPlace, CUDAPlace
from fluid.static.executor import Executor, Feed, Fetched, plain_program
from fluid.static.scope import Scope


class BuildStrategy:
    """How the original builds a program: any attribute may be set, and has no effect.

    Example:
      >>> import fluid.static as fluid
      >>> strategy = fluid.BuildStrategy()
      >>> strategy.memory_optimize = True
      >>> strategy.reduce_strategy = fluid.BuildStrategy.ReduceStrategy.Reduce
    """

    class ReduceStrategy:
        """Where gradients are summed."""

        AllReduce = 0
        Reduce = 1

    class GradientScaleStrategy:
        """What gradients of several devices are divided by."""

        CoeffNumDevice = 0
        One = 1
        Customized = 2


class ExecutionStrategy:
    """How the original runs a program: any attribute may be set, and has no effect.

    Example:
      >>> import fluid.static as fluid
      >>> strategy = fluid.ExecutionStrategy()
      >>> strategy.num_threads = 4
    """


class CompiledProgram:
    """A program, as the Executor runs it.

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
    ) -> "CompiledProgram":
        """The same: one device computes the whole batch, which gives the numbers of several."""
        del loss_name, build_strategy, exec_strategy, share_vars_from, places
        return self

    def with_inference_optimize(self, config: Any) -> "CompiledProgram":
        """The same: XLA optimises every program."""
        del config
        return self


class ParallelExecutor:
    """Runs a program; one device computes the whole batch, which gives the numbers of several.

    Args:
      use_cuda: whether on a GPU.
      loss_name: accepted for programs written for Fluid, but has no effect, as all that follow but `main_program` and
        `scope`.
      main_program: the program; the default main program if it is left out.
      share_vars_from: the same as `loss_name`: values are shared through the scope.
      exec_strategy: the same.
      build_strategy: the same.
      num_trainers: the same.
      trainer_id: the same.
      scope: where values outlive a run; the global one by default.

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
        del loss_name, share_vars_from, exec_strategy, build_strategy, num_trainers, trainer_id
        self._program = plain_program(main_program)
        self._scope = scope
        self._executor = Executor(CUDAPlace(0) if use_cuda else CPUPlace())

    @property
    def device_count(self) -> int:
        """1."""
        return 1

    def run(
        self,
        fetch_list: Sequence[Fetched],
        feed: Feed = None,
        feed_dict: Feed = None,
        return_numpy: bool = True,
    ) -> list[Any]:
        """Run the program once; see `Executor.run`. A list of feeds is that of one minibatch in several parts."""
        given = feed if feed is not None else feed_dict
        return self._executor.run(self._program, given, fetch_list, scope=self._scope, return_numpy=return_numpy)

    def drop_local_exe_scopes(self) -> None:
        """Does nothing: there are no such scopes."""
