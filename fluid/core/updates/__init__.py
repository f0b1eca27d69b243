"""Updates: records of the updates of parameters, and of values that Fluid would update in place."""

from fluid.core.updates.in_place import change_in_place, check_not_changed
from fluid.core.updates.minimize import Parameter, clip_parameters, decide, record_gradient_clip, record_minimize

__all__ = [
    "Parameter",
    "change_in_place",
    "check_not_changed",
    "clip_parameters",
    "decide",
    "record_gradient_clip",
    "record_minimize",
]
