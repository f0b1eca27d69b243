"""Several training steps in one call of the device: the compiled loop, what it takes and what it gives back."""

from fluid.session.fused.results import Later, SeveralResults
from fluid.session.fused.steps import Fed, Picks, Stack, fused

__all__ = ["Fed", "Later", "Picks", "SeveralResults", "Stack", "fused"]
