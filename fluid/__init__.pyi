"""The names of `fluid` and the modules that define them; `__init__.py` loads most of them at their first use."""

from . import (
    clip,
    contrib,
    core,
    debug,
    distributed,
    errors,
    handlers,
    initializer,
    io,
    layers,
    metrics,
    nets,
    optimizer,
    place,
    reader,
    regularizer,
    trainer,
    unique_name,
)
from .compat.input import data, embedding, one_hot
from .compat.lod_tensor import LoDTensor, create_lod_tensor, create_random_int_lodtensor
from .core import NestedSequenceBatch, Program, Scope, SequenceBatch, frozen, name_scope, shared
from .inferencer import Inferencer
from .inspection import draw, summary
from .metrics import average
from .online import OnlineTrainer, RemoteTrainer
from .parallel.planner import plan
from .param_attr import LowRankParamAttr, ParamAttr, WeightNormParamAttr
from .place import CPUPlace, CUDAPlace, Mesh, device_guard
from .reader import DataFeeder, batch
from .runtime import Results, Session, TrainingStep
from .runtime.compilation_cache import set_compilation_cache
from .serving import serve
from .sweeps import Population
from .sweeps.learning_rate_finder import find_learning_rate
from .trainer import (
    BeginEpochEvent,
    BeginStepEvent,
    BeginTrainEvent,
    Checkpoint,
    CheckpointConfig,
    EndEpochEvent,
    EndStepEvent,
    EndTrainEvent,
    Handler,
    History,
    Loop,
    MeasuredEvent,
    ProgressBar,
    Trainer,
    TrainingProgram,
    train,
)

__version__: str

__all__ = [
    "BeginEpochEvent",
    "BeginStepEvent",
    "BeginTrainEvent",
    "CPUPlace",
    "CUDAPlace",
    "Checkpoint",
    "CheckpointConfig",
    "DataFeeder",
    "EndEpochEvent",
    "EndStepEvent",
    "EndTrainEvent",
    "Handler",
    "History",
    "Inferencer",
    "LoDTensor",
    "Loop",
    "LowRankParamAttr",
    "MeasuredEvent",
    "Mesh",
    "NestedSequenceBatch",
    "OnlineTrainer",
    "ParamAttr",
    "Population",
    "Program",
    "ProgressBar",
    "RemoteTrainer",
    "Results",
    "Scope",
    "SequenceBatch",
    "Session",
    "Trainer",
    "TrainingProgram",
    "TrainingStep",
    "WeightNormParamAttr",
    "average",
    "batch",
    "clip",
    "contrib",
    "core",
    "debug",
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "data",
    "device_guard",
    "distributed",
    "draw",
    "embedding",
    "errors",
    "find_learning_rate",
    "frozen",
    "handlers",
    "initializer",
    "io",
    "layers",
    "metrics",
    "name_scope",
    "nets",
    "one_hot",
    "optimizer",
    "plan",
    "place",
    "reader",
    "regularizer",
    "serve",
    "set_compilation_cache",
    "shared",
    "summary",
    "train",
    "trainer",
    "unique_name",
]
