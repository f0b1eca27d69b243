"""Names of Fluid that are not here: the AttributeError says what to use."""

from fluid.missing.names import of_clip, of_fluid, of_io, of_layers, of_metrics

__all__ = ["of_clip", "of_fluid", "of_io", "of_layers", "of_metrics"]
