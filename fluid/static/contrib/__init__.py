"""PaddlePaddle's `fluid.contrib` for recorded programs: decoders, recurrent layers, half precision, memory usage."""

from fluid.contrib import inferencer, trainer
from fluid.static.contrib import decoder, layers, mixed_precision
from fluid.static.contrib.decoder import BeamSearchDecoder, InitState, StateCell, TrainingDecoder
from fluid.static.contrib.layers import BasicGRUUnit, BasicLSTMUnit, basic_gru, basic_lstm
from fluid.static.profiler import memory_usage

__all__ = [
    "BasicGRUUnit",
    "BasicLSTMUnit",
    "BeamSearchDecoder",
    "InitState",
    "StateCell",
    "TrainingDecoder",
    "basic_gru",
    "basic_lstm",
    "decoder",
    "inferencer",
    "layers",
    "memory_usage",
    "mixed_precision",
    "trainer",
]
