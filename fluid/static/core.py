"""The names of PaddlePaddle's `fluid.core` that programs use, such as CPUPlace, Scope and VarDesc."""

import jax

from fluid.compat.lod_tensor import LoDTensor
from fluid.errors import EOFException
from fluid.errors import FluidError as EnforceNotMet
from fluid.place import CPUPlace, CUDAPlace
from fluid.static.scope import Scope

__all__ = [
    "CPUPlace",
    "CUDAPlace",
    "EOFException",
    "EnforceNotMet",
    "LoDTensor",
    "Scope",
    "VarDesc",
    "get_cuda_device_count",
    "is_compiled_with_cuda",
]


class VarDesc:
    """A namespace for PaddlePaddle's names of dtypes, such as `VarDesc.VarType.FP32`.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.core.VarDesc.VarType.FP32
      'float32'
    """

    class VarType:
        """The dtypes as strings, which layers accept as `dtype=`."""

        BOOL = "bool"
        FP16 = "float16"
        FP32 = "float32"
        FP64 = "float64"
        INT8 = "int8"
        INT16 = "int16"
        INT32 = "int32"
        INT64 = "int64"
        UINT8 = "uint8"


def is_compiled_with_cuda() -> bool:
    """Return whether JAX has a GPU.

    Example:
      >>> import fluid.static as fluid
      >>> place = fluid.CUDAPlace(0) if fluid.core.is_compiled_with_cuda() else fluid.CPUPlace()
    """
    return get_cuda_device_count() > 0


def get_cuda_device_count() -> int:
    """Return the number of GPUs.

    Example:
      >>> import fluid.static as fluid
      >>> fluid.core.get_cuda_device_count() >= 0
      True
    """
    return sum(device.platform == "gpu" for device in jax.devices())
