"""The platform for which layers choose their forms."""

import jax

from fluid import core


def on_cpu() -> bool:
    """Return whether the running trace may choose forms for a CPU.

    A trace whose equations are looked at, for a drawing or a summary, shows the plain form of each layer.
    """
    frame = core.present_frame()
    return jax.default_backend() == "cpu" and not (frame is not None and frame.labelling)
