"""What each name of `fluid` is; those that `__init__.py` does not load are loaded when they are first used."""

from fluid import (
    clip,
    contrib,
    core,
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
from fluid.core import NestedSequenceBatch, Program, Scope, SequenceBatch, frozen, name_scope, shared
from fluid.inferencer import Inferencer
from fluid.input import data, embedding, one_hot
from fluid.inspection import draw, summary
from fluid.lod_tensor import LoDTensor, create_lod_tensor, create_random_int_lodtensor
from fluid.metrics import average
from fluid.online import OnlineTrainer
from fluid.param_attr import ParamAttr, WeightNormParamAttr
from fluid.place import CPUPlace, CUDAPlace, Mesh
from fluid.planning import plan
from fluid.population import Population
from fluid.reader import DataFeeder, batch
from fluid.remote import RemoteTrainer
from fluid.runtime import Results, Session, TrainingStep
from fluid.runtime.compilation_cache import set_compilation_cache
from fluid.serving import serve
from fluid.trainer import (
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
from fluid.tuning import find_learning_rate

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
    "create_lod_tensor",
    "create_random_int_lodtensor",
    "data",
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
