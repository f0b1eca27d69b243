"""Names of Fluid and of other libraries that are not here, and what takes their place."""

from fluid.missing.advice import not_called
from fluid.missing.arguments import argument_advice
from fluid.missing.elsewhere import SpelledElsewhere, check_attributes
from fluid.missing.names import (
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

__all__ = [
    "SpelledElsewhere",
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
