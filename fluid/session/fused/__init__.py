"""Several training steps in one call of the device: the compiled loop, and what it gives back."""

from fluid.session.fused.results import Later, SeveralResults
from fluid.session.fused.steps import fused

__all__ = ["Later", "SeveralResults", "fused"]
