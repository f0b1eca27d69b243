"""Modules of PaddlePaddle Fluid whose names stand elsewhere here: `from fluid.static.param_attr import ParamAttr`."""

import sys
import types
from collections.abc import Sequence
from typing import Any

from fluid import average, metrics, reader, regularizer
from fluid.static import core, layers, parallel

_LAYERS = (
    "control_flow detection device io learning_rate_scheduler loss metric_op nn ops rnn sequence_lod tensor".split()
)
# The names of each module that another module of this package has.
_NAMES = {
    "data_feeder": ["DataFeeder"],
    "inferencer": ["Inferencer"],
    "input": ["embedding", "one_hot"],
    "lod_tensor": ["create_lod_tensor", "create_random_int_lodtensor"],
    "parallel_executor": ["BuildStrategy", "ExecutionStrategy", "ParallelExecutor"],
    "param_attr": ["ParamAttr", "WeightNormParamAttr"],
}


def _add(package: types.ModuleType, name: str, source: types.ModuleType, names: Sequence[str]) -> None:
    """Add a module to a package, with names that it takes from another module at their first use."""
    module: Any = types.ModuleType(f"{package.__name__}.{name}", f"The names of `{name}` of PaddlePaddle Fluid.")
    module.__all__ = list(names)
    module.__getattr__ = lambda wanted: getattr(source, wanted)
    sys.modules[module.__name__] = module
    setattr(package, name, module)


_package = sys.modules["fluid.static"]
for _name in _LAYERS:
    _add(layers, _name, layers, layers.__all__)
for _name, _names in _NAMES.items():
    _add(_package, _name, _package, _names)
for _module in (average, metrics, reader, regularizer):
    sys.modules[f"fluid.static.{_module.__name__.rpartition('.')[2]}"] = _module
sys.modules["fluid.static.compiler"] = parallel
setattr(layers, "core", core)  # noqa: B010 - `from fluid.static.layers import core`, as BERT has it
