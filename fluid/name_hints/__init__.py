"""Names of Fluid and of other libraries that are not here, and what to write instead."""

from fluid.name_hints.arguments import argument_advice
from fluid.name_hints.attributes import KnownAttributes, check_attributes
from fluid.name_hints.modules import (
    not_called,
    of_clip,
    of_fluid,
    of_handlers,
    of_initializer,
    of_io,
    of_layers,
    of_lr,
    of_metrics,
    of_nets,
    of_optimizer,
    of_reader,
    of_regularizer,
    of_static,
)
from fluid.name_hints.table import HINTS

__all__ = [
    "HINTS",
    "KnownAttributes",
    "argument_advice",
    "check_attributes",
    "not_called",
    "of_clip",
    "of_fluid",
    "of_handlers",
    "of_initializer",
    "of_io",
    "of_layers",
    "of_lr",
    "of_metrics",
    "of_nets",
    "of_optimizer",
    "of_reader",
    "of_regularizer",
    "of_static",
]
