"""PaddlePaddle's import paths, such as `fluid.static.param_attr.ParamAttr`, for names that other modules define."""

import sys
import types
from collections.abc import Sequence
from typing import Any

from fluid import average, metrics, reader, regularizer
from fluid.static import contrib, core, layers, parallel, profiler, transpiler

_LAYERS = (
    "control_flow detection device io learning_rate_scheduler loss metric_op nn ops rnn sequence_lod tensor".split()
)
# A dict from a module of PaddlePaddle Fluid to the names that it exports. `fluid.static` defines all these names.
_NAMES = {
    "data_feeder": ["DataFeeder"],
    "inferencer": ["Inferencer"],
    "input": ["embedding", "one_hot"],
    "lod_tensor": ["create_lod_tensor", "create_random_int_lodtensor"],
    "parallel_executor": ["BuildStrategy", "ExecutionStrategy", "ParallelExecutor"],
    "param_attr": ["ParamAttr", "WeightNormParamAttr"],
}
# Unsupported packages of PaddlePaddle's `contrib`, with their modules; each use of a name raises an ImportError.
_REFUSED = {
    "quantize": ["quantize_transpiler"],
    "slim": ["core", "distillation", "graph", "nas", "prune", "quantization", "searcher"],
}


def _add(package: types.ModuleType, name: str, source: types.ModuleType, names: Sequence[str]) -> None:
    """Add a module `name` to a package; the new module reads its attributes from the module `source`."""
    module: Any = types.ModuleType(f"{package.__name__}.{name}", f"The names of `{name}` of PaddlePaddle Fluid.")
    module.__all__ = list(names)
    module.__getattr__ = lambda wanted: getattr(source, wanted)
    sys.modules[module.__name__] = module
    setattr(package, name, module)


def _refuse(package: types.ModuleType, name: str) -> types.ModuleType:
    """Add an unsupported module `name` to a package; using one of its attributes raises an ImportError."""
    module: Any = types.ModuleType(f"{package.__name__}.{name}", "A module of Fluid that is refused.")

    def missing(wanted: str) -> Any:
        if wanted.startswith("__"):
            raise AttributeError(wanted)
        raise ImportError(
            f"{module.__name__}.{wanted} is not here: fluid does not quantize, prune or distil models by itself. Train "
            f"in half precision: fluid.contrib.mixed_precision.decorate(optimizer); distil by a loss of your own over "
            f"teacher and student; quantize the exported model with the tools of the runtime that serves it"
        )

    module.__getattr__ = missing
    sys.modules[module.__name__] = module
    setattr(package, name, module)
    return module


_package = sys.modules["fluid.static"]
for _name in _LAYERS:
    _add(layers, _name, layers, layers.__all__)
for _name, _names in _NAMES.items():
    _add(_package, _name, _package, _names)
for _module in (average, metrics, reader, regularizer):
    sys.modules[f"fluid.static.{_module.__name__.rpartition('.')[2]}"] = _module
sys.modules["fluid.static.compiler"] = parallel
setattr(layers, "core", core)  # noqa: B010 - `from fluid.static.layers import core`, as BERT has it
for _module in (contrib.inferencer, contrib.trainer):
    sys.modules[f"fluid.static.{_module.__name__.removeprefix('fluid.')}"] = _module
_add(contrib.decoder, "beam_search_decoder", contrib.decoder, contrib.decoder.__all__)
_add(contrib, "memory_usage_calc", profiler, ["memory_usage"])
_add(contrib.layers, "rnn_impl", contrib.layers, contrib.layers.__all__)
for _name in ("distribute_transpiler", "inference_transpiler", "memory_optimization_transpiler"):
    _add(transpiler, _name, transpiler, transpiler.__all__)
for _name, _names in _REFUSED.items():
    _refused = _refuse(contrib, _name)
    for _inner in _names:
        _refuse(_refused, _inner)
