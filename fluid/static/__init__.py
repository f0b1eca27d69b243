"""The static API of PaddlePaddle Fluid: layers record their calls into programs, which an Executor runs.

To run a program that imports `paddle.fluid as fluid`, write `import fluid.static as fluid` instead.
"""

from fluid import (
    BeginEpochEvent,
    BeginStepEvent,
    CheckpointConfig,
    EndEpochEvent,
    EndStepEvent,
    LoDTensor,
    ParamAttr,
    WeightNormParamAttr,
    average,
    batch,
    create_lod_tensor,
    create_random_int_lodtensor,
    errors,
    metrics,
    reader,
    regularizer,
)
from fluid._util.known_names import getattr_of
from fluid.compat.lod_tensor import LoDTensor as Tensor
from fluid.place import CPUPlace, CUDAPlace
from fluid.static import (
    backward,
    clip,
    contrib,
    core,
    evaluator,
    framework,
    initializer,
    io,
    layer_helper,
    layers,
    nets,
    optimizer,
    profiler,
    transpiler,
    unique_name,
)
from fluid.static import modules as modules
from fluid.static import parallel as compiler
from fluid.static.backward import append_backward, gradients
from fluid.static.core import is_compiled_with_cuda
from fluid.static.executor import Executor
from fluid.static.framework import (
    cpu_places,
    cuda_places,
    in_dygraph_mode,
    memory_optimize,
    name_scope,
    release_memory,
    require_version,
    shared,
)
from fluid.static.layers.data import whole_data as data
from fluid.static.nets import embedding, one_hot
from fluid.static.parallel import BuildStrategy, CompiledProgram, ExecutionStrategy, ParallelExecutor
from fluid.static.readers import DataFeeder
from fluid.static.scope import Scope, global_scope, scope_guard
from fluid.static.tape.program import Program, default_main_program, default_startup_program, program_guard
from fluid.static.tape.variable import Variable
from fluid.static.trainer import Inferencer, Trainer
from fluid.static.transpiler import DistributeTranspiler, DistributeTranspilerConfig, InferenceTranspiler

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "BuildStrategy",
    "CPUPlace",
    "CUDAPlace",
    "CheckpointConfig",
    "CompiledProgram",
    "DataFeeder",
    "EndEpochEvent",
    "EndStepEvent",
    "ExecutionStrategy",
    "DistributeTranspiler",
    "DistributeTranspilerConfig",
    "Executor",
    "InferenceTranspiler",
    "Inferencer",
    "LoDTensor",
    "ParallelExecutor",
    "ParamAttr",
    "Program",
    "Scope",
    "Tensor",
    "Trainer",
    "Variable",
    "WeightNormParamAttr",
    "append_backward",
    "average",
    "backward",
    "batch",
    "clip",
    "compiler",
    "contrib",
    "core",
    "cpu_places",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "cuda_places",
    "data",
    "default_main_program",
    "default_startup_program",
    "embedding",
    "errors",
    "evaluator",
    "framework",
    "global_scope",
    "gradients",
    "in_dygraph_mode",
    "initializer",
    "io",
    "is_compiled_with_cuda",
    "layer_helper",
    "layers",
    "memory_optimize",
    "metrics",
    "name_scope",
    "nets",
    "one_hot",
    "optimizer",
    "profiler",
    "program_guard",
    "reader",
    "regularizer",
    "release_memory",
    "require_version",
    "scope_guard",
    "shared",
    "transpiler",
    "unique_name",
]

__getattr__ = getattr_of(__name__)
