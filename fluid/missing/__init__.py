"""Names of Fluid and of other libraries that are not here, and what takes their place."""

from fluid.missing.elsewhere import SpelledElsewhere
from fluid.missing.names import of_clip, of_fluid, of_io, of_layers, of_metrics, of_optimizer, of_static

__all__ = ["SpelledElsewhere", "of_clip", "of_fluid", "of_io", "of_layers", "of_metrics", "of_optimizer", "of_static"]
