"""Where parameters with automatic names come from: which line made them, and where in the net they are used."""

from fluid.core.origins.lines import user_lines
from fluid.core.origins.origin import Origin, origins_of

__all__ = ["Origin", "origins_of", "user_lines"]
